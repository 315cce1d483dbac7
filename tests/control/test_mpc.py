"""Model-predictive control: compiled once, warm started, stabilising."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control
from helpers.systems import cartpole, pendulum


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


def test_a_push_is_answered_by_the_gains() -> None:
    """An upright cartpole: followed in open loop from a pushed state, the old plan lets the pole fall."""
    dynamics, cost, last, _ = cartpole(0.04)
    upright, T = jnp.array([0.0, jnp.pi, 0.0, 0.0]), 50
    problem = control.Problem(dynamics, cost, last, upright, T)
    step = jax.jit(dynamics)

    def farthest(closed: bool) -> tuple[float, Any]:
        plan = control.mpc_step(problem, upright, jnp.zeros((T, 1)))
        x, far = upright.at[3].add(1.5), 0.0
        for _ in range(120):
            plan = control.mpc_step(problem, x, plan if closed else plan.us)
            x = step(x, plan.u)
            far = max(far, abs(float(x[1]) - np.pi))
        return far, x

    far, x = farthest(closed=True)
    assert far < 0.6
    assert np.linalg.norm(x - upright) < 0.1
    assert farthest(closed=False)[0] > 1.5


@pytest.mark.parametrize("method", ["newton", "nonlinear-newton", "ddp", "ilqr"])
def test_gains_are_those_of_the_solution(method: str) -> None:
    problem = control.Problem(*pendulum(), 8)
    best = control.solve(problem, jnp.zeros((8, 1)), "nonlinear-newton", tol=1e-12)
    best = control.solve(problem, best.us, method, tol=1e-12)
    out = control.mpc_step(problem, problem.x0, best, iterations=1, method=method)
    assert np.allclose(out.plan, best.us, atol=1e-8)
    assert np.allclose(out.gains, best.gains, rtol=1e-6, atol=1e-8)
    assert np.allclose(out.feedback.gains[:-1], out.gains[1:])
    assert np.allclose(out.feedback.states[:, 0], out.xs[1:, 0])


def test_memory_is_part_of_the_state_that_gains_listen_to() -> None:
    """A control that acts a stage late: gains are over (past_u, x), and the next start follows them."""

    def dynamics(x: Any, u: Any, past_u: Any) -> Any:
        return x + 0.1 * jnp.array([x[1], past_u[0][0] + jnp.sin(x[0])])

    problem = control.Problem(
        dynamics,
        lambda x, u: 0.01 * jnp.sum(u**2) + 0.1 * jnp.sum(x**2),
        lambda x: 10 * jnp.sum(x**2),
        jnp.array([0.2, 0.0]),
        12,
        history=(None, jnp.zeros((1, 1))),
    )
    first = control.mpc_step(problem, problem.x0, jnp.zeros((12, 1)), iterations=10)
    best = control.solve(problem, jnp.zeros((12, 1)), "nonlinear-newton", tol=1e-12)
    assert first.gains.shape == (12, 1, 3)
    assert np.allclose(first.gains, best.gains, rtol=1e-5, atol=1e-7)
    again = control.mpc_step(problem, problem.x0 + 0.1, first, iterations=2)
    assert float(again.grad_norm) < 1e-4
