"""Plain JAX functions through newton_step, factorize and minimize: every program of the tracing tests, and options."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from helpers.oracle import backward_error, inertia_of
from helpers.trace_programs import PROGRAMS, control, points, reduction


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if i % 2 else name for i, name in enumerate(PROGRAMS)]
)
def test_step_of_every_program_is_exact_or_says_why_not(name):
    f, args, *rest = PROGRAMS[name]()
    argnums = rest[0] if rest else 0
    step, info = gnewt.newton_step(f, argnums, full_output=True)(*args)
    variables = args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)
    assert jax.tree_util.tree_structure(step) == jax.tree_util.tree_structure(variables)
    assert all(
        jnp.shape(a) == jnp.shape(b)
        for a, b in zip(jax.tree_util.tree_leaves(step), jax.tree_util.tree_leaves(variables), strict=True)
    )
    if info.status == "singular":
        flat, unravel = jax.flatten_util.ravel_pytree(variables)
        assert argnums == 0
        dense = jax.jit(jax.hessian(lambda x: f(unravel(x), *args[1:])))(flat)
        assert info.inertia == inertia_of(dense)
        assert info.inertia.zero > 0
        return
    assert info.status == "ok", info.message
    single = any(jnp.asarray(leaf).dtype == jnp.float32 for leaf in jax.tree_util.tree_leaves(variables))
    assert info.residual <= (1e-3 if single else 1e-8)


def test_step_against_the_dense_hessian():
    us = points(12, 1)
    flat = jnp.ravel(us)

    def f(x):
        return control(x.reshape(us.shape))

    g, h = jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(flat)
    step = gnewt.newton_step(f)(flat)
    assert backward_error(h, step, g) <= 1e-13
    factor = gnewt.factorize(f)(flat)
    assert np.allclose(factor.gradient, g, rtol=1e-12)
    assert np.allclose(factor.marginal_variances(), np.diagonal(np.linalg.inv(h)), rtol=1e-8)


def test_width_of_chains_does_not_depend_on_the_horizon():
    widths = {
        T: gnewt.plan.make_plan(gnewt.trace_graph(control, points(T, 1))).certificate.width for T in (20, 200)
    }
    assert widths[20] == widths[200] <= 9


def test_aggregations_are_narrow():
    squared = gnewt.trace_graph(lambda x: jnp.sum(x**2) ** 2, points(5000))
    assert gnewt.plan.make_plan(squared).certificate.width <= 4
    tree = gnewt.trace_graph(reduction, points(1024))
    assert gnewt.plan.make_plan(tree).certificate.width <= 4


def quartic(x):
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + 0.1 * jnp.sum(x**4)


def test_the_self_check_can_be_turned_off(monkeypatch):
    calls = []
    monkeypatch.setattr("gnewt.newton.check._difference", lambda *a: calls.append(a) or True)
    x = jnp.linspace(0.1, 1.0, 5)

    def fresh(x):
        return quartic(x)

    for transform in (lambda step: step, jax.jit):
        gnewt.clear_cache()
        calls.clear()
        transform(gnewt.newton_step(fresh, check=False))(x)
        assert not calls
        transform(gnewt.newton_step(fresh))(x)
        transform(gnewt.newton_step(fresh))(x)
        assert len(calls) == 1


def test_argnums_aux_and_extra_arguments():
    def f(scale, x, index):
        value = jnp.sum(scale * (x - 1.0) ** 2) + x[index] ** 4
        return value, {"index": index, "x": x}

    args = (jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 0.1, 0.2]), 1)
    step, aux = gnewt.newton_step(f, argnums=1, has_aux=True)(*args)
    assert aux["index"] == 1
    value_of = functools.partial(lambda scale, x: f(scale, x, 1)[0], args[0])
    g, h = jax.jit(lambda x: (jax.grad(value_of)(x), jax.hessian(value_of)(x)))(args[1])
    assert backward_error(h, step, g) <= 1e-14
    step, info, aux = gnewt.newton_step(f, argnums=1, has_aux=True, full_output=True)(*args)
    assert info.success
    assert np.allclose(aux["x"], args[1])


def test_new_captured_values_are_used_without_a_new_structure():
    weights = {"w": np.array([1.0, 2.0])}

    def f(x):
        return jnp.sum(weights["w"] * (x - 3.0) ** 2) + jnp.sum(x**4)

    step_of = gnewt.newton_step(f)
    x = jnp.array([1.0, 2.0])
    first = step_of(x)
    weights["w"] = np.array([5.0, 0.5])
    second = step_of(x)
    h = jax.hessian(f)(x)
    assert backward_error(h, second, jax.grad(f)(x)) <= 1e-14
    assert not np.allclose(first, second)


def test_minimize_a_function_of_a_pytree():
    def f(tree, target):
        return (tree["a"] - target) ** 2 + jnp.sum((tree["b"] * tree["a"] - 1.0) ** 2)

    res = gnewt.minimize(f, {"a": 1.0, "b": jnp.zeros(3)}, (2.0,))
    assert res.success
    assert float(res.x["a"]) == pytest.approx(2.0)
    assert np.allclose(res.x["b"], 0.5)


def test_a_graph_takes_no_argnums():
    g = gnewt.Graph()
    g.loss(lambda a: a**2, g.input())
    with pytest.raises(gnewt.GraphError, match="argnums"):
        gnewt.newton_step(g, 1)
    with pytest.raises(TypeError, match="expected a JAX function"):
        gnewt.newton.objective.Objective(3.0)


def test_what_a_prompt_shows_is_short():
    def f(x):
        return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((1 - x) ** 2)

    x = jnp.full(500, 0.5)
    _, info = gnewt.newton_step(f, full_output=True)(x)
    factor, res = gnewt.factorize(f)(x), gnewt.minimize(f, x, max_steps=2)
    policy = gnewt.factorize(f)(x[:30]).policy()
    shown = [repr(a) for a in (info, factor, res, factor.plan, factor.system, policy, gnewt.explain(f, x))]
    assert all(0 < len(text) < 900 for text in shown)
    assert "inertia" in shown[1].lower() and "positive=500" in shown[1]

    seen = []

    @jax.vmap
    def run(x):
        res = gnewt.minimize(f, x, max_steps=1)
        seen.append(repr(res))
        return res

    assert repr(run(jnp.stack([x, x]))) == "<Result of shape (2,): 2 max_steps>"
    assert seen[0] == "<Result inside a transformation>"
    with pytest.raises(gnewt.StepError, match="use `code`"):
        jax.jit(lambda x: gnewt.factorize(f)(x).status == "ok")(x)
