"""Variances, covariances, samples and determinants of a Factor against dense linear algebra."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from helpers import trace_programs  # noqa: F401  (enters its programs)
from helpers.program_table import PROGRAMS

EPS = np.finfo(float).eps
NAMES = [
    "bundle_adjustment",
    "cond_in_dynamics",
    "delay",
    "dicts_and_scalars",
    "dense_products",
    "second_order",
]


def pendulum(us, theta=1.0):
    def stage(x, u):
        x = jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - theta * jnp.sin(x[0]))])
        return x, (0.1 * (1 + jnp.cos(x[0])) + 0.3 * u**2, x)

    last, (costs, states) = jax.lax.scan(stage, jnp.array([0.5, 0.0], us.dtype), us)
    return costs.sum() + 2 * last[0] ** 2 + last[1] ** 2, {"states": states}


US = 0.3 * jnp.cos(jnp.arange(12.0))


def dense(f, x):
    """H over the flat inputs."""
    flat, unravel = jax.flatten_util.ravel_pytree(x)
    return np.asarray(jax.jit(jax.hessian(lambda z: f(unravel(z))))(flat))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def small_program(name):
    """(objective, x, H) of a tracing program; None where H is too large to be written out, or in another precision."""
    f, args, *rest = PROGRAMS[name]()
    argnums = rest[0] if rest else 0
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    x = tuple(args[i] for i in chosen)

    def objective(x):
        given = dict(zip(chosen, x, strict=True))
        return f(*(given.get(i, a) for i, a in enumerate(args)))

    leaves = jax.tree.leaves(x)
    if sum(np.size(v) for v in leaves) > 1000 or any(np.asarray(v).dtype != np.float64 for v in leaves):
        return None
    return objective, x, dense(objective, x)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in NAMES else [pytest.mark.slow]) for n in PROGRAMS]
)
def test_quantities_of_programs(name):
    """H as it is, indefinite or not, and shifted until it is positive definite, against dense linear algebra."""
    found = small_program(name)
    if found is None:
        return
    objective, x, H = found
    size = len(H)
    v = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(float(np.size(leaf)))).reshape(np.shape(leaf)), x)
    values = np.linalg.eigvalsh(H)
    most = np.abs(values).max()
    for mu in (0.0, max(0.0, -1.5 * values[0]) + 0.1 * most + 0.1):
        K = H + mu * np.eye(size)
        eigenvalues = values + mu
        cond = most / np.abs(eigenvalues).min()
        if cond > 1e12:  # singular: there is no inverse to compare with
            assert mu == 0
            continue
        tolerance = max(1e-9, 100 * EPS * cond)
        factor = gnewt.factorize(objective, shift=mu)(x)
        assert factor.inertia.negative == np.sum(eigenvalues < 0)
        sign, logdet = factor.slogdet()
        expected = np.linalg.slogdet(K)
        assert sign == expected[0]
        np.testing.assert_allclose(logdet, expected[1], rtol=tolerance, atol=size * tolerance)
        np.testing.assert_allclose(flat(factor @ v), K @ flat(v), atol=1e-9 * most * np.sqrt(size))
        inverse = np.linalg.inv(K)
        largest = np.abs(inverse).max()
        np.testing.assert_allclose(flat(factor.solve(v)), inverse @ flat(v), atol=tolerance * largest * size)
        few = np.arange(0, size, max(1, size // 5))
        np.testing.assert_allclose(
            factor.covariance(few), inverse[np.ix_(few, few)], atol=tolerance * largest, rtol=tolerance
        )
        if np.all(eigenvalues > 0):
            np.testing.assert_allclose(
                flat(factor.marginal_variances()), np.diag(inverse), rtol=tolerance, atol=tolerance * largest
            )


@pytest.mark.parametrize("engine", ["native", "xla", "reference"])
@pytest.mark.parametrize("order", ["causal", "min_degree"])
def test_engines_and_orders_agree(engine, order):
    def scalar(us):
        return pendulum(us)[0]

    inverse = np.linalg.inv(dense(scalar, US))
    factor = gnewt.factorize(scalar, engine=engine, order=order)(US)
    np.testing.assert_allclose(factor.marginal_variances(), np.diag(inverse), rtol=1e-10)
    np.testing.assert_allclose(factor.covariance(), inverse, rtol=1e-8, atol=1e-12)
    within = jax.jit(lambda us: gnewt.factorize(scalar, engine=engine, order=order)(us).marginal_variances())
    np.testing.assert_allclose(within(US), np.diag(inverse), rtol=1e-10)
    draws = factor.sample(jax.random.key(1), (4000,))
    assert draws.shape == (4000, 12)
    np.testing.assert_allclose(np.cov(np.asarray(draws).T), inverse, atol=0.12 * np.abs(inverse).max())


def test_a_batch_of_variances():
    def scalar(us):
        return pendulum(us)[0]

    many = jnp.stack([US, 0.5 * US, -US])
    found = jax.vmap(lambda us: gnewt.factorize(scalar)(us).marginal_variances())(many)
    expected = [np.diag(np.linalg.inv(dense(scalar, us))) for us in many]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_single_precision():
    def scalar(us):
        return pendulum(us)[0]

    us = US.astype(jnp.float32)
    found = gnewt.factorize(scalar)(us).marginal_variances()
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.diag(np.linalg.inv(dense(scalar, US))), rtol=2e-5)


def test_states_along_the_trajectory():
    """Variances and covariances of kept intermediates: those of the linearised map."""
    factor, aux = gnewt.factorize(pendulum, has_aux=True, keep=True)(US)
    inverse = np.linalg.inv(dense(lambda us: pendulum(us)[0], US))
    jacobian = np.asarray(jax.jacobian(lambda us: pendulum(us)[1]["states"])(US)).reshape(-1, 12)
    expected = np.diag(jacobian @ inverse @ jacobian.T).reshape(aux["states"].shape)
    np.testing.assert_allclose(factor.output_variances()["states"], expected, rtol=1e-9, atol=1e-14)
    cross = factor.covariance("states", "us")
    assert cross.shape == (12, 2, 12)
    np.testing.assert_allclose(cross.reshape(24, 12), jacobian @ inverse, rtol=1e-8, atol=1e-12)

    def energy(us):
        return jnp.sum(us**2)

    np.testing.assert_allclose(factor.covariance(energy), 4 * US @ inverse @ US, rtol=1e-9)


def test_an_indefinite_matrix():
    """NaN and a warning for variances; solutions, covariances and the sign of the determinant are exact."""

    def scalar(us):
        return pendulum(us)[0] - jnp.sum(us**2)

    factor = gnewt.factorize(scalar)(US)
    H = dense(scalar, US)
    with pytest.warns(gnewt.CurvatureWarning, match="not positive definite"):
        assert np.all(np.isnan(factor.marginal_variances()))
    np.testing.assert_allclose(factor.covariance(), np.linalg.inv(H), rtol=1e-8, atol=1e-11)
    assert factor.slogdet().sign == np.linalg.slogdet(H)[0]
    with pytest.raises(gnewt.StepError, match="cannot sample"):
        factor.sample(jax.random.key(0))
    within = jax.jit(lambda us: gnewt.factorize(scalar)(us).marginal_variances())(US)
    assert np.all(np.isnan(within))
    moved = factor.shifted(5.0)
    np.testing.assert_allclose(
        moved.marginal_variances(), np.diag(np.linalg.inv(H + 5 * np.eye(12))), rtol=1e-10
    )
    np.testing.assert_allclose(moved.shifted(0.0).solve(US), np.linalg.solve(H, US), rtol=1e-9)


def test_delayed_pivots_keep_variances():
    """A positive definite H with pivots in doubt leaves records; the inverse reads them."""
    rng = np.random.default_rng(5)
    scale = 10.0 ** rng.uniform(-5, 5, 40)

    def f(u):
        x = jnp.cumsum(u) * scale
        return 0.5 * jnp.sum(x**2) + 0.1 * jnp.sum(u**4) + 1e-8 * jnp.sum(u**2)

    u = jnp.asarray(rng.standard_normal(40))
    for order in ("causal", "min_degree", "reverse_time"):
        factor = gnewt.factorize(f, order=order)(u)
        assert factor.is_positive_definite
        H = dense(f, u)
        d = 1 / np.sqrt(np.diag(H))
        inverse = d[:, None] * np.linalg.inv(d[:, None] * H * d) * d
        cond = np.linalg.cond(d[:, None] * H * d)
        expected = np.diag(inverse)
        np.testing.assert_allclose(factor.marginal_variances(), expected, rtol=max(1e-9, 1e3 * EPS * cond))


def test_names_are_checked():
    factor = gnewt.factorize(lambda us: pendulum(us)[0])(US)
    with pytest.raises(gnewt.GraphError, match="no input or auxiliary entry"):
        factor.covariance("nothing")
    with pytest.raises(gnewt.GraphError, match="no auxiliary data"):
        factor.output_variances()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert factor.covariance("us").shape == (12, 12)
