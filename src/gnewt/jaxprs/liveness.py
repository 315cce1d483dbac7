"""Liveness: which equations and variables the outputs need, who reads a variable last, what depends on what.

Loops and branches are looked into: the time that an integrator carries along does not depend on its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gnewt.jaxprs.program import Instr, Operand, Program, variables
from gnewt.jaxprs.specs import scan_spec, while_spec


def needed(instrs: Sequence[Instr], outs: Iterable[Operand]) -> tuple[list[Instr], set[int]]:
    """Return the equations that the outputs need, in order, and all variables that they need.

    An equation is needed as a whole: with all its operands.
    """
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
    wanted: set[int] = set()
    needed_results(program, outs, wanted)
    return [v in wanted for v in program.ins]


def needed_results(
    program: Program, outs: Sequence[bool], wanted: set[int] | None = None
) -> list[tuple[Instr, list[bool]]]:
    """Return the equations that the marked outputs depend on, and which of their results; `wanted` takes the variables."""
    wanted = set() if wanted is None else wanted
    wanted.update(variables(v for v, flag in zip(program.outs, outs, strict=True) if flag))
    found = []
    for instr in reversed(program.instrs):
        if not wanted.isdisjoint(instr.outs):
            marked = [v in wanted for v in instr.outs]
            flags = operands_needed(instr, marked)
            wanted.update(variables(v for v, flag in zip(instr.ins, flags, strict=True) if flag))
            found.append((instr, marked))
    return found[::-1]


def operands_needed(instr: Instr, outs: list[bool]) -> list[bool]:
    """Which operands of an equation the marked results depend on."""
    if instr.region is not None or not instr.bodies:
        return [True] * len(instr.ins)
    if instr.prim == "cond":
        inside = [needed_inputs(body, outs) for body in instr.bodies]
        return [True, *(any(flags) for flags in zip(*inside, strict=True))]
    if instr.prim == "scan":
        spec = scan_spec(instr)
        first, end = spec.num_consts, spec.num_consts + spec.num_carry
        carried, flags = _carries_needed(spec.body, first, spec.num_carry, outs)
        return [*flags[:first], *carried, *flags[end:]]
    if instr.prim == "while":
        loop = while_spec(instr)
        asked = needed_inputs(loop.cond, [True])
        outs = [a or b for a, b in zip(outs, asked[loop.cond_consts :], strict=True)]
        carried, flags = _carries_needed(loop.body, loop.body_consts, len(outs), outs)
        return [*asked[: loop.cond_consts], *flags[: loop.body_consts], *carried]
    return [True] * len(instr.ins)


def _carries_needed(
    body: Program, num_consts: int, num_carry: int, outs: Sequence[bool]
) -> tuple[list[bool], list[bool]]:
    """Which carries of a loop the marked results depend on, and which inputs of its body."""
    marked = list(outs)
    while True:
        flags = needed_inputs(body, marked)
        carried = flags[num_consts : num_consts + num_carry]
        more = [a or b for a, b in zip(carried, marked[:num_carry], strict=True)]
        if more == marked[:num_carry]:
            return more, flags
        marked[:num_carry] = more


def dependents(instrs: Iterable[Instr], start: Iterable[int]) -> set[int]:
    """Return the given variables and all that are computed from them."""
    found = set(start)
    for instr in instrs:
        flags = [isinstance(v, int) and v in found for v in instr.ins]
        if any(flags):
            found.update(
                v for v, flag in zip(instr.outs, _varying_results(instr, flags), strict=True) if flag
            )
    return found


def _varying_results(instr: Instr, varying: list[bool]) -> list[bool]:
    """Which results of an equation depend on the marked operands."""
    whole = [True] * len(instr.outs)
    if instr.region is not None or not instr.bodies:
        return whole
    if instr.prim == "cond":
        if varying[0]:
            return whole
        inside = [varying_outputs(body, varying[1:]) for body in instr.bodies]
        return [any(flags) for flags in zip(*inside, strict=True)]
    if instr.prim == "scan":
        spec = scan_spec(instr)
        return varying_of_loop(spec.body, varying, spec.num_consts, spec.num_carry)
    if instr.prim == "while":
        loop = while_spec(instr)
        at = loop.cond_consts + loop.body_consts
        carried = varying_of_loop(loop.body, varying[loop.cond_consts :], loop.body_consts, len(varying) - at)
        return whole if any(varying_outputs(loop.cond, varying[: loop.cond_consts] + carried)) else carried
    return whole


def varying_of_loop(body: Program, varying: Sequence[bool], num_consts: int, num_carry: int) -> list[bool]:
    """Which results of a loop (carries, then what each iteration returns) depend on the marked operands."""
    flags = list(varying)
    while True:
        outs = varying_outputs(body, flags)
        carried = slice(num_consts, num_consts + num_carry)
        more = [a or b for a, b in zip(flags[carried], outs[:num_carry], strict=True)]
        if more == flags[carried]:
            return [*more, *outs[num_carry:]]
        flags[carried] = more


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
