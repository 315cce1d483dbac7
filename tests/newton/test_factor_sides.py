"""Many right-hand sides at once, and what only a positive definite H has."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

SEED = np.random.default_rng(3)
X = {"a": jnp.asarray(SEED.normal(size=(2, 3))), "b": jnp.asarray(0.4)}
SIDES = {"a": SEED.normal(size=(5, 2, 3)), "b": SEED.normal(size=5)}


def f(x):
    y = jax.lax.scan(lambda c, u: (jnp.sin(c) * x["b"] + u, c * u), jnp.zeros(()), x["a"].ravel())
    return jnp.sum(y[1] ** 2) + y[0] ** 2 + jnp.sum(jnp.cosh(x["a"])) + x["b"] ** 2


def dense(x):
    flat, unravel = jax.flatten_util.ravel_pytree(x)
    return np.asarray(jax.hessian(lambda z: f(unravel(z)))(flat))


H = dense(X)
FLAT = np.concatenate([SIDES["a"].reshape(5, -1), SIDES["b"][:, None]], 1)
EXPECTED = np.linalg.solve(H, FLAT.T).T


def close(found, expected=EXPECTED, tol=1e-12):
    a, b = np.asarray(found["a"]), np.asarray(found["b"])
    assert a.shape == (len(expected), 2, 3) and b.shape == (len(expected),)
    flat = np.concatenate([a.reshape(len(expected), -1), b[:, None]], 1)
    assert np.max(np.abs(flat - expected)) <= tol * np.max(np.abs(expected))


def test_many_right_hand_sides():
    factor = gnewt.factorize(f)(X)
    close(factor.solve(SIDES))
    close(jax.jit(factor.solve)(SIDES))
    close(jax.jit(lambda x, b: gnewt.factorize(f)(x).solve(b))(X, SIDES))
    close(jax.vmap(factor.solve)(SIDES))
    one = factor.solve({"a": SIDES["a"][0], "b": SIDES["b"][0]})
    assert np.allclose(one["a"], EXPECTED[0, :6].reshape(2, 3), atol=1e-12)
    none = factor.solve({"a": np.zeros((0, 2, 3)), "b": np.zeros(0)})
    assert none["a"].shape == (0, 2, 3) and none["b"].shape == (0,)
    mixed = {"a": SIDES["a"] * np.array([1.0, 0.0, 1.0, 1.0, 0.0])[:, None, None], "b": 0 * SIDES["b"]}
    found = factor.solve(mixed)
    assert np.all(np.asarray(found["a"])[1] == 0) and np.any(np.asarray(found["a"])[0])


def test_many_right_hand_sides_of_many_factors():
    points = {"a": jnp.stack([X["a"], 2 * X["a"]]), "b": jnp.array([0.4, 0.1])}
    sides = jax.tree.map(lambda b: np.stack([b, b]), SIDES)
    factors = jax.vmap(gnewt.factorize(f))(points)
    found = jax.vmap(lambda F, b: F.solve(b))(factors, sides)
    other = dense(jax.tree.map(lambda a: a[1], points))
    close(jax.tree.map(lambda a: a[1], found), np.linalg.solve(other, FLAT.T).T)
    with pytest.raises(gnewt.StepError, match=r"batch of shape \(2,\)[\s\S]*jax.vmap"):
        factors.solve(sides)


def test_a_matrix_is_inverted_at_once():
    matrix = np.diag(np.arange(1.0, 5.0)) + 0.1
    factor = gnewt.factorize(lambda x: 0.5 * x @ matrix @ x + jnp.sum(x))(np.ones(4))
    assert np.allclose(factor.solve(np.eye(4)), np.linalg.inv(matrix), atol=1e-14)


@pytest.mark.parametrize(
    "sides",
    [
        {"a": np.ones((5, 2, 3)), "b": np.ones(4)},
        {"a": np.ones((5, 3, 2)), "b": np.ones(5)},
        {"a": np.ones((2, 3)), "b": np.ones(2)},
        {"a": np.ones((2, 3))},
        {"a": np.ones((2, 3)) * 1j, "b": 1.0},
    ],
)
def test_sides_that_do_not_fit(sides):
    factor = gnewt.factorize(f)(X)
    with pytest.raises(
        gnewt.GraphError, match=r"right-hand side[\s\S]*test_factor_sides.py[\s\S]*what to do"
    ):
        factor.solve(sides)


def test_variances_need_a_positive_definite_hessian():
    def saddle(x):
        return x[0] ** 2 - x[1] ** 2 + x[0] * x[1] + x[2] ** 4

    x = np.ones(3)
    factor = gnewt.factorize(saddle, order="causal")(x)
    with pytest.warns(gnewt.CurvatureWarning, match=r"not positive definite, its inertia is \(2, 1, 0\)"):
        assert np.all(np.isnan(factor.marginal_variances()))
    h = jax.hessian(saddle)(x)
    assert np.allclose(factor.solve(np.ones(3)), np.linalg.solve(h, np.ones(3)), atol=1e-14)
    with pytest.raises(gnewt.StepError, match="cannot sample"):
        factor.sample(jax.random.key(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = gnewt.factorize(saddle, shift=5.0)(x).marginal_variances()
    assert np.allclose(good, np.diag(np.linalg.inv(h + 5 * np.eye(3))), atol=1e-14)
