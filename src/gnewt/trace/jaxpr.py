"""JAX's core types, seen from one file: jaxprs become flat programs of plain Python objects.

The only module that touches `jax.extend.core`, and the compatibility layer between jax 0.10 and 0.11: names
of primitives, parameters of `scan`, closed jaxprs that are plain jaxprs, source information. Everything
above it sees `Program` and `Instr`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import _LIBRARY_ROOTS

_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Calls that mean nothing but their body, and the parameter that holds it."""


Closed: TypeAlias = jex.ClosedJaxpr | jex.Jaxpr
"""A jaxpr with its constants; in jax 0.11 both are one object."""


class Lit:
    """A literal operand."""

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, value: Any, aval: Any) -> None:
        self.value = value
        self.shape = tuple(aval.shape)
        self.dtype = aval.dtype


@dataclasses.dataclass(slots=True, eq=False)
class Instr:
    """One equation, on variables that are numbers."""

    prim: str
    params: dict[str, Any]
    ins: list[Any]
    """Variable numbers or `Lit`s."""
    outs: list[int]
    eqn: Any
    """The JAX equation, or None for a region."""
    bodies: tuple[Program, ...] = ()
    """Flattened sub-programs (a scan's body, a cond's branches)."""
    key: Any = None
    """Structural identity: primitive, parameters, sub-programs (not the variables)."""
    region: Program | None = None
    """The equations that a region stands for."""
    site: Any = None
    """The equation whose source line names this one."""
    in_avals: tuple[Any, ...] = ()
    out_avals: tuple[Any, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class Program:
    """A jaxpr, flat: calls inlined, variables numbered, captured constants listed by position."""

    avals: list[Any]
    """Shape and dtype of every variable."""
    ins: list[int]
    consts: list[tuple[int, int]]
    """(variable, position in the list of hoisted constants)."""
    instrs: list[Instr]
    outs: list[Any]
    key: Any = None

    def aval(self, v: Any) -> Any:
        """Shape and dtype of a variable or a literal."""
        return v if isinstance(v, Lit) else self.avals[v]


@dataclasses.dataclass(frozen=True)
class ScanSpec:
    """What a scan equation says, whatever the version of JAX."""

    body: Program
    num_consts: int
    num_carry: int
    length: int
    reverse: bool


def trace_jaxpr(f: Callable, args: Sequence[Any]) -> tuple[Any, Any]:
    """Trace f anew (JAX's own cache would return the constants of an earlier call); (jaxpr, output tree)."""
    return jax.make_jaxpr(lambda *inner: f(*inner), return_shape=True)(*args)


def flatten_jaxpr(closed: Any, hoisted: list[Any]) -> Program:
    """Turn a closed jaxpr into a Program; captured constants are appended to `hoisted`, in a fixed order."""
    program = Program([], [], [], [], [])
    jaxpr, consts = _open(closed)
    env: dict[Any, Any] = {}
    for var in jaxpr.invars:
        env[var] = _new_var(program, var.aval)
        program.ins.append(env[var])
    _inline(program, jaxpr, consts, env, hoisted)
    program.outs = [_operand(env, v) for v in jaxpr.outvars]
    drop_dead(program)
    program.key = program_key(program)
    return program


def _open(closed: Any) -> tuple[Any, Sequence[Any]]:
    """Split a closed jaxpr into jaxpr and constants; in jax 0.11 both are one object."""
    if hasattr(closed, "jaxpr"):
        return closed.jaxpr, closed.consts
    return closed, getattr(closed, "consts", ())


def _is_library(jaxpr: Any) -> bool:
    info = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return any(root in info for root in _LIBRARY_ROOTS)


def _new_var(program: Program, aval: Any) -> int:
    program.avals.append(aval)
    return len(program.avals) - 1


def _operand(env: dict[Any, Any], atom: Any) -> Any:
    return Lit(atom.val, atom.aval) if isinstance(atom, jex.Literal) else env[atom]


def _inline(
    program: Program, jaxpr: Any, consts: Sequence[Any], env: dict, hoisted: list[Any], site: Any = None
) -> None:
    for var, value in zip(jaxpr.constvars, consts, strict=True):
        env[var] = _new_var(program, var.aval)
        program.consts.append((env[var], len(hoisted)))
        hoisted.append(value)
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        ins = [_operand(env, v) for v in eqn.invars]
        if name in _INLINED and not eqn.effects:
            inner, inner_consts = _open(eqn.params[_INLINED[name]])
            # One jaxpr may be called many times: its variables are bound anew for each call.
            scope = dict(zip(inner.invars, ins, strict=True))
            # JAX traces a library function once: its equations then name the line that called it first.
            where = site if site is not None else eqn if _is_library(inner) else None
            _inline(program, inner, inner_consts, scope, hoisted, where)
            for var, out in zip(eqn.outvars, inner.outvars, strict=True):
                env[var] = _operand(scope, out)
            continue
        outs = []
        for var in eqn.outvars:
            env[var] = _new_var(program, var.aval)
            outs.append(env[var])
        bodies = tuple(flatten_jaxpr(sub, hoisted) for sub in _sub_jaxprs(eqn) if name in ("scan", "cond"))
        key = (name, _params_key(eqn.params, bodies))
        instr = Instr(name, eqn.params, ins, outs, eqn, bodies, key)
        instr.site = eqn if site is None else site
        instr.in_avals = tuple(v.aval for v in eqn.invars)
        instr.out_avals = tuple(v.aval for v in eqn.outvars)
        program.instrs.append(instr)


def _sub_jaxprs(eqn: Any) -> Iterator[Any]:
    if eqn.primitive.name == "scan":
        yield eqn.params["jaxpr"]
    elif eqn.primitive.name == "cond":
        yield from eqn.params["branches"]


def scan_spec(instr: Instr) -> ScanSpec:
    """Read the parameters of a scan equation (0.11 renamed num_consts and num_carry)."""
    p = instr.params
    if "num_consts" in p:
        num_consts, num_carry = p["num_consts"], p["num_carry"]
    else:
        # Flat trees of (consts, carry, xs) and (carry, ys).
        num_consts, num_carry = (_tree_size(part) for part in p["ft_in"].unpack()[:2])
    return ScanSpec(instr.bodies[0], num_consts, num_carry, int(p["length"]), bool(p["reverse"]))


def _tree_size(part: Any) -> int:
    return len(part) if hasattr(part, "__len__") else part.num_leaves


def drop_dead(program: Program) -> None:
    """Remove equations whose results nobody reads; side effects are refused before this matters."""
    live = {v for v in program.outs if isinstance(v, int)}
    kept = []
    for instr in reversed(program.instrs):
        if not live.isdisjoint(instr.outs):
            kept.append(instr)
            live.update(v for v in instr.ins if isinstance(v, int))
    program.instrs = kept[::-1]


def effectful(closed: Any) -> Any:
    """Return the first equation with side effects, or None."""
    jaxpr, _ = _open(closed)
    for eqn in jaxpr.eqns:
        if eqn.effects:
            for sub in jex.jaxprs_in_params(eqn.params):
                found = effectful(sub)
                if found is not None:
                    return found
            return eqn
    return None


def primitives_of(instr: Instr) -> Iterator[tuple[str, Any]]:
    """Iterate over (primitive name, equation) of an equation and everything it calls."""
    for inner in [instr] if instr.region is None else instr.region.instrs:
        yield from _primitives(inner.eqn)


def _primitives(eqn: Any) -> Iterator[tuple[str, Any]]:
    yield eqn.primitive.name, eqn
    for sub in jex.jaxprs_in_params(eqn.params):
        for inner in _open(sub)[0].eqns:
            yield from _primitives(inner)


# Structural keys


class Key:
    """A nested tuple that remembers its hash: programs of thousands of equations are looked up at every call."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Key) and self._hash == other._hash and self.value == other.value


def program_key(program: Program) -> Any:
    """Return what two programs that mean the same function have in common."""
    number: dict[int, int] = {}

    def name(v: Any) -> Any:
        if isinstance(v, Lit):
            return ("lit", str(v.dtype), v.shape, value_key(v.value))
        return number.setdefault(v, len(number))

    head = tuple((name(v), _aval_key(program.avals[v])) for v in program.ins)
    consts = tuple((name(v), _aval_key(program.avals[v])) for v, _ in program.consts)
    body = []
    for instr in program.instrs:
        ins = tuple(name(v) for v in instr.ins)
        body.append((instr.key, ins, tuple((name(v), _aval_key(program.avals[v])) for v in instr.outs)))
    return Key((head, consts, tuple(body), tuple(name(v) for v in program.outs)))


def _aval_key(aval: Any) -> Any:
    return (aval.shape, aval.dtype, getattr(aval, "weak_type", False))


def value_key(value: Any) -> Any:
    """Return a hashable stand-in for a literal value."""
    value = np.asarray(value)
    return (
        value.item()
        if value.shape == () and value.dtype.kind in "biuf" and value == value
        else value.tobytes()
    )


def _params_key(params: dict[str, Any], bodies: tuple[Program, ...]) -> Any:
    if not params:
        return ()
    rest = tuple((k, _param_key(v)) for k, v in sorted(params.items()) if not (bodies and _holds_jaxpr(v)))
    return (rest, tuple(b.key for b in bodies))


def _holds_jaxpr(value: Any) -> bool:
    items = value if isinstance(value, tuple | list) else (value,)
    return any(hasattr(v, "eqns") or hasattr(v, "jaxpr") for v in items)


def _param_key(value: Any) -> Any:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        hoisted: list[Any] = []
        program = flatten_jaxpr(value, hoisted)
        return (program.key, tuple(value_key(h) for h in hoisted if not isinstance(h, Tracer)))
    if isinstance(value, tuple | list):
        return (type(value).__name__, tuple(_param_key(v) for v in value))
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes())
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


# Replay


def bind_instr(instr: Instr, args: Sequence[Any]) -> list[Any]:
    """Apply one equation to JAX values (tracers included), all operands given."""
    if instr.region is not None:
        return run_program(instr.region, args)
    # Fresh variables: an equation may name a variable twice, or hold a literal where a copy has a variable.
    invars = [jex.Var(v.aval) for v in instr.eqn.invars]
    eqn = instr.eqn.replace(invars=invars)
    info = jex.DebugInfo("gnewt", instr.prim, ("",) * len(invars), ("",) * len(eqn.outvars))
    jaxpr = jex.Jaxpr((), invars, eqn.outvars, [eqn], eqn.effects, info)
    return list(jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*args))


def bind_scalars(instr: Instr, args: Sequence[Any]) -> Any:
    """Apply an elementwise equation to scalars: its parameters know no shapes."""
    return instr.eqn.primitive.bind(*args, **instr.params)


def run_program(program: Program, args: Sequence[Any], hoisted: Any = ()) -> list[Any]:
    """Evaluate a flat program with JAX."""
    env: dict[int, Any] = dict(zip(program.ins, args, strict=True))
    for var, at in program.consts:
        env[var] = hoisted[at]

    def read(v: Any) -> Any:
        return jnp.asarray(v.value, v.dtype) if isinstance(v, Lit) else env[v]

    for instr in program.instrs:
        for var, value in zip(instr.outs, bind_instr(instr, [read(v) for v in instr.ins]), strict=True):
            env[var] = value
    return [read(v) for v in program.outs]


# Where


def where_of(eqn: Any) -> str:
    """Return `file:line` of the user's code that made an equation (or an Instr)."""
    if isinstance(eqn, Instr):
        return where_of(eqn.site) or where_of(eqn.eqn)
    try:
        frames = eqn.source_info.traceback.frames
    except AttributeError:
        return ""
    for frame in frames:
        name = frame.file_name
        if not any(root in name for root in _LIBRARY_ROOTS):
            line = getattr(frame, "line_num", None) or getattr(frame, "start_line", 0)
            return f"{os.path.relpath(name) if os.path.isabs(name) else name}:{line}"
    return ""
