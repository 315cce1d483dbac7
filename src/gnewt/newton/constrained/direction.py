"""The direction of one round: coefficients by mode, inertia correction, and the choice of μ."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.kkt import SINGULAR
from gnewt.newton.arithmetic import Array, where, while_loop
from gnewt.newton.constrained.barrier import Barrier, Step, Weights
from gnewt.newton.constrained.model import is_right
from gnewt.newton.constrained.modes import Mode, State
from gnewt.newton.statuses import Status

NEARLY_NOTHING = 1e-8
"""Weight of the objective in restoration: zero to the digits that count, and the graph's derivatives stay f + yᵀc."""
PENALTY = 1e3
"""ρ of restoration, where the violation is at most 1."""
_FIRST, _LEAST, _MOST = 1e-4, 1e-20, 1e20
"""δ_w: the first, the least, and where to give up."""
_GROWTH, _FIRST_GROWTH, _FALL = 8.0, 100.0, 3.0
_DEGENERATE = 1e-8
"""δ_c in units of μ^¼."""
_WILD = -2 / 3
"""Power of the machine's precision beyond which steps of multipliers mean a singular matrix."""
_LS_ROWS = 1e-10
"""D of the least-squares multipliers: redundant rows then share their multiplier."""
_SHARES = 10.0 ** np.array(
    [-6, -5, -4, -3.25, -2.5, -2, -1.6, -1.3, -1, -0.75, -0.5, -0.3, -0.15, 0, 0.3, 0.7, 1.2, 2]
)
"""Candidates for μ, in units of the mean complementarity."""


class Tried(NamedTuple):
    """One factorisation with the right inertia, or the last that was tried."""

    step: Step
    """Two columns: μ = 0, and per unit of μ."""
    delta: Array
    rows: Array
    """δ_c"""
    is_right: Array
    tries: Array
    singular: Array


def penalty(theta_inf: Array) -> Array:
    """ρ of restoration: multipliers ρ·r_c stay moderate."""
    xp = _space(theta_inf)
    return PENALTY / xp.maximum(1.0, theta_inf)


def weights_of(b: Barrier, st: State, delta_c: Array) -> Weights:
    """Coefficients of the matrix, by mode."""
    xp = _space(st.at.w)
    restores = st.mode == Mode.RESTORE
    rho = penalty(st.anchor.theta)
    ones = xp.ones_like(st.at.c)
    rows = xp.where(restores, 1 / rho, xp.where(st.mode == Mode.MULTIPLIERS, _LS_ROWS, delta_c)) * ones
    close = xp.minimum(1.0, 1 / xp.maximum(xp.abs(st.anchor.w), 1e-300))
    proximal = xp.where(restores, xp.sqrt(st.schedule.mu) * close**2, 0.0)
    one = xp.ones((), st.at.w.dtype)
    return Weights(xp.where(restores, NEARLY_NOTHING * one, one), rows, proximal)


def columns(b: Barrier, st: State, weights: Weights, residual: Array) -> tuple[Array, Array]:
    """Right-hand sides: for μ = 0, and per unit of μ. [n + m_I, 2] and [m, 2]."""
    xp = _space(st.at.w)
    gradient = b.join(st.gradient, b.on_slacks(st.dual.y))
    gradient = gradient + weights.proximal * (st.at.w - st.anchor.w)
    fits = st.mode == Mode.MULTIPLIERS
    gradient = xp.where(fits, gradient - st.dual.lower + st.dual.upper, gradient)
    # In restoration y = ρ·r_c solves the rows; for multipliers no row moves.
    # Gaps of a lifted graph close in restoration, too.
    gaps = np.arange(len(residual)) >= b.num_rows
    moves = (st.mode == Mode.NORMAL) | ((st.mode == Mode.RESTORE) & gaps)
    residual = xp.where(moves, residual, 0.0)
    centre = xp.where(fits, 0.0, b.centering(st.at.w))
    return xp.stack([gradient, centre], 1), xp.stack([residual, 0 * residual], 1)


def solve_with(b: Barrier, st: State, delta: Array, delta_c: Array, residual: Array) -> tuple[Step, Any]:
    """One factorisation: two columns of steps."""
    xp = _space(st.at.w)
    weights = weights_of(b, st, delta_c)
    gradient, right = columns(b, st, weights, residual)
    fits = st.mode == Mode.MULTIPLIERS
    models = st.models
    if isinstance(st.mode, Tracer) or fits:
        models = where(fits, b.model.bare_sources(models), models)
    # Multipliers: the matrix is the identity in w.
    dual = st.dual._replace(
        lower=xp.where(fits, 0.0, st.dual.lower), upper=xp.where(fits, 0.0, st.dual.upper)
    )
    return b.steps(st.at, models, dual, weights, gradient, right, xp.where(fits, 1.0, delta))


def find_direction(b: Barrier, st: State) -> Tried:
    """Factorise with growing perturbations until the inertia is right."""
    xp = _space(st.at.w)
    n, m, k = b.sizes
    residual = b.residual(st.at)
    zero = st.schedule.mu * 0
    mu = st.schedule.mu
    most = np.finfo(np.result_type(st.at.w.dtype)).eps ** _WILD

    def attempt(t: Tried) -> Tried:
        # Under vmap lanes that have ended go along; a shift of NaN asks for no elimination.
        wanted = goes_on(t) & (st.code == Status.RUNNING)
        asked = xp.where(wanted, t.delta, np.nan) if xp is jnp else t.delta
        step, found = solve_with(b, st, asked, t.rows, residual)
        finite = xp.all(xp.isfinite(step.w)) & xp.all(xp.isfinite(step.y))
        # Multipliers that are not finite are dropped; no shift would make them so.
        right = (is_right(b.model, found) & finite) | (st.mode == Mode.MULTIPLIERS)
        # Rows that depend on each other, which no δ_w would part: eigenvalues that are zero or missing, or multipliers
        # that are nothing but the reciprocal of rounding.
        wild = xp.max(xp.abs(step.y[: b.num_rows]), initial=0.0) > most
        drowned = ((found.status == SINGULAR) | (found.inertia[1] < m) | wild) & (t.rows == 0) & (m > 0)
        right = (right & ~drowned) | (st.mode == Mode.MULTIPLIERS)
        first = xp.where(st.delta > 0, xp.maximum(st.delta / _FALL, _LEAST), _FIRST)
        larger = xp.where(st.delta > 0, _GROWTH * t.delta, _FIRST_GROWTH * t.delta)
        grown = xp.where(t.delta == 0, first, larger)
        delta = xp.where(right, t.delta, xp.where(drowned, t.delta, grown))
        rows = xp.where(right, t.rows, xp.where(drowned, _DEGENERATE * mu**0.25, t.rows))
        return Tried(step, delta, rows, right, t.tries + 1, drowned)

    def goes_on(t: Tried) -> Array:
        return ~t.is_right & (t.tries < 64) & (t.delta <= _MOST)

    more = b.model.num_lifted
    empty = xp.zeros((n + k + more, 2), st.at.w.dtype), xp.zeros((m + k + more, 2), st.at.w.dtype)
    no = st.mode < 0
    none = Step(empty[0], empty[1], empty[0], empty[0], empty[1])
    begin = Tried(none, zero, zero, no, st.counts.step * 0, no)
    return while_loop(goes_on, attempt, begin)


def combine(step: Step, mu: Array) -> Step:
    """The step for one μ: base + μ·centering."""
    return Step(*(part[:, 0] + mu * part[:, 1] for part in step))


def choose_mu(b: Barrier, st: State, step: Step, tau: Array, least: Array, most: Array) -> Array:
    """The μ whose step promises the smallest linearised error (the quality function)."""
    xp = _space(st.at.w)
    box = b.box
    low, up = b.gaps(st.at.w)
    count, mean = xp.maximum(b.num_limits, 1), b.mean_product(st.at.w, st.dual)
    dual_error = xp.sum(b.stationarity(st.gradient, st.dual) ** 2) / max(len(st.at.w), 1)
    primal_error = xp.sum(b.residual(st.at) ** 2) / max(len(st.at.c), 1)

    # All candidates at once: a row each.
    mu = (xp.asarray(_SHARES, st.at.w.dtype) * mean)[:, None]
    one = b.with_bounds(st.at, st.dual, Step(*(p[:, 0] + mu * p[:, 1] for p in step)), mu)
    a_p, a_d = b.longest(st.at.w, one.w, tau)[:, None], b.longest_dual(st.dual, one, tau)[:, None]
    after_low = xp.where(box.has_lower, (low + a_p * one.w) * (st.dual.lower + a_d * one.lower), 0.0)
    after_up = xp.where(box.has_upper, (up - a_p * one.w) * (st.dual.upper + a_d * one.upper), 0.0)
    comp = (xp.sum(after_low**2, -1) + xp.sum(after_up**2, -1)) / count
    found = (1 - a_d[:, 0]) ** 2 * dual_error + (1 - a_p[:, 0]) ** 2 * primal_error + comp
    best = xp.argmin(xp.where(xp.isfinite(found), found, np.inf))
    return xp.clip(mu[:, 0][best], least, most)


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np
