"""One judge of trial points for all searches."""

import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.newton.judge import NOISE, RISE, Line, Trial, backtrack

EPS = float(np.finfo(np.float64).eps)
F = 3.0
UNIT = NOISE * EPS * F
"""Rounding of f where f is 3."""


def trial(value: float, promised: float) -> Trial:
    return Trial(*(jnp.asarray(v) for v in (F, value, promised, UNIT)))


@pytest.mark.parametrize(
    ("value", "promised", "drowns", "passes"),
    [
        (2.0, 1.0, False, True),
        (2.99999, 1.0, False, False),  # less than the share that is asked for
        (3.1, 1.0, False, False),
        (3.0, 1.0, False, False),
        (3.0, 100 * UNIT, False, True),  # the share that is asked for is less than a rounding of f
        (-np.inf, 1.0, False, False),
        (np.nan, 1.0, False, False),
        (F + 0.5 * RISE * UNIT, 0.5 * UNIT, True, True),
        (F + 2.0 * RISE * UNIT, 0.5 * UNIT, True, False),
        (F + 0.5 * RISE * UNIT, 2.0 * UNIT, False, False),
    ],
)
def test_a_promise_must_be_kept_unless_it_drowns(
    value: float, promised: float, drowns: bool, passes: bool
) -> None:
    seen = trial(value, promised)
    assert bool(seen.drowns) == drowns
    assert bool(seen.passes(1e-4)) == passes


def test_backtracking_ends_at_the_first_length_that_keeps_a_share() -> None:
    # f(t) = 1 - t + 4t²: half of the promise t - t²/2 is kept where t ≤ 2/15.
    line = Line(jnp.asarray(1.0), jnp.asarray(-1.0), jnp.asarray(1.0))
    one, noise = jnp.asarray(1.0), jnp.asarray(EPS)
    tried = backtrack(lambda t: (1 - t + 4 * t**2, 2 * t), one, line, noise, 0.5, one, 20)
    assert bool(tried.passed) and float(tried.length) == 0.125
    assert int(tried.evaluations) == 4 and float(tried.found) == 0.25


@pytest.mark.parametrize(("value", "evaluations"), [(2.0, 5), (-np.inf, 1), (np.nan, 5)])
def test_backtracking_gives_up(value: float, evaluations: int) -> None:
    line = Line(jnp.asarray(1.0), jnp.asarray(-1.0), jnp.asarray(1.0))
    one, noise = jnp.asarray(1.0), jnp.asarray(EPS)
    tried = backtrack(lambda t: (value + 0 * t, t), one, line, noise, 0.5, one, 5)
    assert not bool(tried.passed) and int(tried.evaluations) == evaluations
