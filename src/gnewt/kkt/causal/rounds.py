"""A causal order as loops over equal steps, where the graph is a path. Integers, once per order.

The *wave* are the slots that are coupled to what is gone. A step appends the slots that it works on to the wave and takes the eliminated ones
out; steps with the same places in the wave are rounds of one loop.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from gnewt.graph import Index, IndexMaker, Structure, find_loops
from gnewt.kkt.causal.order import CausalOrder, Step

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


def find_rounds(order: CausalOrder) -> tuple[tuple[Loop, ...], tuple[np.ndarray, ...]] | None:
    """Write a causal order as loops over a narrow wave, with their index arrays; None where the graph is no path."""
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
    return tuple(loops), tuple(maker.arrays)


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
