"""Model-predictive control: compiled once, warm started, stabilising."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control
from helpers.systems import pendulum


def test_one_compilation_for_all_steps() -> None:
    dynamics, cost, last, x0 = pendulum()
    traces = []

    def counted(x: Any, u: Any) -> Any:
        traces.append(None)
        return dynamics(x, u)

    problem = control.Problem(counted, cost, last, x0, 10)
    x, us = x0, jnp.zeros((10, 1))
    first = control.mpc_step(problem, x, us, iterations=2)
    seen = len(traces)
    norms = []
    for _ in range(30):
        out = control.mpc_step(problem, x, us, iterations=2)
        assert np.array_equal(out.us[:-1], out.plan[1:]) and np.array_equal(out.u, out.plan[0])
        x, us = dynamics(x, out.u), out.us
        norms.append(float(out.grad_norm))
    assert len(traces) == seen, "traced again"
    assert np.isclose(first.fun, problem(first.plan))
    # Two steps from a warm start are a solution.
    assert norms[-1] < 1e-6
    best = control.solve(problem.replace(x0=x), us, "nonlinear-newton")
    assert np.isclose(control.mpc_step(problem, x, us).fun, best.fun, rtol=1e-8)


def test_inside_jit() -> None:
    problem = control.Problem(*pendulum(), 6)

    @jax.jit
    def loop(x: Any, us: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, us = carry
            out = control.mpc_step(problem, x, us, iterations=1, method="ilqr")
            return (problem.stages.dynamics(x, out.u), out.us), out.fun

        return jax.lax.scan(step, (x, us), length=3)[1]

    costs = loop(problem.x0, jnp.zeros((6, 1)))
    assert np.all(np.isfinite(costs)) and costs[-1] <= costs[0] + 1.0


def test_problems_that_decide_on_more_are_refused() -> None:
    dynamics, cost, last, x0 = pendulum()
    problem = control.Problem(dynamics, cost, last, x0, 4, final_time=1.0, optimize="final_time")
    with pytest.raises(gnewt.GraphError, match="final_time"):
        control.mpc_step(problem, x0, jnp.zeros((4, 1)))
