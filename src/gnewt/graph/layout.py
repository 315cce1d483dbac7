"""Layout: how compiled code reads and writes the slots of a structure, as slices wherever possible.

Once per structure, integers only. The index arrays that have no strided form are `Layout.arrays`: they are
passed to compiled functions as arguments (`Structure.maps`), not baked in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gnewt.graph.affine import Index, IndexMaker, Table
from gnewt.graph.family import Family
from gnewt.graph.rounds import Rounds, make_rounds
from gnewt.graph.schedule import Schedule, Segment

_MANY = 16
"""Families and batches together from which compile time counts more than a microsecond in each: trees, not chains."""


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Instances of one family, evaluated at once."""

    family: int
    rows: Index | None
    """Which instances; None for all, in order."""
    args: Table
    outs: Table


@dataclasses.dataclass(frozen=True, eq=False)
class Irregular:
    """A loop whose rounds read and write places without a pattern: whole rows of index arrays for each round."""

    families: tuple[int, ...]
    rows: tuple[int, ...]
    """For each step, the map int[repeats, count]; for a serial walk (family, row), int[L] each."""
    serial: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Tables of every family, and the schedule in terms of them."""

    args: tuple[Table, ...]
    outs: tuple[Table | None, ...]
    segments: tuple[Batch | Rounds | Irregular, ...]
    whole: dict[int, tuple[int, int]]
    """Families that an irregular loop evaluates: where their args and outs lie among the maps."""
    arrays: tuple[np.ndarray, ...]


def make_layout(families: Sequence[Family], schedule: Schedule, num_inputs: int, num_slots: int) -> Layout:
    """Prepare all tables. O(number of arguments)."""
    straight = sum(len(s.families) for s in schedule.segments if isinstance(s, Segment) and s.repeats == 1)
    maker = IndexMaker(at_once=len(families) + straight >= _MANY)
    args = tuple(maker.table(family.args) for family in families)
    outs = tuple(None if family.outs is None else maker.table(family.outs) for family in families)
    defined = np.arange(num_slots) < num_inputs
    segments: list[Batch | Rounds | Irregular] = []
    whole: dict[int, tuple[int, int]] = {}

    def add_irregular(loop: Irregular) -> None:
        segments.append(loop)
        for f in loop.families:
            table = families[f].outs
            assert table is not None
            if f not in whole:
                whole[f] = maker.array(families[f].args), maker.array(table)

    for segment in schedule.segments:
        if not isinstance(segment, Segment):
            rows = (maker.array(segment.family), maker.array(segment.row))
            add_irregular(Irregular(segment.families, rows, True))
        elif segment.repeats == 1:
            for f, rows in zip(segment.families, segment.rows, strict=True):
                segments.append(_batch(maker, families[f], f, rows[0], args[f], outs[f]))
        else:
            rounds = make_rounds(segment, families, defined, maker)
            if rounds is not None:
                segments.append(rounds)
            else:
                places = tuple(maker.array(rows) for rows in segment.rows)
                add_irregular(Irregular(segment.families, places, False))
        for f in set(segment.families):
            table = families[f].outs
            assert table is not None
            defined[table] = True
    return Layout(args, outs, tuple(segments), whole, tuple(maker.arrays))


def _batch(
    maker: IndexMaker, family: Family, f: int, rows: np.ndarray, args: Table, outs: Table | None
) -> Batch:
    assert outs is not None and family.outs is not None
    if np.array_equal(rows, np.arange(family.n)):
        return Batch(f, None, args, outs)
    return Batch(f, maker.index(rows), maker.table(family.args[rows]), maker.table(family.outs[rows]))
