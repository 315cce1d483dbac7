"""What a loop carries from one iteration to the next, found before the loop is lifted.

In: a loop and the values of its operands. Out: `LoopCarries` (which carries vary, are needed, are running sums) and the
values of constant carries over time (counters, discounts), which run ahead in the prelude.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Lit, Program, ScanSpec, as_known, count_operations, run_program, scan_spec, variables
from gnewt.jaxprs.compat import Aval, DType
from gnewt.jaxprs.liveness import needed_inputs, varying_of_loop
from gnewt.jaxprs.numpy_run import NumpyProgram
from gnewt.jaxprs.parts import part_of
from gnewt.trace.constants import Const, Known, Value, all_constant
from gnewt.trace.lift import Lifter
from gnewt.trace.rules import Opaque

Arrays: TypeAlias = list[jax.Array]
Scan: TypeAlias = Callable[..., tuple[list, list]]

_MOST_OPERATIONS = 40_000
"""Operations, of all iterations, that NumPy executes sooner than XLA compiles one of them."""

MOST_TRIPS = 20_000
"""Iterations of a while loop that are counted: NumPy takes microseconds for each of them."""

MOMENTS = 2
"""Moments that one equation takes."""


@dataclasses.dataclass(eq=False)
class LoopCarries:
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


def init_dtype(loop: LoopCarries, j: int) -> DType:
    """dtype of carry j."""
    return loop.body.avals[loop.body.ins[loop.spec.num_consts + j]].dtype


def read_loop(spec: ScanSpec, ins: list[Value], read: list[bool]) -> LoopCarries:
    """Find which carries vary, which are needed, and which are running sums.

    Args:
        spec: the loop.
        ins: constants, initial carries and xs.
        read: for each output (carries, then ys) whether somebody reads it.
    """
    c, n = spec.num_consts, spec.num_carry
    consts, init, xs = list(ins[:c]), list(ins[c : c + n]), list(ins[c + n :])
    flags = [not isinstance(v, Const) for v in ins]
    varying = varying_of_loop(spec.body, flags, c, n)[:n]
    needed = list(read)
    while True:
        ins_needed = needed_inputs(spec.body, needed)
        new = [a or b for a, b in zip(needed[:n], ins_needed[c : c + n], strict=True)]
        if new == needed[:n]:
            break
        needed[:n] = new
    sums = [varying[j] and needed[j] and is_running_sum(spec.body, c + j, j) for j in range(n)]
    return LoopCarries(spec, spec.body, consts, init, xs, varying, sums, needed)


def is_running_sum(program: Program, at: int, out: int) -> bool:
    """Whether output `out` is input `at` plus something, and that input is read nowhere else."""
    var, goal = program.ins[at], program.outs[out]
    while True:
        reads = [i for i in program.instrs if var in variables(i.ins)]
        ends = variables(program.outs).count(var)
        if var == goal:
            return not reads and ends == 1 and var != program.ins[at]
        if len(reads) != 1 or ends:
            return False
        (instr,) = reads
        first_only = instr.prim in ("sub", "scatter-add")
        if instr.prim not in ("add", "add_any", "sub", "scatter-add", "convert_element_type", "reshape"):
            return False
        if variables(instr.ins).count(var) != 1 or (first_only and instr.ins[0] != var):
            return False
        before, after = instr.in_avals[instr.ins.index(var)], instr.out_avals[0]
        if before.dtype != after.dtype or before.shape != after.shape:
            return False
        var = instr.outs[0]


def program_length(program: Program) -> int:
    """Count the moments that lifting a program takes."""
    total = 2
    for instr in program.instrs:
        total += MOMENTS
        if instr.prim.startswith("cum"):
            total += MOMENTS * (1 + instr.in_avals[0].shape[instr.params["axis"]])
        elif instr.prim == "rolled":
            total += instr.params["rolled"].spec.length * program_length(instr.bodies[0])
        elif instr.prim == "while" and instr.region is None:
            total += MOST_TRIPS * sum(program_length(b) for b in instr.bodies)
        elif instr.prim == "scan" and instr.region is None:
            total += scan_spec(instr).length * program_length(instr.bodies[0])
        elif instr.prim == "cond" and instr.region is None:
            total += max(program_length(b) for b in instr.bodies)
    return total


# Constants that change over time


def constant_carries(lift: Lifter, loop: LoopCarries) -> tuple[dict[int, Const], dict[int, Const]]:
    """Run the constant part of the loop: for each constant carry its values over time, and the last one."""
    spec = loop.spec
    which = [j for j, v in enumerate(loop.varying) if not v and loop.needed[j]]
    if not which:
        return {}, {}
    series, finals = {}, {}
    rest = []
    for j in which:
        step = _counter_step(loop.body, spec, j)
        init = loop.init[j]
        assert isinstance(init, Const)
        if step is not None and init.value is not None:
            series[j], finals[j] = _count(lift, init, step, spec.length)
        elif loop.body.outs[j] == loop.body.ins[spec.num_consts + j]:
            series[j] = finals[j] = init
        else:
            rest.append(j)
    if rest:
        more, last = _run_constants(lift, loop, rest)
        series |= more
        finals |= last
    return series, finals


def _counter_step(body: Program, spec: ScanSpec, j: int) -> np.ndarray | None:
    """Return the literal that an iteration adds to carry j, if that is all it does."""
    out, var = body.outs[j], body.ins[spec.num_consts + j]
    for instr in body.instrs:
        adds = instr.outs == [out] and instr.prim == "add" and instr.out_avals[0].shape == ()
        if adds and instr.ins[0] == var and isinstance(instr.ins[1], Lit):
            return np.asarray(instr.ins[1].value)
    return None


def _count(lift: Lifter, init: Const, step: np.ndarray, length: int) -> tuple[Const, Const]:
    lead = init.shape[0]

    def values(xp: ModuleType, start: Known) -> tuple[Known, Known]:
        line = (np.arange(length) * step).astype(init.dtype)
        last = (start + (length * step).astype(init.dtype)).astype(init.dtype)
        return (start[:, None] + line).reshape(-1), last

    series, final = lift.constants.apply(
        values, [init], [((lead * length,), init.dtype), ((lead,), init.dtype)]
    )
    return series, final


def _with_sources(loop: LoopCarries, which: list[int]) -> tuple[list[int], list[bool]]:
    """Constant carries with those that they need, to be computed together; and which inputs of the body they read."""
    first, count = loop.spec.num_consts, loop.spec.num_carry
    group = which
    while True:
        flags = needed_inputs(loop.body, [j in group for j in range(len(loop.body.outs))])
        more = [j for j in range(count) if j in group or flags[first + j]]
        if more == group:
            return group, list(flags)
        group = more


def _run_constants(
    lift: Lifter, loop: LoopCarries, which: list[int]
) -> tuple[dict[int, Const], dict[int, Const]]:
    """Scan the constant carries with JAX, recording what each iteration starts from."""
    spec, body = loop.spec, loop.body
    c, n = spec.num_consts, spec.num_carry
    group, flags = _with_sources(loop, which)
    part = part_of(body, [j in group for j in range(len(body.outs))])
    if part is None:
        raise Opaque("a loop that captures constants")
    const_at = [i for i in range(c) if flags[i]]
    xs_at = [i for i in range(len(loop.xs)) if flags[c + n + i]]
    parts = [loop.consts[i] for i in const_at], [loop.init[j] for j in group], [loop.xs[i] for i in xs_at]
    positions = [at for _, at in part.consts]
    ins = [*itertools.chain(*parts), *[lift.hoisted[at] for at in positions]]
    assert all_constant(ins)
    lead = max(v.shape[0] for v in ins)
    length, reverse = spec.length, spec.reverse
    keys = any(jnp.issubdtype(v.dtype, jax.dtypes.extended) for v in ins)

    def one(scan: Scan, *values: Known) -> tuple[Sequence[Known], Sequence[Known]]:
        rest = iter(values)
        consts, init, xs = (list(itertools.islice(rest, len(part))) for part in parts)
        captured = dict(zip(positions, rest, strict=True))

        def arguments(carry: Sequence[Known], x: Sequence[Known]) -> list[Known]:
            args: list[Known] = [_blank(body.avals[v]) for v in body.ins]
            for i, value in zip(const_at, consts, strict=True):
                args[i] = value
            for j, value in zip(group, carry, strict=True):
                args[c + j] = value
            for i, value in zip(xs_at, x, strict=True):
                args[c + n + i] = value
            return args

        return scan(part, captured, arguments, init, xs, length, reverse)

    def run(xp: ModuleType, *values: Known) -> tuple[Known, ...]:
        if xp is np and keys:
            with jax.ensure_compile_time_eval():  # known values stay known inside jit
                return tuple(as_known(v) for v in run(jnp, *values))
        full = [xp.broadcast_to(v, (lead, *v.shape[1:])) for v in values]
        if xp is not np:
            last, all_ = jax.jit(jax.vmap(partial(one, _scan_by_jax)))(*full)
        elif count_operations(part, lead * length) <= _MOST_OPERATIONS:
            lanes = [one(_scan_by_numpy, *[v[b] for v in full]) for b in range(lead)]
            last, all_ = (
                [np.stack(p) for p in zip(*found, strict=True)] for found in zip(*lanes, strict=True)
            )
        else:
            with jax.ensure_compile_time_eval():  # known values stay known inside jit
                return tuple(as_known(v) for v in run(jnp, *values))
        if reverse:
            all_ = [a[:, ::-1] for a in all_]
        return (*(a.reshape(lead * length, *a.shape[2:]) for a in all_), *last)

    shapes = [(tuple(loop.init[j].shape[1:]), init_dtype(loop, j)) for j in group]
    outs = [((lead * length, *s), d) for s, d in shapes] + [((lead, *s), d) for s, d in shapes]
    results = lift.constants.apply(run, ins, outs)
    series = {j: results[i] for i, j in enumerate(group) if j in which}
    finals = {j: results[len(group) + i] for i, j in enumerate(group) if j in which}
    return series, finals


def _blank(aval: Aval) -> Known:
    """What stands for an argument that is not needed."""
    extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    return jnp.zeros(aval.shape, aval.dtype) if extended else np.zeros(aval.shape, aval.dtype)


def _scan_by_jax(
    part: Program,
    captured: dict[int, jax.Array],
    arguments: Callable[..., list],
    init: Arrays,
    xs: Arrays,
    length: int,
    reverse: bool,
) -> tuple[Arrays, Arrays]:
    def step(carry: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
        return list(run_program(part, arguments(carry, x), captured)), list(carry)

    return jax.lax.scan(step, init, xs, length=length, reverse=reverse)


def _scan_by_numpy(
    part: Program,
    captured: dict[int, np.ndarray],
    arguments: Callable[..., list],
    init: list[Known],
    xs: list[Known],
    length: int,
    reverse: bool,
) -> tuple[list[Known], list[np.ndarray]]:
    run, carry, rows = NumpyProgram(part, captured).run, init, []
    for t in range(length)[:: -1 if reverse else 1]:
        rows.append(carry)
        carry = run(arguments(carry, [x[t] for x in xs]))
    rows = rows[:: -1 if reverse else 1]
    return carry, [np.stack(column) for column in zip(*rows, strict=True)]
