"""Refuse by name: inconsistent rows, unbounded and undetermined vertices, each with its certificate."""

from __future__ import annotations

import numpy as np

from gnewt._errors import QPError
from gnewt.qp.gather import Factorization, SweepResult, scatter
from gnewt.qp.problem import NumberedQP

CONFLICT_TOL = 1e-10
"""Σ ν_i h_i below this part of Σ |ν_i h_i| is rounding in the user's h."""
NAMED = 8
"""At most so many rows or vertices are spelled out."""
TOUCHED = 1e-6
"""A direction touches a vertex where it exceeds this part of its largest entry."""


def check_consistent(
    problem: NumberedQP, factor: Factorization, solution: SweepResult, row: np.ndarray
) -> None:
    """Raise QPError if some combination of rows reads 0 = c ≠ 0; it is expanded to the user's rows.

    The leftover of a front's h̃ is itself such a combination ν: νᵀG̃ = 0, νᵀh̃ = |ν|². Handing it down the
    tree as a multiplier gives ν over the original rows. `problem` is scaled; `row` takes ν to the user's units.
    """
    _, h = problem.rhs()
    reach = problem.residuals(solution.x, np.zeros(len(h))).primal_size
    eps = np.finfo(np.float64).eps
    for i, (left, stack) in enumerate(zip(solution.leftover, solution.stack_h, strict=True)):
        if np.linalg.norm(left) <= 16 * eps * np.linalg.norm(stack):
            continue
        x, nu = np.zeros(factor.num_ids), np.zeros(factor.num_row_ids)
        front = factor.fronts[i]
        # A leftover of rounding size is not orthogonal to G̃ beside its own length: project it once more.
        unit = left / np.linalg.norm(left)
        unit = unit - front.pivot.U1 @ (front.pivot.U1.T @ unit) - front.pivot.U2 @ (front.pivot.U2.T @ unit)
        nu[front.rows] = unit
        scatter(factor, x, nu, i - 1)
        nu = nu[: factor.num_rows]
        gap = abs(float(nu @ h))
        if gap > CONFLICT_TOL * float(np.abs(nu) @ np.abs(h)) + 64 * eps * float(np.abs(nu) @ reach):
            user = np.abs(row * nu)
            rows = np.flatnonzero(user > TOUCHED * user.max())
            raise QPError(
                f"inconsistent constraints: a combination of {len(rows)} rows reads 0 = {gap / user.max():.3g}",
                name_rows(problem, rows),
                "no x satisfies these rows together: correct h, or remove one of them",
            )


def check_curvature(
    problem: NumberedQP,
    factor: Factorization,
    solution: SweepResult,
    column: np.ndarray,
    allow_indefinite: bool,
) -> None:
    """Raise QPError unless the reduced Hessian is positive definite (nonsingular if `allow_indefinite`).

    A pivot w < 0 of a front, or a null pivot, is a direction z of its interior; extended downwards it has
    Gz = 0 and zᵀQz = w.
    """
    for i, front in enumerate(factor.fronts):
        pivot = front.pivot
        if not allow_indefinite and (pivot.curvature < 0).any():
            x = np.zeros(factor.num_ids)
            first = pivot.num_pivots - len(pivot.curvature)
            x[front.interior] = pivot.T[:, first + int(pivot.curvature.argmin())]
            scatter(factor, x, np.zeros(factor.num_row_ids), i - 1)
            raise QPError(
                "unbounded: the objective has negative curvature along a direction that satisfies the constraints",
                name_vertices(problem, column * x[: factor.num_scalars]),
                "make Q positive definite there, add a constraint, or pass allow_indefinite=True for the "
                "stationary point",
            )
    for i, front in enumerate(factor.fronts):
        for null in front.null.tolist():
            x = np.zeros(factor.num_ids)
            x[null] = 1.0
            scatter(factor, x, np.zeros(factor.num_row_ids), i)
            slope = float(solution.null_b[null])
            size = 1e-9 * (np.abs(problem.rhs()[0]).max(initial=0.0) + np.abs(solution.x).max(initial=0.0))
            if abs(slope) > size:
                what = "unbounded: the objective is linear and not constant along a direction that satisfies the constraints"
            else:
                what = "singular: the objective is constant along a direction that satisfies the constraints, x is not unique"
            raise QPError(
                what,
                name_vertices(problem, column * x[: factor.num_scalars]),
                "give these vertices a cost (any positive definite Q will do) or a constraint",
            )


def name_rows(problem: NumberedQP, rows: np.ndarray) -> str:
    """Write row numbers as `edge[row]`."""
    named = [f"{name}[{row}]" for name, row in locate_rows(problem, rows)]
    return "rows " + shorten(named)


def locate_rows(problem: NumberedQP, rows: np.ndarray) -> list[tuple[str, int]]:
    """Find the edge's name and the row within the edge of each row number."""
    count = [len(t.rows) for t in problem.terms]
    term_of_row = np.repeat(np.arange(len(count)), count)
    terms = [problem.terms[int(term_of_row[row])] for row in rows]
    return [(t.name, int(row - t.rows[0])) for t, row in zip(terms, rows, strict=True)]


def name_vertices(problem: NumberedQP, direction: np.ndarray) -> str:
    """List the vertices that a direction touches."""
    size = np.maximum.reduceat(np.abs(direction), problem.offset[:-1])
    touched = np.flatnonzero(size > TOUCHED * size.max())
    return "vertices " + shorten([repr(problem.labels[v]) for v in touched])


def shorten(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
