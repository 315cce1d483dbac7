"""Solutions over all unknowns, with right-hand sides on all rows of K, against dense linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton.objective import Objective
from gnewt.newton.system import System, system_of
from helpers.random_graphs import random_graph
from helpers.small_dag import library_kkt


def dense_of(system: System, models, shift: float = 0.0) -> np.ndarray:
    k = library_kkt(_Numbers(system.plan, models))
    k[np.arange(system.plan.num_inputs), np.arange(system.plan.num_inputs)] += shift
    return k


class _Numbers:
    """What `library_kkt` reads of a factor."""

    def __init__(self, plan, models) -> None:
        self.plan, self.models = plan, models


def residual(k: np.ndarray, z: np.ndarray, b: np.ndarray) -> float:
    """Relative to the sizes involved."""
    return float(np.max(np.abs(k @ z - b)) / (np.abs(k).sum(1).max() * np.max(np.abs(z)) + np.max(np.abs(b))))


@pytest.mark.parametrize("engine", ["native", "reference", "xla"])
@pytest.mark.parametrize("order", ["auto", "min_degree"])
@pytest.mark.parametrize("first", [0, 20])
def test_random_graphs(engine: str, order: str, first: int) -> None:
    for seed in range(first, first + (4 if engine == "native" else 1)):
        case = random_graph(seed)
        rng = np.random.default_rng(seed)
        point = Objective(case.graph).at((case.values,))
        system = system_of(point, order, "exact", engine)
        slots = rng.normal(size=point.structure.num_slots)
        lam = rng.normal(size=point.structure.num_slots)
        models = system.linearize(point, jnp.asarray(slots), jnp.asarray(lam))
        shift = float(rng.choice([0.0, 0.7]))
        b = rng.normal(size=(system.plan.num_unknowns, 2))
        _, found = system.engine.factor_solve(
            system.arrays, models.sources, shift, jnp.zeros((system.plan.num_inputs, 1))
        )
        z = np.asarray(system.engine.solve_whole(system.arrays, models.sources, found, jnp.asarray(b)))
        assert residual(dense_of(system, models, shift), z, b) < 1e-11, seed


def test_under_vmap_and_jit() -> None:
    case = random_graph(3)
    point = Objective(case.graph).at((case.values,))
    system = system_of(point)
    b = np.random.default_rng(0).normal(size=(5, system.plan.num_unknowns, 1))
    models = system.linearize(point)

    @jax.jit
    @jax.vmap
    def solve(b):
        _, found = system.engine.factor_solve(
            system.arrays, models.sources, 0.3, jnp.zeros((system.plan.num_inputs, 1))
        )
        return system.engine.solve_whole(system.arrays, models.sources, found, b)

    k = dense_of(system, models, 0.3)
    for z, right in zip(np.asarray(solve(b)), b, strict=True):
        assert residual(k, z, right) < 1e-11


def test_an_unstable_chain_is_solved_in_closed_loop() -> None:
    """Growth by 3 at each of 120 nodes: a plain sweep would lose all digits, since 3¹²⁰ is far beyond 1 / eps."""
    g = gnewt.Graph()
    x = g.constant(0.0)
    for _ in range(120):
        u = g.input()
        g.loss(lambda u: 0.5 * u**2, u)
        x = g.node(lambda x, u: 3.0 * x + u, x, u) if x.kind != "constant" else g.node(lambda u: 1.0 * u, u)
        g.loss(lambda x: 0.5 * x**2, x)
    point = Objective(g).at(([0.0] * 120,))
    system = system_of(point)
    slots = np.zeros(point.structure.num_slots)
    models = system.linearize(point, jnp.asarray(slots), jnp.asarray(slots))
    b = np.random.default_rng(0).normal(size=(system.plan.num_unknowns, 1))
    _, found = system.engine.factor_solve(system.arrays, models.sources, 0.0, jnp.zeros((120, 1)))
    z = np.asarray(system.engine.solve_whole(system.arrays, models.sources, found, jnp.asarray(b)))
    k = dense_of(system, models)
    np.testing.assert_allclose(z, np.linalg.solve(k, b), atol=1e-11)


@pytest.mark.parametrize("seed", range(2))
def test_given_multipliers(seed: int) -> None:
    """Gradients and Hessians with multipliers that no sweep made, by both ways of differentiation."""
    case = random_graph(seed)
    point = Objective(case.graph).at((case.values,))
    rng = np.random.default_rng(seed)
    size = point.structure.num_slots
    slots, lam = jnp.asarray(rng.normal(size=size)), jnp.asarray(rng.normal(size=size))
    one = system_of(point, engine="native").linearize(point, slots, lam)
    two = system_of(point, engine="xla").linearize(point, slots, lam)
    for a, b in ((one.value, two.value), (one.duals, two.duals), (one.sources, two.sources)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    swept = system_of(point).linearize(point)
    again = system_of(point).linearize(point, swept.slots, swept.duals)
    np.testing.assert_allclose(again.duals, swept.duals, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(again.sources, swept.sources, rtol=1e-12, atol=1e-12)
