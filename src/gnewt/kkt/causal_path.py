"""Causal elimination of graphs that are a path: chains of stages, with memory, with shared parameters.

The slots that are coupled to what is gone (the *wave*) stay few, and steps that repeat themselves run as one `lax.scan` that
carries a dense value function over the wave. Everything else about a step is static: where its slots stand in the wave.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Data, Index, IndexMaker, Structure, find_loops
from gnewt.kkt.causal import CausalOrder, Step
from gnewt.kkt.causal_blocks import Swept, Values, embed, minimise_over, node_hessian, pass_on, take

_MAX_PERIOD = 64
"""Steps of a stage, at most, for stages to be recognised as equal."""
_MAX_STRAIGHT = 64
"""Steps outside of loops, at most: each is compiled by itself."""
_MAX_WASTE = 2
"""How many times wider than the widest step the wave may be."""


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """Instances of one family in a step: `count` in every round."""

    family: int
    rows: Index
    """Instances, [R × count]."""
    args: np.ndarray
    """int[count, k]: places of the arguments in the wave."""
    outs: np.ndarray
    """int[count, m]: which of the step's slots each output is (nodes only)."""


@dataclasses.dataclass(frozen=True, eq=False)
class PathStep:
    """A step of a round. The wave is (slots from before, new slots); `mine` are eliminated, `rest` remain."""

    is_input: bool
    num_before: int
    mine: np.ndarray
    rest: np.ndarray
    losses: tuple[Use, ...]
    nodes: tuple[Use, ...]
    slots: Index
    """The slots eliminated, [R × e] ..."""
    slot_table: np.ndarray
    """... as integers, [R, e]."""
    kept: Index
    kept_table: np.ndarray
    """Slots of the rest: [R, b]."""

    @property
    def size(self) -> int:
        return len(self.mine) + len(self.rest)


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    repeats: int
    steps: tuple[PathStep, ...]


class PathWalk:
    """A causal order as loops over equal steps."""

    def __init__(self, structure: Structure, loops: tuple[Loop, ...], arrays: tuple[np.ndarray, ...]) -> None:
        self.structure, self.loops = structure, loops
        self.arrays = arrays

    @property
    def input_steps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(slots [R, e], separators [R, b]) of every input step, as `eliminate` returns them."""
        return [(s.slot_table, s.kept_table) for loop in self.loops for s in loop.steps if s.is_input]

    # Backward: elimination

    def eliminate(
        self,
        maps: Any,
        data: Data,
        slots: Float[Array, " S"],
        duals: Float[Array, " S"],
        jacobians: dict[int, Array],
        hessians: dict[int, Array],
        shift: Float[Array, ""],
        mode: str,
        keep_values: bool = False,
        definite: bool = True,
    ) -> list[tuple[Swept, Values | None]]:
        """Eliminate all steps: for every input step what was found in its rounds, [R, ...].

        The value function is taken in the δλ form (E10): its gradient is that of V less λ.
        """
        wave: tuple[Array, Array] = (jnp.zeros((0, 0), slots.dtype), jnp.zeros((0,), slots.dtype))
        found: list[tuple[Swept, Values | None]] = []
        for loop in self.loops:
            parts = [
                self._gather(maps, data, slots, duals, jacobians, hessians, loop, s, mode) for s in loop.steps
            ]

            def round_(wave: Any, xs: Any, loop: Loop = loop) -> tuple[Any, Any]:
                out = []
                for step, part in zip(loop.steps, xs, strict=True):
                    if step.is_input:
                        wave, swept = self._minimise(step, part, wave, shift, mode, definite)
                        out.append((swept, Values(part["lam"] + wave[1], wave[0]) if keep_values else None))
                    else:
                        wave = self._substitute(step, part, wave, mode, data)
                return wave, out

            if loop.repeats == 1:
                wave, out = round_(wave, jax.tree.map(lambda a: a[0], parts))
                out = jax.tree.map(lambda a: a[None], out)
            else:
                wave, out = jax.lax.scan(round_, wave, parts)
            found += out
        return found

    def _gather(
        self,
        maps: Any,
        data: Data,
        slots: Array,
        duals: Array,
        jacobians: dict[int, Array],
        hessians: dict[int, Array],
        loop: Loop,
        step: PathStep,
        mode: str,
    ) -> dict[str, Any]:
        """The numbers of a step in all its rounds."""
        rounds, size, rest = loop.repeats, step.size, len(step.rest)
        lam = step.slots.read(duals, maps).reshape(rounds, -1)
        part: dict[str, Any] = {"own": lam}
        loss = self._sum_blocks(maps, rounds, hessians, step.losses, size)
        if loss is not None:
            part["loss"] = loss
        if step.is_input:
            part["lam"] = step.kept.read(duals, maps).reshape(rounds, -1)
            return part
        place = np.full(size, -1)
        place[step.rest] = np.arange(rest)
        part["jacobian"] = self.jacobian(maps, rounds, jacobians, step, slots.dtype)
        curved = self._curved(step)
        if mode == "adjoint":
            node = self._sum_blocks(maps, rounds, hessians, curved, rest, place)
            if node is not None:
                part["node"] = node
        elif mode == "value":
            part["uses"] = [self._instances(maps, data, slots, rounds, use, step, place) for use in curved]
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
        wave: tuple[Array, Array],
        shift: Array,
        mode: str,
        definite: bool,
    ) -> tuple[tuple[Array, Array], Swept]:
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

    def _substitute(
        self, step: PathStep, part: dict[str, Any], wave: tuple[Array, Array], mode: str, data: Data
    ) -> tuple[Array, Array]:
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
                    block = node_hessian(self.structure.families[use.family], x[c], take(lam, outs), columns)
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


def _widen(wave: tuple[Array, Array], step: PathStep) -> tuple[Array, Array]:
    """The value function with the new slots of a step, on which it does not depend yet."""
    more = step.size - step.num_before
    if not more:
        return wave
    return jnp.pad(wave[0], ((0, more), (0, more))), jnp.pad(wave[1], (0, more))


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + matrix.T)


# Making it


def path_walk(order: CausalOrder) -> PathWalk | None:
    """Write a causal order as loops over a narrow wave, or return None where the graph is no path."""
    if any(step.nodes != step.finished for step in order.steps):
        return None
    steps, tables, wide = _follow(order)
    if wide > _MAX_WASTE * order.width + 8:
        return None
    keys: dict[Any, int] = {}
    signature = np.array([keys.setdefault(_key(s), len(keys)) for s in steps])
    pieces = find_loops(signature, _MAX_PERIOD)
    if sum(period for _, period, _ in pieces) > _MAX_STRAIGHT:
        return None
    maker = IndexMaker()
    loops = []
    for begin, period, repeats in pieces:
        mine = [steps[begin + i : begin + period * repeats : period] for i in range(period)]
        own = [tables[begin + i : begin + period * repeats : period] for i in range(period)]
        loops.append(Loop(repeats, tuple(_step(maker, a, b) for a, b in zip(mine, own, strict=True))))
    return PathWalk(order.structure, tuple(loops), tuple(maker.arrays))


@dataclasses.dataclass(frozen=True, eq=False)
class _Raw:
    """A step with its places in the wave, before equal ones are joined."""

    is_input: bool
    num_before: int
    mine: tuple[int, ...]
    rest: tuple[int, ...]
    losses: tuple[tuple[int, np.ndarray, np.ndarray], ...]
    """(family, args[count, k], outs[count, m])."""
    nodes: tuple[tuple[int, np.ndarray, np.ndarray], ...]


def _follow(order: CausalOrder) -> tuple[list[_Raw], list[tuple[Any, ...]], int]:
    """Walk the steps with the wave: raw steps, (slots, kept, instances of each use) of each, largest wave."""
    wave: list[int] = []
    steps, tables, wide = [], [], 0
    for step in itertools.chain.from_iterable(map(_losses_first, order.steps)):
        full = list(dict.fromkeys([*wave, *_touched(order.structure, step)]))
        at = {slot: i for i, slot in enumerate(full)}
        gone = set(step.slots.tolist())
        mine = tuple(at[s] for s in step.slots.tolist())
        rest = tuple(i for i, s in enumerate(full) if s not in gone)
        number = {s: i for i, s in enumerate(step.slots.tolist())}
        losses, loss_rows = _uses(order.structure, step.losses, at, number)
        nodes, node_rows = _uses(order.structure, step.nodes, at, number)
        steps.append(_Raw(step.is_input, len(wave), mine, rest, losses, nodes))
        wave = [full[i] for i in rest]
        tables.append((step.slots, np.array(wave, np.int64), loss_rows, node_rows))
        wide = max(wide, len(full))
    return steps, tables, wide


def _losses_first(step: Step) -> list[Step]:
    """Losses at a node are added in a step of their own, so that nodes with and without them are eliminated alike."""
    if step.is_input or not step.losses:
        return [step]
    none = np.zeros(0, np.int64)
    return [Step(False, none, none, step.losses, (), ()), dataclasses.replace(step, losses=())]


def _touched(structure: Structure, step: Step) -> list[int]:
    """Slots that a step works on, in the order in which its instances read them."""
    out: list[int] = []
    for f, row in itertools.chain(step.nodes, step.losses):
        out += structure.families[f].args[row].tolist()
    return [*out, *step.slots.tolist()]


def _uses(
    structure: Structure, instances: tuple[tuple[int, int], ...], at: dict[int, int], number: dict[int, int]
) -> tuple[tuple[tuple[int, np.ndarray, np.ndarray], ...], list[np.ndarray]]:
    uses, rows = [], []
    for f in sorted({f for f, _ in instances}):
        family = structure.families[f]
        mine = [row for g, row in instances if g == f]
        args = [[at[s] for s in family.args[row].tolist()] for row in mine]
        outs = (
            [] if family.outs is None else [[number.get(s, 0) for s in family.outs[r].tolist()] for r in mine]
        )
        shape = (len(mine), 0 if family.outs is None else family.m)
        uses.append(
            (
                f,
                np.array(args, np.int64).reshape(len(mine), family.k),
                np.array(outs, np.int64).reshape(shape),
            )
        )
        rows.append(np.array(mine, np.int64))
    return tuple(uses), rows


def _key(step: _Raw) -> Any:
    uses = tuple(
        (f, args.shape, args.tobytes(), outs.tobytes())
        for part in (step.losses, step.nodes)
        for f, args, outs in part
    )
    return step.is_input, step.num_before, step.mine, step.rest, len(step.losses), uses


def _step(maker: IndexMaker, rounds: list[_Raw], tables: list[tuple[Any, ...]]) -> PathStep:
    """Join the rounds of one step."""
    one = rounds[0]

    def use(kind: int, i: int, given: tuple[int, np.ndarray, np.ndarray]) -> Use:
        rows = np.concatenate([table[kind][i] for table in tables])
        return Use(given[0], maker.index(rows), given[1], given[2])

    slots = np.stack([table[0] for table in tables])
    kept = np.stack([table[1] for table in tables])
    return PathStep(
        one.is_input,
        one.num_before,
        np.array(one.mine, np.int64),
        np.array(one.rest, np.int64),
        tuple(use(2, i, u) for i, u in enumerate(one.losses)),
        tuple(use(3, i, u) for i, u in enumerate(one.nodes)),
        maker.index(slots),
        slots,
        maker.index(kept),
        kept,
    )
