"""Ways out where the static pivots of the xla engine do not do: run only where some lane of a batch asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import NONFINITE, OK, SINGULAR, Elimination
from gnewt.kkt.engines.reference.engine import factorize


def where_needed(run: Callable[..., Any], needed: Array, *operands: Any) -> Any:
    """`run(*operands)` if `needed`, else zeros; under vmap it runs if any lane needs it, and then for all lanes.

    `lax.cond` alone would become a select under vmap, and always run.
    """

    @jax.custom_batching.custom_vmap
    def call(needed: Array, operands: Any) -> Any:
        shapes = jax.eval_shape(run, *operands)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.cond(jnp.any(needed), run, lambda *_: zeros, *operands)

    @call.def_vmap
    def _(size: int, batched: Any, needed: Array, operands: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda b: 0 if b else None, batched[1])
        lanes = jax.vmap(lambda *a: run(*a), in_axes=tuple(axes), axis_size=size)
        out = where_needed(lanes, needed, *operands)
        return out, jax.tree.map(lambda _: True, out)

    return call(needed, operands)


class HostSolve:
    """(needed, sources, shift, rhs) ↦ (solution, elimination) by the reference engine, called back on the host.

    A compiled program cannot delay pivots to a parent front, because its shapes are static; the reference engine can.
    It is exact for any numbers, and slow: about 0.2 ms for each front.
    """

    def __init__(self, plan: Plan, eps: float | None) -> None:
        self._plan, self._eps = plan, eps

    def __call__(self, needed: Array, sources: Array, shift: Array, rhs: Array) -> tuple[Array, Elimination]:
        return where_needed(self._call, needed, needed, sources, shift, rhs)

    def _call(self, needed: Array, sources: Array, shift: Array, rhs: Array) -> tuple[Array, Elimination]:
        real, whole = jax.ShapeDtypeStruct((), rhs.dtype), jax.ShapeDtypeStruct((), jnp.int32)
        inertia = jax.ShapeDtypeStruct((3,), jnp.int32)
        null = jax.ShapeDtypeStruct((self._plan.num_unknowns,), jnp.int8)
        known: tuple[Any, ...] = (whole, inertia, whole, real, real, null, ())
        shapes = (jax.ShapeDtypeStruct(rhs.shape, rhs.dtype), Elimination(*known))
        return jax.pure_callback(self._run, shapes, needed, sources, shift, rhs, vmap_method="sequential")

    def _run(self, needed: Any, sources: Any, shift: Any, rhs: Any) -> tuple[np.ndarray, Elimination]:
        needed, sources, shift, rhs = (np.asarray(a) for a in (needed, sources, shift, rhs))
        null = np.zeros(self._plan.num_unknowns, np.int8)
        if not needed:
            zero = np.zeros((), rhs.dtype)
            nothing: tuple[Any, ...] = (
                np.int32(OK),
                np.zeros(3, np.int32),
                np.int32(0),
                zero,
                zero,
                null,
                (),
            )
            return np.zeros_like(rhs), Elimination(*nothing)
        with np.errstate(all="ignore"):
            factor = factorize(self._plan, sources, float(shift), self._eps)
            solution = factor.solve(rhs.astype(np.float64))
        null[factor.null] = 1
        status = SINGULAR if len(factor.null) else OK
        if not np.all(np.isfinite(solution)):
            status = NONFINITE
        known: tuple[Any, ...] = (
            np.int32(status),
            np.array(factor.inertia, np.int32),
            np.int32(factor.num_delayed),
            np.asarray(factor.logdet, rhs.dtype),
            np.asarray(factor.smallest_pivot, rhs.dtype),
            null,
            (),
        )
        return solution.astype(rhs.dtype), Elimination(*known)
