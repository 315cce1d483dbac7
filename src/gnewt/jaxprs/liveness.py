"""Liveness: which equations and variables the outputs need, who reads a variable last, what depends on what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gnewt.jaxprs.program import Instr, Operand, Program, variables


def needed(instrs: Sequence[Instr], outs: Iterable[Operand]) -> tuple[list[Instr], set[int]]:
    """Return the equations that the outputs need, in order, and all variables that they need."""
    wanted = set(variables(outs))
    kept = []
    for instr in reversed(instrs):
        if not wanted.isdisjoint(instr.outs):
            wanted.update(variables(instr.ins))
            kept.append(instr)
    return kept[::-1], wanted


def drop_dead(program: Program) -> None:
    """Remove the equations whose results no output needs."""
    program.instrs, _ = needed(program.instrs, program.outs)


def needed_inputs(program: Program, outs: Sequence[bool]) -> list[bool]:
    """Return which inputs the marked outputs depend on."""
    asked = [v for v, flag in zip(program.outs, outs, strict=True) if flag]
    wanted = needed(program.instrs, asked)[1]
    return [v in wanted for v in program.ins]


def dependents(instrs: Iterable[Instr], start: Iterable[int]) -> set[int]:
    """Return the given variables and all that are computed from them."""
    found = set(start)
    for instr in instrs:
        if not found.isdisjoint(variables(instr.ins)):
            found.update(instr.outs)
    return found


def varying_outputs(program: Program, varying: Sequence[bool]) -> list[bool]:
    """Return which outputs depend on the marked inputs."""
    found = dependents(program.instrs, [v for v, flag in zip(program.ins, varying, strict=True) if flag])
    return [isinstance(v, int) and v in found for v in program.outs]


def read_variables(instrs: Iterable[Instr], outs: Iterable[Operand] = ()) -> set[int]:
    """Return the variables that equations read, and those among the outputs."""
    return {v for instr in instrs for v in variables(instr.ins)} | set(variables(outs))


def last_reads(program: Program) -> list[list[int]]:
    """Return for each equation the variables that nobody reads after it; outputs are in no list."""
    read = set(variables(program.outs))
    last: list[list[int]] = [[] for _ in program.instrs]
    for i in range(len(program.instrs) - 1, -1, -1):
        for v in variables(program.instrs[i].ins):
            if v not in read:
                read.add(v)
                last[i].append(v)
    return last
