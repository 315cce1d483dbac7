"""A causal order as loops over equal steps, where the graph is a path. Integers, once per order.

The *wave* are the slots that are coupled to what is gone. A step appends the slots that it works on to the wave and takes the
eliminated ones out; steps with the same places in the wave are rounds of one loop.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import cached_property

import numpy as np

from gnewt.graph import Index, IndexMaker, Structure, find_loops
from gnewt.kkt.causal.order import CausalOrder, CausalStep

_MAX_PERIOD = 64
"""Steps of a stage, at most, for stages to be recognised as equal."""
_MAX_STRAIGHT = 64
"""Steps outside of loops, at most: each is compiled by itself."""
_MAX_WASTE = 2
"""How many times wider than the widest step the wave may be ..."""
_FREE_WASTE = 8
"""... beyond so many slots, which cost nothing."""


@dataclasses.dataclass(frozen=True, eq=False)
class StepInstances:
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
    losses: tuple[StepInstances, ...]
    nodes: tuple[StepInstances, ...]
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

    @cached_property
    def place(self) -> np.ndarray:
        """int[size]: place of a slot of the wave among the rest; -1 where it is eliminated."""
        place = np.full(self.size, -1)
        place[self.rest] = np.arange(len(self.rest))
        return place


@dataclasses.dataclass(frozen=True, eq=False)
class PathLoop:
    """The same steps, so many times."""

    repeats: int
    steps: tuple[PathStep, ...]


def find_rounds(order: CausalOrder) -> tuple[tuple[PathLoop, ...], tuple[np.ndarray, ...]] | None:
    """Write a causal order as loops over a narrow wave, with their index arrays; None where the graph is no path."""
    if any(step.nodes != step.finished for step in order.steps):
        return None
    steps = _follow(order)
    wide = max((len(step.mine) + len(step.rest) for step in steps), default=0)
    if wide > _MAX_WASTE * order.width + _FREE_WASTE:
        return None
    numbers: dict[tuple, int] = {}
    pieces = find_loops(np.array([numbers.setdefault(s.key, len(numbers)) for s in steps]), _MAX_PERIOD)
    if sum(period for _, period, _ in pieces) > _MAX_STRAIGHT:
        return None
    maker = IndexMaker()
    loops = []
    for begin, period, repeats in pieces:
        end = begin + period * repeats
        mine = [_join(maker, steps[begin + i : end : period]) for i in range(period)]
        loops.append(PathLoop(repeats, tuple(mine)))
    return tuple(loops), tuple(maker.arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class _Placed:
    """One step with its places in the wave, before equal steps are joined."""

    is_input: bool
    num_before: int
    mine: np.ndarray
    rest: np.ndarray
    slots: np.ndarray
    kept: np.ndarray
    instances: list[list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]]
    """(family, rows[count], args[count, k], outs[count, m]) of its losses, and of its nodes."""

    @property
    def key(self) -> tuple:
        """What rounds of one loop agree in."""
        uses = [[(f, a.shape, a.tobytes(), o.tobytes()) for f, _, a, o in part] for part in self.instances]
        return self.is_input, self.num_before, self.mine.tobytes(), self.rest.tobytes(), *map(tuple, uses)


def _follow(order: CausalOrder) -> list[_Placed]:
    """Walk the steps with the wave."""
    structure = order.structure
    at = np.zeros(structure.num_slots, np.int64)  # in the wave, of the slots that are there
    wave = np.zeros(0, np.int64)
    steps = []
    for step in itertools.chain.from_iterable(map(_losses_first, order.steps)):
        reads = [structure.families[f].args[row].tolist() for f, row in (*step.nodes, *step.losses)]
        touched = itertools.chain(wave.tolist(), *reads, step.slots.tolist())
        full = np.array(list(dict.fromkeys(touched)), np.int64)
        at[full] = np.arange(len(full))
        mine = at[step.slots]
        rest = np.delete(np.arange(len(full)), mine)
        before, wave = len(wave), full[rest]
        instances = [_place(structure, part, at, step.slots) for part in (step.losses, step.nodes)]
        steps.append(_Placed(step.is_input, before, mine, rest, step.slots, wave, instances))
    return steps


def _losses_first(step: CausalStep) -> list[CausalStep]:
    """Losses at a node are added in a step of their own, so that nodes with and without them are eliminated alike."""
    if step.is_input or not step.losses:
        return [step]
    none = np.zeros(0, np.int64)
    return [CausalStep(False, none, none, step.losses, (), ()), dataclasses.replace(step, losses=())]


def _place(
    structure: Structure, instances: tuple[tuple[int, int], ...], at: np.ndarray, slots: np.ndarray
) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    found = []
    for f in sorted({f for f, _ in instances}):
        family = structure.families[f]
        rows = np.array([row for g, row in instances if g == f], np.int64)
        outs = np.zeros((len(rows), 0), np.int64) if family.outs is None else family.outs[rows]
        found.append((f, rows, at[family.args[rows]], np.searchsorted(slots, outs)))
    return found


def _join(maker: IndexMaker, rounds: list[_Placed]) -> PathStep:
    """Join the rounds of one step."""
    one = rounds[0]

    def join(part: int) -> tuple[StepInstances, ...]:
        return tuple(
            StepInstances(
                f, maker.index(np.concatenate([r.instances[part][i][1] for r in rounds])), args, outs
            )
            for i, (f, _, args, outs) in enumerate(one.instances[part])
        )

    losses, nodes = join(0), join(1)
    slots, kept = np.stack([r.slots for r in rounds]), np.stack([r.kept for r in rounds])
    places = (maker.index(slots), slots, maker.index(kept), kept)
    return PathStep(one.is_input, one.num_before, one.mine, one.rest, losses, nodes, *places)
