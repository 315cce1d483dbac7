"""Derivatives of steps, solutions, determinants and minimisers: against JAX through dense formulas, and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

T = 6
US = 0.3 * jnp.cos(jnp.arange(float(T)))
THETA = jnp.array([1.2, 0.7])
WEIGHTS = jnp.arange(1.0, T + 1)


def objective(us, theta):
    """A pendulum: theta in the dynamics and in the cost; H is dense in us."""

    def stage(x, u):
        x = jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - theta[0] * jnp.sin(x[0]))])
        return x, 0.1 * (1 + jnp.cos(x[0])) + 0.5 * u**2 * theta[1]

    x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)
    return costs.sum() + 2 * x[0] ** 2 + x[1] ** 2


def shifted(us, theta, mu):
    return jax.hessian(objective)(us, theta) + mu * jnp.eye(T)


def differences(f, x, h=1e-5):
    columns = [(f(x.at[i].add(h)) - f(x.at[i].add(-h))) / (2 * h) for i in range(len(x))]
    return jnp.stack(columns, -1)


PAIRS = {
    "step": (
        lambda us, th, mu: gnewt.newton_step(objective, shift=mu)(us, th),
        lambda us, th, mu: -jnp.linalg.solve(shifted(us, th, mu), jax.grad(objective)(us, th)),
    ),
    "solve": (
        lambda us, th, mu: gnewt.factorize(objective, shift=mu)(us, th).solve(jnp.sin(WEIGHTS * th[0])),
        lambda us, th, mu: jnp.linalg.solve(shifted(us, th, mu), jnp.sin(WEIGHTS * th[0])),
    ),
    "logdet": (
        lambda us, th, mu: gnewt.factorize(objective, shift=mu)(us, th).logdet(),
        lambda us, th, mu: jnp.linalg.slogdet(shifted(us, th, mu))[1],
    ),
    "variances": (
        lambda us, th, mu: gnewt.factorize(objective, shift=mu)(us, th).marginal_variances(),
        lambda us, th, mu: jnp.diagonal(jnp.linalg.inv(shifted(us, th, mu))),
    ),
    "product": (
        lambda us, th, mu: gnewt.factorize(objective, shift=mu)(us, th) @ WEIGHTS,
        lambda us, th, mu: shifted(us, th, mu) @ WEIGHTS,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_first_derivatives(name):
    """With respect to x, to a parameter and to μ, in both modes."""
    ours, dense = PAIRS[name]
    expected = jax.jit(jax.jacfwd(dense, (0, 1, 2)))(US, THETA, 0.1)
    for mode in (jax.jacrev, jax.jacfwd):
        found = jax.jit(mode(ours, (0, 1, 2)))(US, THETA, 0.1)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "logdet"])
def test_second_derivatives_and_batches(name):
    ours, dense = PAIRS[name]

    def scalar(f):
        return lambda th: jnp.sum(WEIGHTS[-1] * f(US, th, 0.1))

    found = jax.jit(jax.hessian(scalar(ours)))(THETA)
    np.testing.assert_allclose(found, jax.jit(jax.hessian(scalar(dense)))(THETA), rtol=1e-8, atol=1e-9)
    many = jnp.stack([THETA, 2 * THETA, 0.5 * THETA])
    found = jax.jit(jax.vmap(jax.grad(scalar(ours))))(many)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(jax.grad(scalar(dense))))(many), rtol=1e-9)


def test_outside_jit_nothing_is_lost():
    """Plain jax.grad, with the refinement of the host left out."""
    ours, dense = PAIRS["step"]

    def scalar(f):
        return lambda th: WEIGHTS @ f(US, th, 0.1)

    np.testing.assert_allclose(jax.grad(scalar(ours))(THETA), jax.grad(scalar(dense))(THETA), rtol=1e-9)


def test_a_singular_matrix_has_no_derivative():
    def f(u, a):
        return a * jnp.sum(jnp.diff(u) ** 2)

    step = jax.jit(jax.jacrev(lambda a: gnewt.newton_step(f)(jnp.array([0.0, 1.0, 3.0]), a)))
    assert np.all(np.isnan(step(1.0)))


def test_what_has_no_derivative_says_so():
    def draw(th):
        return jnp.sum(gnewt.factorize(objective)(US, th).sample(jax.random.key(0)))

    with pytest.raises(gnewt.DerivativeError, match="cannot be differentiated"):
        jax.grad(draw)(THETA)


# Solutions


def solved(theta):
    return gnewt.minimize(objective, US, (theta,), tol=1e-12).x


def test_a_minimiser_is_a_function_of_its_arguments():
    expected = differences(solved, THETA)
    for mode in (jax.jacrev, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(mode(solved))(THETA), expected, atol=1e-8)

    def by_name(th):
        return gnewt.minimize(objective, US, kwargs={"theta": th}, tol=1e-12).x

    def closed(th):
        return gnewt.minimize(lambda us: objective(us, th), US, tol=1e-12).x

    for f in (by_name, closed):
        np.testing.assert_allclose(jax.jacrev(f)(THETA), expected, atol=1e-8)
    from_start = jax.jit(jax.grad(lambda us: jnp.sum(gnewt.minimize(objective, us, (THETA,)).x)))
    np.testing.assert_array_equal(from_start(US), 0.0)


@pytest.mark.slow
def test_the_minimum_and_second_derivatives():
    def least(th):
        return gnewt.minimize(objective, US, (th,), tol=1e-12).fun

    gradient = jax.jit(jax.grad(least))
    np.testing.assert_allclose(gradient(THETA), differences(least, THETA), atol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.hessian(least))(THETA), differences(gradient, THETA), atol=1e-7)
    scalar = jax.jit(jax.grad(lambda th: WEIGHTS @ solved(th)))
    second = jax.jit(jax.jacfwd(jax.grad(lambda th: WEIGHTS @ solved(th))))(THETA)
    np.testing.assert_allclose(second, differences(scalar, THETA), atol=1e-6)


def test_an_unfinished_run_has_no_derivative():
    def far(th):
        return jnp.sum(gnewt.minimize(objective, US + 3, (th,), max_steps=1).x)

    with pytest.warns(gnewt.CurvatureWarning, match="did not end at a stationary point"):
        found = jax.grad(far)(THETA)
        jax.effects_barrier()
    assert np.all(np.isnan(found))


def test_products_have_no_factor_to_differentiate_with():
    def f(th):
        return jnp.sum(gnewt.minimize(objective, US, (th,), engine="products").x)

    with pytest.raises(gnewt.DerivativeError, match="products"):
        jax.grad(f)(THETA)


def test_an_optimal_control_problem():
    """control.solve: with respect to the start and to a mass, which the dynamics close over."""

    def plan(q):
        problem = gnewt.control.Problem(
            dynamics=lambda x, u: x + 0.1 * jnp.stack([x[1], u[0] / q[0] - jnp.sin(x[0])]),
            stage_cost=lambda x, u: 0.1 * jnp.sum(u**2) + 0.1 * jnp.sum(x**2),
            final_cost=lambda x: 5 * jnp.sum(x**2),
            x0=jnp.stack([q[1], 0.0]),
            horizon=8,
        )
        return gnewt.control.solve(problem, jnp.zeros((8, 1)), tol=1e-11).us.ravel()

    q = jnp.array([1.3, 0.8])
    np.testing.assert_allclose(jax.jit(jax.jacrev(plan))(q), differences(jax.jit(plan), q), atol=1e-7)
