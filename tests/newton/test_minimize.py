"""Algorithm 1: from far away to a stationary point with a positive definite Hessian, or an honest status."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton import LineSearch, TrustRegion


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


def bumps(x):
    return jnp.sum(jnp.cos(3 * x)) + 0.1 * jnp.sum(x**2) + 0.05 * jnp.sum((x[1:] - x[:-1]) ** 4)


START = np.linspace(-1.5, 2.0, 12)


@pytest.mark.parametrize("search", [gnewt.newton.TrustRegion(), gnewt.newton.LineSearch()])
def test_both_searches_end_in_a_minimum(search):
    res = gnewt.minimize(bumps, START, search=search)
    assert res.success
    assert res.factor.is_positive_definite
    assert any(r.inertia.negative for r in res.history)  # it did start where H is indefinite
    values = [r.value for r in res.history] + [res.fun]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values))


def test_a_callback_sees_every_step_and_may_stop():
    seen = []

    def stop_after_three(progress):
        seen.append(progress)
        return progress.step == 3

    res = gnewt.minimize(bumps, START, callback=stop_after_three)
    assert res.status == "stopped"
    assert not res.success
    assert [p.step for p in seen] == [1, 2, 3]
    assert res.fun == seen[-1].fun == min(p.fun for p in seen)
    assert np.array_equal(res.x, seen[-1].x)


def test_the_time_limit_and_the_keyboard_return_the_best_iterate():
    res = gnewt.minimize(bumps, START, time_limit=0.0)
    assert res.status == "time_limit"
    assert res.fun <= bumps(START) + 1e-12

    def interrupt(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    res = gnewt.minimize(bumps, START, callback=interrupt)
    assert res.status == "interrupted"
    assert res.num_steps == 2
    assert res.fun < bumps(START)


def test_a_result_is_a_start_and_brings_its_radius():
    first = gnewt.minimize(bumps, START, max_steps=4)
    assert first.status == "max_steps"
    second = gnewt.minimize(bumps, first)
    assert second.success
    assert second.history[0].radius == pytest.approx(float(first.memory.radius))
    whole = gnewt.minimize(bumps, START)
    assert second.fun == pytest.approx(whole.fun)
    # The memory of another search is of no use, and does no harm.
    assert gnewt.minimize(bumps, first, search=gnewt.newton.LineSearch()).success


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


@sine.defjvp
def _sine_jvp(primals, tangents):
    return sine(*primals), (jnp.cos(primals[0]) - 2) * tangents[0]


def test_a_kink_or_a_wrong_derivative_is_no_success():
    """However small the step has become, an end that was not rounding's is not called one."""

    def kink(x):
        return 5 + jnp.sum(jnp.abs(x - 0.3)) + jnp.sum((x[1:] - x[:-1] ** 2) ** 2)

    def wrong(x):
        return jnp.sum(sine(x)) + jnp.sum((x - 1) ** 2)

    for f, search in itertools.product((kink, wrong), (TrustRegion(), LineSearch())):
        res = gnewt.minimize(f, jnp.full(4, 0.7), search=search, max_steps=150)
        assert not res.success and res.grad_norm > 0.5
        # A line search may creep on for as long as it is let.
        assert res.status == "no_decrease" or (f is wrong and isinstance(search, LineSearch))
        assert res.status != "no_decrease" or "kink" in res.message


def test_rounding_that_exceeds_the_value_of_f_is_measured():
    """Terms of 1e10 cancel: near the minimum f is all rounding, and only the gradient tells where to go."""

    def cancelling(x):
        bowl = 0.5 * jnp.sum((x - 1) ** 2) + jnp.sum((x[1:] - x[:-1]) ** 4)
        return ((1e5 + bowl) ** 2 - 1e10) / 2e5

    res = gnewt.minimize(cancelling, jnp.linspace(0.0, 3.0, 6), tol=1e-9)
    assert res.success, res
    assert res.grad_norm <= 1e-8


def test_a_start_without_a_gradient_that_is_no_minimum_is_told():
    res = gnewt.minimize(lambda x: jnp.sum((x**2 - 1) ** 2), jnp.zeros(3))
    assert res.status == "converged" and "negative eigenvalues (3)" in res.message
    assert "negative" not in gnewt.minimize(lambda x: jnp.sum((x**2 - 1) ** 2), jnp.full(3, 0.1)).message


def test_a_class_is_no_search():
    with pytest.raises(gnewt.PlanError, match=r"TrustRegion\(\)"):
        gnewt.minimize(lambda x: jnp.sum(x**2), jnp.ones(2), search=TrustRegion)  # type: ignore[arg-type]


def test_compiled_steps_are_those_of_the_host(monkeypatch):
    def f(x):
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    start = jnp.array([-1.2, 1.0, -0.5])
    monkeypatch.setattr(sys.modules["gnewt.newton.minimize"], "_QUICKLY_COMPILED", 0)
    host = gnewt.minimize(f, start)
    short = gnewt.minimize(f, start, max_steps=9)
    monkeypatch.undo()
    again = gnewt.minimize(f, start)
    compiled = [key for key in again.factor.system.structure._memo if key[0] == "steps"]
    assert len(compiled) == 1
    assert again.status == host.status
    assert len(again.history) == again.num_steps > 8  # more than are taken at once
    np.testing.assert_allclose(again.x, host.x, rtol=1e-8)
    np.testing.assert_allclose(
        [r.value for r in again.history[:4]], [r.value for r in host.history[:4]], rtol=1e-9
    )
    limited = gnewt.minimize(f, start, max_steps=9)
    assert limited.status == short.status == "max_steps"
    assert len(limited.history) == limited.num_steps == 9
    seen = []
    stopped = gnewt.minimize(f, start, callback=lambda p: seen.append(p.step) or len(seen) == 3)
    assert (stopped.status, seen, stopped.num_steps) == ("stopped", [1, 2, 3], 3)


def test_equal_runs_take_equal_steps_however_often_and_whoever_looks_on():
    def f(x):
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    start = jnp.linspace(-1.2, 0.4, 30)
    first = gnewt.minimize(f, start)
    assert first.num_steps > 20
    runs = [gnewt.minimize(f, start) for _ in range(8)]  # more than a hundred steps in all
    runs += [gnewt.minimize(f, start, callback=lambda p: None), gnewt.minimize(f, start, time_limit=1e3)]
    for run in runs:
        np.testing.assert_array_equal(run.x, first.x)
        np.testing.assert_array_equal(np.array(run.history, object), np.array(first.history, object))
