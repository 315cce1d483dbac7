"""The loop of Newton's method: one function that advances a state, for the host and for lax.while_loop alike.

It knows nothing of trust regions or line searches: a search is a value with three functions, `begin`, `propose` and
`settle`. Derivatives are computed between the last two, so that the host can share their compiled code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.kkt import Elimination, LocalModels
from gnewt.newton.objective import Point
from gnewt.newton.products import ProductSystem
from gnewt.newton.system import System

STATUSES = (
    "running",
    "converged",
    "stalled",
    "max_steps",
    "unbounded",
    "nonfinite",
    "singular",
    "no_decrease",
    "time_limit",
    "stopped",
    "interrupted",
)
"""`Result.code` counts in this list."""
RUNNING, CONVERGED, STALLED, MAX_STEPS, UNBOUNDED, NONFINITE, SINGULAR, NO_DECREASE = range(8)
ROUNDING = 1e3
"""How much more than the noise of f a Newton step may promise and yet, if f does not fall, end a run as `stalled`:
the rounding of a long program is more than that of its result. A promise beyond that is broken by something else."""


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
    """What became of a proposal: the next iterate, or the last one again, perhaps with a status that ends the run."""

    taken: Bool[Array, ""]
    memory: Any
    code: Int[Array, ""]
    """RUNNING, or why the run ends here."""
    record: Record


class Proposal(NamedTuple):
    """Where a search wants to go."""

    x: Float[Array, " N"]
    wanted: Bool[Array, ""]
    """Whether f at x is good enough to ask for derivatives there."""
    factorizations: Int[Array, ""]
    evaluations: Int[Array, ""]
    rest: Any
    """What `settle` needs to know."""
    slots: Any = None
    """The graph at x, where the search evaluated it: derivatives then need not evaluate it again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """What a search may ask of the objective. Everything is traceable."""

    system: System | ProductSystem
    point: Point

    @property
    def eliminates(self) -> bool:
        """Whether H + μI can be factorised; else there are products H·v only."""
        return isinstance(self.system, System)

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

    def models(self, x: Array, slots: Array | None = None) -> LocalModels:
        return self.system.linearize(dataclasses.replace(self.point, x=x), slots)

    def gradient(self, models: LocalModels) -> Array:
        return models.duals[: self.size]

    def noise(self, models: LocalModels) -> Array:
        """Rounding of f: a decrease below it cannot be seen."""
        return 16 * self.eps * jnp.maximum(jnp.abs(models.value), jnp.finfo(models.slots.dtype).tiny)

    def products_at(self, x: Array) -> Callable[[Array], Array]:
        """v ↦ H·v: what depends on x alone is computed once."""
        assert isinstance(self.system, ProductSystem)
        return self.system.products_at(dataclasses.replace(self.point, x=x))

    def factor_solve(self, models: LocalModels, shift: Any, rhs: Array) -> tuple[Array, Elimination]:
        assert isinstance(self.system, System)
        return self.system.factor_solve(models, shift, rhs)

    def solve(self, models: LocalModels, elimination: Elimination, rhs: Array) -> Array:
        assert isinstance(self.system, System)
        return self.system.solve(models, elimination, rhs)


@runtime_checkable
class Search(Protocol):
    """A globalisation: hashable, small, traceable."""

    def begin(self, problem: Problem, x: Array, models: LocalModels) -> Any:
        """Return the memory that is handed on from step to step: a radius, the last shift."""
        ...

    def resume(self, memory: Any) -> Any:
        """Keep of an earlier run's memory what is true of another objective, too."""
        ...

    def propose(self, problem: Problem, x: Array, models: LocalModels, memory: Any) -> Proposal:
        """Choose a point from the derivatives at x, and values of f."""
        ...

    def settle(
        self,
        problem: Problem,
        x: Array,
        models: LocalModels,
        memory: Any,
        proposal: Proposal,
        after: LocalModels,
    ) -> Move:
        """Take it or leave it. `after` are the derivatives there if they were wanted, else those at x."""
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
    gradients: Int[Array, ""]
    record: Record
    """Of the last step."""


class Limits(NamedTuple):
    """When to stop."""

    gradient: Any
    """Threshold on ‖g‖∞."""
    max_steps: Any


def start(
    problem: Problem,
    search: Search,
    x: Array,
    models: LocalModels,
    tol: Any,
    max_steps: Any,
    memory: Any = None,
) -> tuple[State, Limits]:
    """Begin at x. The threshold is tol·max(1, ‖g(x₀)‖∞/1000), the second for bad scaling.

    Args:
        memory: what the last step of an earlier run left, to go on from there; of no use to another search.
    """
    size = largest(problem.gradient(models))
    limits = Limits(tol * jnp.maximum(1.0, 1e-3 * size), jnp.asarray(max_steps, jnp.int32))
    nan, zero = jnp.full((), jnp.nan, x.dtype), jnp.zeros((), jnp.int32)
    record = Record(nan, nan, nan, nan, nan, jnp.full(3, -1, jnp.int32))
    code = jnp.where(size <= limits.gradient, CONVERGED, jnp.where(limits.max_steps <= 0, MAX_STEPS, RUNNING))
    code = jnp.where(all_finite(models), code, NONFINITE).astype(jnp.int32)
    fresh = search.begin(problem, x, models)
    same = jax.tree_util.tree_structure(memory) == jax.tree_util.tree_structure(fresh)
    memory = search.resume(memory) if same else fresh
    return State(zero, x, models, memory, code, zero, zero + 1, zero + 1, record), limits


def settle(
    problem: Problem, search: Search, limits: Limits, state: State, proposal: Proposal, after: LocalModels
) -> State:
    """Take the proposal or leave it, and see whether the run ends."""
    move = search.settle(problem, state.x, state.models, state.memory, proposal, after)
    models = jax.tree_util.tree_map(lambda new, old: jnp.where(move.taken, new, old), after, state.models)
    step = state.step + (move.code == RUNNING)
    small = largest(problem.gradient(models)) <= limits.gradient
    code = jnp.where(small, CONVERGED, jnp.where(step >= limits.max_steps, MAX_STEPS, RUNNING))
    return State(
        step,
        jnp.where(move.taken, proposal.x, state.x),
        models,
        move.memory,
        jnp.where((move.code == RUNNING) | (move.taken & small), code, move.code).astype(jnp.int32),
        state.factorizations + proposal.factorizations,
        state.evaluations + proposal.evaluations,
        state.gradients + proposal.wanted,
        move.record,
    )


def advance(problem: Problem, search: Search, limits: Limits, state: State) -> State:
    """Take one step: propose, linearise there, settle."""
    proposal = search.propose(problem, state.x, state.models, state.memory)
    after = jax.lax.cond(proposal.wanted, problem.models, lambda *_: state.models, proposal.x, proposal.slots)
    return settle(problem, search, limits, state, proposal, after)


def run(
    problem: Problem, search: Search, x: Array, tol: Any, max_steps: int, memory: Any = None
) -> tuple[State, Record]:
    """Run to the end inside jit; the history has max_steps rows, NaN behind the last step."""
    state, limits = start(problem, search, x, problem.models(x), tol, max_steps, memory)
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
