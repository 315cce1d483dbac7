"""Regions: opaque equations closed under edges that cannot be slots (integers, booleans, complex numbers).

In: a flat program. Out: the same program, where each opaque equation that makes such values (LU pivots, sort orders, FFT
coefficients) is joined with everything that consumes them, until only real floating-point values leave. Their own
integer or boolean operands need no region: expressions are evaluated inside the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gnewt._errors import TraceError, explain_error
from gnewt.jaxprs import (
    Instr,
    Lit,
    Program,
    is_float,
    literal_key,
    shape_of,
    size_of,
    variables,
    where_of,
)
from gnewt.jaxprs.lane_programs import split_lanes
from gnewt.jaxprs.liveness import dependents, read_variables
from gnewt.jaxprs.primitives import primitive

_MAX_LOCAL = 4
"""A region whose lanes read at most this many scalars takes in the elementwise equations that follow."""


class NeedRegion(Exception):
    """An equation turned out to be opaque with outputs that cannot be slots: close it and start again."""

    def __init__(self, instr: Instr, enclosing: Sequence[Instr] = ()) -> None:
        super().__init__(instr.prim)
        self.instr = instr
        self.enclosing = tuple(enclosing)

    def candidates(self, forced: set[int]) -> int:
        """Return the identity of the equation to close: the innermost not tried yet."""
        for instr in (self.instr, *reversed(self.enclosing)):
            if id(instr) not in forced:
                return id(instr)
        raise TraceError(
            explain_error(
                f"{self.instr.prim} makes integers, booleans or complex numbers that leave every region",
                where_of(self.instr),
                "convert them to float before they leave the loop",
            )
        )


def close_regions(program: Program, varying: Sequence[bool], opaque: Callable[[Instr], bool]) -> Program:
    """Replace opaque equations with non-float results, and their consumers, by region equations."""
    found = dependents(program.instrs, [v for v, flag in zip(program.ins, varying, strict=True) if flag])
    instrs = program.instrs
    for start in range(len(instrs)):
        instr = instrs[start]
        if found.isdisjoint(instr.outs) or instr.region is not None or not opaque(instr):
            continue
        if all(is_float(a.dtype) for a in instr.out_avals) or not _consumed_nonfloat(instrs, instr):
            continue
        members = _extended(program, instrs, _closure(instrs, start), found)
        joined = Program(
            program.avals, program.ins, program.consts, _join(program, instrs, members), program.outs
        )
        joined.key = program.key
        return close_regions(joined, varying, opaque)
    return program


def _consumed_nonfloat(instrs: list[Instr], instr: Instr) -> bool:
    special = {v for v, a in zip(instr.outs, instr.out_avals, strict=True) if not is_float(a.dtype)}
    return not special.isdisjoint(read_variables(instrs))


def _closure(instrs: list[Instr], start: int) -> set[int]:
    """Add consumers of non-float values, and everything on a path between two members (convexity)."""
    members = {start}
    while True:
        made = {v for i in members for v in instrs[i].outs}
        special = {
            v
            for i in members
            for v, a in zip(instrs[i].outs, instrs[i].out_avals, strict=True)
            if not is_float(a.dtype)
        }
        more = {i for i, other in enumerate(instrs) if not special.isdisjoint(variables(other.ins))}
        after: set[int] = set()
        reach = set(made)
        for i, other in enumerate(instrs):
            if i not in members and not reach.isdisjoint(variables(other.ins)):
                after.add(i)
                reach.update(other.outs)
        wanted = read_variables(instrs[i] for i in members)
        for i in range(len(instrs) - 1, -1, -1):
            if i not in members and not wanted.isdisjoint(instrs[i].outs):
                wanted.update(variables(instrs[i].ins))
                if i in after:
                    more.add(i)
        if more <= members:
            return members
        members |= more


def _extended(program: Program, instrs: list[Instr], members: set[int], varying: set[int]) -> set[int]:
    """Add elementwise equations that read nothing new, where every lane reads a few scalars only (an interpolation)."""
    inside = [instrs[i] for i in sorted(members)]
    made = {v for instr in inside for v in instr.outs}
    inputs = (read_variables(inside) - made) & varying
    more = set(members)
    for i in range(min(members), len(instrs)):
        instr = instrs[i]
        read = set(variables(instr.ins)) & varying
        local = primitive(instr.prim).elementwise or instr.prim == "broadcast_in_dim"
        if i not in more and local and read <= made | inputs and not read.isdisjoint(made):
            more.add(i)
            made.update(instr.outs)
    more = _without_loose_ends(program, instrs, members, more)
    if more == members:
        return members
    body, _ = _body(program, instrs, more)
    flags = [v in varying for v in body.ins]
    while (lanes := split_lanes(body, flags)) is not None:
        body = lanes.program
    width = sum(size_of(shape_of(body.avals[v])) for v, flag in zip(body.ins, flags, strict=True) if flag)
    return more if width <= _MAX_LOCAL else members


def _without_loose_ends(program: Program, instrs: list[Instr], members: set[int], more: set[int]) -> set[int]:
    """Leave out what makes integers, booleans or complex numbers for equations outside, and what reads such results."""
    kept = set(more)
    while True:
        outside = read_variables((instr for i, instr in enumerate(instrs) if i not in kept), program.outs)
        dropped = {v for i in more - kept for v in instrs[i].outs}
        loose = {
            i
            for i in kept - members
            if not dropped.isdisjoint(variables(instrs[i].ins))
            or any(
                v in outside and not is_float(a.dtype)
                for v, a in zip(instrs[i].outs, instrs[i].out_avals, strict=True)
            )
        }
        if not loose:
            return kept
        kept -= loose


def _body(program: Program, instrs: list[Instr], members: set[int]) -> tuple[Program, list[Instr]]:
    """The program of a region, and the equations outside."""
    inside = [instrs[i] for i in sorted(members)]
    made = {v for instr in inside for v in instr.outs}
    outside = [instr for i, instr in enumerate(instrs) if i not in members]
    read = read_variables(outside, program.outs)
    outs = [v for v in sorted(made) if v in read]
    return Program(program.avals, sorted(read_variables(inside) - made), [], inside, list(outs)), outside


def _join(program: Program, instrs: list[Instr], members: set[int]) -> list[Instr]:
    body, outside = _body(program, instrs, members)
    inside, ins, outs = body.instrs, body.ins, list(variables(body.outs))
    number = {v: i for i, v in enumerate(ins)}
    for instr in inside:
        for v in instr.outs:
            number.setdefault(v, len(number))
    parts = tuple(
        (instr.key, tuple(literal_key(v) if isinstance(v, Lit) else number[v] for v in instr.ins))
        for instr in inside
    )
    region = Instr("+".join(dict.fromkeys(i.prim for i in inside)), {}, ins, outs, inside[0].eqn)
    region.key = ("region", parts, tuple(number[v] for v in outs))
    region.region = body
    region.site = inside[0].site
    region.in_avals = tuple(program.avals[v] for v in ins)
    region.out_avals = tuple(program.avals[v] for v in outs)
    before, later, late = [], [], set(outs)
    for instr in outside:
        # What an equation reads has to be there before it, even where its results do not depend on that.
        reads_late = not late.isdisjoint(variables(instr.ins))
        (later if reads_late else before).append(instr)
        late.update(instr.outs if reads_late else ())
    return [*before, region, *later]


def as_one(program: Program) -> Program:
    """Replace all equations of a program by one region."""
    first, ins = program.instrs[0], [*program.ins, *[v for v, _ in program.consts]]
    outs = variables(program.outs)
    whole = Instr("function", {}, ins, outs, first.eqn, key=("function", program.key), site=first.site)
    whole.region = Program(program.avals, ins, [], program.instrs, list(outs))
    whole.in_avals = tuple(program.avals[v] for v in ins)
    whole.out_avals = tuple(program.avals[v] for v in outs)
    return Program(program.avals, program.ins, program.consts, [whole], program.outs, program.key)
