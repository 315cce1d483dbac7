"""Rounds: a repeated segment of the schedule as a recurrence with a small state.

Once per structure, integers only. In round r every step reads slots of three kinds: slots known before the
segment (inputs of the loop), slots of the same round, and slots of round r - d for a fixed small d (its state).
Where this holds, evaluation and the reverse sweep are scans that carry the state and nothing else, and whose
inputs and outputs are slices of the slot vector. Where it does not, `make_rounds` returns None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from gnewt.graph.affine import Index, IndexMaker, Table, distinct_rows
from gnewt.graph.family import Family
from gnewt.graph.schedule import Segment

_MAX_LAG = 8
"""Longest memory, in rounds, of a recurrence."""
_MAX_SLICES = 64
"""Slices, at most, by which a step reads its arguments within a round, where gathers are slow."""
_HERE, _FIXED, _MOVING = 1, 2, 3


@dataclasses.dataclass(frozen=True, eq=False)
class RoundStep:
    """One batch of a round: `count` instances of a family.

    Arguments are places in the pool (state, slots of this round so far, fixed slots, moving slots).
    """

    family: int
    count: int
    rows: Index
    """Instances in all rounds, [rounds × count]."""
    places: np.ndarray
    """int[count, k]: arguments, as places in the pool ..."""
    take: Table
    """... prepared for reading."""
    targets: np.ndarray
    """int[count, m]: outputs, as places among the slots of the round ..."""
    put: Table
    """... prepared for writing."""
    num_before: int
    """Slots of the round that earlier steps have begun ..."""
    num_after: int
    """... and after this step. New ones come in the order of the outputs where `is_new`."""
    is_new: bool
    """Every output is a new slot of the round, in order: nothing needs adding up."""
    pattern: np.ndarray
    """bool[m, k]: which outputs of an instance depend on which arguments."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rounds:
    """`repeats` rounds of the same steps with a state carried from round to round."""

    repeats: int
    steps: tuple[RoundStep, ...]
    num_state: int
    first_state: Index
    """Slots that hold the state of round 0."""
    following: np.ndarray
    """int[num_state]: the next state, as places in (state, slots of the round) ..."""
    shift: Index
    """... prepared for reading."""
    fixed: Index
    """Slots that every round reads."""
    moving: Table
    """[repeats, e]: slots that round r reads, known before the segment."""
    slots: Table
    """[repeats, q]: slots that round r defines."""
    base: bool
    """Whether those slots hold something before the segment, to be added to."""

    @property
    def num_slots(self) -> int:
        return self.slots.shape[1]

    @property
    def lags(self) -> np.ndarray:
        """int[num_state, 2]: by how many rounds each number of the state is late, and its place among the slots of a round."""
        late = np.ones(self.num_state, np.int64)
        place = self.following.copy()
        while np.any(place < self.num_state):
            older = place < self.num_state
            late += older
            place[older] = self.following[place[older]]
        return np.stack([late, place - self.num_state], axis=1)

    @cached_property
    def components(self) -> np.ndarray:
        """int[parts, most]: the state, cut where no round mixes; filled up with num_state.

        Agents that do not meet, lanes of a batch: the next state of each reads its own state alone.
        """
        label = np.arange(self.num_state + self.num_slots)
        ends = [(np.arange(self.num_state), self.following)]
        for step in self.steps:
            out, arg = np.nonzero(step.pattern)
            read, written = step.places[:, arg].ravel(), step.targets[:, out].ravel() + self.num_state
            ends.append((read[read < len(label)], written[read < len(label)]))
        one, other = (np.concatenate(side) for side in zip(*ends, strict=True))
        while np.any(label[one] != label[other]):
            lowest = np.minimum(label[one], label[other])
            np.minimum.at(label, one, lowest)
            np.minimum.at(label, other, lowest)
            label = np.minimum(label, label[label])
        _, part = np.unique(label[: self.num_state], return_inverse=True)
        part = np.ravel(part)
        count = np.bincount(part)
        table = np.full((len(count), int(count.max(initial=0))), self.num_state, np.int64)
        order = np.argsort(part, kind="stable")
        first = np.concatenate([[0], np.cumsum(count)])[:-1]
        table[part[order], np.arange(len(order)) - first[part[order]]] = order
        return table


def make_rounds(
    segment: Segment, families: Sequence[Family], defined: np.ndarray, maker: IndexMaker
) -> Rounds | None:
    """Write a segment as rounds, or return None. `defined` marks the slots written before the segment."""
    repeats = segment.repeats
    args, outs = [], []
    for f, rows in zip(segment.families, segment.rows, strict=True):
        args.append(families[f].args[rows].astype(np.int64).reshape(repeats, -1))
        table = families[f].outs
        assert table is not None
        outs.append(table[rows].astype(np.int64).reshape(repeats, -1))
    places = _number_outputs(np.concatenate(outs, axis=1))
    if places is None:
        return None
    place, slots = places
    reads = _classify(np.concatenate(args, axis=1), slots, len(defined))
    if reads is None:
        return None
    kind, where, lag, columns = reads
    state, first = _state(kind, where, lag, columns, repeats)
    if first is None:
        return None
    fixed = np.unique(columns[0][kind == _FIXED])
    moving = columns[:, kind == _MOVING]
    first_moving, which = distinct_rows(moving.T)
    q = slots.shape[1]
    # Places in the pool: state, slots of the round, fixed, moving.
    pool = np.zeros(len(kind), np.int64)
    order = {key: i for i, key in enumerate(state)}
    for j in np.flatnonzero(kind == 0):
        pool[j] = order[int(lag[j]), int(where[j])]
    here = kind == _HERE
    pool[here] = len(state) + where[here]
    pool[kind == _FIXED] = len(state) + q + np.searchsorted(fixed, columns[0][kind == _FIXED])
    pool[kind == _MOVING] = len(state) + q + len(fixed) + which
    shift = np.array([order[ell - 1, w] if ell > 1 else len(state) + w for ell, w in state], np.int64)

    return Rounds(
        repeats,
        _make_steps(segment, families, pool, place, maker),
        len(state),
        maker.index(np.array(first, np.int64)),
        shift,
        maker.index(shift),
        maker.index(fixed),
        maker.table(moving[:, first_moving]),
        maker.table(slots),
        bool(defined[slots].any()),
    )


def _make_steps(
    segment: Segment, families: Sequence[Family], pool: np.ndarray, place: np.ndarray, maker: IndexMaker
) -> tuple[RoundStep, ...]:
    """Prepare the steps of a round from the places of all its arguments (`pool`) and outputs (`place`)."""
    steps = []
    at_arg = at_out = begun = 0
    for f, rows in zip(segment.families, segment.rows, strict=True):
        family, count = families[f], rows.shape[1]
        take = pool[at_arg : at_arg + count * family.k].reshape(count, family.k)
        put = place[at_out : at_out + count * family.m].reshape(count, family.m)
        end = max(begun, int(put.max(initial=-1)) + 1)
        is_new = np.array_equal(put.ravel(), np.arange(begun, end))
        at_arg, at_out = at_arg + take.size, at_out + put.size
        table, target = maker.table(take, _MAX_SLICES), maker.table(put, _MAX_SLICES)
        steps.append(
            RoundStep(
                f, count, maker.index(rows), take, table, put, target, begun, end, is_new, family.jac_pattern
            )
        )
        begun = end
    return tuple(steps)


def _number_outputs(outs: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Number the slots of a round by their first appearance: (place of each output, slots [R, q]).

    None unless the outputs coincide in the same way in every round.
    """
    _, first, inverse = np.unique(outs[0], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    place = rank[np.ravel(inverse)]
    slots = outs[:, np.sort(first)]
    if np.any(slots[:, place] != outs):
        return None
    ordered = np.sort(slots, axis=1)
    if np.any(ordered[:, 1:] == ordered[:, :-1]):
        return None
    return place, slots


def _classify(
    args: np.ndarray, slots: np.ndarray, num_slots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """For each argument of a round: kind (0: state), place among the slots of its round, lag; and args itself."""
    repeats, q = slots.shape
    round_of = np.full(num_slots, -1, np.int64)
    place_of = np.zeros(num_slots, np.int64)
    writes = np.bincount(slots.ravel(), minlength=num_slots)
    round_of[slots] = np.arange(repeats)[:, None]
    place_of[slots] = np.arange(q)
    if np.any(writes[args] > 1):
        return None
    made = round_of[args]
    lag = np.arange(repeats)[:, None] - made
    inside = made >= 0
    last_lag, last_place = lag[-1], place_of[args[-1]]
    kind = np.zeros(args.shape[1], np.int64)
    known = ~inside.any(0)
    kind[known] = np.where((args == args[:1]).all(0)[known], _FIXED, _MOVING)
    kind[~known & (last_lag == 0)] = _HERE
    looped = ~known
    if np.any(last_lag[looped] > min(_MAX_LAG, repeats - 1)) or not inside[-1][looped].all():
        return None
    # A state of lag d comes from outside in the first d rounds, and from round r - d ever after.
    early = np.arange(repeats)[:, None] < last_lag[None, :]
    regular = np.where(early, ~inside, inside & (lag == last_lag) & (place_of[args] == last_place))
    if not regular[:, looped].all():
        return None
    return kind, last_place, np.where(kind == 0, last_lag, 0), args


def _state(
    kind: np.ndarray, where: np.ndarray, lag: np.ndarray, args: np.ndarray, repeats: int
) -> tuple[list[tuple[int, int]], list[int] | None]:
    """Keys (lag, place) of the state, and the slots that hold it before round 0."""
    longest: dict[int, int] = {}
    starts: dict[tuple[int, int], int] = {}
    for j in np.flatnonzero(kind == 0):
        w, d = int(where[j]), int(lag[j])
        longest[w] = max(longest.get(w, 0), d)
        for r in range(min(d, repeats)):
            if starts.setdefault((d - r, w), int(args[r, j])) != args[r, j]:
                return [], None
    state = sorted((ell, w) for w, d in longest.items() for ell in range(1, d + 1))
    return state, [starts.get(key, 0) for key in state]
