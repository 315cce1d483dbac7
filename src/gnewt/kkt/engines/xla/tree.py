"""Walks over the tree of fronts: elimination, solution, residual. Each is a few scans (`schedule`).

A front reads its matrix from a pool in which all fronts lie assembled, and adds its Schur complement to the place of its
parent. Right-hand sides and solutions live in one array over all unknowns; bare duals are never computed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.kkt.engines.xla.assembly import FIRST, XlaLayout
from gnewt.kkt.engines.xla.front import FrontMessage, Gains, Pivots, eliminate, multiply
from gnewt.kkt.engines.xla.schedule import FrontBlock, FrontSegment

Operands: TypeAlias = dict[str, jax.Array | np.ndarray]
"""`XlaLayout.arrays`, or those of one block in one step."""
_State: TypeAlias = tuple[jax.Array, jax.Array]
"""The pool of all fronts, and the magnitudes that were added to the diagonal of every unknown."""
_Ready: TypeAlias = list[tuple[jax.Array, jax.Array]]
"""For each block of a step, its fronts as they stand in the pool, and the magnitudes on their diagonals."""
_PARTS = ("ids", "f", "g", "row", "col", "has")


@dataclasses.dataclass(frozen=True, eq=False)
class _Eliminator:
    """What all steps of one elimination share."""

    layout: XlaLayout
    arrays: Operands
    numbers: Array
    """What fronts are gathered from (`extend`)."""
    shift: Float[Array, ""]
    eps: float

    def read(self, state: _State, step: Array | int, first: int, blocks: tuple[FrontBlock, ...]) -> _Ready:
        """Read the fronts of a step, as they stand in the pool now; `first` is the number of the first block."""
        pool, magnitude = state
        ready = []
        for i, block in enumerate(blocks, first):
            shape, size = block.shape, block.width * block.shape.n**2
            matrix = jax.lax.dynamic_slice(pool, [self.layout.pool_starts[i] + step * size], [size])
            ids = jax.lax.dynamic_index_in_dim(self.arrays[f"ids{i}"], step, 0, keepdims=False)
            here = magnitude.at[ids[:, shape.p :]].get(mode="fill", fill_value=0)
            ready.append((matrix.reshape(block.width, shape.n, shape.n), here))
        return ready

    def step(
        self, state: _State, ready: _Ready, parts: list[Operands], first: int, blocks: tuple[FrontBlock, ...]
    ) -> tuple[_State, list[tuple[Gains, Pivots]]]:
        """Eliminate the fronts of a step, and add their Schur complements to the pool."""
        pool, magnitude = state
        done = [
            self._run(*args)
            for args in zip(ready, parts, range(first, first + len(blocks)), blocks, strict=True)
        ]
        for (_, _, message), part, block in zip(done, parts, blocks, strict=True):
            if block.shape.b:
                place = part["row"][:, :, None] + part["col"][:, None, :]
                pool = pool.at[place].add(message.schur, mode="drop")
                separator = part["ids"][:, block.shape.p + block.shape.q :]
                magnitude = magnitude.at[separator].add(message.added, mode="drop")
        return (pool, magnitude), [(gains, pivots) for gains, pivots, _ in done]

    def _run(
        self, ready: tuple[Array, Array], part: Operands, i: int, block: FrontBlock
    ) -> tuple[Gains, Pivots, FrontMessage]:
        shape = block.shape
        ids = part["ids"][:, shape.p + 2 * shape.m : shape.p + shape.q]
        shifts = jnp.where(ids < self.layout.num_unknowns, self.shift, 0)
        inputs = (ready[0], self.numbers[part["f"]], self.numbers[part["g"]], ready[1], shifts)
        run_block = functools.partial(eliminate, shape, self.layout.nesting[i], eps=self.eps)
        return _unless_absent(run_block, block, part["has"], inputs)


class Tree:
    """The fronts of a layout, for numbers of any kind."""

    def __init__(self, layout: XlaLayout) -> None:
        self.layout = layout
        self.blocks: list[FrontBlock] = [block for segment in layout.segments for block in segment.blocks]

    def factor(
        self, arrays: Operands, sources: Float[Array, " nnz"], shift: Float[Array, ""], eps: float
    ) -> tuple[tuple[Gains, ...], tuple[Pivots, ...]]:
        """Eliminate all fronts: what is kept of every block, and what its pivots say, [steps, width, ...]."""
        numbers, magnitudes = extend(arrays, sources)
        magnitude = magnitudes[arrays["diagonal"]].at[: self.layout.num_inputs].add(jnp.abs(shift))
        state = (numbers[arrays["pool"]], magnitude)
        eliminator = _Eliminator(self.layout, arrays, numbers, shift, eps)
        out: list[tuple[Gains, Pivots]] = []
        for segment in self.layout.segments:
            state, results = _run_segment(
                eliminator, state, self._parts(arrays, len(out), segment), len(out), segment
            )
            out += results
        return tuple(o[0] for o in out), tuple(o[1] for o in out)

    def solve(
        self, arrays: Operands, gains: tuple[Gains, ...], rhs: Float[Array, "unknowns columns"]
    ) -> Float[Array, "unknowns columns"]:
        """Right-hand sides up the tree, solutions down. The rows of bare duals are meaningless."""

        def up(z: Array, part: Operands, kept: Gains, block: FrontBlock) -> Array:
            p, q = block.shape.p, block.shape.q
            r = z.at[part["ids"]].get(mode="fill", fill_value=0)
            pulled = multiply(jnp.swapaxes(kept.f, 1, 2), r[:, :p])
            t = pulled[:, :q] + r[:, p : p + q]
            z = z.at[part["ids"][:, p : p + q]].set(multiply(kept.inverse, t), mode="drop")
            passed = pulled[:, q:] - multiply(jnp.swapaxes(kept.x, 1, 2), t)
            return z.at[part["ids"][:, p + q :]].add(passed, mode="drop")

        def down(z: Array, part: Operands, kept: Gains, block: FrontBlock) -> Array:
            p, q = block.shape.p, block.shape.q
            r = z.at[part["ids"][:, p:]].get(mode="fill", fill_value=0)
            mine = r[:, :q] - multiply(kept.x, r[:, q:])
            states = multiply(kept.f, jnp.concatenate([mine, r[:, q:]], axis=1))
            here = part["ids"][:, : p + q]
            return z.at[here].set(jnp.concatenate([states, mine], axis=1), mode="drop")

        return self.walk(arrays, down, self.walk(arrays, up, rhs, gains), gains, reverse=True)

    def product(
        self,
        arrays: Operands,
        sources: Float[Array, " nnz"],
        shift: Float[Array, ""],
        z: Float[Array, "unknowns columns"],
    ) -> Float[Array, "unknowns columns"]:
        """K z without the rows and columns of bare duals."""
        layout = self.layout
        numbers, _ = extend(arrays, sources)
        product = jnp.zeros_like(z).at[: layout.num_inputs].set(shift * z[: layout.num_inputs])
        for i, block in enumerate(self.blocks):
            n = block.shape.n
            matrix = numbers[arrays["pool"][layout.pool_starts[i] : layout.pool_starts[i + 1]]].reshape(
                -1, n, n
            )
            ids = arrays[f"ids{i}"].reshape(-1, n)
            part = multiply(matrix, z.at[ids].get(mode="fill", fill_value=0))
            # Between separators a front has no entries of its own; padding is dropped.
            product = product.at[ids].add(part, mode="drop")
        return product

    def residual(
        self,
        arrays: Operands,
        sources: Float[Array, " nnz"],
        shift: Float[Array, ""],
        gains: tuple[Gains, ...],
        z: Float[Array, "unknowns columns"],
        rhs: Float[Array, "unknowns columns"],
    ) -> Float[Array, "unknowns columns"]:
        """rhs - K z from the sources, with the duals of bare pairs such that their own rows vanish.

        Of the elimination only x_p = F z is used, which is no approximation: this is the product H·x, by the adjoint.
        """
        product = self.product(arrays, sources, shift, z)

        def up(z: Array, part: Operands, kept: Gains, block: FrontBlock) -> Array:
            p = block.shape.p
            if not p:
                return z
            own = z.at[part["ids"][:, :p]].get(mode="fill", fill_value=0)
            return z.at[part["ids"][:, p:]].add(multiply(jnp.swapaxes(kept.f, 1, 2), own), mode="drop")

        product = self.walk(arrays, up, product, gains)
        bare = arrays["bare"][:, None]
        return jnp.where(bare, 0, rhs - product)

    def _parts(self, arrays: Operands, first: int, segment: FrontSegment) -> list[Operands]:
        """The arrays of a segment's blocks, [steps, width, ...]."""
        numbers = range(first, first + len(segment.blocks))
        return [{name: arrays[f"{name}{i}"] for name in _PARTS} for i in numbers]

    def walk(
        self,
        arrays: Operands,
        run: Callable[[Array, Operands, Gains, FrontBlock], Array],
        carry: Array,
        gains: tuple[Gains, ...],
        reverse: bool = False,
    ) -> Array:
        """Run all blocks of all segments, leaves first or (reverse) roots first."""
        segments = self.layout.segments
        firsts = np.cumsum([0] + [len(s.blocks) for s in segments]).tolist()[:-1]
        order = list(zip(segments, firsts, strict=True))
        for segment, first in reversed(order) if reverse else order:
            mine = (self._parts(arrays, first, segment), gains[first : first + len(segment.blocks)])

            def body(
                carry: Array,
                xs: tuple[list[Operands], tuple[Gains, ...]],
                blocks: tuple[FrontBlock, ...] = segment.blocks,
            ) -> tuple[Array, None]:
                for part, kept, block in zip(*xs, blocks, strict=True):
                    carry = run(carry, part, kept, block)
                return carry, None

            if segment.steps == 1:
                carry, _ = body(carry, jax.tree.map(lambda a: a[0], mine))
            else:
                carry, _ = jax.lax.scan(body, carry, mine, reverse=reverse)
        return carry


def _run_segment(
    eliminator: _Eliminator, state: _State, parts: list[Operands], first: int, segment: FrontSegment
) -> tuple[_State, list[tuple[Gains, Pivots]]]:
    """Run the steps of a segment as one scan; `first` is the number of its first block."""
    blocks = segment.blocks
    ready = eliminator.read(state, 0, first, blocks)
    if segment.steps == 1:
        alone = jax.tree.map(lambda a: a[0], parts)
        state, results = eliminator.step(state, ready, alone, first, blocks)
        return state, jax.tree.map(lambda a: a[None], results)

    def body(
        carry: tuple[_State, _Ready], xs: tuple[Array, list[Operands]]
    ) -> tuple[tuple[_State, _Ready], list[tuple[Gains, Pivots]]]:
        step, parts = xs
        state, results = eliminator.step(*carry, parts, first, blocks)
        # Fronts are read one step ahead, after the pool was written to. To read them when they are needed
        # would let reads and writes of one pool overlap, and cost a copy of all of it in every step.
        after = jnp.minimum(step + 1, segment.steps - 1)
        return (state, eliminator.read(state, after, first, blocks)), results

    steps = jnp.arange(segment.steps, dtype=jnp.int32)
    (state, _), results = jax.lax.scan(body, (state, ready), (steps, parts))
    return state, results


def _unless_absent(
    run: Callable[..., tuple[Gains, Pivots, FrontMessage]],
    block: FrontBlock,
    has: Array | np.ndarray,
    inputs: tuple[Array, ...],
) -> tuple[Gains, Pivots, FrontMessage]:
    """Run a block, but not in steps that have no front of its class: then nothing comes out of it."""
    if block.always:
        return run(*inputs)

    def nothing(*inputs: Array) -> tuple[Gains, Pivots, FrontMessage]:
        gains, pivots, message = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(run, *inputs)
        )
        return gains, Pivots(pivots.single + 1, pivots.pair + 1, ~pivots.clean), message

    return jax.lax.cond(has, run, nothing, *inputs)


def extend(arrays: Operands, sources: Array) -> tuple[Array, Array]:
    """Constants, sources, and sums of sources, from which fronts are gathered; and the magnitudes in each."""
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
