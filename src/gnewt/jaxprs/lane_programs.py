"""Lanes of a program: what jax.vmap wrote is taken back, so that one lane is a program of its own.

In: a program whose inputs have an axis of lanes. Out: `Lanes`, with the program of one lane. Equations are followed one by
one (`lane_axes`) with the axis of the lanes cut to length 1; loops, branches and linear solves are followed inside.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import AnyJaxpr, Aval, Numeric
from gnewt.jaxprs.flatten import flatten_jaxpr, primitives_of
from gnewt.jaxprs.lane_axes import Axes, Axis, NotLanes, follow_axes, follow_numbers, narrow_params
from gnewt.jaxprs.primitives import fold_instr, primitive
from gnewt.jaxprs.program import Instr, Lit, Operand, Program, shape_of, size_of
from gnewt.jaxprs.replay import bind_instr
from gnewt.jaxprs.specs import scan_spec

Arrays: TypeAlias = list[jax.Array]
_MAX_TRIES = 64
"""Ways to choose the axis of the lanes in the inputs that are looked at."""
_MOST_KNOWN = 65536
"""Entries of a constant whose numbers are looked at."""


@dataclasses.dataclass(frozen=True, eq=False)
class Lanes:
    """A program that does the same to every lane of its inputs."""

    count: int
    ins: list[Axis]
    """For each input the axis of the lanes; None if all lanes share it."""
    outs: list[int]
    program: Program
    """One lane; its inputs and outputs lack the axis of the lanes."""


def split_lanes(
    program: Program, varying: Sequence[bool], known: Sequence[np.ndarray | None] | None = None
) -> Lanes | None:
    """Find the lanes of a program without captured constants; None if there are none.

    Args:
        program: any flat program.
        varying: for each input whether it depends on the variables. These have lanes; others may.
        known: the numbers of inputs, where they are known and may be relied upon.
    """
    known = [None] * len(program.ins) if known is None else known
    avals = [program.avals[v] for v in program.ins]
    moving = [shape_of(a) for a, flag in zip(avals, varying, strict=True) if flag]
    for count in dict.fromkeys(n for shape in moving for n in shape if n > 1):
        for axes in itertools.islice(_choices(avals, varying, count), _MAX_TRIES):
            try:
                return _one_lane(program, avals, axes, count, known)
            except NotLanes:
                continue
    return None


def _choices(avals: Sequence[Aval], varying: Sequence[bool], count: int) -> Iterator[tuple[Axis, ...]]:
    options = [[*(i for i, n in enumerate(shape_of(a)) if n == count), None] for a in avals]
    # The axis of the first variable that has lanes changes last.
    for axes in itertools.product(*options):
        if any(flag and a is not None for a, flag in zip(axes, varying, strict=True)):
            yield axes


def _one_lane(
    program: Program,
    avals: Sequence[Aval],
    axes: Sequence[Axis],
    count: int,
    known: Sequence[np.ndarray | None],
) -> Lanes:
    found: list[Axis] = []

    def lane(*args: jax.Array) -> Arrays:
        wide = [v if a is None else jnp.expand_dims(v, a) for v, a in zip(args, axes, strict=True)]
        values = [
            _Lane(v, a, known=k if a is None else None) for v, a, k in zip(wide, axes, known, strict=True)
        ]
        outs = _run(program, values, {})
        found[:] = [o.axis for o in outs]
        if any(a is None for a in found):
            raise NotLanes("a result that no lane has to itself")
        return [jnp.squeeze(o.value, o.axis) for o in outs]

    shapes = [
        jax.ShapeDtypeStruct(tuple(n for i, n in enumerate(a.shape) if i != axis), a.dtype)
        for a, axis in zip(avals, axes, strict=True)
    ]
    hoisted: list[Numeric] = []
    closed = jax.make_jaxpr(lane)(*shapes)
    single = flatten_jaxpr(closed, hoisted)
    if hoisted:
        raise NotLanes("captured arrays")
    if any(name == "custom_jvp_call" for i in single.instrs for name, _ in primitives_of(i)):
        # Rules are followed only when a derivative is taken.
        moving = [a for a in shapes if jnp.issubdtype(a.dtype, jnp.inexact)]
        jax.eval_shape(lambda v: _second_derivative(lane, shapes, v), moving)
    return Lanes(count, list(axes), [a for a in found if a is not None], single)


def _second_derivative(f: Callable, shapes: Sequence[jax.ShapeDtypeStruct], moving: Arrays) -> Arrays:
    """Apply the derivative rules of f twice."""

    def value(v: Arrays) -> Arrays:
        rest = iter(v)
        inexact = [jnp.issubdtype(a.dtype, jnp.inexact) for a in shapes]
        args = [
            next(rest) if moves else jnp.zeros(a.shape, a.dtype)
            for a, moves in zip(shapes, inexact, strict=True)
        ]
        return f(*args)

    def slope(v: Arrays) -> Arrays:
        return jax.jvp(value, (v,), (v,))[1]

    return jax.jvp(slope, (moving,), (moving,))[1]


# Following a program


@dataclasses.dataclass(frozen=True, eq=False)
class _Lane:
    """A value of one lane, the axis of the lanes cut to length 1; or a whole value that all lanes share."""

    value: jax.Array
    axis: Axis
    uniform: frozenset[int] = frozenset()
    """Axes along which a shared value does not change."""
    known: np.ndarray | None = None
    """The numbers of a shared value, where they are known."""
    numbers: frozenset[int] = frozenset()
    """Where along its last axis the value is the number of the lane: what indexes the axis of the lanes, and nothing else."""

    def with_axis(self, axis: Axis) -> _Lane:
        """The same value with lanes along another axis than it has, where that is possible."""
        if axis == self.axis:
            return self
        if self.axis is None and axis is not None:
            counts = axis not in self.uniform and self._counts(axis)
            if counts or axis in self.uniform:
                first = jax.lax.slice_in_dim(self.value, 0, 1, axis=axis)
                return _Lane(
                    first, axis, numbers=frozenset(range(first.shape[-1])) if counts else frozenset()
                )
        raise NotLanes("a value that all lanes share")

    def _counts(self, axis: int) -> bool:
        """Whether the numbers along an axis are 0, 1, 2, ..."""
        if self.known is None or self.known.dtype.kind not in "iu":
            return False
        line = np.arange(self.known.shape[axis])
        return bool(np.all(np.moveaxis(self.known, axis, -1) == line))


def _run(program: Program, args: Sequence[_Lane], captured: dict[int, Numeric]) -> list[_Lane]:
    env: dict[int, _Lane] = dict(zip(program.ins, args, strict=True))
    env.update((var, _Lane(jnp.asarray(captured[at]), None)) for var, at in program.consts)

    def read(v: Operand) -> _Lane:
        if isinstance(v, Lit):
            return _Lane(jnp.asarray(v.value, v.dtype), None, known=np.asarray(v.value, v.dtype))
        return env[v]

    for instr in program.instrs:
        env.update(zip(instr.outs, _apply(instr, [read(v) for v in instr.ins]), strict=True))
    return [read(v) for v in program.outs]


def _apply(instr: Instr, args: list[_Lane]) -> list[_Lane]:
    axes = [a.axis for a in args]
    if all(a is None for a in axes):
        outs = bind_instr(instr, [a.value for a in args])
        uniform, known = _uniform(instr, args), _known(instr, args)
        return [_Lane(o, None, uniform, k) for o, k in zip(outs, known, strict=True)]
    if instr.region is not None:
        return _run(instr.region, args, {})
    if instr.prim in _INSIDE:
        return _INSIDE[instr.prim](instr, args)
    index = args[1].numbers if len(args) > 1 else frozenset()
    wanted, found = follow_numbers(instr, axes, index) if index else follow_axes(instr, axes)
    args = [a.with_axis(w) for a, w in zip(args, wanted, strict=True)]
    numbers = frozenset() if index else _joined_numbers(instr, args)
    outs = instr.eqn.primitive.bind(*[a.value for a in args], **narrow_params(instr, wanted, found))
    outs = outs if instr.eqn.primitive.multiple_results else [outs]
    return [_Lane(o, a, numbers=numbers) for o, a in zip(outs, found, strict=True)]


def _joined_numbers(instr: Instr, args: Sequence[_Lane]) -> frozenset[int]:
    """Where the result is the number of the lane: indices are put together of columns, and used for nothing else."""
    if not any(a.numbers for a in args):
        return frozenset()
    last = len(instr.out_avals[0].shape) - 1
    if instr.prim != "concatenate" or instr.params["dimension"] != last or args[0].axis == last:
        raise NotLanes("a number of the lane that is no index")
    begins = itertools.accumulate((a.value.shape[last] for a in args), initial=0)
    return frozenset(at + n for at, a in zip(begins, args, strict=False) for n in a.numbers)


def _known(instr: Instr, args: Sequence[_Lane]) -> Sequence[np.ndarray | None]:
    """The numbers of integers and booleans that follow from known ones."""
    values = [a.known[None] for a in args if a.known is not None]
    small = all(a.dtype.kind in "iub" and size_of(shape_of(a)) <= _MOST_KNOWN for a in instr.out_avals)
    plain = instr.region is None and small and len(values) == len(args)
    found = fold_instr(instr, values) if plain else None
    return [None] * len(instr.outs) if found is None else [v[0] for v in found]


def _uniform(instr: Instr, args: Sequence[_Lane]) -> frozenset[int]:
    """Axes along which a value that all lanes share does not change."""
    if instr.prim == "broadcast_in_dim":
        dims = [int(d) for d in instr.params["broadcast_dimensions"]]
        new = set(range(len(instr.out_avals[0].shape))) - set(dims)
        return frozenset(new | {dims[a] for a in args[0].uniform})
    if instr.prim == "slice":
        return args[0].uniform
    if primitive(instr.prim).elementwise:
        full = [a.uniform for a, aval in zip(args, instr.in_avals, strict=True) if aval.shape]
        return frozenset.intersection(*full) if full else frozenset()
    return frozenset()


# Equations with bodies


def _body(jaxpr: AnyJaxpr) -> Callable[[Sequence[_Lane]], list[_Lane]]:
    hoisted: list[Numeric] = []
    program = flatten_jaxpr(jaxpr, hoisted)
    return lambda args: _run(program, args, dict(enumerate(hoisted)))


def _values(lanes: Sequence[_Lane]) -> Arrays:
    return [a.value for a in lanes]


def _join(values: Sequence[jax.Array], axes: Axes) -> list[_Lane]:
    return [_Lane(v, a) for v, a in zip(values, axes, strict=True)]


def _scan(instr: Instr, args: list[_Lane]) -> list[_Lane]:
    spec = scan_spec(instr)
    body = _body(instr.params["jaxpr"])
    consts, rest = args[: spec.num_consts], args[spec.num_consts :]
    init, xs = rest[: spec.num_carry], rest[spec.num_carry :]
    if any(x.axis == 0 for x in xs):
        raise NotLanes("a loop over the lanes")
    inner = [None if x.axis is None else x.axis - 1 for x in xs]
    found: list[Axis] = []
    while True:
        axes = [c.axis for c in init]

        def step(carry: Arrays, x: Arrays, axes: Axes = axes) -> tuple[Arrays, Arrays]:
            outs = body([*consts, *_join(carry, axes), *_join(x, inner)])
            found[:] = [o.axis for o in outs]
            return _values(outs[: spec.num_carry]), _values(outs[spec.num_carry :])

        first = [jax.ShapeDtypeStruct(x.value.shape[1:], x.value.dtype) for x in xs]
        jax.eval_shape(step, _values(init), first)
        new = [f if a is None else a for a, f in zip(axes, found, strict=False)]
        if new == axes:
            break
        # A carry that starts as a constant and gets lanes on the way.
        init = [c.with_axis(a) for c, a in zip(init, new, strict=True)]
    if found[: spec.num_carry] != axes:
        raise NotLanes("a carry that changes its lanes")
    last, ys = jax.lax.scan(step, _values(init), _values(xs), length=spec.length, reverse=spec.reverse)
    outer = [None if a is None else a + 1 for a in found[spec.num_carry :]]
    return _join([*last, *ys], [*axes, *outer])


def _cond(instr: Instr, args: list[_Lane]) -> list[_Lane]:
    if args[0].axis is not None:
        raise NotLanes("a predicate with lanes")
    axes, found = [a.axis for a in args[1:]], []

    def branch(jaxpr: AnyJaxpr) -> Callable[..., Arrays]:
        body = _body(jaxpr)

        def run(*values: jax.Array) -> Arrays:
            outs = body(_join(values, axes))
            found.append([o.axis for o in outs])
            return _values(outs)

        return run

    branches = [branch(b) for b in instr.params["branches"]]
    for b in branches:
        jax.eval_shape(b, *_values(args[1:]))
    if any(f != found[0] for f in found):
        raise NotLanes("branches with different lanes")
    outs = jax.lax.switch(args[0].value, branches, *_values(args[1:]))
    return _join(outs, found[0])


def _linear_solve(instr: Instr, args: list[_Lane]) -> list[_Lane]:
    jaxprs, lengths = instr.params["jaxprs"], instr.params["const_lengths"]
    rest = iter(args)
    consts = {name: list(itertools.islice(rest, getattr(lengths, name))) for name in lengths._fields}
    b = list(rest)
    axes = [v.axis for v in b]

    def apply(name: str) -> Callable[[Arrays], Arrays]:
        body = _body(getattr(jaxprs, name))

        def run(values: Arrays) -> Arrays:
            outs = body([*consts[name], *_join(values, axes)])
            if [o.axis for o in outs] != axes:
                raise NotLanes("a linear solve that moves lanes")
            return _values(outs)

        return run

    solve, back = apply("solve"), jaxprs.transpose_solve
    transposed = None if back is None else apply("transpose_solve")
    outs = jax.lax.custom_linear_solve(
        apply("matvec"),
        _values(b),
        lambda _, v: solve(v),
        transpose_solve=None if transposed is None else lambda _, v: transposed(v),
    )
    return _join(outs, axes)


def _custom_jvp(instr: Instr, args: list[_Lane]) -> list[_Lane]:
    """The body of the function, and its own rule: the rule is traced where all lanes are together, and followed, too."""
    axes = [a.axis for a in args]
    body = _body(instr.params["call_jaxpr"])
    found: list[Axis] = []

    def value(*values: jax.Array) -> Arrays:
        outs = body(_join(values, axes))
        found[:] = [o.axis for o in outs]
        return _values(outs)

    call = jax.custom_jvp(value)

    @call.defjvp
    def _rule(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[Arrays, Arrays]:
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in instr.in_avals]
        active = [i for i, a in enumerate(avals) if jnp.issubdtype(a.dtype, jnp.inexact)]

        def jvp(xs: Arrays, ts: Arrays) -> tuple[Arrays, Arrays]:
            def part(*moving: jax.Array) -> Arrays:
                full = list(xs)
                for i, v in zip(active, moving, strict=True):
                    full[i] = v
                return bind_instr(instr, full)

            return jax.jvp(part, tuple(xs[i] for i in active), tuple(ts))

        rule = _body(jax.make_jaxpr(jvp)(avals, [avals[i] for i in active]))
        moving = [_Lane(tangents[i], axes[i]) for i in active]
        outs = rule([*_join(primals, axes), *moving])
        half = len(outs) // 2
        found[:] = [o.axis for o in outs[:half]]
        tangent = [t.with_axis(a) for t, a in zip(outs[half:], found, strict=True)]
        return _values(outs[:half]), _values(tangent)

    outs = call(*_values(args))
    return _join(outs, list(found))


_INSIDE: dict[str, Callable[[Instr, list[_Lane]], list[_Lane]]] = {
    "scan": _scan,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
    "custom_jvp_call": _custom_jvp,
}
