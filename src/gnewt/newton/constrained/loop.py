"""The interior point: one function that advances a state by one round, for the host and for lax.while_loop alike."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array, where, while_loop
from gnewt.newton.constrained.barrier import Barrier, Dual, Primal, Step
from gnewt.newton.constrained.direction import (
    Tried,
    choose_mu,
    combine,
    find_direction,
    penalty,
)
from gnewt.newton.constrained.globalize import Slope, acceptable, add_entry, empty_filter, reset_filter
from gnewt.newton.constrained.modes import Anchor, Best, Counts, Mode, Record, Schedule, State
from gnewt.newton.constrained.search import Lengths, Trial, search, slope_of, violation
from gnewt.newton.constrained.verdict import MU_SHARE, SOLVED, New, Settings, judge_round, least_mu, overall
from gnewt.newton.statuses import Status

_MU_POWER = 1.5
"""μ ← min(0.2μ, μ^1.5) where the barrier problem is solved."""
_MU_MOST = 1e3
"""Largest μ of a free step, in units of the first mean complementarity."""
_MU_FIXED = 0.8
"""μ of the barrier problem that a free step which went wrong falls back to, in units of the mean complementarity."""
_PROGRESS = 0.9999
_FAR = 1e10
"""κ_Σ: bound multipliers stay within this factor of μ/(w - l)."""
_MULTIPLIER_MOST = 1e3
"""Least-squares multipliers beyond this are dropped."""
_MULTIPLIER_WILD = 1e6
"""Multipliers beyond this are fitted anew where rows depend on each other."""
_RESTORED = 0.9
_REST = 1e-7
"""Relative length of a step by which restoration has come to rest."""


def begin(b: Barrier, w: Array, dual: Dual, settings: Settings, goes_on: bool = False) -> State:
    """The first state: derivatives without multipliers, which the first round finds; or with those of an earlier run."""
    xp = _space(w)
    at = b.at(w)
    one = xp.ones((), w.dtype)
    models, gradient = b.linearize(at, dual.y, one)
    theta = violation(b, at)
    zero = one * 0
    none = xp.zeros((), np.int32)
    bounded = xp.any(b.box.has_lower) | xp.any(b.box.has_upper)
    mu = xp.where(bounded, settings.mu_first, least_mu(settings)) * one
    schedule = Schedule(mu, (settings.adaptive & bounded), xp.full(4, np.inf, w.dtype) * one)
    record = Record(zero, zero, zero, mu, zero, zero, zero, none)
    counts = Counts(none, none, none + 1, none + 1, none, none)
    best = Best(at, dual, gradient, one * np.inf, none)
    anchor = Anchor(w, theta, zero, none)
    ok = xp.isfinite(at.f) & xp.all(xp.isfinite(at.c)) & xp.all(xp.isfinite(gradient))
    code = xp.where(ok, int(Status.RUNNING), int(Status.NONFINITE)).astype(np.int32)
    mode = (none + int(Mode.NORMAL if goes_on else Mode.MULTIPLIERS)).astype(np.int32)
    return State(
        at,
        dual,
        models,
        gradient,
        schedule,
        empty_filter(theta),
        zero,
        mode,
        anchor,
        counts,
        best,
        code,
        record,
    )


def advance(b: Barrier, settings: Settings, st: State) -> State:
    """One round: choose μ and a direction, search along it, take derivatives, and see where the run stands."""
    xp = _space(st.at.w)
    st = _lower_mu(b, settings, st)
    tried = find_direction(b, st)
    tau = xp.maximum(0.99, 1 - st.schedule.mu)
    mu = st.schedule.mu
    if isinstance(st.schedule.is_free, Tracer) or st.schedule.is_free:
        chosen = choose_mu(b, st, tried.step, tau, least_mu(settings), _MU_MOST * settings.mu_first)
        mu = xp.where(st.schedule.is_free & (st.mode == Mode.NORMAL), chosen, mu)
        # Another μ is another barrier problem.
        st = st._replace(
            schedule=st.schedule._replace(mu=mu),
            filter=where(st.schedule.is_free & (st.mode == Mode.NORMAL), reset_filter(st.filter), st.filter),
        )
        tau = xp.maximum(0.99, 1 - mu)
    step = b.with_bounds(st.at, st.dual, combine(tried.step, mu), mu)
    longest = b.longest(st.at.w, step.w, tau)
    dual_length = b.longest_dual(st.dual, step, tau)
    here = slope_of(b, st, step, mu)
    size = xp.max(xp.abs(step.w) / (1 + xp.abs(st.at.w)), initial=0.0)
    tiny = (size <= 10 * np.finfo(np.result_type(st.at.w.dtype)).eps) & (st.mode == Mode.NORMAL)
    tiny = tiny & (here.theta <= 1e-4) & tried.is_right
    lengths = Lengths(longest, xp.minimum(longest, dual_length))
    trial = search(b, st, tried, mu, lengths, step, here, tiny)
    rests = (size <= _REST) & (st.mode == Mode.RESTORE) & (st.anchor.rounds > 2)
    new = _settle(b, st, tried, trial, step, dual_length, here, tiny, rests)
    return judge_round(b, settings, st, new, tried, trial, dual_length)


def _lower_mu(b: Barrier, settings: Settings, st: State) -> State:
    """Lower μ where its barrier problem is solved; choose between free and fixed μ."""
    xp = _space(st.at.w)
    normal = st.mode == Mode.NORMAL
    s = st.schedule
    least = least_mu(settings)
    error = overall(b, st, s.mu)
    solved = error <= SOLVED * s.mu
    # Free: as long as the error keeps falling.
    total = overall(b, st, s.mu * 0)
    fine = total <= _PROGRESS * xp.max(s.best)
    best = xp.concatenate([s.best[1:], total[None] if xp is jnp else np.asarray([total])])
    falls = normal & s.is_free & ~fine
    back = normal & ~s.is_free & solved & settings.adaptive & fine
    fixed_mu = xp.clip(_MU_FIXED * b.mean_product(st.at.w, st.dual), least, _MU_MOST)

    def goes_on(mu: Array) -> Array:  # one solved problem may solve the next
        return normal & ~s.is_free & (overall(b, st, mu) <= SOLVED * mu) & (mu > least)

    def lower(mu: Array) -> Array:
        return xp.maximum(least, xp.minimum(MU_SHARE * mu, mu**_MU_POWER))

    lowered = while_loop(goes_on, lower, s.mu)
    mu = xp.where(falls, fixed_mu, lowered)
    changed = mu != s.mu
    schedule = Schedule(
        mu,
        xp.where(falls, False, s.is_free | back),
        xp.where(normal & ((s.is_free & fine) | back), best, s.best),
    )
    return st._replace(schedule=schedule, filter=where(changed, reset_filter(st.filter), st.filter))


def _settle(
    b: Barrier,
    st: State,
    tried: Tried,
    trial: Trial,
    step: Step,
    dual_length: Array,
    here: Slope,
    tiny: Array,
    rests: Array,
) -> New:
    """Take what the search found, or try something else."""
    xp = _space(st.at.w)
    mu = st.schedule.mu
    normal, restores = st.mode == Mode.NORMAL, st.mode == Mode.RESTORE
    fits, enters = st.mode == Mode.MULTIPLIERS, st.mode == Mode.ENTER
    usable = tried.is_right
    accepted = trial.accepted & usable
    soft = normal & trial.is_soft & usable
    failed = (normal | restores) & ~accepted
    moves = (accepted & (normal | restores)) | soft
    point = where(moves, trial.at, st.at)
    length = trial.alpha
    used = trial.step._replace(lower=step.lower, upper=step.upper)
    dual = _moved_dual(b, st, point, used, length, xp.where(soft, trial.alpha, dual_length), mu, moves)
    # Least-squares multipliers.
    fitted = tried.step.y[:, 0]
    fitted = xp.where(usable & (xp.max(xp.abs(fitted), initial=0.0) <= _MULTIPLIER_MOST), fitted, 0.0)
    rho = penalty(xp.where(enters, xp.max(xp.abs(b.residual(st.at)), initial=0.0), st.anchor.theta))
    theta_inf = xp.max(xp.abs(b.residual(st.at)), initial=0.0)
    anchor = where(enters, Anchor(st.at.w, theta_inf, here.phi, st.anchor.rounds * 0), st.anchor)
    penalised = rho * b.residual(point)
    inside = enters | (restores & ~(failed))
    y = xp.where(fits, fitted, xp.where(inside, penalised, dual.y))
    # Multipliers of lifted nodes are carried; restoration begins without.
    carried = xp.where(fits, fitted, xp.where(enters, 0.0, dual.y))
    y = xp.where(np.arange(len(y)) < b.num_rows, y, carried)
    mode = xp.where(enters | restores, int(Mode.RESTORE), int(Mode.NORMAL))
    # Restoration ends where the violation has fallen and the filter takes the point.
    theta = violation(b, point)
    fallen = xp.max(xp.abs(b.residual(point)), initial=0.0) <= _RESTORED * st.anchor.theta
    done = restores & fallen & acceptable(st.filter, theta, b.merit(point, mu))
    mode = xp.where(done, int(Mode.MULTIPLIERS), mode)
    y = xp.where(done, 0.0, y)
    # Steps of multipliers on rows that depend on each other are the reciprocal of δ_c: they are fitted anew.
    wild = normal & moves & (tried.rows > 0) & (xp.max(xp.abs(y), initial=0.0) > _MULTIPLIER_WILD)
    wild = wild & (theta <= _RESTORED * here.theta)
    mode = xp.where(wild, int(Mode.MULTIPLIERS), mode)
    extend = (normal & accepted & ~trial.by_descent) | enters
    grown = add_entry(st.filter, here.theta, xp.where(enters, b.merit(st.at, mu), here.phi), extend)
    bounds = where(done, _reset_bounds(b, point, mu), dual)
    return New(
        point,
        Dual(y, bounds.lower, bounds.upper),
        mode.astype(np.int32),
        soft,
        anchor._replace(rounds=anchor.rounds + restores),
        grown,
        failed & ~soft,
        tiny,
        rests,
        st.schedule,
    )


def _moved_dual(
    b: Barrier,
    st: State,
    point: Primal,
    step: Step,
    length: Array,
    dual_length: Array,
    mu: Array,
    moves: Array,
) -> Dual:
    """Multipliers after a step; those of bounds stay near μ/(w - l)."""
    xp, box = _space(st.at.w), b.box
    low, up = b.gaps(point.w)

    def near(z: Array, gap: Array, has: Array) -> Array:
        return xp.where(has, xp.clip(z, mu / (_FAR * gap), _FAR * mu / gap), 0.0)

    new = Dual(
        st.dual.y + length * step.y,
        near(st.dual.lower + dual_length * step.lower, low, box.has_lower),
        near(st.dual.upper + dual_length * step.upper, up, box.has_upper),
    )
    return where(moves, new, st.dual)


def _reset_bounds(b: Barrier, point: Primal, mu: Array) -> Dual:
    """Bound multipliers for a point that restoration found."""
    xp, box = _space(point.w), b.box
    low, up = b.gaps(point.w)
    most = _MULTIPLIER_MOST
    return Dual(
        point.c * 0,
        xp.where(box.has_lower, xp.clip(mu / low, 1e-12, most), 0.0),
        xp.where(box.has_upper, xp.clip(mu / up, 1e-12, most), 0.0),
    )


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np
