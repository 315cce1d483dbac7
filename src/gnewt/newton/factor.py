"""Factor: an eliminated Newton system, for any right-hand side."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._errors import StepError, explain_error
from gnewt._typing import Array, PyTree
from gnewt.graph import Certificate, Plan
from gnewt.kkt import LocalModels, NativeFactor, ReferenceFactor
from gnewt.newton.objective import Point
from gnewt.newton.system import System, norm

MAX_REFINEMENTS = 3


@dataclasses.dataclass(frozen=True)
class Inertia:
    """Numbers of positive, negative and zero eigenvalues of H + μI."""

    positive: int
    negative: int
    zero: int

    def __iter__(self) -> Any:
        return iter((self.positive, self.negative, self.zero))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Inertia | tuple | list) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """H + μI at one iterate, eliminated along a plan. Made by `gnewt.factorize`.

    Solves are refined with Hessian-vector products of f itself and reach rounding, or say that they do not.
    """

    system: System
    point: Point
    models: LocalModels
    numbers: ReferenceFactor | NativeFactor
    shift: float

    # What the elimination knows

    @property
    def plan(self) -> Plan:
        return self.system.plan

    @property
    def certificate(self) -> Certificate:
        return self.system.plan.certificate

    @property
    def inertia(self) -> Inertia:
        """Inertia of H + μI, exact up to rounding of the pivots."""
        return Inertia(*self.numbers.inertia)

    @property
    def is_positive_definite(self) -> bool:
        return self.inertia == (self.system.structure.num_inputs, 0, 0)

    @property
    def is_singular(self) -> bool:
        return len(self.numbers.null) > 0

    def logdet(self) -> float:
        """Return log|det(H + μI)|; its sign is (-1)^inertia.negative. -inf if singular."""
        return self.numbers.logdet

    def null_vertices(self) -> tuple[str, ...]:
        """Name the vertices that the null pivots touch: where curvature is missing. Empty if nonsingular."""
        slots = np.unique(self.plan.slot_of_unknown(self.numbers.null)).astype(int)
        return tuple(self.system.structure.slot_name(int(s)) for s in slots)

    @property
    def value(self) -> Array:
        return self.models.value

    @cached_property
    def gradient(self) -> PyTree:
        """∂f/∂x, from the reverse sweep."""
        return self.system.structure.unravel(self.flat_gradient)

    @property
    def flat_gradient(self) -> np.ndarray:
        return np.asarray(self.models.duals[: self.system.structure.num_inputs])

    # Solving

    def solve(self, b: PyTree) -> PyTree:
        """Return (H + μI)⁻¹ b for a pytree b like the inputs."""
        self._refuse_singular("solve")
        structure = self.system.structure
        return structure.unravel(self.solve_flat(np.asarray(structure.ravel(b)))[0])

    def step(self) -> PyTree:
        """Return the Newton step -(H + μI)⁻¹ g."""
        self._refuse_singular("take a step")
        return self.system.structure.unravel(self.flat_step[0])

    @property
    def residual(self) -> float:
        """‖(H + μI)·δ + g‖ / ‖g‖ of the Newton step δ, from an independent Hessian-vector product."""
        return self.flat_step[1]

    @cached_property
    def flat_step(self) -> tuple[np.ndarray, float]:
        return self.solve_flat(-self.flat_gradient)

    def solve_flat(self, b: np.ndarray) -> tuple[np.ndarray, float]:
        """Solve and refine; return (solution, relative residual) over the flat inputs."""
        size = norm(b)
        if size == 0.0:
            return np.zeros_like(b), 0.0
        eps = float(jnp.finfo(self.system.structure.dtype).eps)
        best = self.numbers.solve(np.asarray(b, np.float64))
        residual = self._residual(best, b)
        for _ in range(MAX_REFINEMENTS):
            if norm(residual) <= 4 * eps * size:
                break
            candidate = best + self.numbers.solve(residual)
            left = self._residual(candidate, b)
            if not norm(left) < 0.5 * norm(residual):
                break
            best, residual = candidate, left
        return best, norm(residual) / size

    def _residual(self, y: np.ndarray, b: np.ndarray) -> np.ndarray:
        dtype = self.system.structure.dtype
        product = np.asarray(self.system.product(self.point, jnp.asarray(y, dtype)), np.float64)
        return b - product - self.shift * y

    # Probability: N(0, (H + μI)⁻¹), as in a Laplace approximation

    def marginal_variances(self) -> PyTree:
        """Return the diagonal of (H + μI)⁻¹, by selected inversion on the cliques."""
        self._refuse_singular("invert")
        return self.system.structure.unravel(self.numbers.input_variances())

    def sample(self, key: Array) -> PyTree:
        """Draw from N(0, (H + μI)⁻¹). Needs H + μI ≻ 0 and a causal order."""
        if not self.is_positive_definite:
            raise StepError(
                explain_error(
                    f"cannot sample: H + {self.shift}·I is not positive definite, its inertia is {tuple(self.inertia)}",
                    remedy="factorize at a minimum, or give a larger shift",
                )
            )
        if not self.plan.causal:
            raise StepError(
                explain_error(
                    f"cannot sample along the order {self.plan.order_name!r}, which is not causal",
                    remedy="factorize with order='causal'",
                )
            )
        structure = self.system.structure
        noise = np.asarray(jax.random.normal(key, (structure.num_inputs, 1)), np.float64)
        return structure.unravel(self.numbers.correlate(noise)[:, 0])

    def _refuse_singular(self, what: str) -> None:
        if self.is_singular:
            raise StepError(singular_message(self, what))


def singular_message(factor: Factor, what: str = "take a step") -> str:
    """Say that H is singular, where curvature is missing, and what to do."""
    names = factor.null_vertices()
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    slots = factor.plan.slot_of_unknown(factor.numbers.null)
    return explain_error(
        f"cannot {what}: the Hessian is singular, with {len(names)} null pivot(s) that touch {shown}",
        factor.system.structure.slot_where(int(slots[0])),
        "add a small shift (exactly H + μI), or a cost on these vertices",
    )
