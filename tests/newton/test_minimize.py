"""Algorithm 1: from far away to a stationary point with a positive definite Hessian, or an honest status."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt


def rosenbrock(n):
    g = gnewt.Graph()
    x = [g.input(name=f"x{i}") for i in range(n)]
    for a, b in itertools.pairwise(x):
        g.loss(lambda a, b: 100 * (b - a**2) ** 2 + (1 - a) ** 2, a, b)
    return g


def test_rosenbrock_converges_quadratically():
    res = gnewt.minimize(rosenbrock(10), [np.array(-1.2)] * 10)
    assert res.success
    assert res.status == "converged"
    assert np.allclose(res.x, 1.0, atol=1e-8) or res.fun < 4.0
    assert res.factor is not None
    norms = [r.grad_norm for r in res.history] + [res.grad_norm]
    assert norms[-1] < norms[-2] ** 1.5 or norms[-1] < 1e-12
    assert "converged" in str(res)


def test_indefinite_start_is_shifted_and_recorded():
    g = gnewt.Graph()
    a, b = g.input(name="a"), g.input(name="b")
    g.loss(lambda a, b: (a**2 - 1) ** 2 + (b - a) ** 2, a, b)
    res = gnewt.minimize(g, [np.array(0.1), np.array(0.0)])
    assert res.success
    assert abs(res.x[0]) == pytest.approx(1.0)
    assert res.history[0].inertia.negative == 1
    assert res.history[0].shift > 0
    assert res.history[-1].shift == 0.0


def test_pendulum_swing_up_on_a_graph():
    g = gnewt.Graph()
    u = [g.input(name=f"u{t}") for t in range(40)]
    x = g.constant(np.zeros(2))
    for t in range(40):
        g.loss(lambda x, u: 1e-2 * u**2 + 1e-1 * (1 + jnp.cos(x[0])), x, u[t])
        x = g.node(lambda x, u: x + 0.1 * jnp.stack([x[1], u - jnp.sin(x[0])]), x, u[t])
    g.loss(lambda x: 20 * (1 + jnp.cos(x[0])) + x[1] ** 2, x)
    res = gnewt.minimize(g, [np.array(0.1)] * 40, max_steps=300)
    assert res.success, res.message
    assert res.factor.is_positive_definite


def test_unbounded_and_max_steps_are_statuses():
    g = gnewt.Graph()
    a = g.input(name="a")
    g.loss(lambda a: -jnp.exp(a), a)
    res = gnewt.minimize(g, [np.array(1.0)], max_steps=2000)
    assert not res.success
    assert res.status in ("unbounded", "max_steps", "singular")
    res = gnewt.minimize(rosenbrock(6), [np.array(-1.2)] * 6, max_steps=2)
    assert res.status == "max_steps"
    assert res.num_steps == 2
    assert not res.success


def test_a_step_into_nonfinite_territory_is_cut_back():
    g = gnewt.Graph()
    a = g.input(name="a")
    g.loss(lambda a: a - jnp.log(a), a)
    res = gnewt.minimize(g, [np.array(30.0)])
    assert res.success
    assert res.x[0] == pytest.approx(1.0)


def test_gauss_newton_minimises_least_squares():
    t = np.linspace(0, 1, 20)
    y = 2.0 * np.exp(-1.5 * t)
    g = gnewt.Graph()
    p = g.input((2,), name="p")
    for ti, yi in zip(t, y, strict=True):
        r = g.node(lambda p, t, y: p[0] * jnp.exp(-p[1] * t) - y, p, ti, yi)
        g.loss(lambda r: 0.5 * r**2, r)
    res = gnewt.minimize(g, [np.array([1.0, 1.0])], curvature="gauss_newton")
    assert res.success
    assert np.allclose(res.x[0], [2.0, 1.5], atol=1e-7)


def test_verbose_prints_progress_to_stderr(capsys):
    gnewt.minimize(rosenbrock(3), [np.array(-1.0)] * 3, verbose=True)
    captured = capsys.readouterr()
    assert "shift" in captured.err
    assert captured.out == ""


def test_starting_at_the_solution_takes_no_step():
    res = gnewt.minimize(rosenbrock(4), [np.array(1.0)] * 4)
    assert res.status == "converged"
    assert res.num_steps == 0
