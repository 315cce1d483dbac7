"""Factor: an eliminated Newton system, for any right-hand side."""

from __future__ import annotations

import dataclasses
import warnings
from functools import cached_property
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from gnewt._errors import CurvatureWarning, StepError, explain_error, user_line
from gnewt._typing import PyTree
from gnewt.graph import Certificate, Plan
from gnewt.kkt import Elimination, EliminationStatus, LocalModels, ReferenceFactor, factorize
from gnewt.newton.numbers import (
    Count,
    Inertia,
    Real,
    RealLike,
    as_count,
    as_inertia,
    as_real,
    column_norms,
    show,
)
from gnewt.newton.objective import Point
from gnewt.newton.policy import Policy, make_policy
from gnewt.newton.sides import ravel_sides, unravel_sides
from gnewt.newton.statuses import status_of
from gnewt.newton.system import System

_MAX_REFINEMENTS, _ENOUGH, _PAYS = 3, 4, 0.5
"""Refinements at most; the relative residual, in roundings, that needs none; the share of the residual that a
refinement must bring it below, or it is not kept and no other is tried."""
_SHOWN = 6
"""Names of vertices in a message."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """H + μI at one iterate, eliminated along a plan. Made by `gnewt.factorize`; a pytree.

    Outside of jit solves are refined with Hessian-vector products of f itself and reach rounding, or say that they
    do not. Inside jit (and vmap) they are what the elimination gives, and NaN where H + μI is singular.
    """

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    point: Point
    models: LocalModels
    numbers: Elimination
    shift: RealLike
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
        return status_of(self.numbers.status, EliminationStatus).text

    @property
    def inertia(self) -> Inertia:
        """Inertia of H + μI, exact up to rounding of the pivots."""
        return as_inertia(self.numbers.inertia)

    @property
    def is_positive_definite(self) -> Count:
        found = self.inertia.positive == self.system.structure.num_inputs
        return found & (self.numbers.status == EliminationStatus.OK) if self.is_traced else bool(found)

    @property
    def is_singular(self) -> Count:
        return self.inertia.zero > 0

    @property
    def num_delayed(self) -> Count:
        """Pivots that were moved to a parent front because they were too small in their own."""
        return as_count(self.numbers.num_delayed)

    @property
    def smallest_pivot(self) -> Real:
        return as_real(self.numbers.smallest_pivot)

    def logdet(self) -> Real:
        """Return log|det(H + μI)|; its sign is (-1)^inertia.negative. -inf if singular."""
        return as_real(self.numbers.logdet)

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
    def flat_gradient(self) -> Array | np.ndarray:
        count = self.system.structure.num_inputs
        return self.models.duals[:count] if self.is_traced else np.asarray(self.models.duals)[:count]

    @property
    def is_traced(self) -> bool:
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
        """Return (H + μI)⁻¹ b for a pytree b like the inputs, or for many.

        Args:
            b: a pytree like the inputs; or one whose leaves all have one more leading axis, of the same length: a
                right-hand side for each of its rows. They are solved for at once.

        Returns:
            The solution, in the form of b.
        """
        self._refuse_batch("solve(b)")
        structure = self.system.structure
        flat = ravel_sides(structure, b)
        if 0 in flat.shape:
            return unravel_sides(structure, flat)
        if self.is_traced or isinstance(flat, Tracer):
            return unravel_sides(structure, self._solve_traced(jnp.asarray(flat)))
        self._refuse_singular("solve")
        return unravel_sides(structure, self.solve_flat(np.asarray(flat))[0])

    def step(self) -> PyTree:
        """Return the Newton step -(H + μI)⁻¹ g."""
        if self.is_traced:
            return self.system.structure.unravel(self.flat_traced_step)
        self._refuse_singular("take a step")
        return self.system.structure.unravel(self.flat_step[0])

    @property
    def residual(self) -> Real:
        """‖(H + μI)·δ + g‖ / ‖g‖ of the Newton step δ, from an independent Hessian-vector product."""
        if not self.is_traced:
            return self.flat_step[1]
        gradient = self.flat_gradient
        left = self.system.product(self.point, self.raw_step) + self.shift * self.raw_step + gradient
        largest = jnp.max(jnp.abs(gradient), initial=0.0)
        unit = jnp.where(largest > 0, largest, 1.0)  # squares of tiny numbers vanish
        size = jnp.linalg.norm(gradient / unit)
        return jnp.linalg.norm(left / unit) / jnp.where(size > 0, size, 1.0)

    @cached_property
    def flat_step(self) -> tuple[np.ndarray, float]:
        return self.solve_flat(-np.asarray(self.flat_gradient), self.raw_step)

    @property
    def flat_traced_step(self) -> Array:
        """The step inside jit: NaN where there is none."""
        good = (self.numbers.status == EliminationStatus.OK) & jnp.isfinite(self.models.value)
        return jnp.where(good, self.raw_step, jnp.nan)

    def solve_flat(self, b: np.ndarray, first: Array | None = None) -> tuple[np.ndarray, float]:
        """Solve for b[N] or b[N, k] and refine on the host; return (solution, largest relative residual)."""
        sides = b.reshape(len(b), -1)
        sizes = column_norms(sides)
        if not np.any(sizes):
            zero = np.zeros_like(sides)
            return np.zeros_like(b), float(np.max(column_norms(self._residual(zero, sides))))
        eps = float(np.finfo(self.system.structure.dtype).eps)
        best = self._solve(sides) if first is None else np.asarray(first, np.float64).reshape(sides.shape)
        residual = self._residual(best, sides)
        for _ in range(_MAX_REFINEMENTS):
            left = column_norms(residual)
            rough = ~(left <= _ENOUGH * eps * sizes)
            if not np.any(rough):
                break
            candidate = best + self._solve(residual)
            after = self._residual(candidate, sides)
            better = rough & (column_norms(after) < _PAYS * left)
            if not np.any(better):
                break
            best, residual = np.where(better, candidate, best), np.where(better, after, residual)
        relative = column_norms(residual) / np.where(sizes > 0, sizes, 1.0)
        return best.reshape(b.shape), float(np.max(relative))

    def _solve(self, b: np.ndarray) -> np.ndarray:
        done = self.system.solve(self.models, self.numbers, np.asarray(b, self.models.sources.dtype))
        return np.asarray(done, np.float64)

    def _solve_traced(self, b: Array) -> Array:
        done = self.system.solve(self.models, self.numbers, b)
        return jnp.where(self.numbers.status == EliminationStatus.OK, done, jnp.nan)

    def _residual(self, y: np.ndarray, b: np.ndarray) -> np.ndarray:
        given = np.asarray(
            y, self.system.structure.dtype
        )  # compiled functions take NumPy's arrays in less time
        if y.shape[1] == 1:  # which is compiled anyway
            product = np.asarray(self.system.product(self.point, given[:, 0]))[:, None]
        else:
            product = np.asarray(self.system.products(self.point, given))
        return b - product - float(self.shift) * y

    def policy(self, duals: str = "adjoint") -> Policy:
        """Return the affine policies of the inputs that a causal order gives, u = ū + k + K(s - s̄).

        Args:
            duals: what the Hessians of the nodes are contracted with: `"adjoint"` for the policies of H + μI, `"value"` for
                DDP's, `"zero"` for iLQR's.
        """
        self._refuse_traced("policy")
        return make_policy(self.system, self.point.data, self.models, jnp.asarray(self.shift), duals)

    # Probability: N(0, (H + μI)⁻¹), as in a Laplace approximation. Not in the hot path: the reference engine answers.

    @cached_property
    def _reference(self) -> ReferenceFactor:
        if isinstance(self.numbers.factor, ReferenceFactor):
            return self.numbers.factor
        sources, eps = np.asarray(self.models.sources), self.system.structure.eps
        return factorize(self.plan, sources, float(self.shift), eps)

    def marginal_variances(self) -> PyTree:
        """Return the diagonal of (H + μI)⁻¹, by selected inversion on the cliques.

        Where H + μI is not positive definite there is no such distribution: NaN, and a `CurvatureWarning`.
        """
        self._refuse_traced("marginal_variances")
        self._refuse_batch("marginal_variances()")
        self._refuse_singular("invert")
        if not self.is_positive_definite:
            warnings.warn(
                explain_error(
                    f"no variances: H + {float(self.shift):.3g}·I is not positive definite, "
                    f"its inertia is {tuple(self.inertia)}; NaN is returned",
                    remedy="factorize at a minimum, such as minimize(f, x).x, or give a larger shift; "
                    "`solve` is exact for any H",
                ),
                CurvatureWarning,
                stacklevel=2,
            )
            return self.system.structure.unravel(np.full(self.system.structure.num_inputs, np.nan))
        return self.system.structure.unravel(self._reference.input_variances())

    def sample(self, key: Array) -> PyTree:
        """Draw from N(0, (H + μI)⁻¹). Needs H + μI ≻ 0 and a causal order."""
        self._refuse_traced("sample")
        self._refuse_batch("sample(key)")
        if not self.is_positive_definite:
            raise StepError(
                f"cannot sample: H + {float(self.shift):.3g}·I is not positive definite, its inertia is {tuple(self.inertia)}",
                remedy="factorize at a minimum, or give a larger shift",
            )
        if not self.plan.causal:
            raise StepError(
                f"cannot sample along the order {self.plan.order_name!r}, which is not causal",
                remedy="factorize with order='causal'",
            )
        structure = self.system.structure
        noise = np.asarray(jax.random.normal(key, (structure.num_inputs, 1)), np.float64)
        return structure.unravel(self._reference.correlate(noise)[:, 0])

    def _refuse_singular(self, what: str) -> None:
        if self.is_singular:
            raise StepError(singular_message(self.system, self.numbers.null, what))

    def _refuse_batch(self, call: str) -> None:
        if np.ndim(self.numbers.status):
            raise StepError(
                f"this Factor is a batch of shape {np.shape(self.numbers.status)}, made by vmap",
                user_line(),
                f"map over it: jax.vmap(lambda F, ...: F.{call})(F, ...); what runs on the host needs one factor",
            )

    def _refuse_traced(self, what: str) -> None:
        if self.is_traced:
            raise StepError(
                f"{what} runs on the host and cannot be part of a compiled function",
                remedy="return the factor from the jitted function and call it there",
            )


def null_names(system: System, null: Array) -> tuple[str, ...]:
    """Name the vertices that the null pivots touch."""
    slots = np.unique(system.plan.slot_of_unknown(np.flatnonzero(null))).astype(int)
    return tuple(system.structure.slot_name(int(s)) for s in slots)


def singular_message(system: System, null: Array, what: str = "take a step") -> str:
    """Say that H is singular, where curvature is missing, and what to do."""
    names = null_names(system, null)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    slots = system.plan.slot_of_unknown(np.flatnonzero(null))
    return explain_error(
        f"cannot {what}: the Hessian is singular, with {len(names)} null pivot(s) that touch {shown}",
        system.structure.slot_where(int(slots[0])) if len(slots) else "",
        "add a small shift (exactly H + μI), or a cost on these vertices",
    )
