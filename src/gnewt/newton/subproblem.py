"""The trust-region subproblem min gᵀp + ½pᵀHp, ‖p‖ ≤ Δ, by factorising H + μI (Moré and Sorensen).

A global solution has (H + μI)p = -g with H + μI ⪰ 0, μ ≥ 0 and μ(Δ - ‖p‖) = 0. Every elimination tells the inertia
of H + μI, so each trial μ is certified to be large enough, or raises the lower bound. The hard case (g has no part
along the lowest eigenvector z, and ‖p‖ < Δ at μ = -λ₁) adds a multiple of z, found by inverse iteration with the
factors at hand.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.kkt import OK, SINGULAR, Elimination, LocalModels
from gnewt.newton.loop import Problem

_GROWTH = 8.0
"""How fast μ grows, at most, while nothing is known but that it is too small; it begins with 2."""
_MOST = 64
"""Factorisations after which a positive definite one is not looked for any more: 8⁶⁴ is beyond any number."""


class Spectrum(NamedTuple):
    """What is known of the lowest eigenvalue of H; valid as long as H stays."""

    lower: Float[Array, ""]
    """A μ that is too small: H + lower·I is not positive definite, or lower < 0."""
    z: Float[Array, " N"]
    """Unit vector that leans towards the lowest eigenvector."""
    inertia: Int[Array, "3"]
    """Of H; -1 before it was factorised."""


class Solution(NamedTuple):
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


class _Search(NamedTuple):
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
    count: Array
    since: Array
    """Factorisations since the first positive definite one."""
    null: Array
    """Largest μ with an eigenvalue that the elimination could not tell from 0; nothing is gained close to it."""


def solve_subproblem(
    problem: Problem,
    models: LocalModels,
    radius: Array,
    spectrum: Spectrum,
    guess: Array,
    hint: Array,
    slack: float,
    max_factorizations: int,
    reach: Array | None = None,
) -> Solution:
    """Solve to ‖p‖ within (1 ± slack)Δ.

    Args:
        reach: length up to which the Newton step is taken where H ≻ 0; the radius unless given.
        guess: first μ; 0 asks for the Newton step.
        hint: a μ that was large enough for a similar H.
        max_factorizations: after the first that is positive definite.
    """
    gradient = problem.gradient(models)
    size = jnp.linalg.norm(gradient)
    tiny = jnp.finfo(gradient.dtype).tiny
    eps = jnp.finfo(gradient.dtype).eps
    reach = radius if reach is None else reach

    def attempt(s: _Search) -> _Search:
        p, factor = problem.factor_solve(models, s.shift, -gradient)
        definite = (factor.status == OK) & (factor.inertia[0] == problem.size)
        at_zero = s.shift == 0
        inertia = jnp.where(at_zero, factor.inertia, s.spectrum.inertia)
        z, curvature = _lowest(problem, models, factor, s.spectrum.z)
        length = jnp.linalg.norm(p)
        slope = jnp.vdot(gradient, p)  # = -pᵀ(H + μI)p

        # On the boundary, inside with μ = 0, or the hard case: done.
        near = jnp.abs(length - radius) <= slack * radius
        inside = at_zero & (length <= reach)
        tau, gain = _complete(p, z, curvature, gradient, slope, s.shift, radius)
        # Moré and Sorensen's test: what p + τz misses is a small share of what it gains.
        hard = (length < radius) & (tau**2 * curvature <= slack * (s.shift * radius**2 - slope))
        done = definite & (near | inside | hard)

        # The best step so far: p itself, p cut to the boundary, or p + τz.
        cut = jnp.where(inside, 1.0, jnp.minimum(1.0, radius / jnp.maximum(length, tiny)))
        own = -cut * slope + 0.5 * cut**2 * (slope + s.shift * length**2)
        use_z = (length < radius) & ~inside & (gain > own)
        step = jnp.where(use_z, p + tau * z, cut * p)
        decrease = jnp.where(use_z, gain, own)
        better = definite & (decrease > s.decrease)

        # Newton's method on 1/‖p(μ)‖ = 1/Δ; from the left it never overshoots.
        q = problem.solve(models, factor, p)
        ratio = (length - radius) / radius * length**2 / jnp.maximum(jnp.vdot(p, q), tiny)
        newton = s.shift + ratio
        # Too small: indefinite, or p too long. Rayleigh's quotient of z bounds λ₁ from above: μ* > -λ₁.
        rayleigh = s.shift - curvature
        lower = jnp.maximum(s.lower, jnp.where(definite & (length < radius), s.lower, s.shift))
        lower = jnp.maximum(lower, jnp.where(jnp.isfinite(rayleigh), rayleigh, s.lower))
        upper = jnp.where(definite & (length < radius), jnp.minimum(s.upper, s.shift), s.upper)
        # Where indefinite: -λ₁ + |gᵀz|/Δ is a lower bound too, close where z has found λ₁; if not, grow.
        push = jnp.maximum(jnp.abs(jnp.vdot(gradient, z)), 1e-2 * size) / radius
        growth = jnp.minimum(2.0 ** (1 + s.count).astype(gradient.dtype), _GROWTH)
        grown = jnp.maximum(jnp.maximum(lower + push, growth * s.shift), hint)
        proposal = jnp.where(definite, newton, grown)
        floor = jnp.maximum(lower, 0.0)
        middle = jnp.maximum(jnp.sqrt(floor * upper), floor + 0.1 * (upper - floor))
        # A proposal outside of the bracket is replaced by a point inside.
        fits = (proposal > lower) & (proposal < upper)
        next_shift = jnp.where(fits, proposal, jnp.where(jnp.isfinite(upper), middle, grown))
        next_shift = jnp.where(lower < 0, jnp.maximum(next_shift, 0.0), next_shift)
        # A bracket as narrow as rounding holds nothing new.
        exhausted = definite & jnp.isfinite(upper) & (upper - lower <= 4 * eps * jnp.maximum(upper, tiny))
        drowned = (factor.status == SINGULAR) & (factor.inertia[1] == 0)
        null = jnp.where(drowned, jnp.maximum(s.null, s.shift), s.null)
        exhausted = exhausted | (definite & (length < radius) & (s.shift <= _GROWTH * null))
        below = jnp.where(definite, s.spectrum.lower, s.shift)
        below = jnp.maximum(below, jnp.where(jnp.isfinite(rayleigh), rayleigh, s.spectrum.lower))
        return _Search(
            next_shift,
            lower,
            upper,
            jnp.where(better, step, s.best),
            jnp.where(better, s.shift, s.best_shift),
            jnp.where(better, decrease, s.decrease),
            Spectrum(jnp.maximum(below, s.spectrum.lower), z, inertia),
            done | exhausted,
            s.count + 1,
            s.since + (definite | (s.since > 0)),
            null,
        )

    nothing = jnp.full((), -jnp.inf, gradient.dtype)
    begin = _Search(
        jnp.maximum(guess, 0.0),
        jnp.maximum(spectrum.lower, -jnp.inf),
        jnp.full((), jnp.inf, gradient.dtype),
        jnp.zeros_like(gradient),
        jnp.zeros_like(guess),
        nothing,
        spectrum,
        jnp.zeros((), bool),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros_like(guess),
    )
    end = jax.lax.while_loop(
        lambda s: ~s.done & (s.since < max_factorizations) & (s.count < _MOST), attempt, begin
    )
    found, length = end.decrease > 0, jnp.linalg.norm(end.best)
    return Solution(end.best, end.best_shift, end.decrease, found, end.spectrum, end.count, length)


def begin_spectrum(problem: Problem, x: Array) -> Spectrum:
    """Know nothing: a direction without symmetry, no bound."""
    n = problem.size
    z = jnp.cos(1.0 + jnp.arange(n, dtype=x.dtype) * 2.399963)
    return Spectrum(jnp.full((), -jnp.inf, x.dtype), z / jnp.linalg.norm(z), jnp.full(3, -1, jnp.int32))


def forget(spectrum: Spectrum) -> Spectrum:
    """Keep the direction, drop what was true of another H."""
    return Spectrum(jnp.full_like(spectrum.lower, -jnp.inf), spectrum.z, jnp.full_like(spectrum.inertia, -1))


def _lowest(problem: Problem, models: LocalModels, factor: Elimination, z: Array) -> tuple[Array, Array]:
    """Two steps of inverse iteration with H + μI: (z, zᵀ(H + μI)z); as it was where the factor is of no use."""
    usable = factor.status == OK
    before, quotient = z, jnp.full((), jnp.nan, z.dtype)
    for _ in range(2):
        y = problem.solve(models, factor, z)
        size = jnp.linalg.norm(y)
        usable = usable & jnp.isfinite(size) & (size > 0)
        scale = jnp.where(usable, size, 1.0)
        quotient = jnp.vdot(y, z) / scale**2
        z = jnp.where(usable, y / scale, z)
    return jnp.where(usable, z, before), jnp.where(usable, quotient, jnp.nan)


def _complete(
    p: Array, z: Array, curvature: Array, gradient: Array, slope: Array, shift: Array, radius: Array
) -> tuple[Array, Array]:
    """Go from p along ±z to the boundary: (τ, predicted decrease of p + τz)."""
    along, room = jnp.vdot(p, z), jnp.maximum(radius**2 - jnp.vdot(p, p), 0.0)
    root = jnp.sqrt(along**2 + room)
    # Of the two ends, the one with the smaller |τ| loses less.
    tau = jnp.where(along >= 0, room / (along + root + 1e-300), -room / (root - along + 1e-300))
    whole = jnp.vdot(gradient, p) + tau * jnp.vdot(gradient, z)
    quadratic = -slope - 2 * tau * jnp.vdot(gradient, z) + tau**2 * curvature - shift * radius**2
    gain = -(whole + 0.5 * quadratic)
    return tau, jnp.where(jnp.isfinite(gain), gain, -jnp.inf)
