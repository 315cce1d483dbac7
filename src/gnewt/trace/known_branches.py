"""Loop bodies with predicates that are known: branches are chosen and inner loops written out before a body is lifted.

In: the body of a loop, or a branch of it, and the values of its inputs. Out: an equal program without those branches, for
all iterations or for groups of them that choose alike. An integrator's loop over its stages becomes plain arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Instr, Lit, Operand, Program, bind_instr, fold_program, scan_spec, while_spec
from gnewt.jaxprs.liveness import dependents, needed_inputs, operands_needed, varying_of_loop
from gnewt.jaxprs.parts import retraced
from gnewt.trace.constants import Const
from gnewt.trace.lift import Lifter, Value

MOST_GROUPS = 4
"""Groups of iterations that are written apart."""
MOST_EQUATIONS = 4_000
"""Equations of a body whose inner loops are written out."""
_MOST_WRITTEN = 64
"""Entries of a known array that becomes a part of a program."""

_Number: TypeAlias = np.ndarray | jax.Array
"""Known, or traced."""


class _TooLong(Exception):
    """More equations than MOST_EQUATIONS."""


def has_known_branches(program: Program, unknown: Sequence[bool]) -> bool:
    """Whether there are loops or branches whose predicates depend on none of the marked inputs."""
    found = dependents(program.instrs, [v for v, flag in zip(program.ins, unknown, strict=True) if flag])
    for instr in program.instrs:
        flags = [isinstance(v, int) and v in found for v in instr.ins]
        if instr.region is None and any(flags) and _is_known(instr, flags):
            return True
    return False


def _is_known(instr: Instr, unknown: list[bool]) -> bool:
    if instr.prim == "cond":
        return not unknown[0]
    if instr.prim == "while":
        spec = while_spec(instr)
        needed = operands_needed(instr, [False] * len(instr.outs))
        at = spec.cond_consts + spec.body_consts
        carried = varying_of_loop(spec.body, unknown[spec.cond_consts :], spec.body_consts, len(unknown) - at)
        flags = [*unknown[:at], *carried]
        return not any(flag and used for flag, used in zip(flags, needed, strict=True))
    if instr.prim != "scan":
        return False
    loop = scan_spec(instr)
    first, end = loop.num_consts, loop.num_consts + loop.num_carry
    carried = varying_of_loop(loop.body, unknown, first, loop.num_carry)[: loop.num_carry]
    return has_known_branches(loop.body, [*unknown[:first], *carried, *unknown[end:]])


def _predicate_inputs(program: Program) -> list[bool]:
    """Which inputs the predicates of a program depend on."""
    asked: list[int] = []
    for instr in program.instrs:
        if instr.region is None and instr.bodies:
            flags = _predicate_operands(instr)
            asked += [v for v, flag in zip(instr.ins, flags, strict=True) if flag and isinstance(v, int)]
    return needed_inputs(dataclasses.replace(program, outs=asked), [True] * len(asked))


def _predicate_operands(instr: Instr) -> list[bool]:
    """Which operands of a loop or a branch the predicates in it depend on."""
    if instr.prim == "cond":
        inside = [_predicate_inputs(body) for body in instr.bodies]
        return [True, *(any(flags) for flags in zip(*inside, strict=True))]
    if instr.prim == "scan":
        spec = scan_spec(instr)
        first, end = spec.num_consts, spec.num_consts + spec.num_carry
        flags = _predicate_inputs(spec.body)
        outs = [*flags[first:end], *[False] * (len(instr.outs) - spec.num_carry)]
        return [a or b for a, b in zip(flags, operands_needed(instr, outs), strict=True)]
    if instr.prim == "while":
        loop = while_spec(instr)
        flags = _predicate_inputs(loop.body)
        needed = operands_needed(instr, flags[loop.body_consts :])
        return [a or b for a, b in zip([False] * loop.cond_consts + flags, needed, strict=True)]
    return [True] * len(instr.ins)


def groups_of_iterations(lift: Lifter, program: Program, values: Sequence[Value]) -> list[np.ndarray]:
    """Group iterations whose integers and booleans, as far as predicates depend on them, are equal.

    At most MOST_GROUPS: what would make more (a place in a table) is left out.
    """
    batch = lift.ctx.batch
    choices = [
        (np.unique(np.asarray(v.value).reshape(batch, -1), axis=0, return_inverse=True)[1].ravel(), v)
        for v, flag in zip(values, _predicate_inputs(program), strict=True)
        if flag and isinstance(v, Const) and _is_choice(v) and v.shape[0] == batch > 1
    ]
    group = np.zeros(batch, np.int64)
    for own, value in sorted(choices, key=lambda choice: int(choice[0].max())):
        finer = np.unique(group * batch + own, return_inverse=True)[1].ravel()
        if finer.max() < MOST_GROUPS:
            group = finer
            lift.watch(value)
    return [np.flatnonzero(group == g) for g in range(int(group.max()) + 1)]


def _is_choice(value: Value) -> bool:
    """Whether a value is a known integer or boolean."""
    return isinstance(value, Const) and value.value is not None and np.dtype(value.dtype).kind in "biu"


def resolve_branches(lift: Lifter, program: Program, values: Sequence[Value]) -> Program | None:
    """Write a program anew with the integers and booleans that are equal in all iterations; None if that is too long."""
    known = [_equal_in_all(v) for v in values]
    run = _Resolver(lift.trips)
    try:
        found = retraced(
            program,
            lambda args, _: [
                jnp.asarray(v)
                for v in run.run(program, [a if k is None else k for a, k in zip(args, known, strict=True)])
            ],
        )
    except _TooLong:
        return None
    for value, number in zip(values, known, strict=True):
        if number is not None:
            assert isinstance(value, Const)
            lift.watch(value)
    return found


def _equal_in_all(value: Value) -> np.ndarray | None:
    if not _is_choice(value):
        return None
    rows = np.asarray(value.value)  # type: ignore[union-attr]
    return np.asarray(rows[0]) if bool(np.all(rows == rows[:1])) else None


class _Resolver:
    """Runs a program on known and traced numbers; counts the equations that it writes."""

    def __init__(self, trips: dict[Hashable, int]) -> None:
        self._left = MOST_EQUATIONS
        self._trips = trips

    def run(self, program: Program, args: Sequence[_Number]) -> list[_Number]:
        if program.consts:
            raise _TooLong
        env: dict[int, _Number] = dict(zip(program.ins, args, strict=True))

        def read(v: Operand) -> _Number:
            return np.asarray(v.value, v.dtype) if isinstance(v, Lit) else env[v]

        for instr in program.instrs:
            env.update(zip(instr.outs, self._apply(instr, [read(v) for v in instr.ins]), strict=True))
        return [read(v) for v in program.outs]

    def _apply(self, instr: Instr, args: list[_Number]) -> Sequence[_Number]:
        unknown = [not isinstance(a, np.ndarray) for a in args]
        if not any(unknown):
            return _fold(instr, args)
        if instr.region is None and instr.bodies and _is_known(instr, unknown):
            return {"cond": self._cond, "scan": self._scan, "while": self._while}[instr.prim](instr, args)
        self._left -= 1
        if self._left < 0:
            raise _TooLong
        return bind_instr(instr, [_written(a) if isinstance(a, np.ndarray) else a for a in args])

    def _cond(self, instr: Instr, args: list[_Number]) -> list[_Number]:
        which = min(max(int(args[0]), 0), len(instr.bodies) - 1)
        return self.run(instr.bodies[which], args[1:])

    def _scan(self, instr: Instr, args: list[_Number]) -> list[_Number]:
        spec = scan_spec(instr)
        first = spec.num_consts
        carry, xs = args[first : first + spec.num_carry], args[first + spec.num_carry :]
        rows: list[list[_Number]] = []
        for t in range(spec.length)[:: -1 if spec.reverse else 1]:
            outs = self.run(spec.body, [*args[:first], *carry, *[x[t] for x in xs]])
            carry = outs[: spec.num_carry]
            rows.append(outs[spec.num_carry :])
        rows = rows[:: -1 if spec.reverse else 1]
        avals = instr.out_avals[spec.num_carry :]
        return [*carry, *[_stack([row[i] for row in rows], a.dtype) for i, a in enumerate(avals)]]

    def _while(self, instr: Instr, args: list[_Number]) -> list[_Number]:
        spec = while_spec(instr)
        first, at = spec.cond_consts, spec.cond_consts + spec.body_consts
        carry = args[at:]
        for n in range(MOST_EQUATIONS):
            if not bool(self.run(spec.cond, [*args[:first], *carry])[0]):
                self._trips[instr.key] = max(self._trips.get(instr.key, 0), n)
                return carry
            carry = self.run(spec.body, [*args[first:at], *carry])
        raise _TooLong


def _fold(instr: Instr, args: list[_Number]) -> list[np.ndarray]:
    count = len(args)
    outs = list(range(count, count + len(instr.outs)))
    alone = dataclasses.replace(instr, ins=list(range(count)), outs=outs)
    program = Program([*instr.in_avals, *instr.out_avals], list(range(count)), [], [alone], list(outs))
    return [np.asarray(v) for v in fold_program(program, args)]


def _written(value: np.ndarray) -> _Number:
    """A known array that becomes a part of the program text: made of scalars, so that nothing is captured."""
    if value.shape == () or value.size == 0:
        return value
    if np.all(value == value.flat[0]):
        return jnp.full(value.shape, value.flat[0])
    if value.size > _MOST_WRITTEN:
        raise _TooLong
    return jnp.reshape(jnp.stack([jnp.asarray(v) for v in value.ravel()]), value.shape)


def _stack(rows: list[_Number], dtype: np.dtype) -> _Number:
    if all(isinstance(r, np.ndarray) for r in rows):
        return np.stack(rows) if rows else np.zeros(0, dtype)
    return jnp.stack([_written(r) if isinstance(r, np.ndarray) else r for r in rows])
