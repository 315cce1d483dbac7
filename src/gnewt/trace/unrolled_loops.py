"""Recognise a loop that the user's Python unrolled, as equal repeated equations, and make it a loop again.

In: a flat program. Out: the same program, with `rolled` equations in place of repetitions. Sixty steps written by a
Python `for` are sixty copies of one sequence of equations, with other variables. A period in the sequence of equation
keys, and operands that follow it, make a scan: what comes from the repetition before is a carry, what differs from
copy to copy is sliced, what is the same is shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from gnewt.jaxprs import (
    Instr,
    Lit,
    Operand,
    Program,
    ScanSpec,
    is_float,
    literal_key,
    program_key,
    same_operand,
    variables,
)
from gnewt.jaxprs.compat import Aval
from gnewt.jaxprs.liveness import drop_dead, read_variables
from gnewt.jaxprs.primitives import primitive

MIN_REPEATS = 4
MIN_EQUATIONS = 48
_SHARE = 8
"""A run covers at least this part of the equations: along a path through a tree some repeat, too, and that is no loop."""
_MAX_PERIOD = 2000
_MAX_LAG = 8


@dataclasses.dataclass(eq=False)
class Rolled:
    """A repeated run of equations as a scan."""

    spec: ScanSpec
    consts: list[int]
    init: list[Operand]
    xs: list[list[Operand]]
    """For each slice one variable or literal per repetition."""
    picks: list[tuple[int, int]]
    """(output of the body, repetition) for every value that is read outside; -1 for the last carry."""
    outs: list[int]
    places: dict[int, tuple[int, int]]
    """For every variable of the run the variable of the body, and the repetition."""


def roll_program(program: Program, varying: set[int], inputs: Sequence[int]) -> Program:
    """Replace the repeated runs of a program by `rolled` equations.

    Args:
        program: a flat program.
        varying: the variables that depend on the differentiated inputs.
        inputs: those inputs.
    """
    if len(program.instrs) < MIN_EQUATIONS:
        return program
    captured = [*program.ins, *(v for v, _ in program.consts)]
    # Slices of constants are periodic where they read a fixed initial state, and not where they follow the loop.
    best, early, rest = None, program.instrs, []
    for known, constants in (({*inputs}, False), ({*captured}, True)):
        split = _split_early(program, varying, known, constants)
        found = _find_run(split[1], len(split[1]) // _SHARE)
        if found is not None and (best is None or found[2] > best[2]):
            best, (early, rest) = found, split
    done, fewest = False, len(rest) // _SHARE
    for _ in range(4):
        if best is None:
            break
        start, period, repeats = best
        if all(varying.isdisjoint(i.outs) for i in rest[start : start + period * repeats]):
            # Constants are computed before everything else, and not rolled up.
            early = [*early, *(i for i in rest if varying.isdisjoint(i.outs))]
            rest = [i for i in rest if not varying.isdisjoint(i.outs)]
            best = _find_run(rest, fewest)
            continue
        rolled = None
        for skip in range(max(0, min(3, repeats - MIN_REPEATS + 1))):
            rolled = _make_rolled(program, rest, start + skip * period, period, repeats - skip, varying)
            if rolled is not None:
                start, repeats = start + skip * period, repeats - skip
                break
        if rolled is None:
            break
        rest = [*rest[:start], _as_instr(program, rolled, rest[start]), *rest[start + period * repeats :]]
        done = True
        best = _find_run(rest, fewest)
    if not done:
        return program
    out = Program(program.avals, program.ins, program.consts, [*early, *rest], program.outs)
    out.key = program.key
    return out


def _split_early(
    program: Program, varying: set[int], start: set[int], constants: bool
) -> tuple[list[Instr], list[Instr]]:
    """Data movement of the inputs (and of constants, and their arithmetic) comes first: the rest is periodic."""
    known = set(start)
    early, rest = [], []
    for instr in program.instrs:
        vars_ = variables(instr.ins)
        constant = constants and varying.isdisjoint(vars_)
        what = primitive(instr.prim)
        moves = bool(vars_) and (
            what.move is not None
            or (what.takes and varying.isdisjoint(variables(instr.ins[what.index_places])))
        )
        if all(v in known for v in vars_) and (constant or moves):
            known.update(instr.outs)
            early.append(instr)
        else:
            rest.append(instr)
    return early, rest


def _find_run(rest: list[Instr], fewest: int) -> tuple[int, int, int] | None:
    """Return (start, period, repeats) of the longest repetition, cut where the fewest values cross.

    Args:
        rest: equations.
        fewest: how many of them a repetition has at least.
    """
    number: dict[Hashable, int] = {}
    keys = []
    for instr in rest:
        shapes = tuple((a.shape, a.dtype) for a in instr.in_avals)
        key = (instr.key, shapes) if instr.prim != "rolled" else id(instr)
        keys.append(number.setdefault(key, len(number)))
    sequence = np.array(keys)
    length = len(sequence)
    best = (0, 0, 0)
    fewest = max(fewest, MIN_EQUATIONS)
    for period in range(1, min(_MAX_PERIOD, length // MIN_REPEATS) + 1):
        equal = np.concatenate([[0], (sequence[:-period] == sequence[period:]).astype(np.int8), [0]])
        edges = np.flatnonzero(np.diff(equal))
        if not edges.size:
            continue
        runs = edges[1::2] - edges[::2]
        at = int(np.argmax(runs))
        cover = int(runs[at]) + period
        if cover // period >= MIN_REPEATS and cover > best[0] * 1.05 and cover >= fewest:
            best = (cover, period, int(edges[::2][at]))
    cover, period, start = best
    if not cover:
        return None
    start = _best_cut(rest, start, period)
    return start, period, (best[2] + cover - start) // period


def _best_cut(rest: list[Instr], start: int, period: int) -> int:
    """Move the start within the first repetition to where the fewest scalars cross the boundary."""
    made = {v: i for i, instr in enumerate(rest) for v in instr.outs}
    last: dict[int, int] = {}
    for i, instr in enumerate(rest):
        for v in instr.ins:
            if isinstance(v, int) and v in made:
                last[v] = i
    sizes = np.zeros(len(rest) + 1)
    for v, end in last.items():
        instr = rest[made[v]]
        # Only what the next repetition reads: results for later belong to no cut.
        if end - made[v] <= 2 * period:
            size = int(np.prod(instr.out_avals[instr.outs.index(v)].shape, dtype=np.int64))
            sizes[made[v] + 1] += size
            sizes[end + 1] -= size
    crossing = np.cumsum(sizes)
    window = crossing[start + period : start + 2 * period]
    return start + int(np.argmin(window))


def _make_rolled(
    program: Program, rest: list[Instr], start: int, period: int, repeats: int, varying: set[int]
) -> Rolled | None:
    end = start + period * repeats
    if end - start < MIN_EQUATIONS:
        return None
    roller = _Roller(rest[start:end], period, repeats)
    return roller.finish(read_variables(rest[end:], program.outs)) if roller.read(varying) else None


class _Roller:
    """Turns equal repetitions of a run of equations into a scan."""

    def __init__(self, run: list[Instr], period: int, repeats: int) -> None:
        self.run, self.period, self.repeats = run, period, repeats
        self.place = {
            v: (i // period, i % period, o) for i, instr in enumerate(run) for o, v in enumerate(instr.outs)
        }
        """Variable → (repetition, equation, output)."""
        self.body = Program([], [], [], [], [])
        self.inner = {
            (q, o): self.body.new_var(aval)
            for q, instr in enumerate(run[:period])
            for o, aval in enumerate(instr.out_avals)
        }
        """(equation, output) → variable of the body."""
        self.consts: dict[int, int] = {}
        self.slices: dict[Hashable, tuple[int, list[Operand]]] = {}
        self.carries: dict[tuple[int, int, int], tuple[int, Operand]] = {}
        """(equation, output, lag) → (variable of the body, initial value)."""

    def read(self, varying: set[int]) -> bool:
        """Write the equations of the body; False where operands do not follow the period."""
        for q in range(self.period):
            copies = self.run[q :: self.period]
            ins: list[Operand] = []
            for at, aval in enumerate(copies[0].in_avals):
                found = self._operand([c.ins[at] for c in copies], aval, varying)
                if found is None:
                    return False
                ins.append(found)
            outs = [self.inner[q, o] for o in range(len(copies[0].outs))]
            self.body.instrs.append(dataclasses.replace(copies[0], ins=ins, outs=outs))
        return True

    def _operand(self, operands: list[Operand], aval: Aval, varying: set[int]) -> Operand | None:
        """Return what the body reads in place of one operand of all repetitions."""
        source = _source(operands, self.place, self.repeats)
        if source is None:
            return None
        kind, (q, o, lag) = source
        if kind == "inner":
            return self.inner[q, o]
        if kind == "carry":
            blocked = not is_float(aval.dtype) and operands[-1] in varying
            return None if blocked else self._carry(q, o, lag, operands, aval)
        first = operands[0]
        if kind == "same":
            if isinstance(first, Lit):
                return first
            if first not in self.consts:
                self.consts[first] = self.body.new_var(aval)
            return self.consts[first]
        key = tuple(literal_key(v) if isinstance(v, Lit) else v for v in operands)
        if key not in self.slices:
            self.slices[key] = (self.body.new_var(aval), operands)
        return self.slices[key][0]

    def _carry(self, q: int, o: int, lag: int, operands: list[Operand], aval: Aval) -> int | None:
        """Return the variable of a value from `lag` repetitions before: a shift register where lag > 1."""
        for back in range(1, lag + 1):
            init = operands[lag - back]
            if (q, o, back) not in self.carries:
                self.carries[q, o, back] = (self.body.new_var(aval), init)
            elif not same_operand(self.carries[q, o, back][1], init):
                return None
        return self.carries[q, o, lag][0]

    def finish(self, later: set[int]) -> Rolled | None:
        """Make the scan, given the variables that are read after it; None for copies that pass nothing on."""
        if not self.carries:
            # Independent copies batch by themselves.
            return None
        place, inner, carries, body = self.place, self.inner, self.carries, self.body
        wanted = [v for v in place if v in later]
        outputs = [inner[q, o] if lag == 1 else carries[q, o, lag - 1][0] for q, o, lag in carries]
        finals = {(q, o): i for i, (q, o, lag) in enumerate(carries) if lag == 1}
        last = {v for v in wanted if place[v][0] == self.repeats - 1 and place[v][1:] in finals}
        asked = list(dict.fromkeys(place[v][1:] for v in wanted if v not in last))
        picks = [
            (finals[place[v][1:]], -1)
            if v in last
            else (len(carries) + asked.index(place[v][1:]), place[v][0])
            for v in wanted
        ]
        body.outs = [*outputs, *(inner[key] for key in asked)]
        # Equations that no output needs would only be dead weight.
        drop_dead(body)
        carried, sliced = [var for var, _ in carries.values()], [var for var, _ in self.slices.values()]
        body.ins = [*self.consts.values(), *carried, *sliced]
        body.key = program_key(body)
        return Rolled(
            ScanSpec(body, len(self.consts), len(carries), self.repeats, False),
            list(self.consts),
            [init for _, init in carries.values()],
            [operands for _, operands in self.slices.values()],
            picks,
            wanted,
            {v: (inner[q, o], r) for v, (r, q, o) in place.items()},
        )


def _source(
    operands: list[Operand], place: Mapping[int, tuple[int, int, int]], repeats: int
) -> tuple[str, tuple[int, int, int]] | None:
    """Say where an operand comes from, over all repetitions: within, before, the same, or one for each.

    Returns the kind, and (equation, output, lag) of an operand from within or before.
    """
    found = [place.get(v) if isinstance(v, int) else None for v in operands]
    if all(f is None for f in found):
        first = operands[0]
        same = all(same_operand(v, first) for v in operands)
        return ("same" if same else "slice"), (0, 0, 0)
    last = found[-1]
    if last is None:
        return None
    lag = repeats - 1 - last[0]
    for r, f in enumerate(found):
        if r >= lag and (f is None or f != (r - lag, last[1], last[2])):
            return None
        if r < lag and f is not None:
            return None
    if lag == 0:
        return "inner", (last[1], last[2], 0)
    return ("carry", (last[1], last[2], lag)) if lag <= _MAX_LAG else None


def _as_instr(program: Program, rolled: Rolled, first: Instr) -> Instr:
    ins = [*rolled.consts, *rolled.init, *[v for group in rolled.xs for v in group]]
    instr = Instr("rolled", {"rolled": rolled}, ins, rolled.outs, first.eqn)
    instr.bodies = (rolled.spec.body,)
    instr.site = first.site
    instr.key = ("rolled", rolled.spec.body.key, rolled.spec.length, tuple(rolled.picks))
    instr.in_avals = tuple(program.aval(v) for v in ins)
    instr.out_avals = tuple(program.avals[v] for v in rolled.outs)
    return instr
