"""TrustRegion: steps that the quadratic model can be trusted with, certified by the inertia of H + μI."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gnewt.kkt import LocalModels
from gnewt.newton.loop import (
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


class Memory(NamedTuple):
    """What one step leaves to the next."""

    radius: Array
    shift: Array
    """μ to begin with; 0 asks for the Newton step."""
    spectrum: Spectrum


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Minimise the quadratic model exactly in a ball, and let the ball follow how well the model predicts.

    The ball is Euclidean. A step that leaves the domain of f (a value or derivative that is not finite) is cut back.
    """

    radius: float | None = None
    """At the start; max(1, ‖x₀‖) unless given."""
    accept: float = 1e-4
    """Least ratio of achieved to predicted decrease."""
    shrink_below: float = 0.25
    grow_above: float = 0.75
    slack: float = 0.1
    """How far from the boundary a step may end that should end there."""
    max_factorizations: int = 8
    """In one step, once H + μI is positive definite."""

    def begin(self, problem: Problem, x: Array, models: LocalModels) -> Memory:
        """Start with a ball about as large as x."""
        radius = jnp.maximum(1.0, jnp.linalg.norm(x)) if self.radius is None else jnp.asarray(self.radius)
        return Memory(radius.astype(x.dtype), jnp.zeros((), x.dtype), begin_spectrum(problem, x))

    def resume(self, memory: Memory) -> Memory:
        """Go on with the radius."""
        return Memory(memory.radius, jnp.zeros_like(memory.shift), forget(memory.spectrum))

    def propose(self, problem: Problem, x: Array, models: LocalModels, memory: Memory) -> Proposal:
        """Solve the subproblem, and evaluate f there."""
        known = memory.spectrum.inertia[0] >= 0  # the model was tried before, with a larger ball
        found = solve_subproblem(
            problem,
            models,
            memory.radius,
            memory.spectrum,
            jnp.where(known, memory.shift, 0.0),
            memory.shift,
            self.slack,
            self.max_factorizations,
        )
        at = x + found.step
        value = problem.value(at)
        close, noise = _drowns(problem, models, found)
        ratio = _ratio(models, value, found)
        enough = jnp.where(close, value <= models.value + noise, ratio >= self.accept)
        wanted = found.found & jnp.isfinite(value) & enough
        return Proposal(at, wanted, found.factorizations, jnp.ones((), jnp.int32), (found, value))

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
        found, value = proposal.rest
        gradient, tiny = problem.gradient(models), jnp.finfo(x.dtype).tiny
        close, _ = _drowns(problem, models, found)
        shrinks = largest(problem.gradient(after)) < largest(gradient)
        taken = proposal.wanted & all_finite(after) & (~close | shrinks)
        ratio = jnp.where(jnp.isfinite(value), _ratio(models, value, found), -jnp.inf)
        radius = self._radius(memory.radius, models, gradient, found.step, value, ratio, taken, close)

        reach = jnp.linalg.norm(x) + jnp.linalg.norm(found.step)
        stuck = ~taken & (close | (radius <= problem.eps * jnp.maximum(reach, tiny)))
        runs_away = (value == -jnp.inf) | (taken & (value < -1.0 / problem.eps**2))
        code = jnp.where(stuck, STALLED, RUNNING)
        code = jnp.where(runs_away, UNBOUNDED, code)
        code = jnp.where(found.found, code, SINGULAR).astype(jnp.int32)

        record = Record(
            models.value, largest(gradient), found.shift, memory.radius, ratio, found.spectrum.inertia
        )
        spectrum = jax.tree_util.tree_map(
            lambda new, old: jnp.where(taken, new, old), forget(found.spectrum), found.spectrum
        )
        return Move(taken, Memory(radius, found.shift, spectrum), code, record)

    def _radius(
        self,
        radius: Array,
        models: LocalModels,
        gradient: Array,
        step: Array,
        value: Array,
        ratio: Array,
        taken: Array,
        close: Array,
    ) -> Array:
        """Grow where the model was right on the boundary; shrink to where a parabola through f has its minimum."""
        length, slope = jnp.linalg.norm(step), jnp.vdot(gradient, step)
        parabola = -slope / (2 * jnp.maximum(value - models.value - slope, jnp.finfo(step.dtype).tiny))
        share = jnp.where(jnp.isfinite(value), jnp.clip(parabola, 0.2, 0.5), 0.1)
        grown = jnp.where(ratio > self.grow_above, jnp.maximum(radius, 2.0 * length), radius)
        fitting = jnp.where(ratio < self.shrink_below, share * length, grown)
        return jnp.where(taken & close, radius, jnp.where(taken, fitting, share * length))


def _drowns(problem: Problem, models: LocalModels, found: Solution) -> tuple[Array, Array]:
    """Whether the predicted decrease is below the noise of f, so that the gradient must decide; and the noise."""
    noise = 8 * problem.eps * jnp.maximum(jnp.abs(models.value), jnp.finfo(found.step.dtype).tiny)
    return found.decrease <= noise, noise


def _ratio(models: LocalModels, value: Array, found: Solution) -> Array:
    """Achieved over predicted decrease."""
    return (models.value - value) / jnp.where(found.found, found.decrease, 1.0)
