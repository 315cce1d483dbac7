"""solve_qp: the corrected Algorithm 2, from labelled hyperedges to primal and dual solutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from gnewt._errors import QPError
from gnewt._typing import Argument
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.orderings import min_degree
from gnewt.plan.tree import TreeDecomposition, decompose
from gnewt.qp.diagnose import check_consistent, check_curvature, locate_rows
from gnewt.qp.gather import Factorization, SweepResult, gather, solve
from gnewt.qp.hyperedge import Hyperedge
from gnewt.qp.problem import Label, NumberedQP, build_problem, equilibrate
from gnewt.qp.redundancy import find_redundant

REFINEMENTS = 3
"""At most so many steps of iterative refinement; they stop when they no longer help."""


@dataclasses.dataclass(frozen=True, eq=False)
class QPResult:
    """The solution of [[Q, Gᵀ], [G, 0]] [x; λ] = [b; h], and what the elimination learnt about it."""

    x: dict[Hashable, np.ndarray]
    """x[v], an array of length n_v, for each vertex."""
    duals: list[np.ndarray]
    """λ_e of length m_e for each edge, in the order given, with Qx + Gᵀλ = b. Where rows are redundant λ is
    not unique; this one satisfies stationarity and is zero along the dependencies found."""
    inertia: tuple[int, int, int]
    """(n_pos, n_neg, n_zero) of [[Q, G_Iᵀ], [G_I, 0]], where G_I is a maximal set of independent rows of G
    (redundant rows would add one zero each and nothing else). The sum is n + rank(G); with
    (p, q, 0) the inertia of the reduced Hessian ZᵀQZ, GZ = 0, it equals (rank + p, rank + q, 0). A unique
    minimiser has exactly (n, rank(G), 0); n_zero is 0 in every result, the others are refused."""
    redundant: list[tuple[str, int]]
    """(edge name, row in the edge): M − rank(G) rows that depend on the other rows, which are independent.
    Which of several dependent rows is named is a choice; later ones are preferred."""
    rank: int
    """rank(G)."""
    width: int
    """max Σ n_v over a bag, minus one (E7)."""
    num_bags: int
    num_delayed: int
    """Pivots handed to the parent (E6); 0 where the reduced Hessian is safely positive definite."""
    primal_residual: float
    """max |Gx − h| / max (|G||x| + |h|)."""
    dual_residual: float
    """max |Qx + Gᵀλ − b| / max (|Q||x| + |Gᵀ||λ| + |b|)."""


def solve_qp(
    edges: Argument[Iterable[Hyperedge]],
    sizes: Argument[Mapping[Label, int] | None] = None,
    *,
    order: Iterable[Label] | None = None,
    allow_indefinite: bool = False,
) -> QPResult:
    """Minimise Σ_e ½ x_eᵀQ_e x_e − b_eᵀx_e subject to G_e x_e = h_e, at cost O(Σ_bags |ι||χ|²).

    Args:
        edges: the terms, `Hyperedge`s. Their vertices form the hypergraph; each edge's scope is a clique.
        sizes: n_v of the vertices, needed only where the shapes of the matrices leave it open; a vertex
            that nothing determines has size 1.
        order: the vertices in the order of their elimination; min-degree where omitted.
        allow_indefinite: return the stationary point (and its inertia) where the reduced Hessian has
            negative eigenvalues, in place of refusing the QP as unbounded.

    Raises:
        QPError: ill-formed input; inconsistent rows (named); an unbounded or not uniquely solvable QP (the
            vertices that the direction touches are named).
    """
    problem = build_problem(edges, sizes)
    tree = build_tree(problem, order)
    column, row = equilibrate(problem)
    scaled = problem.scaled(column, row)
    factor = gather(scaled, tree)
    solution = solve(factor, *scaled.rhs())
    check_consistent(scaled, factor, solution, row)
    check_curvature(scaled, factor, solution, column, allow_indefinite)
    x, lam, (primal, dual) = _refine(problem, factor, solution, column, row)
    redundant = np.zeros(0, np.int64)
    if problem.num_rows > factor.rank:
        redundant = find_redundant(scaled, tree, factor)
    return QPResult(
        x={v: x[problem.offset[i] : problem.offset[i + 1]] for i, v in enumerate(problem.labels)},
        duals=[lam[t.rows] for t in problem.terms],
        inertia=factor.inertia,
        redundant=locate_rows(problem, redundant),
        rank=factor.rank,
        width=tree.width(problem.sizes),
        num_bags=tree.num_bags,
        num_delayed=sum(f.pivot.num_delayed for f in factor.fronts),
        primal_residual=primal,
        dual_residual=dual,
    )


def build_tree(problem: NumberedQP, order: Iterable[Hashable] | None) -> TreeDecomposition:
    """Make the tree decomposition of the hypergraph: every edge a clique (E7), eliminated along `order`."""
    num = len(problem.labels)
    a = [np.repeat(t.vertices, len(t.vertices)) for t in problem.terms]
    b = [np.tile(t.vertices, len(t.vertices)) for t in problem.terms]
    adjacency = Adjacency.from_pairs(num, np.concatenate(a), np.concatenate(b))
    if order is None:
        return decompose(adjacency, min_degree(adjacency, problem.sizes).vertices)
    number = {v: i for i, v in enumerate(problem.labels)}
    given = list(order)
    unknown = [v for v in given if v not in number]
    missing = sorted(set(problem.labels) - set(given), key=number.__getitem__)
    if unknown or missing or len(given) != num:
        fault = (
            f"unknown {unknown[:4]}"
            if unknown
            else f"missing {missing[:4]}"
            if missing
            else "repeated vertices"
        )
        raise QPError(
            f"`order` is not a permutation of the vertices: {fault}",
            f"{len(given)} entries for {num} vertices",
            "list every vertex exactly once",
        )
    return decompose(adjacency, np.array([number[v] for v in given], np.int32))


def _refine(
    problem: NumberedQP, factor: Factorization, solution: SweepResult, column: np.ndarray, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Undo the scaling and solve for the residual while that makes it smaller."""
    x, lam = column * solution.x, row * solution.lam
    best = problem.residuals(x, lam)
    for _ in range(REFINEMENTS):
        step = solve(factor, column * best.dual, row * best.primal)
        new_x, new_lam = x + column * step.x, lam + row * step.lam
        new = problem.residuals(new_x, new_lam)
        if sum(new.relative) >= 0.5 * sum(best.relative):
            break
        x, lam, best = new_x, new_lam, new
    return x, lam, best.relative
