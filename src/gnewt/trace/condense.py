"""Condense: from a flat program to families. Once per structure.

Lift the program to a scalar graph, peel the sum at its end, decide what is kept, and put families together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from gnewt.graph import Family
from gnewt.jaxprs import Program, shape_of
from gnewt.jaxprs.complex_pairs import split_complex
from gnewt.trace.assemble import Assembler
from gnewt.trace.constants import Const, Constants
from gnewt.trace.fuse import Fuser
from gnewt.trace.groups import Groups
from gnewt.trace.joints import Joiner
from gnewt.trace.lift import Distrust, Lifter, Seen, Value
from gnewt.trace.loop_parts import have_parts_in_common
from gnewt.trace.merge import merge_equal
from gnewt.trace.opaque_regions import NeedRegion, as_one
from gnewt.trace.outputs import Numbering
from gnewt.trace.scalar_pool import CALL, Pool
from gnewt.trace.tail import live_scalars, peel

MAX_READERS = 4
"""Places that read a result of a map, on average, up to which the body of the map is lifted inside."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """What a program is applied to: its arguments, and which of them are variables. Holds no values."""

    avals: Sequence[jax.ShapeDtypeStruct]
    """Of all leaves of the arguments."""
    diff: Sequence[bool]
    """For each leaf whether it is a variable."""
    order: Sequence[int]
    """Positions of the variables, counted among themselves, in the order of the slots."""
    num_hoisted: int
    """How many of the constants are captured by the function; the rest are the other arguments."""

    @property
    def variables(self) -> list[jax.ShapeDtypeStruct]:
        """In the order of the slots."""
        moving = [a for a, d in zip(self.avals, self.diff, strict=True) if d]
        return [moving[i] for i in self.order]


@dataclasses.dataclass(frozen=True, eq=False)
class Condensed:
    """The families of a program, how to fill their data, and where its scalars went."""

    families: list[Family]
    columns: list[tuple[Const, ...]]
    drops: list[tuple[int, ...]]
    num_slots: int
    constants: Constants
    numbering: Numbering


def lift_program(
    program: Program,
    source: Source,
    captured: Sequence[ArrayLike],
    rules: dict[str, Callable] | None,
    seen: Seen | None,
    distrust: Distrust = frozenset(),
) -> tuple[Lifter, list[np.ndarray]]:
    """Lift a program, starting again whenever an equation must join a region; also the ids of its outputs.

    Args:
        captured: what the function captures, then the arguments that are no variables.
        seen: an empty one, to remember the values of variables for `outputs`.
        distrust: what is to be opaque.
    """
    program = as_one(program) if distrust is None else split_complex(program)
    apart = seen is not None and seen.share and have_parts_in_common(program)
    prepared: dict[tuple[int, tuple[bool, ...]], tuple[Program, Program]] = {}

    def lift(inside: frozenset[int]) -> tuple[Lifter, list[np.ndarray]]:
        forced: set[int] = set()
        while True:
            lifter = Lifter(rules)
            lifter.forced, lifter.prepared, lifter.distrust = forced, prepared, distrust or frozenset()
            lifter.inside, lifter.lift_again, lifter.apart = inside, lift, apart
            lifter.seen = None if seen is None else Seen(seen.share)
            values = _arguments(lifter, source, captured)
            try:
                outs = lifter.run(lifter.prepare(program, values), values)
            except NeedRegion as need:
                forced = forced | {need.candidates(forced)}
                continue
            return lifter, [lifter.ids(out).ravel() for out in outs]

    return lift(frozenset())


def _arguments(lifter: Lifter, source: Source, captured: Sequence[ArrayLike]) -> list[Value]:
    """Write the inputs of a program: scalars for the variables, constants for the rest."""
    consts = [
        lifter.constants.add_input(None if isinstance(v, Tracer) else v, np.shape(v), jax.typeof(v).dtype)
        for v in captured
    ]
    lifter.hoisted = consts[: source.num_hoisted]
    blocks: dict[int, np.ndarray] = {}
    for i, aval in zip(source.order, source.variables, strict=True):
        shape = shape_of(aval)
        ids = lifter.add_inputs(int(np.prod(shape, dtype=np.int64)), aval.dtype)
        blocks[i] = ids.reshape(1, *shape)
    variables, others = iter(blocks[i] for i in range(len(blocks))), iter(consts[source.num_hoisted :])
    values = [next(variables) if d else next(others) for d in source.diff]
    # What has no entries is a constant.
    return [
        v if isinstance(v, Const) or v.size else lifter.empty(a)
        for v, a in zip(values, source.avals, strict=True)
    ]


class _LiftInside(Exception):
    """Loops whose results are read by few: their bodies are better fused into the readers."""

    def __init__(self, loops: frozenset[int]) -> None:
        self.loops = loops


def condense_lifted(
    lifter: Lifter, ids: list[np.ndarray], num_inputs: int, dtype: np.dtype
) -> tuple[Lifter, Condensed]:
    """Condense what was lifted, or lift it again with other loops inside; returns what was condensed, too.

    Args:
        ids: of the objective, and of what must be slots.
    """
    try:
        return lifter, condense(lifter, ids, num_inputs, dtype)
    except _LiftInside as found:
        # Once: a loop that is not the same object the second time stays a call.
        lifter, ids = lifter.lift_again(found.loops)
        lifter.settled = True
        return lifter, condense(lifter, ids, num_inputs, dtype)


def _refuse_short_maps(pool: Pool, fuser: Fuser) -> None:
    """Raise where results of a map are read at few places each, not by the sum at the end."""
    loops = set()
    for block in pool.blocks:
        if block.kind == CALL and block.call.loop is not None:
            readers = fuser.fan_out[block.start : block.stop][fuser.live[block.start : block.stop]]
            if readers.any() and readers[readers > 0].mean() <= MAX_READERS:
                loops.add(block.call.loop)
    if loops:
        raise _LiftInside(frozenset(loops))


def condense(lifter: Lifter, outs: list[np.ndarray], num_inputs: int, dtype: np.dtype) -> Condensed:
    """Turn the scalar graph into families: peel the tail, join, fuse, group, number the slots.

    Args:
        outs: ids of the objective, and of what must be slots, whether or not the objective needs it.
    """
    root, keep = int(outs[0][0]), np.concatenate([*outs[1:], np.zeros(0, np.int32)])
    pool, constants = lifter.pool, lifter.constants
    carried = pool.resolve()
    if len(outs) > 1:
        # Objective and constraints may compute the same thing, each for itself.
        stands = merge_equal(pool, constants)
        carried = carried if stands is None else pool.merge(stands, carried)
    root, *kept = pool.follow(pool.target, np.array([root, *keep], np.int32)).tolist()
    carried[[i for i in kept if i >= 0]] = True
    carried[:num_inputs] = False
    ids, weights, bias = peel(pool, constants, root, carried, dtype)
    live = live_scalars(pool, ids, carried)
    fuser = Fuser(pool, constants, live, carried)
    fuser.collapse(ids)
    if not lifter.settled:
        _refuse_short_maps(pool, fuser)
    joiner = Joiner(fuser, constants)
    joints = joiner.run(ids, weights)
    if joints:
        left = joiner.settle(joints, ids)
        ids, weights = ids[left], weights[left]
    fuser.run()
    groups = Groups(pool, constants, fuser)
    groups.run()
    size = pool.size
    assembler = Assembler(pool, constants, fuser, groups, dtype)
    assembler.collect(ids, weights, bias, carried)
    for joint in joints:
        assembler.add_joint(joint)
    assembler.merge_single_losses()
    num_slots = assembler.number_slots(num_inputs)
    families, columns, drops = assembler.write()
    held = {constant: int(assembler.slot_of[i]) for constant, i in assembler.fixed_slots.items()}
    numbering = Numbering(pool.target, assembler.slot_of[:size], held)
    return Condensed(families, columns, drops, num_slots, constants, numbering)
