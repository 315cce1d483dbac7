"""Rules for cumulative operations: cumprod, cumlogsumexp as recurrences, cummax and cummin as JAX takes them.

In: ids of operands. Out: ids. y_i = y_{i-1} ∘ x_i: each result has two operands, and all are written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Instr
from gnewt.trace.elementwise_rules import fold_or_write, multiply, product_op
from gnewt.trace.lift import Context, Lifter, Value
from gnewt.trace.loop_carries import MOMENTS
from gnewt.trace.rules import rule
from gnewt.trace.sum_rules import need_float
from gnewt.trace.template import Op


def _ordered(lift: Lifter, instr: Instr, value: Value) -> np.ndarray:
    """Ids with the axis first, in the order in which values are taken together."""
    need_float(instr)
    ids = np.moveaxis(lift.ids(value), instr.params["axis"] + 1, 0)
    return ids[::-1] if instr.params["reverse"] else ids


def _back(instr: Instr, ids: np.ndarray) -> np.ndarray:
    return np.moveaxis(ids[::-1] if instr.params["reverse"] else ids, 0, instr.params["axis"] + 1)


@rule("cumprod")
def _cumprod(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    dtype = instr.out_avals[0].dtype
    op = product_op(lift, dtype)

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return multiply(lift, a, b, dtype, op, instr)

    return [_back(instr, _recur(lift, instr, _ordered(lift, instr, ins[0]), op, combine))]


@rule("cumlogsumexp")
def _cumlogsumexp(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    op = _operation(lift, instr, jnp.logaddexp, "all")
    ids = _ordered(lift, instr, ins[0])
    return [_back(instr, _recur(lift, instr, ids, op, _writer(lift, instr, op)))]


@rule("cummax", "cummin")
def _cummax(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """JAX shares the derivative among equal values as its tree of maxima does: the same tree here."""
    op = _operation(lift, instr, jax.lax.max if instr.prim == "cummax" else jax.lax.min, "none")
    write = _writer(lift, instr, op)

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # The leading axis of a block is that of loop iterations.
        return np.moveaxis(write(*(np.ascontiguousarray(np.moveaxis(v, 1, 0)) for v in (a, b))), 0, 1)

    def scan(ids: np.ndarray) -> np.ndarray:
        if len(ids) < 2:
            return ids
        odd = scan(combine(ids[:-1:2], ids[1::2]))
        out = np.empty(ids.shape, np.int32)
        out[0], out[1::2] = ids[0], odd
        if len(ids) > 2:
            out[2::2] = combine(odd[: len(ids[2::2])], ids[2::2])
        return out

    return [_back(instr, scan(_ordered(lift, instr, ins[0])))]


def _operation(lift: Lifter, instr: Instr, fn: Callable, curved: str) -> Op:
    key = (instr.prim, np.dtype(instr.out_avals[0].dtype))

    def apply(values: Sequence[jax.Array]) -> jax.Array:
        return fn(*values)

    if key not in lift.ops:
        lift.ops[key] = Op(key, instr.prim, apply, None, "all" if curved == "all" else "none")
    return lift.ops[key]


def _writer(lift: Lifter, instr: Instr, op: Op) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    dtype = instr.out_avals[0].dtype

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return fold_or_write(lift, instr, [a, b], op, lambda rest: lift.add_op(op, rest, dtype))

    return combine


def _recur(
    lift: Lifter,
    instr: Instr,
    ids: np.ndarray,
    op: Op,
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """y_0 = x_0, y_i = op(y_{i-1}, x_i) over the first axis of ids [n, lead, ...]."""
    dtype = instr.out_avals[0].dtype
    if len(ids) < 2:
        return ids
    if (ids < 0).any():
        # Constants among the values: one by one, so that what is constant stays constant.
        out = [ids[0]]
        for x in ids[1:]:
            out.append(lift.hold(combine(out[-1], x), dtype))
        return np.stack(out)
    x = np.moveaxis(ids, 0, 1)  # [lead, n, ...]
    lead, steps = x.shape[0], x.shape[1] - 1
    later = lift.add_carries((lead, steps - 1, *x.shape[2:]), dtype)
    before = np.concatenate([x[:, :1], later], 1)
    outer = lift.ctx
    start = (outer.keys if lead == outer.batch else outer.keys[:1]) + outer.offset
    keys = (start[:, None] + 1 + np.arange(steps) * MOMENTS).ravel()
    outer.offset += steps * MOMENTS + 1
    lift.ctx = Context(lead * steps, keys)
    shape = (lead * steps, *x.shape[2:])
    y = lift.add_op(op, [before.reshape(shape), x[:, 1:].reshape(shape)], dtype).reshape(before.shape)
    lift.ctx = outer
    lift.pool.alias.append((later, y[:, :-1]))
    return np.moveaxis(np.concatenate([x[:, :1], y], 1), 1, 0)
