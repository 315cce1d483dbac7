"""TrustRegion: steps that the quadratic model can be trusted with, certified by the inertia of H + μI."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gnewt.kkt import LocalModels
from gnewt.newton.krylov import solve_with_products
from gnewt.newton.loop import (
    NO_DECREASE,
    ROUNDING,
    RUNNING,
    SINGULAR,
    STALLED,
    UNBOUNDED,
    Move,
    Problem,
    Proposal,
    Record,
    all_finite,
    largest,
)
from gnewt.newton.subproblem import Solution, Spectrum, begin_spectrum, forget, solve_subproblem
from gnewt.newton.trials import Line, Trials, try_lengths

_CLEAR = 1e3
"""A decrease that stands out so far from the noise of f tells something of the shape of f along the step."""
_PATIENCE = 3
"""Steps that are refused before the rounding of f is measured."""


class Memory(NamedTuple):
    """What one step leaves to the next."""

    radius: Array
    shift: Array
    """μ of the last step; 0 if that was the Newton step."""
    last: Array
    """Length of the last step."""
    promise: Array
    """Predicted decrease of the Newton step from here, where H ≻ 0 is known and the ball is large enough; else inf."""
    noise: Array
    """Rounding of f as it was measured, where steps were refused again and again; else 0."""
    refusals: Array
    """Steps refused since the last that was taken."""
    spectrum: Spectrum


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Minimise the quadratic model exactly in a ball, and let the ball follow how well the model predicts.

    The ball is Euclidean. A step that leaves the domain of f (a value or derivative that is not finite) is cut back.
    """

    radius: float | None = None
    """At the start. Unless given the first ball is as large as the Newton step where H ≻ 0, else max(1, ‖x₀‖)."""
    accept: float = 1e-4
    """Least ratio of achieved to predicted decrease."""
    shrink_below: float = 0.25
    grow_above: float = 0.75
    growth: float = 3.0
    slack: float = 0.2
    """How far from the boundary a step may end that should end there."""
    trials: int = 3
    """How many other lengths of a good step f is tried at; 0 for the plain trust region."""
    max_factorizations: int = 8
    """In one step, once H + μI is positive definite."""

    def begin(self, problem: Problem, x: Array, models: LocalModels) -> Memory:
        """Nothing is known of the radius unless it is given."""
        radius = jnp.full((), jnp.inf if self.radius is None else self.radius, x.dtype)
        zero = jnp.zeros((), x.dtype)
        count = jnp.zeros((), jnp.int32)
        return Memory(radius, zero, zero, zero + jnp.inf, zero, count, begin_spectrum(problem, x))

    def resume(self, memory: Memory) -> Memory:
        """Go on with the radius."""
        return memory._replace(
            shift=jnp.zeros_like(memory.shift),
            promise=jnp.full_like(memory.promise, jnp.inf),
            noise=jnp.zeros_like(memory.noise),
            refusals=jnp.zeros_like(memory.refusals),
            spectrum=forget(memory.spectrum),
        )

    def propose(self, problem: Problem, x: Array, models: LocalModels, memory: Memory) -> Proposal:
        """Solve the subproblem, evaluate f there, and at a few other lengths of the step."""
        found = self._subproblem(problem, x, models, memory)
        slope = jnp.vdot(problem.gradient(models), found.step)
        floor = _noise(problem, models, memory)

        def likes(value: Array) -> Array:
            close, noise = _drowns(problem, models, memory, found, value)
            # Rounding of a long program is more than that of its result: where the gradient decides, f may rise.
            enough = jnp.where(
                close, value <= models.value + 64 * noise, _ratio(models, value, found) >= self.accept
            )
            return found.found & jnp.isfinite(value) & enough

        tried = try_lengths(
            problem.value,
            x,
            found.step,
            Line(models.value, slope, -2.0 * (found.decrease + slope)),
            lambda value: likes(value) & (found.decrease > _CLEAR * floor),
            floor,
            self.trials,
            memory.refusals == _PATIENCE,
        )
        rest = _Trial(found, tried)
        return Proposal(
            x + tried.length * found.step, likes(tried.first), found.factorizations, tried.count, rest
        )

    def settle(
        self,
        problem: Problem,
        x: Array,
        models: LocalModels,
        memory: Memory,
        proposal: Proposal,
        after: LocalModels,
    ) -> Move:
        """Take the step if the model was right enough, and set the radius."""
        found, (value, times, measured, _) = proposal.rest
        gradient, tiny = problem.gradient(models), jnp.finfo(x.dtype).tiny
        close, noise = _drowns(problem, models, memory, found, value)
        shrinks = largest(problem.gradient(after)) < largest(gradient)
        taken = proposal.wanted & all_finite(after) & (~close | shrinks)
        ratio = jnp.where(jnp.isfinite(value), _ratio(models, value, found), -jnp.inf)
        length = found.length
        before = jnp.where(jnp.isfinite(memory.radius), memory.radius, length)
        share = _share(models.value, value, jnp.vdot(gradient, found.step))
        # Derivatives that are not finite are met behind a good value only.
        refused = jnp.where(proposal.wanted & ~close, 0.1 * times, share) * length
        radius = jnp.where(taken, self._radius(before, length, times, ratio, share, close), refused)

        reach = jnp.linalg.norm(x) + jnp.linalg.norm(found.step)
        stuck = ~taken & ((close & proposal.wanted) | (radius <= problem.eps * jnp.maximum(reach, tiny)))
        runs_away = (value == -jnp.inf) | (taken & (after.value < -1.0 / problem.eps**2))
        inside = (found.shift == 0) & (length < memory.radius)
        promise = jnp.minimum(memory.promise, jnp.where(inside, found.decrease, jnp.inf))
        code = jnp.where(stuck, jnp.where(promise <= ROUNDING * noise, STALLED, NO_DECREASE), RUNNING)
        code = jnp.where(runs_away, UNBOUNDED, code)
        code = jnp.where(found.found, code, SINGULAR).astype(jnp.int32)

        record = Record(models.value, largest(gradient), found.shift, before, ratio, found.spectrum.inertia)
        spectrum = jax.tree_util.tree_map(
            lambda new, old: jnp.where(taken, new, old), forget(found.spectrum), found.spectrum
        )
        promise = jnp.where(taken, jnp.inf, promise)
        refusals = jnp.where(taken, 0, memory.refusals + 1)
        # Noise that was measured here is that of other points only as long as f can't be seen to fall.
        smooth = 2 * problem.eps * jnp.vdot(jnp.abs(gradient), jnp.abs(x))
        noise = jnp.where(taken & ~close, 0.0, jnp.maximum(memory.noise, 4 * (measured - smooth)))
        memory = Memory(radius, found.shift, length, promise, noise, refusals, spectrum)
        return Move(taken, memory, code, record)

    def _subproblem(self, problem: Problem, x: Array, models: LocalModels, memory: Memory) -> Solution:
        """Minimise the model in the ball; before there is a radius, by the Newton step where H ≻ 0."""
        radius = jnp.where(jnp.isfinite(memory.radius), memory.radius, jnp.maximum(1.0, jnp.linalg.norm(x)))
        if not problem.eliminates:
            return solve_with_products(problem, x, models, radius, memory.radius, memory.spectrum)
        # H itself is tried first only where the last step needed no shift: else μ*, larger in a smaller ball, is.
        floor = jnp.maximum(memory.spectrum.lower, 0.0)
        guess = floor + jnp.maximum(memory.shift - floor, 0.0) * memory.last / radius
        return solve_subproblem(
            problem,
            models,
            radius,
            memory.spectrum,
            guess,
            memory.shift,
            self.slack,
            self.max_factorizations,
            reach=memory.radius,
        )

    def _radius(
        self, radius: Array, length: Array, times: Array, ratio: Array, share: Array, close: Array
    ) -> Array:
        """Grow where the model was right; shrink where it was not, but not below the step that f liked."""
        grown = jnp.where(ratio > self.grow_above, jnp.maximum(radius, self.growth * length), radius)
        fitting = jnp.where(ratio < self.shrink_below, share * length, grown)
        # f may fall far beyond a step that the model was wrong about; that is no reason to trust it so far.
        liked = jnp.where(ratio < self.shrink_below, jnp.minimum(times, 1.0), times) * length
        fitting = jnp.where(times != 1.0, jnp.maximum(fitting, liked), fitting)
        return jnp.where(close, jnp.maximum(radius, self.growth * length), fitting)


class _Trial(NamedTuple):
    found: Solution
    tried: Trials


def _noise(problem: Problem, models: LocalModels, memory: Memory) -> Array:
    """Rounding of f: as it is usual, or as it was measured."""
    usual = 4 * problem.eps * jnp.maximum(jnp.abs(models.value), jnp.finfo(memory.noise.dtype).tiny)
    return jnp.maximum(usual, memory.noise)


def _drowns(
    problem: Problem, models: LocalModels, memory: Memory, found: Solution, value: Array
) -> tuple[Array, Array]:
    """Whether the predicted decrease is below the noise of f, so that the gradient must decide; and the noise.

    Where f does not change at all, it is: large terms cancel in f, or it is flat.
    """
    noise = _noise(problem, models, memory)
    noise = jnp.where(value == models.value, jnp.maximum(noise, found.decrease), noise)
    return found.decrease <= noise, noise


def _ratio(models: LocalModels, value: Array, found: Solution) -> Array:
    """Achieved over predicted decrease."""
    return (models.value - value) / jnp.where(found.found, found.decrease, 1.0)


def _share(before: Array, value: Array, slope: Array) -> Array:
    """Where on the step a parabola through f has its minimum, within reason."""
    parabola = -slope / (2 * jnp.maximum(value - before - slope, jnp.finfo(value.dtype).tiny))
    return jnp.where(jnp.isfinite(value), jnp.clip(parabola, 0.2, 0.5), 0.1)
