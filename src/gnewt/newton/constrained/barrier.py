"""The barrier problem of one iterate: residuals, errors, right-hand sides and steps, in scaled numbers.

    minimise  σf(x) - μΣlog(w - l) - μΣlog(u - w)     with w = (x, s),  d_E(c_E - t) = 0,  d_I c_I - s = 0

A slack s for the inequalities only. Multipliers y and bound multipliers z are those of the scaled problem; the graph knows
f + (d y/σ)ᵀc, so that scaling never touches its derivatives. Every function works on NumPy's and on traced numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._typing import Array
from gnewt.kkt import Elimination, LocalModels
from gnewt.newton.constrained.model import Model, Moves, Sides, Values

DAMPING = 1e-5
"""Weight of the linear term that keeps variables with one bound from drifting away (κ_d)."""
_LARGE = 100.0
"""Mean multiplier beyond which errors are divided (s_max)."""


class Box(NamedTuple):
    """Limits of w = (x, s), and of the equalities."""

    lower: Array
    upper: Array
    has_lower: Array
    has_upper: Array
    target: Array
    """Of the equalities, in the user's scale."""


class Scale(NamedTuple):
    f: Array
    """σ"""
    rows: Array
    """d, equalities first."""


class Primal(NamedTuple):
    """Where an iterate is."""

    w: Array
    """(x, s)"""
    values: Values
    c: Array
    """Scaled constraints: (d_E(c_E - t), d_I c_I)."""
    f: Array
    """σf"""


class Dual(NamedTuple):
    y: Array
    lower: Array
    upper: Array


class Step(NamedTuple):
    w: Array
    y: Array
    lower: Array
    upper: Array
    rows: Array
    """J·dx of all rows, scaled."""


class Weights(NamedTuple):
    """What distinguishes the barrier problem from restoration: coefficients of one matrix."""

    f: Array
    """Weight of the objective: 1, or next to nothing."""
    rows: Array
    """D of every row before slacks: δ_c, or 1/ρ."""
    proximal: Array
    """Diagonal on w: 0, or ζD_R²."""


@dataclasses.dataclass(frozen=True, eq=False)
class Barrier:
    """The problem of a run: model, limits, scaling."""

    model: Model
    box: Box
    scale: Scale

    @property
    def xp(self) -> Any:
        traced = any(isinstance(v, Tracer) for v in (*self.box, *self.scale))
        return jnp if traced else np

    @property
    def sizes(self) -> tuple[int, int, int]:
        a = self.model.augmented
        return a.size, a.num_equalities, a.num_inequalities

    # Values

    def rows_of(self, values: Values) -> Array:
        """Scaled constraints at given values."""
        xp, a, d = _space(values.slots), self.model.augmented, self.scale.rows
        equal = values.slots[a.equalities] - self.box.target
        return d * xp.concatenate([equal, values.slots[a.inequalities]])

    def at(self, w: Array) -> Primal:
        values = self.model.evaluate(w[: self.model.size])
        return Primal(w, values, self.rows_of(values), self.scale.f * values.f)

    def residual(self, at: Primal) -> Array:
        """r_c = (c_E, c_I - s)."""
        xp = _space(at.c)
        n, m, _ = self.sizes
        return at.c - xp.concatenate([np.zeros(m, at.c.dtype), at.w[n:]])

    def gaps(self, w: Array) -> tuple[Array, Array]:
        """Distances to the limits; 1 where there is none."""
        xp, b = _space(w), self.box
        return xp.where(b.has_lower, w - b.lower, 1.0), xp.where(b.has_upper, b.upper - w, 1.0)

    def damping(self) -> Array:
        """Gradient of the linear term for variables with one limit."""
        b = self.box
        return DAMPING * (1.0 * (b.has_lower & ~b.has_upper) - 1.0 * (b.has_upper & ~b.has_lower))

    def centering(self, w: Array) -> Array:
        """Gradient of the barrier term, per unit of μ."""
        xp, b = _space(w), self.box
        low, up = self.gaps(w)
        return xp.where(b.has_upper, 1 / up, 0.0) - xp.where(b.has_lower, 1 / low, 0.0) + self.damping()

    def merit(self, at: Primal, mu: Array) -> Array:
        """φ_μ"""
        xp, b = _space(at.w), self.box
        low, up = self.gaps(at.w)
        logs = xp.where(b.has_lower, xp.log(low), 0.0) + xp.where(b.has_upper, xp.log(up), 0.0)
        alone = xp.where(b.has_lower & ~b.has_upper, low, 0.0) + xp.where(b.has_upper & ~b.has_lower, up, 0.0)
        return at.f - mu * xp.sum(logs) + DAMPING * mu * xp.sum(alone)

    # Derivatives

    def linearize(self, at: Primal, y: Array, weight: Array) -> tuple[LocalModels, Array]:
        """Local models of f + yᵀc, and the gradient weight·σ∇f + Jᵀy."""
        n, m, _ = self.sizes
        sigma = self.scale.f * weight
        scaled = self.scale.rows * y / sigma
        models = self.model.linearize(at.values, scaled[:m], scaled[m:])
        xp = _space(at.w)
        gradient = sigma * xp.asarray(models.duals)[:n]
        return models, gradient

    def stationarity(self, gradient: Array, dual: Dual) -> Array:
        """∇_w of the Lagrangian: zero at a solution."""
        xp = _space(gradient)
        m = self.sizes[1]
        return xp.concatenate([gradient, -dual.y[m:]]) - dual.lower + dual.upper

    def errors(self, at: Primal, gradient: Array, dual: Dual, mu: Array) -> tuple[Array, Array, Array]:
        """Scaled errors of the barrier problem's conditions: dual, primal, complementarity."""
        xp, b = _space(at.w), self.box
        low, up = self.gaps(at.w)
        lone = self.damping() * mu
        stationary = _largest(xp, self.stationarity(gradient, dual) + lone)
        primal = _largest(xp, self.residual(at))
        product = (
            xp.where(b.has_lower, low * dual.lower - mu, 0.0),
            xp.where(b.has_upper, up * dual.upper - mu, 0.0),
        )
        comp = xp.maximum(_largest(xp, product[0]), _largest(xp, product[1]))
        size_z = xp.sum(xp.abs(dual.lower)) + xp.sum(xp.abs(dual.upper))
        count_z = xp.sum(b.has_lower) + xp.sum(b.has_upper)
        size_y = xp.sum(xp.abs(dual.y))
        s_d = xp.maximum(_LARGE, (size_y + size_z) / xp.maximum(len(dual.y) + count_z, 1)) / _LARGE
        s_c = xp.maximum(_LARGE, size_z / xp.maximum(count_z, 1)) / _LARGE
        return stationary / s_d, primal, comp / s_c

    def sigma(self, w: Array, dual: Dual) -> Array:
        """Σ = z_L/(w - l) + z_U/(u - w)."""
        low, up = self.gaps(w)
        return dual.lower / low + dual.upper / up

    # Steps

    def steps(
        self,
        at: Primal,
        models: LocalModels,
        dual: Dual,
        weights: Weights,
        gradient: Array,
        residual: Array,
        delta: Array,
    ) -> tuple[Step, Elimination]:
        """Solve the KKT system for columns of right-hand sides.

        Args:
            gradient: [n + m_I, k]: r_w, the gradient of what is minimised plus Jᵀy, in w.
            residual: [m, k]: r_c.
            delta: δ_w.
        """
        xp = _space(at.w)
        n, m, _ = self.sizes
        sigma, d = self.scale.f * weights.f, self.scale.rows
        diagonal = self.sigma(at.w, dual) + weights.proximal + delta
        soft = diagonal[n:]  # of the slacks
        rows = weights.rows + xp.concatenate([np.zeros(m, at.c.dtype), 1 / soft])
        r_c = residual + xp.concatenate(
            [np.zeros((m, residual.shape[1]), at.c.dtype), gradient[n:] / soft[:, None]]
        )
        sides = Sides(
            -gradient[:n] / sigma,
            -r_c[:m] / d[:m, None],
            -(d[m:] / (sigma * rows[m:]))[:, None] * r_c[m:],
        )
        whole = xp.concatenate(
            [diagonal[:n] / sigma, -rows[:m] * sigma / d[:m] ** 2, d[m:] ** 2 / (sigma * rows[m:])]
        )
        moves, found = self.model.solve(models, whole, sides)
        return self._step(at, moves, gradient, r_c, rows, soft, sigma), found

    def _step(
        self, at: Primal, moves: Moves, gradient: Array, r_c: Array, rows: Array, soft: Array, sigma: Array
    ) -> Step:
        """Recover slacks and multipliers from the condensed solution."""
        xp = _space(at.w)
        n, m, _ = self.sizes
        d = self.scale.rows
        dy_equal = moves.equalities * (sigma / d[:m])[:, None]
        change = moves.inequalities * d[m:, None]
        dy_other = (change + r_c[m:]) / rows[m:, None]
        ds = (dy_other - gradient[n:]) / soft[:, None]
        j_equal = rows[:m, None] * dy_equal - r_c[:m]
        w = xp.concatenate([moves.x, ds])
        none = w * 0
        return Step(w, xp.concatenate([dy_equal, dy_other]), none, none, xp.concatenate([j_equal, change]))

    def with_bounds(self, at: Primal, dual: Dual, step: Step, mu: Array) -> Step:
        """Complete one column by the steps of the bound multipliers."""
        xp, b = _space(at.w), self.box
        low, up = self.gaps(at.w)
        dl = xp.where(b.has_lower, mu / low - dual.lower - dual.lower / low * step.w, 0.0)
        du = xp.where(b.has_upper, mu / up - dual.upper + dual.upper / up * step.w, 0.0)
        return step._replace(lower=dl, upper=du)

    def longest(self, w: Array, step: Array, tau: Array) -> Array:
        """The fraction-to-the-boundary rule for w."""
        xp, b = _space(w), self.box
        low, up = self.gaps(w)
        down = xp.where(b.has_lower & (step < 0), tau * low / -xp.where(step < 0, step, -1.0), np.inf)
        over = xp.where(b.has_upper & (step > 0), tau * up / xp.where(step > 0, step, 1.0), np.inf)
        return xp.minimum(1.0, xp.minimum(_least(xp, down), _least(xp, over)))

    def longest_dual(self, dual: Dual, step: Step, tau: Array) -> Array:
        """The same rule for the bound multipliers."""
        xp = _space(dual.y) if not isinstance(step.w, Tracer) else jnp
        found = []
        for z, dz in ((dual.lower, step.lower), (dual.upper, step.upper)):
            falls = (dz < 0) & (z > 0)
            found.append(_least(xp, xp.where(falls, tau * z / -xp.where(dz < 0, dz, -1.0), np.inf)))
        return xp.minimum(1.0, xp.minimum(*found))


def _space(a: Array) -> Any:
    return jnp if isinstance(a, Tracer) else np


def _largest(xp: Any, a: Array) -> Array:
    return xp.max(xp.abs(a), initial=0.0)


def _least(xp: Any, a: Array) -> Array:
    return xp.min(a, axis=-1, initial=np.inf)
