"""Tables: the integers of a structure as one array, for the native library (cpp/engine/linearize_call.hpp).

Once per structure. Which slot an instance reads or defines, the patterns of the Jacobians, where the derivatives of a
family lie among the sources (`gnewt.graph.plan`), and an order of all instances that respects data flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gnewt.graph.family import Family
from gnewt.graph.schedule import Schedule, Segment

_HEADER, _FAMILY, _COLUMN, _ITEM = 5, 10, 3, 4
"""Integers of the header, of the record of a family, of a column, of an item."""
_IN_TURN, _AT_ONCE = -1, -2
"""In place of a list of rows: neighbours, one after the other or in any order."""


def make_tables(families: Sequence[Family], schedule: Schedule, num_slots: int) -> np.ndarray:
    """Write the array. O(number of arguments)."""
    records: list[list[int]] = []
    parts: list[np.ndarray] = []
    size = _HEADER + _FAMILY * len(families)
    at = 0

    def put(part: np.ndarray) -> int:
        nonlocal size
        parts.append(part.astype(np.int32).ravel())
        size += part.size
        return size - part.size

    def columns(table: np.ndarray) -> int:
        """Write the columns of an index table; those that are not affine get a table of their own."""
        found = np.full((table.shape[1], _COLUMN), -1, np.int64)
        for number, column in enumerate(table.T.astype(np.int64)):
            steps = np.diff(column)
            if np.all(steps == steps[:1]):
                found[number, :2] = column[0] if len(column) else 0, steps[0] if len(steps) else 0
            else:
                found[number] = 0, 0, put(column)
        return put(found)

    for family in families:
        num_jac, num_hess = int(family.jac_pattern.sum()), int(np.tril(family.hess_pattern).sum())
        args, outs = columns(family.args), -1 if family.outs is None else columns(family.outs)
        record = [family.n, family.k, family.m, args, outs, put(_pattern(family)), num_jac]
        if not family.is_loss:
            record.append(at)
            at += family.n * num_jac
        else:
            record.append(0)
        records.append([*record, num_hess, at])
        at += family.n * num_hess
    items = _items(schedule, put)
    head = np.array([len(families), num_slots, at, put(items), len(items)], np.int32)
    return np.concatenate([head, np.array(records, np.int32).ravel(), *parts])


def _pattern(family: Family) -> np.ndarray:
    """Ends of the entries of each argument; then for each entry its place in a row of J, and its output."""
    outs, args = np.nonzero(family.jac_pattern)
    order = np.argsort(args, kind="stable")
    ends = np.searchsorted(args[order], np.arange(family.k + 1))
    return np.concatenate([ends, np.stack([order, outs[order]], axis=1).ravel()])


def _items(schedule: Schedule, put: Callable[[np.ndarray], int]) -> np.ndarray:
    """Write items (family, first instance, count, rows) in the order of evaluation."""
    found: list[np.ndarray] = []
    for segment in schedule.segments:
        if not isinstance(segment, Segment):
            found.append(_runs(np.asarray(segment.families)[segment.family], segment.row))
        elif all(rows.shape[1] == 1 for rows in segment.rows):
            rows = np.concatenate(segment.rows, axis=1)
            found.append(_runs(np.tile(segment.families, segment.repeats), rows.ravel()))
        else:
            steps = [_batches(f, rows, put) for f, rows in zip(segment.families, segment.rows, strict=True)]
            found.append(np.stack(steps, axis=1).reshape(-1, _ITEM))
    return np.concatenate(found) if found else np.zeros((0, _ITEM), np.int64)


def _runs(family: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Items of instances one after the other: neighbours of a family are one item."""
    row = row.astype(np.int64)
    first = np.flatnonzero(np.append(True, (np.diff(family) != 0) | (np.diff(row) != 1)))
    counts = np.diff(np.append(first, len(row)))
    return np.stack([family[first], row[first], counts, np.full(len(first), _IN_TURN)], axis=1)


def _batches(family: int, rows: np.ndarray, put: Callable[[np.ndarray], int]) -> np.ndarray:
    """Items of instances [repeats, count] of which those of one round do not depend on each other."""
    repeats, count = rows.shape
    in_order = np.all(np.diff(rows, axis=1) == 1, axis=1)
    at = put(rows) + count * np.arange(repeats) if not in_order.all() else np.full(repeats, _AT_ONCE)
    items = (np.full(repeats, family), rows[:, 0], np.full(repeats, count), np.where(in_order, _AT_ONCE, at))
    return np.stack([np.asarray(column, np.int64) for column in items], axis=1)
