"""Zero pivots, singular pieces and indefiniteness in well-conditioned problems: exact, and without a warning."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.kkt.engines.native import engine as native
from helpers.oracle import backward_error, flatten, inertia_of

ORDERS = ["auto", "causal", "min_degree", "nested_dissection", "hessian", "min_fill", "causal_min_fill"]


def check_exact(g, values, orders=ORDERS, **options):
    """Assert that the step solves the dense system along every order; return the last (step, info)."""
    flat = np.concatenate([np.ravel(v) for v in values])
    split = np.cumsum([np.size(v) for v in values])[:-1]
    shapes = [np.shape(v) for v in values]

    def f(x):
        return g([p.reshape(s) for p, s in zip(jnp.split(x, split), shapes, strict=True)])

    gradient, h = jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(flat)
    h = np.asarray(h) + options.get("shift", 0.0) * np.eye(len(flat))
    step = info = None
    for order in orders:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Where there was no compiler, xla serves, and says so once.
            warnings.filterwarnings("ignore", "gnewt was installed without", gnewt.PerformanceNotice)
            step, info = gnewt.newton_step(g, order=order, full_output=True, **options)(values)
        assert backward_error(h, flatten(step), gradient) <= 1e-12, order
        assert info.status == "ok", order
        assert info.inertia == inertia_of(h), order
        assert info.logdet == pytest.approx(np.linalg.slogdet(h)[1], abs=1e-8), order
    assert info is not None
    return step, info


def test_product_of_two_inputs_has_a_zero_first_pivot():
    g = gnewt.Graph()
    a, b = g.input(name="a"), g.input(name="b")
    g.loss(lambda a, b: a * b, a, b)
    _, info = check_exact(g, [np.array(2.0), np.array(-3.0)])
    assert info.inertia == (1, 1, 0)


def test_chain_of_products_needs_delayed_pivots():
    g = gnewt.Graph()
    u = [g.input(name=f"u{i}") for i in range(8)]
    for a, b in itertools.pairwise(u):
        g.loss(lambda a, b: a * b, a, b)
    check_exact(g, [np.array(0.3 * i - 1) for i in range(8)])


def chain(stage, final, T=12, nx=3, nu=2, seed=0):
    rng = np.random.default_rng(seed)
    a, b = np.eye(nx) + 0.2 * rng.normal(size=(nx, nx)), rng.normal(size=(nx, nu))
    g = gnewt.Graph()
    u = [g.input((nu,), name=f"u{t}") for t in range(T)]
    x = g.constant(rng.normal(size=nx))
    for t in range(T):
        stage(g, t, x, u[t])
        x = g.node(lambda a, b, x, u: a @ x + b @ u + 0.1 * jnp.sin(x), a, b, x, u[t])
    final(g, x)
    return g, [rng.normal(size=nu) for _ in range(T)]


def quadratic_cost(x, u):
    return 0.5 * jnp.sum(x**2) + 0.5 * jnp.sum(u**2)


def test_zero_terminal_hessian():
    """The last state has no cost at all: ∂²V is singular there, the step exists (E17)."""
    g, values = chain(lambda g, t, x, u: g.loss(quadratic_cost, x, u), lambda g, x: None)
    check_exact(g, values)


def test_zero_input_curvature_at_one_stage():
    """Q_uu = 0 at one stage: Q_xu makes the Hessian regular, an unchecked pivot makes garbage of it."""
    g = gnewt.Graph()
    u = [g.input(name=f"u{t}") for t in range(10)]
    x = g.constant(np.array(0.7))
    for t in range(10):
        if t == 4:  # the state saturates the effect of u_4, which enters only through a product with u_5
            g.loss(lambda a, b: 2 * a * b, u[4], u[5])
            g.loss(lambda x: 0.5 * x**2, x)
            x = g.node(lambda x: 0.9 * x, x)
        else:
            g.loss(lambda x, u: 0.5 * x**2 + (0.5 * u**2), x, u[t])
            x = g.node(lambda x, u: 0.9 * x + 0.2 * u, x, u[t])
    g.loss(lambda x: x**2, x)
    step, _ = check_exact(g, [np.array(0.1 * t) for t in range(10)])
    assert np.linalg.norm(flatten(step)) < 10


def test_indefinite_chain():
    def stage(g, t, x, u):
        g.loss(lambda x, u: jnp.sum(jnp.cos(x)) + 0.3 * jnp.sum(u**2) - 0.5 * u[0] * u[1], x, u)

    g, values = chain(stage, lambda g, x: g.loss(lambda x: -jnp.sum(x**2), x))
    _, info = check_exact(g, values)
    assert info.inertia.negative > 0


@pytest.mark.parametrize("shift", [1e-3, 2.5, -0.4])
def test_shift_is_exactly_h_plus_mu_i(shift):
    g, values = chain(
        lambda g, t, x, u: g.loss(quadratic_cost, x, u), lambda g, x: g.loss(lambda x: jnp.sum(x**4), x)
    )
    check_exact(g, values, ["auto"], shift=shift)


@pytest.mark.parametrize("scale", [1e-20, 1e-9, 1e9, 1e20])
def test_inertia_does_not_depend_on_the_scale_of_the_objective(scale):
    """Costs of 1e-20 next to the ones of the pairs are not noise; a zero pivot at 1e20 still is one."""
    g, values = chain(
        lambda g, t, x, u: g.loss(lambda c, x, u: c * quadratic_cost(x, u), scale, x, u), lambda g, x: None
    )
    _, info = gnewt.newton_step(g, full_output=True)(values)
    assert info.status == "ok"
    flat = np.concatenate(values)
    assert info.inertia == inertia_of(
        np.asarray(jax.jit(jax.hessian(lambda x: g(list(x.reshape(12, 2)))))(flat))
    )
    flat = gnewt.Graph()
    a, b = flat.input(name="a"), flat.input(name="b")
    flat.loss(lambda c, a, b: c * (a + b) ** 2, scale, a, b)
    assert gnewt.newton_step(flat, full_output=True)([1.0, 2.0])[1].status == "singular"


def test_one_slot_given_for_two_arguments():
    g = gnewt.Graph()
    a = g.input((2,), name="a")
    b = g.node(lambda x, y: x * jnp.sin(y), a, a)
    g.loss(lambda x, y: jnp.sum(x * y) + jnp.sum(x**2), b, b)
    g.loss(lambda x: jnp.sum(x**2), a)
    check_exact(g, [np.array([0.4, -1.3])])


def test_unused_nodes_constants_and_several_losses():
    g = gnewt.Graph()
    a, b = g.input((2, 2), name="a"), g.input(name="b")
    c = g.node(lambda x, k: jnp.sin(x) * k, a, 3.0)
    g.node(lambda x, y: x @ x * y, c, b)
    g.loss(lambda c: jnp.sum(c**2), c)
    g.loss(lambda c, b: jnp.sum(jnp.exp(-c)) * b + b**2, c, b)
    g.loss(lambda k: jnp.sum(k), np.ones(3))
    step, _ = check_exact(g, [np.arange(4.0).reshape(2, 2) / 3, np.array(0.4)])
    assert [s.shape for s in step] == [(2, 2), ()]


def test_gauss_newton_is_positive_semidefinite_and_solved_exactly():
    rng = np.random.default_rng(3)
    g = gnewt.Graph()
    a = g.input((3,), name="a")
    r = g.node(lambda a: jnp.stack([a[0] * a[1], jnp.sin(a[2]), a[0] ** 2, jnp.exp(a[1])]), a)
    target = rng.normal(size=4)
    g.loss(lambda t, r: 0.5 * jnp.sum((r - t) ** 2), target, r)
    values = [rng.normal(size=3)]
    factor = gnewt.factorize(g, curvature="gauss_newton")(values)

    def residual(a):
        return jnp.stack([a[0] * a[1], jnp.sin(a[2]), a[0] ** 2, jnp.exp(a[1])]) - target

    j, r0 = jax.jacobian(residual)(values[0]), residual(values[0])
    assert backward_error(j.T @ j, flatten(factor.step()), j.T @ r0) <= 1e-13
    assert factor.residual <= 1e-12
    assert factor.inertia == (3, 0, 0)


def test_float32_runs_in_float32():
    g = gnewt.Graph()
    a = g.input((3,), dtype=np.float32, name="a")
    b = g.node(lambda a: jnp.sin(a) * 2, a)
    g.loss(lambda b: jnp.sum(b**2) + jnp.sum(jnp.cosh(b)), b)
    step, info = gnewt.newton_step(g, full_output=True)([np.array([0.1, 0.2, -0.3], np.float32)])
    assert step[0].dtype == np.float32
    assert info.status == "ok"
    assert info.residual < 1e-5


def test_large_random_float64_factor_solves_many_right_hand_sides():
    g, values = chain(lambda g, t, x, u: g.loss(quadratic_cost, x, u), lambda g, x: None)
    factor = gnewt.factorize(g)(values)
    flat = np.concatenate(values)
    h = np.asarray(jax.jit(jax.hessian(lambda x: g(list(x.reshape(12, 2)))))(flat))
    b = [np.ones(2) * t for t in range(12)]
    assert np.allclose(h @ flatten(factor.solve(b)), np.concatenate(b), atol=1e-11)
    assert factor.inertia.negative == np.sum(np.linalg.eigvalsh(h) < 0) > 0
    with pytest.warns(gnewt.CurvatureWarning):
        assert np.isnan(flatten(factor.marginal_variances())).all()
    shift = 1.0 - float(np.linalg.eigvalsh(h)[0])
    definite = gnewt.factorize(g, shift=shift)(values)
    expected = np.diagonal(np.linalg.inv(h + shift * np.eye(len(h))))
    assert np.allclose(flatten(definite.marginal_variances()), expected, rtol=1e-9)


def test_samples_have_the_inverse_hessian_as_covariance():
    g, values = chain(lambda g, t, x, u: g.loss(quadratic_cost, x, u), lambda g, x: None, T=3)
    factor = gnewt.factorize(g, order="causal", engine="reference")(values)
    # The map from noise to samples is linear: its Gram matrix is the covariance, without statistics.
    root = factor.numbers.factor.correlate(np.eye(6))
    h = np.asarray(jax.jit(jax.hessian(lambda x: g(list(x.reshape(3, 2)))))(np.concatenate(values)))
    assert np.allclose(root @ root.T, np.linalg.inv(h), atol=1e-12)
    draw = factor.sample(jax.random.PRNGKey(0))
    assert [d.shape for d in draw] == [(2,)] * 3
    free = gnewt.factorize(g, order=[g.slots(h) for h in (*g.inputs, *g.nodes)])(values)
    draws = np.concatenate(free.sample(jax.random.PRNGKey(0), (4000,)), axis=1)
    assert np.allclose(np.cov(draws.T), np.linalg.inv(h), atol=0.1 * np.abs(np.linalg.inv(h)).max())


@pytest.mark.parametrize("order", ["causal_min_degree", "min_degree"])
def test_noise_does_not_pile_up_along_a_long_band(order):
    def f(x):
        sums = sum(x[i : x.size - 5 + i] for i in range(5))
        return jnp.sum(jnp.cosh(sums)) + jnp.sum(x**2)

    x = np.linspace(-1.0, 1.0, 500)
    step, info = gnewt.newton_step(f, order=order, full_output=True)(x)
    assert info.status == "ok"
    assert info.inertia == (500, 0, 0)
    g, h = (np.asarray(a) for a in jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(x))
    assert backward_error(h, np.asarray(step), g) <= 1e-12


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_dense_singular_hessian_keeps_its_signs(seed):
    """Two rows are equal: one null pivot, and the signs of all others, although the oracle that confirms this counts worse."""
    h = np.random.default_rng(seed).normal(size=(60, 60))
    h += h.T
    h[:, 7] = h[:, 3]
    h[7] = h[3]
    values = np.linalg.eigvalsh(h)
    expected = ((values > 1e-9).sum(), (values < -1e-9).sum(), 1)
    info = gnewt.newton_step(lambda x: 0.5 * x @ (h @ x) + x.sum(), full_output=True)(jnp.ones(60))[1]
    assert info.status == "singular" and tuple(info.inertia) == expected
