"""Nonlinear back-substitution and policies on graphs that are no chains: scenario trees, delays, random DAGs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import forward
from gnewt.kkt import PathWalk, SerialWalk, causal_order
from gnewt.newton.causal import CausalElimination, causal_elimination, order_of_slots
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of
from helpers.random_graphs import random_graph
from helpers.systems import pendulum


def scenario_tree(depth: int) -> tuple[gnewt.Graph, Any]:
    """One control per vertex of a binary tree; a disturbance tells the two children apart."""
    dynamics, cost, last, x0 = pendulum()
    g = gnewt.Graph()
    level = [g.constant(x0)]
    num = 0

    def follow(x: Any, u: Any, w: Any) -> Any:
        return dynamics(x, u) + w

    for _ in range(depth):
        after = []
        for x in level:
            u = g.input((1,), name=f"u{num}")
            num += 1
            g.loss(cost, x, u)
            after += [g.node(follow, x, u, g.constant(jnp.asarray(w))) for w in (0.1, -0.1)]
        level = after
    for x in level:
        g.loss(last, x)
    rng = np.random.default_rng(0)
    return g, [jnp.asarray(0.1 * rng.normal(size=1)) for _ in range(num)]


def delayed(horizon: int, delay: int) -> tuple[Callable, Any]:
    """The control acts `delay` stages later, and the state feels its own past."""
    _, cost, last, x0 = pendulum()

    def f(us: Any) -> Any:
        def stage(carry: Any, u: Any) -> Any:
            x, before, queue = carry
            y = x + 0.1 * jnp.array([x[1], queue[0, 0] - jnp.sin(before[0]) - 0.1 * x[1] * before[1]])
            return (y, x, jnp.concatenate([queue[1:], u[None]])), cost(x, u)

        carry, costs = jax.lax.scan(stage, (x0, x0, jnp.zeros((delay, 1))), us)
        return jnp.sum(costs) + last(carry[0])

    return f, jnp.asarray(0.1 * np.random.default_rng(0).normal(size=(horizon, 1)))


def check(target: Any, x: Any, shift: float) -> None:
    """Slots of a rollout are those of the graph; small steps are Newton steps; gains are what the value function says."""
    point = jax.tree.map(jnp.asarray, Objective(target).at((x,)))
    system = system_of(point, "causal")
    models, sweep = system.linearize(point), causal_elimination(system)
    number = point.structure.num_inputs
    serial = CausalElimination(
        point.structure, SerialWalk(causal_order(point.structure, order_of_slots(system)))
    )
    step, _ = system.factor_solve(models, shift, -models.duals[:number])

    @partial(jax.jit, static_argnums=(0, 1))
    def run(sweep: CausalElimination, duals: str, models: Any) -> Any:
        found = sweep.eliminate(point.data, models, shift, duals, definite=False)
        return [sweep.roll_out(point.data, models, found, length) for length in (0.4, 1e-7)]

    for duals in ("adjoint", "value", "zero"):
        slots, near = run(sweep, duals, models)
        exact = forward(point.structure, system.maps, point.data, slots[:number])
        assert np.abs(exact - slots).max() <= 1e-13 * max(1.0, np.abs(slots).max())
        if isinstance(sweep.walk, PathWalk):
            again, _ = run(serial, duals, models)
            assert np.abs(again - slots).max() <= 1e-9 * np.abs(slots).max()
        if duals == "zero" and shift == 0:
            for walk in (sweep, serial):
                none, plain = (
                    [s for s, _ in walk.eliminate(point.data, models, 0.0, mode, definite=False, share=share)]
                    for mode, share in (("adjoint", 0.0), ("zero", 1.0))
                )
                for one, other in zip(none, plain, strict=True):
                    assert np.allclose(one.k, other.k, rtol=1e-8, atol=1e-10)
        if duals == "adjoint":
            assert np.abs((near[:number] - point.x) / 1e-7 - step).max() <= 1e-4 * np.abs(step).max()


@pytest.mark.slow
def test_scenario_tree() -> None:
    f, us = scenario_tree(3)
    check(f, us, 0.0)
    res = gnewt.minimize(f, us, order="causal", back_substitution="nonlinear")
    assert res.status == "converged"
    # Controls listen to the state of their own vertex alone.
    policy = res.factor.policy()
    assert max(len(rule.listens) for rule in policy) == 2


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1, 2])
def test_delay_system(delay: int) -> None:
    f, us = delayed(8, delay)
    check(f, us, 0.0)
    res = gnewt.minimize(f, us, order="causal", duals="value", back_substitution="nonlinear")
    assert res.success and np.abs(jax.grad(f)(res.x)).max() <= 1e-8
    # The first state that u_t acts on reads two states before it; u_t also listens to the controls that act earlier.
    listens = [len(rule.listens) for rule in res.factor.policy()]
    assert max(listens) <= 4 + 2 * delay


def test_a_long_chain_is_a_loop() -> None:
    f, us = delayed(40, 2)
    point = Objective(f).at((us,))
    walk = causal_elimination(system_of(point, "causal")).walk
    assert isinstance(walk, PathWalk)
    assert max(loop.repeats for loop in walk.loops) > 30


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4, 5, 10))])
def test_random_dag(seed: int) -> None:
    found = random_graph(seed)
    check(found.graph, [jnp.asarray(v) for v in found.values], 30.0)


def test_other_orders_are_refused() -> None:
    f, us = scenario_tree(2)
    with pytest.raises(gnewt.PlanError, match=r"not causal[\s\S]*order='causal'"):
        gnewt.minimize(f, us, order="nested_dissection", back_substitution="nonlinear")
    with pytest.raises(gnewt.PlanError, match="order='causal'"):
        gnewt.factorize(f, order="nested_dissection")(us).policy()


def test_switches_are_checked() -> None:
    f, us = scenario_tree(2)
    with pytest.raises(gnewt.PlanError, match="unknown duals"):
        gnewt.minimize(f, us, duals="dual")
    with pytest.raises(gnewt.PlanError, match="nonlinear"):
        gnewt.minimize(f, us, duals="value")
    with pytest.raises(gnewt.PlanError, match="curve"):
        gnewt.minimize(f, us, back_substitution="nonlinear", search=gnewt.newton.LineSearch())
    with pytest.raises(gnewt.PlanError, match="semidefinite"):
        gnewt.newton.Rollout("value", square_root=True)
