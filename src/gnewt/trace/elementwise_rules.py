"""Rules for elementwise primitives: affine ones become rows of the scalar pool, the others operations of templates."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Instr, bind_scalars, is_float, shape_of
from gnewt.jaxprs.compat import DType
from gnewt.jaxprs.primitives import PRIMITIVES, fold_elementwise, primitive
from gnewt.trace.constants import MINUS, PLUS, Const, Known
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.rules import Opaque, rule
from gnewt.trace.template import Op


def make_op(lift: Lifter, instr: Instr) -> Op:
    """Return the template operation of an elementwise equation."""
    types = tuple(np.dtype(a.dtype) for a in instr.in_avals)
    key = (instr.key, types)
    if key not in lift.ops:
        name = instr.prim
        known = primitive(name)
        active, curved = tuple(is_float(t) for t in types), known.curvature
        if known.flat or not is_float(instr.out_avals[0].dtype):
            active, curved = (False,) * len(types), "none"
        lift.ops[key] = Op(key, name, lambda args: bind_scalars(instr, args), active, curved)
    return lift.ops[key]


def elementwise(lift: Lifter, instr: Instr, ins: list[Value], op: Op | None = None) -> list[Value]:
    """Write the equation at every place; places where all operands are constant stay constant."""
    aval = instr.out_avals[0]
    operands = lift.align(ins, shape_of(aval))
    op = make_op(lift, instr) if op is None else op
    if not np.logical_and.reduce([o < 0 for o in operands]).any():
        return [lift.add_op(op, operands, aval.dtype)]
    return [fold_or_write(lift, instr, operands, op, lambda rest: lift.add_op(op, rest, aval.dtype))]


def fold_or_write(
    lift: Lifter,
    instr: Instr,
    operands: list[np.ndarray],
    op: Op,
    write: Callable[[list[np.ndarray]], np.ndarray],
) -> np.ndarray:
    """Fold the places where all operands are constant; write the others."""
    constant = np.logical_and.reduce([o < 0 for o in operands])
    out = np.empty(constant.shape, np.int32)
    if constant.any():
        out[constant] = fold_places(lift, instr, [o[constant] for o in operands], op)
    if not constant.all():
        _write_at(lift, out, ~constant, lambda: write([o[~constant] for o in operands]))
    return out


def _write_at(lift: Lifter, out: np.ndarray, places: np.ndarray, write: Callable[[], np.ndarray]) -> None:
    """Write a block whose places lie irregularly in the batch: each has its own time."""
    saved = lift.ctx.keys, lift.ctx.batch
    keys = lift.ctx.keys[: out.shape[0]].reshape(-1, *[1] * (out.ndim - 1))
    lift.ctx.keys = np.broadcast_to(keys, out.shape)[places]
    lift.ctx.batch = len(lift.ctx.keys)
    out[places] = write()
    lift.ctx.keys, lift.ctx.batch = saved


def fold_places(lift: Lifter, instr: Instr, operands: list[np.ndarray], op: Op) -> np.ndarray:
    """Apply an elementwise equation to constant elements."""
    consts = [lift.constants.take(o) for o in operands]
    dtype = instr.out_avals[0].dtype

    def step(xp: ModuleType, *values: Known) -> tuple[Known]:
        if xp is np and op.name == instr.prim:
            folded = fold_elementwise(instr, values)
            if folded is not None:
                return (folded,)
        if xp is not np:
            return (op.fn([jnp.asarray(v) for v in values]),)
        with jax.ensure_compile_time_eval():  # known values stay known inside jit
            return (np.asarray(op.fn([jnp.asarray(v) for v in values])),)

    return lift.constants.elements(lift.constants.apply(step, consts, [(operands[0].shape, dtype)])[0])


@rule(*(n for n, known in PRIMITIVES.items() if known.elementwise and n not in ("complex", "conj")))
def _elementwise(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """The general rule; those below replace it."""
    return elementwise(lift, instr, ins)


def _affine(lift: Lifter, instr: Instr, ins: list[Value], signs: tuple[int, ...]) -> list[Value]:
    aval = instr.out_avals[0]
    if not is_float(aval.dtype):
        return elementwise(lift, instr, ins)
    if len(ins) == 2 and instr.prim != "sub" and _is_zero(lift, ins[1]):
        return [lift.align(ins[:1], shape_of(aval))[0]]
    if len(ins) == 2 and signs == (PLUS, PLUS) and _is_zero(lift, ins[0]):
        return [lift.align(ins[1:], shape_of(aval))[0]]

    def add(terms: list[np.ndarray]) -> np.ndarray:
        return lift.add_sum(np.stack(terms, -1), np.array(signs, np.int32), aval.dtype)

    operands = lift.align(ins, shape_of(aval))
    if all((o < 0).any() for o in operands):
        # Places where everything is constant, or a constant zero is added, must not become rows.
        return [fold_or_write(lift, instr, operands, make_op(lift, instr), add)]
    return [add(operands)]


def _is_zero(lift: Lifter, value: Value) -> bool:
    return isinstance(value, Const) and value.fixed and not np.any(value.value)


@rule("add", "add_any")
def _add(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    return _affine(lift, instr, ins, (PLUS, PLUS))


@rule("sub")
def _sub(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if _is_zero(lift, ins[1]) and is_float(instr.out_avals[0].dtype):
        return [lift.align(ins[:1], shape_of(instr.out_avals[0]))[0]]
    return _affine(lift, instr, ins, (PLUS, MINUS))


@rule("neg")
def _neg(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    return _affine(lift, instr, ins, (MINUS,))


@rule("mul")
def _mul(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    aval = instr.out_avals[0]
    if not is_float(aval.dtype):
        return elementwise(lift, instr, ins)
    a, b = lift.align(ins, shape_of(aval))
    return [multiply(lift, a, b, aval.dtype, make_op(lift, instr), instr)]


def product_op(lift: Lifter, dtype: DType) -> Op:
    """Return the product of two scalars, for products that no `mul` equation wrote."""
    key = ("product", np.dtype(dtype))
    if key not in lift.ops:
        lift.ops[key] = Op(key, "mul", lambda v: v[0] * v[1], None, ((0, 1),))
    return lift.ops[key]


def multiply(lift: Lifter, a: np.ndarray, b: np.ndarray, dtype: DType, op: Op, instr: Instr) -> np.ndarray:
    """Write a · b: a row where one factor is constant, a constant where both are, an operation elsewhere."""
    ca, cb = a < 0, b < 0
    if not ca.any() and not cb.any():
        return lift.add_op(op, [a, b], dtype)
    if cb.all() and not ca.any():
        return lift.add_sum(a[..., None], b[..., None], dtype)
    if ca.all() and not cb.any():
        return lift.add_sum(b[..., None], a[..., None], dtype)
    out = np.empty(a.shape, np.int32)
    both, one, none = ca & cb, ca ^ cb, ~ca & ~cb
    if both.any():
        out[both] = fold_places(lift, instr, [a[both], b[both]], op)
    if one.any():
        var, const = np.where(ca, b, a), np.where(ca, a, b)
        zero = np.zeros(a.shape, bool)
        zero[one] = _fixed_zeros(lift, const[one])
        out[zero] = lift.constants.scalar(0, dtype)
        left = one & ~zero
        if left.any():
            _write_at(lift, out, left, lambda: lift.add_sum(var[left][:, None], const[left][:, None], dtype))
    if none.any():
        _write_at(lift, out, none, lambda: lift.add_op(op, [a[none], b[none]], dtype))
    return out


def _fixed_zeros(lift: Lifter, ids: np.ndarray) -> np.ndarray:
    """Where elements are literally zero in the program text (padding), whatever the inputs."""
    value = lift.constants.value_of(ids)
    return np.zeros(len(ids), bool) if value is None else np.asarray(value) == 0


@rule("div")
def _div(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    aval = instr.out_avals[0]
    if not is_float(aval.dtype) or not isinstance(ins[1], Const):
        return elementwise(lift, instr, ins)
    inverse = lift.constants.apply(
        lambda xp, c: ((np.asarray(1, c.dtype) / c).astype(c.dtype),),
        [ins[1]],
        [(ins[1].shape, ins[1].dtype)],
    )[0]
    a, b = lift.align([ins[0], inverse], shape_of(aval))
    if (a < 0).any():
        return elementwise(lift, instr, ins)
    return [lift.add_sum(a[..., None], b[..., None], aval.dtype)]


@rule("select_n")
def _select(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if isinstance(ins[0], Const) and ins[0].value is not None and len(ins) <= 32:
        arrays = lift.align(ins[1:], shape_of(instr.out_avals[0]))
        which = lift.watch(ins[0]).astype(np.int64)
        which = which.reshape(which.shape[0], *[1] * (arrays[0].ndim - which.ndim), *which.shape[1:])
        return [np.choose(which, arrays)]
    return elementwise(lift, instr, ins)


@rule("convert_element_type")
def _convert(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if instr.in_avals[0].dtype == instr.out_avals[0].dtype:
        return [ins[0]]
    if jnp.issubdtype(instr.out_avals[0].dtype, jnp.complexfloating):
        raise Opaque("complex numbers")
    return elementwise(lift, instr, ins)
