"""Replays: f itself as a function of flat inputs, the oracle that residuals and self-checks come from.

In: a flat program and what it captured. Out: its value by JAX, or value, gradient and one product with H by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from gnewt._typing import Array
from gnewt.graph import Structure
from gnewt.jaxprs import Program, run_program, size_of, sweep_derivatives
from gnewt.jaxprs.parts import bound_loops
from gnewt.jaxprs.replay import bind_for_products
from gnewt.trace.condense import Source
from gnewt.trace.lift import Lifter

T = TypeVar("T")


class ProgramReplay:
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
