"""Limits in optimal control: families of problems, all methods, judged by the first-order conditions that JAX computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control
from gnewt._errors import ConstraintError, GraphError, PlanError
from helpers.systems import pendulum

T = 10
ALL = tuple(control.METHODS)


def swing(**more: Any) -> tuple[control.Problem, Any]:
    dynamics, cost, last, _ = pendulum()
    return control.Problem(dynamics, cost, last, jnp.array([0.3, 0.0]), T, **more), jnp.zeros((T, 1))


def delayed(**more: Any) -> tuple[control.Problem, Any]:
    """A control that acts a stage late, and a parameter."""

    def dynamics(x: Any, u: Any, params: Any, past_u: Any) -> Any:
        return x + 0.2 * jnp.array([x[1], params * past_u[0][0] - jnp.sin(x[0])])

    return control.Problem(
        dynamics,
        lambda x, u: 0.02 * jnp.sum(u**2) + jnp.sum(x**2),
        lambda x: 10 * jnp.sum(x**2),
        jnp.array([0.5, 0.0]),
        T,
        params=jnp.array(1.5),
        history=(None, jnp.zeros((1, 1))),
        **more,
    ), jnp.zeros((T, 1))


def trees(**more: Any) -> tuple[control.Problem, Any]:
    """States and controls that are pytrees, with two inputs and data."""

    def dynamics(x: Any, u: Any, data: Any) -> Any:
        return {
            "p": x["p"] + 0.3 * x["v"],
            "v": x["v"] + 0.3 * (u["a"] * data + jnp.stack([u["b"], -u["b"]])),
        }

    return control.Problem(
        dynamics,
        lambda x, u: 0.1 * jnp.sum(u["a"] ** 2) + 0.05 * u["b"] ** 2 + 0.1 * jnp.sum(x["p"] ** 2),
        lambda x: 5 * jnp.sum((x["p"] - 1) ** 2) + jnp.sum(x["v"] ** 2),
        {"p": jnp.array([2.0, -1.0]), "v": jnp.zeros(2)},
        T,
        data=jnp.linspace(1.0, 0.5, T),
        **more,
    ), {"a": jnp.zeros((T, 2)), "b": jnp.zeros(T)}


def free_time(**more: Any) -> tuple[control.Problem, Any]:
    """Decided on: the controls, the time and a shared parameter."""

    def dynamics(x: Any, u: Any, dt: Any, params: Any) -> Any:
        return x + dt * jnp.array([x[1], u[0] - params * x[1]])

    return control.Problem(
        dynamics,
        lambda x, u, dt: dt * (1 + 0.05 * u[0] ** 2) + 0.5 * dt**2,
        lambda x, params: 20 * jnp.sum((x - jnp.array([1.0, 0.0])) ** 2) + (params - 0.3) ** 2,
        jnp.array([0.0, 0.0]),
        T,
        params=jnp.array(0.1),
        final_time=2.0,
        optimize=("params", "final_time"),
        **more,
    ), jnp.zeros((T, 1))


FAMILIES: dict[str, tuple[Any, Any]] = {
    "swing": (swing, (-0.8, 0.8)),
    "delayed": (delayed, (jnp.array([-0.6]), None)),
    "trees": (trees, ({"a": jnp.array([-0.4, -1.0]), "b": None}, {"a": 0.6, "b": 0.3})),
    "free time": (free_time, (-1.0, 1.0)),
}


def kkt_error(problem: control.Problem, found: control.Solution) -> float:
    """Violation, stationarity and complementarity, from the functions of the problem and JAX alone."""
    stages, result = problem.stages, found.result
    rows = result.multipliers or {}

    def lagrangian(decision: Any) -> Any:
        value, aux = stages.with_rows(decision, problem.given)
        return value + sum(jnp.sum(a * b) for name in rows for a, b in _pairs(rows[name], aux[name]))

    gradient = jax.jit(jax.grad(lagrangian))(result.x)
    left = jax.tree.map(lambda a, b: a + b, gradient, result.bound_multipliers)
    worst = max(float(jnp.abs(v).max()) for v in jax.tree.leaves(left))
    bounds = control.limited.bounds_of(problem, result.x)
    checks = [(result.bound_multipliers, result.x, bounds)]
    _, aux = jax.jit(stages.with_rows)(result.x, problem.given)
    for name, c in stages.limited.constraints(problem.given["limits"]).items():
        checks.append((rows[name], aux[name], (c.lower, c.upper)))
    for multipliers, values, limits in checks:
        low, up = (_spread(limit, values, inf) for limit, inf in zip(limits, (-np.inf, np.inf), strict=True))
        parts = zip(jax.tree.leaves(multipliers), jax.tree.leaves(values), low, up, strict=True)
        for y, v, a, b in parts:
            y, v = np.asarray(y), np.asarray(v)
            worst = max(worst, float((a - v).max()), float((v - b).max()))
            gap = np.where(y > 0, b - v, v - a)
            worst = max(worst, float(np.abs(y * np.where(np.isfinite(gap), gap, 1e9)).max()))
    return worst


def _pairs(a: Any, b: Any) -> Any:
    return zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)


def _spread(limit: Any, like: Any, inf: float) -> list[Any]:
    leaves = jax.tree.leaves(limit, is_leaf=lambda v: v is None)
    values = jax.tree.leaves(like)
    leaves = leaves * len(values) if len(leaves) == 1 else leaves
    return [
        np.broadcast_to(inf if a is None else np.asarray(a), np.shape(v))
        for a, v in zip(leaves, values, strict=True)
    ]


@pytest.mark.parametrize(
    "family", ["swing", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES if f != "swing")]
)
def test_all_methods_take_control_limits(family: str) -> None:
    make, limits = FAMILIES[family]
    problem, us = make(control_limits=limits)
    free = control.solve(make()[0], us, "newton")
    best = control.solve(problem, us, "newton")
    assert best.success and kkt_error(problem, best) < 1e-6
    assert best.fun > free.fun + 1e-4, "the limits do not matter"
    assert any(np.any(v) for v in jax.tree.leaves(best.active["control_limits"]))
    for method in ALL[1:]:
        found = control.solve(problem, us, method)
        assert found.success, found.message
        assert kkt_error(problem, found) < 1e-6
        assert np.isclose(found.fun, best.fun, rtol=1e-6)
        assert found.violation == 0


EVERYTHING: dict[str, dict[str, Any]] = {
    "state limits": {"state_limits": (None, jnp.array([jnp.inf, 0.25]))},
    "stage constraint": {
        "stage_constraints": gnewt.between(lambda x, u, t: u[0] - 0.1 * x[1] + 0.01 * t, -0.1, None)
    },
    "several": {
        "stage_constraints": {
            "power": gnewt.between(lambda x, u: u[0] * x[1], None, 0.02),
            "sum": gnewt.between(lambda x, u: {"a": x + u, "b": u[0]}, None, {"a": 1.0, "b": 0.5}),
        },
        "control_limits": (-0.7, None),
    },
    "terminal": {
        "final_constraint": gnewt.equal(lambda x: x, jnp.array([0.05, 0.0])),
        "control_limits": (-2.0, 2.0),
    },
    "terminal set": {"final_constraint": [gnewt.between(lambda x: jnp.sum(x**2), None, 0.01)]},
    "periodic": {"periodic": True, "final_constraint": gnewt.equal(lambda x: x[0], 0.4)},
}


@pytest.mark.parametrize("case", EVERYTHING)
def test_newton_takes_every_constraint(case: str) -> None:
    problem, us = swing(**EVERYTHING[case])
    found = control.solve(problem, us, "newton")
    assert found.success, found.message
    assert kkt_error(problem, found) < 1e-6
    assert found.violation < 1e-7
    assert set(found.multipliers) == set(found.active)
    assert any(np.any(np.abs(v) > 1e-4) for v in jax.tree.leaves(found.multipliers)), "nothing is active"
    with pytest.raises(PlanError, match="takes limits of the controls only"):
        control.solve(problem, us, "ddp")
    again = control.solve(problem, found, "newton")
    assert again.num_steps <= 3


def test_periodic_motion_repeats_itself() -> None:
    problem, us = swing(**EVERYTHING["periodic"])
    found = control.solve(problem, us, "newton")
    assert np.allclose(found.xs[0], found.xs[-1], atol=1e-7)
    assert not np.allclose(found.xs[0], problem.x0, atol=1e-3)
    assert found.multipliers["periodic"].shape == (2,)


def test_limits_per_stage_and_equal_limits() -> None:
    """Rows of limits for each stage; a pinned control stays where it is, in every method."""
    upper = jnp.where(jnp.arange(T) < 3, 0.1, 0.5)[:, None]
    lower = jnp.full((T, 1), -1.0).at[5].set(0.2)
    problem, us = swing(control_limits=(lower, jnp.asarray(upper).at[5].set(0.2)))
    funs = []
    for method in ("newton", "nonlinear-newton"):
        found = control.solve(problem, us, method)
        assert found.success and found.us[5, 0] == 0.2
        assert np.all(found.us <= problem.given["limits"]["control_limits"][1])
        assert kkt_error(problem, found) < 1e-6
        funs.append(found.fun)
    assert np.isclose(*funs, rtol=1e-7)


def test_gains_are_those_of_the_active_set() -> None:
    """Controls at a limit do not answer; the others answer as the solution does when x0 moves."""
    problem, us = swing(control_limits=(-0.8, 0.8))
    for method in ("newton", "nonlinear-newton"):
        found = control.solve(problem, us, method, tol=1e-10)
        active = np.asarray(found.active["control_limits"])[:, 0]
        assert 0 < active.sum() < T
        assert np.abs(found.gains[active]).max() < 1e-4
        first = int(np.argmin(active))
        push = jnp.array([1e-4, -2e-4])
        moved = control.solve(problem.replace(x0=problem.x0 + push), found, method, tol=1e-10)
        answer = found.gains[first] @ np.ravel(moved.states[first] - found.states[first])
        assert np.allclose(moved.us[first] - found.us[first], answer, rtol=2e-2, atol=1e-8)
        assert np.abs(found.feedforward).max() < 1e-6


def test_terminal_constraints_are_in_the_gains() -> None:
    problem, us = swing(**EVERYTHING["terminal"])
    found = control.solve(problem, us, "newton", tol=1e-10)
    start = problem.x0 + jnp.array([1e-4, 0.0])
    xs, _, _ = problem.replace(x0=start).simulate(found.policy)
    assert np.abs(xs[-1] - jnp.array([0.05, 0.0])).max() < 1e-6
    open_loop = problem.replace(x0=start).rollout(found.us)
    assert np.abs(open_loop[-1] - jnp.array([0.05, 0.0])).max() > 1e-5


def test_replaced_limits_compile_nothing() -> None:
    traces = []
    dynamics, cost, last, x0 = pendulum()

    def counted(x: Any, u: Any) -> Any:
        traces.append(None)
        return dynamics(x, u)

    problem = control.Problem(
        counted,
        cost,
        last,
        x0,
        T,
        control_limits=(-0.8, 0.8),
    )

    @jax.jit
    def solve(problem: control.Problem) -> Any:
        return control.solve(problem, jnp.zeros((T, 1))).us

    first = solve(problem)
    seen = len(traces)
    second = solve(problem.replace(control_limits=(-0.3, 0.3)))
    assert len(traces) == seen
    assert np.abs(first).max() > 0.5 and np.isclose(np.abs(second).max(), 0.3, atol=1e-6)
    constrained, _ = swing(**EVERYTHING["several"])
    new = constrained.replace(stage_constraints={"power": (None, 0.01), "sum": (None, {"a": 2.0, "b": 0.4})})
    assert float(new.given["limits"]["stage_constraints['power']"][1]) == 0.01
    with pytest.raises(ConstraintError, match="no state_limits to replace"):
        problem.replace(state_limits=(0.0, 1.0))
    with pytest.raises(ConstraintError, match="had the structure"):
        problem.replace(control_limits=(None, 0.3))


def test_jit_and_vmap_equal_the_host() -> None:
    problem, us = swing(control_limits=(-0.8, 0.8))
    x0s = jnp.array([[0.3, 0.0], [0.6, -0.2], [-0.4, 0.5]])

    def solve(x0: Any, method: str) -> Any:
        found = control.solve(problem.replace(x0=x0), us, method)
        return found.us, found.code, found.multipliers["control_limits"]

    for method in ("newton", "nonlinear-newton"):
        batch = jax.jit(jax.vmap(lambda x0, m=method: solve(x0, m)))(x0s)
        for i, x0 in enumerate(x0s):
            host = control.solve(problem.replace(x0=x0), us, method)
            assert int(batch[1][i]) == host.code
            assert np.allclose(batch[0][i], host.us, atol=1e-7)
            assert np.allclose(batch[2][i], host.multipliers["control_limits"], atol=1e-6)


def test_warm_starts_take_few_steps() -> None:
    problem, us = swing(control_limits=(-0.8, 0.8))
    for method in ("newton", "nonlinear-newton", "ddp"):
        best = control.solve(problem, us, method)
        for push in ([0.05, 0.0], [0.0, -0.05], [-0.03, 0.04]):
            moved = problem.replace(x0=problem.x0 + jnp.array(push))
            assert control.solve(moved, best, method).num_steps <= best.num_steps - 2


def test_mpc_steps_stay_within_limits() -> None:
    problem, us = swing(control_limits=(-0.8, 0.8))
    rng = np.random.default_rng(0)
    step = jax.jit(problem.stages.dynamics)

    def loop(method: str, iterations: int) -> float:
        out, x, total = (
            control.mpc_step(problem, problem.x0, us, iterations=20, method=method),
            problem.x0,
            0.0,
        )
        for push in rng.normal(size=(25, 2)) * 0.05:
            out = control.mpc_step(problem, x, out, iterations=iterations, method=method)
            assert np.all(np.abs(out.plan) <= 0.8)
            assert out.memory is not None
            x = step(x, out.u) + push
            total += float(jnp.sum(x**2))
        return total

    few, rng = loop("nonlinear-newton", 4), np.random.default_rng(0)
    many, rng = loop("nonlinear-newton", 30), np.random.default_rng(0)
    assert np.isclose(few, many, rtol=1e-2)
    assert np.isclose(loop("newton", 6), many, rtol=1e-2)


def test_mpc_with_every_constraint() -> None:
    problem, us = swing(**EVERYTHING["state limits"])
    out = control.mpc_step(problem, problem.x0, us, iterations=30, method="newton")
    best = control.solve(problem, us, "newton")
    assert np.allclose(out.plan, best.us, atol=1e-6)
    assert float(out.violation) < 1e-6
    assert np.allclose(out.gains, best.gains, rtol=1e-3, atol=1e-5)
    with pytest.raises(PlanError, match="takes limits of the controls only"):
        control.mpc_step(problem, problem.x0, us)


def test_lifted_states_give_the_same_solution() -> None:
    problem, us = swing(**EVERYTHING["terminal"])
    plain = control.solve(problem, us, "newton", tol=1e-9)
    line = jnp.linspace(0.0, 1.0, T + 1)[:, None] * jnp.array([0.05, 0.0]) + problem.x0
    for lifted in (True, line):
        found = control.solve(problem, us, "newton", lifted=lifted, tol=1e-9)
        assert found.success, found.message
        assert np.allclose(found.us, plain.us, atol=1e-6)
        assert found.result.gap < 1e-7
    with pytest.raises(PlanError, match="keeps the dynamics closed"):
        control.solve(problem, us, "ddp", lifted=True)
    with pytest.raises(GraphError, match="no row for each"):
        control.solve(problem, us, "newton", lifted=line[1:])


def test_callback_time_limit_and_bad_starts() -> None:
    problem, us = swing(control_limits=(-0.8, 0.8))
    assert control.solve(problem, us, callback=lambda p: p.step == 2).status == "stopped"
    assert control.solve(problem, us, time_limit=0.0).status == "time_limit"
    assert control.solve(problem, us, max_steps=1).status == "max_steps"
    outside = control.solve(problem, us + 5.0)
    assert outside.success and np.abs(outside.us).max() <= 0.8


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no pair": ({"control_limits": 1.0}, "not a pair"),
    "nothing": ({"control_limits": (None, None)}, "without a limit"),
    "crossed": ({"control_limits": (1.0, -1.0)}, "cross: 1 > -1"),
    "crossed somewhere": ({"state_limits": (jnp.array([0.0, 2.0]), 1.0)}, r"cross: 2 > 1 at \[1\]"),
    "NaN": ({"state_limits": (jnp.nan, None)}, "is NaN"),
    "text": ({"control_limits": ("low", None)}, "not a number"),
    "state shape": ({"state_limits": (jnp.zeros(3), None)}, r"shape \(3,\), but x0"),
    "state form": ({"state_limits": ({"a": 0.0, "b": 1.0}, None)}, "structure"),
    "not a constraint": ({"stage_constraints": lambda x, u: x}, "gnewt.between"),
    "limits alone": ({"stage_constraints": {"power": (0.0, 1.0)}}, "no function"),
    "without states": ({"stage_constraints": gnewt.between(lambda u: u, 0.0, 1.0)}, "should take x, u"),
    "unknown argument": (
        {"final_constraint": gnewt.equal(lambda x, data: x, 0.0)},
        "cannot be called",
    ),
    "missing": ({"stage_constraints": gnewt.equal(lambda x, u, dt: x * dt)}, "asks for dt"),
    "integers": ({"stage_constraints": gnewt.between(lambda x, u: jnp.arange(2), 0, 1)}, "not real numbers"),
    "crossed constraint": ({"final_constraint": gnewt.between(lambda x: x, 1.0, 0.0)}, "cross"),
    "periodic history": (
        {"periodic": True, "history": (jnp.zeros((1, 2)), None)},
        "periodic problem with a history",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_limits(case: str) -> None:
    given, message = BAD[case]
    with pytest.raises((ConstraintError, GraphError), match=message) as caught:
        problem, us = swing(**given)
        control.solve(problem, us, "newton")
    assert "where: " in str(caught.value)


def test_control_limits_of_another_shape() -> None:
    problem, us = swing(control_limits=(jnp.zeros(3), None))
    with pytest.raises(ConstraintError, match=r"shape \(3,\), but us"):
        control.solve(problem, us)


def test_single_precision() -> None:
    dynamics, cost, last, _ = pendulum()
    problem = control.Problem(
        dynamics, cost, last, jnp.array([0.3, 0.0], jnp.float32), T, control_limits=(-0.8, 0.8)
    )
    best = control.solve(swing(control_limits=(-0.8, 0.8))[0], jnp.zeros((T, 1)), "newton")
    found = control.solve(problem, jnp.zeros((T, 1), jnp.float32), tol=1e-5)
    assert found.success and found.us.dtype == jnp.float32
    assert np.allclose(found.us, best.us, atol=2e-3)
