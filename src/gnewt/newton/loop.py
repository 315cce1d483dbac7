"""The loop of Newton's method: one function that advances a state, for the host and for lax.while_loop alike.

It knows nothing of trust regions or line searches: a search is a value with two functions, `begin` and `move`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from gnewt.kkt import Elimination, LocalModels
from gnewt.newton.objective import Point
from gnewt.newton.system import System

STATUSES = (
    "running",
    "converged",
    "stalled",
    "max_steps",
    "unbounded",
    "nonfinite",
    "singular",
    "time_limit",
    "stopped",
    "interrupted",
)
"""`Result.code` counts in this list."""
RUNNING, CONVERGED, STALLED, MAX_STEPS, UNBOUNDED, NONFINITE, SINGULAR = range(7)


class Record(NamedTuple):
    """One step of the history: numbers on the host, arrays inside jit."""

    value: Any
    """f before the step."""
    grad_norm: Any
    """‖g‖∞ before the step."""
    shift: Any
    """μ of the H + μI that the step was made with."""
    radius: Any
    """Of the trust region; NaN for a line search."""
    ratio: Any
    """Achieved over predicted decrease; for a line search the length of the step."""
    inertia: Any
    """[3]: positive, negative and zero eigenvalues of H itself; -1 where H itself was not factorised."""


class Move(NamedTuple):
    """What a search did: the next iterate, or the last one with a status that ends the run."""

    x: Float[Array, " N"]
    models: LocalModels
    memory: Any
    code: Int[Array, ""]
    """RUNNING, or why the run ends here."""
    record: Record
    factorizations: Int[Array, ""]
    evaluations: Int[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """What a search may ask of the objective. Everything is traceable."""

    system: System
    point: Point

    @property
    def size(self) -> int:
        return self.system.structure.num_inputs

    @property
    def dtype(self) -> Any:
        return self.system.structure.dtype

    @property
    def eps(self) -> float:
        """Rounding to expect in f."""
        return self.system.structure.eps

    def value(self, x: Array) -> Array:
        return self.system.value(dataclasses.replace(self.point, x=x))

    def models(self, x: Array) -> LocalModels:
        return self.system.linearize(dataclasses.replace(self.point, x=x))

    def gradient(self, models: LocalModels) -> Array:
        return models.duals[: self.size]

    def factor_solve(self, models: LocalModels, shift: Any, rhs: Array) -> tuple[Array, Elimination]:
        return self.system.factor_solve(models, shift, rhs)

    def solve(self, models: LocalModels, elimination: Elimination, rhs: Array) -> Array:
        return self.system.solve(models, elimination, rhs)


@runtime_checkable
class Search(Protocol):
    """A globalisation: hashable, small, traceable."""

    def begin(self, problem: Problem, x: Array, models: LocalModels) -> Any:
        """Return the memory that `move` hands on: a radius, the last shift."""
        ...

    def move(self, problem: Problem, x: Array, models: LocalModels, memory: Any) -> Move:
        """Take one step."""
        ...


class State(NamedTuple):
    """A run between two steps."""

    step: Int[Array, ""]
    x: Float[Array, " N"]
    models: LocalModels
    memory: Any
    code: Int[Array, ""]
    factorizations: Int[Array, ""]
    evaluations: Int[Array, ""]
    record: Record
    """Of the last step."""


class Limits(NamedTuple):
    """When to stop."""

    gradient: Any
    """Threshold on ‖g‖∞."""
    max_steps: Any


def start(problem: Problem, search: Search, x: Array, tol: Any, max_steps: Any) -> tuple[State, Limits]:
    """Linearise at the start, and set the threshold: tol·max(1, ‖g(x₀)‖∞/1000), the second for bad scaling."""
    models = problem.models(x)
    size = largest(problem.gradient(models))
    limits = Limits(tol * jnp.maximum(1.0, 1e-3 * size), jnp.asarray(max_steps, jnp.int32))
    nan, zero = jnp.full((), jnp.nan, x.dtype), jnp.zeros((), jnp.int32)
    record = Record(nan, nan, nan, nan, nan, jnp.full(3, -1, jnp.int32))
    code = jnp.where(size <= limits.gradient, CONVERGED, jnp.where(limits.max_steps <= 0, MAX_STEPS, RUNNING))
    code = jnp.where(all_finite(models), code, NONFINITE).astype(jnp.int32)
    memory = search.begin(problem, x, models)
    return State(zero, x, models, memory, code, zero, zero + 1, record), limits


def advance(problem: Problem, search: Search, limits: Limits, state: State) -> State:
    """Take one step, and see whether the run ends."""
    move = search.move(problem, state.x, state.models, state.memory)
    went_on = move.code == RUNNING
    step = state.step + went_on.astype(jnp.int32)
    small = largest(problem.gradient(move.models)) <= limits.gradient
    code = jnp.where(small, CONVERGED, jnp.where(step >= limits.max_steps, MAX_STEPS, RUNNING))
    return State(
        step,
        move.x,
        move.models,
        move.memory,
        jnp.where(went_on, code, move.code).astype(jnp.int32),
        state.factorizations + move.factorizations,
        state.evaluations + move.evaluations,
        move.record,
    )


def run(problem: Problem, search: Search, x: Array, tol: Any, max_steps: int) -> tuple[State, Record]:
    """Run to the end inside jit; the history has max_steps rows, NaN behind the last step."""
    state, limits = start(problem, search, x, tol, max_steps)
    rows = jax.tree_util.tree_map(lambda r: jnp.broadcast_to(r, (max_steps, *r.shape)), state.record)

    def once(carry: tuple[State, Record]) -> tuple[State, Record]:
        before, rows = carry
        after = advance(problem, search, limits, before)
        # The last row is written again where nothing moved; it is not counted.
        at = jnp.minimum(before.step, max_steps - 1)
        moved = after.step > before.step
        rows = jax.tree_util.tree_map(
            lambda h, r: h.at[at].set(jnp.where(moved, r, h[at])), rows, after.record
        )
        return after, rows

    return jax.lax.while_loop(lambda c: c[0].code == RUNNING, once, (state, rows))


def largest(x: Array) -> Array:
    """‖x‖∞."""
    return jnp.max(jnp.abs(x), initial=0.0)


def all_finite(models: LocalModels) -> Array:
    """Whether value and derivatives are finite."""
    parts = (models.value, models.duals, models.sources)
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(p)) for p in parts]))
