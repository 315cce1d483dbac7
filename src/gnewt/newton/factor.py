"""Factor: an eliminated Newton system, for any right-hand side."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from gnewt._errors import StepError, explain_error, user_line
from gnewt._typing import PyTree
from gnewt.graph import Certificate, Plan
from gnewt.kkt import Elimination, EliminationStatus, LocalModels
from gnewt.newton import rules, uncertainty
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
from gnewt.newton.options import check_choice, check_shift
from gnewt.newton.policy import Policy, make_policy
from gnewt.newton.sides import ravel_sides, unravel_sides
from gnewt.newton.statuses import status_of
from gnewt.newton.system import System

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_REFINEMENTS, _ENOUGH, _PAYS = 3, 4, 0.5
"""Refinements at most; the relative residual, in roundings, that needs none; the share of the residual that a
refinement must bring it below, or it is not kept and no other is tried."""
_SHOWN = 6
"""Names of vertices in a message."""


class Slogdet(NamedTuple):
    """What `Factor.slogdet` returns."""

    sign: Array
    logabsdet: Array


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
        if self.is_traced:
            return rules.log_determinant(self.system, self.place, self.held)
        return as_real(self.numbers.logdet)

    def slogdet(self) -> Slogdet:
        """Return (sign, log|det(H + μI)|), as `jnp.linalg.slogdet` does: (0, -inf) if singular."""
        counts, size = jnp.asarray(self.numbers.inertia), jnp.asarray(self.logdet())
        sign = jnp.where(counts[..., 1] % 2 == 0, 1, -1) * (counts[..., 2] == 0)
        return Slogdet(sign.astype(size.dtype), size)

    @property
    def place(self) -> rules.Place:
        """What derivatives are taken with respect to."""
        return rules.Place(
            self.point.x, self.point.data, jnp.asarray(self.shift, self.system.structure.dtype)
        )

    @property
    def held(self) -> rules.Held:
        """What the elimination left, for derivative rules."""
        return rules.Held(self.models, self.numbers)

    def null_vertices(self) -> tuple[str, ...]:
        """Name the vertices that the null pivots touch: where curvature is missing. Empty if nonsingular."""
        return null_names(self.system, self.numbers.null)

    @property
    def value(self) -> Array:
        return rules.value(self.system, self.place, self.models) if self.is_traced else self.models.value

    @cached_property
    def gradient(self) -> PyTree:
        """∂f/∂x, from the reverse sweep."""
        return self.system.structure.unravel(self.flat_gradient)

    @property
    def flat_gradient(self) -> Array | np.ndarray:
        if self.is_traced:
            return rules.gradient(self.system, self.place, self.models)
        return np.asarray(self.models.duals)[: self.system.structure.num_inputs]  # JAX would compile a slice

    @property
    def _raw_gradient(self) -> Array:
        return self.models.duals[: self.system.structure.num_inputs]

    @cached_property
    def is_traced(self) -> bool:
        """Whether numbers are known only when a program runs, or carry derivatives: inside jit, vmap or grad."""
        own = isinstance(self.numbers.status, Tracer) or isinstance(self.shift, Tracer)
        return own or self.point.is_traced

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
        self.refuse_singular("solve")
        return unravel_sides(structure, self.solve_flat(np.asarray(flat))[0])

    def step(self) -> PyTree:
        """Return the Newton step -(H + μI)⁻¹ g."""
        if self.is_traced:
            return self.system.structure.unravel(self.flat_traced_step)
        self.refuse_singular("take a step")
        return self.system.structure.unravel(self.flat_step[0])

    @property
    def residual(self) -> Real:
        """‖(H + μI)·δ + g‖ / ‖g‖ of the Newton step δ, from an independent Hessian-vector product."""
        if not self.is_traced:
            return self.flat_step[1]
        gradient, shift = self._raw_gradient, rules.still(self.shift)
        left = self.system.product(self.point.still, self.raw_step) + shift * self.raw_step + gradient
        largest = jnp.max(jnp.abs(gradient), initial=0.0)
        unit = jnp.where(largest > 0, largest, 1.0)  # squares of tiny numbers vanish
        size = jnp.linalg.norm(gradient / unit)
        found = jnp.linalg.norm(left / unit) / jnp.where(size > 0, size, 1.0)
        return rules.without_derivative("residual", rules.OTHERS, self.place, found)

    @cached_property
    def flat_step(self) -> tuple[np.ndarray, float]:
        return self.solve_flat(-np.asarray(self.flat_gradient), self.raw_step)

    @property
    def flat_traced_step(self) -> Array:
        """The step inside jit: NaN where there is none."""
        good = (self.numbers.status == EliminationStatus.OK) & jnp.isfinite(self.models.value)
        raw = rules.newton_direction(self.system, self.place, self.held, self.raw_step)
        return jnp.where(good, raw, jnp.nan)

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
        columns = b.reshape(b.shape[0], -1)
        return rules.solution(self.system, self.place, self.held, columns).reshape(b.shape)

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

    # Other matrices

    def __matmul__(self, v: PyTree) -> PyTree:
        """Return (H + μI)·v for a pytree v like the inputs, or for many, as in `solve`."""
        self._refuse_batch("__matmul__(v)")
        structure = self.system.structure
        flat = ravel_sides(structure, v)
        columns = jnp.asarray(flat).reshape(flat.shape[0], -1)
        done = self.system.products(self.point, columns) + self.shift * columns
        return unravel_sides(
            structure, (done if isinstance(done, Tracer) else np.asarray(done)).reshape(flat.shape)
        )

    def shifted(self, shift: RealLike) -> Factor:
        """Return the factor of H + shift·I: a new elimination of the same H, whatever the shift of this one is."""
        self._refuse_batch("shifted(mu)")
        models, shift = rules.still(self.models), check_shift(shift)
        raw, numbers = self.system.factor_solve(models, rules.still(shift), -jnp.asarray(self._raw_gradient))
        return dataclasses.replace(self, numbers=numbers, shift=shift, raw_step=raw)

    # Probability: N(0, (H + μI)⁻¹), as in a Laplace approximation

    def marginal_variances(self) -> PyTree:
        """Return the diagonal of (H + μI)⁻¹, by one selected inversion along the tree: about the cost of an elimination.

        Where H + μI is not positive definite there is no such distribution: NaN, and a `CurvatureWarning` (not inside jit).
        """
        self._refuse_batch("marginal_variances()")
        return uncertainty.input_variances(self)

    def output_variances(self) -> PyTree:
        """Return the variances of the auxiliary data, in its form, by the same selected inversion.

        What is named there, such as the states along a trajectory, must be slots: factorize with `keep=True`.
        """
        self._refuse_batch("output_variances()")
        return uncertainty.output_variances(self)

    def covariance(self, of: object = None, to: object = None) -> Array:
        """Return Cov(of, to), [*shape of the first, *shape of the second]; exact for any nonsingular H.

        Args:
            of: the name of an input or of an auxiliary entry, a function of the inputs (linearised here), or an integer
                array of slots; all inputs unless given.
            to: the same, for the columns; `of` unless given. The cost is a solve for each of its numbers.
        """
        self._refuse_batch("covariance(...)")
        return uncertainty.covariance(self, of, to)

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> PyTree:
        """Draw from N(0, (H + μI)⁻¹): leaves have the axes `shape` in front. NaN inside jit where H + μI is not ≻ 0."""
        self._refuse_batch("sample(key)")
        return uncertainty.sample(self, key, tuple(shape))

    def plot(self, of: str = "inputs", deviations: float = 2.0) -> Figure:
        """Draw marginal bands, mean ± deviations · std, of N(x, (H + μI)⁻¹). Needs matplotlib (`gnewt[viz]`).

        Args:
            of: `"inputs"`, or `"outputs"`: the auxiliary data, such as the states along a trajectory (see `output_variances`).
            deviations: half the width of a band, in standard deviations.
        """
        from gnewt.newton.picture import draw_bands  # drawing is optional

        self._refuse_batch("plot()")
        return draw_bands(self, check_choice("of", of, ("inputs", "outputs")), deviations)

    def refuse_singular(self, what: str) -> None:
        """Raise StepError where H + μI is singular."""
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
