"""Theorem 1: along any order, the step is -H⁻¹g of the dense Hessian, and inertia and log|det| are H's."""

import jax
import numpy as np
import pytest

import gnewt
from helpers.oracle import backward_error, flatten, inertia_of
from helpers.random_graphs import random_graph, random_order

ORDERS = ["causal_min_degree", "min_degree", "nested_dissection", "hessian", "random", "auto"]


# Each graph compiles anew (about 3 s): `make test` takes 60 of them, `make test-all` all 200.
SEEDS = [*range(4), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 200)]]


@pytest.mark.parametrize("seed", SEEDS)
def test_step_inertia_and_determinant_agree_with_the_dense_hessian(seed):
    problem = random_graph(seed)
    f = problem.function
    value, g, h = (
        np.asarray(a) for a in jax.jit(lambda x: (f(x), jax.grad(f)(x), jax.hessian(f)(x)))(problem.flat)
    )
    expected = inertia_of(h)
    for order in ORDERS:
        given = random_order(problem, seed) if order == "random" else order
        step, info = gnewt.newton_step(problem.graph, order=given, full_output=True)(problem.values)
        assert info.status == "ok", (order, info.message)
        assert info.value == pytest.approx(float(value), rel=1e-12, abs=1e-12)
        assert backward_error(h, flatten(step), g) <= 1e-12, order
        assert info.inertia == expected, order
        assert info.logdet == pytest.approx(np.linalg.slogdet(h)[1], abs=1e-9), order
        assert info.residual <= 1e-9, order
