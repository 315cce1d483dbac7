"""State of the interior point between two rounds, and what each kind of round is for."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gnewt.kkt import LocalModels
from gnewt.newton.arithmetic import Array
from gnewt.newton.constrained.barrier import Dual, Primal
from gnewt.newton.constrained.globalize import Filter


class Mode(IntEnum):
    """What the next round does; all modes share one linearisation and one loop of factorisations."""

    NORMAL = 0
    """A primal-dual step, kept safe by the filter."""
    RESTORE = 1
    """A step that lowers the violation, whatever the objective does."""
    MULTIPLIERS = 2
    """No step: least-squares multipliers for where the iterate is."""
    ENTER = 3
    """No step: derivatives for restoration are taken where the iterate is."""


class Schedule(NamedTuple):
    """How the barrier parameter falls."""

    mu: Array
    is_free: Array
    """Whether μ is chosen anew at each step; else it waits until its barrier problem is solved."""
    best: Array
    """[4]: errors of the last accepted free steps, the newest last."""


class Anchor(NamedTuple):
    """Where restoration began."""

    w: Array
    theta: Array
    phi: Array
    rounds: Array


class Record(NamedTuple):
    """One round of the history: numbers on the host, arrays inside jit."""

    value: Array
    """f before the step."""
    violation: Array
    """‖r_c‖∞ before the step, unscaled where the problem is."""
    dual: Array
    """Scaled ‖∇L‖∞ before the step."""
    mu: Array
    shift: Array
    """δ_w"""
    length: Array
    """α of the primal step."""
    dual_length: Array
    mode: Array


class Counts(NamedTuple):
    step: Array
    factorizations: Array
    evaluations: Array
    gradients: Array
    soft: Array
    """Soft restoration steps in a row."""
    tiny: Array
    """Steps in a row that rounding swallows."""


class Best(NamedTuple):
    """The iterate with the least error, for runs that end without convergence."""

    at: Primal
    dual: Dual
    gradient: Array
    total: Array
    """Its error; inf where no iterate was feasible."""
    since: Array
    """Rounds since the error was halved."""


class State(NamedTuple):
    at: Primal
    dual: Dual
    models: LocalModels
    gradient: Array
    """weight·σ∇f + Jᵀy, for the weight and y of the mode."""
    schedule: Schedule
    filter: Filter
    delta: Array
    """The last δ_w that was needed; 0 before there was any."""
    mode: Array
    anchor: Anchor
    counts: Counts
    best: Best
    code: Array
    record: Record
