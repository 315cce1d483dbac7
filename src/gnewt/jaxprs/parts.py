"""Parts of programs, and equal programs: written by running a program through JAX's tracer once more.

In: a flat program. Out: `part_of`, the program of some of its outputs, in which loops carry no more than these outputs need;
`bound_loops`, the program with a bound on its while loops, which JAX can then differentiate in reverse mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from gnewt.jaxprs import compat
from gnewt.jaxprs.compat import Aval, Numeric
from gnewt.jaxprs.flatten import flatten_jaxpr
from gnewt.jaxprs.liveness import needed_results, operands_needed
from gnewt.jaxprs.program import Instr, Lit, Operand, Program
from gnewt.jaxprs.replay import bind_instr
from gnewt.jaxprs.specs import scan_spec, while_spec

Trips: TypeAlias = Mapping[Hashable, int]
"""Bounds on the numbers of iterations of while loops, by the keys of their equations."""
Captured: TypeAlias = dict[int, jax.Array]
"""Captured constants by position."""


def part_of(program: Program, outs: Sequence[bool]) -> Program | None:
    """Return the program of the marked outputs; inputs and captured constants keep their places. None: it has no such form."""
    asked = [o for o, flag in zip(program.outs, outs, strict=True) if flag]
    return _rewritten(dataclasses.replace(program, outs=asked), {})


def bound_loops(program: Program, trips: Trips) -> Program | None:
    """Replace while loops by scans of so many iterations, which pass on what they carry once the loop has ended."""
    return _rewritten(program, trips)


def _rewritten(program: Program, trips: Trips) -> Program | None:
    every = [True] * len(program.outs)
    return retraced(
        program, lambda args, captured: _present(_Replay(trips).run(program, args, captured, every))
    )


def _present(values: Iterable[jax.Array | None]) -> list[jax.Array]:
    return [v for v in values if v is not None]


def bounded_body(instr: Instr) -> Program | None:
    """Return one iteration of a while loop as a program: (its constants, carries) ↦ carries, which end as they are."""
    spec = while_spec(instr)
    cond, body = (compat.as_function(instr.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    at = spec.cond_consts + spec.body_consts

    def step(*args: jax.Array) -> list[jax.Array]:
        consts, carry = args[spec.cond_consts : at], args[at:]
        go = cond(*args[: spec.cond_consts], *carry)[0]
        return jax.lax.cond(go, lambda *c: list(body(*consts, *c)), lambda *c: list(c), *carry)

    hoisted: list[Numeric] = []
    found = flatten_jaxpr(jax.make_jaxpr(step)(*map(_struct, instr.in_avals)), hoisted)
    return None if hoisted else found


def retraced(
    program: Program, run: Callable[[list[jax.Array], Captured], Sequence[jax.Array]]
) -> Program | None:
    """Return what `run` computes of the inputs and captured constants of a program; None where that captures more."""
    avals: dict[int, Aval] = {}
    _collect(program, avals)
    positions = sorted(avals)

    def traced(args: list[jax.Array], consts: list[jax.Array]) -> Sequence[jax.Array]:
        return run(args, dict(zip(positions, consts, strict=True)))

    hoisted: list[Numeric] = []
    inputs = [_struct(program.avals[v]) for v in program.ins]
    jaxpr = jax.make_jaxpr(traced)(inputs, [_struct(avals[p]) for p in positions])
    found = flatten_jaxpr(jaxpr, hoisted)
    if hoisted:
        return None
    found.consts = list(zip(found.ins[len(inputs) :], positions, strict=True))
    found.ins = found.ins[: len(inputs)]
    return found


def _struct(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _collect(program: Program, captured: dict[int, Aval]) -> None:
    captured.update((at, program.avals[var]) for var, at in program.consts)
    for instr in program.instrs:
        for body in instr.bodies:
            _collect(body, captured)


class _Replay:
    """Runs programs with JAX; what is not needed is None."""

    def __init__(self, trips: Trips) -> None:
        self._trips = trips

    def run(
        self, program: Program, args: Sequence[jax.Array | None], captured: Captured, outs: Sequence[bool]
    ) -> list[jax.Array | None]:
        env: dict[int, jax.Array | None] = dict(zip(program.ins, args, strict=True))
        env.update((var, captured[at]) for var, at in program.consts)

        def read(v: Operand) -> jax.Array | None:
            return jnp.asarray(v.value, v.dtype) if isinstance(v, Lit) else env.get(v)

        for instr, marked in needed_results(program, outs):
            found = self._apply(instr, [read(v) for v in instr.ins], captured, marked)
            env.update(zip(instr.outs, found, strict=True))
        return [read(v) if flag else None for v, flag in zip(program.outs, outs, strict=True)]

    def _touched(self, program: Program) -> bool:
        return any(i.key in self._trips or any(map(self._touched, i.bodies)) for i in program.instrs)

    def _apply(
        self, instr: Instr, args: list[jax.Array | None], captured: Captured, marked: list[bool]
    ) -> Sequence[jax.Array | None]:
        inside = not all(marked) or instr.key in self._trips or any(map(self._touched, instr.bodies))
        if inside and instr.prim == "scan":
            return self._scan(instr, args, captured, marked)
        if inside and instr.prim == "cond":
            return self._cond(instr, args, captured, marked)
        if inside and instr.prim == "while":
            return self._while(instr, args, captured, marked)
        return bind_instr(instr, args)  # type: ignore[arg-type]

    def _scan(
        self, instr: Instr, args: list[jax.Array | None], captured: Captured, marked: list[bool]
    ) -> list[jax.Array | None]:
        spec = scan_spec(instr)
        first, n = spec.num_consts, spec.num_carry
        carried = operands_needed(instr, marked)[first : first + n]
        outs = [*carried, *marked[n:]]
        places = [j for j, flag in enumerate(outs) if flag]

        def step(carry: list[jax.Array], x: list[jax.Array | None]) -> tuple[list, list]:
            given = iter(carry)
            full = [next(given) if flag else None for flag in carried]
            found = self.run(spec.body, [*args[:first], *full, *x], captured, outs)
            return _present(found[:n]), _present(found[n:])

        init = _present(v for v, flag in zip(args[first : first + n], carried, strict=True) if flag)
        last, ys = jax.lax.scan(step, init, args[first + n :], length=spec.length, reverse=spec.reverse)
        found = dict(zip(places, [*last, *ys], strict=True))
        return [found.get(j) for j in range(len(outs))]

    def _cond(
        self, instr: Instr, args: list[jax.Array | None], captured: Captured, marked: list[bool]
    ) -> list[jax.Array | None]:
        def branch(body: Program) -> Callable[[], list[jax.Array]]:
            return lambda: _present(self.run(body, args[1:], captured, marked))

        index = args[0]
        assert index is not None
        found = iter(jax.lax.switch(index, [branch(body) for body in instr.bodies]))
        return [next(found) if flag else None for flag in marked]

    def _while(
        self, instr: Instr, args: list[jax.Array | None], captured: Captured, marked: list[bool]
    ) -> list[jax.Array | None]:
        spec = while_spec(instr)
        at = spec.cond_consts + spec.body_consts
        carried = operands_needed(instr, marked)[at:]

        def full(carry: list[jax.Array]) -> list[jax.Array | None]:
            given = iter(carry)
            return [next(given) if flag else None for flag in carried]

        def go(carry: list[jax.Array]) -> jax.Array | None:
            return self.run(spec.cond, [*args[: spec.cond_consts], *full(carry)], captured, [True])[0]

        def step(carry: list[jax.Array]) -> list[jax.Array]:
            found = self.run(spec.body, [*args[spec.cond_consts : at], *full(carry)], captured, carried)
            return _present(found)

        def go_on(carry: list[jax.Array], _: None) -> tuple[list[jax.Array], None]:
            return jax.lax.cond(go(carry), step, lambda c: c, carry), None

        init = _present(v for v, flag in zip(args[at:], carried, strict=True) if flag)
        if instr.key in self._trips:
            return full(jax.lax.scan(go_on, init, None, length=self._trips[instr.key])[0])
        return full(jax.lax.while_loop(go, step, init))
