"""Rules for loops: a scan, or a Python loop found by `unrolled_loops`, is lifted for all iterations at once.

In: the equation of a loop and the ids of its operands. Out: the ids of its last carries and of its stacked results.
Carries are placeholders, aliased to the ids that define them: pass-through carries and shift registers cost
nothing, running sums become sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from gnewt._errors import TraceError, explain_error
from gnewt.jaxprs import Instr, ScanSpec, is_float, scan_spec, shape_of, where_of
from gnewt.jaxprs.compat import Aval
from gnewt.trace.constants import Const, Known, Value, all_constant
from gnewt.trace.lift import Context, Lifter
from gnewt.trace.loop_bodies import run_body
from gnewt.trace.loop_carries import LoopCarries, constant_carries, init_dtype, program_length, read_loop
from gnewt.trace.rules import Opaque, rule
from gnewt.trace.sum_rules import add_rows_without_zeros

MAX_CARRIED = 200_000_000
"""Carried scalars × iterations; more would not fit in memory."""


@rule("scan")
def _scan(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if id(instr) in lift.forced:
        raise Opaque("a loop that carries integers, booleans or complex numbers")
    spec = scan_spec(instr)
    read = [v in lift.read_vars for v in instr.outs]
    return lift_loop(lift, instr, read_loop(spec, ins, read), instr.out_avals)


@rule("rolled")
def _rolled(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """A loop that the user's Python unrolled."""
    rolled = instr.params["rolled"]
    spec, at = rolled.spec, rolled.spec.num_consts + rolled.spec.num_carry
    xs = [stack_values(lift, ins[i : i + spec.length]) for i in range(at, len(ins), spec.length)]
    asked = {o for o, r in rolled.picks}
    loop = read_loop(spec, [*ins[:at], *xs], [o in asked for o in range(len(spec.body.outs))])
    results = lift_loop(lift, instr, loop, [spec.body.avals[v] for v in spec.body.outs])
    return [results[o] if r < 0 else _pick(lift, results[o], r) for o, r in rolled.picks]


def stack_values(lift: Lifter, values: Sequence[Value]) -> Value:
    """Stack one value per repetition into [lead, T, ...]."""
    lead = max(v.shape[0] for v in values)
    shape = (lead, len(values), *values[0].shape[1:])

    def stack(xp: ModuleType, *arrays: Known) -> tuple[Known]:
        return (xp.stack([xp.broadcast_to(a, (lead, *a.shape[1:])) for a in arrays], 1),)

    if all_constant(values):
        return lift.constants.apply(stack, values, [(shape, values[0].dtype)])[0]
    return np.asarray(stack(np, *[lift.ids(v) for v in values])[0])


def _pick(lift: Lifter, value: Value, r: int) -> Value:
    if not isinstance(value, Const):
        return value[:, r]
    shape = (value.shape[0], *value.shape[2:])
    return lift.constants.apply(lambda xp, v: (v[:, r],), [value], [(shape, value.dtype)])[0]


def lift_loop(lift: Lifter, instr: Instr, loop: LoopCarries, out_avals: Sequence[Aval]) -> list[Value]:
    """Lift all iterations at once; returns the last carries and the stacked ys."""
    spec = loop.spec
    if spec.length == 0:
        return [*loop.init, *(_zeros(lift, a) for a in out_avals[spec.num_carry :])]
    for j, carry in enumerate(loop.varying):
        if carry and not is_float(out_avals[j].dtype) and loop.needed[j]:
            raise Opaque("a loop that carries integers or booleans that depend on the variables")
    size = sum(int(np.prod(a.shape, dtype=np.int64)) for a in out_avals[: spec.num_carry])
    if size * spec.length * lift.ctx.batch > MAX_CARRIED:
        raise TraceError(
            explain_error(
                f"a loop of {spec.length} iterations carries {size} scalars: too many to follow one by one",
                where_of(instr),
                "collect results as the ys of jax.lax.scan instead of writing them into a carried array",
            )
        )
    series, finals = constant_carries(lift, loop)
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
    outs = run_body(lift, instr, loop, values)
    lift.enclosing.pop()
    lift.ctx = outer
    lift.instr = instr
    return _finish(lift, out_avals, loop, outs, placeholders, finals)


def _zeros(lift: Lifter, aval: Aval) -> Const:
    """What stands for a result that nobody reads, or that has no entries."""
    return lift.constants.add_fixed(np.zeros((1, *shape_of(aval)), aval.dtype))


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

    def cut(xp: ModuleType, v: Known) -> tuple[Known]:
        v = v[:, ::-1] if spec.reverse else v
        return (xp.reshape(xp.broadcast_to(v, (batch, *v.shape[1:])) if lead != batch else v, shape),)

    if isinstance(value, Const):
        return lift.constants.apply(cut, [value], [(shape, value.dtype)])[0]
    return np.asarray(cut(np, value)[0])


def _body_values(lift: Lifter, loop: LoopCarries, series: dict[int, Const], batch: int) -> list[Value]:
    spec = loop.spec
    values = [_spread(lift, v, batch, spec.length) for v in loop.consts]
    for j, init in enumerate(loop.init):
        if j not in series:
            # A carry nobody needs, or one that placeholders replace.
            values.append(lift.constants.add_fixed(np.zeros((1, *init.shape[1:]), init_dtype(loop, j))))
        elif series[j].shape[0] == 1 or series[j] is init:
            values.append(_spread(lift, series[j], batch, spec.length) if series[j] is init else series[j])
        else:
            lead = series[j].shape[0] // spec.length
            if lead == batch:
                values.append(series[j])
            else:
                shape = (batch * spec.length, *series[j].shape[1:])
                tile = (batch, *[1] * (len(shape) - 1))

                def repeat(xp: ModuleType, v: Known, tile: tuple[int, ...] = tile) -> tuple[Known]:
                    return (xp.tile(v, tile),)

                values.append(lift.constants.apply(repeat, [series[j]], [(shape, series[j].dtype)])[0])
    return values + [_slices(lift, v, batch, spec) for v in loop.xs]


def _placeholders(lift: Lifter, loop: LoopCarries, batch: int) -> dict[int, np.ndarray]:
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


def _finish(
    lift: Lifter,
    out_avals: Sequence[Aval],
    loop: LoopCarries,
    outs: list[Value | None],
    placeholders: dict[int, np.ndarray],
    finals: dict[int, Const],
) -> list[Value]:
    spec, batch, length = loop.spec, lift.ctx.batch, loop.spec.length
    results: list[Value] = []
    for j in range(spec.num_carry):
        aval = out_avals[j]
        if not loop.needed[j]:
            results.append(_zeros(lift, aval))
        elif not loop.varying[j]:
            results.append(finals[j])
        else:
            out = outs[j]
            assert out is not None
            over_time = stack_iterations(lift.ids(out), batch, length)
            if loop.sums[j]:
                first = lift.ids(loop.init[j])
                first = np.broadcast_to(first, (batch, *first.shape[1:]))
                terms = np.moveaxis(np.concatenate([first[:, None], over_time], 1), 1, -1)
                results.append(add_rows_without_zeros(lift, terms, aval.dtype))
                continue
            lift.pool.alias.append((placeholders[j][:, 1:], over_time[:, :-1]))
            results.append(over_time[:, -1])
    for o in range(spec.num_carry, len(outs)):
        out = outs[o]
        if not loop.needed[o] or out is None:
            results.append(_zeros(lift, out_avals[o]))
        elif isinstance(out, Const):
            results.append(_stack_const(lift, out, batch, spec))
        else:
            over_time = stack_iterations(out, batch, length)
            results.append(over_time[:, ::-1] if spec.reverse else over_time)
    return results


def stack_iterations(ids: np.ndarray, batch: int, length: int) -> np.ndarray:
    return np.broadcast_to(ids, (batch * length, *ids.shape[1:])).reshape(batch, length, *ids.shape[1:])


def _stack_const(lift: Lifter, value: Const, batch: int, spec: ScanSpec) -> Const:
    shape = (batch, spec.length, *value.shape[1:])

    def step(xp: ModuleType, v: Known) -> tuple[Known]:
        v = xp.broadcast_to(v, (batch * spec.length, *v.shape[1:])).reshape(shape)
        return (v[:, ::-1] if spec.reverse else v,)

    return lift.constants.apply(step, [value], [(shape, value.dtype)])[0]
