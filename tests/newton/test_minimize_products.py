"""Where the tree is too wide, minimize goes on with products H·v in the same trust region."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

N = 300
MATRIX = np.random.default_rng(0).normal(size=(N, N)) / np.sqrt(N)
SCALES = np.logspace(0, 2, N)


def dense(x):
    """A dense quadratic with scales over four decades, a quartic, and negative curvature at the start."""
    y = MATRIX @ x
    return 0.5 * jnp.sum(SCALES * x**2) + jnp.sum(y**4) - 2.0 * jnp.sum(y**2) - jnp.sum(x)


START = 0.1 * np.cos(np.arange(N))


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("GNEWT_MAX_BYTES", "1e5")


def test_a_tree_too_wide_for_memory_is_noticed_and_solved_by_products(narrow):
    with pytest.warns(gnewt.PerformanceNotice, match="products"):
        res = gnewt.minimize(dense, START, tol=1e-7)
    assert res.status == "converged", res
    assert res.factor is None
    assert res.num_factorizations == 0
    gradient = jax.grad(dense)(res.x)
    assert np.max(np.abs(gradient)) <= 1e-7 * max(1.0, 1e-3 * np.max(np.abs(jax.grad(dense)(START))))
    assert np.linalg.eigvalsh(jax.hessian(dense)(res.x))[0] > 0


@pytest.mark.slow
def test_products_end_where_elimination_ends():
    def bowl(x):
        y = MATRIX[:40, :40] @ x
        return jnp.sum(jnp.cosh(x)) + jnp.sum(y**4) - x[3]

    start = np.cos(np.arange(40.0))
    exact = gnewt.minimize(bowl, start)
    inexact = gnewt.minimize(bowl, start, engine="products")
    assert exact.success
    assert inexact.success
    assert np.allclose(exact.x, inexact.x, atol=1e-7)
    inside = jax.jit(lambda x: gnewt.minimize(bowl, x, engine="products", max_steps=50))(start)
    assert int(inside.code) == inexact.code
    assert int(inside.num_steps) == inexact.num_steps
    assert np.allclose(inside.x, inexact.x, atol=1e-12)
    starts = np.stack([start, -start, 2 * start])
    lanes = jax.vmap(lambda x: gnewt.minimize(bowl, x, engine="products", max_steps=50).x)(starts)
    assert np.allclose(lanes, np.asarray(exact.x)[None], atol=1e-7)


@pytest.mark.slow
def test_a_network_with_shared_weights_and_a_batch(narrow):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(32, 6))
    targets = np.sin(inputs.sum(1))
    weights = [0.5 * rng.normal(size=(6, 12)), 0.5 * rng.normal(size=(12, 12)), 0.5 * rng.normal(size=12)]

    def loss(weights):
        a, b, c = weights
        out = jnp.tanh(jnp.tanh(inputs @ a) @ b) @ c
        return jnp.mean((out - targets) ** 2) + 1e-3 * sum(jnp.sum(w**2) for w in weights)

    with pytest.warns(gnewt.PerformanceNotice):
        res = gnewt.minimize(loss, weights, tol=1e-6)
    assert res.success, res
    assert res.fun < 0.2 * loss(weights)


def test_a_line_search_says_that_it_cannot(narrow):
    with pytest.warns(gnewt.PerformanceNotice), pytest.raises(gnewt.PlanError, match="TrustRegion"):
        gnewt.minimize(dense, START, search=gnewt.newton.LineSearch())
