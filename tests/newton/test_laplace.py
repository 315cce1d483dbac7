"""Laplace approximations: modes, evidence and its derivatives against dense formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

RNG = np.random.default_rng(3)
Y = jnp.asarray(RNG.standard_normal(15))


def volatility(z, theta):
    """Stochastic volatility, non-centred: H is dense in z."""
    log_scale, persistence = theta

    def stage(h, e):
        h = jnp.tanh(persistence) * h + jnp.exp(log_scale) * e
        return h, h

    _, h = jax.lax.scan(stage, jnp.zeros((), z.dtype), z)
    return jnp.sum(0.5 * h + 0.5 * Y**2 * jnp.exp(-h) + 0.5 * z**2)


THETA = jnp.array([-0.5, 1.0])
Z0 = jnp.zeros(15)


def dense_evidence(theta):
    z = Z0
    for _ in range(30):
        z = z - jnp.linalg.solve(jax.hessian(volatility)(z, theta), jax.grad(volatility)(z, theta))
    H = jax.hessian(volatility)(z, theta)
    return -volatility(z, theta) + 15 / 2 * jnp.log(2 * jnp.pi) - jnp.linalg.slogdet(H)[1] / 2


def evidence(theta):
    return gnewt.laplace(volatility, Z0, (theta,), tol=1e-12).log_evidence


def test_a_gaussian_is_exact():
    a = RNG.standard_normal((6, 6))
    precision = a @ a.T + np.eye(6)
    mean = RNG.standard_normal(6)

    def f(x):
        return 0.5 * (x - mean) @ precision @ (x - mean)

    found = gnewt.laplace(f, jnp.zeros(6))
    covariance = np.linalg.inv(precision)
    assert found.success
    np.testing.assert_allclose(found.mode, mean, atol=1e-10)
    np.testing.assert_allclose(found.variances(), np.diag(covariance), rtol=1e-10)
    np.testing.assert_allclose(found.std(), np.sqrt(np.diag(covariance)), rtol=1e-10)
    expected = 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-10)
    draws = np.asarray(found.sample(jax.random.key(0), (3000,)))
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.1)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.1)


def test_the_evidence_and_its_gradient():
    """The third-derivative term included: the mode moves, and H with it."""
    np.testing.assert_allclose(evidence(THETA), jax.jit(dense_evidence)(THETA), rtol=1e-10)
    expected = jax.jit(jax.jacfwd(dense_evidence))(THETA)
    for mode in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(mode(evidence))(THETA), expected, rtol=1e-7)
    h = 1e-5
    differences = [(evidence(THETA + h * e) - evidence(THETA - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(expected, differences, rtol=1e-6)


@pytest.mark.slow
def test_the_second_derivative_of_the_evidence():
    found = jax.jit(jax.jacfwd(jax.grad(evidence)))(THETA)
    expected = jax.jit(jax.jacfwd(jax.jacfwd(dense_evidence)))(THETA)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_no_minimum_has_no_evidence():
    with pytest.warns(gnewt.CurvatureWarning, match="no evidence"):
        found = gnewt.laplace(lambda x: jnp.sum(jnp.cos(x)), jnp.full(3, 0.5), max_steps=0)
    assert np.isnan(found.log_evidence) and not found.success
