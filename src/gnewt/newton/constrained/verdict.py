"""What a round has led to: derivatives at the new point, and whether the run goes on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array, where
from gnewt.newton.constrained.barrier import Barrier, Dual, Primal
from gnewt.newton.constrained.direction import NEARLY_NOTHING, Tried
from gnewt.newton.constrained.globalize import Filter, reset_filter
from gnewt.newton.constrained.modes import Anchor, Best, Counts, Mode, Record, Schedule, State
from gnewt.newton.constrained.search import Trial
from gnewt.newton.statuses import Status

SOLVED = 10.0
"""A barrier problem is solved where its error is at most so many μ."""
MU_SHARE = 0.2
_SOFT_SHARE = 1 - 1e-4
_ENOUGH, _ENOUGH_ROUNDS = 1e-6, 15
"""An error that is accepted after so many rounds without a better one, or where rounding lets no step through."""
_BETTER = 0.5
"""Share of the least error so far that counts as progress."""
_FEASIBLE = 1e-6
"""Violation, in the user's scale, that a solution may have."""
_DIVERGED = 1e16
"""Size of an iterate, or of -σf, of a problem without a minimum."""
_CLEAR = 1e-4
"""Violation that is no rounding where restoration comes to rest."""
_STATIONARY = 1e-6
"""Projected gradient of the violation, in units of its multipliers, that counts as zero."""


class Settings(NamedTuple):
    tol: Array
    max_steps: Array
    mu_first: Array
    adaptive: Array


class New(NamedTuple):
    """Where the next derivatives are taken, and with which multipliers."""

    at: Primal
    dual: Dual
    mode: Array
    soft: Array
    """Whether the point must still prove itself."""
    anchor: Anchor
    filter: Filter
    failed: Array
    """No step was found where one was looked for."""
    tiny: Array
    rests: Array
    """Whether restoration has come to rest."""
    schedule: Schedule


def least_mu(settings: Settings) -> Array:
    """The μ whose barrier problem, solved, has an error within the tolerance."""
    return settings.tol / (SOLVED + 1)


def overall(b: Barrier, st: State, mu: Array) -> Array:
    """The largest scaled error of the conditions for a μ."""
    xp = _space(st.at.w)
    dual, primal, comp = b.errors(st.at, st.gradient, st.dual, mu)
    return xp.maximum(dual, xp.maximum(primal, comp))


def judge_round(
    b: Barrier, settings: Settings, old: State, new: New, tried: Tried, trial: Trial, dual_length: Array
) -> State:
    """Take derivatives at the new point, and see where the run stands."""
    xp = _space(old.at.w)
    one = xp.ones((), old.at.w.dtype)
    weight = xp.where(new.mode == Mode.RESTORE, NEARLY_NOTHING * one, one)
    models, gradient = b.linearize(new.at, new.dual.y, weight)
    mu = old.schedule.mu
    st = old._replace(at=new.at, dual=new.dual, models=models, gradient=gradient, mode=new.mode)
    # A soft step must bring the barrier problem's conditions closer; else restoration begins where the run was.
    rejected = new.soft & ~(overall(b, st, mu) <= _SOFT_SHARE * overall(b, old, mu))
    rejected = rejected | ~(xp.all(xp.isfinite(gradient)) & xp.isfinite(new.at.f))
    failed = new.failed | rejected
    lost = failed & (old.mode == Mode.NORMAL)
    # Where the violation is rounding, no restoration can help: a smaller μ may. The same where steps are rounding.
    violation = xp.max(xp.abs(b.residual(old.at)), initial=0.0)
    hopeless = lost & (violation <= xp.maximum(1e-2 * settings.tol, _noise(old.at)))
    ends = hopeless | new.tiny
    lowers = ends & (mu > least_mu(settings))
    lowered = xp.maximum(least_mu(settings), MU_SHARE * mu)
    schedule = old.schedule._replace(
        mu=xp.where(lowers, lowered, mu), is_free=old.schedule.is_free & ~lost & ~lowers
    )
    st = where(failed, old, st)
    mode = xp.where(lost & ~hopeless, int(Mode.ENTER), st.mode)
    c = old.counts
    counts = Counts(
        c.step + (old.mode <= Mode.RESTORE),
        c.factorizations + tried.tries,
        c.evaluations + trial.tries,
        c.gradients + 1,
        xp.where(new.soft & ~rejected, c.soft + 1, 0),
        xp.where(new.tiny & ~lowers, c.tiny + 1, 0),
    )
    dual, primal, _ = b.errors(old.at, old.gradient, old.dual, mu)
    record = Record(
        old.at.f / b.scale.f, primal, dual, mu, tried.delta, trial.alpha * ~failed, dual_length, old.mode
    )
    # Another mode is another matrix, and begins without δ_w.
    mode = mode.astype(np.int32)
    delta = xp.where(tried.delta > 0, tried.delta, old.delta)
    st = st._replace(
        schedule=schedule,
        filter=where(lowers, reset_filter(old.filter), where(failed, old.filter, new.filter)),
        delta=xp.where(mode == old.mode, delta, 0.0),
        mode=mode,
        anchor=where(failed, old.anchor, new.anchor),
        counts=counts,
        record=record,
    )
    return _ending(b, settings, st, failed | new.rests, hopeless & ~lowers, tried.is_right)


def _noise(at: Primal) -> Array:
    """Rounding of the rows."""
    xp = _space(at.w)
    return 10 * np.finfo(np.result_type(at.w.dtype)).eps * xp.max(xp.abs(at.c), initial=0.0)


def _ending(b: Barrier, settings: Settings, st: State, failed: Array, stuck: Array, solvable: Array) -> State:
    """Whether the run ends here, and why."""
    xp = _space(st.at.w)
    total = overall(b, st, st.schedule.mu * 0)
    plain = xp.max(xp.abs(b.residual(st.at) / b.scale.rows), initial=0.0)
    judged = (st.mode == Mode.NORMAL) | (st.mode == Mode.ENTER)
    feasible = plain <= xp.maximum(settings.tol, _FEASIBLE)
    solved = judged & (total <= settings.tol) & feasible
    restores = st.mode == Mode.RESTORE
    best = _better(st, xp.where(judged & feasible, total, np.inf))
    infeasible = restores & (plain > _FEASIBLE) & (st.anchor.rounds > 2)
    infeasible = infeasible & (_is_stationary(b, st) | (failed & (plain > _CLEAR)))
    size = xp.max(xp.abs(st.at.w), initial=0.0)
    unbounded = judged & (xp.isinf(size) | (size > _DIVERGED) | (st.at.f < -_DIVERGED))
    unbounded = unbounded & (plain <= _FEASIBLE * xp.maximum(1.0, size))
    good = best.total <= xp.maximum(settings.tol, _ENOUGH)
    ends = stuck | (st.counts.tiny >= 2) | (good & (best.since >= _ENOUGH_ROUNDS))
    code = xp.where(st.counts.step >= settings.max_steps, int(Status.MAX_STEPS), int(Status.RUNNING))
    code = xp.where(restores & failed, int(Status.RESTORATION_FAILED), code)
    code = xp.where(infeasible, int(Status.INFEASIBLE), code)
    code = xp.where(ends, int(Status.NO_DECREASE), code)
    code = xp.where(~solvable & (st.mode == Mode.NORMAL), int(Status.SINGULAR), code)
    # Whatever ends a run, a point that was good enough is what it has found.
    falls_back = (code != Status.RUNNING) & good & ~solved
    st = where(falls_back, st._replace(at=best.at, dual=best.dual, gradient=best.gradient), st)
    code = xp.where(falls_back, int(Status.STALLED), code)
    code = xp.where(unbounded, int(Status.UNBOUNDED), code)
    code = xp.where(solved, int(Status.CONVERGED), code)
    return st._replace(best=best, code=code.astype(np.int32))


def _better(st: State, total: Array) -> Best:
    """Remember the point with the least error."""
    old = st.best
    since = (old.since + 1) * (total > _BETTER * old.total)
    newest = Best(st.at, st.dual, st.gradient, total, since)
    return where(total < old.total, newest, old._replace(since=since))


def _is_stationary(b: Barrier, st: State) -> Array:
    """Whether the gradient ρJᵀr of the violation, projected onto the limits, vanishes."""
    xp = _space(st.at.w)
    push = b.join(st.gradient, b.on_slacks(st.dual.y))
    projected = xp.clip(st.at.w - push, b.box.lower, b.box.upper) - st.at.w
    scale = xp.maximum(1.0, xp.max(xp.abs(st.dual.y), initial=0.0))
    return xp.max(xp.abs(projected), initial=0.0) <= _STATIONARY * scale


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np
