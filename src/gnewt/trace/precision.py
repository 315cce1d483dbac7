"""Half precision inside a function: found, and refused, before rounding is taken for a wrong derivative."""

from __future__ import annotations

from collections.abc import Collection

import jax.numpy as jnp

from gnewt._errors import TraceError
from gnewt.jaxprs import Instr, Program, is_float, where_of
from gnewt.jaxprs.program import variables
from gnewt.trace.lift import differentiated_vars

_FEWEST_BITS = 32


def refuse_half_precision(program: Program, moving: Collection[int]) -> None:
    """Raise TraceError if a derivative flows through numbers of fewer than 32 bits. Once per structure.

    Args:
        program: f, or the body of a loop or a branch in it.
        moving: its inputs that depend on the variables.
    """
    depends, matters = set(moving), differentiated_vars(program)
    for instr in program.instrs:
        if depends.isdisjoint(variables(instr.ins)):
            continue
        depends.update(instr.outs)
        for v in matters.intersection(instr.outs):
            dtype = program.avals[v].dtype
            if is_float(dtype) and jnp.finfo(dtype).bits < _FEWEST_BITS:
                raise TraceError(
                    f"{instr.prim} computes in {dtype}: second derivatives through it are mostly rounding",
                    where_of(instr),
                    "compute in float32 or float64 there; constants may stay in half precision",
                )
        for body in instr.bodies:
            refuse_half_precision(body, _moving_inputs(instr, body, depends))


def _moving_inputs(instr: Instr, body: Program, depends: Collection[int]) -> list[int]:
    """Inputs of a body that may depend on the variables."""
    operands = instr.ins[len(instr.ins) - len(body.ins) :]  # a cond has its predicate before them
    found = [
        v for v, given in zip(body.ins, operands, strict=True) if isinstance(given, int) and given in depends
    ]
    # What is carried from one iteration to the next may depend on any other input.
    floats = [v for v in body.ins if is_float(body.avals[v].dtype)]
    return floats if instr.prim == "scan" and found else found
