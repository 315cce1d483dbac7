"""Ways out where the static pivots of the xla engine do not do: run only where some lane of a batch asks for them."""

from __future__ import annotations

import jax
import numpy as np
from jax import Array

from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import NONFINITE, Elimination
from gnewt.kkt.engines.reference.engine import factorize, shapes_of_summary, summary
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

        def one(sources: np.ndarray, shift: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, Elimination]:
            with np.errstate(all="ignore"):
                factor = factorize(self._plan, sources, float(shift), self._eps)
                solution = factor.solve(np.asarray(rhs, np.float64))
            told = summary(factor, rhs.dtype)
            if not np.all(np.isfinite(solution)):
                told = told._replace(status=np.int32(NONFINITE))
            return solution.astype(rhs.dtype), told

        def run(*given: Array) -> tuple[np.ndarray, Elimination]:
            """All lanes by one call: most of them need nothing."""
            needed, *numbers = (np.asarray(v) for v in given)
            out = jax.tree.map(lambda s: np.zeros((*needed.shape, *s.shape), s.dtype), shapes)
            for lane in np.argwhere(needed):
                place = tuple(lane)
                found = one(*(np.asarray(v[place]) for v in numbers))
                for whole, part in zip(jax.tree.leaves(out), jax.tree.leaves(found), strict=True):
                    whole[place] = part
            return out

        return jax.pure_callback(run, shapes, needed, sources, shift, rhs, vmap_method="broadcast_all")
