"""Ragged integer arrays, and trees of fronts: what the layout of the native engine is made with."""

from __future__ import annotations

import numpy as np


def postorder(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(fronts so that every subtree is contiguous, the place of every front, number of children)."""
    num = len(parent)
    num_children = np.bincount(parent[parent >= 0], minlength=num)
    # A front whose subtree is of size s must stand at the end of s fronts; sizes come from a sweep upwards.
    size, parents = [1] * num, parent.tolist()
    for i, up in enumerate(parents):
        if up >= 0:
            size[up] += size[i]
    # Going down, the subtrees of a front's children are laid out one after the other before it.
    end = [0] * num
    free = num
    room = [0] * num
    for i in range(num - 1, -1, -1):
        up = parents[i]
        if up < 0:
            end[i], free = free, free - size[i]
        else:
            end[i] = room[up]
            room[up] -= size[i]
        room[i] = end[i] - 1
    rank = np.array(end, np.int64) - 1
    order = np.empty(num, np.int64)
    order[rank] = np.arange(num)
    return order, rank, num_children


def listed(front: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of integers that belong to fronts, as (front of every integer, integers), fronts ascending."""
    order = np.argsort(front, kind="stable")
    return np.repeat(front[order], table.shape[1]), table[order].ravel().astype(np.int64)


def interleave(lists: list[tuple[np.ndarray, np.ndarray]], num_fronts: int) -> tuple[np.ndarray, np.ndarray]:
    """Lay out, front by front, the values that each list (fronts ascending) has for it: (values, count per front)."""
    counts = [np.bincount(front, minlength=num_fronts) for front, _ in lists]
    total = np.sum(counts, axis=0)
    begin = starts(total)
    out = np.empty(int(total.sum()), np.int64)
    for (_, values), count in zip(lists, counts, strict=True):
        out[gather(begin, count)] = values
        begin = begin + count
    return out, total


def share(pool: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Store equal rows of a ragged array once: (where each row begins, the distinct rows)."""
    start = starts(length)
    place = (np.arange(len(pool)) - np.repeat(start, length)).astype(np.uint64)
    word = _mix(pool.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + _mix(place))
    hashed = np.add.reduceat(word, start) if len(pool) else np.zeros(0, np.uint64)
    _, first, kind = np.unique(hashed, return_index=True, return_inverse=True)
    # Equal hashes are taken as equal shapes only after a look.
    mine, theirs = np.arange(len(pool)), np.repeat(start[first[kind]], length) + place.astype(np.int64)
    if not np.array_equal(length, length[first[kind]]) or not np.array_equal(pool[mine], pool[theirs]):
        return start, pool
    shapes = pool[gather(start[first], length[first])]
    return starts(length[first])[kind], shapes


def _mix(z: np.ndarray) -> np.ndarray:
    """Scramble 64-bit words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def starts(counts: np.ndarray) -> np.ndarray:
    """Where each row of a ragged array begins."""
    return np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)


def gather(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Indices of ragged rows that begin at `start`."""
    return np.repeat(start - starts(length), length) + np.arange(int(np.sum(length)))
