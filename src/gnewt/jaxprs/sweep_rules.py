"""Rules of the sweep (`sweep.py`): how one operation carries tangents forward and cotangents back.

Sums, products and moves of data are written out in NumPy. Of any other operation JAX is asked for its derivatives, once
for each kind of operation: elementwise ones are asked for as functions of scalars, so that shapes do not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.flatten import VALUE_CALLS, flatten_jaxpr
from gnewt.jaxprs.numpy_run import Known, NumpyProgram, apply_of
from gnewt.jaxprs.primitives import primitive
from gnewt.jaxprs.program import Instr, shape_of
from gnewt.jaxprs.replay import bind_instr, bind_scalars

T = TypeVar("T")
Run: TypeAlias = Callable[[Sequence[Known]], list[Known]]
Pair: TypeAlias = tuple[np.ndarray, np.ndarray]
"""A cotangent, and its derivative along the direction."""
Tangents: TypeAlias = Sequence[np.ndarray | None]
"""Derivatives along the direction; None for what does not depend on the inputs."""


class Rule(Protocol):
    """One operation."""

    def push(
        self, values: list[Known], tangents: Tangents
    ) -> tuple[Sequence[Known], Sequence[np.ndarray | None]]:
        """Outputs, and their derivatives along the direction."""
        ...

    def pull(
        self, values: list[Known], tangents: Tangents, found: Sequence[Pair | None]
    ) -> list[Pair | None]:
        """Cotangents of the operands from those of the outputs; None for operands without a tangent."""
        ...


def fit(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a cotangent over the axes along which its operand was repeated: a number, or an axis of length one."""
    if value.shape == shape:
        return value
    extra = value.ndim - len(shape)
    repeated = [extra + i for i, n in enumerate(shape) if n != value.shape[extra + i]]
    return value.sum((*range(extra), *repeated), dtype=value.dtype).reshape(shape)


class Linear:
    """A linear operation with one output."""

    def __init__(self, instr: Instr, back: Callable[[Instr, np.ndarray, int], np.ndarray]) -> None:
        self._instr, self._back, self._apply = instr, back, apply_of(instr)

    def push(self, values: list[Known], tangents: Tangents) -> tuple[Sequence[Known], Tangents]:
        moved: list[Known] = [
            np.zeros_like(v) if t is None else t for v, t in zip(values, tangents, strict=True)
        ]
        return self._apply(values), [np.asarray(self._apply(moved)[0])]

    def pull(
        self, values: list[Known], tangents: Tangents, found: Sequence[Pair | None]
    ) -> list[Pair | None]:
        assert found[0] is not None
        c, dc = found[0]
        return [
            None if t is None else (self._back(self._instr, c, i), self._back(self._instr, dc, i))
            for i, t in enumerate(tangents)
        ]


class Bilinear:
    """A product of two operands; `back` is the product of a cotangent with one of them that gives the other's."""

    def __init__(self, instr: Instr, back: Callable[[Instr, np.ndarray, Known, int], np.ndarray]) -> None:
        self._instr, self._back, self._apply = instr, back, apply_of(instr)

    def push(self, values: list[Known], tangents: Tangents) -> tuple[Sequence[Known], Tangents]:
        (a, b), (da, db) = values, tangents
        parts = [self._apply([x, y])[0] for x, y in ((da, b), (a, db)) if x is not None and y is not None]
        return self._apply(values), [np.asarray(parts[0] if len(parts) == 1 else parts[0] + parts[1])]

    def pull(
        self, values: list[Known], tangents: Tangents, found: Sequence[Pair | None]
    ) -> list[Pair | None]:
        assert found[0] is not None
        c, dc = found[0]
        out: list[Pair | None] = [None, None]
        for i, other in ((0, 1), (1, 0)):
            if tangents[i] is None:
                continue
            moved, new = tangents[other], self._back(self._instr, dc, values[other], i)
            if moved is not None:
                new = new + self._back(self._instr, c, moved, i)
            out[i] = (self._back(self._instr, c, values[other], i), new)
        return out


@dataclasses.dataclass(frozen=True)
class _Operation:
    """An operation in JAX, as a function of the operands that have tangents."""

    instr: Instr
    active: Sequence[bool]
    smooth: Sequence[bool]
    """Which outputs have tangents."""
    scalars: bool

    def at(self, values: Sequence[Numeric]) -> Callable[..., tuple[list[jax.Array], list[jax.Array]]]:
        """Return a function of the moving operands to (smooth outputs, other outputs)."""

        def run(*moving: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            rest = iter(moving)
            full = [next(rest) if flag else v for v, flag in zip(values, self.active, strict=True)]
            outs = [bind_scalars(self.instr, full)] if self.scalars else bind_instr(self.instr, full)
            return list(_pick(outs, self.smooth)), list(_pick(outs, [not flag for flag in self.smooth]))

        return run

    def push(self, values: Sequence[Numeric], tangents: Sequence[Numeric]) -> list[jax.Array]:
        """Outputs, then derivatives of the smooth ones."""
        f, moving = self.at(values), tuple(_pick(values, self.active))

        # The values of a function with a reverse rule alone are those of the rule, and JAX differentiates the rule.
        def forward(*moving: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            outs, _, others = jax.vjp(f, *moving, has_aux=True)
            return outs, others

        outs, pushed, others = jax.jvp(f if self.scalars else forward, moving, tuple(tangents), has_aux=True)
        smooth, rest = iter(outs), iter(others)
        return [*(next(smooth) if flag else next(rest) for flag in self.smooth), *pushed]

    def pull(
        self,
        values: Sequence[Numeric],
        tangents: Sequence[Numeric],
        found: Sequence[Numeric],
        turned: Sequence[Numeric],
    ) -> list[jax.Array]:
        """Cotangents of the moving operands, then their derivatives."""

        def back(moving: Sequence[jax.Array], found: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
            return jax.vjp(self.at(values), *moving, has_aux=True)[1](list(found))

        pulled, moved = jax.jvp(
            back, (list(_pick(values, self.active)), list(found)), (list(tangents), list(turned))
        )
        return [*pulled, *moved]


class ByJax:
    """Any operation, its derivatives by JAX: traced when the rule is made, and run by NumPy.

    Of an elementwise operation the derivatives are functions of scalars, which NumPy applies to arrays of any shape.
    """

    def __init__(self, instr: Instr, active: Sequence[bool], scalars: bool) -> None:
        self._active, self._scalars = active, scalars
        self._smooth = [bool(jnp.issubdtype(a.dtype, jnp.inexact)) for a in instr.out_avals]
        given, outs = (
            [jax.ShapeDtypeStruct(() if scalars else shape_of(a), a.dtype) for a in avals]
            for avals in (instr.in_avals, instr.out_avals)
        )
        self._outs = outs
        moving, ends = list(_pick(given, active)), list(_pick(outs, self._smooth))
        operation = _Operation(instr, active, self._smooth, scalars)
        self._push = _traced(operation.push, given, moving)
        self._pull = _traced(operation.pull, given, moving, ends, ends)

    def push(self, values: list[Known], tangents: Tangents) -> tuple[Sequence[Known], Tangents]:
        found = self._push([*values, *_given(tangents)])
        if self._scalars:
            shape = np.broadcast_shapes(*[v.shape for v in values])
            found = [np.broadcast_to(v, shape) for v in found]
        moved = map(np.asarray, found[len(self._smooth) :])
        return found[: len(self._smooth)], [next(moved) if flag else None for flag in self._smooth]

    def pull(
        self, values: list[Known], tangents: Tangents, found: Sequence[Pair | None]
    ) -> list[Pair | None]:
        ends = zip(found, self._outs, self._smooth, strict=True)
        pairs = [pair or (np.zeros(out.shape, out.dtype),) * 2 for pair, out, flag in ends if flag]
        moved = _given(tangents)
        pulled = self._pull([*values, *moved, *[c for c, _ in pairs], *[dc for _, dc in pairs]])
        back = [np.asarray(v) for v in pulled]
        if self._scalars:
            whole = pairs[0][0].shape
            shapes = [v.shape for v in _pick(values, self._active)] * 2
            back = [fit(np.broadcast_to(v, whole), s) for v, s in zip(back, shapes, strict=True)]
        ready = iter(zip(back[: len(moved)], back[len(moved) :], strict=True))
        return [next(ready) if flag else None for flag in self._active]


def _pick(values: Sequence[T], flags: Sequence[bool]) -> Iterator[T]:
    return (v for v, flag in zip(values, flags, strict=True) if flag)


def _given(tangents: Tangents) -> list[np.ndarray]:
    return [t for t in tangents if t is not None]


def _traced(function: Callable[..., list[jax.Array]], *given: Sequence[jax.ShapeDtypeStruct]) -> Run:
    """Trace a function of lists of arrays, to be run by NumPy on all arrays in one list."""
    hoisted: list[Numeric] = []
    closed = jax.make_jaxpr(function)(*given)
    return NumpyProgram(flatten_jaxpr(closed, hoisted, VALUE_CALLS), hoisted).run


# Operations that are written out: their parameters differ from call to call, so that JAX would be asked again and again


def _same(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    return fit(c, shape_of(instr.in_avals[operand]))


def _difference(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    return fit(-c if operand else c, shape_of(instr.in_avals[operand]))


def _negative(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    return -c


def _reshaped(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    return c.reshape(shape_of(instr.in_avals[operand]))


def _transposed(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    return c.transpose(np.argsort(instr.params["permutation"]))


def _filled(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    """Zeros around what a slice has read."""
    p, out = instr.params, np.zeros(shape_of(instr.in_avals[0]), c.dtype)
    strides = p["strides"] or [1] * out.ndim
    out[tuple(map(slice, p["start_indices"], p["limit_indices"], strides))] = c
    return out


def _collected(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    """Sums over the axes along which an array was repeated."""
    dims, shape = tuple(instr.params["broadcast_dimensions"]), shape_of(instr.in_avals[0])
    repeated = [d for d in range(c.ndim) if d not in dims]
    repeated += [d for d, n in zip(dims, shape, strict=True) if n == 1 and c.shape[d] != 1]
    total = c.sum(tuple(repeated), keepdims=True, dtype=c.dtype)
    kept = [*dims, *[d for d in range(c.ndim) if d not in dims]]
    return total.transpose(kept).reshape(shape)


def _cut(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    """The part of a concatenation that an operand is."""
    axis = instr.params["dimension"]
    ends = np.cumsum([0, *[a.shape[axis] for a in instr.in_avals]])
    return c[(*[slice(None)] * axis, slice(ends[operand], ends[operand + 1]))]


def _repeated(instr: Instr, c: np.ndarray, operand: int) -> np.ndarray:
    """The cotangent of a sum, at each of its terms."""
    shape = shape_of(instr.in_avals[0])
    return np.broadcast_to(np.expand_dims(c, tuple(instr.params["axes"])), shape)


_LINEAR: dict[str, Callable[[Instr, np.ndarray, int], np.ndarray]] = {
    **dict.fromkeys(("add", "add_any", "copy"), _same),
    "sub": _difference,
    "neg": _negative,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    "transpose": _transposed,
    "slice": _filled,
    "broadcast_in_dim": _collected,
    "concatenate": _cut,
    "reduce_sum": _repeated,
}


def _times(instr: Instr, c: np.ndarray, other: Known, operand: int) -> np.ndarray:
    return fit(c * np.asarray(other), shape_of(instr.in_avals[operand]))


def _dotted(instr: Instr, c: np.ndarray, other: Known, operand: int) -> np.ndarray:
    """The product of matrices that a cotangent of a product goes back by."""
    (left, right), (batch_left, batch_right) = instr.params["dimension_numbers"]
    a, b = (list(range(k, k + len(aval.shape))) for k, aval in zip((0, 100), instr.in_avals, strict=True))
    for i, j in (*zip(left, right, strict=True), *zip(batch_left, batch_right, strict=True)):
        b[j] = a[i]
    free = [i for i in range(len(a)) if i not in (*left, *batch_left)]
    rest = [j for j in range(len(b)) if j not in (*right, *batch_right)]
    out = [*[a[i] for i in batch_left], *[a[i] for i in free], *[b[j] for j in rest]]
    names = {name: k for k, name in enumerate(dict.fromkeys([*a, *b]))}
    mine, yours = (b, a) if operand else (a, b)
    places = [[names[n] for n in some] for some in (out, yours, mine)]
    return np.einsum(c, places[0], np.asarray(other), places[1], places[2], optimize=True)


class Rules:
    """Rules of the operations of one program, each kind once."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, ByJax] = {}

    def of(self, instr: Instr, active: Sequence[bool]) -> Rule:
        """Return the rule of an equation, given which of its operands have tangents."""
        if instr.prim in _LINEAR and _is_plain(instr):
            return Linear(instr, _LINEAR[instr.prim])
        if instr.prim in ("mul", "dot_general") and _is_plain(instr):
            return Bilinear(instr, _times if instr.prim == "mul" else _dotted)
        scalars = primitive(instr.prim).elementwise
        dtypes = tuple(str(a.dtype) for a in instr.in_avals)
        key: Hashable = (instr.key, dtypes, tuple(active))
        if not scalars:
            key = (key, tuple(shape_of(a) for a in instr.in_avals))
        if key not in self._kinds:
            self._kinds[key] = ByJax(instr, list(active), scalars)
        return self._kinds[key]


def _is_plain(instr: Instr) -> bool:
    """Whether all numbers are of one real type, and none is missing."""
    dtypes = {np.dtype(a.dtype) for a in (*instr.in_avals, *instr.out_avals)}
    return len(dtypes) == 1 and dtypes.pop().kind in "fc" and all(0 not in a.shape for a in instr.in_avals)
