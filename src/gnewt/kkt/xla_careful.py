"""The careful way out of the xla engine: the reference engine, called back on the host where it is needed.

A compiled program cannot delay pivots, because its shapes are static. The call is skipped at run time where no lane
of a batch asks for it, and in a batch only the lanes that ask are solved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.graph import Plan
from gnewt.kkt.reference import factorize

_NONFINITE, _SINGULAR = 2, 1


class Careful(NamedTuple):
    """A solution, and what is known of H + shift·I."""

    solution: Float[Array, "*batch N columns"]
    status: Int[Array, "*batch"]
    inertia: Int[Array, "*batch 3"]
    num_delayed: Int[Array, "*batch"]
    logdet: Float[Array, "*batch"]
    smallest_pivot: Float[Array, "*batch"]
    null: Int[Array, "*batch unknowns"]

    @classmethod
    def nonfinite(cls, rhs: Array, num_unknowns: int) -> Careful:
        """What is said of numbers that are not finite."""
        nan, zero = jnp.asarray(jnp.nan, rhs.dtype), jnp.zeros((), jnp.int32)
        return cls(
            jnp.full_like(rhs, jnp.nan),
            zero + _NONFINITE,
            jnp.zeros(3, jnp.int32),
            zero,
            nan,
            nan,
            jnp.zeros(num_unknowns, jnp.int8),
        )


class CarefulSolve:
    """needed, sources, shift, rhs ↦ Careful (zeros where it is not needed), by the reference engine."""

    def __init__(self, plan: Plan, eps: float | None) -> None:
        self._plan, self._eps = plan, eps
        self._call = jax.custom_batching.custom_vmap(self._on_host_if_needed)
        self._call.def_vmap(self._rule)

    def __call__(
        self, needed: Bool[Array, ""], sources: Float[Array, " nnz"], shift: Float[Array, ""], rhs: Array
    ) -> Careful:
        return Careful(*self._call(needed, sources, shift, rhs))

    def _rule(self, size: int, batched: Any, *operands: Array) -> tuple[Any, Any]:
        # Any number of leading axes will do for the call itself: a batch is just one more.
        full = [
            a if b else jnp.broadcast_to(a, (size, *a.shape)) for a, b in zip(operands, batched, strict=True)
        ]
        out = self._call(*full)
        return out, jax.tree.map(lambda _: True, out)

    def _on_host_if_needed(
        self, needed: Array, sources: Array, shift: Array, rhs: Array
    ) -> tuple[Array, ...]:
        batch, dtype = needed.shape, sources.dtype
        shapes = tuple(
            jax.ShapeDtypeStruct((*batch, *shape), kind)
            for shape, kind in (
                (rhs.shape[len(batch) :], dtype),
                ((), jnp.int32),
                ((3,), jnp.int32),
                ((), jnp.int32),
                ((), dtype),
                ((), dtype),
                ((self._plan.num_unknowns,), jnp.int8),
            )
        )
        return jax.lax.cond(
            jnp.any(needed),
            lambda *a: jax.pure_callback(self._run, shapes, *a, vmap_method="sequential"),
            lambda *a: tuple(jnp.zeros(s.shape, s.dtype) for s in shapes),
            needed,
            sources,
            shift,
            rhs,
        )

    def _run(self, needed: Any, sources: Any, shift: Any, rhs: Any) -> tuple[np.ndarray, ...]:
        needed, sources, shift, rhs = (np.asarray(a) for a in (needed, sources, shift, rhs))
        out = [
            np.zeros(rhs.shape, sources.dtype),
            np.zeros(needed.shape, np.int32),
            np.zeros((*needed.shape, 3), np.int32),
            np.zeros(needed.shape, np.int32),
            np.zeros(needed.shape, sources.dtype),
            np.zeros(needed.shape, sources.dtype),
            np.zeros((*needed.shape, self._plan.num_unknowns), np.int8),
        ]
        for lane in zip(*np.nonzero(np.atleast_1d(needed)), strict=True) if needed.ndim else [()]:
            result = self._solve_one(sources[lane], float(shift[lane]), rhs[lane])
            for whole, value in zip(out, result, strict=True):
                whole[lane] = value
        return tuple(out)

    def _solve_one(self, sources: np.ndarray, shift: float, rhs: np.ndarray) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            factor = factorize(self._plan, sources, shift, self._eps)
            solution = factor.solve(rhs.astype(np.float64))
        null = np.zeros(self._plan.num_unknowns, np.int8)
        null[factor.null] = 1
        status = _SINGULAR if len(factor.null) else 0
        if not np.all(np.isfinite(solution)):
            status = _NONFINITE
        return (
            solution,
            status,
            factor.inertia,
            factor.num_delayed,
            factor.logdet,
            factor.smallest_pivot,
            null,
        )
