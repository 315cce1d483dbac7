"""Schedule: in which order, and in which batches, the node instances are evaluated.

Once per structure, integers only. Instances on one topological level are independent, so they run as one
batch per family; a repeated pattern of levels runs as one `lax.scan`. Compile time therefore grows with
the number of distinct patterns, never with the depth of the graph. A graph without any pattern falls back
to one scan over single instances with a `lax.switch` on the family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gnewt import _native
from gnewt.graph.family import Family

_MAX_PERIOD = 16
"""Longest repeated pattern of levels that is looked for."""
_MAX_STRAIGHT = 48
"""More straight-line batches than this compile slower than one scan over instances (~30 ms each)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """`repeats` rounds of the same batches: in round r, for each step, family f at instances rows[r]."""

    repeats: int
    families: tuple[int, ...]
    rows: tuple[np.ndarray, ...]
    """For each step int32[repeats, count]: instance numbers of the step's family."""


@dataclasses.dataclass(frozen=True, eq=False)
class Serial:
    """One instance at a time; the family differs from instance to instance."""

    family: np.ndarray
    """int32[L]: position in `families`."""
    row: np.ndarray
    """int32[L]: instance number."""
    families: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """Batches in an order that respects data flow."""

    segments: tuple[Segment | Serial, ...]
    depth: int
    """Number of topological levels."""


def instance_levels(families: Sequence[Family], num_slots: int) -> dict[int, np.ndarray]:
    """Return for each node family the topological level of every instance (1 = reads inputs only).

    Cost O(number of arguments), a plain loop: slots are in topological order, so one pass in the order of
    the lowest slot defined sees every argument before its consumers.
    """
    nodes = [f for f, fam in enumerate(families) if not fam.is_loss and fam.n]
    levels = {f: np.ones(families[f].n, np.int64) for f in nodes}
    pending = [f for f in nodes if families[f].k and families[f].args.max() >= _lowest_out(families)]
    if not pending:
        return levels
    slot_level = np.zeros(num_slots, np.int64)
    for f in nodes:
        if f not in pending:
            slot_level[families[f].outs] = 1
    first = np.concatenate([families[f].outs.min(1) for f in pending])  # type: ignore[union-attr]
    sequence = np.argsort(first, kind="stable")
    args = _rows([families[f].args for f in pending])
    outs = _rows([families[f].outs for f in pending])  # type: ignore[misc]
    walk = _walk if _native.LIBRARY is None else _native.instance_levels
    found = np.split(walk(sequence, args, outs, slot_level), np.cumsum([families[f].n for f in pending])[:-1])
    return levels | dict(zip(pending, found, strict=True))


def _rows(tables: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(ptr, idx) of the rows of several tables, one table after the other."""
    lengths = np.repeat([t.shape[1] for t in tables], [len(t) for t in tables])
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ptr, np.concatenate([t.ravel() for t in tables])


def _walk(
    sequence: np.ndarray,
    args: tuple[np.ndarray, np.ndarray],
    outs: tuple[np.ndarray, np.ndarray],
    slot_level: np.ndarray,
) -> np.ndarray:
    """Walk the instances in `sequence`; the level of each is one more than that of its highest argument."""
    (arg_ptr, arg_idx), (out_ptr, out_idx) = ([part.tolist() for part in rows] for rows in (args, outs))
    known = slot_level.tolist()
    level = np.zeros(len(sequence), np.int64)
    for i in sequence.tolist():
        level[i] = own = 1 + max([known[s] for s in arg_idx[arg_ptr[i] : arg_ptr[i + 1]]])
        for s in out_idx[out_ptr[i] : out_ptr[i + 1]]:
            if known[s] < own:
                known[s] = own
    return level


def _lowest_out(families: Sequence[Family]) -> int:
    return min((int(fam.outs.min()) for fam in families if fam.outs is not None and fam.outs.size), default=0)


def make_schedule(families: Sequence[Family], num_slots: int) -> Schedule:
    """Group node instances into batches by level, and repeated patterns of levels into loops."""
    levels = instance_levels(families, num_slots)
    if not levels:
        return Schedule((), 0)
    depth = max(int(lv.max()) for lv in levels.values())
    # For each family: instances sorted by level, and the extent of every level in that order.
    by_level = {f: np.argsort(lv, kind="stable").astype(np.int32) for f, lv in levels.items()}
    counts = {f: np.bincount(lv, minlength=depth + 1)[1:] for f, lv in levels.items()}
    starts = {f: np.concatenate([[0], np.cumsum(c)]) for f, c in counts.items()}
    table = np.stack([counts[f] for f in levels], 1)
    _, signature = np.unique(table, axis=0, return_inverse=True)
    order = list(levels)

    def rows_of(f: int, level0: int, repeats: int, period: int) -> np.ndarray:
        count = int(counts[f][level0])
        begin = starts[f][level0 : level0 + repeats * period : period]
        return by_level[f][begin[:, None] + np.arange(count)[None, :]]

    segments: list[Segment | Serial] = []
    for level0, period, repeats in find_loops(np.ravel(signature)):
        fams, rows = [], []
        for j in range(period):
            for f in order:
                if counts[f][level0 + j]:
                    fams.append(f)
                    rows.append(rows_of(f, level0 + j, repeats, period))
        segments.append(Segment(repeats, tuple(fams), tuple(rows)))
    if sum(len(s.families) for s in segments if isinstance(s, Segment)) > _MAX_STRAIGHT:
        return Schedule((_serial(levels),), depth)
    return Schedule(tuple(segments), depth)


def find_loops(signature: np.ndarray, max_period: int = _MAX_PERIOD) -> list[tuple[int, int, int]]:
    """Cover 0..L-1 by (start, period, repeats), greedily taking the longest repetition at each place."""
    length = len(signature)
    longest = {}
    for p in range(1, min(max_period, length // 2) + 1):
        same = signature[:-p] == signature[p:]
        stop = np.flatnonzero(~same)
        nearest = np.searchsorted(stop, np.arange(length - p))
        ends = np.append(stop, length - p)[nearest]
        longest[p] = 1 + (ends - np.arange(length - p)) // p
    pieces = []
    at = 0
    while at < length:
        period, repeats = 1, 1
        for p, run in longest.items():
            if at < len(run) and run[at] > 1 and run[at] * p > period * repeats:
                period, repeats = p, int(run[at])
        pieces.append((at, period, repeats))
        at += period * repeats
    return pieces


def _serial(levels: dict[int, np.ndarray]) -> Serial:
    fams = tuple(levels)
    which = np.concatenate([np.full(len(levels[f]), j, np.int32) for j, f in enumerate(fams)])
    row = np.concatenate([np.arange(len(levels[f]), dtype=np.int32) for f in fams])
    order = np.argsort(np.concatenate([levels[f] for f in fams]), kind="stable")
    return Serial(which[order], row[order], fams)
