"""The xla engine: elimination of a plan in pure JAX, on any device.

The levels of the tree are run from the leaves to the root, the fronts of a level side by side; levels that look alike are
one scan. Pivots are static, and what they give is judged in three tiers:

- *clean*: every front's inverse is one and its gains are small. The answer stands.
- *refined*: some front had a pivot that was zero or small, and was eliminated with an error ΔK. Refinement with the
  true K then gives the solution; and where it converges, the eigenvalues of (K + ΔK)⁻¹ΔK are below one, no matrix between
  K and K + ΔK is singular, and both have the same inertia.
- *host*: refinement does not converge. The reference engine answers; it can delay pivots, and finds out what is null.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import NONFINITE, OK, Elimination
from gnewt.kkt.engines.inverse import HostInverse
from gnewt.kkt.engines.reference.engine import solve_whole_on_host
from gnewt.kkt.engines.xla.assembly import XlaLayout, lay_out_xla
from gnewt.kkt.engines.xla.careful import HostSolve
from gnewt.kkt.engines.xla.front import Gains, Pivots
from gnewt.kkt.engines.xla.inverse import draw, unknown_variances
from gnewt.kkt.engines.xla.tree import Operands, Tree
from gnewt.kkt.engines.xla.whole import solve_all_rows
from gnewt.kkt.needed import where_needed

CLEAN, REFINED, HOST = 0, 1, 2
REFINEMENTS = 4
"""After so many steps, at most, the corrections of the right-hand sides and of a probe must be below √eps."""


class XlaFactor(NamedTuple):
    """What `solve` needs."""

    gains: tuple[Gains, ...]
    """Of every block, [steps, width, ...]."""
    tier: Int[Array, ""]
    shift: Float[Array, ""]


class XlaEngine:
    """A plan made ready for elimination in JAX. Once per plan; holds integers only."""

    name = "xla"

    def __init__(self, plan: Plan, num_sources: int, eps: float | None = None) -> None:
        """eps: rounding of the sources, if they are computed in less than their own precision."""
        self.layout: XlaLayout = lay_out_xla(plan, num_sources)
        self.arrays: dict[str, np.ndarray] = self.layout.arrays
        self._eps = eps
        self._tree = Tree(self.layout)
        self._host = HostSolve(plan, eps)
        self._plan = plan
        self._inverse = HostInverse(plan, eps)
        self._num_slots = plan.num_slots

    def factor_solve(
        self,
        arrays: Operands,
        sources: Float[Array, " nnz"],
        shift: Float[Array, ""] | float,
        rhs: Float[Array, "N columns"],
    ) -> tuple[Float[Array, "N columns"], Elimination]:
        """Eliminate K for H + shift·I and solve for all columns. Traceable; works under vmap.

        Args:
            arrays: `self.arrays`, as operands of the caller's jit.
        """
        sources = jnp.asarray(sources)
        dtype = sources.dtype
        shift, rhs = jnp.asarray(shift, dtype), jnp.asarray(rhs, dtype)
        eps = max(float(jnp.finfo(dtype).eps), self._eps or 0.0)
        gains, pivots = self._tree.factor(arrays, sources, shift, eps)
        solution = self._tree.solve(arrays, gains, self._widen(rhs))[: rhs.shape[0]]
        known, clean = self._read(arrays, pivots, dtype)
        finite = jnp.all(jnp.isfinite(sources)) & jnp.isfinite(shift)
        clean = clean & jnp.all(jnp.isfinite(solution)) & finite
        refined, converged = self._refined(~clean & finite, arrays, sources, shift, gains, rhs)
        lost = ~clean & ~converged
        careful, told = self._host(lost & finite, sources, shift, rhs)
        known = jax.tree.map(lambda a, b: jnp.where(lost, b, a), known, told)
        tier = jnp.where(clean, CLEAN, jnp.where(converged, REFINED, HOST)).astype(jnp.int32)
        solution = jnp.where(clean, solution, jnp.where(converged, refined, careful))
        nan = jnp.asarray(jnp.nan, dtype)
        known = known._replace(
            status=jnp.where(finite, known.status, NONFINITE).astype(jnp.int32),
            logdet=jnp.where(finite, known.logdet, nan),
            smallest_pivot=jnp.where(finite, known.smallest_pivot, nan),
            factor=XlaFactor(gains, tier, shift),
        )
        return jnp.where(finite, solution, nan), known

    def solve(
        self,
        arrays: Operands,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        rhs: Float[Array, "N columns"],
    ) -> Float[Array, "N columns"]:
        """Solve for another right-hand side."""
        gains, tier, shift = elimination.factor
        sources = jnp.asarray(sources)
        rhs = jnp.asarray(rhs, sources.dtype)
        solution = self._tree.solve(arrays, gains, self._widen(rhs))[: rhs.shape[0]]
        refined, _ = self._refined(tier == REFINED, arrays, sources, shift, gains, rhs)
        finite = elimination.status != NONFINITE
        careful, _ = self._host((tier == HOST) & finite, sources, shift, rhs)
        solution = jnp.where(tier == CLEAN, solution, jnp.where(tier == REFINED, refined, careful))
        return jnp.where(finite, solution, jnp.nan)

    def solve_whole(
        self,
        arrays: Operands,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        rhs: Float[Array, "unknowns columns"],
    ) -> Float[Array, "unknowns columns"]:
        """Solve with right-hand sides on all rows; by the reference engine on the host where pivots were replaced."""
        gains, tier, shift = elimination.factor
        sources = jnp.asarray(sources)
        rhs = jnp.asarray(rhs, sources.dtype)
        solution = solve_all_rows(self._tree, arrays, sources, shift, gains, rhs)
        lost = (tier != CLEAN) & (elimination.status != NONFINITE)
        on_host = functools.partial(solve_whole_on_host, self._plan, self._eps)
        careful = where_needed(on_host, lost, sources, shift, rhs)
        return jnp.where(elimination.status == NONFINITE, jnp.nan, jnp.where(lost, careful, solution))

    def variances(
        self, arrays: Operands, sources: Float[Array, " nnz"], elimination: Elimination
    ) -> Float[Array, " slots"]:
        """The diagonal of K⁻¹ on all slots."""
        gains, tier, shift = elimination.factor
        found = unknown_variances(self.layout, arrays, gains)[: self._num_slots]
        lost = (tier != CLEAN) & (elimination.status == OK)
        return jnp.where(lost, self._inverse.variances(lost, jnp.asarray(sources), shift), found)

    def draw(
        self,
        arrays: Operands,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        noise: Float[Array, "N columns"],
    ) -> Float[Array, "N columns"]:
        """Draws of covariance H⁻¹ from standard normal noise."""
        gains, tier, shift = elimination.factor
        found = draw(self._tree, arrays, gains, self._widen(noise))[: noise.shape[0]]
        lost = (tier != CLEAN) & (elimination.status == OK)
        return jnp.where(lost, self._inverse.draw(lost, jnp.asarray(sources), shift, noise), found)

    def _widen(self, rhs: Array) -> Array:
        """Right-hand sides over all unknowns, zero but on the inputs (E10)."""
        return jnp.zeros((self.layout.num_unknowns, rhs.shape[1]), rhs.dtype).at[: rhs.shape[0]].set(rhs)

    def _read(
        self, arrays: Operands, pivots: tuple[Pivots, ...], dtype: np.dtype
    ) -> tuple[Elimination, Array]:
        """Add up what the pivots say: (the elimination, whether every front is clean)."""
        # All blocks together: a reduction of each would be a launch of its own.
        values, theirs = [jnp.zeros(0, dtype)], [jnp.zeros(0, bool)]
        for i, found in enumerate(pivots):
            shape = self._tree.blocks[i].shape
            real = arrays[f"ids{i}"] < self.layout.num_unknowns
            pair = real[..., shape.p : shape.p + shape.m]
            a, b, c = (found.pair[..., j] for j in range(3))
            mean, radius = (a + c) / 2, jnp.hypot((a - c) / 2, b)
            large = mean + jnp.where(mean < 0, -radius, radius)
            single = real[..., shape.p + 2 * shape.m : shape.p + shape.q]
            values += [found.single.ravel(), large.ravel(), ((a * c - b * b) / large).ravel()]
            theirs += [single.ravel(), pair.ravel(), pair.ravel()]
        value, here = jnp.concatenate(values), jnp.concatenate(theirs)
        positive = jnp.sum(here & (value > 0), dtype=jnp.int32)
        negative = jnp.sum(here & (value < 0), dtype=jnp.int32)
        size = jnp.where(here, jnp.abs(value), 1.0)
        logdet = jnp.sum(jnp.log(size))
        smallest = jnp.min(jnp.where(here, size, jnp.inf), initial=jnp.inf)
        clean = jnp.all(jnp.concatenate([jnp.ones(1, bool), *(found.clean.ravel() for found in pivots)]))
        pairs, zero = self.layout.num_pairs, jnp.zeros((), jnp.int32)
        inertia = jnp.stack([positive - pairs, negative - pairs, zero])
        null = jnp.zeros(self.layout.num_unknowns, jnp.int8)
        known = Elimination(zero + OK, inertia, zero, logdet, smallest, null, ())
        return known, clean & jnp.isfinite(logdet)

    def _refined(
        self,
        needed: Array,
        arrays: Operands,
        sources: Array,
        shift: Array,
        gains: tuple[Gains, ...],
        rhs: Array,
    ) -> tuple[Array, Array]:
        """(refined solution, whether refinement converges), where it is needed."""
        tree, n, eps = self._tree, self.layout.num_inputs, float(jnp.finfo(rhs.dtype).eps)

        def run(
            arrays: Operands, sources: Array, shift: Array, gains: tuple[Gains, ...], rhs: Array
        ) -> tuple[Array, Array]:
            probe = jnp.where(
                arrays["bare"], 0, jnp.cos(jnp.arange(self.layout.num_unknowns, dtype=rhs.dtype) ** 2)
            )
            columns = jnp.concatenate([self._widen(rhs), probe[:, None]], axis=1)

            # The first change is the solution itself: one program solves, and solves again.
            def refine(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                z, _, count = carry
                change = tree.solve(arrays, gains, tree.residual(arrays, sources, shift, gains, z, columns))
                z = z + change
                size = jnp.max(jnp.abs(z[:n]), axis=0)
                ratio = jnp.max(jnp.max(jnp.abs(change[:n]), axis=0) / jnp.where(size > 0, size, 1.0))
                return z, ratio, count + 1

            def proceed(carry: tuple[Array, Array, Array]) -> Array:
                return (carry[2] <= REFINEMENTS) & ~(carry[1] <= eps**0.75)

            start = (jnp.zeros_like(columns), jnp.ones((), rhs.dtype), jnp.zeros((), jnp.int32))
            z, ratio, _ = jax.lax.while_loop(proceed, refine, start)
            return z[:n, :-1], (ratio <= eps**0.5) & jnp.all(jnp.isfinite(z[:n]))

        return where_needed(run, needed, arrays, sources, shift, gains, rhs)
