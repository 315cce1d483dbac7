"""The schedule of graphs that are a path: chains of stages, with memory, with shared parameters.

The slots that are coupled to what is gone (the *wave*) stay few, and steps that repeat themselves run as one `lax.scan` that
carries V over the wave. Everything else about a step is static: where its slots stand in the wave.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from gnewt.graph import Data, Maps
from gnewt.kkt.causal.blocks import CausalModels, add_blocks, embed, embed_axis, node_hessian, take
from gnewt.kkt.causal.front import Algebra, FoundPolicies, ValueFunction
from gnewt.kkt.causal.order import CausalOrder
from gnewt.kkt.causal.rounds import PathLoop, PathStep, StepInstances, find_rounds

Wave: TypeAlias = tuple[jax.Array, jax.Array]
"""∂²V over the wave, in an algebra, and ∂V less λ (the δλ form, E10)."""
Rows: TypeAlias = list[jax.Array | None]
"""Data of instances, [R, count, ...]; None for data that instances share."""
FeedbackRows: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""ū + ηk, K and s̄ of an input step, [R, ...]."""
Carry = TypeVar("Carry")
Parts = TypeVar("Parts")
Out = TypeVar("Out")


class InputNumbers(NamedTuple):
    """The numbers of an input step in all its rounds, [R, ...]."""

    losses: Array | None
    """As the algebra joins them."""
    lam: Float[Array, "*r e"]
    """λ of the slots that go ..."""
    lam_rest: Float[Array, "*r b"]
    """... and of those that stay."""


class NodeNumbers(NamedTuple):
    """The numbers of a node step in all its rounds, [R, ...]."""

    losses: Array | None
    lam: Float[Array, "*r e"]
    jacobian: Float[Array, "*r e b"]
    """∂Φ over the rest of the wave."""
    curvature: Float[Array, "*r b b"] | None
    """λ·∂²Φ over the rest, in mode adjoint ..."""
    curved: list[tuple[Array, Rows]]
    """... and in mode value the arguments [R, count, k] and data of the instances whose Hessians are taken on the way."""


@dataclasses.dataclass(frozen=True, eq=False)
class PathWalk:
    """A causal order as loops over equal steps."""

    order: CausalOrder
    loops: tuple[PathLoop, ...]
    arrays: tuple[np.ndarray, ...]
    """Index arrays of the loops, which compiled functions take as `maps`."""

    @property
    def input_steps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(slots [R, e], separators [R, b]) of every input step, as `eliminate` returns them."""
        return [(s.slot_table, s.kept_table) for loop in self.loops for s in loop.steps if s.is_input]

    # Backward: elimination

    def eliminate(
        self, maps: Maps, models: CausalModels, algebra: Algebra, keep_values: bool
    ) -> FoundPolicies:
        """Eliminate all steps: for every input step what was found in its rounds, [R, ...]."""
        is_loss = [family.is_loss for family in self.order.structure.families]
        losses = {f: algebra.losses(block) for f, block in models.hessians.items() if is_loss[f]}
        dtype = models.slots.dtype
        wave: Wave = (jnp.zeros((0, 0), dtype), jnp.zeros((0,), dtype))
        found: FoundPolicies = []
        for loop in self.loops:
            parts = [self._gather(maps, models, losses, algebra, loop.repeats, step) for step in loop.steps]

            def run(
                wave: Wave, parts: list[InputNumbers | NodeNumbers], loop: PathLoop = loop
            ) -> tuple[Wave, FoundPolicies]:
                out: FoundPolicies = []
                for step, part in zip(loop.steps, parts, strict=True):
                    if isinstance(part, NodeNumbers):
                        wave = self._substitute(step, part, wave, algebra, models)
                        continue
                    matrix, gradient = _widen(wave, step, part.losses, algebra)
                    qu = take(gradient, step.mine) + part.lam
                    policy, matrix, push = algebra.minimise(matrix, (step.mine, step.rest), qu)
                    wave, values = (matrix, take(gradient, step.rest) + push), None
                    if keep_values:
                        values = ValueFunction(part.lam_rest + wave[1], algebra.hessian(matrix))
                    out.append((policy, values))
                return wave, out

            wave, out = _repeat(loop, run, wave, parts)
            found += out
        return found

    def _gather(
        self,
        maps: Maps,
        models: CausalModels,
        losses: dict[int, Array],
        algebra: Algebra,
        rounds: int,
        step: PathStep,
    ) -> InputNumbers | NodeNumbers:
        def blocks(
            of: dict[int, Array], uses: tuple[StepInstances, ...]
        ) -> Iterator[tuple[Array, np.ndarray, np.ndarray]]:
            for use in uses:
                if use.family in of:
                    block = use.rows.read(of[use.family], maps)
                    block = block.reshape(rounds, len(use.args), *block.shape[1:])
                    for c, (args, outs) in enumerate(zip(use.args, use.outs, strict=True)):
                        yield block[:, c], args, outs

        rest, place = len(step.rest), step.place
        lam = step.slots.read(models.duals, maps).reshape(rounds, -1)
        joined = algebra.join([(block, args) for block, args, _ in blocks(losses, step.losses)], step.size)
        if step.is_input:
            return InputNumbers(joined, lam, step.kept.read(models.duals, maps).reshape(rounds, -1))
        jacobian = jnp.zeros((rounds, len(step.mine), rest), lam.dtype)
        for block, args, outs in blocks(models.jacobians, step.nodes):
            jacobian = jacobian + embed(block, outs, place[args], len(step.mine), rest)
        curvature, curved = None, []
        if models.mode == "adjoint":
            found = [(block, place[args]) for block, args, _ in blocks(models.hessians, step.nodes)]
            curvature = models.share * add_blocks(found, rest) if found else None
        for use in self._curved(step, models.mode):
            kept = step.kept.read(models.slots, maps).reshape(rounds, -1)
            x = jnp.stack([take(kept, place[args]) for args in use.args], 1)
            curved.append((x, self._rows(maps, models.data, rounds, use)))
        return NodeNumbers(joined, lam, jacobian, curvature, curved)

    def _substitute(
        self, step: PathStep, part: NodeNumbers, wave: Wave, algebra: Algebra, models: CausalModels
    ) -> Wave:
        """x_v = Φ(pa): V(x_v, s) becomes V(J s, s), and λ·∂²Φ comes on top."""
        matrix, gradient = _widen(wave, step, part.losses, algebra)
        coupled = bool((step.rest < step.num_before).any())
        out = algebra.substitute(matrix, (step.mine, step.rest), part.jacobian, coupled)
        if not len(step.mine):
            return out, gradient
        if part.curvature is not None:
            out = out + part.curvature
        own = take(gradient, step.mine)
        for use, (x, rows) in zip(self._curved(step, models.mode), part.curved, strict=True):
            for c, (args, outs) in enumerate(zip(use.args, use.outs, strict=True)):
                lam, columns = take(own + part.lam, outs), _columns(models.data[use.family], rows, c)
                block = node_hessian(self.order.structure, use.family, x[c], lam, columns)
                out = out + embed(block, step.place[args], step.place[args], len(step.rest), len(step.rest))
        return out, take(gradient, step.rest) + part.jacobian.T @ own

    def _curved(self, step: PathStep, mode: str) -> tuple[StepInstances, ...]:
        """Instances whose Hessians are taken on the way."""
        families = self.order.structure.families
        return tuple(use for use in step.nodes if mode == "value" and families[use.family].hess_pattern.any())

    def _rows(self, maps: Maps, data: Data, rounds: int, use: StepInstances) -> Rows:
        axes = self.order.structure.families[use.family].data_axes
        shape, given = (rounds, len(use.args)), zip(axes, data[use.family], strict=True)
        read = partial(use.rows.read, maps=maps)
        return [
            None if a is None else read(jnp.asarray(d)).reshape(*shape, *np.shape(d)[1:]) for a, d in given
        ]

    # Forward: nonlinear back-substitution

    def roll_out(
        self,
        maps: Maps,
        data: Data,
        slots: Float[Array, " S"],
        found: FoundPolicies,
        length: Float[Array, ""],
    ) -> Float[Array, " S"]:
        """Slots along u = ū + ηk + K(s - s̄), every node evaluated: exactly consistent with the graph."""
        wave = jnp.zeros((0,), slots.dtype)
        out = jnp.zeros_like(slots)  # every slot is written once
        policies = iter(found[::-1])
        for loop in self.loops[::-1]:
            steps, parts = loop.steps[::-1], []
            for step in steps:
                if step.is_input:
                    policy, _ = next(policies)
                    start = step.slots.read(slots, maps).reshape(loop.repeats, -1) + length * policy.k
                    parts.append((start, policy.gain, step.kept.read(slots, maps).reshape(loop.repeats, -1)))
                else:
                    parts.append([self._rows(maps, data, loop.repeats, use) for use in step.nodes])

            def run(
                wave: Array, parts: list[FeedbackRows | list[Rows]], steps: tuple[PathStep, ...] = steps
            ) -> tuple[Array, list[Array]]:
                values = []
                for step, part in zip(steps, parts, strict=True):
                    values.append(self._slots(step, part, wave, data))
                    place = np.argsort(np.concatenate([step.mine, step.rest]))
                    wave = take(jnp.concatenate([values[-1], wave]), place[: step.num_before])
                return wave, values

            wave, values = _repeat(loop, run, wave, parts, reverse=True)
            for step, value in zip(steps, values, strict=True):
                out = step.slots.add(out, value.reshape(-1), maps)
        return out

    def _slots(self, step: PathStep, part: FeedbackRows | list[Rows], wave: Array, data: Data) -> Array:
        """The slots of a step: inputs by their policy, outputs of nodes by evaluation."""
        if isinstance(part, tuple):
            start, gain, nominal = part
            return start + gain @ (wave - nominal) if len(step.rest) else start
        total = None
        for use, rows in zip(step.nodes, part, strict=True):
            fn = self.order.structure.families[use.family].fn
            for c, (args, outs) in enumerate(zip(use.args, use.outs, strict=True)):
                y = fn(take(wave, step.place[args]), *_columns(data[use.family], rows, c)).astype(wave.dtype)
                added = embed_axis(y, outs, len(step.mine), -1)
                total = added if total is None else total + added
        return jnp.zeros(len(step.mine), wave.dtype) if total is None else total


def _columns(data: tuple[ArrayLike, ...], rows: Rows, c: int) -> tuple[ArrayLike, ...]:
    """All data of instance c in one round."""
    return tuple(d if row is None else row[c] for d, row in zip(data, rows, strict=True))


def _widen(wave: Wave, step: PathStep, losses: Array | None, algebra: Algebra) -> Wave:
    """V with the new slots of a step, on which V does not depend yet, and with its losses."""
    more = step.size - step.num_before
    return algebra.widen(wave[0], more, losses), jnp.pad(wave[1], (0, more)) if more else wave[1]


def _repeat(
    loop: PathLoop,
    run: Callable[[Carry, Parts], tuple[Carry, Out]],
    carry: Carry,
    parts: Parts,
    reverse: bool = False,
) -> tuple[Carry, Out]:
    """Run all rounds of a loop, the last one first if reversed; a loop of one round is no loop."""
    if loop.repeats > 1:
        return jax.lax.scan(run, carry, parts, reverse=reverse)
    carry, out = run(carry, jax.tree.map(lambda a: a[0], parts))
    return carry, jax.tree.map(lambda a: a[None], out)


def path_walk(order: CausalOrder) -> PathWalk | None:
    """Walk a causal order as a path, or return None where the graph is none."""
    found = find_rounds(order)
    return None if found is None else PathWalk(order, *found)
