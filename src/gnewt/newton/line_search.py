"""LineSearch: the paper's Algorithm 1 with what the printed one lacks: an inertia-corrected shift (E19)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gnewt.kkt import OK, LocalModels
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


class _Trial(NamedTuple):
    length: Array
    models: LocalModels
    code: Array
    """-1 while no length was accepted."""
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

    def begin(self, problem: Problem, x: Array, models: LocalModels) -> Array:
        """The memory is the last shift."""
        return jnp.zeros((), x.dtype)

    def move(self, problem: Problem, x: Array, models: LocalModels, memory: Array) -> Move:
        """Factorise until the inertia says positive definite, then backtrack."""
        gradient = problem.gradient(models)
        direction, shift, definite, inertia, tries = self._direction(problem, models, gradient, memory)
        trial = self._backtrack(problem, x, models, gradient, direction)
        code = jnp.where(definite, trial.code, SINGULAR)
        moved = code == RUNNING
        record = Record(
            models.value, largest(gradient), shift, jnp.full((), jnp.nan, x.dtype), trial.length, inertia
        )
        after = jax.tree_util.tree_map(lambda new, old: jnp.where(moved, new, old), trial.models, models)
        x = jnp.where(moved, x + trial.length * direction, x)
        return Move(x, after, jnp.where(definite, shift, memory), code, record, tries, trial.count)

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
        self, problem: Problem, x: Array, models: LocalModels, gradient: Array, direction: Array
    ) -> _Trial:
        slope = jnp.vdot(gradient, direction)
        noise = 16 * problem.eps * jnp.maximum(jnp.abs(models.value), jnp.finfo(x.dtype).tiny)

        def halve(trial: _Trial) -> _Trial:
            at = x + trial.length * direction
            value = problem.value(at)
            close = -trial.length * slope <= noise
            enough = value <= models.value + self.armijo * trial.length * slope
            passed = jnp.isfinite(value) & (enough | (close & (value <= models.value + noise)))
            after = jax.lax.cond(passed, problem.models, lambda _: models, at)
            finite = all_finite(after)
            shrinks = largest(problem.gradient(after)) < largest(gradient)
            code = jnp.where(passed & finite & (~close | shrinks), RUNNING, -1)
            code = jnp.where(passed & close & (code == -1), STALLED, code)
            code = jnp.where(value == -jnp.inf, UNBOUNDED, code)
            length = jnp.where(code == -1, trial.length / 2, trial.length)
            return _Trial(length, after, code.astype(jnp.int32), trial.count + 1)

        begin = _Trial(jnp.ones((), x.dtype), models, jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32))
        end = jax.lax.while_loop(lambda t: (t.code == -1) & (t.count < self.max_halvings), halve, begin)
        return end._replace(code=jnp.where(end.code == -1, STALLED, end.code))
