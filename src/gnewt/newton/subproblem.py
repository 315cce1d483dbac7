"""The trust-region subproblem min gᵀp + ½pᵀHp, ‖p‖ ≤ Δ, by factorising H + μI (Moré and Sorensen).

A global solution has (H + μI)p = -g with H + μI ⪰ 0, μ ≥ 0 and μ(Δ - ‖p‖) = 0. Every elimination tells the inertia
of H + μI, so each trial μ is certified to be large enough, or raises the lower bound. The hard case (g has no part
along the lowest eigenvector z, and ‖p‖ < Δ at μ = -λ₁) adds a multiple of z, found by inverse iteration with the
factors at hand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from gnewt.kkt import OK, SINGULAR, Elimination, LocalModels
from gnewt.newton.arithmetic import (
    Array,
    isfinite,
    maximum,
    minimum,
    norm,
    number,
    smallest,
    sqrt,
    unless,
    vdot,
    where,
    while_loop,
    zeros_like,
)
from gnewt.newton.loop import Task
from gnewt.newton.trials import scattered

_GROWTH = 8.0
"""How fast μ grows, at most, while nothing is known but that it is too small; it begins with 2."""
_MOST = 64
"""Factorisations after which a positive definite one is not looked for any more: 8⁶⁴ is beyond any number."""
_PUSH = 1e-2
"""Least share of ‖g‖/Δ that μ goes beyond a lower bound: z may be orthogonal to g by chance."""
_INTO = 0.1
"""Share of the bracket that a point inside of it keeps from the lower end, where μ* usually is."""
_NARROW = 4
"""Roundings of μ: a bracket as narrow holds nothing new."""


class Spectrum(NamedTuple):
    """What is known of the lowest eigenvalue of H; valid as long as H stays."""

    lower: Float[Array, ""]
    """A μ that is too small: H + lower·I is not positive definite, or lower < 0."""
    z: Float[Array, " N"]
    """Unit vector that leans towards the lowest eigenvector."""
    inertia: Int[Array, "3"]
    """Of H; -1 before it was factorised."""


class BallStep(NamedTuple):
    """A step and what the quadratic model makes of it."""

    step: Float[Array, " N"]
    shift: Float[Array, ""]
    decrease: Float[Array, ""]
    """Predicted: -(gᵀp + ½pᵀHp)."""
    found: Bool[Array, ""]
    """Whether any H + μI was positive definite."""
    spectrum: Spectrum
    factorizations: Int[Array, ""]
    length: Float[Array, ""]
    """‖p‖, in the norm of the ball."""


class _Bracket(NamedTuple):
    shift: Array
    lower: Array
    """μ* is larger."""
    upper: Array
    """μ* is not larger; inf before a bound is known."""
    best: Array
    best_shift: Array
    decrease: Array
    spectrum: Spectrum
    done: Array
    tries: Array
    """Factorisations."""
    since: Array
    """Factorisations since the first positive definite one."""
    null: Array
    """Largest μ with an eigenvalue that the elimination could not tell from 0; nothing is gained close to it."""


class _Look(NamedTuple):
    """What one factorisation tells."""

    shift: Array
    p: Array
    """-(H + μI)⁻¹g"""
    factor: Elimination
    definite: Array
    z: Array
    curvature: Array
    """zᵀ(H + μI)z"""
    length: Array
    """‖p‖"""
    slope: Array
    """gᵀp = -pᵀ(H + μI)p"""


class _Goal(NamedTuple):
    """The ball, and how close to its boundary a step ends that should end there."""

    gradient: Array
    radius: Array
    reach: Array
    slack: float
    hint: Array

    def ends(self, shift: Array, definite: Array, length: Array) -> Array:
        """Whether p itself is good enough: on the boundary, or inside with μ = 0."""
        near = abs(length - self.radius) <= self.slack * self.radius
        return definite & (near | self.is_inside(shift, length))

    def is_inside(self, shift: Array, length: Array) -> Array:
        """Whether p is the Newton step, and not too long."""
        return (shift == 0) & (length <= self.reach)


def solve_subproblem(
    task: Task,
    models: LocalModels,
    radius: Array,
    spectrum: Spectrum,
    guess: Array,
    hint: Array,
    slack: float,
    max_factorizations: int,
    reach: Array | None = None,
) -> BallStep:
    """Solve to ‖p‖ within (1 ± slack)Δ.

    Args:
        reach: length up to which the Newton step is taken where H ≻ 0; the radius unless given.
        guess: first μ; 0 asks for the Newton step.
        hint: a μ that was large enough for a similar H.
        max_factorizations: after the first that is positive definite.
    """
    gradient = task.gradient(models)
    goal = _Goal(gradient, radius, radius if reach is None else reach, slack, hint)

    def goes_on(s: _Bracket) -> Array:
        return ~s.done & (s.since < max_factorizations) & (s.tries < _MOST)

    def attempt(s: _Bracket) -> _Bracket:
        p, factor = task.factor_solve(models, s.shift, -gradient, goes_on(s))
        definite, length, slope = task.is_definite(factor), norm(p), vdot(gradient, p)

        def refine() -> tuple[Array, Array, Array]:
            return *_lowest(task, models, factor, s.spectrum.z), vdot(p, task.solve(models, factor, p))

        # What only serves to go on is not computed where nothing goes on.
        nothing = (s.spectrum.z, number(np.nan, p), number(np.nan, p))
        z, curvature, stretch = unless(goal.ends(s.shift, definite, length), nothing, refine)
        look = _Look(s.shift, p, factor, definite, z, curvature, length, slope)
        # Newton's method on 1/‖p(μ)‖ = 1/Δ; from the left it never overshoots.
        newton = s.shift + (length - radius) / radius * length**2 / maximum(stretch, smallest(p))
        return _narrow(goal, _improve(goal, s, look), look, newton)

    zero, none, inf = number(0.0, gradient), np.int32(0), number(np.inf, gradient)
    first, nothing = maximum(guess, zero), zeros_like(gradient)
    no = np.bool_(False)
    begin = _Bracket(first, spectrum.lower, inf, nothing, zero, -inf, spectrum, no, none, none, zero)
    end = while_loop(goes_on, attempt, begin)
    found, length = end.decrease > 0, norm(end.best)
    return BallStep(end.best, end.best_shift, end.decrease, found, end.spectrum, end.tries, length)


def _improve(goal: _Goal, s: _Bracket, look: _Look) -> _Bracket:
    """Keep the best step so far: p itself, p cut to the boundary, or p + τz. Done where it is good enough."""
    shift, p, length, slope, radius = look.shift, look.p, look.length, look.slope, goal.radius
    inside = goal.is_inside(shift, length)
    tau, gain = _complete(goal, look)
    # Moré and Sorensen's test: what p + τz misses is a small share of what it gains.
    hard = (length < radius) & (tau**2 * look.curvature <= goal.slack * (shift * radius**2 - slope))
    cut = where(inside, 1.0, minimum(1.0, radius / maximum(length, smallest(p))))
    own = -cut * slope + 0.5 * cut**2 * (slope + shift * length**2)
    use_z = (length < radius) & ~inside & (gain > own)
    step = where(use_z, p + tau * look.z, cut * p)
    decrease = where(use_z, gain, own)
    better = look.definite & (decrease > s.decrease)
    return s._replace(
        best=where(better, step, s.best),
        best_shift=where(better, shift, s.best_shift),
        decrease=where(better, decrease, s.decrease),
        done=goal.ends(shift, look.definite, length) | (look.definite & hard),
        tries=s.tries + 1,
        since=s.since + (look.definite | (s.since > 0)),
    )


def _narrow(goal: _Goal, s: _Bracket, look: _Look, newton: Array) -> _Bracket:
    """Narrow the bracket of μ*, and choose the next μ."""
    shift, definite, radius, dtype = look.shift, look.definite, goal.radius, look.p.dtype
    tiny, eps = smallest(look.p), np.finfo(dtype).eps
    short = definite & (look.length < radius)
    # Too small: indefinite, or p too long. Rayleigh's quotient of z bounds λ₁ from above: μ* > -λ₁.
    rayleigh = shift - look.curvature
    rayleigh = where(isfinite(rayleigh), rayleigh, -np.inf)
    lower = maximum(maximum(s.lower, where(short, s.lower, shift)), rayleigh)
    upper = where(short, minimum(s.upper, shift), s.upper)
    # Where indefinite: -λ₁ + |gᵀz|/Δ is a lower bound too, close where z has found λ₁; if not, grow.
    along = abs(vdot(goal.gradient, look.z))
    push = maximum(along, _PUSH * norm(goal.gradient)) / radius
    growth = minimum(2.0 ** s.tries.astype(dtype), _GROWTH)
    grown = maximum(maximum(lower + push, growth * shift), goal.hint)
    proposal = where(definite, newton, grown)
    floor = maximum(lower, 0.0)
    middle = maximum(sqrt(floor * upper), floor + _INTO * (upper - floor))
    # A proposal outside of the bracket is replaced by a point inside.
    fits = (proposal > lower) & (proposal < upper)
    following = where(fits, proposal, where(isfinite(upper), middle, grown))
    # A bracket as narrow as rounding holds nothing new; nor does one close to a μ with a null eigenvalue.
    narrow = definite & isfinite(upper) & (upper - lower <= _NARROW * eps * maximum(upper, tiny))
    drowned = (look.factor.status == SINGULAR) & (look.factor.inertia[1] == 0)
    null = where(drowned, maximum(s.null, shift), s.null)
    below = maximum(where(definite, s.spectrum.lower, shift), rayleigh)
    inertia = where(shift == 0, look.factor.inertia, s.spectrum.inertia)
    return s._replace(
        shift=where(lower < 0, maximum(following, 0.0), following),
        lower=lower,
        upper=upper,
        spectrum=Spectrum(maximum(below, s.spectrum.lower), look.z, inertia),
        done=s.done | narrow | (short & (shift <= _GROWTH * null)),
        null=null,
    )


def begin_spectrum(task: Task, x: Array) -> Spectrum:
    """Know nothing: a direction without symmetry, no bound."""
    z = scattered(x)
    return Spectrum(number(-np.inf, x), z / norm(z), np.full(3, -1, np.int32))


def forget(spectrum: Spectrum) -> Spectrum:
    """Keep the direction, drop what was true of another H."""
    return Spectrum(number(-np.inf, spectrum.lower), spectrum.z, zeros_like(spectrum.inertia) - 1)


def _lowest(task: Task, models: LocalModels, factor: Elimination, z: Array) -> tuple[Array, Array]:
    """Two steps of inverse iteration with H + μI: (z, zᵀ(H + μI)z); as it was where the factor is of no use."""
    usable = factor.status == OK
    before, quotient = z, number(np.nan, z)
    for _ in range(2):
        y = task.solve(models, factor, z)
        size = norm(y)
        usable = usable & isfinite(size) & (size > 0)
        scale = where(usable, size, 1.0)
        quotient = vdot(y, z) / scale**2
        z = where(usable, y / scale, z)
    return where(usable, z, before), where(usable, quotient, np.nan)


def _complete(goal: _Goal, look: _Look) -> tuple[Array, Array]:
    """Go from p along ±z to the boundary: (τ, predicted decrease of p + τz)."""
    p, z, gradient, radius = look.p, look.z, goal.gradient, goal.radius
    along, room = vdot(p, z), maximum(radius**2 - vdot(p, p), 0.0)
    # Of the two ends, the one with the smaller |τ| loses less.
    far = maximum(abs(along) + sqrt(along**2 + room), smallest(p))
    tau = where(along >= 0, room / far, -room / far)
    whole = look.slope + tau * vdot(gradient, z)
    quadratic = -look.slope - 2 * tau * vdot(gradient, z) + tau**2 * look.curvature
    gain = -(whole + 0.5 * (quadratic - look.shift * radius**2))
    return tau, where(isfinite(gain), gain, -np.inf)
