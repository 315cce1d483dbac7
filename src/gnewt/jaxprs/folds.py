"""Folds: primitives on known values, in NumPy. Eager JAX would compile each new operation and shape.

Functions of (equation, *values); values have a leading batch axis (length 1 or B).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from gnewt.jaxprs import indices
from gnewt.jaxprs.program import Instr, size_of


def choose(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """select_n."""
    number = np.asarray(which).astype(np.int64)
    out = np.broadcast_to(cases[0], np.broadcast_shapes(number.shape, *[np.shape(c) for c in cases]))
    for i, case in enumerate(cases[1:], 1):
        out = np.where(number == i, case, out)
    return out


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """div: integers are truncated towards zero, as by XLA."""
    if x.dtype.kind not in "iu":
        return x / y
    y = np.where(y == 0, 1, y)
    down = x // y
    return down + ((down * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)


def clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def polynomial(x: np.ndarray, *coefficients: np.ndarray) -> np.ndarray:
    """Horner's rule; coefficients begin with the constant one."""
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return np.broadcast_to(total, np.broadcast_shapes(np.shape(total), np.shape(x)))


def integer_pow(instr: Instr, x: np.ndarray) -> np.ndarray:
    y = instr.params["y"]
    return x**y if y >= 0 else 1 / x ** (-y)


def convert(instr: Instr, x: np.ndarray) -> np.ndarray:
    dtype = np.dtype(instr.params["new_dtype"])
    return (np.real(x) if x.dtype.kind == "c" and dtype.kind != "c" else x).astype(dtype)


def bitcast(instr: Instr, x: np.ndarray) -> np.ndarray:
    """bitcast_convert_type, between types of one width or of others."""
    shape = (x.shape[0], *instr.out_avals[0].shape)
    return np.ascontiguousarray(x).reshape(-1).view(instr.params["new_dtype"]).reshape(shape)


def iota(instr: Instr) -> np.ndarray:
    shape, dim = instr.params["shape"], instr.params["dimension"]
    line = np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return np.broadcast_to(line, shape)[None].astype(instr.params["dtype"])


def reduce(function: np.ufunc, instr: Instr, x: np.ndarray) -> np.ndarray:
    """Reduce over the axes of the equation."""
    return function.reduce(x, axis=tuple(a + 1 for a in instr.params["axes"]), dtype=x.dtype)


def dot(instr: Instr, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """dot_general as a product of matrices."""
    (left, right), (batch_left, batch_right) = instr.params["dimension_numbers"]
    aval = instr.out_avals[0]
    # NumPy has no products of the machine-learning types.
    dtype = np.dtype(np.float32) if np.dtype(aval.dtype).kind == "V" else aval.dtype

    def rows(x: np.ndarray, batch: Sequence[SupportsIndex], contract: Sequence[SupportsIndex]) -> np.ndarray:
        """Bring an operand to [B, groups, free, contracted]."""
        groups, inner = [int(i) + 1 for i in batch], [int(i) + 1 for i in contract]
        free = [i for i in range(1, x.ndim) if i not in (*groups, *inner)]
        sizes = [size_of(x.shape[i] for i in axes) for axes in (groups, free, inner)]
        return x.transpose(0, *groups, *free, *inner).reshape(x.shape[0], *sizes).astype(dtype)

    found = rows(a, batch_left, left) @ rows(b, batch_right, right).swapaxes(-1, -2)
    return found.reshape(found.shape[0], *aval.shape).astype(aval.dtype)


def accumulate(function: np.ufunc, instr: Instr, x: np.ndarray) -> np.ndarray:
    """cumsum, cumprod, cummax, cummin."""
    axis = instr.params["axis"] + 1
    if instr.params["reverse"]:
        return np.flip(function.accumulate(np.flip(x, axis), axis, dtype=x.dtype), axis)
    return function.accumulate(x, axis, dtype=x.dtype)


def scatter_with(
    function: np.ufunc, instr: Instr, array: np.ndarray, index: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    """scatter-add, scatter-mul, scatter-sub."""
    array, places, updates = indices.join_batch([array, indices.scatter_index(instr, index), updates])
    lead = len(array)
    out = np.array(array).reshape(lead, -1)
    for row, at, new in zip(out, places.reshape(lead, -1), updates.reshape(lead, -1), strict=True):
        function.at(row, at[at >= 0], new[at >= 0])
    return out.reshape(array.shape)


def gather(instr: Instr, array: np.ndarray, index: np.ndarray) -> np.ndarray:
    places = indices.gather_index(instr, index)
    filler = np.asarray(indices.gather_filler(instr), array.dtype) if (places < 0).any() else None
    return indices.take_flat(array, places, filler)


def dynamic_slice(instr: Instr, array: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    return indices.take_flat(array, indices.dynamic_slice_index(instr, starts))


def dynamic_update_slice(
    instr: Instr, array: np.ndarray, update: np.ndarray, *starts: np.ndarray
) -> np.ndarray:
    return indices.replace_at(array, indices.dynamic_slice_index(instr, starts), update)


def scatter(instr: Instr, array: np.ndarray, index: np.ndarray, update: np.ndarray) -> np.ndarray:
    return indices.replace_at(array, indices.scatter_index(instr, index), update)
