"""control.solve inside jit and under vmap: the same answers as on the host, with states, policies and status."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt import control
from gnewt.newton import Status
from helpers.systems import pendulum

HORIZON = 6
STARTS = np.array([[0.3, 0.0], [-0.4, 0.2]])


def test_lanes_of_a_compiled_solve_are_single_solves() -> None:
    problem = control.Problem(*pendulum(), HORIZON)
    us = jnp.zeros((HORIZON, 1))

    @jax.jit
    @jax.vmap
    def run(x0: Any) -> Any:
        found = control.solve(problem.replace(x0=x0), us, max_steps=30)
        numbers = (found.code, found.success, found.num_steps, found.fun)
        return found, (*numbers, found.xs, found.states, found.gains, found.value_hessian)

    batch, inside = run(jnp.asarray(STARTS))
    for lane, x0 in enumerate(STARTS):
        alone = control.solve(problem.replace(x0=x0), us, max_steps=30)
        numbers = (alone.code, alone.success, alone.num_steps, alone.fun)
        expected = (*numbers, alone.xs, alone.states, alone.gains, alone.value_hessian)
        for found, wanted in zip(inside, expected, strict=True):
            assert np.allclose(found[lane], wanted, rtol=1e-9, atol=1e-10)
        # The solution itself comes out of the compiled function, and each of its lanes is one.
        single = jax.tree.map(lambda a: a[lane], batch)
        assert single.status == alone.status == Status.CONVERGED.text and single.success
        assert np.allclose(single.gains, alone.gains, rtol=1e-9, atol=1e-10)
        assert np.allclose(single.policy(1, x0), alone.policy(1, x0), rtol=1e-9, atol=1e-10)


def test_lanes_without_jit() -> None:
    """What lanes have in common is known there, and the loop mixes it with what is traced."""
    problem = control.Problem(*pendulum(), HORIZON)
    us = jnp.zeros((HORIZON, 1))
    found = jax.vmap(lambda x0: control.solve(problem.replace(x0=x0), us, max_steps=20).us)(
        jnp.asarray(STARTS)
    )
    alone = control.solve(problem.replace(x0=STARTS[1]), us, max_steps=20).us
    assert np.allclose(found[1], alone, rtol=1e-9, atol=1e-10)


def test_a_solution_with_more_decisions_is_a_start_inside_jit() -> None:
    dynamics, cost, last, x0 = pendulum()

    def scaled(x: Any, u: Any, params: Any) -> Any:
        return dynamics(x, params * u)

    def charged(x: Any, params: Any) -> Any:
        return last(x) + (params - 2.0) ** 2

    problem = control.Problem(scaled, cost, charged, x0, HORIZON, params=1.0, optimize="params")
    alone = control.solve(problem, jnp.zeros((HORIZON, 1)))

    first = control.solve(problem, jnp.zeros((HORIZON, 1)), max_steps=2)
    found = jax.jit(lambda start: control.solve(problem, start, max_steps=50))(first)
    assert found.status == "converged"
    assert np.isclose(found.fun, alone.fun, rtol=1e-9) and np.isclose(found.params, alone.params, rtol=1e-6)
    with pytest.raises(Exception, match="inside jit"):
        jax.jit(lambda us: control.solve(problem, us, max_steps=1).status)(jnp.zeros((HORIZON, 1)))
