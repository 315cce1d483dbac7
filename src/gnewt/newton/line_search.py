"""LineSearch: the paper's Algorithm 1 with what the printed one lacks: an inertia-corrected shift (E19)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from gnewt.kkt import LocalModels
from gnewt.newton.arithmetic import Array, maximum, number, vdot, where, while_loop
from gnewt.newton.judge import Line, Trial, Tried, backtrack, end_of, fell_without_bound, noise_of
from gnewt.newton.loop import Iterate, Move, Proposal, Task, largest_shift, line_record, scale_of

_FALL = 4.0
"""The first μ that is tried where H itself is not positive definite is the last one, divided by this."""


class LineMemory(NamedTuple):
    """What one step leaves to the next."""

    shift: Array
    longest: Array
    """Length to begin with: 1, or less after a step to where derivatives are not finite."""


class _Direction(NamedTuple):
    step: Array
    """-(H + μI)⁻¹g"""
    shift: Array
    definite: Array
    """Whether H + μI ≻ 0."""
    inertia: Array
    """Of H."""
    tries: Array
    """Factorisations."""


class _OnLine(NamedTuple):
    """What `propose` tells `settle`."""

    tried: Tried
    line: Line
    direction: _Direction


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

    def begin(self, task: Task, x: Array, models: LocalModels) -> LineMemory:
        """Nothing is known."""
        return LineMemory(number(0.0, x), number(1.0, x))

    def resume(self, memory: LineMemory) -> LineMemory:
        """Go on with the shift."""
        return memory._replace(longest=number(1.0, memory.longest))

    def propose(self, task: Task, at: Iterate) -> Proposal:
        """Factorise until the inertia says positive definite, then backtrack."""
        gradient = task.gradient(at.models)
        found = self._direction(task, at.models, gradient, at.memory.shift)
        slope = vdot(gradient, found.step)
        # pᵀ(H + μI)p = -gᵀp
        line = Line(task.value_of(at.models), slope, -slope)

        def value(length: Array) -> tuple[Array, Array]:
            there = at.x + length * found.step
            return task.value(there), there

        noise, longest = noise_of(task, at.models), at.memory.longest
        tried = backtrack(value, at.x, line, noise, self.armijo, longest, self.max_halvings)
        rest = _OnLine(tried, line, found)
        return Proposal(tried.found, found.definite & tried.passed, found.tries, tried.evaluations, rest)

    def settle(self, task: Task, at: Iterate, proposal: Proposal, after: LocalModels) -> Move:
        """Take the step, unless derivatives are not finite there, or nothing is gained within rounding."""
        rest: _OnLine = proposal.rest
        tried, line, found = rest
        noise = noise_of(task, at.models)
        trial = Trial(line.before, tried.value, line.promises(tried.length), noise)
        taken = trial.is_taken(task, at.models, proposal, after)
        stuck = ~(taken | tried.is_cut(task, after))
        # A step with a shift is not Newton's: what it promises tells nothing of how far the minimum is.
        promised = where(found.shift == 0, line.promises(1.0), np.inf)
        code = end_of(
            found.definite, fell_without_bound(task, tried.value, taken, after), stuck, promised, noise
        )
        record = line_record(task, at, found.shift, tried.length, found.inertia)
        longest = where(taken, 1.0, tried.length / 2)
        shift = where(found.definite, found.shift, at.memory.shift)
        return Move(taken, LineMemory(shift, longest), code, record)

    def _direction(self, task: Task, models: LocalModels, gradient: Array, last: Array) -> _Direction:
        """Raise μ from 0 until H + μI ≻ 0."""
        first = maximum(last / _FALL, self.first_shift * scale_of(models))

        def goes_on(d: _Direction) -> Array:
            return ~d.definite & (d.shift < largest_shift(models))

        def attempt(shift: Array, tries: Array, wanted: Array = True) -> _Direction:
            step, found = task.factor_solve(models, shift, -gradient, wanted)
            return _Direction(step, shift, task.is_definite(found), found.inertia, tries)

        def again(d: _Direction) -> _Direction:
            shift = where(d.shift == 0, first, d.shift * self.growth)
            return attempt(shift, d.tries + 1, goes_on(d))._replace(inertia=d.inertia)

        begin = attempt(number(0.0, gradient), np.int32(1))
        return while_loop(goes_on, again, begin)
