"""The barrier problem of one iterate: residuals, errors, right-hand sides and steps, in scaled numbers.

    minimise  σf(x) - μΣlog(w - l) - μΣlog(u - w)     with w = (x, s),  d_E(c_E - t) = 0,  d_I c_I - s = 0

A slack s for the inequalities only. Where the graph is lifted, w ends with the nodes, the rows c with their gaps
Φ(x_pa) - x, and y with their multipliers λ: L = f + yᵀc + λᵀ(Φ - x). Multipliers y and bound multipliers z are those of the scaled problem; the graph knows
f + (d y/σ)ᵀc, so that scaling never touches its derivatives. Every function works on NumPy's and on traced numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.kkt import Elimination, LocalModels
from gnewt.newton.arithmetic import Array
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
    """(x, s), and the nodes of a lifted graph."""
    values: Values
    c: Array
    """Scaled constraints: (d_E(c_E - t), d_I c_I), and the gaps of a lifted graph."""
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

    @property
    def num_rows(self) -> int:
        """Equalities and inequalities; the rows behind them are gaps."""
        return self.sizes[1] + self.sizes[2]

    def join(self, gradient: Array, slacks: Array) -> Array:
        """Put numbers for the slacks between those for x and those for lifted nodes."""
        n = self.sizes[0]
        return _space(gradient).concatenate([gradient[:n], slacks, gradient[n:]])

    def on_slacks(self, y: Array) -> Array:
        """The gradient that multipliers give to the slacks: -y_I."""
        return -y[self.sizes[1] : self.num_rows]

    # Values

    def rows_of(self, values: Values) -> Array:
        """Scaled constraints at given values."""
        xp, a, d = _space(values.slots), self.model.augmented, self.scale.rows
        equal = values.slots[a.equalities] - self.box.target
        return d * xp.concatenate([equal, values.slots[a.inequalities], values.gaps])

    def at(self, w: Array) -> Primal:
        n, m, k = self.sizes
        if self.model.lift is None:
            values = self.model.evaluate(w[:n])
        else:
            values = self.model.evaluate(w[:n], w[n + k :])
            w = _space(values.slots).concatenate([w[: n + k], values.slots[n + m :]])
        return Primal(w, values, self.rows_of(values), self.scale.f * values.f)

    def residual(self, at: Primal) -> Array:
        """r_c = (c_E, c_I - s)."""
        xp = _space(at.c)
        n, m, k = self.sizes
        none = np.zeros(self.model.num_lifted, at.c.dtype)
        return at.c - xp.concatenate([np.zeros(m, at.c.dtype), at.w[n : n + k], none])

    def gaps(self, w: Array) -> tuple[Array, Array]:
        """Distances to the limits; 1 where there is none."""
        xp, b = _space(w), self.box
        return xp.where(b.has_lower, w - b.lower, 1.0), xp.where(b.has_upper, b.upper - w, 1.0)

    @property
    def num_limits(self) -> Array:
        """How many limits w has, as a number of its type: an integer would widen single precision."""
        xp, b = _space(self.box.lower), self.box
        return (xp.sum(b.has_lower) + xp.sum(b.has_upper)).astype(b.lower.dtype)

    def mean_product(self, w: Array, dual: Dual) -> Array:
        """The mean of the products of limits and their multipliers."""
        xp = _space(w)
        low, up = self.gaps(w)
        return (xp.sum(low * dual.lower) + xp.sum(up * dual.upper)) / xp.maximum(self.num_limits, 1)

    def damping(self) -> Array:
        """Gradient of the linear term for variables with one limit."""
        b = self.box
        dtype = b.lower.dtype
        low, up = (b.has_lower & ~b.has_upper).astype(dtype), (b.has_upper & ~b.has_lower).astype(dtype)
        return DAMPING * (low - up)

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
        lam = scaled[self.num_rows :]
        models = self.model.linearize(at.values, scaled[:m], scaled[m : self.num_rows], lam)
        xp = _space(at.w)
        duals = xp.asarray(models.duals)
        if self.model.lift is None:
            return models, sigma * duals[:n]
        nodes = xp.where(self.model.lift.is_slot, duals[n + m :] - lam, 0.0)
        return models, sigma * xp.concatenate([duals[:n], nodes])

    def stationarity(self, gradient: Array, dual: Dual) -> Array:
        """∇_w of the Lagrangian: zero at a solution."""
        return self.join(gradient, self.on_slacks(dual.y)) - dual.lower + dual.upper

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
        count_z = self.num_limits
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
            gradient: [n + m_I, k]: r_w, the gradient of what is minimised plus Jᵀy, in w; lifted nodes behind it.
            residual: [m, k]: r_c; gaps behind it.
            delta: δ_w.
        """
        xp = _space(at.w)
        n, m, k = self.sizes
        count = self.num_rows
        sigma, d = self.scale.f * weights.f, self.scale.rows[:count]
        diagonal = self.sigma(at.w, dual) + weights.proximal + delta
        soft = diagonal[n : n + k]  # of the slacks
        rows = weights.rows[:count] + xp.concatenate([np.zeros(m, at.c.dtype), 1 / soft])
        r_c = residual[:count] + xp.concatenate(
            [np.zeros((m, residual.shape[1]), at.c.dtype), gradient[n : n + k] / soft[:, None]]
        )
        sides = Sides(
            -gradient[:n] / sigma,
            -r_c[:m] / d[:m, None],
            -(d[m:] / (sigma * rows[m:]))[:, None] * r_c[m:],
            -gradient[n + k :] / sigma,
            -residual[count:],
        )
        whole = xp.concatenate(
            [diagonal[:n] / sigma, -rows[:m] * sigma / d[:m] ** 2, d[m:] ** 2 / (sigma * rows[m:])]
        )
        if self.model.lift is not None:
            nodes = xp.where(self.model.lift.is_slot, diagonal[n + k :] / sigma, 0.0)
            whole = xp.concatenate([whole, nodes])
        moves, found = self.model.solve(models, whole, sides)
        step = self._step(at, moves, gradient, r_c, rows, soft, sigma)
        if self.model.lift is None:
            return step, found
        grown = (xp.concatenate([step.w, moves.nodes]), xp.concatenate([step.y, sigma * moves.gaps]))
        none = grown[0] * 0
        return Step(*grown, none, none, xp.concatenate([step.rows, -residual[count:]])), found

    def _step(
        self, at: Primal, moves: Moves, gradient: Array, r_c: Array, rows: Array, soft: Array, sigma: Array
    ) -> Step:
        """Recover slacks and multipliers from the condensed solution."""
        xp = _space(at.w)
        n, m, k = self.sizes
        d = self.scale.rows[: self.num_rows]
        dy_equal = moves.equalities * (sigma / d[:m])[:, None]
        change = moves.inequalities * d[m:, None]
        dy_other = (change + r_c[m:]) / rows[m:, None]
        ds = (dy_other - gradient[n : n + k]) / soft[:, None]
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
