"""Index maps: where gather, scatter and dynamic slices read and write, as positions in the flattened operand.

In: an equation and its known indices, with a leading batch axis (length 1 or B). Out: integer arrays [1 | B, ...] of
positions, -1 for a place that is filled or dropped. `take_flat` and `replace_at` apply them to any NumPy array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from gnewt.jaxprs.program import Instr, shape_of, size_of


def join_batch(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Give all arrays the same leading axis."""
    batch = max(a.shape[0] for a in arrays)
    return [np.broadcast_to(a, (batch, *a.shape[1:])) for a in arrays]


def take_flat(array: np.ndarray, index: np.ndarray, filler: np.ndarray | int | None = None) -> np.ndarray:
    """Gather from the flattened operand; index [1 | B, *out] holds positions, -1 where `filler` goes."""
    flat = array.reshape(array.shape[0], -1)
    if index.shape[0] == 1:
        out = flat[:, index[0].ravel()].reshape(flat.shape[0], *index.shape[1:])
    else:
        rows = np.arange(index.shape[0])[:, None] if flat.shape[0] > 1 else 0
        out = flat[rows, index.reshape(index.shape[0], -1)].reshape(index.shape)
    if filler is None or not (index < 0).any():
        return out
    return np.where(index < 0, filler, out).astype(array.dtype)


def replace_at(array: np.ndarray, index: np.ndarray, update: np.ndarray) -> np.ndarray:
    """Write updates at flat positions (-1: dropped); a later update wins."""
    array, index, update = join_batch([array, index, update])
    out = np.array(array.reshape(array.shape[0], -1))
    flat, values = index.reshape(index.shape[0], -1), update.reshape(update.shape[0], -1)
    batch, place = np.nonzero(flat >= 0)
    out[batch, flat[batch, place]] = values[batch, place]
    return out.reshape(array.shape)


def dynamic_slice_index(instr: Instr, starts: Sequence[np.ndarray]) -> np.ndarray:
    """Index map of dynamic_slice and dynamic_update_slice: starts are clamped into range."""
    shape = shape_of(instr.in_avals[0])
    sizes = instr.params.get("slice_sizes") or shape_of(instr.in_avals[1])
    batch = max([s.shape[0] for s in starts], default=1)
    index = np.zeros((batch, *[1] * len(sizes)), np.int64)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        first = np.clip(start.reshape(-1).astype(np.int64), 0, shape[axis] - size)
        where = [1] * len(sizes)
        where[axis] = size
        line = first.reshape(-1, *[1] * len(sizes)) + np.arange(size).reshape(1, *where)
        index = index + size_of(shape[axis + 1 :]) * line
    return index


def gather_index(instr: Instr, indices: np.ndarray) -> np.ndarray:
    """Index map of gather; -1 where an out-of-bounds place is filled."""
    d = instr.params["dimension_numbers"]
    sizes = tuple(instr.params["slice_sizes"])
    rank = len(sizes)
    kept = [a for a in range(rank) if a not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
    # XLA clamps what JAX promises to be in bounds.
    clip = "fill" not in str(instr.params["mode"]).lower()
    index = _windows(instr, indices, d.start_index_map, sizes, kept, clip)
    return _in_order(index, d.offset_dims, len(instr.out_avals[0].shape))


def scatter_index(instr: Instr, indices: np.ndarray) -> np.ndarray:
    """Operand position of every update, in the shape of the updates; -1 where it is dropped."""
    d = instr.params["dimension_numbers"]
    rank, updates = len(instr.in_avals[0].shape), shape_of(instr.in_avals[2])
    inserted = (*d.inserted_window_dims, *getattr(d, "operand_batching_dims", ()))
    kept = [a for a in range(rank) if a not in inserted]
    sizes = [1] * rank
    for axis, dim in zip(kept, d.update_window_dims, strict=True):
        sizes[axis] = updates[dim]
    clip = "clip" in str(instr.params["mode"]).lower()
    index = _windows(instr, indices, d.scatter_dims_to_operand_dims, tuple(sizes), kept, clip)
    return _in_order(index, d.update_window_dims, len(updates))


def _windows(
    instr: Instr,
    indices: np.ndarray,
    index_map: Sequence[SupportsIndex],
    sizes: tuple[int, ...],
    kept: list[int],
    clip: bool,
) -> np.ndarray:
    """Positions [B, *batch dims, *window dims] of all windows; those out of bounds are moved inside, or -1."""
    shape, numbers = shape_of(instr.in_avals[0]), instr.params["dimension_numbers"]
    starts, valid = _start_positions(indices, numbers, shape, sizes, index_map, clip)
    inner = np.arange(size_of(shape)).reshape(shape)[tuple(slice(0, s) for s in sizes)]
    inner = inner.reshape([sizes[a] for a in kept])
    index = starts.reshape(starts.shape + (1,) * inner.ndim) + inner
    return np.where(valid.reshape(valid.shape + (1,) * inner.ndim), index, -1)


def _in_order(index: np.ndarray, window_dims: Sequence[SupportsIndex], rank: int) -> np.ndarray:
    """Bring [B, *batch dims, *window dims] to the order in which the array has them."""
    batch_dims = [i for i in range(rank) if i not in window_dims]
    order = {dim: 1 + i for i, dim in enumerate((*batch_dims, *window_dims))}
    return index.transpose(0, *[order[i] for i in range(rank)])


def _start_positions(
    indices: np.ndarray,
    numbers: Any,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    index_map: Sequence[SupportsIndex],
    clip: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Flat position of every window's first element, and whether the window is in bounds. [B, *batch dims]."""
    strides = [size_of(shape[a + 1 :]) for a in range(len(shape))]
    first = np.zeros(indices.shape[:-1], np.int64)
    valid = np.ones(indices.shape[:-1], bool)
    for j, axis in enumerate(index_map):
        at = indices[..., j].astype(np.int64)
        top = shape[axis] - sizes[axis]
        if not clip:
            valid &= (at >= 0) & (at <= top)
        first += strides[axis] * np.clip(at, 0, max(top, 0))
    operand_dims = getattr(numbers, "operand_batching_dims", ())
    # Gather and scatter name the batching dimensions of their indices differently.
    scatter_dims = getattr(numbers, "scatter_indices_batching_dims", ())
    index_dims = getattr(numbers, "start_indices_batching_dims", scatter_dims)
    for axis, dim in zip(operand_dims, index_dims, strict=True):
        line = np.arange(shape[axis]).reshape([-1 if i == dim + 1 else 1 for i in range(first.ndim)])
        first = first + strides[axis] * line
    return first, valid


def gather_filler(instr: Instr) -> float | int | bool:
    """The value of an out-of-bounds place."""
    value = instr.params.get("fill_value")
    dtype = np.dtype(instr.out_avals[0].dtype)
    if value is not None:
        return value
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return np.nan
