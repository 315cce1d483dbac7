"""Statuses: numbers that users may have stored, words that results show, and the maps between the kinds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton import STATUSES, STEP_STATUSES, EliminationStatus, Status, StepStatus
from gnewt.newton.result import MESSAGES
from gnewt.newton.statuses import loop_status, status_of, step_status


def test_the_numbers_and_words_are_those_of_the_first_release() -> None:
    assert STEP_STATUSES[:4] == ("ok", "singular", "nonfinite", "inaccurate")
    assert STATUSES[:11] == (
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
    for kind in (StepStatus, Status):
        assert [int(status) for status in kind] == list(range(len(kind)))


def test_every_status_of_a_run_has_a_message() -> None:
    assert set(MESSAGES) == set(Status)


@pytest.mark.parametrize("compiled", [False, True])
def test_every_elimination_has_a_step_status(compiled: bool) -> None:
    judge = jax.jit(step_status) if compiled else step_status
    expected = {
        EliminationStatus.OK: StepStatus.OK,
        EliminationStatus.SINGULAR: StepStatus.SINGULAR,
        EliminationStatus.NONFINITE: StepStatus.NONFINITE,
        EliminationStatus.OUT_OF_MEMORY: StepStatus.NONFINITE,
        EliminationStatus.BAD_PLAN: StepStatus.NONFINITE,
    }
    assert set(expected) == set(EliminationStatus)
    for status in EliminationStatus:
        number = np.asarray(status, np.int32)
        assert int(judge(number, True, True)) == expected[status]
        assert int(judge(number, False, True)) == StepStatus.NONFINITE
        inaccurate = StepStatus.INACCURATE if status == EliminationStatus.OK else expected[status]
        assert int(judge(number, True, False)) == inaccurate


def test_the_loop_has_a_status_for_whatever_a_search_found() -> None:
    for definite, unbounded, stuck, rounding in itertools.product([False, True], repeat=4):
        expected = (
            Status.SINGULAR
            if not definite
            else Status.UNBOUNDED
            if unbounded
            else Status.RUNNING
            if not stuck
            else Status.STALLED
            if rounding
            else Status.NO_DECREASE
        )
        flags = (jnp.asarray(flag) for flag in (definite, unbounded, stuck, rounding))
        assert status_of(loop_status(*flags), Status) == expected


def test_a_status_has_no_name_for_a_batch() -> None:
    with pytest.raises(gnewt.StepError, match=r"counts in gnewt\.newton\.Status"):
        status_of(jnp.zeros(3, jnp.int32), Status)
