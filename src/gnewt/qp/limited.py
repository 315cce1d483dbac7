"""QPs with limits, and QPs inside jit: from edges to the interior point, and back to labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import QPError
from gnewt._typing import Argument
from gnewt.newton.arithmetic import Array
from gnewt.newton.statuses import Status
from gnewt.qp.diagnose import TOUCHED, name_rows, name_vertices, shorten
from gnewt.qp.hyperedge import read_limits
from gnewt.qp.interior import Point, Problem, State, solve_interior
from gnewt.qp.problem import Label, NumberedQP
from gnewt.qp.saddle import Entries, make_saddle

_TOL = 1e-10
_TOL_SINGLE = 1e-5
_NEGATIVE = 1e-9
"""Eigenvalues of an edge's Q below this part of its largest entry are negative."""

Bounds = Mapping[Any, tuple[Any, Any]]
"""(lower, upper) by vertices."""


def is_traced(problem: NumberedQP, bounds: Argument[Bounds | None]) -> bool:
    """Whether a number is known only when a program runs."""
    numbers = jax.tree.leaves((problem.numbers, list((bounds or {}).values())))
    return any(isinstance(v, Tracer) for v in numbers)


def spread_bounds(problem: NumberedQP, bounds: Argument[Bounds | None]) -> tuple[Array, Array]:
    """Bounds of all scalars of x."""
    low: list[Any] = [np.full(n, -np.inf) for n in problem.sizes.tolist()]
    up: list[Any] = [np.full(n, np.inf) for n in problem.sizes.tolist()]
    number: dict[Hashable, int] = {v: i for i, v in enumerate(problem.labels)}
    for v, pair in (bounds or {}).items():
        where = f"the bounds of vertex {v!r}"
        if v not in number:
            raise QPError(f"unknown vertex {v!r}: it is in no hyperedge", "`bounds`", "remove it")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise QPError(f"{pair!r} is no pair", where, "give (lower, upper); None for no bound")
        i = number[v]
        low[i], up[i] = read_limits(*pair, int(problem.sizes[i]), where)
    xp = jnp if any(isinstance(a, Tracer) for a in (*low, *up)) else np
    return xp.concatenate(low), xp.concatenate(up)


def solve_limited(problem: NumberedQP, bounds: tuple[Array, Array], traced: bool) -> tuple[State, Point]:
    """Solve by the interior point: (x, s), multipliers of all rows, and those of the bounds."""
    # Numbers that are known were read as float64, whatever they came as: the traced ones have the dtype of the user.
    arrays = [v for t in problem.terms for v in (t.Q, t.b, t.G, t.C) if isinstance(v, Tracer)]
    dtype = jnp.result_type(*arrays) if arrays else np.dtype(np.float64)
    saddle = make_saddle(problem, dtype)
    xp = jnp if traced else np

    def cast(a: Any) -> Array:
        return jnp.asarray(a, dtype) if isinstance(a, Tracer) else np.asarray(a, dtype)

    q = [cast(t.Q).reshape(-1) for t in problem.terms]
    a = [cast(part).reshape(-1) for t in problem.terms for part in (t.G, t.C)]
    entries, b = Entries(xp.concatenate(q), xp.concatenate(a)), xp.zeros(problem.num_scalars, dtype)
    for t in problem.terms:
        b = _added(b, t.scalars, cast(t.b))
    h = [cast(t.h) for t in problem.terms]
    rows = [
        xp.concatenate([*h, *(cast(getattr(t, side)) for t in problem.terms)]) for side in ("lower", "upper")
    ]
    lower, upper = (xp.concatenate([cast(v), r]) for v, r in zip(bounds, rows, strict=True))
    tol = _TOL if dtype == np.float64 else _TOL_SINGLE
    with np.errstate(all="ignore"):
        st, at, _ = solve_interior(saddle, Problem(entries, b, lower, upper), tol)
    return st, at


def _added(b: Array, places: np.ndarray, values: Any) -> Array:
    if not isinstance(b, np.ndarray):
        return b.at[places].add(jnp.asarray(values, b.dtype))
    b = b.copy()
    np.add.at(b, places, values)
    return b


def check_convex(problem: NumberedQP) -> None:
    """Raise QPError where Q is not positive semidefinite: the interior point needs a convex problem.

    The edges alone may have negative curvature that others make up for: then the sum is asked.
    """
    if all(_is_semidefinite(t.Q) for t in problem.terms):
        return
    n = problem.num_scalars
    Q = np.zeros((n, n))
    for t in problem.terms:
        Q[np.ix_(t.scalars, t.scalars)] += t.Q
    values, vectors = np.linalg.eigh(Q)
    if values[0] < -_NEGATIVE * max(1.0, float(np.abs(Q).max(initial=0.0))):
        raise QPError(
            "the objective has negative curvature, and the QP has limits",
            name_vertices(problem, vectors[:, 0]),
            "make Q positive semidefinite, or look for a local minimum with gnewt.minimize and constraints",
        )


def _is_semidefinite(Q: np.ndarray) -> bool:
    if not len(Q):
        return True
    return bool(np.linalg.eigvalsh(Q)[0] >= -_NEGATIVE * max(1.0, float(np.abs(Q).max())))


def check_solved(problem: NumberedQP, st: State, at: Point) -> None:
    """Raise QPError where there is no solution; the certificate is named."""
    code = Status(int(st.code))
    if code in (Status.CONVERGED, Status.STALLED):
        return
    if code == Status.INFEASIBLE:
        raise QPError(
            "infeasible: a combination of limits contradicts itself",
            _name_certificate(problem, at),
            "no x satisfies these together: relax one of them",
        )
    if code == Status.UNBOUNDED:
        raise QPError(
            "unbounded: the objective falls without end along a direction that satisfies all limits",
            name_vertices(problem, at.v[: problem.num_scalars]),
            "give these vertices a cost or a limit",
        )
    raise QPError(
        f"not solved: {code.text} after {int(st.step)} rounds, error {float(st.error):.1e}",
        "solve_qp",
        "check the scaling of Q and the rows, and whether Q is positive semidefinite",
    )


def _name_certificate(problem: NumberedQP, at: Point) -> str:
    m = problem.num_rows
    y, z = np.abs(np.asarray(at.y)), np.abs(np.asarray(at.upper))
    most = max(y.max(initial=0.0), z.max(initial=0.0))
    rows = np.flatnonzero(y > TOUCHED * most)
    parts = []
    if (rows < m).any():
        parts.append(name_rows(problem, rows[rows < m]))
    limited = {int(r): f"{t.name}[{i}]" for t in problem.terms for i, r in enumerate(t.limit_rows)}
    if (rows >= m).any():
        parts.append("limits " + shorten([limited[int(r) - m] for r in rows if r >= m]))
    if (z > TOUCHED * most).any():
        parts.append("bounds of " + name_vertices(problem, np.where(z > TOUCHED * most, z, 0.0)))
    return "; ".join(parts)


def by_vertex(problem: NumberedQP, x: Array) -> dict[Label, Array]:  # type: ignore[type-var]
    """x by labels."""
    return {v: x[problem.offset[i] : problem.offset[i + 1]] for i, v in enumerate(problem.labels)}  # type: ignore[misc]


def residuals_with_limits(problem: NumberedQP, at: Point) -> tuple[Any, Any]:
    """(primal, dual): violation of rows and limits, and of Qx + Gᵀλ + Cᵀy + z = b, beside the size of their terms."""
    n, m = problem.num_scalars, problem.num_rows
    x, y, z = at.v[:n], at.y, at.upper
    xp = jnp if isinstance(x, Tracer) else np
    left, size = z, abs(z)
    worst, beside = xp.zeros((), x.dtype), xp.ones((), x.dtype)
    for t in problem.terms:
        own = x[t.scalars]
        terms = (t.Q @ own, -t.b, t.G.T @ y[t.rows], t.C.T @ y[m + t.limit_rows])
        total, sizes = sum(terms), sum(abs(v) for v in terms)
        left, size = _added(left, t.scalars, total), _added(size, t.scalars, sizes)
        rows, limited = t.G @ own, t.C @ own
        parts = (abs(rows - t.h), t.lower - limited, limited - t.upper)
        for part in parts:
            worst = xp.maximum(worst, xp.max(part, initial=0.0))
        for part in (abs(rows), abs(limited)):
            beside = xp.maximum(beside, xp.max(part, initial=0.0))
    dual = xp.max(abs(left), initial=0.0) / xp.maximum(1.0, xp.max(size, initial=0.0))
    return worst / beside, dual
