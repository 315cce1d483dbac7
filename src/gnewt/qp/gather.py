"""Algorithm 2 over the tree: gather matrices and right-hand sides upwards, scatter x and λ downwards (E4, E5).

Coordinates have numbers: the scalars of x are 0..n−1, delayed and null directions get the numbers after
them. Rows likewise: the user's are 0..M−1, then those of the messages. A vector over all of them is the only
state of the two sweeps, so a message's right-hand side is an addition at its numbers.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt.plan.tree import TreeDecomposition
from gnewt.qp.front import InteriorPivot, eliminate
from gnewt.qp.problem import NumberedQP, Term


@dataclasses.dataclass(frozen=True, eq=False)
class BagFront:
    """A bag's place in the numbering, with its elimination."""

    interior: np.ndarray
    """ι, and the directions that the children delayed."""
    kept: np.ndarray
    """[null, d, ξ]; d and null are numbers made here."""
    rows: np.ndarray
    """Stacked rows of G̃: the edges', then the children's messages."""
    rows_up: np.ndarray
    """Rows of G_{l→p}, with numbers made here."""
    pivot: InteriorPivot

    @property
    def null(self) -> np.ndarray:
        return self.kept[: self.pivot.num_null]


@dataclasses.dataclass(frozen=True, eq=False)
class BagMessage:
    """(Q_{l→p}, G_{l→p}) over the coordinates ids = [d, ξ]."""

    ids: np.ndarray
    delayed: np.ndarray
    rows: np.ndarray
    Q: np.ndarray
    G: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Factorization:
    """The gathered QP: one front per bag, children before parents."""

    fronts: tuple[BagFront, ...]
    num_scalars: int
    num_rows: int
    num_ids: int
    """Scalars, delayed and null directions."""
    num_row_ids: int

    @property
    def inertia(self) -> tuple[int, int, int]:
        """Inertia is additive over the pivots (Haynsworth)."""
        pos, neg, zero = np.array([f.pivot.inertia for f in self.fronts]).sum(axis=0).tolist()
        return pos, neg, zero

    @property
    def rank(self) -> int:
        """rank(G): every independent row is a pivot row of exactly one front."""
        return sum(f.pivot.rank for f in self.fronts)


def gather(problem: NumberedQP, tree: TreeDecomposition) -> Factorization:
    """Eliminate bag after bag, leaves first: GatherMessage(c, l, T), where the parent of c is l (E4)."""
    terms = assign_terms(problem, tree)
    inbox: list[list[BagMessage]] = [[] for _ in range(tree.num_bags)]
    fronts = []
    num_ids, num_row_ids = problem.num_scalars, problem.num_rows
    scale = np.zeros(tree.num_bags)
    for i in range(tree.num_bags):
        delayed = [message.delayed for message in inbox[i]]
        interior = np.concatenate([problem.scalars(tree.frontal(i)), *delayed])
        separator = problem.scalars(tree.separator(i))
        ids = np.concatenate([interior, separator])
        Q, G, rows = _assemble(ids, terms[i], inbox[i])
        inbox[i] = []  # a message is read once
        pivot, Q_up, G_up = eliminate(Q, G, len(interior), float(scale[i]))
        made = np.arange(num_ids, num_ids + pivot.num_null + pivot.num_delayed)
        num_ids += len(made)
        rows_up = np.arange(num_row_ids, num_row_ids + len(G_up))
        num_row_ids += len(rows_up)
        kept = np.concatenate([made, separator])
        fronts.append(BagFront(interior, kept, rows, rows_up, pivot))
        p = int(tree.parent[i])
        if p >= 0:
            up = kept[pivot.num_null :]
            inbox[p].append(BagMessage(up, made[pivot.num_null :], rows_up, Q_up, G_up))
            scale[p] = max(scale[p], pivot.scale)
    return Factorization(tuple(fronts), problem.num_scalars, problem.num_rows, num_ids, num_row_ids)


def assign_terms(problem: NumberedQP, tree: TreeDecomposition) -> list[list[Term]]:
    """Give each edge to the lowest bag that holds it: the one that eliminates its first vertex."""
    bag_of_vertex = np.empty(len(problem.labels), np.int64)
    bag_of_vertex[tree.frontal_idx] = np.repeat(np.arange(tree.num_bags), np.diff(tree.frontal_ptr))
    terms: list[list[Term]] = [[] for _ in range(tree.num_bags)]
    for term in problem.terms:
        terms[int(bag_of_vertex[term.vertices].min())].append(term)
    return terms


def _assemble(
    ids: np.ndarray, terms: list[Term], messages: list[BagMessage]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add the edges and messages of a bag label-wise: Q̃, G̃ and the numbers of the stacked rows."""
    parts = [(t.rows, t.scalars, t.G) for t in terms] + [(m.rows, m.ids, m.G) for m in messages]
    G, rows, columns = stack_rows(ids, parts)
    Q = np.zeros((len(ids), len(ids)))
    for at, part in zip(columns, [*terms, *messages], strict=True):
        Q[np.ix_(at, at)] += part.Q
    return Q, G, rows


def stack_rows(
    ids: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Put rows of constraints under one another: G over `ids`, the numbers of its rows, the columns of each part.

    Args:
        parts: (numbers of the rows, coordinates, the rows over these coordinates).
    """
    position = {int(s): j for j, s in enumerate(ids)}
    columns = [np.array([position[s] for s in scalars.tolist()], np.int64) for _, scalars, _ in parts]
    names = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _, _ in parts)])
    G, top = np.zeros((len(names), len(ids))), 0
    for (rows, _, part), at in zip(parts, columns, strict=True):
        G[top : top + len(rows), at] = part
        top += len(rows)
    return G, names, columns


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """x[n], λ[M], and what the sweeps found on the way."""

    x: np.ndarray
    lam: np.ndarray
    leftover: tuple[np.ndarray, ...]
    """For each front, the part of its stacked h that no variable can meet: zero if consistent."""
    stack_h: tuple[np.ndarray, ...]
    """For each front, its stacked h̃."""
    null_b: np.ndarray
    """[num_ids]: at a null direction, the reduced gradient left along it."""


def solve(factor: Factorization, b: np.ndarray, h: np.ndarray) -> SweepResult:
    """Solve [[Q, Gᵀ], [G, 0]] [x; λ] = [b; h] with null directions and redundant multipliers at zero.

    Up:    s = K⁻¹ [b̃_a; h¹],  b_{l→p} = b̃ − B s,  h_{l→p} = h²
    Down:  [a; λ¹] = s − K⁻¹Bᵀ x_kept
    """
    b = np.concatenate([b, np.zeros(factor.num_ids - factor.num_scalars)])
    h = np.concatenate([h, np.zeros(factor.num_row_ids - factor.num_rows)])
    solved, leftover, stack_h = [], [], []
    for front in factor.fronts:
        pivot, na = front.pivot, front.pivot.num_pivots
        rotated = pivot.T.T @ b[front.interior]
        h_stack = h[front.rows]
        h1, h2 = pivot.U1.T @ h_stack, pivot.U2.T @ h_stack
        s = np.linalg.solve(pivot.K, np.concatenate([rotated[:na], h1]))
        made = len(rotated) - na
        b[front.kept[:made]] = rotated[na:]
        b[front.kept] -= pivot.B @ s
        h[front.rows_up] = h2
        solved.append(s)
        leftover.append(h_stack - pivot.U1 @ h1 - pivot.U2 @ h2)
        stack_h.append(h_stack)
    x, lam = np.zeros(factor.num_ids), np.zeros(factor.num_row_ids)
    scatter(factor, x, lam, len(factor.fronts) - 1, solved)
    return SweepResult(x[: factor.num_scalars], lam[: factor.num_rows], tuple(leftover), tuple(stack_h), b)


def scatter(
    factor: Factorization, x: np.ndarray, lam: np.ndarray, start: int, solved: list[np.ndarray] | None = None
) -> None:
    """Walk down from the front `start` and fill in x and λ of everything below; missing in print (E4).

    Without `solved` the right-hand side is zero: whatever x and lam hold above is extended downwards to a
    vector x with Gx = 0, or to a multiplier λ with Gᵀλ = 0.
    """
    for i in range(start, -1, -1):
        front = factor.fronts[i]
        pivot, na = front.pivot, front.pivot.num_pivots
        x_kept = x[front.kept]
        a_lam1 = -pivot.W @ x_kept
        if solved is not None:
            a_lam1 += solved[i]
        made = pivot.num_null + pivot.num_delayed
        x[front.interior] = pivot.T @ np.concatenate([a_lam1[:na], x_kept[:made]])
        lam[front.rows] = pivot.U1 @ a_lam1[na:] + pivot.U2 @ lam[front.rows_up]
