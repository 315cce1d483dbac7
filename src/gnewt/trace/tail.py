"""Tail: peel the sum at the end of f into weighted loss terms, f = Σ w · value, through linear maps.

Weights are pushed backwards through rows (reverse order of creation); they are constants of the prelude.
"""

from __future__ import annotations

import numpy as np

from gnewt.trace.constants import PLUS, Constants
from gnewt.trace.pool import CALL, ROW, Pool


def peel(
    pool: Pool, constants: Constants, root: int, carried: np.ndarray, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (ids, weights) of the loss terms, and the weighted constants as rows (constant id, weight)."""
    starts = pool.starts()
    waiting: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    constant: list[tuple[np.ndarray, np.ndarray]] = []

    def send(ids: np.ndarray, weights: np.ndarray) -> None:
        fixed = ids < 0
        if fixed.any():
            constant.append((ids[fixed], weights[fixed]))
            ids, weights = ids[~fixed], weights[~fixed]
        if not ids.size:
            return
        where = np.searchsorted(starts, ids, side="right") - 1
        if where[0] == where[-1] and (where == where[0]).all():
            waiting.setdefault(int(where[0]), []).append((ids, weights))
            return
        for b in np.unique(where):
            chosen = where == b
            waiting.setdefault(int(b), []).append((ids[chosen], weights[chosen]))

    send(np.array([root], np.int32), np.array([PLUS], np.int32))
    leaves: list[tuple[np.ndarray, np.ndarray]] = []
    for b in range(len(pool.blocks) - 1, -1, -1):
        if b not in waiting or pool.blocks[b].kind != ROW:
            continue
        block = pool.blocks[b]
        ids, weights = merge_weights(constants, waiting.pop(b), dtype)
        # A value that a loop carries is a slot for everyone: its weight stays on it.
        stays = carried[ids]
        if stays.any():
            leaves.append((ids[stays], weights[stays]))
            ids, weights = ids[~stays], weights[~stays]
        ptr, cols, coefs = block.csr
        terms, owner = row_terms(ptr, ids - block.start)
        send(cols[terms], constants.times(weights[owner], coefs[terms]))
    for found in waiting.values():
        leaves += found
    # Contributions to one carried value may arrive before and after its block was passed.
    ids, weights = merge_weights(constants, leaves, dtype)
    bias = (
        np.stack([np.concatenate(c) for c in zip(*constant, strict=True)])
        if constant
        else np.zeros((2, 0), np.int32)
    )
    return ids, weights, bias


def merge_weights(
    constants: Constants, found: list[tuple[np.ndarray, np.ndarray]], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Add the weights that reach the same id."""
    if not found:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    ids = np.concatenate([f[0] for f in found])
    weights = np.concatenate([f[1] for f in found])
    unique, group = np.unique(ids, return_inverse=True)
    if len(unique) == len(ids):
        return ids, weights
    return unique, constants.sums(group.ravel(), weights, len(unique), dtype)


def row_terms(ptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of all terms of the given rows, and for each the place of its row in `rows`."""
    counts = ptr[rows + 1] - ptr[rows]
    owner = np.repeat(np.arange(len(rows)), counts)
    first = np.repeat(ptr[rows] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return first + np.arange(len(owner)), owner


def live_scalars(pool: Pool, roots: np.ndarray, carried: np.ndarray) -> np.ndarray:
    """bool[size]: what the loss terms need. Values that loops carry count as needed, all of them."""
    live = carried.copy()
    live[roots] = True
    while True:
        before = int(live.sum())
        for block in reversed(pool.blocks):
            mask = live[block.start : block.stop]
            if not mask.any():
                continue
            if block.kind == ROW:
                ptr, cols, _ = block.csr
                terms, _ = row_terms(ptr, np.flatnonzero(mask))
                needed = [cols[terms]]
            elif block.kind == CALL:
                some = mask.reshape(-1, block.call.m).any(1)
                needed = [o[some] for o in block.operands]
            else:
                needed = [o if mask.all() else o[mask] for o in block.operands]
            for ids in needed:
                live[ids[ids >= 0]] = True
        if int(live.sum()) == before:
            return live
