"""Judge: what becomes of a trial point, for the trust region, the line search and the rollout alike.

A model of f promises a decrease. Where the promise stands out from the rounding of f, f must keep a share of it.
Where the promise drowns in the rounding of f, f may rise a little, and the gradient decides: it must shrink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from gnewt.kkt import LocalModels
from gnewt.newton.arithmetic import Array, isfinite, largest, maximum, number, smallest, where, while_loop
from gnewt.newton.loop import Proposal, Task, all_finite
from gnewt.newton.statuses import loop_status

NOISE = 4.0
"""Rounding of f, in units of eps·|f|: a sum of a few terms rounds a few times. The unit is small on purpose: below it
f has no say, and a gradient that shrinks does not tell a minimum from a saddle. Programs that round more are met by
`RISE` and `ROUNDING`, and by the trust region, which measures the noise of f where steps are refused."""
RISE = 64.0
"""How far f may rise, in units of its noise, where the gradient decides: the rounding of a long program is more than
that of its result."""
ROUNDING = 1e3
"""How much more than the noise of f a Newton step may promise and yet, if f does not fall, end a run as `stalled`:
the rounding of a long program is more than that of its result. A promise beyond that is broken by something else."""


def noise_of(task: Task, models: LocalModels) -> Float[Array, ""]:
    """Rounding of f: a decrease below it cannot be seen."""
    return NOISE * task.eps * maximum(abs(task.value_of(models)), smallest(models.slots))


class Line(NamedTuple):
    """f along a step p whose quadratic model is known."""

    before: Float[Array, ""]
    """f(x)"""
    slope: Float[Array, ""]
    """gᵀp"""
    curvature: Float[Array, ""]
    """pᵀHp"""

    def promises(self, length: Array | float) -> Float[Array, ""]:
        """The decrease of the model at x + length·p."""
        return -(length * self.slope + 0.5 * length**2 * self.curvature)


class Trial(NamedTuple):
    """A value of f that a search looks at."""

    before: Float[Array, ""]
    """f at the iterate."""
    value: Float[Array, ""]
    """f at the trial point."""
    promised: Float[Array, ""]
    """The decrease that the model predicts."""
    noise: Float[Array, ""]
    """Rounding of f."""

    @property
    def drowns(self) -> Bool[Array, ""]:
        """Whether the promise is below the noise of f, so that the gradient must decide."""
        return self.promised <= self.noise

    def passes(self, share: float) -> Bool[Array, ""]:
        """Whether f keeps a share of the promise, or does not rise above its noise where the gradient decides."""
        most = self.before + where(self.drowns, RISE * self.noise, -share * self.promised)
        return isfinite(self.value) & (self.value <= most)

    def is_taken(
        self, task: Task, models: LocalModels, proposal: Proposal, after: LocalModels
    ) -> Bool[Array, ""]:
        """Whether the iterate moves there, now that the derivatives there are known."""
        shrinks = largest(task.gradient(after)) < largest(task.gradient(models))
        return proposal.wanted & all_finite(after) & (~self.drowns | shrinks)


def end_of(definite: Array, unbounded: Array, stuck: Array, promised: Array, noise: Array) -> Int[Array, ""]:
    """Status of the loop after a step, from what the Newton step promises at the end."""
    return loop_status(definite, unbounded, stuck, promised <= ROUNDING * noise)


def fell_without_bound(task: Task, value: Array, taken: Array, after: LocalModels) -> Bool[Array, ""]:
    """Whether f at the trial point is -∞, or lower than any digit of a number of ordinary size can tell."""
    return (value == -np.inf) | (taken & (task.value_of(after) < -1.0 / task.eps**2))


class Tried(NamedTuple):
    """The last length that was tried, and f there."""

    length: Array
    value: Array
    passed: Array
    evaluations: Array
    found: Array
    """What came with the value: the point, or the whole graph there."""

    def is_cut(self, task: Task, after: LocalModels) -> Array:
        """Whether derivatives are not finite behind a good value: the next step begins with half the length."""
        return self.passed & ~all_finite(after) & (self.length > task.eps)


def backtrack(
    value: Callable[[Array], tuple[Array, Array]],
    nothing: Array,
    line: Line,
    noise: Array,
    share: float,
    longest: Array,
    most: Array | int,
) -> Tried:
    """Halve the length until f keeps a share of what the model promises, `most` times at most.

    Args:
        value: f at a length, and what comes with it.
        nothing: stands for what comes with f, before the first value.
        longest: the first length.
    """

    def halve(last: Tried) -> Tried:
        length = last.length / 2
        there, found = value(length)
        passed = Trial(line.before, there, line.promises(length), noise).passes(share)
        return Tried(length, there, passed, last.evaluations + 1, found)

    def goes_on(last: Tried) -> Array:
        return ~last.passed & (last.value != -np.inf) & (last.evaluations < most)

    nan = number(np.nan, line.before)
    return while_loop(goes_on, halve, Tried(2 * longest, nan, np.bool_(False), np.int32(0), nothing))
