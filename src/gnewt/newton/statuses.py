"""Statuses: what a Newton step and a run of `minimize` end with, one IntEnum for each.

What an elimination says (`EliminationStatus`) becomes what a step says (`StepStatus`) by `step_status`, and what a
search found becomes what the loop says (`Status`) by `loop_status`; both are defined for every argument.
Numbers may have been stored by users: a new status gets the next number, and none is given another number.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import StepError
from gnewt.kkt import EliminationStatus
from gnewt.newton.numbers import Count, is_known

_Kind = TypeVar("_Kind", bound=IntEnum)


class _Outcome(IntEnum):
    @property
    def text(self) -> str:
        """The status in words, as results show it."""
        return self.name.lower()


class StepStatus(_Outcome):
    """What `newton_step` says of a step; `StepInfo.code` holds the number."""

    OK = 0
    SINGULAR = 1
    """H + μI has no inverse: some unknowns found no pivot above rounding."""
    NONFINITE = 2
    """The objective, a derivative or the elimination is not finite; or the engine could not run to its end."""
    INACCURATE = 3
    """The residual of the step is far above rounding."""


class Status(_Outcome):
    """How a run of `minimize` ended; `Result.code` holds the number."""

    RUNNING = 0
    CONVERGED = 1
    """The gradient is below the tolerance."""
    STALLED = 2
    """No further decrease within the rounding of f."""
    MAX_STEPS = 3
    UNBOUNDED = 4
    """f decreases without bound."""
    NONFINITE = 5
    """f or a derivative is not finite at the start."""
    SINGULAR = 6
    """No shift μ that was tried made H + μI positive definite."""
    NO_DECREASE = 7
    """No step lowers f, although more than rounding is promised."""
    TIME_LIMIT = 8
    STOPPED = 9
    """The callback asked for the end."""
    INTERRUPTED = 10
    """From the keyboard."""
    INFEASIBLE = 11
    """The violation of the constraints has a minimum above zero here."""
    RESTORATION_FAILED = 12
    """No step lowers the violation, although its derivatives promise it."""


STEP_STATUSES = tuple(status.text for status in StepStatus)
"""The words of a step's statuses, by their numbers."""
STATUSES = tuple(status.text for status in Status)
"""The words of a run's statuses, by their numbers."""

_STEP_OF = {
    EliminationStatus.OK: StepStatus.OK,
    EliminationStatus.SINGULAR: StepStatus.SINGULAR,
    EliminationStatus.NONFINITE: StepStatus.NONFINITE,
    EliminationStatus.OUT_OF_MEMORY: StepStatus.NONFINITE,
    EliminationStatus.BAD_PLAN: StepStatus.NONFINITE,
}


def step_status(elimination: Count, finite: Count, accurate: Count) -> Count:
    """Status of a step: what the elimination said, unless f is not finite or the step is not accurate."""
    known = not any(isinstance(flag, Tracer) for flag in (elimination, finite, accurate))
    if known and np.ndim(elimination) == 0:  # NumPy's choices take longer than a step
        code = _STEP_OF[EliminationStatus(int(elimination))]
        code = code if accurate or code != StepStatus.OK else StepStatus.INACCURATE
        return np.int32(code if finite else StepStatus.NONFINITE)
    xp = jnp if isinstance(elimination, Tracer) else np
    table = xp.asarray([_STEP_OF[status] for status in EliminationStatus], np.int32)
    code = table[xp.asarray(elimination)]
    code = xp.where((code == StepStatus.OK) & ~xp.asarray(accurate, bool), StepStatus.INACCURATE, code)
    return xp.where(finite, code, StepStatus.NONFINITE).astype(np.int32)


def loop_status(definite: Count, unbounded: Count, stuck: Count, rounding: Count) -> Count:
    """Status of the loop after a step; the first that holds, from the left, decides.

    Args:
        definite: whether some H + μI was positive definite, so that there was a step to try.
        unbounded: whether f fell without bound.
        stuck: whether no step lowers f.
        rounding: whether the Newton step promises no more than the rounding of f.
    """
    if not any(isinstance(flag, Tracer) for flag in (definite, unbounded, stuck, rounding)):
        code = Status.STALLED if rounding else Status.NO_DECREASE
        code = code if stuck else Status.RUNNING
        return np.int32(Status.SINGULAR if not definite else Status.UNBOUNDED if unbounded else code)
    code = jnp.where(rounding, Status.STALLED, Status.NO_DECREASE)
    code = jnp.where(stuck, code, Status.RUNNING)
    code = jnp.where(unbounded, Status.UNBOUNDED, code)
    return jnp.where(definite, code, Status.SINGULAR).astype(np.int32)


def status_of(code: Count, kind: type[_Kind]) -> _Kind:
    """Turn a number into a status, or say what to use instead where the number is not known yet."""
    if not is_known(code):
        raise StepError(
            "a status has no name inside jit or vmap, nor for a batch",
            remedy=f"use `code`, which counts in gnewt.newton.{kind.__name__}, or `success`",
        )
    return kind(int(code))
