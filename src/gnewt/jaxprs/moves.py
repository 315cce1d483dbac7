"""Moves: equations that move data, on any NumPy array: ids of scalars, node numbers, or values.

Each function maps arrays with a leading batch axis (length 1 or B) to one array for each output of the equation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from gnewt.jaxprs.indices import join_batch
from gnewt.jaxprs.program import Instr, shape_of

Move: TypeAlias = Callable[..., list[np.ndarray]]
"""(equation, *operands) ↦ one array for each output."""


def copy(instr: Instr, *arrays: np.ndarray) -> list[np.ndarray]:
    return list(arrays)


def reshape(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    return [array.reshape(array.shape[0], *shape_of(instr.out_avals[0]))]


def transpose(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    return [array.transpose(0, *[p + 1 for p in instr.params["permutation"]])]


def reverse(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    return [np.flip(array, tuple(d + 1 for d in instr.params["dimensions"]))]


def cut(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    p = instr.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return [array[(slice(None), *(slice(*b) for b in bounds))]]


def broadcast(instr: Instr, array: np.ndarray, *sizes: np.ndarray) -> list[np.ndarray]:
    shape, dims = shape_of(instr.out_avals[0]), instr.params["broadcast_dimensions"]
    expanded = [1] * len(shape)
    for axis, dim in enumerate(dims):
        expanded[dim] = array.shape[axis + 1]
    array = array.transpose(0, *[int(axis) + 1 for axis in np.argsort(dims)])
    return [np.broadcast_to(array.reshape(array.shape[0], *expanded), (array.shape[0], *shape))]


def concatenate(instr: Instr, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.concatenate(join_batch(arrays), instr.params["dimension"] + 1)]


def stack(instr: Instr, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.stack(join_batch(arrays), instr.params["axis"] + 1)]


def split(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    return np.split(array, np.cumsum(instr.params["sizes"])[:-1], axis=instr.params["axis"] + 1)


def unstack(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    return list(np.moveaxis(array, instr.params["axis"] + 1, 0))


def tile(instr: Instr, array: np.ndarray) -> list[np.ndarray]:
    return [np.tile(array, (1, *instr.params["reps"]))]


def pad(instr: Instr, array: np.ndarray, value: np.ndarray) -> list[np.ndarray]:
    array, value = join_batch([array, value])
    for axis, (low, high, inner) in enumerate(instr.params["padding_config"]):
        array = pad_axis(array, value, axis + 1, int(low), int(high), int(inner))
    return [array]


def pad_axis(array: np.ndarray, value: np.ndarray, axis: int, low: int, high: int, inner: int) -> np.ndarray:
    """Put `low` and `high` places around one axis, and `inner` between its entries; negative ones cut off."""
    n = array.shape[axis]
    size = low + high + n + inner * max(n - 1, 0)
    shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
    out = np.array(np.broadcast_to(value.reshape(-1, *[1] * (array.ndim - 1)), shape))
    at = low + np.arange(n) * (inner + 1)
    keep = (at >= 0) & (at < size)
    before: Sequence[slice] = (slice(None),) * axis
    out[(*before, at[keep])] = array[(*before, np.flatnonzero(keep))]
    return out
