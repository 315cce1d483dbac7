"""solve_qp: the corrected Algorithm 2, from labelled hyperedges to primal and dual solutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from gnewt._errors import QPError
from gnewt._typing import Argument, ArrayLike
from gnewt.newton.arithmetic import Array
from gnewt.newton.rules import still, without_derivative
from gnewt.newton.statuses import Status, status_of
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.orderings import min_degree
from gnewt.plan.tree import TreeDecomposition, decompose
from gnewt.qp.diagnose import check_consistent, check_curvature, locate_rows
from gnewt.qp.gather import Factorization, SweepResult, gather, solve
from gnewt.qp.hyperedge import Hyperedge
from gnewt.qp.limited import (
    by_vertex,
    check_convex,
    check_solved,
    is_traced,
    residuals_with_limits,
    solve_limited,
    spread_bounds,
)
from gnewt.qp.problem import Label, NumberedQP, build_problem, equilibrate
from gnewt.qp.redundancy import find_redundant

REFINEMENTS = 3
"""At most so many steps of iterative refinement; they stop when they no longer help."""


_REMEDY = (
    "solve the problem by gnewt.minimize(f, x0, constraints=...), whose solutions have derivatives, or detach it with "
    "jax.lax.stop_gradient"
)


@dataclasses.dataclass(frozen=True, eq=False)
class QPResult:
    """The solution of `[[Q, Gᵀ], [G, 0]] [x; λ] = [b; h]`, and what the elimination learnt about it. A pytree.

    With limits, Qx + Gᵀλ + Cᵀy + z = b: y and z are positive at an upper limit, negative at a lower one. Numbers that only the
    elimination on the host knows are None inside jit (inertia, rank, redundant rows), and the inertia with limits.
    """

    x: dict[Hashable, Array]
    """x[v], an array of length n_v, for each vertex."""
    duals: list[Array]
    """λ_e of length m_e for each edge, in the order given, with Qx + Gᵀλ = b. Where rows are redundant λ is
    not unique; this one satisfies stationarity and is zero along the dependencies found."""
    inertia: tuple[int, int, int] | None
    """(n_pos, n_neg, n_zero) of [[Q, G_Iᵀ], [G_I, 0]], where G_I is a maximal set of independent rows of G
    (redundant rows would add one zero each and nothing else). The sum is n + rank(G); with
    (p, q, 0) the inertia of the reduced Hessian ZᵀQZ, GZ = 0, it equals (rank + p, rank + q, 0). A unique
    minimiser has exactly (n, rank(G), 0); n_zero is 0 in every result, the others are refused."""
    redundant: list[tuple[str, int]] | None
    """(edge name, row in the edge): M − rank(G) rows that depend on the other rows, which are independent.
    Which of several dependent rows is named is a choice; later ones are preferred."""
    rank: int | None
    """rank(G)."""
    width: int | None
    """max Σ n_v over a bag, minus one (E7)."""
    num_bags: int | None
    num_delayed: int | None
    """Pivots handed to the parent (E6); 0 where the reduced Hessian is safely positive definite."""
    primal_residual: float | Array
    """max |Gx − h| / max (|G||x| + |h|)."""
    dual_residual: float | Array
    """max |Qx + Gᵀλ − b| / max (|Q||x| + |Gᵀ||λ| + |b|); multipliers of limits included."""
    fun: float | Array = np.nan
    """½xᵀQx − bᵀx."""
    limit_duals: list[Array] = dataclasses.field(default_factory=list)
    """y_e of the rows of C_e for each edge."""
    bound_duals: dict[Hashable, Array] = dataclasses.field(default_factory=dict)
    """z[v] for each vertex."""
    code: int | Array = int(Status.CONVERGED)
    """Number of a `gnewt.newton.Status`: converged, stalled (a solution to fewer digits), infeasible, unbounded. Without limits
    and outside of jit always converged: the rest is refused."""
    num_steps: int | Array = 1
    """Rounds of the interior point."""

    @property
    def success(self) -> bool | Array:
        return (self.code == Status.CONVERGED) | (self.code == Status.STALLED)

    @property
    def status(self) -> str:
        """Name of the outcome. Inside jit use `code`."""
        return status_of(self.code, Status).text


_STATIC = ("inertia", "redundant", "rank", "width", "num_bags", "num_delayed")


def _flatten(result: QPResult) -> tuple[tuple[Any, ...], Any]:
    # Labels are any hashables: JAX would sort the keys of a dict.
    numbers = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name not in _STATIC}
    keys = {name: tuple(numbers[name]) for name in ("x", "bound_duals")}
    children = tuple(tuple(v.values()) if isinstance(v, dict) else v for v in numbers.values())
    static = tuple(_frozen(getattr(result, name)) for name in _STATIC)
    return children, (tuple(numbers), keys["x"], keys["bound_duals"], static)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _unflatten(aux: Any, children: Iterable[Any]) -> QPResult:
    names, x, bounds, static = aux
    fields = dict(zip(names, children, strict=True))
    for name, keys in (("x", x), ("bound_duals", bounds)):
        fields[name] = dict(zip(keys, fields[name], strict=True))
    known = dict(zip(_STATIC, static, strict=True))
    if known["redundant"] is not None:
        known["redundant"] = list(known["redundant"])
    return QPResult(**fields, **known)


jax.tree_util.register_pytree_node(QPResult, _flatten, _unflatten)


def solve_qp(
    edges: Argument[Iterable[Hyperedge]],
    sizes: Argument[Mapping[Label, int] | None] = None,
    *,
    order: Iterable[Label] | None = None,
    bounds: Argument[Mapping[Label, tuple[ArrayLike | None, ArrayLike | None]] | None] = None,
    allow_indefinite: bool = False,
) -> QPResult:
    """Minimise Σ_e ½ x_eᵀQ_e x_e − b_eᵀx_e subject to G_e x_e = h_e, at cost O(Σ_bags |ι||χ|²).

    With limits (lower_e ≤ C_e x_e ≤ upper_e on an edge, `bounds` on vertices) by an interior point, for convex objectives, at
    that cost per round. Inside jit and vmap always by the interior point; there `code` says what is an error on the host.

    Args:
        edges: the terms, `Hyperedge`s. Their vertices form the hypergraph; each edge's scope is a clique.
        sizes: n_v of the vertices, needed only where the shapes of the matrices leave it open; a vertex
            that nothing determines has size 1.
        order: the vertices in the order of their elimination; min-degree where omitted.
        bounds: (lower, upper) by vertices; numbers or one entry per scalar, None and ±inf for no bound.
        allow_indefinite: return the stationary point (and its inertia) where the reduced Hessian has
            negative eigenvalues, in place of refusing the QP as unbounded.

    Raises:
        QPError: ill-formed input; inconsistent rows (named); an unbounded or not uniquely solvable QP (the
            vertices that the direction touches are named); limits that contradict each other; limits
            together with `allow_indefinite`, or with negative curvature.
    """
    problem = build_problem(edges, sizes)
    traced = is_traced(problem, bounds)
    if traced:
        numbers = jax.tree.leaves((problem.numbers, list((bounds or {}).values())))
        found = _solve_with_limits(problem.still, still(dict(bounds or {})), order, allow_indefinite, True)
        return without_derivative("a solution of solve_qp", _REMEDY, numbers, found)
    if problem.num_limits or bounds:
        return _solve_with_limits(problem, bounds, order, allow_indefinite, False)
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
        fun=value_of(problem, x),
    )


def value_of(problem: NumberedQP, x: Array) -> Array | float:
    """½xᵀQx − bᵀx."""
    return sum((0.5 * x[t.scalars] @ (t.Q @ x[t.scalars]) - t.b @ x[t.scalars] for t in problem.terms), 0.0)


def _solve_with_limits(
    problem: NumberedQP, bounds: Any, order: Any, allow_indefinite: bool, traced: bool
) -> QPResult:
    if allow_indefinite:
        raise QPError(
            "allow_indefinite with limits, or inside jit: stationary points are found for equality constraints alone, on the host",
            "solve_qp",
            "leave it out, or look for a local minimum with gnewt.minimize and constraints",
        )
    limits = spread_bounds(problem, bounds)
    rank, redundant = None, None
    tree = build_tree(problem, order)
    if not traced:
        check_convex(problem)
        rank, redundant = _check_rows(problem, tree)
    st, at = solve_limited(problem, limits, traced)
    n, m = problem.num_scalars, problem.num_rows
    x, y, z = at.v[:n], at.y, at.upper
    if not traced:
        check_solved(problem, st, at)
    primal, dual = residuals_with_limits(problem, at)
    return QPResult(
        x=by_vertex(problem, x),
        duals=[y[t.rows] for t in problem.terms],
        inertia=None,
        redundant=redundant,
        rank=rank,
        width=tree.width(problem.sizes),
        num_bags=tree.num_bags,
        num_delayed=None,
        primal_residual=primal,
        dual_residual=dual,
        fun=value_of(problem, x),
        limit_duals=[y[m + t.limit_rows] for t in problem.terms],
        bound_duals=by_vertex(problem, z),
        code=st.code if traced else int(st.code),
        num_steps=st.step if traced else int(st.step),
    )


def _check_rows(problem: NumberedQP, tree: TreeDecomposition) -> tuple[int, list[tuple[str, int]]]:
    """rank(G) and its redundant rows, by the elimination without the limits; inconsistent rows are refused."""
    if problem.num_rows == 0:
        return 0, []
    column, row = equilibrate(problem)
    scaled = problem.scaled(column, row)
    factor = gather(scaled, tree)
    check_consistent(scaled, factor, solve(factor, *scaled.rhs()), row)
    if problem.num_rows == factor.rank:
        return factor.rank, []
    return factor.rank, locate_rows(problem, find_redundant(scaled, tree, factor))


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
