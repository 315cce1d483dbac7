"""Lanes of opaque equations: what acts on every slice of a batch alike is one instance for each slice.

In: an opaque equation and its operands. Out: the equation of one lane, and the operands with all lanes along the leading
axis, where loop iterations are.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np

from gnewt.jaxprs import Instr, Program
from gnewt.jaxprs.lane_programs import Lanes, split_lanes
from gnewt.trace.constants import Const, Known
from gnewt.trace.lift import Context, Lifter, Value

_MOST_NUMBERS = 65536
"""Entries of an index array that are looked at."""


@dataclasses.dataclass(frozen=True, eq=False)
class LaneCall:
    """One lane of an opaque equation, at all lanes."""

    instr: Instr
    ins: list[Value]
    context: Context
    lanes: Lanes
    lead: int

    def restore(self, outs: list[Value]) -> list[Value]:
        """Put the axis of the lanes back where the equation has it."""
        found: list[Value] = []
        for out, axis in zip(outs, self.lanes.outs, strict=True):
            if isinstance(out, Const):
                found.append(out)
                continue
            parts = np.broadcast_to(out, (self.lead * self.lanes.count, *out.shape[1:]))
            parts = parts.reshape(self.lead, self.lanes.count, *out.shape[1:])
            found.append(np.moveaxis(parts, 1, axis + 1))
        return found


def lanes_of_call(lift: Lifter, instr: Instr, ins: list[Value]) -> LaneCall | None:
    """Split an opaque equation into lanes; None where it has none."""
    varying = [not isinstance(v, Const) for v in ins]
    lanes = split_lanes(_program(instr), varying, [_numbers(lift, v) for v in ins])
    if lanes is None:
        return None
    lead = max(v.shape[0] for v in ins)
    outer = lift.ctx
    keys = np.repeat(outer.keys[:lead] if lead == 1 else outer.keys, lanes.count)
    single = lanes.program
    lane = Instr(
        instr.prim,
        {},
        list(single.ins),
        list(instr.outs),
        instr.eqn,
        key=("lane", instr.key, tuple(lanes.ins), tuple(a.shape for a in instr.in_avals)),
        region=single,
        site=instr.site,
        in_avals=tuple(single.avals[v] for v in single.ins),
        out_avals=tuple(single.aval(v) for v in single.outs),
    )
    moved = [_to_front(lift, v, axis, lead, lanes.count) for v, axis in zip(ins, lanes.ins, strict=True)]
    return LaneCall(lane, moved, Context(len(keys), keys, outer.offset), lanes, lead)


def _numbers(lift: Lifter, value: Value) -> np.ndarray | None:
    """The numbers 0, 1, 2, ... of a constant that counts along an axis: rows picked by their number are lanes."""
    if not isinstance(value, Const) or value.value is None or value.shape[0] != 1:
        return None
    if not np.issubdtype(value.dtype, np.integer) or not 1 < value.value.size <= _MOST_NUMBERS:
        return None
    numbers = np.asarray(value.value)[0]
    for axis, length in enumerate(numbers.shape):
        if length > 1 and np.all(np.moveaxis(numbers, axis, -1) == np.arange(length)):
            return lift.watch(value)[0]
    return None


def _program(instr: Instr) -> Program:
    """An equation as a program of its own."""
    if instr.region is not None:
        return instr.region
    count = len(instr.ins)
    outs = list(range(count, count + len(instr.outs)))
    inner = dataclasses.replace(instr, ins=list(range(count)), outs=outs)
    return Program([*instr.in_avals, *instr.out_avals], list(range(count)), [], [inner], outs)


def _to_front(lift: Lifter, value: Value, axis: int | None, lead: int, count: int) -> Value:
    """Bring [lead, ..., lanes, ...] to [lead · lanes, ...]; what all lanes share is repeated only inside loops."""
    own = value.shape[0]
    if axis is None and own == 1:
        return value
    rest = value.shape[1:] if axis is None else tuple(n for i, n in enumerate(value.shape[1:]) if i != axis)
    shape = (lead * count, *rest)

    def move(xp: ModuleType, v: Known) -> tuple[Known]:
        if axis is None:
            return (xp.repeat(v, count, axis=0),)
        v = xp.moveaxis(v, axis + 1, 1)
        return (xp.reshape(xp.broadcast_to(v, (lead, *v.shape[1:])), shape),)

    if isinstance(value, Const):
        return lift.constants.apply(move, [value], [(shape, value.dtype)])[0]
    return np.asarray(move(np, value)[0])
