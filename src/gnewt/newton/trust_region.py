"""TrustRegion: steps that the quadratic model can be trusted with, certified by the inertia of H + μI."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from gnewt.kkt import LocalModels
from gnewt.newton.arithmetic import (
    Array,
    isfinite,
    largest,
    maximum,
    minimum,
    norm,
    number,
    smallest,
    vdot,
    where,
    zeros_like,
)
from gnewt.newton.judge import Line, Trial, end_of, fell_without_bound, noise_of
from gnewt.newton.krylov import solve_with_products
from gnewt.newton.loop import Iterate, Move, Proposal, Record, Task
from gnewt.newton.subproblem import BallStep, Spectrum, begin_spectrum, forget, solve_subproblem
from gnewt.newton.trials import PROBE, Trials, try_lengths

_CLEAR = 1e3
"""A decrease that stands out so far from the noise of f tells something of the shape of f along the step."""
_PATIENCE = 3
"""Steps that are refused before the rounding of f is measured."""
_SAMPLE = 4.0
"""The rounding of f may be so many times the one sample that was measured."""
_CUT, _LEAST, _MOST = 0.1, 0.2, 0.5
"""A refused ball shrinks to the first where numbers are not finite, else to between the other two, of the step."""


class BallMemory(NamedTuple):
    """What one step leaves to the next."""

    radius: Array
    shift: Array
    """μ of the last step; 0 if that was the Newton step."""
    last: Array
    """Length of the last step."""
    promise: Array
    """Predicted decrease of the Newton step from here, where H ≻ 0 is known and the ball is large enough; else inf."""
    noise: Array
    """Rounding of f as it was measured, where steps were refused again and again; else 0."""
    refusals: Array
    """Steps refused since the last that was taken."""
    spectrum: Spectrum


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Minimise the quadratic model exactly in a ball, and let the ball follow how well the model predicts.

    The ball is Euclidean. A step that leaves the domain of f (a value or derivative that is not finite) is cut back.
    """

    radius: float | None = None
    """At the start. Unless given the first ball is as large as the Newton step where H ≻ 0, else max(1, ‖x₀‖)."""
    accept: float = 1e-4
    """Least ratio of achieved to predicted decrease."""
    shrink_below: float = 0.25
    grow_above: float = 0.75
    growth: float = 3.0
    slack: float = 0.2
    """How far from the boundary a step may end that should end there."""
    trials: int = 3
    """How many other lengths of a good step f is tried at; 0 for the plain trust region."""
    max_factorizations: int = 8
    """In one step, once H + μI is positive definite."""

    def begin(self, task: Task, x: Array, models: LocalModels) -> BallMemory:
        """Nothing is known of the radius unless it is given."""
        radius = number(np.inf if self.radius is None else self.radius, x)
        zero = number(0.0, x)
        return BallMemory(radius, zero, zero, number(np.inf, x), zero, np.int32(0), begin_spectrum(task, x))

    def resume(self, memory: BallMemory) -> BallMemory:
        """Go on with the radius."""
        return memory._replace(
            shift=zeros_like(memory.shift),
            promise=number(np.inf, memory.promise),
            noise=zeros_like(memory.noise),
            refusals=zeros_like(memory.refusals),
            spectrum=forget(memory.spectrum),
        )

    def propose(self, task: Task, at: Iterate) -> Proposal:
        """Solve the subproblem, evaluate f there, and at a few other lengths of the step."""
        found = self._subproblem(task, at)
        slope = vdot(task.gradient(at.models), found.step)
        floor = _noise(task, at)

        def likes(value: Array) -> Array:
            return found.found & _trial(task, at, found, value, floor).passes(self.accept)

        tried = try_lengths(
            task.value,
            at.x,
            found.step,
            Line(task.value_of(at.models), slope, -2.0 * (found.decrease + slope)),
            lambda value: likes(value) & (found.decrease > _CLEAR * floor),
            floor,
            self.trials,
            at.memory.refusals == _PATIENCE,
        )
        there = at.x + tried.length * found.step
        rest = _InBall(found, tried)
        return Proposal(there, likes(tried.first), found.factorizations, tried.evaluations, rest)

    def settle(self, task: Task, at: Iterate, proposal: Proposal, after: LocalModels) -> Move:
        """Take the step if the model was right enough, and set the radius."""
        rest: _InBall = proposal.rest
        (found, tried), (x, models, memory) = rest, at
        value, times, length, here = tried.first, tried.length, found.length, task.value_of(models)
        gradient, tiny = task.gradient(models), smallest(x)
        trial = _trial(task, at, found, value, _noise(task, at))
        close, taken = trial.drowns, trial.is_taken(task, models, proposal, after)
        ratio = (here - value) / where(found.found, found.decrease, 1.0)
        ratio = where(isfinite(value), ratio, -np.inf)
        before = where(isfinite(memory.radius), memory.radius, length)
        share = _share(here, value, vdot(gradient, found.step))
        # Derivatives that are not finite are met behind a good value only.
        refused = where(proposal.wanted & ~close, _CUT * times, share) * length
        radius = where(taken, self._radius(before, length, times, ratio, share, close), refused)

        reach = norm(x) + norm(found.step)
        stuck = ~taken & ((close & proposal.wanted) | (radius <= task.eps * maximum(reach, tiny)))
        unbounded = fell_without_bound(task, value, taken, after)
        inside = (found.shift == 0) & (length < memory.radius)
        promise = minimum(memory.promise, where(inside, found.decrease, np.inf))
        code = end_of(found.found, unbounded, stuck, promise, trial.noise)
        record = Record(here, largest(gradient), found.shift, before, ratio, found.spectrum.inertia)
        spectrum = where(taken, forget(found.spectrum), found.spectrum)
        promise = where(taken, np.inf, promise)
        refusals = where(taken, 0, memory.refusals + 1)
        # Noise that was measured here is that of other points only as long as f can't be seen to fall.
        smooth = PROBE * task.eps * vdot(abs(gradient), abs(x))
        noise = maximum(memory.noise, _SAMPLE * (tried.noise - smooth))
        noise = where(taken & ~close, 0.0, noise)
        memory = BallMemory(radius, found.shift, length, promise, noise, refusals, spectrum)
        return Move(taken, memory, code, record)

    def _subproblem(self, task: Task, at: Iterate) -> BallStep:
        """Minimise the model in the ball; before there is a radius, by the Newton step where H ≻ 0."""
        (x, models, memory), spectrum = at, at.memory.spectrum
        radius = where(isfinite(memory.radius), memory.radius, maximum(1.0, norm(x)))
        if not task.eliminates:
            return solve_with_products(task, x, models, radius, memory.radius, spectrum)
        # H itself is tried first only where the last step needed no shift: else μ*, larger in a smaller ball, is.
        floor = maximum(spectrum.lower, 0.0)
        guess = floor + maximum(memory.shift - floor, 0.0) * memory.last / radius
        most, reach = self.max_factorizations, memory.radius
        return solve_subproblem(task, models, radius, spectrum, guess, memory.shift, self.slack, most, reach)

    def _radius(
        self, radius: Array, length: Array, times: Array, ratio: Array, share: Array, close: Array
    ) -> Array:
        """Grow where the model was right; shrink where it was not, but not below the step that f liked."""
        grown = where(ratio > self.grow_above, maximum(radius, self.growth * length), radius)
        fitting = where(ratio < self.shrink_below, share * length, grown)
        # f may fall far beyond a step that the model was wrong about; that is no reason to trust it so far.
        liked = where(ratio < self.shrink_below, minimum(times, 1.0), times) * length
        fitting = where(times != 1.0, maximum(fitting, liked), fitting)
        return where(close, maximum(radius, self.growth * length), fitting)


class _InBall(NamedTuple):
    """What `propose` tells `settle`."""

    found: BallStep
    tried: Trials


def _noise(task: Task, at: Iterate) -> Array:
    """Rounding of f: as it is usual, or as it was measured."""
    return maximum(noise_of(task, at.models), at.memory.noise)


def _trial(task: Task, at: Iterate, found: BallStep, value: Array, noise: Array) -> Trial:
    """What is to be judged. Where f does not change at all the promise drowns: large terms cancel in f, or it is flat."""
    before = task.value_of(at.models)
    noise = where(value == before, maximum(noise, found.decrease), noise)
    return Trial(before, value, found.decrease, noise)


def _share(before: Array, value: Array, slope: Array) -> Array:
    """Where on the step a parabola through f has its minimum, within reason."""
    parabola = -slope / (2 * maximum(value - before - slope, smallest(value)))
    return where(isfinite(value), minimum(maximum(parabola, _LEAST), _MOST), _CUT)
