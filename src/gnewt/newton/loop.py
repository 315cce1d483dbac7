"""The loop of Newton's method: one function that advances a state, for the host and for lax.while_loop alike.

It knows nothing of trust regions or line searches: a search is a value with three functions, `begin`, `propose` and
`settle`. Derivatives are computed between the last two. On the host derivatives, values and eliminations are compiled,
as they are for a Newton step; what lies between them is NumPy's (`newton/arithmetic.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from gnewt.kkt import OK, Elimination, LocalModels
from gnewt.newton.arithmetic import (
    Array,
    are_finite,
    is_traced,
    known,
    largest,
    maximum,
    number,
    smallest,
    where,
)
from gnewt.newton.numbers import Inertia, Real, RealLike
from gnewt.newton.objective import Point
from gnewt.newton.products import ProductSystem
from gnewt.newton.statuses import Status
from gnewt.newton.system import System

_TOL_SHARE = 1e-3
"""Share of the first gradient that scales the tolerance: a bad scaling of f asks for no more digits than f has."""
_LARGEST_SHIFT = 1e12
"""Largest μ that is tried, in units of the largest local derivative. Derivatives multiply along a path of the graph,
so that H exceeds its local derivatives; a μ beyond this factor makes H + μI a multiple of I to all digits that count."""


class Record(NamedTuple):
    """One step of the history: numbers on the host, arrays inside jit."""

    value: Real
    """f before the step."""
    grad_norm: Real
    """‖g‖∞ before the step."""
    shift: Real
    """μ of the H + μI that the step was made with."""
    radius: Real
    """Of the trust region; NaN for a line search."""
    ratio: Real
    """Achieved over predicted decrease; for a line search the length of the step."""
    inertia: Inertia | Array
    """[3]: positive, negative and zero eigenvalues of H itself; -1 where H itself was not factorised."""


class Iterate(NamedTuple):
    """Where a run stands: what a search chooses its next step from."""

    x: Float[Array, " N"]
    models: LocalModels
    memory: Any
    """Of the search."""


class Proposal(NamedTuple):
    """Where a search wants to go."""

    x: Float[Array, " N"]
    wanted: Bool[Array, ""]
    """Whether f at x is good enough to ask for derivatives there."""
    factorizations: Int[Array, ""]
    evaluations: Int[Array, ""]
    rest: Any
    """What `settle` needs to know."""
    slots: Array | None = None
    """The graph at x, where the search evaluated it: derivatives then need not evaluate it again."""


class Move(NamedTuple):
    """What became of a proposal: the next iterate, or the last one again, perhaps with a status that ends the run."""

    taken: Bool[Array, ""]
    memory: Any
    code: Int[Array, ""]
    """`Status.RUNNING`, or why the run ends here."""
    record: Record


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """What a search may ask of the objective. Everything is traceable."""

    system: System | ProductSystem
    point: Point
    active: Array = True
    """Whether this run still goes on. Under vmap a lane that has ended is computed with the others, but not eliminated."""
    near: Array | None = None
    """The graph at the last iterate, where long recurrences are solved for all rounds at once, from there."""

    def beside(self, models: LocalModels) -> Task:
        """The same task, near an iterate."""
        if isinstance(self.system, System) and self.system.evaluation == "at_once":
            return dataclasses.replace(self, near=models.slots)
        return self

    @property
    def eliminates(self) -> bool:
        """Whether H + μI can be factorised; else there are products H·v only."""
        return isinstance(self.system, System)

    @property
    def size(self) -> int:
        return self.system.structure.num_inputs

    @property
    def eps(self) -> float:
        """Rounding to expect in f."""
        return self.system.structure.eps

    def value(self, x: Array) -> Array:
        point = dataclasses.replace(self.point, x=x)
        if isinstance(self.system, ProductSystem):
            return known(self.system.value(point))
        return known(self.system.value(point, self.near))

    def value_of(self, models: LocalModels) -> Array:
        """The value of f, where derivatives were taken."""
        return known(models.value)

    def models(self, x: Array, slots: Array | None = None) -> LocalModels:
        point = dataclasses.replace(self.point, x=x)
        if isinstance(self.system, ProductSystem):
            return self.system.linearize(point, slots)
        return self.system.linearize(point, slots, near=self.near)

    def first_slots(self, search: Search) -> Array | None:
        """The graph at the start, for a search whose proposals bring theirs: derivatives then have one form."""
        if isinstance(self.system, System) and getattr(search, "evaluates", False):
            return self.system.slots(self.point)
        return None

    def gradient(self, models: LocalModels) -> Array:
        return known(models.duals)[: self.size]

    def products_at(self, x: Array) -> Callable[[Array], Array]:
        """v ↦ H·v: what depends on x alone is computed once."""
        assert isinstance(self.system, ProductSystem)
        return self.system.products_at(dataclasses.replace(self.point, x=x))

    def factor_solve(
        self, models: LocalModels, shift: RealLike, rhs: Array, wanted: Array = True
    ) -> tuple[Array, Elimination]:
        """Eliminate H + shift·I and solve.

        Args:
            wanted: whether the answer will be used. Under vmap a lane whose answer nobody uses takes no time: its shift
                is NaN, which asks for nothing.
        """
        assert isinstance(self.system, System)
        system, mu = self.system, shift if is_traced(shift) else float(shift)  # as `newton_step` gives it
        if is_traced(shift):
            mu = where(jnp.asarray(wanted & self.active), mu, np.nan)
        step, found = system.run_factor_solve(system.arrays, models.sources, mu, rhs[:, None])
        return known(step)[:, 0], found._replace(status=known(found.status), inertia=known(found.inertia))

    def is_definite(self, elimination: Elimination) -> Array:
        """Whether H + μI ≻ 0, by its inertia."""
        return (elimination.status == OK) & (elimination.inertia[0] == self.size)

    def solve(self, models: LocalModels, elimination: Elimination, rhs: Array) -> Array:
        assert isinstance(self.system, System)
        system = self.system
        return known(system.run_solve(system.arrays, models.sources, elimination, rhs[:, None]))[:, 0]


@runtime_checkable
class Search(Protocol):
    """A globalisation: hashable, small, traceable."""

    def begin(self, task: Task, x: Array, models: LocalModels) -> Any:
        """Return the memory that is handed on from step to step: a radius, the last shift."""
        ...

    def resume(self, memory: Any) -> Any:
        """Keep of an earlier run's memory what is true of another objective, too."""
        ...

    def propose(self, task: Task, at: Iterate) -> Proposal:
        """Choose a point from the derivatives at an iterate, and values of f."""
        ...

    def settle(self, task: Task, at: Iterate, proposal: Proposal, after: LocalModels) -> Move:
        """Take it or leave it. `after` are the derivatives there if they were wanted, else those of the iterate."""
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

    @property
    def at(self) -> Iterate:
        return Iterate(self.x, self.models, self.memory)


class Limits(NamedTuple):
    """When to stop."""

    gradient: Float[Array, ""]
    """Threshold on ‖g‖∞."""
    max_steps: Int[Array, ""]


def start(
    task: Task,
    search: Search,
    x: Array,
    models: LocalModels,
    tol: RealLike,
    max_steps: RealLike,
    memory: object = None,
) -> tuple[State, Limits]:
    """Begin at x. The threshold is tol·max(1, ‖g(x₀)‖∞/1000), the second for bad scaling.

    Args:
        memory: what the last step of an earlier run left, to go on from there; of no use to another search.
    """
    size = largest(task.gradient(models))
    most = max_steps if is_traced(max_steps) else np.int32(max_steps)
    limits = Limits(maximum(1.0, _TOL_SHARE * size) * tol, most)
    zero = np.int32(0)
    code = _ending(size <= limits.gradient, most <= 0)
    code = _code(where(all_finite(models), code, Status.NONFINITE))
    fresh = search.begin(task, x, models)
    same = jax.tree_util.tree_structure(memory) == jax.tree_util.tree_structure(fresh)
    memory = search.resume(memory) if same else fresh
    one = np.int32(1)
    return State(zero, x, models, memory, code, zero, one, one, _no_record(x)), limits


def settle(
    task: Task,
    search: Search,
    limits: Limits,
    state: State,
    proposal: Proposal,
    after: LocalModels,
) -> State:
    """Take the proposal or leave it, and see whether the run ends."""
    move = search.settle(task, state.at, proposal, after)
    models = where(move.taken, after, state.models)
    runs = move.code == Status.RUNNING
    step = state.step + runs
    small = largest(task.gradient(models)) <= limits.gradient
    code = where(runs | (move.taken & small), _ending(small, step >= limits.max_steps), move.code)
    return State(
        step,
        where(move.taken, proposal.x, state.x),
        models,
        move.memory,
        _code(code),
        state.factorizations + proposal.factorizations,
        state.evaluations + proposal.evaluations,
        state.gradients + proposal.wanted,
        move.record,
    )


def _no_record(x: Array) -> Record:
    nan = number(np.nan, x)
    return Record(nan, nan, nan, nan, nan, np.full(3, -1, np.int32))


def _ending(small: Array, late: Array) -> Array:
    """Whether a run that may go on ends: by its gradient, or by its number of steps."""
    return where(small, int(Status.CONVERGED), where(late, int(Status.MAX_STEPS), int(Status.RUNNING)))


def _code(status: Array) -> Array:
    return jnp.asarray(status, jnp.int32) if is_traced(status) else np.int32(status)


def _settled(
    task: Task, search: Search, before: State, limits: Limits, proposal: Proposal
) -> tuple[State, LocalModels]:
    """Take derivatives where they are wanted, and settle. Inside jit."""
    there = proposal.x, proposal.slots
    after = jax.lax.cond(proposal.wanted, task.beside(before.models).models, lambda *_: before.models, *there)
    return settle(task, search, limits, before, proposal, after), after


def some_steps(
    task: Task, search: Search, limits: Limits, state: State, most: Array, rows: int
) -> tuple[State, Record]:
    """Go on for `most` steps, inside jit; the history has so many rows, of which the first are written."""
    first = state.step

    def once(carry: tuple[State, Record]) -> tuple[State, Record]:
        before, rows = carry
        mine = dataclasses.replace(task.beside(before.models), active=goes_on(carry))
        after, _ = _settled(mine, search, before, limits, search.propose(mine, before.at))
        return after, _write(rows, before.step - first, after.step > before.step, after.record)

    def goes_on(carry: tuple[State, Record]) -> Array:
        return (carry[0].code == Status.RUNNING) & (carry[0].step - first < most)

    return jax.lax.while_loop(goes_on, once, (state, _no_rows(state.x, rows)))


def _no_rows(x: Array, count: int) -> Record:
    return jax.tree_util.tree_map(lambda r: jnp.broadcast_to(r, (count, *r.shape)), _no_record(x))


def _write(rows: Record, at: Array, moved: Array, record: Record) -> Record:
    """Put a record into a row; the row stays where nothing moved."""
    return jax.tree_util.tree_map(lambda h, r: h.at[at].set(jnp.where(moved, r, h[at])), rows, record)


def run(
    task: Task, search: Search, x: Array, tol: RealLike, max_steps: int, memory: object = None
) -> tuple[State, Record]:
    """Run to the end inside jit; the history has max_steps rows, NaN behind the last step."""
    slots = task.first_slots(search)

    def begin(models: LocalModels) -> tuple[State, Limits]:
        return start(task, search, x, models, tol, max_steps, memory)

    advance = partial(_settled, task, search)

    # A search that brings its slots starts inside the loop, in a round without a proposal: derivatives are then compiled
    # once. Other searches call an engine, whose integers lax.cond would copy for every lane under vmap.
    if slots is None:
        begun, (state, limits), nothing = True, begin(task.models(x)), None
    else:
        begun, (state, limits) = False, _blank(lambda: begin(task.models(x, slots)))
        nothing = _blank(lambda: search.propose(task, state.at))
        nothing = nothing._replace(x=x, slots=slots, wanted=jnp.ones((), bool))

    def once(carry: tuple[Array, State, Limits, Record]) -> tuple[Array, State, Limits, Record]:
        begun, before, limits, rows = carry
        mine = dataclasses.replace(task.beside(before.models), active=goes_on(carry))
        if slots is None:
            after, _ = _settled(mine, search, before, limits, search.propose(mine, before.at))
        else:
            proposal = jax.lax.cond(begun, lambda: search.propose(task, before.at), lambda: nothing)
            after, models = advance(before, limits, proposal)
            after, limits = where(begun, (after, limits), begin(models))
        # The last row is written again where nothing moved; it is not counted.
        at = jnp.minimum(before.step, max_steps - 1)
        moved = begun & (after.step > before.step)
        return begun | True, after, limits, _write(rows, at, moved, after.record)

    def goes_on(carry: tuple[Array, State, Limits, Record]) -> Array:
        return ~carry[0] | (carry[1].code == Status.RUNNING)

    rows = _no_rows(x, max_steps)
    _, state, _, rows = jax.lax.while_loop(goes_on, once, (np.bool_(begun), state, limits, rows))
    return state, rows


def _blank(make: Callable[[], Any]) -> Any:
    """Zeros in the form of what a function would return."""
    seen = []

    def leaves() -> list[Array]:
        found, tree = jax.tree_util.tree_flatten(make())
        seen.append(tree)
        return found

    zeros = [jnp.zeros(s.shape, s.dtype) for s in jax.eval_shape(leaves)]
    return jax.tree_util.tree_unflatten(seen[0], zeros)


def all_finite(models: LocalModels) -> Array:
    """Whether value and derivatives are finite."""
    return are_finite(models.value, models.duals, models.sources)


def line_record(task: Task, at: Iterate, shift: Array, length: Array, inertia: Array) -> Record:
    """Record a step that was made without a radius."""
    nan = number(np.nan, at.x)
    return Record(task.value_of(at.models), largest(task.gradient(at.models)), shift, nan, length, inertia)


def scale_of(models: LocalModels) -> Array:
    """The largest local derivative: the unit of shifts."""
    return maximum(largest(models.sources), smallest(models.sources))


def largest_shift(models: LocalModels) -> Array:
    """The μ beyond which no search looks for a positive definite H + μI."""
    return _LARGEST_SHIFT * scale_of(models)
