"""Outputs: which slots hold the auxiliary data. Once per structure, after its slots are numbered.

The structure is that of the objective alone. Lifting left behind what it knows of the variables (`Seen`); equations that
only the auxiliary data needs are followed from there as far as they move scalars about. Whatever they compute, and
whatever lifting hid inside a dense block, gets fresh ids: no slot.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnewt.graph import Kind, Output
from gnewt.jaxprs import Instr, Lit, Program, is_float, shape_of
from gnewt.jaxprs.primitives import primitive
from gnewt.trace.constants import Const, Unknown, all_constant
from gnewt.trace.lift import Context, Lifter, Seen, Value
from gnewt.trace.loop_carries import LoopCarries
from gnewt.trace.loop_rules import stack_iterations
from gnewt.trace.opaque_regions import NeedRegion
from gnewt.trace.rules import Opaque

_TAKES = {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "select_n", "convert_element_type"}
"""Primitives besides those that only move data whose results may be scalars of their operands."""

Env = dict[int, Value]


@dataclasses.dataclass(frozen=True, eq=False)
class Numbering:
    """Which slot each scalar of the pool has become."""

    target: np.ndarray
    """int32[size]: the id that defines each id (placeholders of loops are aliases)."""
    slot_of: np.ndarray
    """int32[size]: slot of each id, -1 for none."""
    held: dict[int, int]
    """Constant id → slot that holds the constant."""

    def describe(self, ids: np.ndarray, dtype: np.dtype) -> Output:
        """Say for each id which slot holds it, or why none does."""
        ids = self._take(self.target, ids, ids)
        slots = self._take(self.slot_of, ids, np.full(ids.shape, -1, np.int32))
        for constant in np.unique(ids[ids < 0]).tolist() if self.held else ():
            slots[ids == constant] = self.held.get(constant, -1)
        kinds = np.where(slots >= 0, Kind.SLOT, np.where(ids < 0, Kind.CONSTANT, Kind.SUBSTITUTED))
        return Output(slots, kinds.astype(np.int8), dtype)

    def _take(self, table: np.ndarray, ids: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Look up the ids of the pool; constants and fresh ids have no entry."""
        known = (ids >= 0) & (ids < len(table))
        return np.where(known, table[np.where(known, ids, 0)], others)


def find_outputs(
    lifter: Lifter, program: Program, outs: Sequence[int | Lit], numbering: Numbering
) -> list[Output]:
    """Describe each of the given variables of a program that was lifted for its objective."""
    follower = _Follower(lifter)
    env = follower.known(program)
    program = dataclasses.replace(program, outs=list(outs))
    values = follower.follow(program, env)
    return [
        numbering.describe(ids.reshape(shape_of(program.aval(v))), program.aval(v).dtype)
        for ids, v in zip(values, outs, strict=True)
    ]


class _Follower:
    """Follows variables through data movement, on a lifter whose structure is finished."""

    def __init__(self, lifter: Lifter) -> None:
        assert lifter.seen is not None
        self.seen: Seen = lifter.seen
        self.lift = copy.copy(lifter)
        self.lift.seen = None
        self.lift.rules = {**lifter.rules, "opaque": _refuse}
        self._rows: dict[tuple[int, int | Lit], np.ndarray] = {}
        # What is added from here on must not be replayed at every call.
        self.lift.constants = constants = copy.copy(lifter.constants)
        for name, value in vars(constants).items():
            setattr(constants, name, copy.copy(value))

    def known(self, program: Program, env: Env | None = None) -> Env:
        """Values of the variables of a program, as far as lifting found them."""
        prepared, run = self.seen.runs.get(id(program.avals), (program, {}))
        env = {**(env or {}), **run}
        for instr in [*program.instrs, *prepared.instrs]:
            if id(instr) in self.seen.loops:
                loop = self.seen.loops[id(instr)][0]
                needed = loop.needed if instr.prim == "scan" else [True] * len(instr.outs)
            else:
                needed = [
                    self._is_real(env.get(v), a) for v, a in zip(instr.outs, instr.out_avals, strict=True)
                ]
            for v, flag in zip(instr.outs, needed, strict=True):
                if not flag:
                    env.pop(v, None)
        return env

    @staticmethod
    def _is_real(value: Value | None, aval: Any) -> bool:
        """Whether a value is what it says: results that nobody reads are stood in for by constants of another dtype."""
        return not isinstance(value, Const) or value.dtype == aval.dtype

    def follow(self, program: Program, env: Env) -> list[np.ndarray]:
        """Return the ids of the outputs of a program."""
        rolled = self._rolled(program)
        todo: list[Instr] = []
        wanted = {v for v in program.outs if isinstance(v, int)}
        for instr in reversed(program.instrs):
            missing = [v for v in instr.outs if v in wanted and v not in env]
            if missing:
                todo.append(instr)
            if any(v not in rolled for v in missing) and id(instr) not in self.seen.loops:
                wanted.update(v for v in instr.ins if isinstance(v, int))
        for instr in reversed(todo):
            for o, (v, aval) in enumerate(zip(instr.outs, instr.out_avals, strict=True)):
                if v in env:
                    continue
                if v in rolled:
                    outer, inner, r = rolled[v]
                    env[v] = self._iterations(outer, inner)[:, r]
                elif id(instr) in self.seen.loops:
                    env[v] = self._from_loop(instr, o)
                elif v in wanted:
                    found = self._moved(program, instr, env)
                    env[v] = self.fresh(aval) if found is None else found[o]
        return [self.lift.ids(self._read(program, env, v)) for v in program.outs]

    def _read(self, program: Program, env: Env, v: int | Lit) -> Value:
        if isinstance(v, Lit):
            return self.lift.literal(v)
        return env[v] if v in env else self.fresh(program.avals[v])

    def fresh(self, aval: Any) -> np.ndarray:
        """Ids that nothing in the graph has."""
        shape = shape_of(aval)
        return self.lift.add_inputs(int(np.prod(shape, dtype=np.int64)), aval.dtype).reshape(1, *shape)

    def _moved(self, program: Program, instr: Instr, env: Env) -> list[Value] | None:
        """Apply an equation that moves scalars about; None where it computes, or where indices may change."""
        ins = [self._read(program, env, v) for v in instr.ins]
        if all_constant(ins):
            # Values are needed for indices alone, and then only such as no call can change.
            if (
                not all(v.fixed for v in ins)
                or instr.bodies
                or any(is_float(a.dtype) for a in instr.out_avals)
            ):
                return [self.lift.constants.add_input(None, shape_of(a), a.dtype) for a in instr.out_avals]
        elif primitive(instr.prim).move is None and instr.prim not in _TAKES:
            return None
        watched = len(self.lift.constants.watched)
        try:
            found = self.lift.apply(instr, list(ins))
        except (Opaque, Unknown, NeedRegion):
            return None
        return found if len(self.lift.constants.watched) == watched else None

    # Loops

    def _rolled(self, program: Program) -> dict[int, tuple[Instr, int, int]]:
        """Variables of repeated equations that were rolled into a loop: (loop, variable of its body, repetition)."""
        prepared = self.seen.runs.get(id(program.avals), (program, {}))[0]
        return {
            v: (instr, inner, r)
            for instr in prepared.instrs
            if instr.prim == "rolled" and id(instr) in self.seen.loops
            for v, (inner, r) in instr.params["rolled"].places.items()
        }

    def _from_loop(self, instr: Instr, o: int) -> np.ndarray:
        """An output of a loop that the objective does not read: the last carry, or one row for each iteration."""
        spec = self.seen.loops[id(instr)][0].spec
        rows = self._iterations(instr, spec.body.outs[o])
        if o < spec.num_carry:
            return rows[:, -1]
        return rows[:, ::-1] if spec.reverse else rows

    def _iterations(self, instr: Instr, var: int | Lit) -> np.ndarray:
        """Ids [batch, T, ...] of a variable of the body, in the order of time."""
        if (id(instr), var) in self._rows:
            return self._rows[id(instr), var]
        loop, values = self.seen.loops[id(instr)]
        outer, length = self.lift.ctx, loop.spec.length
        self.lift.ctx = Context(outer.batch * length, np.zeros(outer.batch * length, np.int64))
        env = self.known(loop.body, values)
        for v in _spoiled(loop):
            env.pop(v, None)
        found = self.follow(dataclasses.replace(loop.body, outs=[var]), env)[0]
        self.lift.ctx = outer
        rows = self._rows[id(instr), var] = stack_iterations(found, outer.batch, length)
        return rows


def _refuse(*_: object) -> list[Value]:
    raise Opaque("an equation that computes")


def _spoiled(loop: LoopCarries) -> set[int]:
    """Variables of the body whose ids are not their values: carries that nobody needs, and partial sums."""
    first = loop.spec.num_consts
    bad = {
        loop.body.ins[first + j] for j, needed in enumerate(loop.needed[: loop.spec.num_carry]) if not needed
    }
    bad |= {loop.body.ins[first + j] for j, is_sum in enumerate(loop.sums) if is_sum}
    for instr in loop.body.instrs:
        if not bad.isdisjoint(v for v in instr.ins if isinstance(v, int)):
            bad.update(instr.outs)
    return bad
