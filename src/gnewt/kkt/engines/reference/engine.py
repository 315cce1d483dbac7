"""The reference engine: the corrected Algorithm 2 on the KKT system of a structure, in NumPy.

Gather: fronts in postorder; front l assembles its entries of K and the messages of its children, eliminates
its interior ι and passes the Schur complement on ξ to its parent (E1, E4, E5). Scatter: the other way round.
Any order, any rank: pivots that fail inside a front are delayed to its parent. Always float64. It is the oracle
for every other engine: slow in the number of fronts (~0.2 ms each), never wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from gnewt._typing import X
from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import Elimination, EliminationStatus
from gnewt.kkt.engines.reference.pivots import BlockPivot, eliminate

_LARGE = 1e100
"""The square of a number between this and its inverse is a number."""


@dataclasses.dataclass(frozen=True, eq=False)
class EliminatedFront:
    """One eliminated front, in global unknowns: x_ι = K⁻¹ b_ι - X x_ξ."""

    interior: np.ndarray
    """ι: unknowns eliminated here, in the order of the block's rows."""
    separator: np.ndarray
    """ξ: unknowns of the message, delayed ones included."""
    block: BlockPivot
    gain: np.ndarray
    """X = K⁻¹ Bᵀ, [ι, ξ]."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceFactor:
    """The numbers of an elimination of K, reusable for any right-hand side."""

    plan: Plan
    shift: float
    fronts: tuple[EliminatedFront, ...]
    null: np.ndarray
    """Unknowns for which no pivot above rounding was found: empty iff K is numerically nonsingular."""
    num_delayed: int
    eigenvalues: np.ndarray
    """Of the pivots D: their signs are the inertia of K (Sylvester)."""
    scale: float = 1.0
    """√c: it is c·H that was eliminated, with c = 1 unless squares of its entries would leave the range of numbers."""

    @property
    def inertia(self) -> tuple[int, int, int]:
        """(n₊, n₋, n₀) of H: inertia(K) = inertia(H) + (M, M, 0) (E19)."""
        pairs = self.plan.num_slots - self.plan.num_inputs
        positive, negative = int(np.sum(self.eigenvalues > 0)), int(np.sum(self.eigenvalues < 0))
        return positive - pairs, negative - pairs, len(self.null)

    @property
    def logdet(self) -> float:
        """log|det H| = log|det K| (E19); -inf if singular."""
        if len(self.null):
            return -np.inf
        units = 2 * self.plan.num_inputs * np.log(self.scale)
        return float(np.sum(np.log(np.abs(self.eigenvalues))) - units)

    @property
    def smallest_pivot(self) -> float:
        smallest = 0.0 if len(self.null) else float(np.min(np.abs(self.eigenvalues), initial=np.inf))
        return smallest / self.scale / self.scale

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Solve K z = [b; 0; 0] and return z on the inputs, H⁻¹ b; b is [N] or [N, columns].

        A null unknown is set to zero, so that the answer is finite; it is then not a solution.
        """
        whole = np.zeros((self.plan.num_unknowns, *b.shape[1:]))
        whole[: self.plan.num_inputs] = b
        return self.solve_whole(whole)[: self.plan.num_inputs]

    def solve_whole(self, b: np.ndarray) -> np.ndarray:
        """Solve K z = b with right-hand sides on all rows; b is [unknowns] or [unknowns, columns]."""
        is_slot = np.arange(self.plan.num_unknowns) < self.plan.num_slots
        units = np.where(is_slot, self.scale, 1 / self.scale).reshape(-1, *[1] * (b.ndim - 1))
        z = b * units
        for front in self.fronts:
            z[front.separator] -= front.gain.T @ z[front.interior]
        z[self.null] = 0.0
        for front in reversed(self.fronts):
            z[front.interior] = front.block.solve(z[front.interior]) - front.gain @ z[front.separator]
        return z * units

    def inverse_blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (front, unknowns, K⁻¹ on them, in scaled units) for the clique of each front, roots first.

        Z_ιξ = -X Z_ξξ and Z_ιι = K_ιι⁻¹ + X Z_ξξ Xᵀ, where Z_ξξ lies in a clique that was met before.
        """
        home: dict[int, int] = {}
        cliques: list[tuple[dict[int, int], np.ndarray]] = []
        for number, front in reversed(list(enumerate(self.fronts))):
            xi = front.separator.tolist()
            if xi:
                # The bag of the first separator unknown to be eliminated holds them all (running intersection).
                where, z_parent = cliques[max(home[u] for u in xi)]
                rows = [where[u] for u in xi]
                z = z_parent[np.ix_(rows, rows)]
            else:
                z = np.zeros((0, 0))
            cross = -front.gain @ z
            own = front.block.solve(np.eye(len(front.interior))) - cross @ front.gain.T
            clique = np.concatenate([front.interior, front.separator])
            full = np.block([[own, cross], [cross.T, z]])
            for u in front.interior.tolist():
                home[u] = len(cliques)
            cliques.append(({u: i for i, u in enumerate(clique.tolist())}, full))
            yield number, clique, full

    def slot_variances(self) -> np.ndarray:
        """Return the diagonal of K⁻¹ on the slots: variances of inputs and of kept intermediates."""
        out = np.full(self.plan.num_slots, np.nan)
        for _, clique, inverse in self.inverse_blocks():
            mine = np.flatnonzero(clique < self.plan.num_slots)
            out[clique[mine]] = np.diagonal(inverse)[mine]
        return out * self.scale * self.scale

    def correlate(self, noise: np.ndarray) -> np.ndarray:
        """Turn standard normal noise[N, columns] into samples of N(0, H⁻¹). Causal plans, H ≻ 0.

        Going down, the inputs of a front get independent noise of covariance (K_ιι⁻¹) on those inputs; their
        pairs follow linearly: each input is an affine policy of what is already known, plus noise.
        """
        z = np.zeros((self.plan.num_unknowns, *noise.shape[1:]))
        for front in reversed(self.fronts):
            z[front.interior] = -front.gain @ z[front.separator]
            mine = np.flatnonzero(front.interior < self.plan.num_inputs)
            if len(mine):
                unit = np.zeros((len(front.interior), len(mine)))
                unit[mine, np.arange(len(mine))] = 1.0
                columns = front.block.solve(unit)
                root = np.linalg.cholesky(columns[mine])
                drawn = root @ noise[front.interior[mine]]
                z[front.interior] += columns @ np.linalg.solve(columns[mine], drawn)
        return z[: self.plan.num_inputs] * self.scale


def factorize(
    plan: Plan, sources: np.ndarray, shift: float = 0.0, eps: float | None = None
) -> ReferenceFactor:
    """Eliminate K + diag(μ on inputs), front by front.

    Args:
        sources: local derivatives, as `linearize` returns them.
        shift: μ; added on the input diagonals only, which is exactly H + μI.
        eps: rounding of the sources, if they were computed in less than float64.
    """
    sources = np.asarray(sources)
    if eps is None:
        eps = float(np.finfo(sources.dtype).eps)
    values, bounds = _entries(plan, sources.astype(np.float64)[plan.source], shift)
    scale = _scale(plan, bounds)
    units = np.where(np.arange(plan.num_unknowns) < plan.num_slots, scale, 1 / scale)

    fronts: list[EliminatedFront] = []
    null: list[np.ndarray] = []
    eigenvalues: list[np.ndarray] = []
    inbox: list[list[tuple[np.ndarray, int, np.ndarray, np.ndarray, int]]] = [
        [] for _ in range(plan.num_fronts)
    ]
    num_delayed = 0
    for i in range(plan.num_fronts):
        late = [unknowns[:count] for unknowns, count, _, _, _ in inbox[i]]
        unknowns = np.concatenate([*late, plan.eliminated(i), plan.separator(i)])
        offset = sum(len(u) for u in late)
        p = offset + len(plan.eliminated(i))
        a, s = _assemble(plan, i, values, bounds, units[unknowns], offset)
        at = 0
        for _, count, schur, bound, child in inbox[i]:
            own = plan.sep_pos[plan.sep_ptr[child] : plan.sep_ptr[child + 1]]
            place = np.concatenate([np.arange(at, at + count), own + offset])
            a[np.ix_(place, place)] += schur
            s[np.ix_(place, place)] += bound
            at += count
        inbox[i] = []
        done = eliminate(a, s, p, eps, _partners(plan, unknowns[:p]))
        fronts.append(EliminatedFront(unknowns[done.pivots], unknowns[done.kept], done.block, done.gain))
        eigenvalues.append(done.block.eigenvalues())
        parent = int(plan.parent[i])
        if parent >= 0:
            num_delayed += done.delayed
            inbox[parent].append((unknowns[done.kept], done.delayed, done.schur, done.bound, i))
        else:
            null.append(unknowns[done.kept])
    return ReferenceFactor(
        plan,
        shift,
        tuple(fronts),
        np.concatenate(null).astype(np.int64),
        num_delayed,
        np.concatenate(eigenvalues),
        scale,
    )


def _entries(plan: Plan, picked: np.ndarray, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Entries of K + diag(μ on inputs), and the sums of magnitudes that went into each."""
    # Without any derivative, of a linear objective, the counts would be integers.
    values, bounds = (
        np.bincount(plan.target, some, minlength=plan.num_entries).astype(np.float64)
        for some in (picked, np.abs(picked))
    )
    values[plan.pair_entry] -= 1.0
    bounds[plan.pair_entry] += 1.0
    values[plan.input_entry] += shift
    bounds[plan.input_entry] += abs(shift)
    return values, bounds


def _scale(plan: Plan, bounds: np.ndarray) -> float:
    """Return √c, a power of two, such that c·H is of moderate size; one unless H is extremely small or large.

    In units √c for slots and 1/√c for duals, K has the same Jacobians and c times the curvature.
    """
    largest = 0.0
    for i in range(plan.num_fronts):
        mine = slice(plan.entry_ptr[i], plan.entry_ptr[i + 1])
        curved = np.concatenate([plan.eliminated(i), plan.separator(i)]) < plan.num_slots
        chosen = bounds[mine][curved[plan.entry_row[mine]] & curved[plan.entry_col[mine]]]
        largest = max(largest, float(chosen.max(initial=0.0)))
    moderate = largest == 0.0 or 1 / _LARGE <= largest <= _LARGE
    return 1.0 if moderate else float(2.0 ** -np.round(np.log2(largest) / 2))


def _partners(plan: Plan, unknowns: np.ndarray) -> np.ndarray:
    """For each unknown that is a state, the position of its dual in the same list, or -1."""
    partner = np.full(len(unknowns), -1)
    states = np.flatnonzero((unknowns >= plan.num_inputs) & (unknowns < plan.num_slots))
    duals = np.flatnonzero(unknowns >= plan.num_slots)
    if len(states) and len(duals):
        wanted = unknowns[states].astype(np.int64) - plan.num_inputs + plan.num_slots
        order = duals[np.argsort(unknowns[duals])]
        at = np.searchsorted(unknowns[order], wanted).clip(max=len(order) - 1)
        found = unknowns[order[at]] == wanted
        partner[states[found]] = order[at[found]]
    return partner


def _assemble(
    plan: Plan, i: int, values: np.ndarray, bounds: np.ndarray, units: np.ndarray, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """Place the entries of K that belong to front i, in units of its unknowns; `offset` delayed ones stand before them."""
    mine = slice(plan.entry_ptr[i], plan.entry_ptr[i + 1])
    row, col = plan.entry_row[mine] + offset, plan.entry_col[mine] + offset
    a, s = (np.zeros((len(units), len(units))) for _ in range(2))
    unit = units[row] * units[col]
    a[row, col] = a[col, row] = values[mine] * unit
    s[row, col] = s[col, row] = bounds[mine] * unit
    return a, s


class ReferenceEngine:
    """The NumPy oracle; inside jit it runs as a callback on the host."""

    name = "reference"

    def __init__(self, plan: Plan, num_sources: int, eps: float) -> None:
        del num_sources
        self.plan: Plan = plan
        self.eps: float = eps
        self.arrays: tuple[()] = ()

    def factor_solve(
        self, arrays: tuple[()], sources: Array, shift: Array | float, rhs: Array
    ) -> tuple[Array, Elimination]:
        """Eliminate K for H + shift·I and solve for all columns."""
        if not isinstance(sources, Tracer) and not isinstance(shift, Tracer) and not isinstance(rhs, Tracer):
            return self._run(np.asarray(sources), shift, np.asarray(rhs))
        shift = jnp.asarray(shift, sources.dtype)
        shapes = (jax.ShapeDtypeStruct(rhs.shape, rhs.dtype), shapes_of_summary(self.plan, rhs.dtype))

        def run(sources: Array, shift: Array, rhs: Array) -> tuple[np.ndarray, Elimination]:
            solution, known = self._run(np.asarray(sources), shift, np.asarray(rhs))
            return np.asarray(solution), known._replace(factor=())

        solution, known = jax.pure_callback(run, shapes, sources, shift, rhs, vmap_method="sequential")
        return solution, known._replace(factor=shift)

    def solve(self, arrays: tuple[()], sources: Array, elimination: Elimination, rhs: Array) -> Array:
        """Solve for other right-hand sides; inside jit the elimination is made again."""
        kept = elimination.factor
        if isinstance(kept, ReferenceFactor) and not isinstance(rhs, Tracer):
            return jnp.asarray(kept.solve(np.asarray(rhs, np.float64)), rhs.dtype)
        shift = kept.shift if isinstance(kept, ReferenceFactor) else kept
        return self.factor_solve(arrays, sources, shift, rhs)[0]

    def solve_whole(self, arrays: tuple[()], sources: Array, elimination: Elimination, rhs: Array) -> Array:
        """Solve with right-hand sides on all rows; inside jit the elimination is made again."""
        kept = elimination.factor
        if isinstance(kept, ReferenceFactor) and not isinstance(rhs, Tracer):
            return jnp.asarray(kept.solve_whole(np.asarray(rhs, np.float64)), rhs.dtype)
        shift = kept.shift if isinstance(kept, ReferenceFactor) else kept
        return solve_whole_on_host(self.plan, self.eps, sources, shift, rhs)

    def variances(self, arrays: tuple[()], sources: Array, elimination: Elimination) -> Array:
        """Return the diagonal of K⁻¹ on all slots."""
        kept = elimination.factor
        if isinstance(kept, ReferenceFactor):
            return jnp.asarray(kept.slot_variances(), sources.dtype)
        shape = jax.ShapeDtypeStruct((self.plan.num_slots,), sources.dtype)

        def run(sources: Array, shift: Array) -> np.ndarray:
            with np.errstate(all="ignore"):
                factor = factorize(self.plan, np.asarray(sources), float(shift), self.eps)
                return factor.slot_variances().astype(shape.dtype)

        return jax.pure_callback(run, shape, sources, jnp.asarray(kept), vmap_method="sequential")

    def draw(self, arrays: tuple[()], sources: Array, elimination: Elimination, noise: Array) -> Array:
        """Turn standard normal noise into draws of covariance H⁻¹. Causal plans of a positive definite H."""
        kept = elimination.factor
        if isinstance(kept, ReferenceFactor):
            return jnp.asarray(kept.correlate(np.asarray(noise, np.float64)), sources.dtype)
        shape = jax.ShapeDtypeStruct(noise.shape, noise.dtype)

        def run(sources: Array, shift: Array, noise: Array) -> np.ndarray:
            with np.errstate(all="ignore"):
                factor = factorize(self.plan, np.asarray(sources), float(shift), self.eps)
                return factor.correlate(np.asarray(noise, np.float64)).astype(shape.dtype)

        return jax.pure_callback(run, shape, sources, jnp.asarray(kept), noise, vmap_method="sequential")

    def _run(self, sources: np.ndarray, shift: Array | float, rhs: np.ndarray) -> tuple[Array, Elimination]:
        if not np.all(np.isfinite(sources)):
            none = zeros(shapes_of_summary(self.plan, rhs.dtype))
            nan, status = np.asarray(np.nan, rhs.dtype), np.int32(EliminationStatus.NONFINITE)
            known = none._replace(status=status, logdet=nan, smallest_pivot=nan, factor=float(shift))
            return jnp.full(rhs.shape, jnp.nan, rhs.dtype), known
        done = factorize(self.plan, sources, float(shift), self.eps)
        solution = jnp.asarray(done.solve(rhs.astype(np.float64)), rhs.dtype)
        return solution, summary(done, rhs.dtype)._replace(factor=done)


def solve_whole_on_host(
    plan: Plan, eps: float | None, sources: Array, shift: Array | float, rhs: Array
) -> Array:
    """Eliminate on the host and solve with right-hand sides on all rows; NaN where the sources are not finite."""

    def run(sources: Array, shift: Array, rhs: Array) -> np.ndarray:
        right = np.asarray(rhs)
        if not np.all(np.isfinite(sources)):
            return np.full(right.shape, np.nan, right.dtype)
        factor = factorize(plan, np.asarray(sources), float(shift), eps)
        return np.asarray(factor.solve_whole(right.astype(np.float64)), right.dtype)

    shape = jax.ShapeDtypeStruct(rhs.shape, rhs.dtype)
    shift = jnp.asarray(shift, sources.dtype)
    return jax.pure_callback(run, shape, sources, shift, rhs, vmap_method="sequential")


def summary(done: ReferenceFactor, dtype: np.dtype) -> Elimination:
    """What a factor says of H + μI, in the dtypes that all engines use; `Elimination.factor` is left empty."""
    null = np.zeros(done.plan.num_unknowns, np.int8)
    null[done.null] = 1
    status = EliminationStatus.SINGULAR if len(done.null) else EliminationStatus.OK
    real = [np.asarray(x, dtype) for x in (done.logdet, done.smallest_pivot)]
    whole = [np.int32(status), np.array(done.inertia, np.int32), np.int32(done.num_delayed)]
    return Elimination._make([*whole, *real, null, ()])


def shapes_of_summary(plan: Plan, dtype: np.dtype) -> Elimination:
    """Shapes and dtypes of what `summary` returns, for a callback."""
    whole, real = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), dtype)
    inertia = jax.ShapeDtypeStruct((3,), jnp.int32)
    null = jax.ShapeDtypeStruct((plan.num_unknowns,), jnp.int8)
    return Elimination._make([whole, inertia, whole, real, real, null, ()])


def zeros(shapes: X) -> X:
    """NumPy zeros of the given shapes and dtypes."""
    return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
