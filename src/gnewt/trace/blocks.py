"""Blocks: lift the body of a loop, as one dense block or inside.

What is constant or mere data movement is done first, for all iterations at once. A body with few arguments
is then one call per iteration; a body over large arrays with local coupling is lifted with a leading axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnewt.graph import take_places
from gnewt.trace.bodies import BodyPattern, analyse_body, out_dtype
from gnewt.trace.calls import by_reverse_mode, check_differentiable, refuse_while
from gnewt.trace.carries import Loop
from gnewt.trace.constants import Const
from gnewt.trace.jaxpr import Instr, Lit, Program, primitives_of, program_key, run_program
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.pool import CallSpec, split_arguments
from gnewt.trace.rules import MOVES, shape_of

DENSE_ARGS = 16
"""Bodies with at most this many scalar arguments are one dense block (compile time 2 to 4 times less)."""


LIFTED_ARGS = 96
"""Bodies with more are lifted inside; in between the nonzeros decide. Lifting a body with few of them makes evaluation 8 to
60 times faster, and one with dense matrices (37 states, 12 inputs) three times slower."""


_INDEXED = {"gather": 1, "dynamic_slice": 1, "dynamic_update_slice": 2, "scatter": 1, "scatter-add": 1}
"""Primitive → position of its first index operand."""


_TAKES = {"gather", "dynamic_slice"}
"""Primitives besides `MOVES` that move scalars, where their indices are known."""


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


def run_body(lift: Lifter, instr: Instr, loop: Loop, values: list[Value]) -> list[Value]:
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
    if lift.seen is not None:
        lift.seen.loops[id(instr)] = (loop, env)
        if lift.seen.share:
            asked = sorted({loop.body.outs[o]: o for o in reversed(asked)}.values())
    if not asked:
        return outs
    rest.outs = [loop.body.outs[o] for o in asked]
    trim_program(rest)
    values = [env[v] for v in rest.ins]
    sums = [o < len(loop.sums) and loop.sums[o] for o in asked]
    count = _count_distinct(values)
    found = None
    if count <= LIFTED_ARGS and not _indexed_by_time(rest, env):
        pattern = analyse_body(lift, rest, values, sums)
        if pattern is not None and (count <= DENSE_ARGS or pattern.density() > 0.5):
            found = dense_body(lift, instr, rest, values, pattern)
    if found is None:
        found = lift.run(lift.prepare(rest, values), values)
    for o, value in zip(asked, found, strict=True):
        outs[o] = env[loop.body.outs[o]] = value
    return [
        env[v] if out is None and flag else out
        for v, flag, out in zip(loop.body.outs, wanted, outs, strict=True)
    ]


def _count_distinct(values: list[Value]) -> int:
    """Count scalar arguments, each once: a slice of u that is taken again and again is one argument."""
    columns = [v.reshape(v.shape[0], -1).T for v in values if not isinstance(v, Const)]
    return len({column.tobytes() for block in columns for column in block})


def _indexed_by_time(rest: Program, env: dict[int, Value]) -> bool:
    """Whether carried arrays are read or written at places that follow the iterations: then lift inside."""
    for instr in rest.instrs:
        if instr.prim in _INDEXED:
            at = _INDEXED[instr.prim]
            last = at + 1 if instr.prim.startswith("scatter") or instr.prim == "gather" else len(instr.ins)
            index = [env.get(v) for v in instr.ins[at:last] if isinstance(v, int)]
            if any(isinstance(v, Const) and v.shape[0] > 1 and v.value is not None for v in index):
                return True
    return False


def _carry_vars(loop: Loop) -> list[int]:
    c = loop.spec.num_consts
    return loop.body.ins[c : c + loop.spec.num_carry]


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
            if all(isinstance(v, Const) for v in ins) or (
                (instr.prim in MOVES or instr.prim in _TAKES) and _indices_known(ins)
            ):
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
        args = split_arguments(take, columns, shapes, variable)
        outs = run_program(body, args)
        return [take_places(jnp.ravel(outs[o]), np.array(places)) for o, places in computed.items()]

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
