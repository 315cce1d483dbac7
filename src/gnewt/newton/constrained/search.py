"""The line search of one round: trial points along a direction, with second-order corrections and a soft last resort."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array, while_loop
from gnewt.newton.constrained.barrier import Barrier, Primal, Step
from gnewt.newton.constrained.direction import Tried, combine, penalty, solve_with, weights_of
from gnewt.newton.constrained.globalize import Slope, judge, shortest
from gnewt.newton.constrained.modes import Mode, State

CORRECTIONS = 4
SOFT_MOST = 10
"""Steps of soft restoration in a row."""
_CORRECTION_SHARE = 0.99
"""A second-order correction must bring θ below this share of the last one's."""
_ARMIJO = 1e-4
"""Of restoration."""
_SHORTEST = 1e-12
"""Of restoration."""


class Stage(IntEnum):
    """What a trial is for."""

    FIRST = 0
    CORRECT = 1
    """A second-order correction."""
    SHORTEN = 2
    SOFT = 3
    """Soft restoration: the whole step, which the conditions must justify, not the filter."""
    ENDED = 4


class Lengths(NamedTuple):
    longest: Array
    soft: Array
    """The same for primal and dual variables."""


class Trial(NamedTuple):
    at: Primal
    step: Step
    alpha: Array
    theta: Array
    accepted: Array
    by_descent: Array
    is_soft: Array
    """Whether the point must still prove itself."""
    tries: Array
    stage: Array
    """What the next trial is for, and at which length."""
    next: Array
    residual: Array
    """Rows that the next correction shall bring to zero."""
    corrections: Array


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


def search(
    b: Barrier, st: State, tried: Tried, mu: Array, lengths: Lengths, step: Step, here: Slope, tiny: Array
) -> Trial:
    """Find an acceptable point along the direction; `accepted` is False where there is none.

    One loop whose rounds are a trial each, whatever it is for: then a program holds one copy of the objective, and
    one of the elimination that second-order corrections need.

    Args:
        lengths: the longest step, and the one for soft restoration.
        tiny: whether the step is rounding: then it is taken as it is.
    """
    xp = _space(st.at.w)
    restores = st.mode == Mode.RESTORE
    normal = st.mode == Mode.NORMAL
    least = xp.where(restores, _SHORTEST, shortest(st.filter, here))
    tau = xp.maximum(0.99, 1 - mu)
    can_correct = normal & (len(st.at.c) > 0)
    can_soften = normal & (st.counts.soft < SOFT_MOST)
    eps = np.finfo(np.result_type(st.at.w.dtype)).eps
    gap = gap_weight(b, st, step)

    def shortened(alpha: Array) -> tuple[Array, Array]:
        """What comes after a length that was not good enough."""
        again = 0.5 * alpha > least
        after = xp.where(can_soften, int(Stage.SOFT), int(Stage.ENDED))
        stage = xp.where(again, int(Stage.SHORTEN), after)
        return stage, xp.where(again, 0.5 * alpha, lengths.soft)

    def attempt(t: Trial) -> Trial:
        corrects, softens = t.stage == Stage.CORRECT, t.stage == Stage.SOFT
        used = _correction(b, st, tried, mu, t, corrects, step)
        alpha = xp.where(corrects, b.longest(st.at.w, used.w, tau), t.next)
        at = b.at(st.at.w + alpha * used.w)
        theta = violation(b, at)
        phi = xp.where(restores, merit_of(b, st, at, mu, gap), b.merit(at, mu))
        measured = xp.where(corrects, lengths.longest, alpha)
        verdict = judge(st.filter, here, measured, theta, phi)
        falls = phi - here.phi <= _ARMIJO * alpha * here.descent + 10 * eps * xp.abs(here.phi)
        good = xp.where(restores, xp.isfinite(phi) & falls, verdict.accepted)
        good = (good | (tiny & xp.isfinite(phi))) & ~softens
        # A full step that has made the violation worse is corrected; the others are shortened.
        worse = (t.stage == Stage.FIRST) & (theta >= here.theta) & can_correct
        better = corrects & (theta <= _CORRECTION_SHARE * t.theta) & (t.corrections + 1 < CORRECTIONS)
        stage, alpha_next = shortened(xp.where(corrects, lengths.longest, alpha))
        stage = xp.where((worse | better) & xp.isfinite(theta), int(Stage.CORRECT), stage)
        stage = xp.where(good | softens, int(Stage.ENDED), stage)
        rows = b.residual(at) + xp.where(corrects, alpha, lengths.longest) * t.residual
        return Trial(
            at=at,
            step=used,
            alpha=alpha,
            theta=theta,
            accepted=good,
            by_descent=verdict.by_descent,
            is_soft=softens & xp.isfinite(phi),
            tries=t.tries + 1,
            stage=stage.astype(np.int32),
            next=alpha_next,
            residual=xp.where((t.stage == Stage.FIRST) | corrects, rows, t.residual),
            corrections=t.corrections + corrects,
        )

    return while_loop(lambda t: t.stage != Stage.ENDED, attempt, _first(b, st, mu, lengths, step, here))


def _first(b: Barrier, st: State, mu: Array, lengths: Lengths, step: Step, here: Slope) -> Trial:
    """Before the first trial; rounds that make no step have none."""
    xp = _space(st.at.w)
    steps = (st.mode == Mode.NORMAL) | (st.mode == Mode.RESTORE)
    none = st.counts.step * 0
    stage = xp.where(steps, int(Stage.FIRST), int(Stage.ENDED)).astype(np.int32)
    no = st.mode < 0
    return Trial(
        st.at,
        step,
        xp.where(steps, lengths.longest, 0.0),
        here.theta,
        ~steps,
        no,
        no,
        none,
        stage,
        lengths.longest,
        b.residual(st.at),
        none,
    )


def _correction(b: Barrier, st: State, tried: Tried, mu: Array, t: Trial, wanted: Array, step: Step) -> Step:
    """The second-order correction for the rows that were collected, where it is wanted; else the step as it was."""

    def solve(carry: tuple[Step, Array]) -> tuple[Step, Array]:
        both, _ = solve_with(b, st, tried.delta, tried.rows, t.residual)
        # Steps of the bound multipliers stay those of the first step.
        return combine(both, mu)._replace(lower=step.lower, upper=step.upper), carry[1] & False

    # A loop of one round or none: under vmap it runs where some lane asks for it.
    return while_loop(lambda carry: carry[1], solve, (step, wanted))[0]


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np
