"""LineSearch: the paper's Algorithm 1 with what the printed one lacks: an inertia-corrected shift (E19)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gnewt.kkt import OK, LocalModels
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


class Memory(NamedTuple):
    """What one step leaves to the next."""

    shift: Array
    longest: Array
    """Length to begin with: 1, or less after a step to where derivatives are not finite."""


class _Trial(NamedTuple):
    length: Array
    value: Array
    passed: Array
    count: Array


@dataclasses.dataclass(frozen=True)
class LineSearch:
    """Backtrack along -(H + μI)⁻¹g, with the smallest μ of a growing sequence that makes H + μI ≻ 0.

    Near the solution the decrease drowns in the rounding of f. There a step counts if f does not rise above its
    noise and the gradient shrinks.
    """

    armijo: float = 1e-4
    """Share of the predicted decrease that a step must achieve."""
    first_shift: float = 1e-8
    """Of the largest local derivative."""
    growth: float = 8.0
    max_halvings: int = 60

    def begin(self, problem: Problem, x: Array, models: LocalModels) -> Memory:
        """Nothing is known."""
        return Memory(jnp.zeros((), x.dtype), jnp.ones((), x.dtype))

    def resume(self, memory: Memory) -> Memory:
        """Go on with the shift."""
        return Memory(memory.shift, jnp.ones_like(memory.longest))

    def propose(self, problem: Problem, x: Array, models: LocalModels, memory: Memory) -> Proposal:
        """Factorise until the inertia says positive definite, then backtrack."""
        gradient = problem.gradient(models)
        direction, shift, definite, inertia, tries = self._direction(problem, models, gradient, memory.shift)
        slope = jnp.vdot(gradient, direction)
        trial = self._backtrack(problem, x, models, slope, direction, memory.longest)
        rest = (trial, slope, shift, definite, inertia)
        at = x + trial.length * direction
        return Proposal(at, definite & trial.passed, tries, trial.count, rest)

    def settle(
        self,
        problem: Problem,
        x: Array,
        models: LocalModels,
        memory: Memory,
        proposal: Proposal,
        after: LocalModels,
    ) -> Move:
        """Take the step, unless derivatives are not finite there, or nothing is gained within rounding."""
        trial, slope, shift, definite, inertia = proposal.rest
        gradient = problem.gradient(models)
        close = -trial.length * slope <= problem.noise(models)
        finite = all_finite(after)
        shrinks = largest(problem.gradient(after)) < largest(gradient)
        taken = proposal.wanted & finite & (~close | shrinks)
        shorter = trial.passed & ~finite & (trial.length > problem.eps)
        rounding = (shift == 0) & (-0.5 * slope <= ROUNDING * problem.noise(models))
        code = jnp.where(taken | shorter, RUNNING, jnp.where(rounding, STALLED, NO_DECREASE))
        code = jnp.where(trial.value == -jnp.inf, UNBOUNDED, code)
        code = jnp.where(definite, code, SINGULAR).astype(jnp.int32)
        nan = jnp.full((), jnp.nan, x.dtype)
        record = Record(models.value, largest(gradient), shift, nan, trial.length, inertia)
        longest = jnp.where(taken, jnp.ones_like(trial.length), trial.length / 2)
        return Move(taken, Memory(jnp.where(definite, shift, memory.shift), longest), code, record)

    def _direction(
        self, problem: Problem, models: LocalModels, gradient: Array, last: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Return (direction, μ, whether H + μI ≻ 0, inertia of H, factorisations)."""
        scale = jnp.maximum(largest(models.sources), jnp.finfo(gradient.dtype).tiny)

        def attempt(shift: Array) -> tuple[Array, Array, Array]:
            step, found = problem.factor_solve(models, shift, -gradient)
            definite = (found.status == OK) & (found.inertia[0] == problem.size)
            return step, definite, found.inertia

        def again(carry: Any) -> Any:
            step, _, shift, tries = carry
            shift = jnp.where(
                shift == 0, jnp.maximum(last / 4, self.first_shift * scale), shift * self.growth
            )
            step, definite, _ = attempt(shift)
            return step, definite, shift, tries + 1

        zero = jnp.zeros((), gradient.dtype)
        step, definite, inertia = attempt(zero)
        step, definite, shift, tries = jax.lax.while_loop(
            lambda c: ~c[1] & (c[2] < 1e12 * scale), again, (step, definite, zero, jnp.ones((), jnp.int32))
        )
        return step, shift, definite, inertia, tries

    def _backtrack(
        self, problem: Problem, x: Array, models: LocalModels, slope: Array, direction: Array, longest: Array
    ) -> _Trial:
        noise = problem.noise(models)

        def attempt(length: Array, count: Array) -> _Trial:
            value = problem.value(x + length * direction)
            enough = value <= models.value + self.armijo * length * slope
            within = (-length * slope <= noise) & (value <= models.value + noise)
            return _Trial(length, value, jnp.isfinite(value) & (enough | within), count + 1)

        def goes_on(trial: _Trial) -> Array:
            return ~trial.passed & (trial.value != -jnp.inf) & (trial.count < self.max_halvings)

        first = _Trial(
            2 * longest, jnp.full((), jnp.nan, x.dtype), jnp.zeros((), bool), jnp.zeros((), jnp.int32)
        )
        return jax.lax.while_loop(goes_on, lambda t: attempt(t.length / 2, t.count), first)
