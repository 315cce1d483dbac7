"""Ways out where the static pivots of the xla engine do not do: run only where some lane of a batch asks for them."""

from __future__ import annotations

import jax
import numpy as np
from jax import Array

from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import NONFINITE, Elimination
from gnewt.kkt.engines.reference.engine import factorize, shapes_of_summary, summary, zeros
from gnewt.kkt.needed import where_needed


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
        shapes = (jax.ShapeDtypeStruct(rhs.shape, rhs.dtype), shapes_of_summary(self._plan, rhs.dtype))

        def run(needed: Array, sources: Array, shift: Array, rhs: Array) -> tuple[np.ndarray, Elimination]:
            if not needed:
                return np.zeros(rhs.shape, rhs.dtype), zeros(shapes[1])
            with np.errstate(all="ignore"):
                factor = factorize(self._plan, np.asarray(sources), float(shift), self._eps)
                solution = factor.solve(np.asarray(rhs, np.float64))
            told = summary(factor, rhs.dtype)
            if not np.all(np.isfinite(solution)):
                told = told._replace(status=np.int32(NONFINITE))
            return solution.astype(rhs.dtype), told

        return jax.pure_callback(run, shapes, needed, sources, shift, rhs, vmap_method="sequential")
