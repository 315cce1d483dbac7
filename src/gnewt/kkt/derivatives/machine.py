"""Scalar programs for the native machine: one operation at a time over blocks of instances. Nothing is compiled.

XLA compiles about 500 operations a second, and reads and writes each family by kernels of its own. The machine
(`cpp/engine/scalars.hpp`) runs programs as they are, on blocks that stay in the cache. In: a `ScalarProgram`, what it
loads and what it stores. Out: integers.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache, partial
from typing import TypeAlias

import jax
import numpy as np

from gnewt import _native
from gnewt.jaxprs import Instr
from gnewt.jaxprs.compat import DType
from gnewt.jaxprs.twins import FOREIGN
from gnewt.kkt.derivatives.scalars import ScalarProgram, live_nodes

OPERATIONS = (
    *("copy", "add", "sub", "mul", "div", "neg", "max", "min", "abs", "sign", "floor", "ceil", "truncate"),
    *("select_n", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "is_finite", "is_nonzero"),
    *(
        "integer_pow",
        "mul_add",
        "mul_sub",
        "sub_mul",
        "sqrt",
        "rsqrt",
        "cbrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "sin",
        "cos",
        "tan",
    ),
    *("asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "logistic", "pow", "erf", "erfc"),
)
"""In the order of `Operation` in cpp/engine/scalars.hpp."""
_CODE = {name: code for code, name in enumerate(OPERATIONS)}
_COPIES = ("stop_gradient", "own_rule")
_INTEGERS = ("in", "const", "convert_element_type", "select_n")
"""What may be an integer: integers are held as floating-point numbers, and are not computed with."""
TARGETS = {"float64": "gnewt_linearize_f64", "float32": "gnewt_linearize_f32"}
"""The functions of the library that run programs, by precision."""
GIVEN_TARGETS = {"float64": "gnewt_linearize_given_f64", "float32": "gnewt_linearize_given_f32"}
"""The same with multipliers of the nodes as their first operand after the slots."""


class Load(IntEnum):
    """Where a program reads a number: `Load` of cpp/engine/linearize_call.hpp."""

    SLOT = 0
    DATA = 1
    SHARED = 2
    COMMON = 3
    DUAL = 4
    SAVED = 5


class Store(IntEnum):
    """Where a program writes a number: `Store` of cpp/engine/linearize_call.hpp."""

    VALUE = 0
    GRADIENT = 1
    JACOBIAN = 2
    HESSIAN = 3
    COMMON = 4
    SAVED = 5


Loads: TypeAlias = Mapping[int, tuple[Load, int, int, int]]
"""Node → (kind, a, b, c)."""
Stores: TypeAlias = Sequence[tuple[int, Store, int]]
"""(node, kind, a)"""
_SHARED = (Load.SHARED, Load.COMMON)
"""Loaded once for all blocks: their places are not used again."""


@cache
def available() -> bool:
    """Whether the library is there and has the machine; registers it with JAX."""
    library = _native.LIBRARY
    names = {
        name: has for has, targets in ((False, TARGETS), (True, GIVEN_TARGETS)) for name in targets.values()
    }
    if library is None or not all(hasattr(library, name) for name in names):
        return False
    for name, has_given in names.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
        FOREIGN[name] = partial(_run_on_host, has_given)
    return True


class _Call(ctypes.Structure):
    """`LinearizeCall` of cpp/engine/linearize_call.hpp."""

    _fields_ = (
        *(("tables", ctypes.c_void_p), ("tables_len", ctypes.c_int64)),
        *(("code", ctypes.c_void_p), ("code_len", ctypes.c_int64)),
        *(("constants", ctypes.c_void_p), ("constants_len", ctypes.c_int64)),
        *(("slots", ctypes.c_void_p), ("operands", ctypes.c_void_p)),
        *(("operand_sizes", ctypes.c_void_p), ("num_operands", ctypes.c_int64)),
        *(("value", ctypes.c_void_p), ("duals", ctypes.c_void_p), ("num_slots", ctypes.c_int64)),
        *(("sources", ctypes.c_void_p), ("num_sources", ctypes.c_int64)),
        ("given", ctypes.c_void_p),
    )


def _run_on_host(has_given: bool, instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the call on numbers of the host, for programs that NumPy runs; leading axes are batch axes."""
    found = [np.empty(aval.shape, aval.dtype) for aval in instr.out_avals]
    dtype, lead = found[0].dtype, found[0].shape
    kinds = [np.int32, np.int32, *[dtype] * (len(values) - 2)]
    given = [
        np.broadcast_to(np.asarray(v, kind), (*lead, np.shape(v)[-1])).reshape(-1, np.shape(v)[-1])
        for v, kind in zip(values, kinds, strict=True)
    ]
    results = [out.reshape(given[0].shape[0], -1) for out in found]
    for element, (value, duals, sources) in enumerate(zip(*results, strict=True)):
        rows = [np.ascontiguousarray(v[element]) for v in given]
        _run_one(has_given, rows, value, duals, sources)
    return found


def _run_one(
    has_given: bool, rows: Sequence[np.ndarray], value: np.ndarray, duals: np.ndarray, sources: np.ndarray
) -> None:
    tables, code, constants, slots, *operands = rows
    lam, operands = (operands[0], operands[1:]) if has_given else (None, operands)
    places = np.array([row.ctypes.data for row in operands], np.uintp)
    sizes = np.array([len(row) for row in operands], np.int64)
    call = _Call(
        *(
            tables.ctypes.data,
            len(tables),
            code.ctypes.data,
            len(code),
            constants.ctypes.data,
            len(constants),
        ),
        *(slots.ctypes.data, places.ctypes.data, sizes.ctypes.data, len(operands)),
        *(value.ctypes.data, duals.ctypes.data, len(duals), sources.ctypes.data, len(sources)),
        None if lam is None else lam.ctypes.data,
    )
    assert _native.LIBRARY is not None
    run = _native.LIBRARY.gnewt_linearize
    run.restype, run.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]
    done = run(int(value.dtype == np.float32), ctypes.addressof(call))
    assert done, "the integers fit together: the same call runs inside jit"


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
    if np.dtype(dtype).name not in TARGETS:
        return False
    kinds = {program.dtypes[node] for node in nodes}
    integers = any(kind.kind in "iu" for kind in kinds)
    if integers and np.dtype(dtype).itemsize < 8:
        return False
    if any(kind.kind not in "fiub" or (kind.kind == "f" and kind != dtype) for kind in kinds):
        return False
    return all(not program.args[node] or operation(program, node) is not None for node in nodes)


def write_program(program: ScalarProgram, loads: Loads, stores: Stores, constants: list[float]) -> list[int]:
    """Write the part of a program that leads from what is loaded to what is stored, with as few places as it needs.

    Args:
        constants: the constants of all programs; those of this one are added.
    """
    outputs = [node for node, *_ in stores]
    live = live_nodes(program, outputs, loads)
    read = {a for node in live for a in _operands(program, node)} | set(outputs)
    loaded = [node for node in loads if node in read]
    known = [node for node in live if node in program.value]
    steps = _fuse(program, [node for node in live if node not in program.value], outputs)
    first_constant = len(constants)
    constants += [float(program.value[node]) for node in known]
    places = _Places(known, [(node, loads[node][0] in _SHARED) for node in loaded], steps, outputs)
    written: list[int] = []
    for number, (node, name, operands) in enumerate(steps):
        filled = [places.of[a] for a in operands]
        filled += [filled[0]] * (3 - len(filled))
        if name == "integer_pow":
            filled[1] = program.exponents[node]
        written += [_CODE[name], places.take(number), *filled]
    begun = [value for node in loaded for value in (places.begun[node], *loads[node])]
    ended = [value for node, kind, a in stores for value in (places.of[node], kind, a)]
    head = [places.count, len(known), first_constant, len(loaded), len(steps), len(stores)]
    return [*head, *begun, *written, *ended]


_Step: TypeAlias = tuple[int, str, tuple[int, ...]]
"""(node, operation, operands)"""


def _fuse(program: ScalarProgram, nodes: Sequence[int], outputs: Sequence[int]) -> list[_Step]:
    """Name the operations; a product that only one sum or difference reads becomes one operation with it."""
    uses = Counter(a for node in nodes for a in _operands(program, node))
    uses.update(outputs)
    own = set(nodes)
    steps: dict[int, _Step] = {}
    for node in nodes:
        name, operands = operation(program, node), _operands(program, node)
        assert name is not None, "the machine was asked before whether it has every operation"
        if name in ("add", "sub"):
            left, right = operands
            for product, other in ((right, left), (left, right)):
                if product in own and steps[product][1] == "mul" and uses[product] == 1 and product != other:
                    fused = "mul_add" if name == "add" else "mul_sub" if product == left else "sub_mul"
                    name, operands = fused, (*steps.pop(product)[2], other)
                    break
        steps[node] = (node, name, operands)
    return list(steps.values())


class _Places:
    """Places of the values of a program. A place is free for another value when its last reader is done."""

    def __init__(
        self,
        known: Sequence[int],
        loaded: Sequence[tuple[int, bool]],
        steps: Sequence[_Step],
        outputs: Sequence[int],
    ) -> None:
        order = [*known, *[node for node, _ in loaded]]
        self.of = {node: place for place, node in enumerate(order)}
        self.begun = dict(self.of)
        self.count = len(order)
        self._steps = steps
        self._fixed = {*known, *[node for node, shared in loaded if shared]}
        self._last = {a: number for number, (*_, operands) in enumerate(steps) for a in operands}
        self._last.update(dict.fromkeys(outputs, len(steps)))
        self._free: list[int] = []

    def take(self, number: int) -> int:
        """Return a place for the result of a step; its operands still have theirs."""
        node, _, operands = self._steps[number]
        if self._free:
            place = self._free.pop()
        else:
            place, self.count = self.count, self.count + 1
        for a in dict.fromkeys(operands):
            if self._last[a] == number and a not in self._fixed:
                self._free.append(self.of[a])
        self.of[node] = place
        return place


def _operands(program: ScalarProgram, node: int) -> tuple[int, ...]:
    """What the machine reads: of a value with a rule of its own, the value."""
    return program.args[node][:1] if node in program.own else program.args[node]
