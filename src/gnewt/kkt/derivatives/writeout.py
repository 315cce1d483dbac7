"""Write a program out as a scalar program: every scalar of every array becomes a node.

In: a flat `Program` on arrays. Out: arrays of node numbers of a `ScalarProgram`. Moving data is moving node numbers: it
costs nothing and leaves no operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import jax
import numpy as np
from jax.core import Tracer

from gnewt.jaxprs import Instr, Lit, Operand, Program, bind_instr, flatten_jaxpr, is_float, size_of
from gnewt.jaxprs.compat import Numeric, call_body
from gnewt.jaxprs.flatten import VALUE_CALLS
from gnewt.jaxprs.indices import gather_filler, gather_index, scatter_index, take_flat
from gnewt.jaxprs.primitives import primitive
from gnewt.kkt.derivatives.factors import FACTORS
from gnewt.kkt.derivatives.scalars import LAX, NotScalar, ScalarProgram

_MOST_OPERANDS = 32
"""Operands of a function with a rule of its own: its Jacobian is written out densely."""


def write_out(
    scalars: ScalarProgram, program: Program, hoisted: Sequence[Numeric], ins: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Evaluate a program on arrays of nodes. Raises NotScalar where it cannot."""
    known: dict[int, np.ndarray] = dict(zip(program.ins, ins, strict=True))
    for var, at in program.consts:
        if isinstance(hoisted[at], Tracer):
            raise NotScalar("the function closes over a traced value")
        known[var] = scalars.constants(hoisted[at])

    def read(v: Operand) -> np.ndarray:
        return scalars.constants(np.asarray(v.value, v.dtype)) if isinstance(v, Lit) else known[v]

    for instr in program.instrs:
        known.update(zip(instr.outs, _write(scalars, instr, [read(v) for v in instr.ins]), strict=True))
    return [read(v) for v in program.outs]


def _write(scalars: ScalarProgram, instr: Instr, ins: list[np.ndarray]) -> list[np.ndarray]:
    what = primitive(instr.prim)
    if what.elementwise:
        return [_write_elementwise(scalars, instr, ins)]
    if what.move is not None:
        return [np.asarray(moved[0]) for moved in what.move(instr, *[x[None] for x in ins])]
    if what.repeats:
        return [_reduce(scalars, ins[0], instr.params["axes"], what.repeats)]
    if instr.prim == "dot_general":
        return [_dot(scalars, instr, ins[0], ins[1])]
    if not ins:
        with jax.ensure_compile_time_eval():
            return [scalars.constants(value) for value in bind_instr(instr, [])]
    if what.indices != (0, 0):
        return [_move_indexed(scalars, instr, ins)]
    if instr.prim in FACTORS:
        return [FACTORS[instr.prim](scalars, instr, *ins)]
    if instr.prim == "custom_jvp_call":
        return _write_custom(scalars, instr, ins)
    raise NotScalar(instr.prim)


def _write_elementwise(scalars: ScalarProgram, instr: Instr, ins: list[np.ndarray]) -> np.ndarray:
    name, aval = instr.prim, instr.out_avals[0]
    columns = [np.broadcast_to(x, aval.shape).ravel().tolist() for x in ins]
    if name == "integer_pow":
        nodes = [scalars.integer_pow(x, instr.params["y"]) for x in columns[0]]
    elif name == "convert_element_type":
        nodes = [scalars.convert(x, aval.dtype) for x in columns[0]]
    elif name == "polynomial":
        nodes = [_horner(scalars, x, coefficients) for x, *coefficients in zip(*columns, strict=True)]
    else:
        shared = name in LAX and instr.params.get("accuracy") is None
        op = LAX[name] if shared else functools.partial(instr.eqn.primitive.bind, **instr.params)
        key = name if shared else instr.key
        nodes = [scalars.apply(name, key, op, args, aval.dtype) for args in zip(*columns, strict=True)]
    return np.array(nodes, np.int32).reshape(aval.shape)


def _horner(scalars: ScalarProgram, x: int, coefficients: Sequence[int]) -> int:
    return functools.reduce(lambda total, c: scalars.add(scalars.mul(total, x), c), reversed(coefficients))


def _write_custom(scalars: ScalarProgram, instr: Instr, ins: list[np.ndarray]) -> list[np.ndarray]:
    """Write a function with a rule of its own: values by its body, derivatives by the rule, when they are asked for."""
    operands = [int(node) for x in ins for node in x.ravel()]
    if len(operands) > _MOST_OPERANDS:
        raise NotScalar("a long function with a rule of its own")
    hoisted: list[Numeric] = []
    body = flatten_jaxpr(call_body(instr.eqn), hoisted, VALUE_CALLS)
    values = write_out(scalars, body, hoisted, ins)
    floats = [i for i, aval in enumerate(instr.in_avals) if is_float(aval.dtype)]
    starts = np.cumsum([0, *(x.size for x in ins)])

    def jacobian() -> list[np.ndarray]:
        """For each result the nodes [operand, *shape]."""
        units = [np.zeros((len(operands), *aval.shape), aval.dtype) for aval in instr.in_avals]
        for i in floats:
            size = units[i][0].size
            units[i][starts[i] : starts[i] + size] = np.eye(size).reshape(size, *units[i].shape[1:])

        def along(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> list[jax.Array]:
            def moving(*some: jax.Array) -> list[jax.Array]:
                full = list(primals)
                for i, v in zip(floats, some, strict=True):
                    full[i] = v
                return bind_instr(instr, full)

            push = jax.vmap(lambda *t: jax.jvp(moving, tuple(primals[i] for i in floats), t)[1])
            return push(*tangents)

        avals = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in instr.in_avals)
        seeds = tuple(jax.ShapeDtypeStruct(units[i].shape, units[i].dtype) for i in floats)
        captured: list[Numeric] = []
        flat = flatten_jaxpr(jax.make_jaxpr(along)(avals, seeds), captured)
        return write_out(scalars, flat, captured, [*ins, *(scalars.constants(units[i]) for i in floats)])

    key = ("own_rule", instr.key, tuple(operands))

    def entry(result: int, place: int, operand: int) -> int:
        return int(scalars.remember(key, jacobian)[result][operand].ravel()[place])

    return [
        np.array(
            [
                scalars.with_rule(node, operands, functools.partial(entry, r, place), (key, r, place))
                for place, node in enumerate(value.ravel().tolist())
            ],
            np.int32,
        ).reshape(value.shape)
        for r, value in enumerate(values)
    ]


def _reduce(scalars: ScalarProgram, x: np.ndarray, axes: Sequence[SupportsIndex], name: str) -> np.ndarray:
    kept = [a for a in range(x.ndim) if a not in axes]
    shape = tuple(x.shape[a] for a in kept)
    count = size_of(x.shape[a] for a in axes)
    if count == 0:
        raise NotScalar("a reduction over nothing")

    def combine(a: int, b: int) -> int:
        return scalars.apply(name, name, LAX[name], (a, b), scalars.dtypes[a])

    columns = x.transpose(*axes, *kept).reshape(count, size_of(shape)).T.tolist()
    return np.array([functools.reduce(combine, column) for column in columns], np.int32).reshape(shape)


def _dot(scalars: ScalarProgram, instr: Instr, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (contract_a, contract_b), (batch_a, batch_b) = instr.params["dimension_numbers"]
    aval = instr.out_avals[0]
    length = size_of(a.shape[i] for i in contract_a)
    if size_of(aval.shape) * length > scalars.limit:
        raise NotScalar("a large product")
    groups = size_of(a.shape[i] for i in batch_a)

    def rows(x: np.ndarray, batch: Sequence[SupportsIndex], contract: Sequence[SupportsIndex]) -> np.ndarray:
        """Bring an operand to [groups, free, contracted]."""
        free = [i for i in range(x.ndim) if i not in (*contract, *batch)]
        count = size_of(x.shape[i] for i in free)
        return x.transpose(*batch, *free, *contract).reshape(groups, count, length)

    lhs, rhs = rows(a, batch_a, contract_a), rows(b, batch_b, contract_b)
    zero = scalars.constant(np.zeros((), aval.dtype))
    out = np.empty((groups, lhs.shape[1], rhs.shape[1]), np.int32)
    for g, i, j in np.ndindex(out.shape):
        # A product may join two precisions, unlike all other operations.
        pairs = zip(lhs[g, i].tolist(), rhs[g, j].tolist(), strict=True)
        terms = (
            scalars.mul(scalars.convert(x, aval.dtype), scalars.convert(y, aval.dtype)) for x, y in pairs
        )
        out[g, i, j] = functools.reduce(scalars.add, terms, zero)
    return out.reshape(aval.shape)


def _known(scalars: ScalarProgram, nodes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    values = [scalars.value.get(node) for node in nodes.ravel().tolist()]
    if any(v is None for v in values):
        raise NotScalar("an index that depends on the arguments")
    return np.array(values, dtype).reshape(nodes.shape)


def _move_indexed(scalars: ScalarProgram, instr: Instr, ins: list[np.ndarray]) -> np.ndarray:
    """Gather, scatter and dynamic slices with known indices: index maps, applied to node numbers."""
    what = primitive(instr.prim)
    operands = [x[None] for x in ins]
    at = range(len(ins))[what.index_places]
    operands[what.index_places] = [_known(scalars, ins[i], instr.in_avals[i].dtype)[None] for i in at]
    combine = _scattered(scalars, instr.prim)
    if instr.prim == "gather":
        # Places outside are filled with the node of the fill value.
        filler = scalars.constant(np.asarray(gather_filler(instr), instr.out_avals[0].dtype))
        return np.asarray(take_flat(operands[0], gather_index(instr, operands[1]), filler)[0])
    if combine is None:
        assert what.fold is not None
        return np.asarray(what.fold(instr, *operands)[0])
    out = ins[0].ravel().tolist()
    places = scatter_index(instr, operands[1]).ravel().tolist()
    for place, node in zip(places, ins[2].ravel().tolist(), strict=True):
        if place >= 0:
            out[place] = combine(out[place], node)
    return np.array(out, np.int32).reshape(ins[0].shape)


def _scattered(scalars: ScalarProgram, name: str) -> Callable[[int, int], int] | None:
    """Return how a scatter combines what it finds with what it brings; None if it replaces it."""
    return {"scatter-add": scalars.add, "scatter-sub": scalars.sub, "scatter-mul": scalars.mul}.get(name)
