"""The line search of one round: trial points along a direction, with second-order corrections."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array, where, while_loop
from gnewt.newton.constrained.barrier import Barrier, Primal, Step
from gnewt.newton.constrained.direction import Tried, combine, penalty, solve_with, weights_of
from gnewt.newton.constrained.globalize import Slope, judge, shortest
from gnewt.newton.constrained.modes import Mode, State

_CORRECTIONS = 4
_CORRECTION_SHARE = 0.99
"""A second-order correction must bring θ below this share of the last one's."""
_ARMIJO = 1e-4
"""Of restoration."""
_SHORTEST = 1e-12
"""Of restoration."""


class Trial(NamedTuple):
    at: Primal
    step: Step
    alpha: Array
    theta: Array
    accepted: Array
    by_descent: Array
    tries: Array


def violation(b: Barrier, at: Primal) -> Array:
    """θ = ‖r_c‖₁."""
    xp = _space(at.w)
    return xp.sum(xp.abs(b.residual(at)))


def gap_weight(b: Barrier, st: State, step: Step) -> Array:
    """What a gap of a lifted graph costs in restoration: more than its multipliers, so that closing it is descent."""
    xp = _space(st.at.w)
    count = b.num_rows
    return 2 * xp.max(xp.abs(st.dual.y[count:]) + xp.abs(step.y[count:]), initial=0.0)


def merit_of(b: Barrier, st: State, at: Primal, mu: Array, gap: Array) -> Array:
    """What restoration lowers: violation, distance from where it began, barrier, and gaps at a price each."""
    xp = _space(at.w)
    residual, gaps = b.residual(at)[: b.num_rows], b.residual(at)[b.num_rows :]
    prox = weights_of(b, st, mu * 0).proximal
    bare = at._replace(f=at.f * 0)
    return (
        0.5 * penalty(st.anchor.theta) * xp.sum(residual**2)
        + 0.5 * xp.sum(prox * (at.w - st.anchor.w) ** 2)
        + b.merit(bare, mu)
        + gap * xp.sum(xp.abs(gaps))
    )


def slope_of(b: Barrier, st: State, step: Step, mu: Array) -> Slope:
    """θ, φ and ∇φᵀd; in restoration φ is its merit."""
    xp = _space(st.at.w)
    count = b.num_rows
    restores = st.mode == Mode.RESTORE
    theta = violation(b, st.at)
    gap = gap_weight(b, st, step)
    phi = xp.where(restores, merit_of(b, st, st.at, mu, gap), b.merit(st.at, mu))
    # The gradient at hand contains Jᵀy: the rows' share is taken off again, but in restoration, where it is the slope.
    along = xp.sum(b.join(st.gradient, np.zeros(b.sizes[2], st.at.w.dtype)) * step.w)
    whole = along + mu * xp.sum(b.centering(st.at.w) * step.w)
    normal = whole - xp.sum(st.dual.y * step.rows)
    prox = weights_of(b, st, mu * 0).proximal
    n, m, k = b.sizes
    slack = -xp.sum(st.dual.y[m:count] * step.w[n : n + k])
    gaps = xp.abs(b.residual(st.at)[count:])
    closing = -xp.sum(st.dual.y[count:] * step.rows[count:]) - gap * xp.sum(gaps)
    restored = whole + slack + closing + xp.sum(prox * (st.at.w - st.anchor.w) * step.w)
    return Slope(theta, phi, xp.where(restores, restored, normal))


def search(b: Barrier, st: State, tried: Tried, mu: Array, longest: Array, step: Step, here: Slope) -> Trial:
    """Find an acceptable point along the direction; `accepted` is False where there is none."""
    xp = _space(st.at.w)
    restores = st.mode == Mode.RESTORE
    least = xp.where(restores, _SHORTEST, shortest(st.filter, here))
    gap = gap_weight(b, st, step)

    def look(step: Step, alpha: Array, measured: Array, tries: Array) -> Trial:
        at = b.at(st.at.w + alpha * step.w)
        theta = violation(b, at)
        phi = xp.where(restores, merit_of(b, st, at, mu, gap), b.merit(at, mu))
        verdict = judge(st.filter, here, measured, theta, phi)
        noise = 10 * np.finfo(np.result_type(st.at.w.dtype)).eps * xp.abs(here.phi)
        falls = xp.isfinite(phi) & (phi - here.phi <= _ARMIJO * alpha * here.descent + noise)
        accepted = xp.where(restores, falls, verdict.accepted)
        return Trial(at, step, alpha, theta, accepted, verdict.by_descent, tries)

    first = look(step, longest, longest, st.counts.step * 0 + 1)
    corrected = _corrected(b, st, tried, mu, longest, here, first, look)

    def shorten(t: Trial) -> Trial:
        return look(step, 0.5 * t.alpha, 0.5 * t.alpha, t.tries + 1)

    def goes_on(t: Trial) -> Array:
        return ~t.accepted & (0.5 * t.alpha > least)

    # A correction that failed leaves its step behind: shortening goes on with the first one.
    begin = where(corrected.accepted, corrected, first._replace(tries=corrected.tries))
    return while_loop(goes_on, shorten, begin)


class _Correction(NamedTuple):
    trial: Trial
    residual: Array
    theta: Array
    count: Array
    goes_on: Array


def _corrected(
    b: Barrier, st: State, tried: Tried, mu: Array, longest: Array, here: Slope, first: Trial, look: Any
) -> Trial:
    """Second-order corrections, where the full step has made the violation worse."""
    xp = _space(st.at.w)
    worse = xp.isfinite(first.theta) & (first.theta >= here.theta)
    wanted = ~first.accepted & worse & (st.mode == Mode.NORMAL) & (len(st.at.c) > 0)
    tau = xp.maximum(0.99, 1 - mu)

    def correct(c: _Correction) -> _Correction:
        residual = c.trial.alpha * c.residual + b.residual(c.trial.at)
        both, _ = solve_with(b, st, tried.delta, tried.rows, residual)
        step = combine(both, mu)
        alpha = b.longest(st.at.w, step.w, tau)
        trial = look(step, alpha, longest, c.trial.tries + 1)
        more = ~trial.accepted & xp.isfinite(trial.theta) & (trial.theta <= _CORRECTION_SHARE * c.theta)
        return _Correction(trial, residual, trial.theta, c.count + 1, more & (c.count + 1 < _CORRECTIONS))

    begin = _Correction(first, b.residual(st.at), first.theta, st.counts.step * 0, wanted)
    return while_loop(lambda c: c.goes_on, correct, begin).trial


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np
