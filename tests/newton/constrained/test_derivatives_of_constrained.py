"""Derivatives of solutions under constraints: against a dense KKT system, and against differences."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control

THETA = jnp.array([1.0, 1.1, 1.2, 0.1])


def cost(x, th):
    return (
        (x[0] - 2 * th[0]) ** 2
        + th[1] * (x[1] - 1) ** 2
        + 0.1 * x[0] * x[1]
        + (x[2] - th[2]) ** 4
        + x[2] ** 2
    )


def rows(x, th):
    """A disc, which is active; a line that always holds."""
    return th[2] * (x[0] ** 2 + x[1] ** 2) - 2.0 - th[3], x[0] - th[0] * x[1] - 0.5 * th[0]


def solve(th, tol=1e-12):
    """One active inequality, one equality, an active bound and one that is not."""
    res = gnewt.minimize(
        lambda x: cost(x, th),
        jnp.zeros(3),
        bounds=(jnp.array([-5.0, -5.0, -5.0]), jnp.stack([5.0 + th[0], 5.0, 0.2 * th[1]])),
        constraints={
            "disc": gnewt.between(lambda x: th[2] * (x[0] ** 2 + x[1] ** 2), None, 2.0 + th[3]),
            "line": gnewt.equal(lambda x: x[0] - th[0] * x[1], 0.5 * th[0]),
        },
        tol=tol,
    )
    y = jnp.stack([res.multipliers["disc"], res.multipliers["line"]])
    return {"x": res.x, "y": y, "z": res.bound_multipliers, "fun": res.fun}


def dense(found, th):
    """The same derivatives by the implicit function theorem on a dense KKT matrix."""

    def conditions(v, th):
        x, y, z = v[:3], v[3:5], v[5]
        grad = jax.grad(lambda x: cost(x, th) + y @ jnp.stack(rows(x, th)))(x).at[2].add(z)
        return jnp.concatenate([grad, jnp.stack(rows(x, th)), (x[2] - 0.2 * th[1])[None]])

    v = jnp.concatenate([found["x"], found["y"], found["z"][2:]])
    moved = -jnp.linalg.solve(jax.jacfwd(conditions)(v, th), jax.jacfwd(conditions, 1)(v, th))
    slope = jax.grad(cost, (0, 1))(found["x"], th)
    z = jnp.zeros((3, len(th))).at[2].set(moved[5])
    return {"x": moved[:3], "y": moved[3:5], "z": z, "fun": slope[0] @ moved[:3] + slope[1]}


def differences(f, x, h=1e-5):
    columns = [
        jax.tree.map(lambda a, b: (a - b) / (2 * h), f(x.at[i].add(h)), f(x.at[i].add(-h)))
        for i in range(len(x))
    ]
    return jax.tree.map(lambda *parts: jnp.stack(parts, -1), *columns)


def assert_close(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


def test_solution_and_multipliers_against_a_dense_kkt_system():
    expected = dense(solve(THETA), THETA)
    for mode in (jax.jacfwd, jax.jacrev):
        assert_close(mode(solve)(THETA), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_the_same_against_differences_compiled_and_in_lanes():
    expected = differences(solve, THETA)
    assert_close(jax.jit(jax.jacrev(solve))(THETA), expected, atol=1e-7)
    many = jnp.stack([THETA, THETA + 0.05, THETA - 0.03])
    found = jax.jit(jax.vmap(jax.jacfwd(solve)))(many)
    for i, th in enumerate(many):
        assert_close(jax.tree.map(lambda a, i=i: a[i], found), dense(solve(th), th), rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_second_derivatives_by_nesting():
    def least(th):
        return solve(th)["fun"]

    found = jax.jit(jax.hessian(least))(THETA)
    np.testing.assert_allclose(found, differences(jax.grad(least), THETA), atol=1e-5)


def total(limit, **options):
    """The closest point to (1, 1) whose coordinates sum up to at most `limit`."""
    row = gnewt.between(lambda x: x[0] + x[1], None, limit)
    return gnewt.minimize(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), constraints=[row], **options).x


def test_where_there_is_no_derivative_it_is_nan_and_the_host_is_told():
    np.testing.assert_allclose(jax.jacfwd(total)(1.9), 0.5, rtol=1e-9)
    np.testing.assert_allclose(jax.jacrev(total)(2.1), 0.0, atol=1e-12)
    for mode in (jax.jacfwd, jax.jacrev):
        with pytest.warns(gnewt.CurvatureWarning, match="weakly active"):
            assert np.all(np.isnan(mode(total)(2.0)))
        with pytest.warns(gnewt.CurvatureWarning, match="did not end at a solution"):
            assert np.all(np.isnan(mode(lambda b: total(b, max_steps=1))(1.0)))


@pytest.mark.slow
def test_dependent_rows_and_contradictions_have_none():
    def twice(b):
        given = [gnewt.between(lambda x, k=k: k * (x[0] + x[1]), None, k * b) for k in (1, 2)]
        return gnewt.minimize(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), constraints=given).x

    def never(b):
        given = [gnewt.between(lambda x: x[0] + x[1], None, b), gnewt.between(lambda x: x[0] + x[1], 5.0)]
        return gnewt.minimize(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), constraints=given).x

    def flat(b):
        row = gnewt.equal(lambda x: x[0] + x[1], b)
        return gnewt.minimize(lambda x: (x[0] + x[1]) ** 2, jnp.zeros(3)[:2], constraints=row).x

    for f, why in ((twice, "depend"), (never, "did not end"), (flat, "KKT matrix is singular|did not end")):
        with pytest.warns(gnewt.CurvatureWarning, match=why):
            assert np.all(np.isnan(jax.jacrev(f)(1.0)))


@pytest.mark.slow
def test_fixed_variables_single_precision_and_units():
    def fixed(b):
        low, up = jnp.stack([b, -5.0, -5.0]), jnp.stack([b, 5.0, 5.0])
        f = lambda x: jnp.sum((x - 1) ** 4 + (x - 1) ** 2) + x[0] * x[1] * x[2]  # noqa: E731
        res = gnewt.minimize(f, jnp.zeros(3), bounds=(low, up), tol=1e-11)
        return {"x": res.x, "z": res.bound_multipliers}

    one = jnp.array([0.3])
    expected = differences(lambda b: fixed(b[0]), one)
    assert_close(jax.jacfwd(lambda b: fixed(b[0]))(one), expected, atol=1e-7)

    def single(b):
        row = gnewt.between(lambda x: x[0] + x[1], None, b)
        f = lambda x: jnp.sum((x - 1) ** 2)  # noqa: E731
        return gnewt.minimize(f, jnp.zeros(2, jnp.float32), constraints=row, tol=1e-5).x

    found = jax.jit(jax.jacrev(single))(jnp.float32(1.0))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, 0.5, rtol=1e-4)

    def scaled(b, unit):
        row = gnewt.between(lambda x: 1e3 * (x[0] + x[1]) / unit, None, 1e3 * b)
        f = lambda x: 50 * jnp.sum((x / unit - 1) ** 2)  # noqa: E731
        return gnewt.minimize(f, jnp.zeros(2), constraints=row, tol=1e-10).x / unit

    for unit in (1e-3, 1e3):
        np.testing.assert_allclose(jax.jacfwd(scaled)(1.0, unit), 0.5, rtol=1e-6)


def choose(returns, covariance):
    """A portfolio on the simplex: what it holds, and the price of the budget."""
    res = gnewt.minimize(
        lambda w: 0.5 * w @ covariance @ w - returns @ w,
        jnp.full(6, 1 / 6),
        bounds=(0.0, None),
        constraints={"budget": gnewt.equal(jnp.sum, 1.0)},
        tol=1e-11,
    )
    return {"w": res.x, "price": res.multipliers["budget"]}


@pytest.mark.slow
def test_a_portfolio_on_the_simplex_by_its_returns():
    rng = np.random.default_rng(0)
    factors = 0.3 * rng.standard_normal((6, 2))
    covariance = jnp.asarray(factors @ factors.T + np.diag(rng.uniform(0.05, 0.2, 6)))
    returns = jnp.asarray(rng.normal(0.08, 0.06, 6))
    held = np.asarray(choose(returns, covariance)["w"]) > 1e-6
    assert 1 < held.sum() < 6
    found = jax.jacrev(choose)(returns, covariance)
    assert_close(found, differences(lambda r: choose(r, covariance), returns), atol=2e-5)
    n = held.sum()
    kkt = np.block(
        [[np.asarray(covariance)[np.ix_(held, held)], np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]]
    )
    exact = np.zeros((6, 6))
    exact[np.ix_(held, held)] = np.linalg.inv(kkt)[:n, :n]
    np.testing.assert_allclose(found["w"], exact, atol=1e-8)


T = 20


def cartpole(x, u, params):
    s, c = jnp.sin(x[1]), jnp.cos(x[1])
    push = (u[0] + params * s * (0.5 * x[3] ** 2 - 9.8 * c)) / (1 + params * s**2)
    turn = (u[0] * c + 0.5 * params * x[3] ** 2 * c * s - (1 + params) * 9.8 * s) / (
        0.5 * (1 + params * s**2)
    )
    v = x[2:] + 0.05 * jnp.stack([push, -turn])
    return jnp.concatenate([x[:2] + 0.05 * v, v])


def steer(th, method="newton", tol=1e-10, lifted=False):
    """th: mass of the pole, its first angle, limit of the force, weight of the end (closed over)."""
    problem = control.Problem(
        cartpole,
        lambda x, u: 0.01 * u[0] ** 2 + 0.1 * jnp.sum(x**2),
        lambda x: th[3] * jnp.sum(x**2),
        jnp.stack([0.1, th[1], 0.0, 0.0]),
        T,
        params=th[0],
        control_limits=(-th[2], th[2]),
    )
    found = control.solve(problem, jnp.zeros((T, 1)), method, tol=tol, lifted=lifted)
    return {"us": found.us, "xs": found.xs, "y": found.multipliers["control_limits"], "fun": found.fun}


FORCES = jnp.array([0.3, 0.3, 2.0, 0.1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lifted": True}])
def test_a_cartpole_with_force_limits(options):
    at = steer(FORCES, **options)
    active = int(jnp.sum(jnp.abs(at["y"]) > 1e-5))
    assert 0 < active < T
    found = jax.jacrev(lambda th: steer(th, **options))(FORCES)
    expected = differences(lambda th: steer(th, **options), FORCES, 1e-6)
    for name in found:
        size = np.max(np.abs(expected[name]))
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5 * max(1.0, size))


@pytest.mark.slow
def test_rollouts_between_limits_have_the_derivatives_of_the_interior_point():
    found = jax.jacfwd(lambda th: steer(th, "nonlinear-newton", 1e-11))(FORCES)
    expected = jax.jacfwd(steer)(FORCES)
    for name in found:
        size = np.max(np.abs(expected[name]))
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6 * max(1.0, size))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "xla"])
def test_engines(engine):
    np.testing.assert_allclose(jax.jacrev(lambda b: total(b, engine=engine))(1.0), 0.5, rtol=1e-9)


def test_nothing_warns_where_nobody_differentiates():
    with warnings.catch_warnings():
        warnings.simplefilter("error", gnewt.CurvatureWarning)
        total(2.0)
