"""Rules for sums over axes and products of arrays: reduce_sum, cumsum, dot_general, convolution.

In: ids of operands. Out: ids of rows (sums) and of products, in the scalar pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from gnewt.jaxprs import Instr, is_float, shape_of, size_of
from gnewt.jaxprs.compat import Aval, DType
from gnewt.jaxprs.indices import join_batch
from gnewt.jaxprs.moves import pad_axis
from gnewt.trace.constants import PLUS, Const
from gnewt.trace.elementwise_rules import multiply, product_op
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.rules import Opaque, rule

_MAX_PRODUCTS = 4_000_000
"""Products of two variable arrays larger than this become one dense family."""


def need_float(instr: Instr) -> None:
    if not is_float(instr.out_avals[0].dtype):
        raise Opaque("sums of integers that depend on the variables")


@rule("reduce_sum")
def _reduce_sum(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    terms = reduced_terms(lift, instr, ins[0])
    return [
        terms[..., 0]
        if terms.shape[-1] == 1
        else add_rows_without_zeros(lift, terms, instr.out_avals[0].dtype)
    ]


def reduced_terms(lift: Lifter, instr: Instr, value: Value) -> np.ndarray:
    """Bring what a reduction reduces to the last axis."""
    need_float(instr)
    ids = lift.ids(value)
    axes = [a + 1 for a in instr.params["axes"]]
    kept = [a for a in range(ids.ndim) if a not in axes]
    count = size_of(ids.shape[a] for a in axes)
    return ids.transpose(*kept, *axes).reshape(ids.shape[0], *shape_of(instr.out_avals[0]), count)


def add_rows_without_zeros(lift: Lifter, terms: np.ndarray, dtype: DType) -> np.ndarray:
    """Write Σ over the last axis, leaving out literal zeros (padding)."""
    zero = lift.constants.scalar(0, dtype)
    keep = terms != zero
    if keep.all():
        return lift.add_sum(terms, PLUS, dtype)
    flat = keep.reshape(-1, terms.shape[-1])
    ptr = np.concatenate([[0], np.cumsum(flat.sum(1))])
    cols = terms.reshape(-1, terms.shape[-1])[flat]
    return lift.add_rows(ptr, cols, np.zeros(len(cols), np.int32), terms.shape[:-1], dtype)


@rule("cumsum")
def _cumsum(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """A recurrence y_i = y_{i-1} + x_i: two terms each, never a triangle of terms."""
    need_float(instr)
    axis = instr.params["axis"] + 1
    ids = np.moveaxis(lift.ids(ins[0]), axis, 0)
    if instr.params["reverse"]:
        ids = ids[::-1]
    out = np.empty(ids.shape, np.int32)
    for i in range(len(ids)):
        terms = np.stack([out[i - 1], ids[i]], -1) if i else ids[i]
        out[i] = lift.add_sum(terms, PLUS, instr.out_avals[0].dtype) if i else terms
    if instr.params["reverse"]:
        out = out[::-1]
    return [np.moveaxis(out, 0, axis)]


@rule("dot_general")
def _dot_general(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    need_float(instr)
    (ca, cb), (ba, bb) = instr.params["dimension_numbers"]
    a, b = (
        _dot_operand(ins[0], instr.in_avals[0], ca, ba, lift),
        _dot_operand(ins[1], instr.in_avals[1], cb, bb, lift),
    )
    shape = shape_of(instr.out_avals[0])
    dtype = instr.out_avals[0].dtype
    # [lead, batch, i, j, contracted]
    left, right = join_batch([a[:, :, :, None, :], b[:, :, None, :, :]])
    size = (*left.shape[:2], left.shape[2], right.shape[3], left.shape[4])
    if isinstance(ins[0], Const) or isinstance(ins[1], Const):
        const, var = (left, right) if isinstance(ins[0], Const) else (right, left)
        known = next(v for v in ins if isinstance(v, Const))
        coefs = np.broadcast_to(const, size)
        cols = np.broadcast_to(var, size)
        nonzero = np.ones(size, bool)
        if known.value is not None:
            mask = lift.watch(known, "zeros")
            nums = _dot_array(
                mask,
                instr.in_avals[0 if known is ins[0] else 1],
                *((ca, ba) if known is ins[0] else (cb, bb)),
            )
            nums = nums[:, :, :, None, :] if known is ins[0] else nums[:, :, None, :, :]
            nonzero = np.broadcast_to(nums, size)
        return [_sparse_rows(lift, cols, coefs, nonzero, (size[0], *shape), dtype)]
    if size_of(size) > _MAX_PRODUCTS:
        raise Opaque("a product of two large variable matrices")
    products = multiply(
        lift, np.broadcast_to(left, size), np.broadcast_to(right, size), dtype, product_op(lift, dtype), instr
    )
    terms = products.reshape(size[0], *shape, size[-1])
    return [terms[..., 0] if size[-1] == 1 else add_rows_without_zeros(lift, terms, dtype)]


def _sparse_rows(
    lift: Lifter, cols: np.ndarray, coefs: np.ndarray, nonzero: np.ndarray, shape: Sequence[int], dtype: DType
) -> np.ndarray:
    """Rows Σ coef · col over the last axis, zeros dropped; constant columns are folded into products."""
    count = cols.shape[-1]
    zero = lift.constants.scalar(0, dtype)
    nonzero = nonzero & (cols != zero)
    flat = nonzero.reshape(-1, count)
    ptr = np.concatenate([[0], np.cumsum(flat.sum(1))])
    keep = flat.ravel()
    return lift.add_rows(ptr, cols.reshape(-1)[keep], coefs.reshape(-1)[keep], shape, dtype)


def _dot_operand(
    value: Value, aval: Aval, contract: Sequence[SupportsIndex], batch: Sequence[SupportsIndex], lift: Lifter
) -> np.ndarray:
    return _dot_array(lift.ids(value), aval, contract, batch)


def _dot_array(
    ids: np.ndarray, aval: Aval, contract: Sequence[SupportsIndex], batch: Sequence[SupportsIndex]
) -> np.ndarray:
    """Bring an operand to [lead, batch, free, contracted]."""
    shape = shape_of(aval)
    free = [d for d in range(len(shape)) if d not in contract and d not in batch]
    moved = ids.transpose(0, *[int(d) + 1 for d in (*batch, *free, *contract)])
    sizes = [size_of(shape[d] for d in dims) for dims in (batch, free, contract)]
    return moved.reshape(ids.shape[0], *sizes)


@rule("conv_general_dilated")
def _convolution(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """Patches on ids, then products or sparse rows."""
    need_float(instr)
    p = instr.params
    if p["batch_group_count"] != 1:
        raise Opaque("a convolution with batch groups")
    d = p["dimension_numbers"]
    dtype = instr.out_avals[0].dtype
    lhs = lift.ids(ins[0]).transpose(0, *[i + 1 for i in d.lhs_spec])
    rhs = lift.ids(ins[1]).transpose(0, *[i + 1 for i in d.rhs_spec])
    zero = lift.constants.scalar(0, dtype)
    spatial = lhs.ndim - 3
    for s in range(spatial):
        low, high = p["padding"][s]
        lhs = pad_axis(
            lhs, np.full(1, zero, np.int32), 3 + s, int(low), int(high), int(p["lhs_dilation"][s]) - 1
        )
    out_shape = shape_of(instr.out_avals[0])
    out_spatial = [out_shape[d.out_spec[2 + s]] for s in range(spatial)]
    kernel = rhs.shape[3:]
    index: list[slice | np.ndarray] = [slice(None)] * 3
    for s in range(spatial):
        # Places [out, kernel] along this axis, spread over its own pair of axes of the patches.
        at = (
            np.arange(out_spatial[s])[:, None] * p["window_strides"][s]
            + np.arange(kernel[s])[None, :] * p["rhs_dilation"][s]
        )
        form = [1] * (2 * spatial)
        form[s], form[spatial + s] = at.shape
        index.append(at.reshape(form))
    patches = lhs[tuple(index)]  # [lead, n, c, *out, *kernel]
    groups = p["feature_group_count"]
    lead, n, c = patches.shape[:3]
    outs = size_of(out_spatial)
    taps = size_of(kernel)
    patches = patches.reshape(lead, n, groups, c // groups, outs, taps).transpose(0, 1, 2, 4, 3, 5)
    patches = patches.reshape(lead, n, groups, 1, outs, (c // groups) * taps)
    o = rhs.shape[1]
    weights = rhs.reshape(rhs.shape[0], 1, groups, o // groups, 1, (c // groups) * taps)
    patches, weights = join_batch([patches, weights])
    size = np.broadcast_shapes(patches.shape, weights.shape)
    cols, coefs = np.broadcast_to(patches, size), np.broadcast_to(weights, size)
    shape = (size[0], n, o, *out_spatial)
    if isinstance(ins[1], Const):
        nonzero = np.ones(size, bool)
        if ins[1].value is not None:
            mask = lift.watch(ins[1], "zeros").transpose(0, *[i + 1 for i in d.rhs_spec])
            nonzero = np.broadcast_to(mask.reshape(mask.shape[0], *weights.shape[1:]), size)
        out = _sparse_rows(lift, cols, coefs, nonzero, shape, dtype)
    else:
        if size_of(size) > _MAX_PRODUCTS:
            raise Opaque("a convolution of two large variable arrays")
        products = multiply(lift, cols, coefs, dtype, product_op(lift, dtype), instr)
        out = add_rows_without_zeros(lift, products.reshape(*shape, size[-1]), dtype)
    back = np.argsort(d.out_spec)
    return [out.transpose(0, *[int(i) + 1 for i in back])]
