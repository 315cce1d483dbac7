"""Elementwise primitives: affine ones become rows, the others operations of templates."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Instr, bind_scalars, is_float, shape_of
from gnewt.trace.constants import MINUS, PLUS, Const
from gnewt.trace.lift import FLAT, Lifter, Value
from gnewt.trace.rules import NUMPY, Opaque, rule
from gnewt.trace.template import Op

_SMOOTH = [
    "exp",
    "exp2",
    "log",
    "log2",
    "log1p",
    "expm1",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "sqrt",
    "rsqrt",
    "cbrt",
    "logistic",
    "erf",
    "erfc",
    "erf_inv",
    "lgamma",
    "digamma",
    "square",
    "one_minus_square",
    "integer_pow",
    "bessel_i0e",
    "bessel_i1e",
    "regularized_incomplete_beta",
    "igamma",
    "igammac",
    "polygamma",
    "zeta",
    "random_gamma_grad",
]
_PIECEWISE_LINEAR = ["abs", "max", "min", "clamp", "real", "imag", "reduce_precision"]
_PAIRS: dict[str, Any] = {
    "mul": ((0, 1),),
    "div": ((0, 1), (1, 1)),
    "pow": ((0, 0), (0, 1), (1, 1)),
    "atan2": "all",
    "rem": "none",
    "select_n": "none",
    "convert_element_type": "none",
    "add": "none",
    "add_any": "none",
    "sub": "none",
    "neg": "none",
}
ELEMENTWISE = {*_SMOOTH, *_PIECEWISE_LINEAR, *(FLAT - {"argmax", "argmin"}), *_PAIRS}


def make_op(lift: Lifter, instr: Instr) -> Op:
    """Return the template operation of an elementwise equation."""
    types = tuple(np.dtype(a.dtype) for a in instr.in_avals)
    key = (instr.key, types)
    if key not in lift.ops:
        name = instr.prim
        active: tuple[bool, ...] | None = tuple(is_float(t) for t in types)
        curved: Any = "all"
        if name in FLAT or not is_float(instr.out_avals[0].dtype):
            active, curved = (False,) * len(types), "none"
        elif name in _PIECEWISE_LINEAR:
            curved = "none"
        elif name in _PAIRS:
            curved = _PAIRS[name]
        lift.ops[key] = Op(key, name, lambda args: bind_scalars(instr, args), active, curved)
    return lift.ops[key]


def elementwise(lift: Lifter, instr: Instr, ins: list[Value], op: Op | None = None) -> list[Value]:
    """Write the equation at every place; places where all operands are constant stay constant."""
    aval = instr.out_avals[0]
    operands = lift.align(ins, shape_of(aval))
    op = make_op(lift, instr) if op is None else op
    constant = np.logical_and.reduce([o < 0 for o in operands])
    if not constant.any():
        return [lift.add_op(op, operands, aval.dtype)]
    out = np.empty(constant.shape, np.int32)
    out[constant] = fold_places(lift, instr, [o[constant] for o in operands], op)
    rest = ~constant
    if rest.any():
        keys = np.broadcast_to(
            lift.ctx.keys[: rest.shape[0]].reshape(-1, *[1] * (rest.ndim - 1)), rest.shape
        )[rest]
        out[rest] = _scattered(lift, keys, lambda: lift.add_op(op, [o[rest] for o in operands], aval.dtype))
    return [out]


def _scattered(lift: Lifter, keys: np.ndarray, write: Any) -> np.ndarray:
    """Write a block whose places lie irregularly in the batch: each has its own time."""
    saved = lift.ctx.keys, lift.ctx.batch
    lift.ctx.keys, lift.ctx.batch = keys, len(keys)
    out = write()
    lift.ctx.keys, lift.ctx.batch = saved
    return out


def fold_places(lift: Lifter, instr: Instr, operands: list[np.ndarray], op: Op) -> np.ndarray:
    """Apply an elementwise equation to constant elements."""
    consts = [lift.constants.take(o) for o in operands]
    dtype = instr.out_avals[0].dtype

    def step(xp: Any, *values: Any) -> tuple[Any]:
        if xp is np and instr.prim in NUMPY and op.name == instr.prim:
            with np.errstate(all="ignore"):
                return (np.asarray(NUMPY[instr.prim](instr.params, *values), dtype),)
        out = op.fn([jnp.asarray(v) for v in values])
        return (np.asarray(out) if xp is np else out,)

    return lift.constants.elements(lift.constants.apply(step, consts, [(operands[0].shape, dtype)])[0])


@rule(
    *sorted(ELEMENTWISE - {"add", "add_any", "sub", "neg", "mul", "div", "select_n", "convert_element_type"})
)
def _elementwise(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    return elementwise(lift, instr, ins)


def _affine(lift: Lifter, instr: Instr, ins: list[Value], signs: tuple[int, ...]) -> list[Value]:
    aval = instr.out_avals[0]
    if not is_float(aval.dtype):
        return elementwise(lift, instr, ins)
    if len(ins) == 2 and instr.prim != "sub" and _is_zero(lift, ins[1]):
        return [lift.align(ins[:1], shape_of(aval))[0]]
    if len(ins) == 2 and signs == (PLUS, PLUS) and _is_zero(lift, ins[0]):
        return [lift.align(ins[1:], shape_of(aval))[0]]
    operands = lift.align(ins, shape_of(aval))
    if all((o < 0).any() for o in operands):
        # Places where everything is constant, or a constant zero is added, must not become rows.
        return _affine_mixed(lift, instr, operands, signs)
    return [lift.add_sum(np.stack(operands, -1), np.array(signs, np.int32), aval.dtype)]


def _affine_mixed(
    lift: Lifter, instr: Instr, operands: list[np.ndarray], signs: tuple[int, ...]
) -> list[Value]:
    dtype = instr.out_avals[0].dtype
    constant = np.logical_and.reduce([o < 0 for o in operands])
    out = np.empty(constant.shape, np.int32)
    if constant.any():
        op = make_op(lift, instr)
        out[constant] = fold_places(lift, instr, [o[constant] for o in operands], op)
    rest = ~constant
    if rest.any():
        keys = np.broadcast_to(
            lift.ctx.keys[: rest.shape[0]].reshape(-1, *[1] * (rest.ndim - 1)), rest.shape
        )[rest]
        terms = np.stack([o[rest] for o in operands], -1)
        coefs = np.array(signs, np.int32)
        out[rest] = _scattered(lift, keys, lambda: lift.add_sum(terms, coefs, dtype))
    return [out]


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


def product_op(lift: Lifter, dtype: Any) -> Op:
    """Return the product of two scalars, for products that no `mul` equation wrote."""
    key = ("product", np.dtype(dtype))
    if key not in lift.ops:
        lift.ops[key] = Op(key, "mul", lambda v: v[0] * v[1], None, ((0, 1),))
    return lift.ops[key]


def multiply(lift: Lifter, a: np.ndarray, b: np.ndarray, dtype: Any, op: Op, instr: Instr) -> np.ndarray:
    """Write a · b: a row where one factor is constant, a constant where both are, an operation elsewhere."""
    ca, cb = a < 0, b < 0
    if not ca.any() and not cb.any():
        return lift.add_op(op, [a, b], dtype)
    if cb.all() and not ca.any():
        return lift.add_sum(a[..., None], b[..., None], dtype)
    if ca.all() and not cb.any():
        return lift.add_sum(b[..., None], a[..., None], dtype)
    out = np.empty(a.shape, np.int32)
    keys = np.broadcast_to(lift.ctx.keys[: a.shape[0]].reshape(-1, *[1] * (a.ndim - 1)), a.shape)
    both, one, none = ca & cb, ca ^ cb, ~ca & ~cb
    if both.any():
        out[both] = fold_places(lift, instr, [a[both], b[both]], op)
    if one.any():
        var, const = np.where(ca, b, a)[one], np.where(ca, a, b)[one]
        zero = _fixed_zeros(lift, const)
        values = np.empty(len(var), np.int32)
        values[zero] = lift.constants.scalar(0, dtype)
        left = ~zero
        if left.any():
            values[left] = _scattered(
                lift, keys[one][left], lambda: lift.add_sum(var[left][:, None], const[left][:, None], dtype)
            )
        out[one] = values
    if none.any():
        out[none] = _scattered(lift, keys[none], lambda: lift.add_op(op, [a[none], b[none]], dtype))
    return out


def _fixed_zeros(lift: Lifter, ids: np.ndarray) -> np.ndarray:
    """Where elements are literally zero in the program text (padding), whatever the inputs."""
    value = lift.constants.value_of(ids)
    return np.zeros(len(ids), bool) if value is None else value == 0


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


# Constants in NumPy


def _np_select(params: Any, which: Any, *cases: Any) -> Any:
    which = np.asarray(which).astype(np.int64)
    shape = np.broadcast_shapes(which.shape, *[c.shape for c in cases])
    out = np.broadcast_to(cases[0], shape)
    for i, case in enumerate(cases[1:], 1):
        out = np.where(which == i, case, out)
    return out


def _np_integer_div(params: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind == "f":
        return x / y
    y = np.where(y == 0, 1, y)
    down = x // y
    # XLA truncates towards zero.
    return down + ((down * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)


def _np_iota(params: Any) -> Any:
    shape = params["shape"]
    line = np.arange(shape[params["dimension"]]).reshape(
        [-1 if d == params["dimension"] else 1 for d in range(len(shape))]
    )
    return np.broadcast_to(line, shape)[None].astype(params["dtype"])


_SAME_IN_NUMPY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "neg": "negative", "exp": "exp", "log": "log",
    "log1p": "log1p", "expm1": "expm1", "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh",
    "atan": "arctan", "atan2": "arctan2", "sqrt": "sqrt", "abs": "abs", "max": "maximum",
    "min": "minimum", "floor": "floor", "ceil": "ceil", "sign": "sign", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "not": "invert", "pow": "power", "rem": "fmod",
    "square": "square", "is_finite": "isfinite", "cbrt": "cbrt", "asin": "arcsin", "acos": "arccos",
    "sinh": "sinh", "cosh": "cosh", "exp2": "exp2", "log2": "log2",
}  # fmt: skip


def _plain(name: str) -> Any:
    fn = getattr(np, name)
    return lambda params, *values: fn(*values)


NUMPY.update({name: _plain(other) for name, other in _SAME_IN_NUMPY.items()})
NUMPY.update(
    {
        "div": _np_integer_div,
        "select_n": _np_select,
        "iota": _np_iota,
        "integer_pow": lambda params, x: x ** params["y"] if params["y"] >= 0 else 1 / x ** (-params["y"]),
        "rsqrt": lambda params, x: 1 / np.sqrt(x),
        "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
        "stop_gradient": lambda params, x: x,
        "clamp": lambda params, low, x, high: np.minimum(np.maximum(x, low), high),
        "reduce_sum": lambda params, x: x.sum(tuple(a + 1 for a in params["axes"]), dtype=x.dtype),
        "reduce_max": lambda params, x: x.max(tuple(a + 1 for a in params["axes"])),
        "reduce_min": lambda params, x: x.min(tuple(a + 1 for a in params["axes"])),
        "reduce_prod": lambda params, x: x.prod(tuple(a + 1 for a in params["axes"]), dtype=x.dtype),
        "reduce_and": lambda params, x: x.all(tuple(a + 1 for a in params["axes"])),
        "reduce_or": lambda params, x: x.any(tuple(a + 1 for a in params["axes"])),
    }
)
