"""Data movement: NumPy on arrays of ids (or of constant values). No slots are made.

Each function maps arrays with a leading batch axis (length 1 or B) to the moved array. Operations with
constant indices go through *flat index maps*: positions in the flattened operand, -1 for a filled place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnewt.jaxprs import Instr, shape_of
from gnewt.trace.rules import Opaque, move

Fill = Any
"""Called as fill(value, dtype): what stands for a literal in the array being moved."""


def take_flat(array: np.ndarray, index: np.ndarray, fill: Any = None) -> np.ndarray:
    """Gather from the flattened operand; index [1 | B, *out] holds positions, -1 where `fill` goes."""
    flat = array.reshape(array.shape[0], -1)
    if index.shape[0] == 1:
        out = flat[:, index[0].ravel()].reshape(flat.shape[0], *index.shape[1:])
    else:
        rows = np.arange(index.shape[0])[:, None] if flat.shape[0] > 1 else 0
        out = flat[rows, index.reshape(index.shape[0], -1)].reshape(index.shape)
    return (
        out if fill is None or not (index < 0).any() else np.where(index < 0, fill, out).astype(array.dtype)
    )


def positions(shape: tuple[int, ...]) -> np.ndarray:
    """Return the flat positions 0..size-1 in the given shape."""
    return np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)


@move("copy", "copy_p", "optimization_barrier", "reduce_precision_none")
def _copy(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    return array


@move("reshape")
def _reshape(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0], *shape_of(instr.out_avals[0]))


@move("squeeze", "expand_dims")
def _squeeze(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0], *shape_of(instr.out_avals[0]))


@move("transpose")
def _transpose(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    return array.transpose(0, *[p + 1 for p in instr.params["permutation"]])


@move("rev")
def _rev(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    return np.flip(array, tuple(d + 1 for d in instr.params["dimensions"]))


@move("slice")
def _slice(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    p = instr.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    index = tuple(
        slice(a, b, s) for a, b, s in zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    )
    return array[(slice(None), *index)]


@move("broadcast_in_dim")
def _broadcast(instr: Instr, fill: Fill, array: np.ndarray, *dyn: Any) -> np.ndarray:
    shape = instr.params["shape"]
    expanded = [1] * len(shape)
    for axis, dim in enumerate(instr.params["broadcast_dimensions"]):
        expanded[dim] = array.shape[axis + 1]
    return np.broadcast_to(array.reshape(array.shape[0], *expanded), (array.shape[0], *shape))


def join_batch(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Give all arrays the same leading axis."""
    batch = max(a.shape[0] for a in arrays)
    return [np.broadcast_to(a, (batch, *a.shape[1:])) for a in arrays]


@move("concatenate")
def _concatenate(instr: Instr, fill: Fill, *arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(join_batch(list(arrays)), instr.params["dimension"] + 1)


@move("stack")
def _stack(instr: Instr, fill: Fill, *arrays: np.ndarray) -> np.ndarray:
    return np.stack(join_batch(list(arrays)), instr.params["axis"] + 1)


@move("split")
def _split(instr: Instr, fill: Fill, array: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(instr.params["sizes"])[:-1]
    return np.split(array, ends, axis=instr.params["axis"] + 1)


@move("unstack")
def _unstack(instr: Instr, fill: Fill, array: np.ndarray) -> list[np.ndarray]:
    return list(np.moveaxis(array, instr.params["axis"] + 1, 0))


@move("tile")
def _tile(instr: Instr, fill: Fill, array: np.ndarray) -> np.ndarray:
    return np.tile(array, (1, *instr.params["reps"]))


@move("pad")
def _pad(instr: Instr, fill: Fill, array: np.ndarray, value: np.ndarray) -> np.ndarray:
    array, value = join_batch([array, value])
    config = instr.params["padding_config"]
    out = array
    for axis, (low, high, interior) in enumerate(config):
        out = _pad_axis(out, value, axis + 1, int(low), int(high), int(interior))
    return out


def _pad_axis(array: np.ndarray, value: np.ndarray, axis: int, low: int, high: int, inner: int) -> np.ndarray:
    n = array.shape[axis]
    size = low + high + n + inner * max(n - 1, 0)
    shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
    out = np.array(np.broadcast_to(value.reshape(-1, *[1] * (array.ndim - 1)), shape))
    at = low + np.arange(n) * (inner + 1)
    keep = (at >= 0) & (at < size)
    index = [slice(None)] * array.ndim
    source = list(index)
    index[axis], source[axis] = at[keep], np.flatnonzero(keep)  # type: ignore[call-overload]
    out[tuple(index)] = array[tuple(source)]
    return out


# Constant indices


def dynamic_slice_index(instr: Instr, starts: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Flat index map of dynamic_slice and dynamic_update_slice: starts are clamped into range."""
    sizes = instr.params.get("slice_sizes") or shape_of(instr.in_avals[1])
    batch = max([s.shape[0] for s in starts], default=1)
    index = np.zeros((batch, *[1] * len(sizes)), np.int64)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        first = np.clip(start.reshape(-1).astype(np.int64), 0, shape[axis] - size)
        where = [1] * len(sizes)
        where[axis] = size
        stride = int(np.prod(shape[axis + 1 :], dtype=np.int64))
        line = first.reshape(-1, *[1] * len(sizes)) + np.arange(size).reshape(1, *where)
        index = index + stride * line
    return index


def gather_index(instr: Instr, indices: np.ndarray) -> np.ndarray:
    """Flat index map of gather; -1 where an out-of-bounds place is filled."""
    p = instr.params
    d = p["dimension_numbers"]
    shape, sizes = shape_of(instr.in_avals[0]), tuple(p["slice_sizes"])
    out_shape = shape_of(instr.out_avals[0])
    batch_dims = [i for i in range(len(out_shape)) if i not in d.offset_dims]
    starts, valid = _start_positions(indices, d, shape, sizes, d.start_index_map, str(p["mode"]))
    kept = [a for a in range(len(shape)) if a not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
    inner = positions(shape)[tuple(slice(0, s) for s in sizes)]
    inner = inner.transpose(*kept, *[a for a in range(len(shape)) if a not in kept])
    inner = inner.reshape([sizes[a] for a in kept])
    # Positions [batch, batch dims, offset dims], then to the order of the output.
    index = starts.reshape(starts.shape + (1,) * inner.ndim) + inner
    index = np.where(valid.reshape(valid.shape + (1,) * inner.ndim), index, -1)
    order = {dim: 1 + i for i, dim in enumerate(batch_dims)}
    order |= {dim: 1 + len(batch_dims) + i for i, dim in enumerate(d.offset_dims)}
    return index.transpose(0, *[order[i] for i in range(len(out_shape))])


def _start_positions(
    indices: np.ndarray, d: Any, shape: tuple[int, ...], sizes: tuple[int, ...], index_map: Any, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """Flat position of every slice's first element, and whether the slice is in bounds. [B, *batch dims]."""
    strides = [int(np.prod(shape[a + 1 :], dtype=np.int64)) for a in range(len(shape))]
    first = np.zeros(indices.shape[:-1], np.int64)
    valid = np.ones(indices.shape[:-1], bool)
    clip = "CLIP" in mode or "clip" in mode
    for j, axis in enumerate(index_map):
        at = indices[..., j].astype(np.int64)
        top = shape[axis] - sizes[axis]
        if not clip:
            valid &= (at >= 0) & (at <= top)
        first += strides[axis] * np.clip(at, 0, max(top, 0))
    operand_dims = getattr(d, "operand_batching_dims", ())
    index_dims = getattr(d, "start_indices_batching_dims", getattr(d, "scatter_indices_batching_dims", ()))
    for axis, dim in zip(operand_dims, index_dims, strict=True):
        line = np.arange(shape[axis]).reshape([-1 if i == dim + 1 else 1 for i in range(first.ndim)])
        first = first + strides[axis] * line
    return first, valid


def scatter_index(instr: Instr, indices: np.ndarray) -> np.ndarray:
    """Flat operand position of every update, in the shape of the updates; -1 where it is dropped."""
    p = instr.params
    d = p["dimension_numbers"]
    shape, upd_shape = shape_of(instr.in_avals[0]), shape_of(instr.in_avals[2])
    inserted = (*d.inserted_window_dims, *getattr(d, "operand_batching_dims", ()))
    window = [a for a in range(len(shape)) if a not in inserted]
    sizes = [1] * len(shape)
    for axis, dim in zip(window, d.update_window_dims, strict=True):
        sizes[axis] = upd_shape[dim]
    index_map = d.scatter_dims_to_operand_dims
    starts, valid = _start_positions(indices, d, shape, tuple(sizes), index_map, str(p["mode"]))
    inner = positions(shape)[tuple(slice(0, s) for s in sizes)].reshape([sizes[a] for a in window])
    index = starts.reshape(starts.shape + (1,) * inner.ndim) + inner
    index = np.where(valid.reshape(valid.shape + (1,) * inner.ndim), index, -1)
    scatter_dims = [i for i in range(len(upd_shape)) if i not in d.update_window_dims]
    order = {dim: 1 + i for i, dim in enumerate(scatter_dims)}
    order |= {dim: 1 + len(scatter_dims) + i for i, dim in enumerate(d.update_window_dims)}
    return index.transpose(0, *[order[i] for i in range(len(upd_shape))])


def gather_fill(instr: Instr) -> Any:
    """The value of an out-of-bounds place."""
    value = instr.params.get("fill_value")
    dtype = np.dtype(instr.out_avals[0].dtype)
    if value is not None:
        return value
    if dtype.kind == "f":
        return np.nan
    return np.iinfo(dtype).min if dtype.kind == "i" else True if dtype.kind == "b" else np.iinfo(dtype).max


def replace_at(array: np.ndarray, index: np.ndarray, update: np.ndarray) -> np.ndarray:
    """Write updates at flat positions (-1: dropped); a later update wins."""
    array, index, update = join_batch([array, index, update])
    out = np.array(array.reshape(array.shape[0], -1))
    flat, values = index.reshape(index.shape[0], -1), update.reshape(update.shape[0], -1)
    batch, place = np.nonzero(flat >= 0)
    out[batch, flat[batch, place]] = values[batch, place]
    return out.reshape(array.shape)


def check_unbatched(*arrays: np.ndarray) -> None:
    """Refuse what a rule cannot do over a batch."""
    if any(a.shape[0] > 1 for a in arrays):
        raise Opaque("indices that vary over the iterations of a loop")
