"""Entry: one structure in the cache, and how its data columns follow from captured values.

An entry is found by the content of a program. At every call the prelude is replayed where captured values are new.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from gnewt._errors import TraceError
from gnewt._typing import Array
from gnewt.graph import Data, Structure
from gnewt.jaxprs import Program, run_program, size_of, sweep_derivatives, value_key
from gnewt.jaxprs.compat import put
from gnewt.jaxprs.parts import bound_loops
from gnewt.jaxprs.replay import bind_for_products
from gnewt.trace.condense import Condensed, Source
from gnewt.trace.lift import Distrust, Lifter

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A structure with its data at one call, and the function it was read from."""

    structure: Structure
    data: Data
    replay: Replay
    """One object per structure, so that compiled code is reused."""
    captured: list[ArrayLike]
    num_equations: int
    """Equations that a replay runs one after the other: what it costs to compile."""
    entry: Entry


@dataclasses.dataclass(eq=False)
class Entry:
    """One structure, and how to fill its data columns."""

    structure: Structure
    fill: Callable[[Sequence[ArrayLike]], Data | None]
    """Computes the data columns from captured values; None if a value that shaped the structure differs."""
    replay: Replay
    num_equations: int
    has_branches: bool
    """Whether the function chooses between values: one point does not show all of it."""
    remake: Callable[[Sequence[ArrayLike], Distrust], Entry] | None
    """Makes another structure of the same program, with parts made opaque; None where the structure has been checked."""
    repeatable: bool = True
    """False where the program itself holds a tracer: it can run inside the caller's trace alone."""
    last: tuple[tuple[ArrayLike, ...], Data] | None = None
    """Captured values and data of the last concrete call."""

    def find(self, captured: list[ArrayLike]) -> Found | None:
        """Compute the data columns from current values; None if a value that shaped the structure differs."""
        data = self._data(captured)
        return (
            None
            if data is None
            else Found(self.structure, data, self.replay, captured, self.num_equations, self)
        )

    def remade(self, captured: Sequence[ArrayLike], distrust: Distrust) -> Entry | None:
        """Make another structure of the same program, with some parts opaque; None where that is not possible."""
        try:
            return None if self.remake is None else self.remake(captured, distrust)
        except TraceError:  # too wide for one opaque node, or JAX cannot differentiate a part by itself
            return None

    def become(self, other: Entry) -> None:
        """Stand for another structure of the same program from now on."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(other, field.name))

    def _data(self, captured: Sequence[ArrayLike]) -> Data | None:
        if self.last is not None and _all_same(self.last[0], captured):
            return self.last[1]
        if any(isinstance(v, Tracer) for v in captured):
            return self.fill(captured)
        with jax.ensure_compile_time_eval():  # known values stay known inside jit
            data = self.fill(captured)
        if data is not None:
            self.last = (tuple(captured), data)
        return data


def fill_columns(condensed: Condensed, captured: Sequence[ArrayLike]) -> Data | None:
    """Compute the data columns from captured values; None if a value that shaped the structure differs."""
    values, same = condensed.constants.run(captured)
    if not same:
        return None
    return tuple(
        tuple(put(values[c.index][0] if d else values[c.index]) for c, d in zip(columns, drop, strict=True))
        for columns, drop in zip(condensed.columns, condensed.drops, strict=True)
    )


class Replay:
    """f itself, (captured values, flat inputs) ↦ value: replays the jaxpr, knows nothing of the structure's families.

    JAX differentiates a loop in reverse mode if it knows how long the loop may be.
    """

    def __init__(self, program: Program, structure: Structure, source: Source, lifter: Lifter) -> None:
        self._program = (bound_loops(program, lifter.trips) or program) if lifter.trips else program
        self._structure, self._source, self._reverse_only = structure, source, lifter.reverse_only

    def __call__(self, captured: Sequence[ArrayLike], x: Array) -> Array:
        f = partial(self._value, captured)
        return _twice_in_reverse(f)(x) if self._reverse_only else f(x)

    def _value(self, captured: Sequence[ArrayLike], x: Array) -> Array:
        args = self._operands(captured, jax.tree_util.tree_leaves(self._structure.unravel(x)))
        (value,) = run_program(self._program, args, captured[: self._source.num_hoisted], bind_for_products)
        return value.astype(x.dtype)

    def derivatives(
        self, captured: Sequence[ArrayLike], x: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(f, g, H·v) on known numbers, operation by operation: nothing is traced as a whole, nothing compiled."""
        if self._reverse_only:
            whole = jax.value_and_grad(partial(self, captured))
            (value, gradient), (_, curved) = jax.jvp(whole, (x,), (v,))
            return np.asarray(value), np.asarray(gradient), np.asarray(curved)
        source, avals = self._source, self._structure.in_avals
        args = self._operands(captured, _parts(x, avals))
        moving = iter(self._ordered(_parts(v, avals)))
        directions = [next(moving) if d else None for d in source.diff]
        value, *found = sweep_derivatives(self._program, args, directions, captured[: source.num_hoisted])
        gradient, curved = (
            np.concatenate([np.ravel(parts[i]).astype(x.dtype) for i in source.order]) for parts in found
        )
        return np.asarray(value, x.dtype), gradient, curved

    def _ordered(self, leaves: Sequence[T]) -> list[T]:
        """Leaves of the inputs in the order of the operands."""
        moving = dict(zip(self._source.order, leaves, strict=True))
        return [moving[i] for i in range(len(leaves))]

    def _operands(self, captured: Sequence[ArrayLike], leaves: Sequence[ArrayLike]) -> list[ArrayLike]:
        variables, others = iter(self._ordered(leaves)), iter(captured[self._source.num_hoisted :])
        return [next(variables) if d else next(others) for d in self._source.diff]


def _twice_in_reverse(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Give a function rules by which products with its Hessian are taken in reverse mode."""

    @jax.custom_jvp
    def gradient(x: Array) -> Array:
        return jax.grad(f)(x)

    @gradient.defjvp
    def _product(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (v,) = primals, tangents
        return gradient(x), jax.grad(lambda y: jnp.vdot(jax.grad(f)(y), v))(x)

    value = jax.custom_jvp(f)
    value.defjvp(lambda primals, tangents: (value(*primals), jnp.vdot(gradient(*primals), tangents[0])))
    return value


def _parts(flat: np.ndarray, avals: Sequence[jax.ShapeDtypeStruct]) -> list[np.ndarray]:
    """Split a flat vector into the leaves of the inputs."""
    ends = np.cumsum([size_of(a.shape) for a in avals])[:-1]
    parts = np.split(np.asarray(flat), ends)
    return [part.reshape(a.shape).astype(a.dtype) for part, a in zip(parts, avals, strict=True)]


def _all_same(old: Sequence[ArrayLike], new: Sequence[ArrayLike]) -> bool:
    """Whether captured values are the same: by identity, or NumPy's by their bits (they are copies of this module's own)."""
    return len(old) == len(new) and all(a is b or _same_bits(a, b) for a, b in zip(old, new, strict=True))


def _same_bits(a: ArrayLike, b: ArrayLike) -> bool:
    if isinstance(a, jax.Array) or isinstance(b, jax.Array):
        return False
    return type(a) is type(b) and value_key(a) == value_key(b)
