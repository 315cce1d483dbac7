"""Lift the body of a loop, once for all iterations: as one dense call, or equation by equation.

In: a loop and the ids of the body's inputs, with a leading axis of iterations. Out: the ids of the body's outputs. What
is constant or mere data movement is done first. A body with few arguments is then one call per iteration; a
body over large arrays with local coupling is lifted inside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.graph import take_places
from gnewt.jaxprs import (
    Instr,
    Lit,
    Program,
    primitives_of,
    program_key,
    run_program,
    scan_spec,
    shape_of,
    variables,
)
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.liveness import dependents, needed, read_variables
from gnewt.jaxprs.primitives import primitive
from gnewt.trace.body_constants import settle_constants
from gnewt.trace.body_pattern import BodyPattern, analyse_body, out_dtype
from gnewt.trace.call_rules import by_reverse_mode, check_differentiable, needs_reverse_mode
from gnewt.trace.constants import Const
from gnewt.trace.extract import MAX_NODES
from gnewt.trace.fuse import MAX_ARGS
from gnewt.trace.known_branches import groups_of_iterations, has_known_branches, resolve_branches
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.loop_carries import LoopCarries
from gnewt.trace.loop_parts import split_parts
from gnewt.trace.scalar_pool import CallFunction, CallSpec, Take, split_arguments, split_columns
from gnewt.trace.subsets import lift_subsets

DENSE_ARGS = 16
"""Bodies with at most this many scalar arguments are one dense block (compile time 2 to 4 times less)."""


LIFTED_ARGS = 96
"""Bodies with more are lifted inside; in between the nonzeros decide. Lifting a body with few of them makes evaluation 8 to
60 times faster, and one with dense matrices (37 states, 12 inputs) three times slower."""

MIN_SHARED = 200
"""Equations that a cost shares with the next state, from which it is computed from that state instead."""


def run_body(lift: Lifter, instr: Instr, loop: LoopCarries, values: list[Value]) -> list[Value | None]:
    """Lift the body: what is constant or mere data movement first, the rest as one dense block or inside."""
    wanted = [flag and (o >= loop.spec.num_carry or loop.varying[o]) for o, flag in enumerate(loop.needed)]
    env = dict(zip(loop.body.ins, values, strict=True))
    carried = {v for j, v in enumerate(_carry_vars(loop)) if loop.varying[j]}
    rest = hoist_movement(lift, loop.body, env, carried)
    outs: list[Value | None] = [
        env.get(v) if flag and isinstance(v, int) else None
        for v, flag in zip(loop.body.outs, wanted, strict=True)
    ]
    late = {v for i in rest.instrs for v in i.outs} | carried
    asked = [o for o, v in enumerate(loop.body.outs) if wanted[o] and isinstance(v, int) and v in late]
    for o, v in enumerate(loop.body.outs):
        if wanted[o] and isinstance(v, Lit):
            outs[o] = lift.literal(v)
    if lift.seen is not None:
        lift.seen.loops[id(instr)] = (loop, env)
        if lift.seen.share:
            asked = [
                o
                for i, o in enumerate(asked)
                if loop.body.outs[o] not in [loop.body.outs[p] for p in asked[:i]]
            ]
    if not asked:
        return outs
    rest.outs = [loop.body.outs[o] for o in asked]
    sums = [o < len(loop.sums) and loop.sums[o] for o in asked]
    states = [o < loop.spec.num_carry and not is_sum for o, is_sum in zip(asked, sums, strict=True)]
    parts = split_costs(rest, states)
    if lift.apart:
        kept = {v: _carry_vars(loop)[o] for v, o, s in zip(rest.outs, asked, states, strict=True) if s}
        parts = [
            piece
            for part, places in parts
            for piece in split_parts(part, [kept.get(v) for v in part.outs], places)
        ]
    for part, places in parts:
        _write_part(lift, instr, part, env, [sums[i] for i in places], is_map=not any(states))
    return [
        env[v] if isinstance(v, int) and flag else out
        for v, flag, out in zip(loop.body.outs, wanted, outs, strict=True)
    ]


def _is_dense(pattern: BodyPattern) -> bool:
    """Whether most arguments are coupled; or many, by results that fusion would take apart (a sum over states)."""
    density = pattern.density()
    return density > 0.5 or (density > 0.25 and bool((pattern.jac.sum(1) > MAX_ARGS).all()))


def _write_part(
    lift: Lifter, instr: Instr, part: Program, env: dict[int, Value], sums: list[bool], is_map: bool = False
) -> None:
    """Write a part of the body, as a dense call or inside; its outputs go into `env`."""
    trim_program(part)
    values = [env[v] for v in part.ins]
    unknown = [not isinstance(v, Const) or v.value is None for v in values]
    if has_known_branches(part, unknown):
        groups = groups_of_iterations(lift, part, values)
        found = lift_subsets(lift, groups, values, lambda _, given: _write_resolved(lift, instr, part, given))
    else:
        found = _write_values(lift, instr, part, values, sums, is_map)
    for var, value in zip(variables(part.outs), found, strict=True):
        env[var] = value


def _feeds_loops(part: Program, values: list[Value]) -> bool:
    """Whether a body has loops whose iterations read variables of their own."""
    varying = [v for v, value in zip(part.ins, values, strict=True) if not isinstance(value, Const)]
    found = dependents(part.instrs, varying)
    for instr in part.instrs:
        if instr.prim == "scan":
            spec = scan_spec(instr)
            if not found.isdisjoint(variables(instr.ins[spec.num_consts + spec.num_carry :])):
                return True
    return False


def _write_values(
    lift: Lifter, instr: Instr, part: Program, values: list[Value], sums: list[bool], is_map: bool = False
) -> list[Value]:
    count = _count_distinct(values)
    # A map of loops is a batch of loops.
    inside = id(instr) in lift.inside or (is_map and _feeds_loops(part, values))
    if (
        count <= LIFTED_ARGS
        and not inside
        and not _indexed_by_time(part, dict(zip(part.ins, values, strict=True)))
    ):
        pattern = analyse_body(lift, part, values, sums)
        if pattern is not None and (count <= DENSE_ARGS or _is_dense(pattern)):
            short = is_map and pattern.size <= MAX_NODES
            return dense_body(lift, instr, part, values, pattern, id(instr) if short else None)
    return lift.run(lift.prepare(part, values), values)


def _write_resolved(lift: Lifter, instr: Instr, part: Program, values: list[Value]) -> list[Value]:
    """Write a part with known branches for iterations that choose alike: without these branches, where that is possible."""
    short = _count_distinct(values) <= LIFTED_ARGS
    plain = resolve_branches(lift, part, values) if short else None
    if plain is None:
        return lift.run(lift.prepare(part, values), values)
    env = dict(zip(plain.ins, values, strict=True))
    rest = hoist_movement(lift, plain, env, set())
    made = {v for i in rest.instrs for v in i.outs}
    outs = list(dict.fromkeys(v for v in variables(plain.outs) if v in made))
    for piece in cut_movement(lift, rest, outs, env):
        trim_program(piece)
        given = [env[v] for v in piece.ins]
        if has_known_branches(piece, [not isinstance(v, Const) or v.value is None for v in given]):
            found = lift.run(lift.prepare(piece, given), given)
        else:
            found = _write_values(lift, instr, piece, given, [False] * len(piece.outs))
        env.update(zip(variables(piece.outs), found, strict=True))
    return [lift.literal(v) if isinstance(v, Lit) else env[v] for v in plain.outs]


def cut_movement(lift: Lifter, rest: Program, outs: list[int], env: dict[int, Value]) -> list[Program]:
    """Cut a program in two: what is computed, and what puts results into places that follow the iterations, and after."""
    late: set[int] = set()
    parts: tuple[list[Instr], list[Instr]] = ([], [])
    unknown = [not isinstance(env[v], Const) for v in rest.ins]
    for instr in rest.instrs:
        alone = Program(rest.avals, rest.ins, [], [instr], [])
        after = (
            not late.isdisjoint(variables(instr.ins))
            or _indexed_by_time(alone, env)
            or has_known_branches(alone, unknown)
        )
        parts[after].append(instr)
        late.update(instr.outs if after else ())
    if not parts[1] or not parts[0]:
        return [dataclasses.replace(rest, outs=outs)]
    made = {v for i in parts[0] for v in i.outs}
    crossing = [v for v in outs if v in made]
    crossing += sorted((read_variables(parts[1]) & made) - set(crossing))
    first = dataclasses.replace(rest, ins=list(rest.ins), instrs=parts[0], outs=crossing)
    second = dataclasses.replace(
        rest, ins=[*rest.ins, *crossing], instrs=parts[1], outs=[v for v in outs if v not in made]
    )
    return [p for p in (first, second) if p.outs]


def split_costs(rest: Program, states: Sequence[bool]) -> list[tuple[Program, list[int]]]:
    """Split a long body: the next state first, then what is computed from it (costs); with the places of their outputs.

    A cost of the state after a long step would otherwise repeat the step, and be differentiated through it.

    Args:
        rest: the body.
        states: for each output whether it is carried on.
    """
    every = list(range(len(rest.outs)))
    outs = variables(rest.outs)
    made = {v for i in rest.instrs for v in i.outs}
    carried = {v for v, state in zip(outs, states, strict=True) if state} & made
    late = [i for i in every if not states[i] and outs[i] not in carried]
    if not carried or not late:
        return [(rest, every)]
    asked = [outs[i] for i in late]
    whole = len(needed(rest.instrs, asked)[0])
    wanted = set(asked)
    after = []
    for instr in reversed(rest.instrs):
        if not (wanted & set(instr.outs)) - carried:
            continue
        wanted.update(variables(instr.ins))
        after.append(instr)
    if whole - len(after) < MIN_SHARED:
        return [(rest, every)]
    early = [i for i in every if i not in late]
    first = dataclasses.replace(rest, ins=list(rest.ins), outs=[outs[i] for i in early])
    second = dataclasses.replace(rest, ins=[*rest.ins, *sorted(carried)], instrs=after[::-1], outs=asked)
    return [(first, early), (second, late)]


def _count_distinct(values: list[Value]) -> int:
    """Count scalar arguments, each once: a slice of u that is taken again and again is one argument."""
    columns = [v.reshape(v.shape[0], -1).T for v in values if not isinstance(v, Const)]
    return len({column.tobytes() for block in columns for column in block})


def _indexed_by_time(rest: Program, env: dict[int, Value]) -> bool:
    """Whether carried arrays are read or written at places that follow the iterations: then lift inside."""
    for instr in rest.instrs:
        index = [env.get(v) for v in variables(instr.ins[primitive(instr.prim).index_places])]
        if any(isinstance(v, Const) and v.shape[0] > 1 and v.value is not None for v in index):
            return True
    return False


def _carry_vars(loop: LoopCarries) -> list[int]:
    c = loop.spec.num_consts
    return loop.body.ins[c : c + loop.spec.num_carry]


def hoist_movement(lift: Lifter, body: Program, env: dict[int, Value], late: set[int]) -> Program:
    """Apply, for all iterations at once, what needs no carry and makes no scalars; return what remains.

    u[t] inside a loop over t is then an argument of its own, not the whole array u.

    Args:
        body: the program of one iteration.
        env: the values of its inputs; those of what was applied are added.
        late: variables that are not looked into.
    """
    late = set(late)
    for var, at in body.consts:
        env[var] = lift.hoisted[at]
    rest = []
    for instr in body.instrs:
        ready = not any(isinstance(v, int) and v in late for v in instr.ins)
        if ready:
            ins = [lift.literal(v) if isinstance(v, Lit) else env[v] for v in instr.ins]
            moves = primitive(instr.prim).move is not None or primitive(instr.prim).takes
            if all(isinstance(v, Const) for v in ins) or (moves and _indices_known(ins)):
                env.update(zip(instr.outs, lift.apply(instr, ins), strict=True))
                continue
        rest.append(instr)
        late.update(instr.outs)
    return Program(body.avals, list(dict.fromkeys([*body.ins, *env])), [], rest, [])


def write_branch(lift: Lifter, instr: Instr, branch: Program, values: list[Value]) -> list[Value]:
    """Lift a branch for the iterations that take it: as a dense call or inside, like the body of a loop."""
    env = dict(zip(branch.ins, values, strict=True))
    rest = hoist_movement(lift, branch, env, set())
    made = {v for i in rest.instrs for v in i.outs}
    rest.outs = list(dict.fromkeys(v for v in variables(branch.outs) if v in made))
    if rest.outs:
        _write_part(lift, instr, rest, env, [False] * len(rest.outs))
    return [lift.literal(v) if isinstance(v, Lit) else env[v] for v in branch.outs]


def _indices_known(ins: list[Value]) -> bool:
    return all(isinstance(v, Const) and v.value is not None for v in ins[1:]) or all(
        not isinstance(v, Const) for v in ins
    )


def trim_program(program: Program) -> None:
    """Keep the equations and inputs that the outputs need."""
    program.instrs, wanted = needed(program.instrs, program.outs)
    program.ins = [v for v in program.ins if v in wanted]
    program.key = program_key(program)


def dense_body(
    lift: Lifter,
    instr: Instr,
    body: Program,
    values: list[Value],
    pattern: BodyPattern,
    loop: int | None = None,
) -> list[Value]:
    """Write the body as one call: outputs that merely pass an argument on are aliases, not outputs."""
    variable = [not isinstance(v, Const) for v in values]
    shapes = [shape_of(body.avals[v]) for v in body.ins]
    cols, col_dtypes = split_columns(values, [body.avals[v] for v in body.ins])
    settled = settle_constants(lift, body, values)
    known = [s for s, v in zip(settled, values, strict=True) if isinstance(v, Const)]
    data = [
        v
        for s, v in zip(settled, values, strict=True)
        if isinstance(v, Const) and not (s is not None and s.whole)
    ]
    computed = pattern.computed

    def fn(take: Take, columns: Sequence[Numeric]) -> list[jax.Array]:
        given = iter(columns)
        constants = [next(given) if s is None else s.fill(None if s.whole else next(given)) for s in known]
        args = split_arguments(take, constants, shapes, variable)
        outs = run_program(body, args)
        return [take_places(jnp.ravel(outs[o]), np.array(places)) for o, places in computed.items()]

    m = sum(len(p) for p in computed.values())
    if not m:
        return pattern.outputs(lift, values, None)
    names = {name for i in body.instrs for name, _ in primitives_of(i)}
    call: CallFunction = fn
    columns = [np.dtype(d) for d in col_dtypes]
    if any(map(needs_reverse_mode, names)):
        call = by_reverse_mode(lift, body.instrs, fn, columns, data)
    elif not all(primitive(name).twice for name in names):
        check_differentiable(body.instrs, call, columns, data)
    fixed = tuple(None if s is None else s.key() for s in known)
    key = ("body", body.key, tuple(variable), tuple((o, tuple(p)) for o, p in computed.items()), fixed)
    spec = CallSpec(key, "scan body", call, m, pattern.jac, pattern.hess, pattern.uses, loop=loop)
    out_dtypes = [out_dtype(body, o) for o, p in computed.items() for _ in p]
    lift.instr = instr
    ids = lift.add_call(spec, cols, data, out_dtypes, col_dtypes)
    return pattern.outputs(lift, values, ids)
