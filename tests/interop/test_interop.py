"""Other libraries' own calls, with gnewt inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import gnewt
import gnewt.interop


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def swing(us, weight=1.0):
    """A cartpole, linearly damped, to be held upright."""

    def stage(x, u):
        s, c = jnp.sin(x[1]), jnp.cos(x[1])
        push = (u + 0.5 * s * (x[3] ** 2 - 9.8 * c)) / (1 + 0.5 * s**2)
        turn = (u * c - 0.5 * x[3] ** 2 * c * s + 14.7 * s) / (1 + 0.5 * s**2)
        v = x[2:] + 0.05 * jnp.stack([push, -turn])
        x = jnp.concatenate([x[:2] + 0.05 * v, v])
        return x, 0.01 * u**2 + weight * 0.1 * jnp.sum(x**2)

    _, costs = jax.lax.scan(stage, jnp.array([0.1, 0.2, 0.0, 0.0]), us)
    return costs.sum()


def test_scipy_solves_rosenbrock_and_a_cartpole():
    seen = []
    start = np.full(1000, 0.5)
    found = scipy.optimize.minimize(
        rosenbrock, start, method=gnewt.interop.scipy_newton, callback=lambda x: seen.append(x)
    )
    assert found.success, found.message
    np.testing.assert_allclose(found.x, 1.0, atol=1e-6)
    assert len(seen) == found.nit and found.jac.shape == (1000,)
    found = scipy.optimize.minimize(
        swing, np.zeros(40), args=(2.0,), method=gnewt.interop.scipy_newton, options={"maxiter": 50}
    )
    assert found.success
    assert np.max(np.abs(jax.grad(swing)(jnp.asarray(found.x), 2.0))) < 1e-6
    with pytest.raises(gnewt.OptionError, match="constraints"):
        constraint = {"type": "eq", "fun": lambda x: x[0]}
        scipy.optimize.minimize(
            swing, np.zeros(4), method=gnewt.interop.scipy_newton, constraints=[constraint]
        )


def test_optimistix_minimises():
    optimistix = pytest.importorskip("optimistix")
    solver = gnewt.interop.OptimistixNewton()
    found = optimistix.minimise(lambda y, args: rosenbrock(y), solver, jnp.full(1000, 0.5))
    assert found.result == optimistix.RESULTS.successful
    np.testing.assert_allclose(found.value, 1.0, atol=1e-6)
    found = optimistix.minimise(swing, solver, jnp.zeros(40), 2.0)
    assert np.max(np.abs(jax.grad(swing)(found.value, 2.0))) < 1e-6
    short = gnewt.interop.OptimistixNewton(max_steps=1)
    found = optimistix.minimise(lambda y, args: rosenbrock(y), short, jnp.full(5, -3.0), throw=False)
    assert found.result != optimistix.RESULTS.successful


def test_lineax_solves_with_the_factor():
    lineax = pytest.importorskip("lineax")
    us = 0.1 * jnp.cos(jnp.arange(20.0))
    factor = gnewt.factorize(swing)(us)
    H = jax.hessian(swing)(us)
    operator = gnewt.interop.lineax_operator(factor)
    np.testing.assert_allclose(operator.as_matrix(), H, atol=1e-9)
    b = jnp.sin(jnp.arange(20.0))
    found = lineax.linear_solve(operator, b, gnewt.interop.LineaxFactor(factor))
    np.testing.assert_allclose(found.value, jnp.linalg.solve(H, b), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("f", "start"), [(rosenbrock, np.full(1000, 0.9)), (swing, np.zeros(40))])
def test_newtons_method_with_lineax(f, start):
    """A loop of steps that are lineax's solves, compiled: to a minimum."""
    lineax = pytest.importorskip("lineax")

    @jax.jit
    def step(x):
        factor = gnewt.factorize(f)(x)
        operator = gnewt.interop.lineax_operator(factor)
        found = lineax.linear_solve(operator, factor.gradient, gnewt.interop.LineaxFactor(factor))
        return x - found.value

    x = jnp.asarray(start)
    for _ in range(15):
        x = step(x)
    assert np.max(np.abs(jax.grad(f)(x))) < 1e-9
    expected = gnewt.minimize(f, start).x
    np.testing.assert_allclose(x, expected, atol=1e-6)


def test_blackjax_starts_from_a_laplace_approximation():
    blackjax = pytest.importorskip("blackjax")
    precision = jnp.array([1.0, 25.0, 400.0])

    def f(x):
        return 0.5 * jnp.sum(precision * (x - 1.0) ** 2)

    start = gnewt.interop.sampler_start(gnewt.laplace(f, jnp.zeros(3)), jax.random.key(0))
    np.testing.assert_allclose(start.inverse_mass_matrix, 1 / precision, rtol=1e-9)
    nuts = blackjax.nuts(lambda x: -f(x), **start.nuts)
    step = jax.jit(nuts.step)

    def body(state, key):
        state, info = step(key, state)
        return state, (state.position, info.acceptance_rate)

    keys = jax.random.split(jax.random.key(1), 2000)
    _, (draws, rates) = jax.lax.scan(body, nuts.init(start.positions), keys)
    assert rates.mean() > 0.6
    np.testing.assert_allclose(jnp.var(draws, axis=0) * precision, 1.0, atol=0.25)
