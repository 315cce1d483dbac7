"""Engines behind one interface: a plan is prepared once, then numbers are eliminated inside or outside of jit."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Int

from gnewt._errors import PerformanceNotice, PlanError, explain_error
from gnewt.graph import Plan
from gnewt.kkt import native
from gnewt.kkt.reference import ReferenceFactor, factorize
from gnewt.kkt.xla import PreparedXla

STATUSES = ("ok", "singular", "nonfinite", "out of memory", "bad plan")
"""What an elimination can say of itself; `Elimination.status` counts in this list."""
OK, SINGULAR, NONFINITE = 0, 1, 2


class Elimination(NamedTuple):
    """What is known of H + μI after its elimination. Leaves have leading axes under vmap."""

    status: Int[Array, ""]
    inertia: Int[Array, "3"]
    """(n₊, n₋, n₀) of H + μI, by Sylvester's law from the pivots of K (E19)."""
    num_delayed: Int[Array, ""]
    logdet: Float[Array, ""]
    """log|det(H + μI)|; -inf if singular."""
    smallest_pivot: Float[Array, ""]
    null: Int[Array, " unknowns"]
    """1 for unknowns that found no pivot above rounding."""
    factor: Any
    """What the engine needs to solve again."""


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
        shift = jnp.asarray(shift, sources.dtype)
        done = native.factor_solve(self._layout, sources, shift, rhs, arrays)
        kept = (done.factor, done.index, done.info, shift)
        known = (done.status, done.inertia, done.num_delayed, done.logdet, done.smallest_pivot, done.null)
        return done.solution, Elimination(*known, factor=kept)

    def solve(self, arrays: Any, sources: Array, elimination: Elimination, rhs: Array) -> Array:
        factor, index, info, shift = elimination.factor
        solved = native.Solved(rhs, factor, index, info, rhs, rhs)
        # A factor that outgrew its buffer by delayed pivots was not kept: it is made again.
        return jax.lax.cond(
            solved.kept == 1,
            lambda: native.solve(self._layout, sources, solved, rhs, arrays),
            lambda: native.factor_solve(self._layout, sources, shift, rhs, arrays).solution,
        )


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


class XlaEngine(PreparedXla):
    """Pure JAX, for GPUs and for machines without the native library."""

    name = "xla"


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
