"""The interior point: one function that advances a state by one round, for the host and for lax.while_loop alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array, where
from gnewt.newton.constrained.barrier import Barrier, Dual, Primal, Step
from gnewt.newton.constrained.direction import (
    NEARLY_NOTHING,
    choose_mu,
    combine,
    find_direction,
    penalty,
)
from gnewt.newton.constrained.globalize import Slope, acceptable, add_entry, empty_filter, reset_filter
from gnewt.newton.constrained.modes import Anchor, Counts, Mode, Record, Schedule, State
from gnewt.newton.constrained.search import Trial, search, slope_of, violation
from gnewt.newton.statuses import Status

_MU_FIRST = 0.1
_MU_SHARE, _MU_POWER, _SOLVED = 0.2, 1.5, 10.0
"""μ ← min(0.2μ, μ^1.5) where the error of the barrier problem is at most 10μ."""
_MU_MOST = 1e3
"""Largest μ of a free step, in units of the first mean complementarity."""
_MU_FIXED = 0.8
"""μ of the barrier problem that a free step which went wrong falls back to, in units of the mean complementarity."""
_PROGRESS = 0.9999
_FAR = 1e10
"""κ_Σ: bound multipliers stay within this factor of μ/(w - l)."""
_MULTIPLIER_MOST = 1e3
"""Least-squares multipliers beyond this are dropped."""
_SOFT_SHARE, _SOFT_MOST = 1 - 1e-4, 10
_RESTORED = 0.9
_ENOUGH, _ENOUGH_ROUNDS = 1e-6, 15
"""An error that is accepted after so many rounds without a better one, or where rounding lets no step through."""
_FEASIBLE = 1e-6
"""Violation, in the user's scale, that a solution may have."""
_DIVERGED = 1e20


class Settings(NamedTuple):
    tol: Array
    max_steps: Array
    mu_first: Array
    adaptive: Array


def begin(b: Barrier, w: Array, dual: Dual, settings: Settings) -> State:
    """The first state: derivatives without multipliers; the first round finds them."""
    xp = _space(w)
    at = b.at(w)
    one = xp.ones((), w.dtype)
    models, gradient = b.linearize(at, dual.y, one)
    theta = violation(b, at)
    zero, nan = one * 0, one * np.nan
    none = xp.zeros((), np.int32)
    bounded = xp.any(b.box.has_lower) | xp.any(b.box.has_upper)
    mu = xp.where(bounded, settings.mu_first, _least_mu(settings)) * one
    schedule = Schedule(mu, (settings.adaptive & bounded), xp.full(4, np.inf, w.dtype) * one)
    record = Record(zero, zero, zero, mu, zero, zero, zero, none)
    counts = Counts(none, none, none + 1, none + 1, none, none, none)
    anchor = Anchor(w, theta, zero, none)
    ok = xp.isfinite(at.f) & xp.all(xp.isfinite(at.c)) & xp.all(xp.isfinite(gradient))
    code = xp.where(ok, int(Status.RUNNING), int(Status.NONFINITE)).astype(np.int32)
    mode = (none + int(Mode.MULTIPLIERS)).astype(np.int32)
    del nan
    return State(
        at, dual, models, gradient, schedule, empty_filter(theta), zero, mode, anchor, counts, code, record
    )


def advance(b: Barrier, settings: Settings, st: State) -> State:
    """One round: choose μ and a direction, search along it, take derivatives, and see where the run stands."""
    xp = _space(st.at.w)
    st = _lower_mu(b, settings, st)
    tried = find_direction(b, st)
    steps_now = (st.mode == Mode.NORMAL) | (st.mode == Mode.RESTORE)
    tau = xp.maximum(0.99, 1 - st.schedule.mu)
    mu = st.schedule.mu
    if isinstance(st.schedule.is_free, Tracer) or st.schedule.is_free:
        chosen = choose_mu(b, st, tried.step, tau, _least_mu(settings), _MU_MOST * settings.mu_first)
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
    if not isinstance(st.mode, Tracer) and not steps_now:
        trial = Trial(st.at, step, mu * 0, here.theta, np.bool_(True), np.bool_(True), st.counts.step * 0)
        tiny = np.bool_(False)
    else:
        ended = st._replace(mode=xp.where(steps_now, st.mode, Mode.RESTORE))
        trial = search(b, ended, tried, mu, longest, step, here)
        size = xp.max(xp.abs(step.w) / (1 + xp.abs(st.at.w)), initial=0.0)
        tiny = (size <= 10 * np.finfo(np.result_type(st.at.w.dtype)).eps) & (st.mode == Mode.NORMAL)
    new = _settle(b, settings, st, tried, trial, step, longest, dual_length, here, tiny)
    return _judge(b, settings, st, new, tried, trial, dual_length)


def _least_mu(settings: Settings) -> Array:
    return settings.tol / (_SOLVED + 1)


def _lower_mu(b: Barrier, settings: Settings, st: State) -> State:
    """Lower μ where its barrier problem is solved; choose between free and fixed μ."""
    xp = _space(st.at.w)
    normal = st.mode == Mode.NORMAL
    s = st.schedule
    least = _least_mu(settings)
    error = _overall(b, st, s.mu)
    solved = error <= _SOLVED * s.mu
    # Free: as long as the error keeps falling.
    total = _overall(b, st, s.mu * 0)
    fine = total <= _PROGRESS * xp.max(s.best)
    low, up = b.gaps(st.at.w)
    count = xp.maximum(xp.sum(b.box.has_lower) + xp.sum(b.box.has_upper), 1)
    mean = (xp.sum(low * st.dual.lower) + xp.sum(up * st.dual.upper)) / count
    best = xp.concatenate([s.best[1:], total[None] if xp is jnp else np.asarray([total])])
    falls = normal & s.is_free & ~fine
    back = normal & ~s.is_free & solved & settings.adaptive & fine
    fixed_mu = xp.clip(_MU_FIXED * mean, least, 1e5)
    lowered = s.mu
    for _ in range(8):  # one solved problem may solve the next
        next_error = _overall(b, st, lowered)
        again = normal & ~s.is_free & (next_error <= _SOLVED * lowered) & (lowered > least)
        lowered = xp.where(
            again, xp.maximum(least, xp.minimum(_MU_SHARE * lowered, lowered**_MU_POWER)), lowered
        )
    mu = xp.where(falls, fixed_mu, lowered)
    changed = mu != s.mu
    schedule = Schedule(
        mu,
        xp.where(falls, False, s.is_free | back),
        xp.where(normal & ((s.is_free & fine) | back), best, s.best),
    )
    return st._replace(schedule=schedule, filter=where(changed, reset_filter(st.filter), st.filter))


def _overall(b: Barrier, st: State, mu: Array) -> Array:
    xp = _space(st.at.w)
    dual, primal, comp = b.errors(st.at, st.gradient, st.dual, mu)
    return xp.maximum(dual, xp.maximum(primal, comp))


class _New(NamedTuple):
    """Where the next derivatives are taken, and with which multipliers."""

    at: Primal
    dual: Dual
    mode: Array
    soft: Array
    """Whether the point must still prove itself."""
    anchor: Anchor
    filter: Any
    failed: Array
    """No step was found where one was looked for."""
    tiny: Array
    schedule: Schedule


def _settle(
    b: Barrier,
    settings: Settings,
    st: State,
    tried: Any,
    trial: Trial,
    step: Step,
    longest: Array,
    dual_length: Array,
    here: Slope,
    tiny: Array,
) -> _New:
    """Take what the search found, or try something else."""
    xp = _space(st.at.w)
    mu = st.schedule.mu
    normal, restores = st.mode == Mode.NORMAL, st.mode == Mode.RESTORE
    fits, enters = st.mode == Mode.MULTIPLIERS, st.mode == Mode.ENTER
    usable = tried.is_right
    accepted = (trial.accepted | tiny) & usable
    failed = (normal | restores) & ~accepted
    # Nothing acceptable along the direction: the whole step, if that brings the conditions closer (soft restoration).
    soft = normal & failed & usable & (st.counts.soft < _SOFT_MOST)
    whole = xp.minimum(longest, dual_length)
    point = where(soft, b.at(st.at.w + whole * step.w) if _any(soft) else trial.at, trial.at)
    point = where(
        tiny & usable & ~trial.accepted, b.at(st.at.w + longest * step.w) if _any(tiny) else point, point
    )
    moves = (accepted & (normal | restores)) | soft
    point = where(moves, point, st.at)
    length = xp.where(soft, whole, trial.alpha)
    used = where(soft, step, trial.step._replace(lower=step.lower, upper=step.upper))
    dual = _moved_dual(b, st, point, used, length, xp.where(soft, whole, dual_length), mu, moves)
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
    extend = (normal & accepted & ~trial.by_descent) | enters
    grown = add_entry(st.filter, here.theta, xp.where(enters, b.merit(st.at, mu), here.phi), extend)
    bounds = where(done, _reset_bounds(b, point, mu), dual)
    return _New(
        point,
        Dual(y, bounds.lower, bounds.upper),
        mode.astype(np.int32),
        soft,
        anchor._replace(rounds=anchor.rounds + restores),
        grown,
        failed & ~soft,
        tiny,
        st.schedule,
    )


def _any(flag: Array) -> Any:
    return isinstance(flag, Tracer) or bool(flag)


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


def _judge(
    b: Barrier, settings: Settings, old: State, new: _New, tried: Any, trial: Trial, dual_length: Array
) -> State:
    """Take derivatives at the new point, and see where the run stands."""
    xp = _space(old.at.w)
    weight = xp.where(new.mode == Mode.RESTORE, NEARLY_NOTHING, 1.0) * xp.ones((), old.at.w.dtype)
    models, gradient = b.linearize(new.at, new.dual.y, weight)
    mu = old.schedule.mu
    st = old._replace(at=new.at, dual=new.dual, models=models, gradient=gradient, mode=new.mode)
    # A soft step must bring the barrier problem's conditions closer; else restoration begins where the run was.
    rejected = new.soft & ~(_overall(b, st, mu) <= _SOFT_SHARE * _overall(b, old, mu))
    finite = xp.all(xp.isfinite(gradient)) & xp.isfinite(new.at.f)
    rejected = rejected | ~finite
    failed = new.failed | rejected
    theta_inf = xp.max(xp.abs(b.residual(old.at)), initial=0.0)
    lost = failed & (old.mode == Mode.NORMAL)
    hopeless = lost & (theta_inf <= 1e-2 * settings.tol)
    # Where the violation is rounding, no restoration can help: a smaller μ may.
    can_lower = mu > _least_mu(settings)
    lowered = xp.maximum(_least_mu(settings), _MU_SHARE * mu)
    schedule = old.schedule._replace(
        mu=xp.where(hopeless & can_lower, lowered, mu), is_free=old.schedule.is_free & ~lost
    )
    st = where(failed, old, st)
    mode = xp.where(lost & ~hopeless, int(Mode.ENTER), st.mode)
    c = old.counts
    step = c.step + (old.mode <= Mode.RESTORE)
    counts = Counts(
        step,
        c.factorizations + tried.tries,
        c.evaluations + trial.tries,
        c.gradients + 1,
        xp.where(new.soft & ~rejected, c.soft + 1, 0),
        xp.where(new.tiny, c.tiny + 1, 0),
        c.good,
    )
    filter_ = where(hopeless & can_lower, reset_filter(old.filter), where(failed, old.filter, new.filter))
    anchor = where(failed, old.anchor, new.anchor)
    dual, primal, _ = b.errors(old.at, old.gradient, old.dual, mu)
    record = Record(
        old.at.f / b.scale.f, primal, dual, mu, tried.delta, trial.alpha * ~new.failed, dual_length, old.mode
    )
    st = st._replace(
        schedule=schedule,
        filter=filter_,
        delta=xp.where(tried.delta > 0, tried.delta, old.delta),
        mode=mode.astype(np.int32),
        anchor=anchor,
        counts=counts,
        record=record,
    )
    return _ending(b, settings, st, failed, hopeless & ~can_lower, tried.is_right)


def _ending(b: Barrier, settings: Settings, st: State, failed: Array, stuck: Array, solvable: Array) -> State:
    """Whether the run ends here, and why."""
    xp = _space(st.at.w)
    dual, primal, comp = b.errors(st.at, st.gradient, st.dual, st.schedule.mu * 0)
    total = xp.maximum(dual, xp.maximum(primal, comp))
    plain = xp.max(xp.abs(b.residual(st.at) / b.scale.rows), initial=0.0)
    judged = (st.mode == Mode.NORMAL) | (st.mode == Mode.ENTER)
    solved = judged & (total <= settings.tol) & (plain <= xp.maximum(settings.tol, _FEASIBLE))
    good = judged & (total <= xp.maximum(settings.tol, _ENOUGH)) & (plain <= _FEASIBLE)
    rounds = xp.where(good, st.counts.good + 1, 0)
    restores = st.mode == Mode.RESTORE
    # A stationary point of the violation: the gradient ρJᵀr, projected onto the limits, vanishes.
    xw = b.sizes[0]
    push = b.join(st.gradient, b.on_slacks(st.dual.y))
    projected = xp.clip(st.at.w - push, b.box.lower, b.box.upper) - st.at.w
    scale = xp.maximum(1.0, xp.max(xp.abs(st.dual.y), initial=0.0))
    infeasible = restores & (xp.max(xp.abs(projected), initial=0.0) <= 1e-6 * scale) & (plain > 1e-6)
    infeasible = infeasible & (st.anchor.rounds > 2)
    far = xp.max(xp.abs(st.at.w[:xw]), initial=0.0) > _DIVERGED
    unbounded = judged & (far | (st.at.f < -_DIVERGED))
    code = xp.where(st.counts.step >= settings.max_steps, int(Status.MAX_STEPS), int(Status.RUNNING))
    code = xp.where(restores & failed, int(Status.RESTORATION_FAILED), code)
    code = xp.where(
        infeasible | (restores & failed & (plain > 1e-4) & (st.anchor.rounds > 2)),
        int(Status.INFEASIBLE),
        code,
    )
    ends = stuck | (st.counts.tiny >= 2) | (rounds >= _ENOUGH_ROUNDS)
    code = xp.where(ends, xp.where(good, int(Status.STALLED), int(Status.NO_DECREASE)), code)
    code = xp.where(unbounded, int(Status.UNBOUNDED), code)
    code = xp.where(~solvable & (st.mode == Mode.NORMAL), int(Status.SINGULAR), code)
    code = xp.where(solved, int(Status.CONVERGED), code)
    return st._replace(counts=st.counts._replace(good=rounds), code=code.astype(np.int32))


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np
