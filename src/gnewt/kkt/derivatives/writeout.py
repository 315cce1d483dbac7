"""Write a jaxpr out as a scalar program: every scalar of every array becomes a node.

Arrays of nodes are NumPy arrays of node numbers, so that moving data costs nothing and leaves no operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal

from gnewt.kkt.derivatives.scalars import NotScalar, Program

_ARITHMETIC = (
    "add",
    "add_any",
    "sub",
    "mul",
    "div",
    "neg",
    "abs",
    "sign",
    "max",
    "min",
    "clamp",
    "rem",
    "square",
    "one_minus_square",
)
_POWERS = (
    "integer_pow",
    "pow",
    "sqrt",
    "rsqrt",
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "logistic",
)
_TRIGONOMETRY = ("sin", "cos", "tan", "asin", "acos", "atan", "atan2")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
_SPECIAL = (
    "erf",
    "erfc",
    "erf_inv",
    "lgamma",
    "digamma",
    "bessel_i0e",
    "bessel_i1e",
    "regularized_incomplete_beta",
)
_LOGIC = ("and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge", "select_n", "is_finite")
_ROUNDING = ("floor", "ceil", "round", "nextafter", "convert_element_type", "copy", "stop_gradient")
_ELEMENTWISE = {*_ARITHMETIC, *_POWERS, *_TRIGONOMETRY, *_HYPERBOLIC, *_SPECIAL, *_LOGIC, *_ROUNDING}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat", "remat2", "checkpoint"}
_INDEXED = {"gather": 1, "dynamic_slice": 1, "dynamic_update_slice": 2, "scatter": 1}
"""Primitives that move data, with the position of their first index operand."""
_REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}


def write_out(
    program: Program, jaxpr: Any, consts: Sequence[Any], ins: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Evaluate a jaxpr on arrays of nodes. Raises NotScalar where it cannot.

    Known numbers are computed with JAX: call it under `jax.ensure_compile_time_eval`.
    """
    known: dict[Any, np.ndarray] = dict(zip(jaxpr.invars, ins, strict=True))
    for var, value in zip(jaxpr.constvars, consts, strict=True):
        if isinstance(value, Tracer):
            raise NotScalar("the function closes over a traced value")
        known[var] = program.constants(value)

    def read(atom: Any) -> np.ndarray:
        if isinstance(atom, Literal):
            return program.constants(np.asarray(atom.val, atom.aval.dtype))  # type: ignore[attr-defined]
        return known[atom]

    for eqn in jaxpr.eqns:
        outs = _write_equation(program, eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _write_equation(program: Program, eqn: Any, ins: list[np.ndarray]) -> list[np.ndarray]:
    name, params = eqn.primitive.name, eqn.params
    if name in _CALLS:
        inner = params.get("jaxpr") or params.get("call_jaxpr")
        return write_out(program, getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), ins)
    aval = eqn.outvars[0].aval
    if name in _ELEMENTWISE:
        key, op = program.bind(eqn.primitive, params)
        if name in ("add", "sub", "mul", "div", "neg"):
            key, op = name, getattr(jax.lax, name)
        columns = [np.broadcast_to(x, aval.shape).ravel().tolist() for x in ins]
        if name == "integer_pow" and params["y"] in (1, 2):
            nodes = columns[0] if params["y"] == 1 else [program.mul(x, x) for x in columns[0]]
        else:
            nodes = [program.apply(name, key, op, args, aval.dtype) for args in zip(*columns, strict=True)]
        return [np.array(nodes, np.int32).reshape(aval.shape)]
    if name in _MOVES:
        return _MOVES[name](ins, params, aval.shape)
    if name in _REDUCTIONS:
        return [_reduce(program, ins[0], [int(a) for a in params["axes"]], _REDUCTIONS[name])]
    if name == "dot_general":
        return [_dot(program, ins[0], ins[1], params["dimension_numbers"], aval)]
    if not ins:
        return [program.constants(eqn.primitive.bind(**params))]
    if name in _INDEXED:
        return [_move_indexed(program, eqn, ins)]
    if name == "scatter-add":
        return [_scatter_add(program, eqn, ins)]
    raise NotScalar(name)


def _reduce(program: Program, x: np.ndarray, axes: Sequence[int], name: str) -> np.ndarray:
    kept = [a for a in range(x.ndim) if a not in axes]
    shape = tuple(x.shape[a] for a in kept)
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if count == 0:
        raise NotScalar("a reduction over nothing")
    rows = x.transpose(*axes, *kept).reshape(count, *shape)
    op = getattr(jax.lax, {"and": "bitwise_and", "or": "bitwise_or"}.get(name, name))

    def combine(a: int, b: int) -> int:
        return program.apply(name, name, op, (a, b), program.dtypes[a])

    columns = rows.reshape(count, int(np.prod(shape, dtype=np.int64))).T.tolist()
    return np.array([functools.reduce(combine, column) for column in columns], np.int32).reshape(shape)


def _dot(program: Program, a: np.ndarray, b: np.ndarray, numbers: Any, aval: Any) -> np.ndarray:
    (contract_a, contract_b), (batch_a, batch_b) = numbers
    free_a = [i for i in range(a.ndim) if i not in (*contract_a, *batch_a)]
    free_b = [i for i in range(b.ndim) if i not in (*contract_b, *batch_b)]
    batch = tuple(a.shape[i] for i in batch_a)
    length = int(np.prod([a.shape[i] for i in contract_a], dtype=np.int64))
    if aval.size * length > program._limit:
        raise NotScalar("a large product")
    zero = program.constant(np.zeros((), aval.dtype))
    groups = int(np.prod(batch, dtype=np.int64))
    rows_a, rows_b = (
        int(np.prod([x.shape[i] for i in free], dtype=np.int64)) for x, free in ((a, free_a), (b, free_b))
    )
    lhs = a.transpose(*batch_a, *free_a, *contract_a).reshape(groups, rows_a, length)
    rhs = b.transpose(*batch_b, *free_b, *contract_b).reshape(groups, rows_b, length)
    out = np.empty((lhs.shape[0], lhs.shape[1], rhs.shape[1]), np.int32)
    for g, i, j in np.ndindex(out.shape):
        # A product may join two precisions, unlike all other operations.
        pairs = zip(lhs[g, i].tolist(), rhs[g, j].tolist(), strict=True)
        terms = (
            program.mul(program.convert(x, aval.dtype), program.convert(y, aval.dtype)) for x, y in pairs
        )
        out[g, i, j] = functools.reduce(program.add, terms, zero)
    return out.reshape(aval.shape)


def _known(program: Program, nodes: np.ndarray, dtype: Any) -> Any:
    values = [program.value.get(node) for node in nodes.ravel().tolist()]
    if any(v is None for v in values):
        raise NotScalar("an index that depends on the arguments")
    return np.array(values, dtype).reshape(nodes.shape)


def _move_indexed(program: Program, eqn: Any, ins: list[np.ndarray]) -> np.ndarray:
    """Gather, scatter and dynamic slices with known indices: the operation itself, applied to node numbers."""
    name = eqn.primitive.name
    first = _INDEXED[name]
    last = first + 1 if name in ("gather", "scatter") else len(ins)
    params = dict(eqn.params)
    if name == "gather":
        # Places outside are filled with the node of the fill value, which is NaN unless it is given.
        fill = params.get("fill_value")
        dtype = eqn.outvars[0].aval.dtype
        if fill is None:
            fill = np.nan if np.issubdtype(dtype, np.inexact) else np.iinfo(dtype).min
        params["fill_value"] = program.constant(np.asarray(fill, dtype))
    operands = [
        jnp.asarray(_known(program, x, eqn.invars[i].aval.dtype)) if first <= i < last else jnp.asarray(x)
        for i, x in enumerate(ins)
    ]
    return np.asarray(eqn.primitive.bind(*operands, **params)).astype(np.int32)


def _scatter_add(program: Program, eqn: Any, ins: list[np.ndarray]) -> np.ndarray:
    """Find where each update goes by pulling place numbers back through the operation, which is linear."""
    shape, index = ins[0].shape, _known(program, ins[1], eqn.invars[1].aval.dtype)
    zero, places = jnp.zeros(shape), jnp.arange(1.0, ins[0].size + 1).reshape(shape)
    pull = jax.vjp(lambda u: eqn.primitive.bind(zero, index, u, **eqn.params), jnp.zeros(ins[2].shape))[1]
    target = np.asarray(pull(places)[0]).astype(np.int64).ravel().tolist()
    out = ins[0].ravel().tolist()
    for place, node in zip(target, ins[2].ravel().tolist(), strict=True):
        if place:
            out[place - 1] = program.add(out[place - 1], node)
    return np.array(out, np.int32).reshape(shape)


def _broadcast(ins: list[np.ndarray], params: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    axes = dict(zip(params["broadcast_dimensions"], ins[0].shape, strict=True))
    return [np.broadcast_to(ins[0].reshape([axes.get(a, 1) for a in range(len(shape))]), shape)]


def _slice(ins: list[np.ndarray], params: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    strides = params["strides"] or (1,) * len(shape)
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return [ins[0][tuple(slice(*b) for b in bounds)]]


def _pad(ins: list[np.ndarray], params: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    config = params["padding_config"]
    if any(low < 0 or high < 0 for low, high, _ in config):
        raise NotScalar("a negative padding")
    out = np.full(shape, ins[1], np.int32)
    if ins[0].size:
        out[
            tuple(
                slice(low, low + (n - 1) * (gap + 1) + 1, gap + 1)
                for (low, _, gap), n in zip(config, ins[0].shape, strict=True)
            )
        ] = ins[0]
    return [out]


def _split(ins: list[np.ndarray], params: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    return np.split(ins[0], np.cumsum(params["sizes"])[:-1], params["axis"])


_MOVES: dict[str, Callable[[list[np.ndarray], Any, tuple[int, ...]], list[np.ndarray]]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda ins, params, shape: [np.concatenate(ins, params["dimension"])],
    "expand_dims": lambda ins, params, shape: [ins[0].reshape(shape)],
    "pad": _pad,
    "reshape": lambda ins, params, shape: [ins[0].reshape(shape)],
    "rev": lambda ins, params, shape: [np.flip(ins[0], params["dimensions"])],
    "slice": _slice,
    "split": _split,
    "squeeze": lambda ins, params, shape: [ins[0].reshape(shape)],
    "stack": lambda ins, params, shape: [np.stack(ins, params["axis"])],
    "tile": lambda ins, params, shape: [np.tile(ins[0], params["reps"])],
    "transpose": lambda ins, params, shape: [ins[0].transpose(params["permutation"])],
    "unstack": lambda ins, params, shape: [np.asarray(x) for x in np.moveaxis(ins[0], params["axis"], 0)],
}
