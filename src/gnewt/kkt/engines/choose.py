"""Engines behind one interface: a plan is prepared once, then numbers are eliminated inside or outside of jit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Float

from gnewt._errors import PerformanceNotice, PlanError, user_line
from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import Elimination
from gnewt.kkt.engines.native.engine import NativeEngine, available
from gnewt.kkt.engines.reference.engine import ReferenceEngine
from gnewt.kkt.engines.xla.engine import XlaEngine


@runtime_checkable
class Prepared(Protocol):
    """An engine with a plan. Its integers are operands of the caller's jit, so that they are not baked in."""

    name: str
    arrays: Any

    def factor_solve(
        self, arrays: Any, sources: Array, shift: Array | float, rhs: Float[Array, "N columns"]
    ) -> tuple[Float[Array, "N columns"], Elimination]:
        """Eliminate K for H + shift·I and solve for all columns."""
        ...

    def solve(
        self, arrays: Any, sources: Array, elimination: Elimination, rhs: Float[Array, "N columns"]
    ) -> Float[Array, "N columns"]:
        """Solve for other right-hand sides."""
        ...

    def solve_whole(
        self, arrays: Any, sources: Array, elimination: Elimination, rhs: Float[Array, "unknowns columns"]
    ) -> Float[Array, "unknowns columns"]:
        """Solve K z = rhs with right-hand sides on all rows: inputs, nodes, multipliers of nodes."""
        ...

    def variances(self, arrays: Any, sources: Array, elimination: Elimination) -> Float[Array, " slots"]:
        """The diagonal of K⁻¹ on all slots, by selected inversion along the tree."""
        ...

    def draw(
        self, arrays: Any, sources: Array, elimination: Elimination, noise: Float[Array, "N columns"]
    ) -> Float[Array, "N columns"]:
        """Draws of covariance H⁻¹ from standard normal noise. Causal plans of a positive definite H only."""
        ...


_ENGINES: dict[str, Callable[[Plan, int, float], Prepared]] = {
    "native": NativeEngine,
    "xla": XlaEngine,
    "reference": ReferenceEngine,
}
ENGINES = ("auto", *_ENGINES)
"""Names that `engine=` takes."""


def choose_engine(name: str, platform: str) -> tuple[str, str]:
    """Resolve `auto` for a platform (`cpu`, `gpu`, ...): (engine, why)."""
    if name not in ENGINES:
        raise unknown_engine(name, ENGINES)
    if name == "native" and not available():
        raise PlanError(
            "the native engine was asked for, but its library is not there",
            remedy="install gnewt where there is a C++ compiler, or use engine='auto'",
        )
    if name != "auto":
        return name, "as asked"
    if platform != "cpu":
        return "xla", f"the platform is {platform}"
    if available():
        return "native", "the platform is a CPU"
    _notice_once()
    return "xla", "the native library is not there"


@cache
def _notice_once() -> None:
    warnings.warn(
        "gnewt has no native library (no C++ compiler was found, GNEWT_NATIVE=0, or the library was built for another "
        "version): the xla engine serves, which is slower on a CPU. Install a C++ compiler and reinstall gnewt; from "
        "source, run `make native`.",
        PerformanceNotice,
        stacklevel=2,
    )


def unknown_engine(name: object, known: Sequence[str]) -> PlanError:
    """Make the error that names the engines there are."""
    only = "; `products` is for minimize" if name == "products" else ""
    return PlanError(f"unknown engine {name!r}", user_line(), f"use one of {', '.join(known)}{only}")


def prepare(name: str, plan: Plan, num_sources: int, eps: float) -> Prepared:
    """Prepare a plan for an engine (not `auto`). Once per plan."""
    return _ENGINES[name](plan, num_sources, eps)
