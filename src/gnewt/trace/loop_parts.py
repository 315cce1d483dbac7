"""Parts of loop bodies: where several loops share a part of their bodies, each part is written by itself.

An objective that adds up costs along a rollout and a constraint that asks for its end have loops of other bodies. Taken
apart into what the states need and what each result needs, the states are one part that both have, and `merge` finds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gnewt.jaxprs import Program, scan_spec, variables
from gnewt.jaxprs.liveness import needed


def have_parts_in_common(program: Program) -> bool:
    """Whether a program, or a body in it, has two loops of one length with different bodies."""
    lengths: dict[int, object] = {}
    for instr in program.instrs:
        if instr.prim == "scan":
            length = scan_spec(instr).length
            if lengths.setdefault(length, instr.key) != instr.key:
                return True
        if any(have_parts_in_common(body) for body in instr.bodies):
            return True
    return False


def split_parts(
    body: Program, carried: Sequence[int | None], places: Sequence[int]
) -> list[tuple[Program, list[int]]]:
    """Split a body into the carries that need each other, and one part for every other output.

    Args:
        body: the program of one iteration.
        carried: for each of its outputs the variable that the next iteration reads it from, None for what is not carried.
        places: of the outputs, to be handed on.
    """
    reads = [needed(body.instrs, [v])[1] for v in body.outs]
    states = [i for i, var in enumerate(carried) if var is not None]
    reach = np.array([[carried[j] in reads[i] for j in states] for i in states], bool).reshape(
        len(states), len(states)
    )
    np.fill_diagonal(reach, True)
    for k in range(len(states)):
        reach |= reach[:, k : k + 1] & reach[k : k + 1]
    circle = reach & reach.T
    groups = {tuple(states[j] for j in np.flatnonzero(row)) for row in circle}
    groups |= {(i,) for i, var in enumerate(carried) if var is None}
    return [
        (
            dataclasses.replace(body, ins=list(body.ins), outs=[variables(body.outs)[i] for i in group]),
            [places[i] for i in group],
        )
        for group in sorted(groups)
    ]
