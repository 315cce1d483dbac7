"""Gains and values where comparing numbers could not find the states: equal states, idle states, unstable dynamics.

The reference is Riccati's recursion in NumPy, symmetrised: without that its own rounding grows along unstable dynamics.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt import control
from gnewt.control.slots import control_slots, stage_order, state_slots
from gnewt.newton.objective import Objective
from gnewt.trace import trace_graph
from helpers.stages import differentiate, recursion
from helpers.systems import pendulum


def check(solution: control.Solution, parts: Any, us: Any, method: str) -> None:
    theirs = recursion(differentiate(*parts, us), method)
    for mine, other in (
        (solution.feedforward, theirs.k),
        (solution.gains, theirs.gains),
        (solution.value_gradient, theirs.v),
        (solution.value_hessian, theirs.vv),
    ):
        assert mine.shape == other.shape
        assert np.abs(mine - other).max() <= 1e-10 * np.abs(other).max()


def twins(x: Any, u: Any) -> Any:
    """Two pendulums that start alike and feel the same force: their angles are equal numbers at all times."""
    turn = x[jnp.array([1, 0, 3, 2])]
    return x + 0.1 * jnp.stack([turn[0], u[0] - jnp.sin(x[0]), turn[2], u[0] - jnp.sin(x[2])])


@pytest.mark.parametrize("method", ["newton", "ddp", "ilqr"])
def test_two_states_that_are_equal_in_value(method: str) -> None:
    weights = jnp.array([1.0, 0.1, 3.0, 0.4])
    parts = (
        twins,
        lambda x, u: x @ (weights * x) + x[0] * u[0] + 2 * u @ u,
        lambda x: 5 * x @ (weights * x),
        jnp.array([1.0, -0.5, 1.0, -0.5]),
    )
    us = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=(10, 1)))
    problem = control.Problem(*parts, 10)
    xs = problem.rollout(us)
    assert np.array_equal(xs[:, :2], xs[:, 2:])
    check(control.solve(problem, us, method, max_steps=0), parts, us, method)


def test_a_state_that_equals_a_control() -> None:
    """The memory of a control is the control's own slot."""
    parts = (
        lambda x, u: jnp.stack([x[0] + 0.1 * x[1] + 0.01 * jnp.sin(x[0]), u[0]]),
        lambda x, u: x[0] ** 2 + (u[0] - x[1]) ** 2 + 0.1 * u[0] ** 2,
        lambda x: 4 * x[0] ** 2 + x[1] ** 2,
        jnp.array([1.0, 1.0]),
    )
    us = jnp.ones((8, 1))
    found = control.solve(control.Problem(*parts, 8), us, "newton", max_steps=0)
    theirs = recursion(differentiate(*parts, us), "newton")
    for mine, other in (
        (found.feedforward, theirs.k),
        (found.gains, theirs.gains),
        (found.value_hessian, theirs.vv),
    ):
        assert np.abs(mine - other).max() <= 1e-10 * np.abs(other).max()


def test_a_state_that_does_not_influence_the_cost() -> None:
    dynamics, cost, last, x0 = pendulum()

    def wide(z: Any, u: Any) -> Any:
        return jnp.concatenate([dynamics(z[:2], u), z[2:] + 0.3 * z[:1] * u])

    parts = (wide, lambda z, u: cost(z[:2], u), lambda z: last(z[:2]), jnp.append(x0, 0.7))
    us = jnp.asarray(0.3 * np.random.default_rng(1).normal(size=(10, 1)))
    check(control.solve(control.Problem(*parts, 10), us, "newton", max_steps=0), parts, us, "newton")

    # The same as an entry of its own, of which the graph has nothing at all.
    problem = control.Problem(
        lambda x, u: {"idle": x["idle"] + 0.3 * x["x"][0] * u[0], "x": dynamics(x["x"], u)},
        lambda x, u: cost(x["x"], u),
        lambda x: last(x["x"]),
        {"idle": jnp.array(0.7), "x": x0},
        10,
    )
    solution = control.solve(problem, us, "newton", max_steps=0)
    theirs = recursion(differentiate(dynamics, cost, last, x0, us), "newton")
    assert np.abs(solution.gains[:, :, 1:] - theirs.gains).max() <= 1e-10 * np.abs(theirs.gains).max()
    assert np.abs(solution.value_hessian[:, 1:, 1:] - theirs.vv).max() <= 1e-10 * np.abs(theirs.vv).max()
    assert not solution.gains[:, :, 0].any() and not solution.value_hessian[:, 0].any()
    graph = Objective(problem.stages.with_states, has_aux=True).at((us, problem.given)).structure
    assert np.all(state_slots(problem, graph)[:, 0] == -1)
    # Kept, it is a slot for all its stages; the gains stay.
    kept = trace_graph(problem.stages.with_states, us, problem.given, has_aux=True, keep="states")
    assert np.all(state_slots(problem, kept)[1:, 0] >= 0)
    assert kept.num_slots > graph.num_slots


def test_unstable_dynamics_over_a_thousand_stages() -> None:
    horizon, growth = 1000, 1.02
    a, b = growth * np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.0], [0.1]])
    hessian = 2 * np.eye(2)
    gains, hessians = [], [hessian]
    for _ in range(horizon):
        right = b.T @ hessian @ a
        gains.append(-np.linalg.solve(0.2 * np.eye(1) + b.T @ hessian @ b, right))
        hessian = 0.2 * np.eye(2) + a.T @ hessian @ a + right.T @ gains[-1]
        hessian = 0.5 * (hessian + hessian.T)
        hessians.append(hessian)
    gains, hessians = np.array(gains[::-1]), np.array(hessians[::-1])
    xs, us = [np.array([1.0, 0.7])], []
    for gain in gains:
        us.append(gain @ xs[-1])
        xs.append(a @ xs[-1] + b @ us[-1])
    problem = control.Problem(
        lambda x, u: jnp.asarray(a) @ x + jnp.asarray(b) @ u,
        lambda x, u: 0.1 * (x @ x + u @ u),
        lambda x: x @ x,
        jnp.asarray(xs[0]),
        horizon,
    )
    # Without its feedback the trajectory multiplies rounding by growth^1000, 4e8.
    found = control.solve(problem, jnp.asarray(np.array(us)), "newton", max_steps=0)
    assert np.abs(found.gains - gains).max() <= 1e-12 * np.abs(gains).max()
    assert np.abs(found.value_hessian - hessians).max() <= 1e-12 * np.abs(hessians).max()
    slope = np.einsum("tij,tj->ti", hessians, np.array(xs))
    assert np.abs(found.value_gradient - slope).max() <= 1e-5 * np.abs(slope).max()
    assert np.abs(found.feedforward).max() <= 1e-5
    # Without any control the states reach 1e9, and the slots are found all the same.
    wild = control.solve(problem, jnp.zeros((horizon, 1)), "newton", max_steps=0)
    assert np.abs(wild.gains - gains).max() <= 1e-12 * np.abs(gains).max()


def test_slots_are_those_of_the_trajectory() -> None:
    dynamics, cost, last, x0 = pendulum()

    def late(x: Any, u: Any, past_u: Any) -> Any:
        return dynamics(x, u + past_u[0])

    problem = control.Problem(late, cost, last, x0, 7, history=(None, jnp.zeros((2, 1))))
    us = jnp.asarray(np.random.default_rng(2).normal(size=(7, 1)))
    structure = Objective(problem.stages.with_states, has_aux=True).at((us, problem.given)).structure
    controls, states = control_slots(problem, structure), state_slots(problem, structure)
    assert np.array_equal(controls.ravel(), np.arange(7))
    # Columns are (past_u, x): the memory of a control is the control.
    assert np.array_equal(states[2:, 0], controls[:-2, 0]) and np.array_equal(states[1:, 1], controls[:-1, 0])
    order = stage_order(problem, structure)
    assert np.array_equal(np.sort(order), np.arange(structure.num_slots))
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    assert np.all(np.diff(rank[controls[:, 0]]) < 0)
    plain = Objective(problem.stages.objective).at((us, problem.given)).structure
    assert plain.num_slots == structure.num_slots and plain.outputs is None


def test_gains_inside_jit_are_those_outside() -> None:
    weights = jnp.array([1.0, 0.1, 3.0, 0.4])
    problem = control.Problem(
        twins,
        lambda x, u: x @ (weights * x) + 2 * u @ u,
        lambda x: 5 * x @ (weights * x),
        jnp.array([1.0, -0.5, 1.0, -0.5]),
        6,
    )
    us = jnp.zeros((6, 1))
    best = control.solve(problem, us, tol=1e-10)
    step = jax.jit(lambda x, us: control.mpc_step(problem, x, us, iterations=12))(problem.x0, us)
    assert np.allclose(step.gains, best.gains, rtol=1e-6, atol=1e-8)
