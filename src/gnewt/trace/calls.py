"""Opaque calls: whatever has no rule is one dense local function, differentiated by JAX itself.

Also the calls that are not opaque: elementwise custom_jvp functions (one template operation with their own
rule) and conditionals whose predicate is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._errors import TraceError, explain_error
from gnewt.jaxprs import (
    Instr,
    Lit,
    Program,
    bind_instr,
    bind_scalars,
    flatten_jaxpr,
    is_float,
    primitives_of,
    shape_of,
    where_of,
)
from gnewt.jaxprs.primitives import primitive
from gnewt.trace.constants import Const
from gnewt.trace.elementwise import elementwise
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.pool import CallSpec, split_arguments
from gnewt.trace.regions import NeedRegion
from gnewt.trace.rules import Opaque, rule
from gnewt.trace.template import Op

MAX_COLUMNS = 8192
"""An opaque call of more scalars would need a dense local Hessian of more than half a gigabyte."""

Take = Callable[[int, int], Any]
"""take(lo, hi): the columns lo..hi-1 of a call as one vector."""


@rule("opaque")
def opaque_call(lift: Lifter, instr: Instr, ins: list[Value], reason: str) -> list[Value]:
    """Write an equation as a call with one column for every scalar of its variable operands."""
    shapes = [shape_of(a) for a in instr.in_avals]
    floats = [is_float(a.dtype) for a in instr.out_avals]
    if not all(floats) and any(
        v in lift.read_vars for v, ok in zip(instr.outs, floats, strict=True) if not ok
    ):
        raise NeedRegion(instr, lift.enclosing)
    if not any(floats):
        raise NeedRegion(instr, lift.enclosing)
    variable = [not isinstance(v, Const) for v in ins]
    cols, col_dtypes = [], []
    for value, is_var, aval in zip(ins, variable, instr.in_avals, strict=True):
        if is_var:
            flat = value.reshape(value.shape[0], -1)
            cols += [flat[:, j] for j in range(flat.shape[1])]
            col_dtypes += [aval.dtype] * flat.shape[1]
    data = [v for v in ins if isinstance(v, Const)]
    out_shapes = [shape_of(a) for a, ok in zip(instr.out_avals, floats, strict=True) if ok]
    sizes = [int(np.prod(s, dtype=np.int64)) for s in out_shapes]
    detached = lift.detached

    def fn(take: Take, columns: Sequence[Any]) -> list[Any]:
        args = split_arguments(take, columns, shapes, variable)
        if detached:
            args = [jax.lax.stop_gradient(a) for a in args]
        outs = bind_instr(instr, args)
        return [jnp.ravel(o) for o, ok in zip(outs, floats, strict=True) if ok]

    names = {name for name, _ in primitives_of(instr)}
    if "while" in names and not detached:
        refuse_while(instr)
    if any(name.startswith("custom_vjp_call") for name in names):
        fn = by_reverse_mode(fn)
    avals = [(shapes[i], instr.in_avals[i].dtype, variable[i]) for i in range(len(ins))]
    key = ("opaque", instr.key, tuple(avals), detached)
    note = f"opaque: {instr.prim}: {reason}"
    m = sum(sizes)
    if len(cols) > MAX_COLUMNS:
        refuse_wide(instr, len(cols), reason)
    jac = np.zeros((m, len(cols)), bool) if detached else None
    known = primitive(instr.prim)
    curved = not detached and (known.elementwise or known.curvature != "none")
    hess = None if curved else "none"
    spec = CallSpec(key, instr.prim, fn, m, jac, hess, None, note, detached)
    if not detached:
        check_differentiable(instr, fn, [np.dtype(d) for d in col_dtypes], data)
    dtypes = [a.dtype for a, ok in zip(instr.out_avals, floats, strict=True) if ok]
    out = lift.add_call(
        spec, cols, data, [d for d, s in zip(dtypes, sizes, strict=True) for _ in range(s)], col_dtypes
    )
    parts = iter(np.split(out, np.cumsum(sizes)[:-1], axis=1))
    shapes_iter = iter(out_shapes)
    # Non-float results that nobody reads have no ids; a constant stands in their place.
    return [
        next(parts).reshape(out.shape[0], *next(shapes_iter)) if ok else lift.constants.add_fixed(np.zeros(1))
        for ok in floats
    ]


def by_reverse_mode(fn: Callable) -> Callable:
    """Give a function that JAX differentiates in reverse only (custom_vjp) a forward-mode rule."""

    def wrapped(take: Take, columns: Sequence[Any]) -> list[Any]:
        width = take.width  # type: ignore[attr-defined]
        x = take(0, width)

        def flat(v: Any) -> Any:
            return jnp.concatenate(fn(lambda lo, hi: v[lo:hi], columns))

        @jax.custom_jvp
        def call(v: Any) -> Any:
            return flat(v)

        @call.defjvp
        def _jvp(primals: Any, tangents: Any) -> Any:
            (v,), (t,) = primals, tangents
            return call(v), jax.jacrev(flat)(v) @ t

        return [call(x)]

    return wrapped


def refuse_wide(instr: Instr, count: int, reason: str) -> None:
    """Raise: a dense local Hessian over this many scalars is hopeless."""
    raise TraceError(
        explain_error(
            f"{instr.prim} ({reason}) reads {count} variables at once: its local Hessian would be dense",
            where_of(instr),
            "apply it to smaller pieces (jax.lax.map or scan over blocks), or write it with elementwise operations",
        )
    )


def refuse_while(instr: Instr) -> None:
    """Raise: reverse-mode derivatives need a trip count known in advance."""
    eqn = next(e for name, e in primitives_of(instr) if name == "while")
    raise TraceError(
        explain_error(
            "while: a loop whose number of iterations depends on data lies on the path of the derivative",
            where_of(eqn),
            "use jax.lax.scan, or fori_loop with bounds that are Python integers; "
            "or detach its result with jax.lax.stop_gradient",
        )
    )


def check_differentiable(instr: Instr, fn: Callable, dtypes: Sequence[Any], data: Sequence[Const]) -> None:
    """Raise a TraceError unless JAX can differentiate the call twice."""
    places = [j for j, d in enumerate(dtypes) if is_float(d)]
    if not places:
        return
    dtype = jnp.result_type(*[dtypes[j] for j in places])

    def total(x: Any, columns: Any) -> Any:
        where = {j: i for i, j in enumerate(places)}

        def take(lo: int, hi: int) -> Any:
            if all(j in where for j in range(lo, hi)) and hi > lo:
                return x[where[lo] : where[lo] + hi - lo].astype(dtypes[lo])
            return jnp.stack([x[where[j]] if j in where else jnp.zeros((), dtypes[j]) for j in range(lo, hi)])

        take.width = len(dtypes)  # type: ignore[attr-defined]
        return sum(jnp.sum(o) for o in fn(take, columns))

    x = jax.ShapeDtypeStruct((len(places),), dtype)
    columns = [jax.ShapeDtypeStruct(c.shape[1:], c.dtype) for c in data]
    try:
        jax.eval_shape(lambda x, c: jax.jvp(lambda y: jax.grad(total)(y, c), (x,), (x,)), x, columns)
    except Exception as problem:
        raise TraceError(
            explain_error(
                f"{instr.prim}: JAX cannot differentiate this twice ({str(problem).splitlines()[0]})",
                where_of(instr),
                "give it derivatives (jax.custom_jvp), or detach its result with jax.lax.stop_gradient",
            )
        ) from problem


@rule("while")
def _while(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    if not lift.detached:
        refuse_while(instr)
    raise Opaque("a while loop, detached")


@rule("cond")
def _cond(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    which = np.clip(lift.watch(ins[0]).astype(np.int64).ravel(), 0, len(instr.bodies) - 1)
    if np.any(which != which[0]):
        raise Opaque("a predicate that varies over the iterations of a loop")
    return lift.run(lift.prepare(instr.bodies[int(which[0])], ins[1:]), ins[1:])


@rule("custom_jvp_call")
def _custom_jvp(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """Keep an elementwise custom_jvp as one operation: inlining it loses its rule (softplus at 0)."""
    if not _is_elementwise(instr):
        raise Opaque("a custom_jvp function that is not elementwise")
    key = (instr.key, tuple(np.dtype(a.dtype) for a in instr.in_avals))
    if key not in lift.ops:
        lift.ops[key] = Op(key, "custom_jvp", scalar_function(instr))
    return elementwise(lift, instr, ins, lift.ops[key])


def _is_elementwise(instr: Instr) -> bool:
    shape = instr.out_avals[0].shape
    if len(instr.out_avals) != 1 or any(a.shape not in ((), shape) for a in instr.in_avals):
        return False
    program = flatten_jaxpr(instr.params["call_jaxpr"], [])
    return not program.consts and _scalarizable(program, shape)


def _scalarizable(program: Program, shape: tuple[int, ...]) -> bool:
    if any(program.avals[v].shape not in ((), shape) for i in program.instrs for v in i.outs):
        return False
    return all(
        primitive(i.prim).elementwise
        or (i.prim == "broadcast_in_dim" and i.in_avals[0].shape in ((), shape))
        or (i.prim == "custom_jvp_call" and _is_elementwise(i))
        for i in program.instrs
    )


def scalar_function(instr: Instr) -> Callable:
    """Return an elementwise custom_jvp function on scalars, with its own derivative rule."""
    program = flatten_jaxpr(instr.params["call_jaxpr"], [])
    made: dict[Any, Callable] = {}

    @jax.custom_jvp
    def call(*args: Any) -> Any:
        return run_scalars(program, args, made)[0]

    def rule_program() -> Program:
        # The rule, as JAX applies it, at the shapes of the equation; replayed on scalars.
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in instr.in_avals]
        active = [i for i, a in enumerate(avals) if is_float(a.dtype)]

        def apply(*xs: Any) -> Any:
            return _bind_custom(instr, xs)

        def jvp(xs: Any, ts: Any) -> Any:
            def part(*moving: Any) -> Any:
                full = list(xs)
                for i, value in zip(active, moving, strict=True):
                    full[i] = value
                return apply(*full)

            return jax.jvp(part, tuple(xs[i] for i in active), tuple(ts))

        closed = jax.make_jaxpr(jvp)(avals, [avals[i] for i in active])
        return flatten_jaxpr(closed, [])

    @call.defjvp
    def _jvp(primals: Any, tangents: Any) -> Any:
        made[instr.key] = call
        if "rule" not in made:
            made["rule"] = rule_program()  # type: ignore[assignment]
        moving = [t for t, a in zip(tangents, instr.in_avals, strict=True) if is_float(a.dtype)]
        out, tangent = run_scalars(made["rule"], [*primals, *moving], made)  # type: ignore[arg-type]
        return out, jnp.asarray(tangent, out.dtype)

    return lambda args: call(*args)


def _bind_custom(instr: Instr, args: Sequence[Any]) -> Any:
    """Apply the equation with every operand given, literal ones too."""
    return bind_instr(instr, args)[0]


def run_scalars(program: Program, args: Sequence[Any], made: dict[Any, Callable]) -> list[Any]:
    """Replay an elementwise program on scalars."""
    env: dict[int, Any] = dict(zip(program.ins, args, strict=True))

    def read(v: Any) -> Any:
        return jnp.asarray(v.value, v.dtype).reshape(()) if isinstance(v, Lit) else env[v]

    for instr in program.instrs:
        values = [read(v) for v in instr.ins]
        if primitive(instr.prim).move is not None:
            out = values[0]
        elif instr.prim == "custom_jvp_call":
            if instr.key not in made:
                inner = scalar_function(instr)
                made[instr.key] = lambda *a, inner=inner: inner(list(a))
            out = made[instr.key](*values)
        else:
            out = bind_scalars(instr, values)
        env[instr.outs[0]] = out
    return [read(v) for v in program.outs]
