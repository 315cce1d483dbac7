"""Factor: an eliminated Newton system, for any right-hand side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from gnewt._errors import StepError, explain_error
from gnewt._typing import PyTree
from gnewt.graph import Certificate, Plan
from gnewt.kkt import OK, STATUSES, Elimination, LocalModels, ReferenceFactor, factorize
from gnewt.newton.objective import Point
from gnewt.newton.policy import Policy, make_policy
from gnewt.newton.system import System, norm

MAX_REFINEMENTS = 3


class Inertia(NamedTuple):
    """Numbers of positive, negative and zero eigenvalues of H + μI: integers, or traced inside jit."""

    positive: Any
    negative: Any
    zero: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """H + μI at one iterate, eliminated along a plan. Made by `gnewt.factorize`; a pytree.

    Outside of jit solves are refined with Hessian-vector products of f itself and reach rounding, or say that they
    do not. Inside jit (and vmap) they are what the elimination gives, and NaN where H + μI is singular.
    """

    point: Point
    models: LocalModels
    numbers: Elimination
    shift: Any
    raw_step: Array
    """-(H + μI)⁻¹ g over the flat inputs, as the elimination gave it: not refined."""
    system: System = dataclasses.field(metadata={"static": True})

    # What the elimination knows

    @property
    def plan(self) -> Plan:
        return self.system.plan

    @property
    def certificate(self) -> Certificate:
        return self.system.plan.certificate

    @property
    def status(self) -> str:
        """`ok`, `singular`, or what else went wrong. Not inside jit: there use `numbers.status`."""
        return status_name(self.numbers.status, STATUSES, "gnewt.kkt.STATUSES")

    @property
    def inertia(self) -> Inertia:
        """Inertia of H + μI, exact up to rounding of the pivots."""
        return as_inertia(self.numbers.inertia)

    @property
    def is_positive_definite(self) -> Any:
        found = self.inertia.positive == self.system.structure.num_inputs
        return found & (self.numbers.status == OK) if self._is_traced else bool(found)

    @property
    def is_singular(self) -> Any:
        return self.inertia.zero > 0

    @property
    def num_delayed(self) -> Any:
        """Pivots that were moved to a parent front because they were too small in their own."""
        return number(self.numbers.num_delayed, int)

    @property
    def smallest_pivot(self) -> Any:
        return number(self.numbers.smallest_pivot, float)

    def logdet(self) -> Any:
        """Return log|det(H + μI)|; its sign is (-1)^inertia.negative. -inf if singular."""
        return number(self.numbers.logdet, float)

    def null_vertices(self) -> tuple[str, ...]:
        """Name the vertices that the null pivots touch: where curvature is missing. Empty if nonsingular."""
        return null_names(self.system, self.numbers.null)

    @property
    def value(self) -> Array:
        return self.models.value

    @cached_property
    def gradient(self) -> PyTree:
        """∂f/∂x, from the reverse sweep."""
        return self.system.structure.unravel(self.flat_gradient)

    @property
    def flat_gradient(self) -> Any:
        gradient = self.models.duals[: self.system.structure.num_inputs]
        return gradient if self._is_traced else np.asarray(gradient)

    @property
    def _is_traced(self) -> bool:
        return isinstance(self.numbers.status, Tracer)

    def __repr__(self) -> str:
        return show(
            "Factor",
            self.numbers.status,
            lambda: (
                f"<Factor: {self.status}, {self.inertia}, shift {float(self.shift):.3g}, {self.certificate}>"
            ),
        )

    # Solving

    def solve(self, b: PyTree) -> PyTree:
        """Return (H + μI)⁻¹ b for a pytree b like the inputs."""
        structure = self.system.structure
        flat = structure.ravel(b)
        if self._is_traced or isinstance(flat, Tracer):
            return structure.unravel(self._solve_traced(flat))
        self._refuse_singular("solve")
        return structure.unravel(self.solve_flat(np.asarray(flat))[0])

    def step(self) -> PyTree:
        """Return the Newton step -(H + μI)⁻¹ g."""
        if self._is_traced:
            return self.system.structure.unravel(self.flat_traced_step)
        self._refuse_singular("take a step")
        return self.system.structure.unravel(self.flat_step[0])

    @property
    def residual(self) -> Any:
        """‖(H + μI)·δ + g‖ / ‖g‖ of the Newton step δ, from an independent Hessian-vector product."""
        if not self._is_traced:
            return self.flat_step[1]
        gradient = self.flat_gradient
        left = self.system.product(self.point, self.raw_step) + self.shift * self.raw_step + gradient
        size = jnp.linalg.norm(gradient)
        return jnp.where(size > 0, jnp.linalg.norm(left) / jnp.where(size > 0, size, 1), 0.0)

    @cached_property
    def flat_step(self) -> tuple[np.ndarray, float]:
        return self.solve_flat(-self.flat_gradient, self.raw_step)

    @property
    def flat_traced_step(self) -> Array:
        """The step inside jit: NaN where there is none."""
        good = (self.numbers.status == OK) & jnp.isfinite(self.models.value)
        return jnp.where(good, self.raw_step, jnp.nan)

    def solve_flat(self, b: np.ndarray, first: Any = None) -> tuple[np.ndarray, float]:
        """Solve and refine on the host; return (solution, relative residual) over the flat inputs."""
        size = norm(b)
        if size == 0.0:
            return np.zeros_like(b), 0.0
        eps = float(jnp.finfo(self.system.structure.dtype).eps)
        best = self._solve(b) if first is None else np.asarray(first, np.float64)
        residual = self._residual(best, b)
        for _ in range(MAX_REFINEMENTS):
            if norm(residual) <= 4 * eps * size:
                break
            candidate = best + self._solve(residual)
            left = self._residual(candidate, b)
            if not norm(left) < 0.5 * norm(residual):
                break
            best, residual = candidate, left
        return best, norm(residual) / size

    def _solve(self, b: np.ndarray) -> np.ndarray:
        done = self.system.solve(self.models, self.numbers, jnp.asarray(b, self.models.sources.dtype))
        return np.asarray(done, np.float64)

    def _solve_traced(self, b: Array) -> Array:
        done = self.system.solve(self.models, self.numbers, b)
        return jnp.where(self.numbers.status == OK, done, jnp.nan)

    def _residual(self, y: np.ndarray, b: np.ndarray) -> np.ndarray:
        dtype = self.system.structure.dtype
        product = np.asarray(self.system.product(self.point, jnp.asarray(y, dtype)), np.float64)
        return b - product - float(self.shift) * y

    def policy(self, duals: str = "adjoint") -> Policy:
        """Return the affine policies of the inputs that a causal order gives, u = ū + k + K(s - s̄).

        Args:
            duals: what the Hessians of the nodes are contracted with: `"adjoint"` for the policies of H + μI, `"value"` for
                DDP's, `"zero"` for iLQR's.
        """
        self._refuse_traced("policy")
        return make_policy(self.system, self.point.data, self.models, self.shift, duals)

    # Probability: N(0, (H + μI)⁻¹), as in a Laplace approximation. Not in the hot path: the reference engine answers.

    @cached_property
    def _reference(self) -> ReferenceFactor:
        if isinstance(self.numbers.factor, ReferenceFactor):
            return self.numbers.factor
        sources, eps = np.asarray(self.models.sources), self.system.structure.eps
        return factorize(self.plan, sources, float(self.shift), eps)

    def marginal_variances(self) -> PyTree:
        """Return the diagonal of (H + μI)⁻¹, by selected inversion on the cliques."""
        self._refuse_traced("marginal_variances")
        self._refuse_singular("invert")
        return self.system.structure.unravel(self._reference.input_variances())

    def sample(self, key: Array) -> PyTree:
        """Draw from N(0, (H + μI)⁻¹). Needs H + μI ≻ 0 and a causal order."""
        self._refuse_traced("sample")
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
        return structure.unravel(self._reference.correlate(noise)[:, 0])

    def _refuse_singular(self, what: str) -> None:
        if self.is_singular:
            raise StepError(singular_message(self.system, self.numbers.null, what))

    def _refuse_traced(self, what: str) -> None:
        if self._is_traced:
            raise StepError(
                explain_error(
                    f"{what} runs on the host and cannot be part of a compiled function",
                    remedy="return the factor from the jitted function and call it there",
                )
            )


def as_inertia(counts: Any) -> Inertia:
    """Integers where they are known; arrays inside jit, and for a batch."""
    return Inertia(*(number(counts[..., i], int) for i in range(3)))


def number(value: Any, kind: type) -> Any:
    """A Python number where it is known; an array inside jit, and for a batch."""
    return value if isinstance(value, Tracer) or np.ndim(value) else kind(value)


def status_name(code: Any, names: tuple[str, ...], where: str) -> str:
    """Name a status, or say what to use instead where its number is not known yet."""
    if isinstance(code, Tracer) or np.ndim(code):
        raise StepError(
            explain_error(
                "a status has no name inside jit or vmap, nor for a batch",
                remedy=f"use `code`, which counts in {where}, or `success`",
            )
        )
    return names[int(code)]


def show(name: str, code: Any, text: Callable[[], str]) -> str:
    """What a prompt shows; numbers inside jit and batches are not looked at."""
    if isinstance(code, Tracer):
        return f"<{name} inside a transformation>"
    return text() if np.ndim(code) == 0 else f"<{name} of shape {np.shape(code)}>"


def null_names(system: System, null: Any) -> tuple[str, ...]:
    """Name the vertices that the null pivots touch."""
    slots = np.unique(system.plan.slot_of_unknown(np.flatnonzero(null))).astype(int)
    return tuple(system.structure.slot_name(int(s)) for s in slots)


def singular_message(system: System, null: Any, what: str = "take a step") -> str:
    """Say that H is singular, where curvature is missing, and what to do."""
    names = null_names(system, null)
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    slots = system.plan.slot_of_unknown(np.flatnonzero(null))
    return explain_error(
        f"cannot {what}: the Hessian is singular, with {len(names)} null pivot(s) that touch {shown}",
        system.structure.slot_where(int(slots[0])) if len(slots) else "",
        "add a small shift (exactly H + μI), or a cost on these vertices",
    )
