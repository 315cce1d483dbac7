"""The reader: closed jaxpr → flat `Program`. Everything above reads JAX functions through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from gnewt.jaxprs import compat
from gnewt.jaxprs.compat import AnyJaxpr, Atom, Equation, Numeric, aval_of, primitive_name
from gnewt.jaxprs.keys import program_key
from gnewt.jaxprs.liveness import drop_dead
from gnewt.jaxprs.params import ParamReader, RuleMemo
from gnewt.jaxprs.program import Instr, Lit, Operand, Program, is_float

CALLS = frozenset({"jit", "closed_call", "core_call", "remat"})
"""Calls that mean nothing but their body."""
VALUE_CALLS = CALLS | {"custom_jvp_call", "custom_vjp_call", "call_hi_primitive"}
"""Calls whose values are those of their body: for programs that are not differentiated any more."""


def trace_jaxpr(f: Callable, args: Sequence[object]) -> tuple[AnyJaxpr, Any]:
    """Trace f anew (JAX's own cache would return the constants of an earlier call); (jaxpr, output tree)."""
    return jax.make_jaxpr(lambda *inner: f(*inner), return_shape=True)(*args)


def flatten_jaxpr(
    jaxpr: AnyJaxpr, hoisted: list[Numeric], inlined: Collection[str] = CALLS, memo: RuleMemo | None = None
) -> Program:
    """Turn a closed jaxpr into a Program.

    Args:
        jaxpr: the closed jaxpr.
        hoisted: captured constants are appended to it, in a fixed order.
        inlined: primitives that are replaced by their bodies.
        memo: of the derivative rules that were met in the program that this jaxpr is a part of.
    """
    program = Program([], [], [], [], [])
    opened, consts = compat.open_jaxpr(jaxpr)
    env: dict[Atom, Operand] = {}
    for var in opened.invars:
        env[var] = at = program.new_var(aval_of(var))
        program.ins.append(at)
    params = ParamReader(partial(flatten_jaxpr, inlined=CALLS), RuleMemo() if memo is None else memo)
    _Reader(program, hoisted, inlined, params).read(opened, consts, env, None)
    program.repeatable = params.repeatable
    program.outs = [_operand(env, v) for v in opened.outvars]
    # Side effects are refused before it matters that their equations have no readers.
    drop_dead(program)
    program.key = program_key(program)
    return program


def _operand(env: Mapping[Atom, Operand], atom: Atom) -> Operand:
    return Lit(atom.val, aval_of(atom)) if compat.is_literal(atom) else env[atom]


@dataclasses.dataclass(frozen=True)
class _Reader:
    program: Program
    hoisted: list[Numeric]
    inlined: Collection[str]
    params: ParamReader

    def read(
        self, jaxpr: Any, consts: Sequence[Numeric], env: dict[Atom, Operand], site: Equation | None
    ) -> None:
        """Append the equations of a jaxpr, and of what it calls; `site` is the outermost call of a library."""
        program = self.program
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = at = program.new_var(aval_of(var))
            program.consts.append((at, len(self.hoisted)))
            self.hoisted.append(value)
        for eqn in jaxpr.eqns:
            name = primitive_name(eqn)
            ins = [_operand(env, v) for v in eqn.invars]
            body = None if eqn.effects else self._body(name, eqn)
            if body is not None:
                inner, inner_consts = compat.open_jaxpr(body)
                # One jaxpr may be called many times: its variables are bound anew for each call.
                scope: dict[Atom, Operand] = dict(zip(inner.invars, ins, strict=True))
                # JAX traces a library function once: its equations then name the line that called it first.
                where = site if site is not None else eqn if compat.is_library(inner) else None
                self.read(inner, inner_consts, scope, where)
                env.update(zip(eqn.outvars, [_operand(scope, v) for v in inner.outvars], strict=True))
                continue
            outs = [program.new_var(aval_of(var)) for var in eqn.outvars]
            env.update(zip(eqn.outvars, outs, strict=True))
            bodies = tuple(
                flatten_jaxpr(sub, self.hoisted, self.inlined, self.params.memo)
                for sub in bodies_of(name, eqn)
            )
            program.instrs.append(
                Instr(
                    name,
                    eqn.params,
                    ins,
                    outs,
                    eqn,
                    bodies,
                    key=(name, self.params.key(name, eqn, bodies)),
                    site=eqn if site is None else site,
                    in_avals=tuple(aval_of(v) for v in eqn.invars),
                    out_avals=tuple(aval_of(v) for v in eqn.outvars),
                )
            )

    def _body(self, name: str, eqn: Equation) -> AnyJaxpr | None:
        """What stands for the equation, where it means nothing but that."""
        if name in self.inlined:
            return compat.call_body(eqn)
        if name != "call_hi_primitive" or any(is_float(aval_of(v).dtype) for v in eqn.outvars):
            return None
        # A search in a table: integers have no derivatives. Constants are collected by equations (`recognize`).
        body = compat.call_body(eqn)
        return None if compat.open_jaxpr(body)[1] else body


def bodies_of(name: str, eqn: Equation) -> Sequence[AnyJaxpr]:
    """Return the jaxprs of an equation that are flattened with the program: a scan's body, a cond's branches."""
    if name == "while":
        return (eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"])
    return (eqn.params["jaxpr"],) if name == "scan" else eqn.params["branches"] if name == "cond" else ()


# Facts about equations


def effectful(jaxpr: AnyJaxpr) -> Equation | None:
    """Return the first equation with side effects, or None."""
    for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
        if eqn.effects:
            for sub in compat.called_jaxprs(eqn):
                found = effectful(sub)
                if found is not None:
                    return found
            return eqn
    return None


def count_equations(jaxpr: AnyJaxpr) -> int:
    """Count the equations of a jaxpr, those of its calls included."""
    eqns = compat.open_jaxpr(jaxpr)[0].eqns
    return len(eqns) + sum(count_equations(sub) for eqn in eqns for sub in compat.called_jaxprs(eqn))


def primitives_of(instr: Instr) -> Iterator[tuple[str, Equation]]:
    """Iterate over (primitive name, equation) of an equation and everything it calls."""
    for inner in [instr] if instr.region is None else instr.region.instrs:
        yield from _primitives(inner.eqn)


def _primitives(eqn: Equation) -> Iterator[tuple[str, Equation]]:
    yield primitive_name(eqn), eqn
    for sub in compat.called_jaxprs(eqn):
        for inner in compat.open_jaxpr(sub)[0].eqns:
            yield from _primitives(inner)


_BRANCHES = frozenset(
    [
        "select_n",
        "cond",
        "while",
        "max",
        "min",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "clamp",
        "sort",
        "argmax",
        "argmin",
        "reduce_max",
        "reduce_min",
        "top_k",
        "cummax",
        "cummin",
        "gt",
        "lt",
        "ge",
        "le",
        "eq",
        "ne",
        "rem",
    ]
)
"""Primitives whose derivatives jump with their operands."""


def has_branches(program: Program) -> bool:
    """Whether a program chooses between values."""
    return any(name in _BRANCHES for instr in program.instrs for name, _ in primitives_of(instr))
