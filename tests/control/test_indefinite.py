"""Where H is indefinite: Gauss-Newton's step first, then a shift; and what rollouts hand on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from gnewt import control
from gnewt.newton import Rollout
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of
from helpers.systems import pendulum


def test_leaving_the_curvature_out_saves_eliminations() -> None:
    """A swing-up: H is indefinite at the start, and both ways end in the same minimum by Newton's steps."""
    dynamics, cost, _, x0 = pendulum()
    goal = jnp.array([jnp.pi, 0.0])
    problem = control.Problem(dynamics, cost, lambda x: 20 * jnp.sum((x - goal) ** 2), x0, 40)
    us = 0.1 * jnp.ones((40, 1))
    plain = control.solve(problem, us, search=Rollout(max_halvings_without=0))
    ours = control.solve(problem, us)
    assert plain.success and ours.success
    assert np.isclose(plain.fun, ours.fun, rtol=1e-10)
    assert max(record.shift for record in plain.history) > 0
    assert ours.result.num_factorizations < plain.result.num_factorizations
    assert ours.history[-1].shift == 0 and ours.history[-1].ratio == 1


def test_derivatives_at_the_slots_of_a_rollout_are_those_at_its_inputs() -> None:
    problem = control.Problem(*pendulum(), 12)
    us = 0.3 * jnp.cos(jnp.arange(12.0))[:, None]
    point = Objective(problem.stages.objective).at((us, problem.given))
    system = system_of(point, "causal")
    models = system.linearize(point)
    again = system.linearize(point, models.slots)
    for one, other in zip(
        (models.value, models.duals, models.sources), (again.value, again.duals, again.sources), strict=True
    ):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-12)
    moved = system.linearize(point, models.slots + 1e-3)
    assert not np.allclose(moved.sources, models.sources, rtol=1e-6)
