"""Condense: from a flat program to families. Once per structure.

Lift the program to a scalar graph, peel the sum at its end, decide what is kept, and put families together.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from gnewt.graph import Family
from gnewt.jaxprs import Program, shape_of
from gnewt.trace.assemble import Assembler
from gnewt.trace.fuse import Fuser
from gnewt.trace.groups import Groups
from gnewt.trace.lift import Lifter
from gnewt.trace.opaque_regions import NeedRegion
from gnewt.trace.tail import live_scalars, peel


def lift_program(
    program: Program,
    avals: list[Any],
    diff: list[bool],
    order: list[int],
    hoisted: Any,
    inputs: Any,
    rules: Any,
) -> tuple[Lifter, int]:
    """Lift a program, starting again whenever an equation must join a region."""
    forced: set[int] = set()
    prepared: dict[Any, Any] = {}
    while True:
        lifter = Lifter(rules)
        lifter.forced, lifter.prepared = forced, prepared
        consts = [
            lifter.constants.add_input(None if isinstance(v, Tracer) else v, np.shape(v), jax.typeof(v).dtype)
            for v in inputs
        ]
        lifter.hoisted = consts[: len(hoisted)]
        moving = [a for a, d in zip(avals, diff, strict=True) if d]
        blocks: dict[int, np.ndarray] = {}
        for i in order:
            shape = shape_of(moving[i])
            ids = lifter.add_inputs(int(np.prod(shape, dtype=np.int64)), moving[i].dtype)
            blocks[i] = ids.reshape(1, *shape)
        variables, others = iter(blocks[i] for i in range(len(moving))), iter(consts[len(hoisted) :])
        values = [next(variables) if d else next(others) for d in diff]
        try:
            (out,) = lifter.run(lifter.prepare(program, values), values)
        except NeedRegion as need:
            added = need.candidates(forced)
            forced = forced | {added}
            continue
        return lifter, int(lifter.ids(out).ravel()[0])


def condense(lifter: Lifter, root: int, num_inputs: int, dtype: Any) -> tuple[list[Family], list, list, int]:
    """Turn the scalar graph into families: peel the tail, fuse, group, number the slots."""
    pool, constants = lifter.pool, lifter.constants
    carried = pool.resolve()
    carried[:num_inputs] = False
    if root >= 0 and pool.alias:
        root = int(pool.target[root])
    ids, weights, bias = peel(pool, constants, root, carried, dtype)
    live = live_scalars(pool, ids, carried)
    fuser = Fuser(pool, constants, live, carried)
    fuser.run(ids)
    groups = Groups(pool, constants, fuser)
    groups.run()
    assembler = Assembler(pool, constants, fuser, groups, dtype)
    assembler.collect(ids, weights, bias)
    assembler.merge_single_losses()
    num_slots = assembler.number_slots(num_inputs)
    families, columns, drops = assembler.write()
    return families, columns, drops, num_slots
