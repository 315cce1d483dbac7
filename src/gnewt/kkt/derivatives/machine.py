"""Scalar programs on the native library: one operation at a time over blocks of instances. Nothing is compiled.

XLA compiles about 500 operations a second, so that a long program for few instances takes a second to compile and
microseconds to run. `cpp/engine/scalars.hpp` runs such programs as they are. In: a `ScalarProgram`. Out: its numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt import _native
from gnewt.jaxprs import Instr
from gnewt.jaxprs.compat import DType
from gnewt.jaxprs.primitives import primitive
from gnewt.jaxprs.twins import FOREIGN
from gnewt.kkt.derivatives.scalars import ScalarProgram, live_nodes

OPERATIONS = (
    *("copy", "add", "sub", "mul", "div", "neg", "max", "min", "abs", "sign", "floor", "ceil", "truncate"),
    *("select_n", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "is_finite", "is_nonzero"),
    *("integer_pow", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "logistic", "pow", "erf", "erfc"),
)
"""In the order of `Operation` in cpp/engine/scalars.hpp."""
_CODE = {name: code for code, name in enumerate(OPERATIONS)}
_BINARY = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "atan2",
        "pow",
    ]
)
_COPIES = ("stop_gradient", "own_rule")
_INTEGERS = ("in", "const", "convert_element_type", "select_n")
"""What may be an integer: integers are held as floating-point numbers, and are not computed with."""
_TARGETS = {"float64": "gnewt_scalars_f64", "float32": "gnewt_scalars_f32"}


@cache
def available() -> bool:
    """Whether the library is there and has the machine; registers it with JAX."""
    library = _native.LIBRARY
    if library is None or not all(hasattr(library, name) for name in _TARGETS.values()):
        return False
    for name in _TARGETS.values():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
        FOREIGN[name] = _run_by_numpy
    return True


def _run_by_numpy(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The machine in NumPy, for programs that run a few times."""
    steps, constants, rows = values
    lead = np.broadcast_shapes(steps.shape[:-1], rows.shape[:-2])
    (steps,) = np.unique(steps.reshape(-1, steps.shape[-1]), axis=0)  # under vmap every instance has the same
    num_known, num_inputs, num_registers, num_steps, _ = (int(n) for n in steps[:5])
    shape = (*lead, rows.shape[-1])
    cells: list[np.ndarray] = [np.broadcast_to(constants[..., i, None], shape) for i in range(num_known)]
    cells += [np.broadcast_to(rows[..., i, :], shape) for i in range(num_inputs)]
    cells += [np.zeros(())] * num_registers
    for code, out, *places in steps[5 : 5 + 5 * num_steps].reshape(num_steps, 5).tolist():
        name = OPERATIONS[code]
        if name == "integer_pow":
            power = places[1]
            found = cells[places[0]] ** power if power >= 0 else 1 / cells[places[0]] ** -power
        else:
            function, count = _numpy_operation(name)
            found = function(*[cells[p] for p in places[:count]])
        cells[out] = np.asarray(found, rows.dtype)
    return [np.stack([cells[i] for i in steps[5 + 5 * num_steps :]], axis=-2)]


@cache
def _numpy_operation(name: str) -> tuple[Callable[..., np.ndarray], int]:
    """An operation in NumPy, and how many operands it has."""
    own: dict[str, Callable[..., np.ndarray]] = {
        "copy": np.asarray,
        "truncate": np.trunc,
        "is_nonzero": lambda x: x != 0,
        "not": lambda x: x == 0,
        "and": np.logical_and,
        "or": np.logical_or,
        "erf": np.vectorize(math.erf, otypes=[float]),
        "erfc": np.vectorize(math.erfc, otypes=[float]),
    }
    count = 3 if name in ("select_n", "clamp") else 2 if name in _BINARY else 1
    function = own.get(name) or primitive(name).numpy
    assert function is not None, "the table of primitives has every operation of the machine"
    return function, count


def operation(program: ScalarProgram, node: int) -> str | None:
    """Return the machine's operation for a node, or None where it has none."""
    name, dtype = program.names[node], program.dtypes[node]
    if name in _COPIES:
        return "copy"
    if dtype.kind in "iu" and name not in _INTEGERS:
        return None
    if name == "convert_element_type":
        before = program.dtypes[program.args[node][0]].kind
        return (
            "is_nonzero"
            if dtype.kind == "b"
            else "truncate"
            if dtype.kind in "iu" and before == "f"
            else "copy"
        )
    if name in ("and", "or", "not") and dtype.kind != "b":
        return None
    if name == "select_n" and len(program.args[node]) != 3:
        return None
    return name if name in _CODE else None


def can_run(program: ScalarProgram, nodes: Sequence[int], dtype: DType) -> bool:
    """Whether the machine has every operation, in one precision."""
    if np.dtype(dtype).name not in _TARGETS:
        return False
    kinds = {program.dtypes[node] for node in nodes}
    integers = any(kind.kind in "iu" for kind in kinds)
    if integers and np.dtype(dtype).itemsize < 8:
        return False
    if any(kind.kind not in "fiub" or (kind.kind == "f" and kind != dtype) for kind in kinds):
        return False
    return all(not program.args[node] or operation(program, node) is not None for node in nodes)


@dataclasses.dataclass(frozen=True, eq=False)
class Code:
    """A part of a scalar program, written for the machine: inputs[I, n] ↦ outputs[O, n]."""

    steps: np.ndarray
    constants: np.ndarray
    num_outputs: int

    def run(self, rows: Array) -> Array:
        """Evaluate at rows[I, n]. Traceable; works under vmap."""
        call = jax.ffi.ffi_call(
            _TARGETS[rows.dtype.name],
            jax.ShapeDtypeStruct((self.num_outputs, rows.shape[1]), rows.dtype),
            vmap_method="expand_dims",
        )
        return call(jnp.asarray(self.steps), jnp.asarray(self.constants, rows.dtype), rows)


def write_code(program: ScalarProgram, inputs: Sequence[int], outputs: Sequence[int]) -> Code:
    """Write the part of a program that leads from inputs to outputs, with as few registers as it needs."""
    live = live_nodes(program, outputs, set(inputs))
    known = [node for node in live if node in program.value]
    place = {node: i for i, node in enumerate([*known, *inputs])}
    first = len(place)
    steps = [node for node in live if node not in program.value]
    last = {a: i for i, node in enumerate(steps) for a in _operands(program, node)}
    last.update(dict.fromkeys(outputs, len(steps)))
    free: list[int] = []
    num_registers = 0
    table = np.zeros((len(steps), 5), np.int32)
    for i, node in enumerate(steps):
        name = operation(program, node)
        assert name is not None, "the machine was asked before whether it has every operation"
        operands = [place[a] for a in _operands(program, node)]
        if not free:
            free.append(first + num_registers)
            num_registers += 1
        place[node] = free.pop()
        filled = [*operands, *[operands[0]] * (3 - len(operands))]
        if name == "integer_pow":
            filled[1] = program.exponents[node]
        table[i] = (_CODE[name], place[node], *filled)
        # A register is free for another value when its last reader is done; never for that reader itself.
        for a in dict.fromkeys(_operands(program, node)):
            if last[a] == i and place[a] >= first:
                free.append(place[a])
        if last.get(node, -1) < 0:
            free.append(place[node])
    head = np.array([len(known), len(inputs), num_registers, len(steps), len(outputs)], np.int32)
    ends = np.array([place[out] for out in outputs], np.int32)
    values = np.array([program.value[node] for node in known], np.float64)
    return Code(np.concatenate([head, table.ravel(), ends]), values, len(outputs))


def _operands(program: ScalarProgram, node: int) -> tuple[int, ...]:
    """What the machine reads: of a value with a rule of its own, the value."""
    return program.args[node][:1] if node in program.own else program.args[node]
