"""Causal elimination of graphs that are a path: chains of stages, with memory, with shared parameters.

The slots that are coupled to what is gone (the *wave*) stay few, and steps that repeat themselves run as one `lax.scan` that
carries a dense value function over the wave. Everything else about a step is static: where its slots stand in the wave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Data
from gnewt.kkt.causal.blocks import Numbers, Swept, Values, embed, minimise_over, node_hessian, pass_on, take
from gnewt.kkt.causal.order import CausalOrder
from gnewt.kkt.causal.rounds import Loop, PathStep, Use, find_rounds

Wave = tuple[Array, Array]
"""Hessian and gradient of the value function over the wave."""


class PathWalk:
    """A causal order as loops over equal steps."""

    def __init__(self, order: CausalOrder, loops: tuple[Loop, ...], arrays: tuple[np.ndarray, ...]) -> None:
        self.order, self.structure, self.loops = order, order.structure, loops
        self.arrays = arrays

    @property
    def input_steps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(slots [R, e], separators [R, b]) of every input step, as `eliminate` returns them."""
        return [(s.slot_table, s.kept_table) for loop in self.loops for s in loop.steps if s.is_input]

    # Backward: elimination

    def eliminate(
        self, numbers: Numbers, mode: str, keep_values: bool = False, definite: bool = True
    ) -> list[tuple[Swept, Values | None]]:
        """Eliminate all steps: for every input step what was found in its rounds, [R, ...].

        The value function is taken in the δλ form (E10): its gradient is that of V less λ.
        """

        def gather(loop: Loop, step: PathStep) -> dict[str, Any]:
            return self._gather(numbers, loop, step, mode)

        def advance(step: PathStep, part: dict[str, Any], wave: Wave) -> tuple[Wave, Any]:
            if not step.is_input:
                return self._substitute(step, part, wave, mode, numbers.data), None
            wave, swept = self._minimise(step, part, wave, numbers.shift, mode, definite)
            return wave, (swept, Values(part["lam"] + wave[1], wave[0]) if keep_values else None)

        return self.walk(numbers.slots.dtype, gather, advance)

    def walk(
        self,
        dtype: Any,
        gather: Callable[[Loop, PathStep], dict[str, Any]],
        advance: Callable[[PathStep, dict[str, Any], Wave], tuple[Wave, Any]],
    ) -> list[Any]:
        """Run over all steps, equal ones in a loop: what `advance` finds at every input step, [R, ...].

        Args:
            gather: the numbers of a step in all its rounds.
            advance: eliminate a step in one round: (wave, what was found).
        """
        wave: Wave = (jnp.zeros((0, 0), dtype), jnp.zeros((0,), dtype))
        found: list[Any] = []
        for loop in self.loops:
            parts = [gather(loop, step) for step in loop.steps]

            def round_(wave: Wave, xs: Any, loop: Loop = loop) -> tuple[Wave, Any]:
                out = []
                for step, part in zip(loop.steps, xs, strict=True):
                    wave, seen = advance(step, part, wave)
                    if step.is_input:
                        out.append(seen)
                return wave, out

            if loop.repeats == 1:
                wave, out = round_(wave, jax.tree.map(lambda a: a[0], parts))
                out = jax.tree.map(lambda a: a[None], out)
            else:
                wave, out = jax.lax.scan(round_, wave, parts)
            found += out
        return found

    def _gather(self, numbers: Numbers, loop: Loop, step: PathStep, mode: str) -> dict[str, Any]:
        """The numbers of a step in all its rounds."""
        maps, hessians, slots = numbers.maps, numbers.hessians, numbers.slots
        rounds, size, rest = loop.repeats, step.size, len(step.rest)
        lam = step.slots.read(numbers.duals, maps).reshape(rounds, -1)
        part: dict[str, Any] = {"own": lam}
        loss = self._sum_blocks(maps, rounds, hessians, step.losses, size)
        if loss is not None:
            part["loss"] = loss
        if step.is_input:
            part["lam"] = step.kept.read(numbers.duals, maps).reshape(rounds, -1)
            return part
        place = np.full(size, -1)
        place[step.rest] = np.arange(rest)
        part["jacobian"] = self.jacobian(maps, rounds, numbers.jacobians, step, slots.dtype)
        curved = self._curved(step)
        if mode == "adjoint":
            node = self._sum_blocks(maps, rounds, hessians, curved, rest, place)
            if node is not None:
                part["node"] = numbers.share * node
        elif mode == "value":
            part["uses"] = [
                self._instances(maps, numbers.data, slots, rounds, use, step, place) for use in curved
            ]
        return part

    def jacobian(
        self, maps: Any, rounds: int, jacobians: dict[int, Array], step: PathStep, dtype: Any
    ) -> Float[Array, "R e b"]:
        """∂Φ of a node step over the rest of the wave."""
        place = np.full(step.size, -1)
        place[step.rest] = np.arange(len(step.rest))
        total = jnp.zeros((rounds, len(step.mine), len(step.rest)), dtype)
        for use in step.nodes:
            block = use.rows.read(jacobians[use.family], maps)
            block = block.reshape(rounds, len(use.args), *block.shape[1:])
            for c, (args, outs) in enumerate(zip(use.args, use.outs, strict=True)):
                total = total + embed(block[:, c], outs, place[args], len(step.mine), len(step.rest))
        return total

    def _sum_blocks(
        self,
        maps: Any,
        rounds: int,
        blocks: dict[int, Array],
        uses: tuple[Use, ...],
        size: int,
        place: np.ndarray | None = None,
    ) -> Array | None:
        total = None
        for use in uses:
            if use.family not in blocks:
                continue
            block = use.rows.read(blocks[use.family], maps)
            block = block.reshape(rounds, len(use.args), *block.shape[1:])
            for c, args in enumerate(use.args):
                at = args if place is None else place[args]
                added = embed(block[:, c], at, at, size, size)
                total = added if total is None else total + added
        return total

    def _instances(
        self, maps: Any, data: Data, slots: Array, rounds: int, use: Use, step: PathStep, place: np.ndarray
    ) -> tuple[Array, list[Array]]:
        """Arguments and data of instances whose Hessians are taken during the walk."""
        kept = step.kept.read(slots, maps).reshape(rounds, -1)
        x = jnp.stack([take(kept, place[args]) for args in use.args], 1)
        return x, self._rows(maps, data, rounds, use)

    def _rows(self, maps: Any, data: Data, rounds: int, use: Use) -> list[Array]:
        axes = self.structure.families[use.family].data_axes
        return [
            use.rows.read(jnp.asarray(d), maps).reshape(rounds, len(use.args), *np.shape(d)[1:])
            for axis, d in zip(axes, data[use.family], strict=True)
            if axis == 0
        ]

    def _columns(self, data: Data, use: Use, rows: list[Array], c: int) -> tuple[Any, ...]:
        given = iter(rows)
        axes = self.structure.families[use.family].data_axes
        return tuple(
            next(given)[c] if axis == 0 else d for axis, d in zip(axes, data[use.family], strict=True)
        )

    def _minimise(
        self,
        step: PathStep,
        part: dict[str, Any],
        wave: Wave,
        shift: Array,
        mode: str,
        definite: bool,
    ) -> tuple[Wave, Swept]:
        hessian, gradient = _widen(wave, step)
        if "loss" in part:
            hessian = hessian + part["loss"]
        quu = take(take(hessian, step.mine, 0), step.mine, 1)
        qus = take(take(hessian, step.mine, 0), step.rest, 1)
        qss = take(take(hessian, step.rest, 0), step.rest, 1)
        qu = take(gradient, step.mine) + part["own"]
        swept = minimise_over(quu, qus, qu, shift, definite)
        more, push = pass_on(swept, quu, qus, qu, mode == "adjoint")
        return (_symmetric(qss + more), take(gradient, step.rest) + push), swept

    def _substitute(self, step: PathStep, part: dict[str, Any], wave: Wave, mode: str, data: Data) -> Wave:
        """x_v = Φ(pa): V(x_v, s) becomes V(J s, s), and λ·∂²Φ comes on top."""
        hessian, gradient = _widen(wave, step)
        if "loss" in part:
            hessian = hessian + part["loss"]
        if not len(step.mine):
            return hessian, gradient
        mine = take(hessian, step.mine, 0)
        qvv, qvs = take(mine, step.mine, 1), take(mine, step.rest, 1)
        jacobian, own = part["jacobian"], take(gradient, step.mine)
        out = jacobian.T @ (qvv @ jacobian)
        if (step.rest < step.num_before).any():
            cross = jacobian.T @ qvs
            out = out + cross + cross.T + take(take(hessian, step.rest, 0), step.rest, 1)
        if "node" in part:
            out = out + part["node"]
        if mode == "value":
            place = np.full(step.size, -1)
            place[step.rest] = np.arange(len(step.rest))
            lam = own + part["own"]
            for use, (x, rows) in zip(self._curved(step), part["uses"], strict=True):
                for c, (args, outs) in enumerate(zip(use.args, use.outs, strict=True)):
                    columns = self._columns(data, use, rows, c)
                    block = node_hessian(self.structure, use.family, x[c], take(lam, outs), columns)
                    out = out + embed(block, place[args], place[args], len(step.rest), len(step.rest))
        return out, take(gradient, step.rest) + jacobian.T @ own

    def _curved(self, step: PathStep) -> tuple[Use, ...]:
        return tuple(use for use in step.nodes if self.structure.families[use.family].hess_pattern.any())

    # Forward: nonlinear back-substitution

    def roll_out(
        self,
        maps: Any,
        data: Data,
        slots: Float[Array, " S"],
        swept: list[tuple[Swept, Values | None]],
        length: Float[Array, ""],
    ) -> Float[Array, " S"]:
        """Slots along u = ū + ηk + K(s - s̄), every node evaluated: exactly consistent with the graph."""
        wave = jnp.zeros((0,), slots.dtype)
        out = jnp.zeros_like(slots)  # every slot is written once
        policies = iter(swept[::-1])
        for loop in self.loops[::-1]:
            inputs = [step.is_input for step in loop.steps]
            mine = [next(policies)[0] for _ in range(sum(inputs))][::-1]
            given = iter(mine)
            parts = []
            for step in loop.steps:
                if step.is_input:
                    policy = next(given)
                    nominal = step.slots.read(slots, maps).reshape(loop.repeats, -1)
                    start = nominal + length * policy.k
                    rest = step.kept.read(slots, maps).reshape(loop.repeats, -1)
                    parts.append((start, policy.gain, rest))
                else:
                    parts.append([self._rows(maps, data, loop.repeats, use) for use in step.nodes])

            def round_(wave: Any, xs: Any, loop: Loop = loop) -> tuple[Any, Any]:
                emitted = []
                for step, part in zip(loop.steps[::-1], xs[::-1], strict=True):
                    if step.is_input:
                        start, gain, rest = part
                        value = start + gain @ (wave - rest) if len(step.rest) else start
                    else:
                        value = self._evaluate(step, part, wave, data)
                    emitted.append(value)
                    full = jnp.concatenate([value, wave])
                    place = np.argsort(np.concatenate([step.mine, step.rest]))
                    wave = take(full, place[: step.num_before])
                return wave, emitted[::-1]

            if loop.repeats == 1:
                wave, values = round_(wave, jax.tree.map(lambda a: a[0], parts))
            else:
                wave, values = jax.lax.scan(round_, wave, parts, reverse=True)
            for step, value in zip(loop.steps, values, strict=True):
                out = step.slots.add(out, value.reshape(-1), maps)
        return out

    def _evaluate(self, step: PathStep, part: list[Any], wave: Array, data: Data) -> Array:
        place = np.full(step.size, -1)
        place[step.rest] = np.arange(len(step.rest))
        total = None
        for use, rows in zip(step.nodes, part, strict=True):
            family = self.structure.families[use.family]
            for c, (args, outs) in enumerate(zip(use.args, use.outs, strict=True)):
                y = family.fn(take(wave, place[args]), *self._columns(data, use, rows, c)).astype(wave.dtype)
                added = embed(y[None], np.arange(1), outs, 1, len(step.mine))[0]
                total = added if total is None else total + added
        return jnp.zeros(len(step.mine), wave.dtype) if total is None else total


def _widen(wave: Wave, step: PathStep) -> Wave:
    """The value function with the new slots of a step, on which it does not depend yet."""
    more = step.size - step.num_before
    if not more:
        return wave
    return jnp.pad(wave[0], ((0, more), (0, more))), jnp.pad(wave[1], (0, more))


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + matrix.T)


def path_walk(order: CausalOrder) -> PathWalk | None:
    """Walk a causal order as a path, or return None where the graph is none."""
    found = find_rounds(order)
    return None if found is None else PathWalk(order, *found)
