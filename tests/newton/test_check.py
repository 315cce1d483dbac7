"""Every structure is checked once, on the host and inside jit; one that is wrong is mended or refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.jaxprs import flatten_jaxpr, has_branches
from gnewt.trace import call_rules, trace_function
from gnewt.trace.rules import RULES

X = np.array([0.5, -0.2, 0.3, 1.0])


def rollout(x):
    def stage(c, u):
        return 0.5 * c + 0.3 * jnp.sin(u), c**2 + u**2

    c, costs = jax.lax.scan(stage, 0.1, x)
    return costs.sum() + c**2


def sines(x):
    return jnp.sum(jnp.sin(x) * x) + jnp.sum(x**2)


def dense(f, x):
    both = jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(x)
    return -np.linalg.solve(both[1], both[0])


@pytest.fixture
def wrong_sine(monkeypatch):
    """sin x is read as x."""
    gnewt.clear_cache()
    monkeypatch.setitem(RULES, "sin", lambda lift, instr, ins: [ins[0]])
    yield
    gnewt.clear_cache()


@pytest.mark.parametrize("f", [sines, rollout])
@pytest.mark.parametrize("compile", [jax.jit, lambda step: step], ids=["jit", "host"])
def test_a_wrong_part_is_made_opaque(wrong_sine, f, compile):
    with pytest.warns(gnewt.PerformanceNotice, match=r"wrong[^$]*family[^$]*test_check.py:\d+"):
        step = compile(gnewt.newton_step(f))(X)
    np.testing.assert_allclose(step, dense(f, X), rtol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the mended structure is found again
        np.testing.assert_allclose(compile(gnewt.newton_step(f))(X), dense(f, X), rtol=1e-10)
    assert any("did not agree" in family.note for family in trace_function(f).find((X,)).structure.families)


def test_minimize_uses_the_mended_structure(wrong_sine):
    with pytest.warns(gnewt.PerformanceNotice, match="opaque"):
        result = gnewt.minimize(sines, X)
    assert result.success
    np.testing.assert_allclose(jax.grad(sines)(result.x), 0.0, atol=1e-7)


@pytest.mark.parametrize("compile", [jax.jit, lambda step: step], ids=["jit", "host"])
def test_what_cannot_be_mended_is_refused(wrong_sine, monkeypatch, compile):
    monkeypatch.setattr(call_rules, "MAX_COLUMNS", 0)
    with pytest.raises(gnewt.InternalError, match=r"family[^$]*test_check.py:\d+"):
        compile(gnewt.newton_step(sines))(X)
    np.testing.assert_array_equal(compile(gnewt.newton_step(sines, check=False))(X).shape, X.shape)


def test_operands_of_the_caller_are_replaced_by_random_ones(wrong_sine):
    def outer(x, w, mask, index):
        def f(z):
            return jnp.sum(jnp.sin(w * z) ** 2) + jnp.sum(jnp.where(mask, z**2, 2 * z**2)) + z[index] ** 4

        return gnewt.newton_step(f)(x), f

    w, mask = np.array([1.0, 2.0, 0.5, 1.5]), np.array([True, False, True, False])
    with pytest.warns(gnewt.PerformanceNotice, match="wrong"):
        step = jax.jit(lambda *args: outer(*args)[0])(X, w, mask, 2)
    np.testing.assert_allclose(step, dense(outer(X, w, mask, 2)[1], X), rtol=1e-9)


def test_where_nothing_is_finite_a_warning_says_so():
    def f(x):
        return jnp.sum(jnp.log(-(x**2))) + jnp.sum(x**2)

    with pytest.warns(gnewt.UncheckedWarning, match="unchecked"):
        jax.jit(gnewt.newton_step(f))(X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sum(jnp.log(x)) + jnp.sum(jnp.sqrt(x)) + jnp.sum(x**2),
        lambda x: jnp.sum(jnp.arcsin(x) + x**2),
        lambda x: -jnp.linalg.slogdet(jnp.outer(x, x) + jnp.eye(4))[1] + jnp.sum(x**2),
    ],
)
def test_points_suit_domains(f):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(gnewt.newton_step(f))(np.abs(X) / 2)


def test_rounding_is_no_bug():
    """H of the standard deviation of two numbers is zero, up to rounding: singular, not wrong."""
    x = np.array([0.3, 1.7])
    _, info = gnewt.newton_step(lambda x: jnp.std(x), full_output=True)(x)
    assert info.status == "singular"
    step = gnewt.newton_step(lambda x: jnp.std(x) + 1e-3 * jnp.sum(x**2))(x)
    np.testing.assert_allclose(step, dense(lambda x: jnp.std(x) + 1e-3 * jnp.sum(x**2), x), rtol=1e-8)


@pytest.mark.parametrize(
    ("f", "branches"),
    [
        (lambda x: jnp.sum(jnp.where(x > 0, x**2, x)), True),
        (lambda x: jnp.sum(jax.nn.relu(x)), True),
        (lambda x: jax.lax.scan(lambda c, u: (jnp.maximum(c, u), None), 0.0, x)[0], True),
        (lambda x: jnp.sum(jnp.sin(x) ** 3), False),
    ],
)
def test_branches_are_seen(f, branches):
    assert has_branches(flatten_jaxpr(jax.make_jaxpr(f)(X), [])) == branches


def test_a_wrong_branch_is_found_away_from_the_point(monkeypatch):
    """At the caller's point all goes well: the other branch is wrong."""
    gnewt.clear_cache()
    right = RULES["select_n"]
    monkeypatch.setitem(
        RULES, "select_n", lambda lift, instr, ins: right(lift, instr, [ins[0], ins[2], ins[2]])
    )

    def f(x):
        return jnp.sum(jnp.where(x > 0.0, x**2, 3 * x**4))

    with pytest.warns(gnewt.PerformanceNotice, match="wrong"):
        step = gnewt.newton_step(f)(np.abs(X))
    np.testing.assert_allclose(step, dense(f, np.abs(X)), rtol=1e-10)
    gnewt.clear_cache()


@pytest.mark.parametrize("compile", [jax.jit, lambda step: step], ids=["jit", "host"])
def test_wrong_derivatives_of_jax_are_no_bug_of_the_graph(compile):
    """JAX leaves the start of a reduction out of its value, where it takes derivatives."""
    start = 2.0 + (compile is jax.jit)  # a structure is checked once

    def f(x):
        return jax.lax.reduce(x, start, jax.lax.mul, (0,)) ** 2 + jnp.sum(x**2)

    with pytest.warns(gnewt.AccuracyWarning, match=r"JAX's own derivatives are not[^$]*test_check.py:\d+"):
        step = compile(gnewt.newton_step(f))(X)
    np.testing.assert_allclose(step, dense(f, X), rtol=1e-10)
