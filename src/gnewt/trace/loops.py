"""Loops: a scan is a family over time, lifted for all iterations at once.

Carries are placeholders, aliased to the ids that define them: pass-through carries and shift registers cost
nothing, running sums become sums. A body with few arguments is one dense block; a body over large arrays
with local coupling is lifted inside, with a leading axis for the iterations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.trace.bodies import BodyPattern, analyse_body, out_dtype
from gnewt.trace.calls import by_reverse_mode, check_differentiable, refuse_while
from gnewt.trace.constants import PLUS, Const
from gnewt.trace.jaxpr import (
    Instr,
    Lit,
    Program,
    ScanSpec,
    primitives_of,
    program_key,
    run_program,
    scan_spec,
)
from gnewt.trace.lift import Context, Lifter, Value
from gnewt.trace.pool import CallSpec
from gnewt.trace.regions import varying_outputs
from gnewt.trace.rules import MOVES, Opaque, is_float, rule, shape_of

DENSE_ARGS = 16
"""Bodies with at most this many scalar arguments are one dense block (compile time 2 to 4 times less)."""
LIFTED_ARGS = 32
"""Bodies with more are lifted inside (evaluation 8 to 60 times better); in between the nonzeros decide."""


@dataclasses.dataclass(eq=False)
class Loop:
    """A scan being lifted: which carries vary, which are constants, which are running sums."""

    spec: ScanSpec
    body: Program
    consts: list[Value]
    init: list[Value]
    xs: list[Value]
    varying: list[bool]
    """For each carry: depends on the variables."""
    sums: list[bool]
    """For each carry: only ever added to."""
    needed: list[bool]
    """For each output of the body (carries, then ys): somebody reads it."""


@rule("scan")
def _scan(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if id(instr) in lift.forced:
        raise Opaque("a loop that carries integers, booleans or complex numbers")
    loop = _read(lift, instr, ins)
    spec = loop.spec
    if spec.length == 0:
        ys = [
            lift.constants.add_fixed(np.zeros((1, *shape_of(a)), a.dtype))
            for a in instr.out_avals[spec.num_carry :]
        ]
        return [*loop.init, *ys]
    for j, carry in enumerate(loop.varying):
        if carry and not is_float(instr.out_avals[j].dtype) and loop.needed[j]:
            raise Opaque("a loop that carries integers or booleans that depend on the variables")
    series, finals = _constant_carries(lift, loop)
    outer = lift.ctx
    batch, length = outer.batch, spec.length
    steps = program_length(loop.body)
    start = outer.keys + outer.offset
    keys = (start[:, None] + 1 + np.arange(length) * steps).ravel()
    outer.offset += length * steps + 1
    inner = Context(batch * length, keys)
    values = _body_values(lift, loop, series, batch)
    placeholders = _placeholders(lift, loop, batch)
    for j, ids in placeholders.items():
        values[spec.num_consts + j] = ids.reshape(batch * length, *ids.shape[2:])
    lift.ctx = inner
    lift.enclosing.append(instr)
    outs = _run_body(lift, instr, loop, values)
    lift.enclosing.pop()
    lift.ctx = outer
    lift.instr = instr
    return _finish(lift, instr, loop, outs, placeholders, finals)


def _read(lift: Lifter, instr: Instr, ins: list[Value]) -> Loop:
    spec = scan_spec(instr)
    c, n = spec.num_consts, spec.num_carry
    consts, init, xs = list(ins[:c]), list(ins[c : c + n]), list(ins[c + n :])
    varying = [not isinstance(v, Const) for v in init]
    while True:
        flags = [not isinstance(v, Const) for v in consts] + varying + [not isinstance(v, Const) for v in xs]
        outs, _ = varying_outputs(spec.body, flags)
        new = [a or b for a, b in zip(varying, outs[:n], strict=True)]
        if new == varying:
            break
        varying = new
    needed = [v in lift.read_vars for v in instr.outs]
    while True:
        ins_needed = needed_inputs(spec.body, needed)
        new = [a or b for a, b in zip(needed[:n], ins_needed[c : c + n], strict=True)]
        if new == needed[:n]:
            break
        needed[:n] = new
    sums = [varying[j] and needed[j] and is_running_sum(spec.body, c + j, j) for j in range(n)]
    return Loop(spec, spec.body, consts, init, xs, varying, sums, needed)


def needed_inputs(program: Program, outs: Sequence[bool]) -> list[bool]:
    """Return which inputs the marked outputs depend on."""
    found = {v for v, flag in zip(program.outs, outs, strict=True) if flag and isinstance(v, int)}
    for instr in reversed(program.instrs):
        if not found.isdisjoint(instr.outs):
            found.update(v for v in instr.ins if isinstance(v, int))
    return [v in found for v in program.ins]


def is_running_sum(program: Program, at: int, out: int) -> bool:
    """Whether output `out` is input `at` plus something, and that input is read nowhere else."""
    var, goal = program.ins[at], program.outs[out]
    reads = [i for i in program.instrs if any(isinstance(v, int) and v == var for v in i.ins)]
    if len(reads) != 1 or sum(isinstance(v, int) and v == var for v in program.outs):
        return False
    while True:
        (instr,) = reads
        first_only = instr.prim in ("sub", "scatter-add", "scatter_add")
        if instr.prim not in (
            "add",
            "add_any",
            "sub",
            "scatter-add",
            "scatter_add",
            "convert_element_type",
            "reshape",
        ):
            return False
        if sum(v == var for v in instr.ins if isinstance(v, int)) != 1 or (
            first_only and instr.ins[0] != var
        ):
            return False
        if instr.in_avals[instr.ins.index(var)].dtype != instr.out_avals[0].dtype:
            return False
        if instr.in_avals[instr.ins.index(var)].shape != instr.out_avals[0].shape:
            return False
        var = instr.outs[0]
        reads = [i for i in program.instrs if any(isinstance(v, int) and v == var for v in i.ins)]
        ends = sum(isinstance(v, int) and v == var for v in program.outs)
        if isinstance(goal, int) and var == goal:
            return not reads and ends == 1
        if len(reads) != 1 or ends:
            return False


def program_length(program: Program) -> int:
    """Count the moments that lifting a program takes."""
    total = 2
    for instr in program.instrs:
        total += 2
        if instr.prim == "scan" and instr.region is None:
            total += scan_spec(instr).length * program_length(instr.bodies[0])
        elif instr.prim == "cond" and instr.region is None:
            total += max(program_length(b) for b in instr.bodies)
    return total


# Constants that change over time


def _constant_carries(lift: Lifter, loop: Loop) -> tuple[dict[int, Const], dict[int, Const]]:
    """Run the constant part of the loop: for each constant carry its values over time, and the last one."""
    spec = loop.spec
    which = [j for j, v in enumerate(loop.varying) if not v and loop.needed[j]]
    if not which:
        return {}, {}
    series, finals = {}, {}
    rest = []
    for j in which:
        step = _counter_step(loop.body, spec, j)
        if step is not None and loop.init[j].value is not None:
            series[j], finals[j] = _count(lift, loop.init[j], step, spec.length)
        elif isinstance(loop.body.outs[j], int) and loop.body.outs[j] == loop.body.ins[spec.num_consts + j]:
            series[j] = finals[j] = loop.init[j]
        else:
            rest.append(j)
    if rest:
        more, last = _run_constants(lift, loop, rest)
        series |= more
        finals |= last
    return series, finals


def _counter_step(body: Program, spec: ScanSpec, j: int) -> Any:
    out, var = body.outs[j], body.ins[spec.num_consts + j]
    for instr in body.instrs:
        if instr.outs == [out] and instr.prim == "add" and instr.out_avals[0].shape == ():
            if instr.ins[0] == var and isinstance(instr.ins[1], Lit):
                return np.asarray(instr.ins[1].value)
    return None


def _count(lift: Lifter, init: Const, step: np.ndarray, length: int) -> tuple[Const, Const]:
    lead = init.shape[0]

    def values(xp: Any, start: Any) -> tuple[Any, Any]:
        line = (np.arange(length) * step).astype(init.dtype)
        return (start[:, None] + line).reshape(-1), (start + (length * step).astype(init.dtype)).astype(
            init.dtype
        )

    series, final = lift.constants.apply(
        values, [init], [((lead * length,), init.dtype), ((lead,), init.dtype)]
    )
    return series, final


def _run_constants(lift: Lifter, loop: Loop, which: list[int]) -> tuple[dict[int, Const], dict[int, Const]]:
    """Scan the constant carries with JAX, recording what each iteration starts from."""
    spec, body = loop.spec, loop.body
    c, n = spec.num_consts, spec.num_carry
    flags = needed_inputs(body, [j in which for j in range(len(body.outs))])
    # Constant carries may need other constant carries; all of them are computed together.
    group = [j for j in range(n) if j in which or flags[c + j]]
    while True:
        flags = needed_inputs(body, [j in group for j in range(len(body.outs))])
        more = [j for j in range(n) if j in group or flags[c + j]]
        if more == group:
            break
        group = more
    part = dataclasses.replace(body, outs=[body.outs[j] for j in group])
    wanted = {v for v in part.outs if isinstance(v, int)}
    kept = []
    for instr in reversed(body.instrs):
        if not wanted.isdisjoint(instr.outs):
            wanted.update(v for v in instr.ins if isinstance(v, int))
            kept.append(instr)
    part.instrs = kept[::-1]
    const_at = [i for i in range(c) if flags[i]]
    xs_at = [i for i in range(len(loop.xs)) if flags[c + n + i]]
    hoisted = [lift.hoisted[at] for _, at in body.consts]
    ins = (
        [loop.consts[i] for i in const_at]
        + [loop.init[j] for j in group]
        + [loop.xs[i] for i in xs_at]
        + hoisted
    )
    lead = max(v.shape[0] for v in ins)
    length, reverse = spec.length, spec.reverse

    def one(*values: Any) -> tuple[list[Any], list[Any]]:
        parts = np.cumsum([len(const_at), len(group), len(xs_at)])
        consts, init, xs = values[: parts[0]], values[parts[0] : parts[1]], values[parts[1] : parts[2]]
        captured = dict(zip([at for _, at in body.consts], values[parts[2] :], strict=True))

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            args: list[Any] = [jnp.zeros(a.shape, a.dtype) for a in (body.avals[v] for v in body.ins)]
            for i, value in zip(const_at, consts, strict=True):
                args[i] = value
            for j, value in zip(group, carry, strict=True):
                args[c + j] = value
            for i, value in zip(xs_at, x, strict=True):
                args[c + n + i] = value
            return list(run_program(part, args, captured)), list(carry)

        return jax.lax.scan(step, list(init), list(xs), length=length, reverse=reverse)

    def run(xp: Any, *values: Any) -> tuple[Any, ...]:
        full = [jnp.broadcast_to(v, (lead, *v.shape[1:])) for v in values]
        last, all_ = jax.jit(jax.vmap(one))(*full)
        if reverse:
            all_ = [a[:, ::-1] for a in all_]
        found = [a.reshape(lead * length, *a.shape[2:]) for a in all_] + list(last)
        return tuple(np.asarray(v) for v in found) if xp is np else tuple(found)

    shapes = [(tuple(loop.init[j].shape[1:]), loop.init[j].dtype) for j in group]
    outs = [((lead * length, *s), d) for s, d in shapes] + [((lead, *s), d) for s, d in shapes]
    results = lift.constants.apply(run, ins, outs)
    series = {j: results[i] for i, j in enumerate(group) if j in which}
    finals = {j: results[len(group) + i] for i, j in enumerate(group) if j in which}
    return series, finals


# The body


def _spread(lift: Lifter, value: Value, batch: int, length: int) -> Value:
    """Repeat what varies over an outer loop for every iteration of the inner one."""
    if value.shape[0] == 1:
        return value
    if isinstance(value, Const):
        shape = (batch * length, *value.shape[1:])
        return lift.constants.apply(
            lambda xp, v: (xp.repeat(v, length, axis=0),), [value], [(shape, value.dtype)]
        )[0]
    return np.repeat(value, length, axis=0)


def _slices(lift: Lifter, value: Value, batch: int, spec: ScanSpec) -> Value:
    """Turn xs [lead, T, ...] into iterations [lead · T, ...], in the order of time."""
    lead, length = value.shape[:2]
    shape = (batch * length, *value.shape[2:])

    def cut(xp: Any, v: Any) -> Any:
        v = v[:, ::-1] if spec.reverse else v
        return (xp.reshape(xp.broadcast_to(v, (batch, *v.shape[1:])) if lead != batch else v, shape),)

    if isinstance(value, Const):
        return lift.constants.apply(cut, [value], [(shape, value.dtype)])[0]
    return cut(np, value)[0]


def _body_values(lift: Lifter, loop: Loop, series: dict[int, Const], batch: int) -> list[Value]:
    spec = loop.spec
    values = [_spread(lift, v, batch, spec.length) for v in loop.consts]
    for j, init in enumerate(loop.init):
        if j not in series:
            # A carry nobody needs, or one that placeholders replace.
            values.append(lift.constants.add_fixed(np.zeros((1, *init.shape[1:]), init.dtype)))
        elif series[j].shape[0] == 1 or series[j] is init:
            values.append(_spread(lift, series[j], batch, spec.length) if series[j] is init else series[j])
        else:
            lead = series[j].shape[0] // spec.length
            if lead == batch:
                values.append(series[j])
            else:
                shape = (batch * spec.length, *series[j].shape[1:])
                tile = (batch, *[1] * (len(shape) - 1))
                step = lambda xp, v, tile=tile: (xp.tile(v, tile),)
                values.append(lift.constants.apply(step, [series[j]], [(shape, series[j].dtype)])[0])
    return values + [_slices(lift, v, batch, spec) for v in loop.xs]


def _placeholders(lift: Lifter, loop: Loop, batch: int) -> dict[int, np.ndarray]:
    """For each varying carry ids [batch, T, ...]: the initial value, then placeholders."""
    out = {}
    for j, init in enumerate(loop.init):
        if not loop.varying[j] or loop.sums[j] or not loop.needed[j]:
            continue
        first = lift.ids(init)
        first = np.broadcast_to(first, (batch, *first.shape[1:]))
        later = lift.add_carries((batch, loop.spec.length - 1, *first.shape[1:]), init_dtype(loop, j))
        out[j] = np.concatenate([first[:, None], later], 1)
    return out


def init_dtype(loop: Loop, j: int) -> Any:
    """dtype of carry j."""
    return loop.body.avals[loop.body.ins[loop.spec.num_consts + j]].dtype


def _run_body(lift: Lifter, instr: Instr, loop: Loop, values: list[Value]) -> list[Value]:
    """Lift the body: what is constant or mere data movement first, the rest as one dense block or inside."""
    wanted = [flag and (o >= loop.spec.num_carry or loop.varying[o]) for o, flag in enumerate(loop.needed)]
    env = dict(zip(loop.body.ins, values, strict=True))
    rest = hoist_movement(lift, loop, env)
    outs: list[Value] = [
        env.get(v) if flag and isinstance(v, int) else None
        for v, flag in zip(loop.body.outs, wanted, strict=True)
    ]
    late = {v for i in rest.instrs for v in i.outs} | {
        v for j, v in enumerate(_carry_vars(loop)) if loop.varying[j]
    }
    asked = [o for o, v in enumerate(loop.body.outs) if wanted[o] and isinstance(v, int) and v in late]
    for o, v in enumerate(loop.body.outs):
        if wanted[o] and isinstance(v, Lit):
            outs[o] = lift.literal(v)
    if not asked:
        return outs
    rest.outs = [loop.body.outs[o] for o in asked]
    trim_program(rest)
    values = [env[v] for v in rest.ins]
    sums = [o < len(loop.sums) and loop.sums[o] for o in asked]
    count = sum(int(np.prod(v.shape[1:], dtype=np.int64)) for v in values if not isinstance(v, Const))
    found = None
    if count <= LIFTED_ARGS:
        pattern = analyse_body(lift, rest, values, sums)
        if pattern is not None and (count <= DENSE_ARGS or pattern.density() > 0.5):
            found = dense_body(lift, instr, rest, values, pattern)
    if found is None:
        found = lift.run(lift.prepare(rest, values), values)
    for o, value in zip(asked, found, strict=True):
        outs[o] = value
    return outs


def _carry_vars(loop: Loop) -> list[int]:
    c = loop.spec.num_consts
    return loop.body.ins[c : c + loop.spec.num_carry]


_MOVEMENT = {*MOVES, "gather", "dynamic_slice"}


def hoist_movement(lift: Lifter, loop: Loop, env: dict[int, Value]) -> Program:
    """Apply, for all iterations at once, what needs no carry and makes no scalars; return what remains.

    u[t] inside a loop over t is then an argument of its own, not the whole array u.
    """
    body = loop.body
    for var, at in body.consts:
        env[var] = lift.hoisted[at]
    late = {v for j, v in enumerate(_carry_vars(loop)) if loop.varying[j]}
    rest = []
    for instr in body.instrs:
        ready = not any(isinstance(v, int) and v in late for v in instr.ins)
        if ready:
            ins = [lift.literal(v) if isinstance(v, Lit) else env[v] for v in instr.ins]
            if all(isinstance(v, Const) for v in ins) or (instr.prim in _MOVEMENT and _indices_known(ins)):
                env.update(zip(instr.outs, lift.apply(instr, ins), strict=True))
                continue
        rest.append(instr)
        late.update(instr.outs)
    return Program(body.avals, list(dict.fromkeys([*body.ins, *env])), [], rest, [])


def _indices_known(ins: list[Value]) -> bool:
    return all(isinstance(v, Const) and v.value is not None for v in ins[1:]) or all(
        not isinstance(v, Const) for v in ins
    )


def trim_program(program: Program) -> None:
    """Keep the equations and inputs that the outputs need."""
    wanted = {v for v in program.outs if isinstance(v, int)}
    kept = []
    for instr in reversed(program.instrs):
        if not wanted.isdisjoint(instr.outs):
            wanted.update(v for v in instr.ins if isinstance(v, int))
            kept.append(instr)
    program.instrs = kept[::-1]
    program.ins = [v for v in program.ins if v in wanted]
    program.key = program_key(program)


def dense_body(
    lift: Lifter, instr: Instr, body: Program, values: list[Value], pattern: BodyPattern
) -> list[Value]:
    """Write the body as one call: outputs that merely pass an argument on are aliases, not outputs."""
    variable = [not isinstance(v, Const) for v in values]
    shapes = [shape_of(body.avals[v]) for v in body.ins]
    cols, col_dtypes = [], []
    for value, is_var, var in zip(values, variable, body.ins, strict=True):
        if is_var:
            flat = value.reshape(value.shape[0], -1)
            cols += [flat[:, i] for i in range(flat.shape[1])]
            col_dtypes += [body.avals[var].dtype] * flat.shape[1]
    data = [v for v in values if isinstance(v, Const)]
    computed = pattern.computed

    def fn(take: Any, columns: Sequence[Any]) -> list[Any]:
        args, at, column = [], 0, iter(columns)
        for shape, is_var in zip(shapes, variable, strict=True):
            if is_var:
                size = int(np.prod(shape, dtype=np.int64))
                args.append(take(at, at + size).reshape(shape))
                at += size
            else:
                args.append(next(column))
        outs = run_program(body, args)
        return [jnp.ravel(outs[o])[np.array(places)] for o, places in computed.items()]

    m = sum(len(p) for p in computed.values())
    if not m:
        return pattern.outputs(lift, values, None)
    names = {name for i in body.instrs for name, _ in primitives_of(i)}
    if "while" in names:
        refuse_while(next(i for i in body.instrs for name, _ in primitives_of(i) if name == "while"))
    if any(n.startswith("custom_vjp") for n in names):
        fn = by_reverse_mode(fn)
    if names & _SUSPECT:
        check_differentiable(instr, fn, [np.dtype(d) for d in col_dtypes], data)
    key = ("body", body.key, tuple(variable), tuple((o, tuple(p)) for o, p in computed.items()))
    spec = CallSpec(key, "scan body", fn, m, pattern.jac, pattern.hess, pattern.uses)
    out_dtypes = [out_dtype(body, o) for o, p in computed.items() for _ in p]
    lift.instr = instr
    ids = lift.add_call(spec, cols, data, out_dtypes, col_dtypes)
    return pattern.outputs(lift, values, ids)


_SUSPECT = {
    "pure_callback",
    "io_callback",
    "custom_vjp_call",
    "custom_call",
    "ffi_call",
    "sort",
    "eigh",
    "svd",
    "eig",
    "schur",
}
"""Primitives that JAX may be unable to differentiate twice."""


# Results


def _finish(
    lift: Lifter,
    instr: Instr,
    loop: Loop,
    outs: list[Value],
    placeholders: dict[int, np.ndarray],
    finals: dict[int, Const],
) -> list[Value]:
    spec, batch, length = loop.spec, lift.ctx.batch, loop.spec.length
    results: list[Value] = []
    for j in range(spec.num_carry):
        aval = instr.out_avals[j]
        if not loop.needed[j]:
            results.append(lift.constants.add_fixed(np.zeros((1, *shape_of(aval)), aval.dtype)))
        elif not loop.varying[j]:
            results.append(finals[j])
        else:
            over_time = _over_time(lift.ids(outs[j]), batch, length)
            if loop.sums[j]:
                terms = np.moveaxis(
                    np.concatenate([_lead(lift.ids(loop.init[j]), batch)[:, None], over_time], 1), 1, -1
                )
                results.append(_add_terms(lift, terms, aval.dtype))
                continue
            lift.pool.alias.append((placeholders[j][:, 1:], over_time[:, :-1]))
            results.append(over_time[:, -1])
    for o in range(spec.num_carry, len(outs)):
        if not loop.needed[o]:
            aval = instr.out_avals[o]
            results.append(lift.constants.add_fixed(np.zeros((1, *shape_of(aval)), aval.dtype)))
        elif isinstance(outs[o], Const):
            results.append(_stack_const(lift, outs[o], batch, spec))
        else:
            over_time = _over_time(outs[o], batch, length)
            results.append(over_time[:, ::-1] if spec.reverse else over_time)
    return results


def _lead(ids: np.ndarray, batch: int) -> np.ndarray:
    return np.broadcast_to(ids, (batch, *ids.shape[1:]))


def _over_time(ids: np.ndarray, batch: int, length: int) -> np.ndarray:
    return np.broadcast_to(ids, (batch * length, *ids.shape[1:])).reshape(batch, length, *ids.shape[1:])


def _add_terms(lift: Lifter, terms: np.ndarray, dtype: Any) -> np.ndarray:
    zero = lift.constants.scalar(0, dtype)
    keep = (terms != zero).reshape(-1, terms.shape[-1])
    ptr = np.concatenate([[0], np.cumsum(keep.sum(1))])
    cols = terms.reshape(-1, terms.shape[-1])[keep]
    return lift.add_rows(ptr, cols, np.full(len(cols), PLUS, np.int32), terms.shape[:-1], dtype)


def _stack_const(lift: Lifter, value: Const, batch: int, spec: ScanSpec) -> Const:
    shape = (batch, spec.length, *value.shape[1:])

    def step(xp: Any, v: Any) -> tuple[Any]:
        v = xp.broadcast_to(v, (batch * spec.length, *v.shape[1:])).reshape(shape)
        return (v[:, ::-1] if spec.reverse else v,)

    return lift.constants.apply(step, [value], [(shape, value.dtype)])[0]
