"""Rollout: steps by nonlinear back-substitution, u = ū + ηk + K(s - s̄) with every node evaluated (the DDP family).

The path in η is a curve, along which the model of f decreases by η Σ q_uᵀk + ½η² Σ kᵀQ_uu k (E18).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._errors import PlanError
from gnewt._typing import Argument
from gnewt.kkt import DUALS, FoundPolicies, LocalModels
from gnewt.newton.arithmetic import Array, known, maximum, minimum, number, where, while_loop
from gnewt.newton.causal import CausalElimination, Swept, causal_elimination
from gnewt.newton.judge import Line, Trial, Tried, backtrack, end_of, fell_without_bound, noise_of
from gnewt.newton.loop import (
    Iterate,
    Move,
    Proposal,
    Search,
    Task,
    largest_shift,
    line_record,
    scale_of,
)
from gnewt.newton.system import System
from gnewt.newton.trust_region import TrustRegion


class RolloutMemory(NamedTuple):
    """What one step leaves to the next."""

    shift: Array
    factor: Array
    """By which μ was changed last: it grows while μ keeps going one way."""
    longest: Array
    """Length to begin with: 1, or less after a step to where derivatives are not finite."""


class _Attempt(NamedTuple):
    """One elimination, and the best that was found along its curve."""

    shift: Array
    factor: Array
    good: Array
    """Whether every Q_uu + μI is positive definite."""
    line: Line
    tried: Tried
    """With the slots at the length."""
    tries: Array
    """Eliminations."""
    evaluations: Array


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Policies from a causal elimination, applied by evaluating the graph; μ on Q_uu keeps them safe.

    With `duals="adjoint"` the shifted matrix is exactly H + μI, and it is positive definite if and only if every Q_uu + μI is. With
    `"value"` (DDP) and `"zero"` (iLQR) μ only makes the policy, and the value function is that of the policy. μ follows the
    schedule of Tassa et al. (2012): up while pivots or steps fail, down (to 0) as steps succeed.
    """

    duals: str = "adjoint"
    """λ in the Hessians of the nodes: `adjoint` (Newton), `value` (DDP), `zero` (iLQR)."""
    armijo: float = 1e-4
    """Share of the expected decrease along the curve that a step must achieve."""
    first_shift: float = 1e-6
    """The smallest μ that is not 0, of the largest local derivative."""
    growth: float = 2.0
    max_halvings: int = 12
    """Of η; then μ is raised."""
    max_halvings_without: int = 2
    """Lengths tried of the step without the nodes' curvature (adjoint duals only); 0 never leaves it out."""
    square_root: bool = False
    """Eliminate in square-root form: more accurate where weights differ by many orders. Needs `duals="zero"`, losses with
    positive semidefinite Hessians, and a chain."""

    def __post_init__(self) -> None:
        if self.duals not in DUALS:
            raise PlanError(f"unknown duals {self.duals!r}", remedy=f"use one of {', '.join(DUALS)}")
        if self.square_root and self.duals != "zero":
            raise PlanError(
                f"the square-root form needs positive semidefinite pieces; duals={self.duals!r} have others (E22)",
                remedy="use duals='zero' (iLQR), or square_root=False",
            )

    @property
    def curvature(self) -> str:
        """Curvature that derivatives are needed with: those of the nodes come from here unless λ is the adjoint."""
        return "exact" if self.duals == "adjoint" else "gauss_newton"

    @property
    def evaluates(self) -> bool:
        """Proposals bring their slots."""
        return True

    def begin(self, task: Task, x: Array, models: LocalModels) -> RolloutMemory:
        """Begin without a shift."""
        return RolloutMemory(number(0.0, x), number(1.0, x), number(1.0, x))

    def resume(self, memory: RolloutMemory) -> RolloutMemory:
        """Go on with the shift."""
        return memory._replace(longest=number(1.0, memory.longest))

    def propose(self, task: Task, at: Iterate) -> Proposal:
        """Eliminate until every Q_uu + μI is positive definite, and backtrack along the curve.

        Where H + μI is not positive definite, first the nodes' curvature is left out: far from a solution the Gauss-Newton step is
        often good, and costs one elimination, where finding a μ costs many. Only if its full or half step is not, μ is raised.
        """
        assert isinstance(task.system, System), "products have no policies"
        sweep, models, memory = causal_elimination(task.system), at.models, at.memory
        noise = noise_of(task, models)

        def attempt(a: _Attempt) -> _Attempt:
            shift, factor, share = self._schedule(models, a.tries, a.shift, a.factor)
            found, swept = self._run(task, sweep, models, shift, share)
            good, line = swept.good, self._line(task, models, swept, shift)
            most = good * where(share < 1, self.max_halvings_without, self.max_halvings)

            def value(length: Array) -> tuple[Array, Array]:
                return sweep.follow(task.system.maps, task.point.data, models.slots, found, length)

            tried = backtrack(value, models.slots, line, noise, self.armijo, memory.longest, most)
            evaluations = a.evaluations + tried.evaluations
            return _Attempt(shift, factor, good, line, tried, a.tries + 1, evaluations)

        def goes_on(a: _Attempt) -> Array:
            fails = self._leaves_out(a.tries - 1) & ~a.tried.passed & (a.tried.value != -np.inf)
            return (~a.good | fails) & (a.shift < largest_shift(models))

        nan, no, zero = number(np.nan, noise), np.bool_(False), np.int32(0)
        nothing = Tried(memory.longest, nan, no, zero, models.slots)
        line = Line(task.value_of(models), nan, nan)
        first = _Attempt(memory.shift, memory.factor, no, line, nothing, zero, zero)
        done = while_loop(goes_on, attempt, first)
        slots, wanted = done.tried.found, done.good & done.tried.passed
        return Proposal(known(slots)[: task.size], wanted, done.tries, done.evaluations, done, slots)

    def policies(
        self, task: Task, sweep: CausalElimination, models: LocalModels
    ) -> tuple[FoundPolicies, Array]:
        """Policies with the least μ for which they are safe, 0 if possible; and whether there are any."""
        zero = jnp.zeros_like(models.value)
        state = (zero, zero + 1, jnp.zeros((), jnp.int32))

        def again(carry: Any) -> Any:
            (shift, factor, count), _ = carry
            shift, factor, share = self._schedule(models, count, shift, factor)
            return (shift, factor, count + 1), self._run(task, sweep, models, shift, share)

        def goes_on(carry: Any) -> Array:
            (shift, _, count), (_, swept) = carry
            return (count == 0) | (~swept.good & (shift < largest_shift(models)))

        shapes = jax.eval_shape(lambda: again((state, None))[1])
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        _, (found, swept) = jax.lax.while_loop(goes_on, again, (state, empty))
        return found, swept.good

    def settle(self, task: Task, at: Iterate, proposal: Proposal, after: LocalModels) -> Move:
        """Take the step and lower μ, or raise μ and try again."""
        done: _Attempt = proposal.rest
        models, noise = at.models, noise_of(task, at.models)
        tried, line, shift, factor = done.tried, done.line, done.shift, done.factor
        trial = Trial(line.before, tried.value, line.promises(tried.length), noise)
        taken, cut = trial.is_taken(task, models, proposal, after), tried.is_cut(task, after)
        lower, slower = self._change(models, shift, factor, up=False)
        higher, faster = self._change(models, shift, factor, up=True)
        stuck = ~taken & ~cut & (trial.drowns | (higher > largest_shift(models)))
        code = end_of(
            done.good, fell_without_bound(task, tried.value, taken, after), stuck, line.promises(1.0), noise
        )
        record = line_record(task, at, shift, tried.length, np.full(3, -1, np.int32))
        memory = RolloutMemory(
            where(taken, lower, where(cut, shift, higher)),
            where(taken, slower, where(cut, factor, faster)),
            where(cut, tried.length / 2, number(1.0, tried.length)),
        )
        return Move(taken, memory, code, record)

    def _change(self, models: LocalModels, shift: Array, factor: Array, up: bool) -> tuple[Array, Array]:
        """Raise or lower μ: (μ, factor). What keeps going one way goes faster and faster."""
        first = self.first_shift * scale_of(models)
        if up:
            factor = maximum(self.growth, factor * self.growth)
            return maximum(first, shift * factor), factor
        factor = minimum(1 / self.growth, factor / self.growth)
        return where(shift * factor >= first, shift * factor, number(0.0, shift)), factor

    def _leaves_out(self, count: Array) -> Array:
        """Whether an attempt is made without the nodes' curvature: the second one."""
        return (count == 1) & (self.duals == "adjoint") & (self.max_halvings_without > 0)

    def _schedule(
        self, models: LocalModels, count: Array, shift: Array, factor: Array
    ) -> tuple[Array, Array, Array]:
        """(μ, factor, share of the nodes' curvature) of the next attempt."""
        higher, faster = self._change(models, shift, factor, up=True)
        same = (count == 0) | self._leaves_out(count)
        share = where(self._leaves_out(count), number(0.0, shift), number(1.0, shift))
        return where(same, shift, higher), where(same, factor, faster), share

    def _run(
        self, task: Task, sweep: CausalElimination, models: LocalModels, shift: Array, share: Array
    ) -> tuple[FoundPolicies, Swept]:
        return sweep.policies(task.point.data, models, shift, share, self.duals, self.square_root)

    def _line(self, task: Task, models: LocalModels, swept: Swept, shift: Array) -> Line:
        """The model along the curve: slope Σ q_uᵀk and curvature Σ kᵀQ_uu k, with μ where μ is part of the model."""
        curve = swept.curve + shift * swept.size if self.duals == "adjoint" else swept.curve
        return Line(task.value_of(models), swept.slope, curve)


BACK_SUBSTITUTIONS = ("linear", "nonlinear")


def choose_search(search: Argument[Search | None], duals: str, back_substitution: str) -> Search:
    """The search that `minimize` runs with: the given one, a trust region, or a rollout."""
    if back_substitution not in BACK_SUBSTITUTIONS or duals not in DUALS:
        raise PlanError(
            f"unknown duals {duals!r} or back-substitution {back_substitution!r}",
            remedy=f"use duals in {', '.join(DUALS)} and back_substitution in {', '.join(BACK_SUBSTITUTIONS)}",
        )
    if search is not None and (isinstance(search, type) or not isinstance(search, Search)):
        raise PlanError(
            f"search is {search!r}, which is none",
            remedy="give an object: gnewt.newton.TrustRegion(), LineSearch() or Rollout()",
        )
    if back_substitution == "linear":
        if duals == "value":
            raise PlanError(
                "value duals are those of policies, which linear back-substitution does not follow",
                remedy="use back_substitution='nonlinear' (DDP)",
            )
        return TrustRegion() if search is None else search
    if search is not None and not isinstance(search, Rollout):
        raise PlanError(
            f"{type(search).__name__} searches along a line, nonlinear back-substitution along a curve",
            remedy="leave search out, or give a gnewt.newton.Rollout",
        )
    return Rollout(duals) if search is None else search
