"""The xla engine: elimination of a plan in pure JAX, on any device.

The levels of the tree are run from the leaves to the root, the fronts of a level side by side; levels that look alike
are one scan (xla_schedule.py). A front reads its matrix from a pool in which all fronts lie assembled, and adds its Schur
complement to the place of its parent. Right-hand sides live in one vector over all unknowns.

Pivots are static and tested (xla_front.py). Where a test fails, the reference engine answers, on the host: exact for any
numbers, and rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from gnewt.graph import Plan
from gnewt.kkt.xla_careful import Careful, CarefulSolve
from gnewt.kkt.xla_front import Gains, Message, Pivots, eliminate
from gnewt.kkt.xla_layout import FIRST, lay_out_xla
from gnewt.kkt.xla_schedule import Block

OK, SINGULAR, NONFINITE = 0, 1, 2


class Elimination(NamedTuple):
    """What is known of H + shift·I. Under vmap all leaves get leading axes."""

    status: Int[Array, "*batch"]
    """0 ok, 1 singular, 2 nonfinite."""
    inertia: Int[Array, "*batch 3"]
    """(n₊, n₋, n₀) of H + shift·I."""
    num_delayed: Int[Array, "*batch"]
    logdet: Float[Array, "*batch"]
    smallest_pivot: Float[Array, "*batch"]
    null: Int[Array, "*batch unknowns"]
    """1 where an unknown found no pivot above rounding."""
    factor: Any


class XlaFactor(NamedTuple):
    """What `solve` needs."""

    gains: tuple[Gains, ...]
    """Of every block, [steps, width, ...]."""
    good: Bool[Array, "*batch"]
    """Whether the static pivots passed all tests; if not, the reference engine solves."""
    shift: Float[Array, "*batch"]


class PreparedXla:
    """A plan made ready for the xla engine. Once per plan; holds integers only."""

    def __init__(self, plan: Plan, num_sources: int, eps: float | None = None) -> None:
        """eps: rounding of the sources, if they are computed in less than their own precision."""
        self.layout = lay_out_xla(plan, num_sources)
        self.arrays: dict[str, Shaped[np.ndarray, "..."]] = self.layout.arrays
        self.eps = eps
        self._careful = CarefulSolve(plan, eps)

    def factor_solve(
        self,
        arrays: Any,
        sources: Float[Array, " nnz"],
        shift: Float[Array, ""] | float,
        rhs: Float[Array, "N columns"],
    ) -> tuple[Float[Array, "N columns"], Elimination]:
        """Eliminate K for H + shift·I and solve for all columns. Traceable; works under vmap.

        Args:
            arrays: `self.arrays`, as operands of the caller's jit.
        """
        shift, rhs = jnp.asarray(shift, sources.dtype), jnp.asarray(rhs, sources.dtype)
        gains, pivots = self._factor(arrays, sources, shift)
        solution = self._sweep(arrays, gains, rhs)
        fast, good = self._summarize(arrays, pivots, sources)
        good = good & jnp.all(jnp.isfinite(solution))
        finite = jnp.all(jnp.isfinite(sources)) & jnp.isfinite(shift)
        careful = self._careful(~good & finite, sources, shift, rhs)
        nonfinite = Careful.nonfinite(rhs, self.layout.num_unknowns)
        known = jax.tree.map(
            lambda a, b, c: jnp.where(good, a, jnp.where(finite, b, c)), fast(solution), careful, nonfinite
        )
        factor = XlaFactor(gains, good, shift)
        return known.solution, Elimination(*known[1:], factor)

    def solve(
        self,
        arrays: Any,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        rhs: Float[Array, "N columns"],
    ) -> Float[Array, "N columns"]:
        """Solve for another right-hand side."""
        factor: XlaFactor = elimination.factor
        rhs = jnp.asarray(rhs, sources.dtype)
        fast = self._sweep(arrays, factor.gains, rhs)
        known = elimination.status != NONFINITE
        careful = self._careful(~factor.good & known, sources, factor.shift, rhs).solution
        return jnp.where(factor.good, fast, jnp.where(known, careful, jnp.nan))

    # Elimination

    def _factor(
        self, arrays: Any, sources: Array, shift: Array
    ) -> tuple[tuple[Gains, ...], tuple[Pivots, ...]]:
        layout, dtype = self.layout, sources.dtype
        eps = float(jnp.finfo(dtype).eps) if self.eps is None else max(self.eps, float(jnp.finfo(dtype).eps))
        numbers, magnitudes = _extended(arrays, sources)
        pool = numbers[arrays["pool"]]
        magnitude = magnitudes[arrays["diagonal"]].at[: layout.num_inputs].add(jnp.abs(shift))

        def run(carry: tuple[Array, Array], step: Array, part: dict[str, Array], i: int, block: Block) -> Any:
            pool, magnitude = carry
            shape, size = block.shape, block.width * block.shape.n**2
            matrix = jax.lax.dynamic_slice(pool, [layout.pool_starts[i] + step * size], [size])
            matrix = matrix.reshape(block.width, shape.n, shape.n)
            ids = part["ids"][:, shape.p :]
            here = magnitude.at[ids].get(mode="fill", fill_value=0)
            shifts = jnp.where(ids[:, 2 * shape.m : shape.q] < layout.num_unknowns, shift, 0)
            inputs = (matrix, numbers[part["f"]], numbers[part["g"]], here, shifts)
            gains, pivots, message = _unless_absent(
                lambda *a: eliminate(shape, layout.doublings[i], *a, eps), block, part["has"], inputs
            )
            place = part["row"][:, :, None] + part["col"][:, None, :]
            pool = pool.at[place].add(message.schur, mode="drop")
            magnitude = magnitude.at[ids[:, shape.q :]].add(message.added, mode="drop")
            return (pool, magnitude), (gains, pivots)

        _, out = self._walk(arrays, run, (pool, magnitude), None)
        return tuple(o[0] for o in out), tuple(o[1] for o in out)

    def _summarize(
        self, arrays: Any, pivots: tuple[Pivots, ...], sources: Array
    ) -> tuple[Callable[[Array], Careful], Array]:
        """Add up what the pivots say: (solution ↦ result, whether all tests were passed)."""
        dtype = sources.dtype
        positive = negative = jnp.zeros((), jnp.int32)
        logdet, smallest, good = jnp.zeros((), dtype), jnp.asarray(jnp.inf, dtype), jnp.asarray(True)
        for i, p in enumerate(pivots):
            shape = self._blocks[i].shape
            real = arrays[f"ids{i}"] < self.layout.num_unknowns
            real_pair = real[..., shape.p : shape.p + shape.m]
            a, b, c = (p.pair[..., j] for j in range(3))
            mean, radius = (a + c) / 2, jnp.hypot((a - c) / 2, b)
            big = mean + jnp.where(mean < 0, -radius, radius)
            for value, where in (
                (p.single, real[..., shape.p + 2 * shape.m : shape.p + shape.q]),
                (big, real_pair),
                ((a * c - b * b) / big, real_pair),
            ):
                positive += jnp.sum(where & (value > 0), dtype=jnp.int32)
                negative += jnp.sum(where & (value < 0), dtype=jnp.int32)
                size = jnp.where(where, jnp.abs(value), 1.0)
                logdet += jnp.sum(jnp.log(size))
                smallest = jnp.minimum(smallest, jnp.min(jnp.where(where, size, jnp.inf), initial=jnp.inf))
            good &= jnp.all(p.good)
        pairs = self.layout.num_pairs
        inertia = jnp.stack([positive - pairs, negative - pairs, jnp.zeros((), jnp.int32)])
        null = jnp.zeros(self.layout.num_unknowns, jnp.int8)
        zero = jnp.zeros((), jnp.int32)
        good &= jnp.isfinite(logdet)
        return lambda x: Careful(x, zero, inertia, zero, logdet, smallest, null), good

    # Solution

    def _sweep(self, arrays: Any, gains: tuple[Gains, ...], rhs: Array) -> Array:
        """Right-hand sides up the tree, solutions down."""
        n = self.layout.num_inputs
        z = jnp.zeros((self.layout.num_unknowns, rhs.shape[1]), rhs.dtype).at[:n].set(rhs)

        def up(z: Array, step: Array, part: dict[str, Any], i: int, block: Block) -> tuple[Array, None]:
            p, q, kept = block.shape.p, block.shape.q, part["gains"]
            r = z.at[part["ids"]].get(mode="fill", fill_value=0)
            pulled = jnp.swapaxes(kept.f, 1, 2) @ r[:, :p] if p else jnp.zeros_like(r)
            t = pulled[:, :q] + r[:, p : p + q]
            y = kept.inverse @ t - r[:, p : p + q]
            passed = pulled[:, q:] if p else jnp.zeros_like(r[:, p + q :])
            passed = passed - jnp.swapaxes(kept.x, 1, 2) @ t
            return z.at[part["ids"][:, p:]].add(jnp.concatenate([y, passed], axis=1), mode="drop"), None

        def down(z: Array, step: Array, part: dict[str, Any], i: int, block: Block) -> tuple[Array, None]:
            p, q, kept = block.shape.p, block.shape.q, part["gains"]
            r = z.at[part["ids"][:, p:]].get(mode="fill", fill_value=0)
            mine = r[:, :q] - kept.x @ r[:, q:]
            if p:
                states = kept.f @ jnp.concatenate([mine, r[:, q:]], axis=1)
                mine = jnp.concatenate([states, mine], axis=1)
            return z.at[part["ids"][:, : p + q]].set(mine, mode="drop"), None

        z, _ = self._walk(arrays, up, z, gains)
        z, _ = self._walk(arrays, down, z, gains, reverse=True)
        return z[:n]

    # The tree

    @property
    def _blocks(self) -> list[Block]:
        return [block for segment in self.layout.segments for block in segment.blocks]

    def _walk(
        self,
        arrays: Any,
        run: Callable[[Any, Array, dict[str, Any], int, Block], tuple[Any, Any]],
        carry: Any,
        gains: tuple[Gains, ...] | None,
        reverse: bool = False,
    ) -> tuple[Any, list[Any]]:
        """Run all blocks of all segments, leaves first or (reverse) roots first; collect their outputs by block."""
        out: list[Any] = [None] * len(self._blocks)
        firsts = np.cumsum([0] + [len(s.blocks) for s in self.layout.segments]).tolist()
        order = list(zip(self.layout.segments, firsts[:-1], strict=True))
        for segment, first in reversed(order) if reverse else order:
            numbers = range(first, first + len(segment.blocks))
            parts = [
                {name: arrays[f"{name}{i}"] for name in ("ids", "f", "g", "row", "col", "has")}
                | ({} if gains is None else {"gains": gains[i]})
                for i in numbers
            ]

            def body(carry: Any, xs: Any, segment: Any = segment, first: int = first) -> Any:
                step, parts = xs
                results = []
                for j, block in enumerate(segment.blocks):
                    carry, result = run(carry, step, parts[j], first + j, block)
                    results.append(result)
                return carry, results

            if segment.steps == 1:
                carry, results = body(carry, (0, jax.tree.map(lambda a: a[0], parts)))
                results = jax.tree.map(lambda a: a[None], results)
            else:
                steps = jnp.arange(segment.steps, dtype=jnp.int32)
                carry, results = jax.lax.scan(body, carry, (steps, parts), reverse=reverse)
            out[first : first + len(segment.blocks)] = results
        return carry, out


def _unless_absent(
    run: Callable[..., tuple[Gains, Pivots, Message]], block: Block, has: Array, inputs: tuple[Array, ...]
) -> tuple[Gains, Pivots, Message]:
    """Run a block, but not in steps that have no front of its class: then nothing comes out of it."""
    if block.always:
        return run(*inputs)

    def nothing(*inputs: Array) -> tuple[Gains, Pivots, Message]:
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(run, *inputs))
        return blank[0], Pivots(blank[1].single + 1, blank[1].pair + 1, ~blank[1].good), blank[2]

    return jax.lax.cond(has, run, nothing, *inputs)


def _extended(arrays: Any, sources: Array) -> tuple[Array, Array]:
    """Constants, sources and sums of sources, from which fronts are gathered; and the magnitudes that went into each."""
    head = jnp.concatenate([jnp.asarray([0.0, 1.0, -1.0], sources.dtype), sources])
    assert head.shape[0] == FIRST + sources.shape[0]
    sizes = jnp.abs(head)
    numbers, magnitudes = [head], [sizes]
    for values, out in ((head, numbers), (sizes, magnitudes)):
        if arrays["few"].size:
            out.append(jnp.sum(values[arrays["few"]], axis=0))
        if arrays["many"].size:
            zero = jnp.zeros(arrays["num_many"].shape, sources.dtype)
            out.append(zero.at[arrays["many_of"]].add(values[arrays["many"]]))
    return jnp.concatenate(numbers), jnp.concatenate(magnitudes)
