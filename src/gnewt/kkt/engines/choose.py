"""Engines behind one interface: a plan is prepared once, then numbers are eliminated inside or outside of jit."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float

from gnewt._errors import PerformanceNotice, PlanError, explain_error
from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import NONFINITE, OK, SINGULAR, Elimination
from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.reference.engine import ReferenceFactor, factorize
from gnewt.kkt.engines.xla.engine import XlaEngine


@runtime_checkable
class Prepared(Protocol):
    """An engine with a plan. Its integers are operands of the caller's jit, so that they are not baked in."""

    name: str
    arrays: Any

    def factor_solve(
        self, arrays: Any, sources: Array, shift: Any, rhs: Float[Array, "N columns"]
    ) -> tuple[Float[Array, "N columns"], Elimination]:
        """Eliminate K for H + shift·I and solve for all columns."""
        ...

    def solve(
        self, arrays: Any, sources: Array, elimination: Elimination, rhs: Float[Array, "N columns"]
    ) -> Float[Array, "N columns"]:
        """Solve for other right-hand sides."""
        ...


class NativeEngine:
    """The C++ library: one call per factor-and-solve."""

    name = "native"

    def __init__(self, plan: Plan, num_sources: int, eps: float) -> None:
        del eps  # it measures noise in the precision of the sources
        self._layout = native.layout(plan, num_sources)
        self.arrays = self._layout.array

    def factor_solve(self, arrays: Any, sources: Array, shift: Any, rhs: Array) -> tuple[Array, Elimination]:
        done = native.factor_solve(self._layout, sources, shift, rhs, arrays)
        known = (done.status, done.inertia, done.num_delayed, done.logdet, done.smallest_pivot, done.null)
        return done.solution, Elimination(*known, factor=(done.factor, done.index, done.info, done.real))

    def solve(self, arrays: Any, sources: Array, elimination: Elimination, rhs: Array) -> Array:
        solved = native.Solved(rhs, *elimination.factor, null=elimination.null)
        return native.solve(self._layout, sources, solved, rhs, arrays)


class ReferenceEngine:
    """The NumPy oracle; inside jit it runs as a callback on the host."""

    name = "reference"

    def __init__(self, plan: Plan, num_sources: int, eps: float) -> None:
        del num_sources
        self.plan, self.eps = plan, eps
        self.arrays = ()

    def factor_solve(self, arrays: Any, sources: Array, shift: Any, rhs: Array) -> tuple[Array, Elimination]:
        if not isinstance(sources, Tracer) and not isinstance(shift, Tracer) and not isinstance(rhs, Tracer):
            return self._run(np.asarray(sources), shift, np.asarray(rhs))
        shift = jnp.asarray(shift, sources.dtype)
        real, whole = jax.ShapeDtypeStruct((), rhs.dtype), jax.ShapeDtypeStruct((), jnp.int32)
        inertia = jax.ShapeDtypeStruct((3,), jnp.int32)
        null = jax.ShapeDtypeStruct((self.plan.num_unknowns,), jnp.int8)
        known: Any = (whole, inertia, whole, real, real, null)
        shapes = (jax.ShapeDtypeStruct(rhs.shape, rhs.dtype), Elimination(*known, factor=()))

        def run(sources: Any, shift: Any, rhs: Any) -> Any:
            solution, known = self._run(np.asarray(sources), shift, np.asarray(rhs))
            return np.asarray(solution), known._replace(factor=())

        solution, known = jax.pure_callback(run, shapes, sources, shift, rhs, vmap_method="sequential")
        return solution, known._replace(factor=shift)

    def solve(self, arrays: Any, sources: Array, elimination: Elimination, rhs: Array) -> Array:
        kept = elimination.factor
        if isinstance(kept, ReferenceFactor) and not isinstance(rhs, Tracer):
            return jnp.asarray(kept.solve(np.asarray(rhs, np.float64)), rhs.dtype)
        shift = kept.shift if isinstance(kept, ReferenceFactor) else kept
        return self.factor_solve(arrays, sources, shift, rhs)[0]

    def _run(self, sources: np.ndarray, shift: Any, rhs: np.ndarray) -> tuple[Array, Elimination]:
        if not np.all(np.isfinite(sources)):
            nan, none = np.asarray(np.nan, rhs.dtype), np.zeros(self.plan.num_unknowns, np.int8)
            known: Any = (np.int32(NONFINITE), np.zeros(3, np.int32), np.int32(0), nan, nan, none)
            return jnp.full(rhs.shape, jnp.nan, rhs.dtype), Elimination(*known, factor=float(shift))
        done = factorize(self.plan, sources, float(shift), self.eps)
        null = np.zeros(self.plan.num_unknowns, np.int8)
        null[done.null] = 1
        known = (
            np.int32(SINGULAR if len(done.null) else OK),
            np.array(done.inertia, np.int32),
            np.int32(done.num_delayed),
            np.asarray(done.logdet, rhs.dtype),
            np.asarray(done.smallest_pivot, rhs.dtype),
            null,
        )
        return jnp.asarray(done.solve(rhs.astype(np.float64)), rhs.dtype), Elimination(*known, factor=done)


_ENGINES: dict[str, Any] = {"native": NativeEngine, "xla": XlaEngine, "reference": ReferenceEngine}
ENGINES = ("auto", *_ENGINES)
"""Names that `engine=` takes."""


def choose_engine(name: str, platform: str) -> tuple[str, str]:
    """Resolve `auto` for a platform (`cpu`, `gpu`, ...): (engine, why)."""
    if name not in ENGINES:
        raise PlanError(explain_error(f"unknown engine {name!r}", remedy=f"use one of {', '.join(ENGINES)}"))
    if name == "native" and not native.available():
        raise PlanError(
            explain_error(
                "the native engine was asked for, but its library is not there",
                remedy="install gnewt where there is a C++ compiler, or use engine='auto'",
            )
        )
    if name != "auto":
        return name, "as asked"
    if platform != "cpu":
        return "xla", f"the platform is {platform}"
    if native.available():
        return "native", "the platform is a CPU"
    _notice_once()
    return "xla", "the native library is not there"


@cache
def _notice_once() -> None:
    warnings.warn(
        "gnewt was installed without its native library (no C++ compiler was found, or GNEWT_NATIVE=0): the xla "
        "engine serves, which is slower on a CPU. Install a C++ compiler and reinstall gnewt.",
        PerformanceNotice,
        stacklevel=2,
    )


def prepare(name: str, plan: Plan, num_sources: int, eps: float) -> Prepared:
    """Prepare a plan for an engine (not `auto`). Once per plan."""
    return _ENGINES[name](plan, num_sources, eps)
