"""Rules for branches and loops whose predicates are known: they do not depend on the variables.

In: the equation of a conditional or of a while loop, and the ids of its operands. Out: the ids of its results. Inside a
loop a predicate may differ from iteration to iteration: each branch is lifted for the iterations that take it. A while loop
whose predicate is known becomes a loop of as many iterations as it has.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import (
    Instr,
    ScanSpec,
    WhileSpec,
    count_trips,
    shape_of,
    while_spec,
)
from gnewt.jaxprs.compat import Aval
from gnewt.jaxprs.liveness import operands_needed, varying_of_loop, varying_outputs
from gnewt.jaxprs.parts import bounded_body, part_of
from gnewt.trace.constants import Const, Known, Unknown, Value, all_constant
from gnewt.trace.lift import Lifter
from gnewt.trace.loop_bodies import write_branch
from gnewt.trace.loop_carries import MOST_TRIPS, read_loop
from gnewt.trace.loop_rules import lift_loop
from gnewt.trace.rules import Opaque, rule
from gnewt.trace.subsets import lift_subsets


@rule("cond")
def _cond(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    which = np.clip(lift.watch(ins[0]).astype(np.int64).ravel(), 0, len(instr.bodies) - 1)
    if np.all(which == which[0]):
        return lift.run(lift.prepare(instr.bodies[int(which[0])], ins[1:]), ins[1:])
    if any(jnp.issubdtype(a.dtype, jax.dtypes.extended) for a in (*instr.in_avals, *instr.out_avals)):
        raise Opaque("a predicate that varies over the iterations of a loop, and keys of random generators")
    taken = np.unique(which)
    return lift_subsets(
        lift,
        [np.flatnonzero(which == b) for b in taken],
        ins[1:],
        lambda b, values: write_branch(lift, instr, instr.bodies[int(taken[b])], values),
    )


@rule("while")
def _while(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if id(instr) in lift.forced:
        raise Opaque("a loop that carries integers, booleans or complex numbers")
    spec = while_spec(instr)
    trips = _count_trips(lift, instr, spec, ins)
    counts = lift.watch(trips)
    if counts.min() < 0:
        raise Opaque(f"a loop of more than {MOST_TRIPS} iterations")
    most = int(counts.max())
    body = bounded_body(instr)
    if body is None:
        raise Opaque("a loop that captures constants")
    # One iteration more than there are: the last predicate is false, and part of the structure.
    lift.trips[instr.key] = max(lift.trips.get(instr.key, 0), most + 1)
    num_consts = spec.cond_consts + spec.body_consts
    loop = ScanSpec(body, num_consts, len(ins) - num_consts, most + 1, False)
    read = [v in lift.read_vars for v in instr.outs]
    return lift_loop(lift, instr, read_loop(loop, ins, read), instr.out_avals)


def _count_trips(lift: Lifter, instr: Instr, spec: WhileSpec, ins: list[Value]) -> Const:
    """Run the part of a loop that its predicate depends on; returns the number of iterations of each lane."""
    at = spec.cond_consts + spec.body_consts
    varying = [not isinstance(v, Const) for v in ins]
    carried = varying_of_loop(spec.body, varying[spec.cond_consts :], spec.body_consts, len(ins) - at)
    if any(varying_outputs(spec.cond, varying[: spec.cond_consts] + carried)):
        raise Opaque("a loop whose number of iterations depends on data")
    read = operands_needed(instr, [False] * len(instr.outs))
    asked = read[at:]
    body = part_of(spec.body, asked)
    if body is None:
        raise Opaque("a loop that captures constants")
    used = [v if flag else _zeros(lift, a) for v, flag, a in zip(ins, read, instr.in_avals, strict=True)]
    positions = list(dict.fromkeys(p for _, p in [*spec.cond.consts, *body.consts]))
    given = [*used, *[lift.hoisted[p] for p in positions]]
    assert all_constant(given)
    if any(v.value is None for v in given):
        raise Unknown
    lead = max(v.shape[0] for v in given)
    loop = dataclasses.replace(spec, body=body)

    def count(xp: ModuleType, *values: Known) -> tuple[Known]:
        full = [np.broadcast_to(v, (lead, *v.shape[1:])) for v in values]
        held, own = dict(zip(positions, full[len(ins) :], strict=True)), full[: len(ins)]
        lanes = [
            count_trips(loop, asked, [v[b] for v in own], {p: v[b] for p, v in held.items()}, MOST_TRIPS)
            for b in range(lead)
        ]
        return (np.array(lanes, np.int64),)

    return lift.constants.apply(count, given, [((lead,), np.dtype(np.int64))])[0]


def _zeros(lift: Lifter, aval: Aval) -> Const:
    """What stands for an operand that the predicate does not depend on."""
    return lift.constants.add_fixed(np.zeros((1, *shape_of(aval)), aval.dtype))
