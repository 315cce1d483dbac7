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
    Record,
    all_finite,
    largest,
)
from gnewt.newton.subproblem import Spectrum, begin_spectrum, forget, solve_subproblem


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

    def move(self, problem: Problem, x: Array, models: LocalModels, memory: Memory) -> Move:
        """Solve the subproblem, try its step, set the radius."""
        eps = problem.eps
        gradient = problem.gradient(models)
        known = memory.spectrum.inertia[0] >= 0  # the model was tried before, with a larger ball
        guess = jnp.where(known, memory.shift, 0.0)
        found = solve_subproblem(
            problem,
            models,
            memory.radius,
            memory.spectrum,
            guess,
            memory.shift,
            self.slack,
            self.max_factorizations,
        )
        at = x + found.step
        value = problem.value(at)
        noise = 8 * eps * jnp.maximum(jnp.abs(models.value), jnp.finfo(x.dtype).tiny)
        close = found.decrease <= noise  # f cannot tell such a step from none: the gradient decides
        ratio = (models.value - value) / jnp.where(found.found, found.decrease, 1.0)
        enough = jnp.where(close, value <= models.value + noise, ratio >= self.accept)
        tried = found.found & jnp.isfinite(value) & enough
        after = jax.lax.cond(tried, problem.models, lambda _: models, at)
        shrinks = largest(problem.gradient(after)) < largest(gradient)
        taken = tried & all_finite(after) & (~close | shrinks)

        length = jnp.linalg.norm(found.step)
        ratio = jnp.where(jnp.isfinite(ratio), ratio, -jnp.inf)
        radius = self._radius(memory.radius, length, ratio, taken, close, value, models, gradient, found.step)
        spent = jnp.linalg.norm(x) + jnp.linalg.norm(found.step)
        code = jnp.where(close & ~taken, STALLED, RUNNING)
        code = jnp.where(
            ~taken & (radius <= eps * jnp.maximum(spent, jnp.finfo(x.dtype).tiny)), STALLED, code
        )
        code = jnp.where(found.found, code, SINGULAR)
        runs_away = (value == -jnp.inf) | (taken & (value < -1.0 / eps**2))
        code = jnp.where(found.found & runs_away, UNBOUNDED, code).astype(jnp.int32)

        record = Record(
            models.value, largest(gradient), found.shift, memory.radius, ratio, found.spectrum.inertia
        )
        spectrum = jax.tree_util.tree_map(
            lambda new, old: jnp.where(taken, new, old), forget(found.spectrum), found.spectrum
        )
        after = jax.tree_util.tree_map(lambda new, old: jnp.where(taken, new, old), after, models)
        return Move(
            jnp.where(taken, at, x),
            after,
            Memory(radius, found.shift, spectrum),
            code,
            record,
            found.factorizations,
            jnp.ones((), jnp.int32),
        )

    def _radius(
        self,
        radius: Array,
        length: Array,
        ratio: Array,
        taken: Array,
        close: Array,
        value: Array,
        models: LocalModels,
        gradient: Array,
        step: Array,
    ) -> Array:
        """Grow where the model was right on the boundary; shrink to where a parabola through f has its minimum."""
        slope = jnp.vdot(gradient, step)
        parabola = -slope / (2 * jnp.maximum(value - models.value - slope, jnp.finfo(step.dtype).tiny))
        share = jnp.where(jnp.isfinite(value), jnp.clip(parabola, 0.2, 0.5), 0.1)
        smaller = share * length
        larger = jnp.maximum(radius, 2.0 * length)
        out = jnp.where(ratio > self.grow_above, larger, radius)
        out = jnp.where(ratio < self.shrink_below, smaller, out)
        return jnp.where(taken & close, radius, jnp.where(taken, out, smaller))
