"""Problem: what it makes of its arguments, and what it refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control
from helpers.systems import SYSTEMS, pendulum


def test_the_objective_is_the_sum_over_the_stages() -> None:
    data = jnp.linspace(0, 1, 5)

    def dynamics(x: Any, u: Any, t: Any, params: Any, data: Any) -> Any:
        return {"a": x["a"] * params + u["v"] + data, "b": x["b"] + x["a"] * t}

    problem = control.Problem(
        dynamics,
        lambda x, u, data: data * x["b"] ** 2 + jnp.sum(u["v"] ** 2),
        lambda x, params: params * x["a"] + x["b"] ** 2,
        {"a": 1.0, "b": 0.5},
        5,
        data=data,
        params=0.9,
    )
    us = {"v": jnp.arange(5.0)}
    x, total = {"a": 1.0, "b": 0.5}, 0.0
    for t in range(5):
        u = {"v": us["v"][t]}
        total += data[t] * x["b"] ** 2 + u["v"] ** 2
        x = {"a": x["a"] * 0.9 + u["v"] + data[t], "b": x["b"] + x["a"] * t}
    total += 0.9 * x["a"] + x["b"] ** 2
    assert np.allclose(problem(us), total, rtol=1e-14)
    xs = problem.rollout(us)
    assert np.allclose(xs["b"][-1], x["b"]) and xs["a"].shape == (6,)


def test_shared_parameters_and_final_time_are_decided_on() -> None:
    """Minimum time with effort: every method finds the same optimum, and states that are only added to are states."""

    def dynamics(x: Any, u: Any, dt: Any, params: Any) -> Any:
        return {"p": x["p"] + dt * x["v"], "v": x["v"] + dt * (u * params - 0.1 * x["v"] ** 3)}

    problem = control.Problem(
        dynamics,
        lambda x, u, dt: dt * (0.1 + 0.1 * u**2),
        lambda x, params: 100 * ((x["p"] - 1) ** 2 + x["v"] ** 2) + (params - 1) ** 2,
        {"p": 0.0, "v": 0.0},
        12,
        params=0.8,
        final_time=2.0,
        optimize=("params", "final_time"),
    )
    us = jnp.full(12, 0.1)
    found = [control.solve(problem, us, m) for m in ("newton", "nonlinear-newton")]
    for res in found:
        assert res.status == "converged"
        slope = jax.grad(problem)(res.result.x)
        assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(slope)) <= 1e-7
        assert res.gains.shape == (12, 1, 2) and np.abs(res.gains[:-1]).min() > 1e-3
    assert np.isclose(found[0].final_time, found[1].final_time, rtol=1e-6)
    assert np.isclose(found[0].params, found[1].params, rtol=1e-6)


@pytest.mark.slow
def test_history_gives_delays_and_higher_orders() -> None:
    def dynamics(x: Any, u: Any, past_x: Any, past_u: Any) -> Any:
        return x + 0.1 * jnp.array([x[1], past_u[0, 0] - jnp.sin(past_x[-1, 0]) - 0.1 * x[1] * past_x[0, 1]])

    _, cost, last, x0 = pendulum()
    problem = control.Problem(
        dynamics, cost, last, x0, 15, history=(jnp.tile(x0, (2, 1)), jnp.full((2, 1), 0.1))
    )
    us = jnp.asarray(0.1 * np.random.default_rng(0).normal(size=(15, 1)))
    xs, past, queue = [x0], [x0, x0], [jnp.array([0.1])] * 2
    for t in range(15):
        now = dynamics(xs[-1], us[t], jnp.stack(past), jnp.stack(queue))
        past, queue = [*past[1:], xs[-1]], [*queue[1:], us[t]]
        xs.append(now)
    assert np.allclose(problem.rollout(us), jnp.stack(xs), atol=1e-14)
    res = control.solve(problem, us, "ddp")
    assert res.status == "converged"
    assert res.gains.shape == (15, 1, 2 + 4 + 2)
    # The policy knows what is under way: after a push it costs less than the plan, and not less than the best.
    moved = problem.replace(x0=x0 + jnp.array([0.2, 0.1]))
    closed = float(moved.simulate(res.policy)[2])
    assert float(control.solve(moved, res.us, "ddp").fun) <= closed < float(moved(res.us))


@pytest.mark.parametrize(
    ("name", "nu", "push"),
    [
        ("pendulum", 1, 0.3),
        *(
            pytest.param(*rest, marks=pytest.mark.slow)
            for rest in (("unicycle", 2, 0.2), ("cartpole", 1, 0.05))
        ),
    ],
)
def test_feedback_beats_the_plan(name: str, nu: int, push: float) -> None:
    parts = SYSTEMS[name]()
    horizon = 30
    problem = control.Problem(*parts, horizon)
    us = jnp.asarray(0.1 * np.random.default_rng(0).normal(size=(horizon, nu)))
    res = control.solve(problem, us, "nonlinear-newton")
    assert res.success
    rng = np.random.default_rng(1)
    for _ in range(3):
        moved = problem.replace(x0=parts[3] + jnp.asarray(push * rng.uniform(-1, 1, parts[3].shape)))
        assert float(moved.simulate(res.policy)[2]) < float(moved(res.us))
    same = problem.simulate(res.policy)
    assert np.isclose(same[2], res.fun) and np.allclose(same[1], res.us, atol=1e-10)


def make(**changes: Any) -> control.Problem:
    dynamics, cost, last, x0 = pendulum()
    given = {"dynamics": dynamics, "stage_cost": cost, "final_cost": last, "x0": x0, "horizon": 5} | changes
    return control.Problem(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": 2.5}, "horizon is 2.5"),
        ({"x0": jnp.array([1, 2])}, "x0 has dtype int"),
        ({"x0": jnp.array([1.0, jnp.nan])}, "x0 holds NaN"),
        ({"x0": ()}, "x0 is empty"),
        ({"data": jnp.zeros(4)}, r"data has shape \(4,\), but the horizon is 5"),
        ({"optimize": "params"}, "params is to be optimised, but not given"),
        ({"optimize": "speed"}, "optimize names 'speed'"),
        ({"dynamics": lambda x, u, wind: x}, "rename the argument"),
        ({"dynamics": lambda x: x}, "should take x, u"),
        ({"stage_cost": 3.0}, "stage_cost is float"),
        ({"history": (jnp.zeros((2, 3)), None)}, "not states like x0"),
        ({"history": (None, 1.0)}, "leading axis"),
    ],
)
def test_bad_problems(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(gnewt.GraphError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage_cost": lambda x, u: x**2}, r"stage_cost returns an array of shape \(2,\), not a scalar"),
        ({"stage_cost": lambda x, u: (0.0, u)}, "stage_cost returns PyTreeDef"),
        ({"final_cost": lambda x: x[:1]}, "final_cost returns an array"),
        ({"final_cost": lambda x: None}, "final_cost returns PyTreeDef"),
        ({"dynamics": lambda x, u: x[:1]}, r"returns x of shape \(1,\), but it has shape \(2,\)"),
        ({"dynamics": lambda x, u: (x, u)}, "in the form of x0"),
        ({"dynamics": lambda x, u, past_u: x}, r"asks for past_u \(history=\)"),
    ],
)
def test_functions_that_return_something_else(changes: dict[str, Any], message: str) -> None:
    """The error names the function, and the line where it is defined."""
    function = next(iter(changes.values()))
    where = f"test_problem.py:{function.__code__.co_firstlineno}"
    with pytest.raises(gnewt.GraphError, match=message) as caught:
        control.solve(make(**changes), jnp.zeros((5, 1)))
    assert where in str(caught.value)


def test_bad_controls() -> None:
    problem = make()
    for us, message in (
        (jnp.zeros((4, 1)), "one row per stage"),
        (jnp.zeros((5, 1), int), "dtype int"),
        (jnp.full((5, 1), jnp.nan), "NaN"),
    ):
        with pytest.raises(gnewt.GraphError, match=message):
            control.solve(problem, us)
    with pytest.raises(gnewt.PlanError, match="unknown method 'ddpp'"):
        control.solve(problem, jnp.zeros((5, 1)), "ddpp")
    with pytest.raises(gnewt.GraphError, match="final_time="):
        make(dynamics=lambda x, u, dt: x)(jnp.zeros((5, 1)))
    with pytest.raises(gnewt.GraphError, match="no 'horizon' to replace"):
        problem.replace(horizon=3)


def test_a_start_that_is_not_finite_has_no_policy() -> None:
    problem = make(stage_cost=lambda x, u: jnp.sum(jnp.log(u)))
    res = control.solve(problem, jnp.zeros((5, 1)), "ilqr")
    assert res.status == "nonfinite" and not res.success
    with pytest.raises(gnewt.PlanError, match="no policy"):
        _ = res.gains
