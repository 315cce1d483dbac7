"""System: a structure with its plan and compiled functions: everything that is made once per structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gnewt._errors import PlanError, explain_error
from gnewt._typing import Array
from gnewt.graph import Plan, Structure, forward, objective
from gnewt.kkt import CURVATURES, LocalModels, ReferenceFactor, factorize, first_nonfinite, linearize
from gnewt.newton.objective import Point
from gnewt.plan import make_plan

MAX_BYTES = 8e9
"""A plan that needs more memory than this is refused before anything is allocated."""


class _Compiled:
    """The compiled functions of a structure: they do not depend on the order."""

    def __init__(self, structure: Structure, curvature: str, original: Callable[[Any, Array], Array]) -> None:
        def product(captured: Any, x: Array, v: Array) -> tuple[Array, Array, Array]:
            f = jax.value_and_grad(lambda x: original(captured, x))
            (value, gradient), (_, curved) = jax.jvp(f, (x,), (v,))
            return value, gradient, curved

        def gauss_newton(maps: Any, data: Any, x: Array, v: Array) -> Array:
            # Sᵀ (∂²Σl) S v with S = ∂slots/∂x: the curvature of the losses, not of the nodes.
            slots, tangent = jax.jvp(lambda x: forward(structure, maps, data, x), (x,), (v,))
            gradient = jax.grad(lambda s: objective(structure, maps, data, s))
            curved = jax.jvp(gradient, (slots,), (tangent,))[1]
            return jax.vjp(lambda x: forward(structure, maps, data, x), x)[1](curved)[0]

        self.linearize = jax.jit(lambda maps, data, x: linearize(structure, maps, data, x, curvature))
        self.product = jax.jit(product)
        self.gauss_newton = jax.jit(gauss_newton)


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """The KKT system of a structure, ready for numbers."""

    structure: Structure
    plan: Plan
    curvature: str
    compiled: _Compiled

    def linearize(self, point: Point) -> LocalModels:
        """Compute values, duals and local derivatives."""
        return self.compiled.linearize(self.structure.maps, point.data, point.x)

    def value(self, point: Point) -> Array:
        """Compute f alone, by evaluating the graph."""
        return self.structure.value(point.data, point.x)

    def derivatives(self, point: Point, v: Array) -> tuple[Array, Array, Array]:
        """Compute (f, g, H·v) by JAX from the objective itself, independently of the local models."""
        return self.compiled.product(point.captured, point.x, v)

    def product(self, point: Point, v: Array) -> Array:
        """Compute the product of v with the matrix that is solved with: H, or its Gauss-Newton part."""
        if self.curvature == "exact":
            return self.derivatives(point, v)[2]
        return self.compiled.gauss_newton(self.structure.maps, point.data, point.x, v)

    def nonfinite(self, point: Point, models: LocalModels) -> tuple[str, str] | None:
        """Name the first value or derivative that is not finite."""
        return first_nonfinite(self.structure, point.data, models)

    def factorize(self, models: LocalModels, shift: float = 0.0) -> ReferenceFactor:
        """Eliminate K for H + shift·I."""
        return factorize(self.plan, np.asarray(models.sources), shift, self.structure.eps)


def system_of(point: Point, order: Any = "auto", curvature: str = "exact") -> System:
    """Return the system of a structure for the given options; plans and compiled functions are made once."""
    if curvature not in CURVATURES:
        raise PlanError(
            explain_error(f"unknown curvature {curvature!r}", remedy=f"use one of {', '.join(CURVATURES)}")
        )
    structure = point.structure
    key = order if isinstance(order, str) else tuple(tuple(np.ravel(group).tolist()) for group in order)
    plan = structure.memo(("plan", key), lambda: make_plan(structure, order))
    if plan.certificate.bytes > MAX_BYTES:
        raise PlanError(
            explain_error(
                f"the tree is too wide for memory: {plan.certificate}",
                remedy="try order='best_of'; split global reductions into terms; or use a matrix-free method",
            )
        )
    compiled = structure.memo(
        ("compiled", curvature), lambda: _Compiled(structure, curvature, point.original)
    )
    return structure.memo(("system", key, curvature), lambda: System(structure, plan, curvature, compiled))


def norm(x: Array | np.ndarray) -> float:
    """Euclidean norm as a Python float, safe against overflow of the squares."""
    x = np.asarray(x, np.float64)
    scale = float(np.max(np.abs(x), initial=0.0))
    if scale == 0.0 or not np.isfinite(scale):
        return scale
    return scale * float(np.linalg.norm(x / scale))
