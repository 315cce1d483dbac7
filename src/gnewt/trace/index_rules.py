"""Rules for gather, scatter and dynamic slices whose indices are known. In and out: ids; index maps say which."""

from __future__ import annotations

import numpy as np

from gnewt.jaxprs import Instr, is_float, size_of
from gnewt.jaxprs.indices import (
    gather_filler,
    gather_index,
    join_batch,
    replace_at,
    scatter_index,
    take_flat,
)
from gnewt.jaxprs.primitives import primitive
from gnewt.trace.constants import MINUS, PLUS
from gnewt.trace.elementwise_rules import multiply, product_op
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.rules import Opaque, rule


@rule("gather")
def _gather(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    index = gather_index(instr, lift.watch(ins[1]))
    dtype = instr.out_avals[0].dtype
    filler = lift.constants.scalar(gather_filler(instr), dtype) if (index < 0).any() else None
    return [take_flat(lift.ids(ins[0]), index, filler)]


@rule("dynamic_slice", "dynamic_update_slice", "scatter")
def _move_indexed(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """What the table does to constants, on ids."""
    what = primitive(instr.prim)
    indices = range(len(ins))[what.index_places]
    operands = [lift.watch(v) if i in indices else lift.ids(v) for i, v in enumerate(ins)]
    assert what.fold is not None
    return [what.fold(instr, *operands)]


@rule("scatter-add", "scatter-sub")
def _scatter_add(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if not is_float(instr.out_avals[0].dtype):
        raise Opaque("scatter-add of integers that depend on the variables")
    array, index, update = join_batch(
        [lift.ids(ins[0]), scatter_index(instr, lift.watch(ins[1])), lift.ids(ins[2])]
    )
    batch, size = array.shape[0], size_of(array.shape[1:])
    out = np.array(array.reshape(-1))
    row, at = np.nonzero(index.reshape(batch, -1) >= 0)
    target = row * size + index.reshape(batch, -1)[row, at]
    terms = update.reshape(batch, -1)[row, at]
    hit, local = np.unique(target, return_inverse=True)
    if not hit.size:
        return [array]
    zero = lift.constants.scalar(0, instr.out_avals[0].dtype)
    # One row per place hit: the old value first (unless it is a literal zero), then the updates in order.
    keep = out[hit] != zero
    rows = np.concatenate([np.flatnonzero(keep), local.ravel()])
    sign = PLUS if "sub" not in instr.prim else MINUS
    cols = np.concatenate([out[hit][keep], terms])
    coefs = np.concatenate([np.zeros(keep.sum(), np.int32), np.full(len(terms), sign, np.int32)])
    out[hit] = lift.add_grouped(rows, cols, coefs, len(hit), instr.out_avals[0].dtype, hit // size)
    return [out.reshape(array.shape)]


@rule("scatter-mul")
def _scatter_mul(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    index = scatter_index(instr, lift.watch(ins[1]))
    flat = index.reshape(index.shape[0], -1)
    ordered = np.sort(flat, 1)
    if (
        not is_float(instr.out_avals[0].dtype)
        or ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any()
    ):
        raise Opaque("scatter-mul with repeated indices")
    array, index, update = join_batch([lift.ids(ins[0]), index, lift.ids(ins[2])])
    old = take_flat(array, np.maximum(index, 0))
    dtype = instr.out_avals[0].dtype
    new = multiply(lift, old, np.ascontiguousarray(update), dtype, product_op(lift, dtype), instr)
    return [replace_at(array, index, new)]
