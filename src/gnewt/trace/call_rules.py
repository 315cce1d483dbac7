"""Rules for calls: whatever has no rule is one opaque call, a dense local function that JAX itself differentiates.

In: an equation and the ids of its operands. Out: ids of a call's outputs. Also the calls that are not opaque: elementwise
custom_jvp functions (one template operation with their own derivative).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import TraceError, explain_error
from gnewt.jaxprs import (
    Instr,
    Lit,
    Operand,
    Program,
    bind_instr,
    bind_scalars,
    compat,
    flatten_jaxpr,
    is_float,
    plain_jaxpr,
    primitives_of,
    shape_of,
    size_of,
    variables,
    where_of,
)
from gnewt.jaxprs.compat import AnyJaxpr, DType, Numeric
from gnewt.jaxprs.primitives import primitive
from gnewt.trace.constants import Const
from gnewt.trace.elementwise_rules import elementwise
from gnewt.trace.lanes import lanes_of_call
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.opaque_regions import NeedRegion
from gnewt.trace.rules import Opaque, rule
from gnewt.trace.scalar_pool import CallFunction, CallSpec, Take, split_arguments, split_columns
from gnewt.trace.template import Op

ScalarCall: TypeAlias = Callable[..., jax.Array]

MAX_COLUMNS = 8192
"""An opaque call of more scalars would need a dense local Hessian of more than half a gigabyte."""


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
    lane = lanes_of_call(lift, instr, ins)
    if lane is not None:
        outer, lift.ctx = lift.ctx, lane.context
        found = opaque_call(lift, lane.instr, lane.ins, reason)
        lift.ctx = outer
        return lane.restore(found)
    variable = [not isinstance(v, Const) for v in ins]
    cols, col_dtypes = split_columns(ins, instr.in_avals)
    data = [v for v in ins if isinstance(v, Const)]
    out_shapes = [shape_of(a) for a, ok in zip(instr.out_avals, floats, strict=True) if ok]
    sizes = [size_of(s) for s in out_shapes]
    detached = lift.detached

    def fn(take: Take, columns: Sequence[Numeric]) -> list[jax.Array]:
        args = split_arguments(take, columns, shapes, variable)
        if detached:
            args = [jax.lax.stop_gradient(a) for a in args]
        outs = bind_instr(instr, args)
        return [jnp.ravel(o) for o, ok in zip(outs, floats, strict=True) if ok]

    names = {name for name, _ in primitives_of(instr)}
    call: CallFunction = fn
    avals = [(shapes[i], instr.in_avals[i].dtype, variable[i]) for i in range(len(ins))]
    key = ("opaque", instr.key, tuple(avals), detached)
    note = f"opaque: {instr.prim}: {reason}"
    m = sum(sizes)
    if len(cols) > MAX_COLUMNS:
        refuse_wide(instr, len(cols), reason)
    jac = np.zeros((m, len(cols)), bool) if detached else None
    hess = None if not detached and is_curved(instr) else "none"
    columns = [np.dtype(d) for d in col_dtypes]
    if any(map(needs_reverse_mode, names)):
        call = by_reverse_mode(lift, [instr], fn, columns, data)
    elif not detached:
        check_differentiable([instr], call, columns, data)
    spec = CallSpec(key, instr.prim, call, m, jac, hess, None, note, detached)
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


def is_curved(instr: Instr) -> bool:
    """Whether an opaque equation may have a second derivative; a region has none if no equation in it has."""
    if instr.region is not None:
        return any(map(is_curved, instr.region.instrs))
    known = primitive(instr.prim)
    if instr.prim in ("abs", "sign") and any(a.dtype.kind == "c" for a in instr.in_avals):
        return True
    return not (known.curvature == "none" or known.move is not None or known.takes or known.flat)


def needs_reverse_mode(name: str) -> bool:
    """Whether JAX has no forward mode of a primitive, or a wrong one (scattered maxima at clipped indices)."""
    return name.startswith("custom_vjp") or name in ("scatter-max", "scatter-min")


def by_reverse_mode(
    lift: Lifter, instrs: Sequence[Instr], fn: CallFunction, dtypes: Sequence[DType], data: Sequence[Const]
) -> CallFunction:
    """Give a function that JAX differentiates in reverse only a forward-mode rule.

    Columns of integers and booleans (the predicate of a `cond`) keep their dtypes, and have no tangents.

    Its second derivative is the forward one of the first; where the reverse rule, too, has no forward mode (the adjoint of an
    integrator is another solve), the reverse one.
    """
    call = _in_reverse(fn, dtypes, twice=False)
    try:
        check_differentiable(instrs, call, dtypes, data)
    except TraceError:
        call = _in_reverse(fn, dtypes, twice=True)
        check_differentiable(instrs, call, dtypes, data)
        lift.reverse_only = True
    return call


def _in_reverse(fn: CallFunction, dtypes: Sequence[DType], twice: bool) -> CallFunction:
    smooth = [is_float(d) for d in dtypes]
    at = {j: i for kind in (True, False) for i, j in enumerate(j for j, s in enumerate(smooth) if s is kind)}

    def wrapped(take: Take, columns: Sequence[Numeric]) -> list[jax.Array]:
        single = [take(j, j + 1) for j in range(take.width)] if not all(smooth) else []
        fixed = [c for c, s in zip(single, smooth, strict=False) if not s]
        floats = [c for c, s in zip(single, smooth, strict=False) if s] or [take(0, take.width)]

        def flat(v: jax.Array, fixed: Sequence[jax.Array]) -> jax.Array:
            def read(lo: int, hi: int) -> jax.Array:
                if smooth[lo]:
                    return v[at[lo] : at[lo] + hi - lo].astype(dtypes[lo])
                return jnp.concatenate(fixed[at[lo] : at[lo] + hi - lo])

            return jnp.concatenate(fn(Take(read, take.width), columns))

        return [_reversed(flat, 2 if twice else 1)(jnp.concatenate(floats), fixed)]

    return wrapped


def _reversed(flat: Callable[..., jax.Array], times: int) -> Callable[..., jax.Array]:
    """Give a function of a vector a forward rule; the first `times` derivatives are taken in reverse mode."""
    if not times:
        return flat
    jacobian = _reversed(jax.jacrev(flat), times - 1)
    # What a rule closes over must not be traced for derivatives: the fixed columns are operands, too.
    call = jax.custom_jvp(flat)

    @call.defjvp
    def _jvp(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return call(*primals), jacobian(*primals) @ tangents[0]

    return call


def refuse_wide(instr: Instr, count: int, reason: str) -> None:
    """Raise: a dense local Hessian over this many scalars is hopeless."""
    raise TraceError(
        explain_error(
            f"{instr.prim} ({reason}) reads {count} variables at once: its local Hessian would be dense",
            where_of(instr),
            "apply it to smaller pieces (jax.lax.map or scan over blocks), or write it with elementwise operations",
        )
    )


def _refuse_while(instrs: Sequence[Instr], problem: Exception) -> None:
    """Raise if there is a loop among equations that JAX cannot differentiate: its trip count is not known in advance."""
    eqn = next((e for i in instrs for name, e in primitives_of(i) if name == "while"), None)
    if eqn is None:
        return
    raise TraceError(
        explain_error(
            "while: a loop whose number of iterations depends on data lies on the path of the derivative",
            where_of(eqn),
            "use jax.lax.scan, or fori_loop with bounds that are Python integers; "
            "or give it derivatives (jax.lax.custom_root, jax.custom_jvp), "
            "or detach its result with jax.lax.stop_gradient",
        )
    ) from problem


def check_differentiable(
    instrs: Sequence[Instr], fn: CallFunction, dtypes: Sequence[DType], data: Sequence[Const]
) -> None:
    """Raise a TraceError unless JAX can differentiate the call twice; `instrs` are what it computes."""
    places = [j for j, d in enumerate(dtypes) if is_float(d)]
    if not places:
        return
    dtype = jnp.result_type(*[dtypes[j] for j in places])

    def total(x: jax.Array, columns: Sequence[Numeric]) -> jax.Array:
        where = {j: i for i, j in enumerate(places)}

        def take(lo: int, hi: int) -> jax.Array:
            if all(j in where for j in range(lo, hi)) and hi > lo:
                return x[where[lo] : where[lo] + hi - lo].astype(dtypes[lo])
            return jnp.stack([x[where[j]] if j in where else jnp.zeros((), dtypes[j]) for j in range(lo, hi)])

        return functools.reduce(jnp.add, [jnp.sum(o) for o in fn(Take(take, len(dtypes)), columns)])

    x = jax.ShapeDtypeStruct((len(places),), dtype)
    columns = [jax.ShapeDtypeStruct(c.shape[1:], c.dtype) for c in data]
    try:
        made = jax.make_jaxpr(lambda x, c: jax.jvp(lambda y: jax.grad(total)(y, c), (x,), (x,)))(x, columns)
        if _has_no_forward_mode(made):
            raise TypeError("a custom_vjp function has no forward mode")
    except Exception as problem:
        _refuse_while(instrs, problem)
        instr = next((i for i in instrs if not primitive(i.prim).twice), instrs[0])
        raise TraceError(
            explain_error(
                f"{instr.prim}: JAX cannot differentiate this twice ({_first_line(problem)})",
                where_of(instr),
                "give it derivatives (jax.custom_jvp), or detach its result with jax.lax.stop_gradient",
            )
        ) from problem


def _has_no_forward_mode(jaxpr: AnyJaxpr) -> bool:
    """Whether JAX put off the refusal to differentiate a custom_vjp function in forward mode."""
    eqns = compat.open_jaxpr(jaxpr)[0].eqns
    return any(
        e.primitive.name == "custom_lin" or any(map(_has_no_forward_mode, compat.called_jaxprs(e)))
        for e in eqns
    )


def _first_line(problem: Exception) -> str:
    """What an exception says; its name where it says nothing."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)


@rule("custom_jvp_call")
def _custom_jvp(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """Keep an elementwise custom_jvp as one operation: inlining it loses its rule (softplus at 0)."""
    passed = _passed_on(instr)
    if passed is not None:
        return [ins[i] for i in passed]
    if not _is_elementwise(instr):
        raise Opaque("a custom_jvp function that is not elementwise")
    key = (instr.key, tuple(np.dtype(a.dtype) for a in instr.in_avals))
    if key not in lift.ops:
        if not _has_elementwise_rule(instr):
            raise Opaque("a custom_jvp function whose rule is not elementwise")
        lift.ops[key] = Op(key, "custom_jvp", scalar_function(instr))
    return elementwise(lift, instr, ins, lift.ops[key])


def _passed_on(instr: Instr) -> list[int] | None:
    """Return which operand each result is, where values and tangents are passed on as they are (equinox.error_if)."""
    program = flatten_jaxpr(instr.params["call_jaxpr"], [])
    if program.instrs or program.consts or any(isinstance(v, Lit) for v in program.outs):
        return None
    passed = [program.ins.index(v) for v in variables(program.outs)]
    places = {i: at for at, i in enumerate(i for i, a in enumerate(instr.in_avals) if is_float(a.dtype))}
    if not all(i in places for i in passed):
        return None
    rule, _ = rule_program(instr)
    count = len(instr.in_avals)
    expected = [rule.ins[i] for i in passed] + [rule.ins[count + places[i]] for i in passed]
    return passed if not rule.instrs and list(rule.outs) == expected else None


def _is_elementwise(instr: Instr) -> bool:
    shape = instr.out_avals[0].shape
    if len(instr.out_avals) != 1 or any(a.shape not in ((), shape) for a in instr.in_avals):
        return False
    program = flatten_jaxpr(instr.params["call_jaxpr"], [])
    return not program.consts and _scalarizable(program, shape)


def _has_elementwise_rule(instr: Instr) -> bool:
    """Whether the derivative rule, too, can be applied to one scalar after the other."""
    rule, hoisted = rule_program(instr)
    fixed = all(np.shape(h) == () and not isinstance(h, Tracer) for h in hoisted)
    return fixed and _scalarizable(rule, instr.out_avals[0].shape)


def _scalarizable(program: Program, shape: tuple[int, ...]) -> bool:
    if any(program.avals[v].shape not in ((), shape) for i in program.instrs for v in i.outs):
        return False
    operands = [*program.outs, *[v for i in program.instrs for v in i.ins]]
    if any(isinstance(v, Lit) and v.shape != () for v in operands):
        return False
    return all(
        primitive(i.prim).elementwise
        or (i.prim == "broadcast_in_dim" and i.in_avals[0].shape in ((), shape))
        or (i.prim == "custom_jvp_call" and _is_elementwise(i))
        for i in program.instrs
    )


def scalar_function(instr: Instr) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """Return an elementwise custom_jvp function on scalars, with its own derivative rule."""
    program = flatten_jaxpr(instr.params["call_jaxpr"], [])
    made: dict[Hashable, ScalarCall] = {}

    @jax.custom_jvp
    def call(*args: jax.Array) -> jax.Array:
        return run_scalars(program, args, made)[0]

    rule = functools.cache(lambda: rule_program(instr))

    @call.defjvp
    def _jvp(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        made[instr.key] = call
        moving = [t for t, a in zip(tangents, instr.in_avals, strict=True) if is_float(a.dtype)]
        program, hoisted = rule()
        out, tangent = run_scalars(program, [*primals, *moving], made, hoisted)
        return out, jnp.asarray(tangent, out.dtype)

    return lambda args: call(*args)


def rule_program(instr: Instr) -> tuple[Program, list[Numeric]]:
    """Return the rule of a custom_jvp call, as JAX applies it at the shapes of the equation, and what it captures.

    (operands, tangents of the real ones) ↦ (results, their tangents).
    """
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in instr.in_avals]
    active = [i for i, a in enumerate(avals) if is_float(a.dtype)]

    def jvp(xs: list[jax.Array], ts: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        def part(*moving: jax.Array) -> list[jax.Array]:
            full = list(xs)
            for i, value in zip(active, moving, strict=True):
                full[i] = value
            return bind_instr(instr, full)

        return jax.jvp(part, tuple(xs[i] for i in active), tuple(ts))

    hoisted: list[Numeric] = []
    closed, _ = plain_jaxpr(jax.make_jaxpr(jvp)(avals, [avals[i] for i in active]))
    return flatten_jaxpr(closed, hoisted), hoisted


def run_scalars(
    program: Program,
    args: Sequence[jax.Array],
    made: dict[Hashable, ScalarCall],
    hoisted: Sequence[Numeric] = (),
) -> list[jax.Array]:
    """Replay an elementwise program on scalars; `made` holds the functions with rules of their own."""
    env: dict[int, jax.Array] = dict(zip(program.ins, args, strict=True))
    env.update((var, jnp.asarray(hoisted[at])) for var, at in program.consts)

    def read(v: Operand) -> jax.Array:
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
