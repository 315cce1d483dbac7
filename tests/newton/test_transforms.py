"""newton_step, factorize and minimize inside jit and under vmap, with every engine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.kkt import ENGINES
from gnewt.kkt.engines.native import engine as native

HERE = [
    pytest.param(
        name, marks=pytest.mark.skipif(name == "native" and not native.available(), reason="not built")
    )
    for name in ENGINES
]
T = 6


def cost(us, goal=1.0):
    def stage(x, u):
        x = x + 0.2 * jnp.stack([x[1], u - jnp.sin(x[0])])
        return x, 0.1 * u**2 + 0.3 * (x[0] - goal) ** 4 + 0.1 * x[0] ** 2

    x, costs = jax.lax.scan(stage, jnp.zeros(2), us)
    return costs.sum() + 2 * (x[0] - goal) ** 2 + x[1] ** 2


# Compiled once for each function; goals are arguments, so that all lanes of `cost` share a program.
@functools.partial(jax.jit, static_argnums=0)
def derivatives(f, u, *args):
    return jax.grad(f)(u, *args), jax.hessian(f)(u, *args)


def dense(f, u, *args, shift=0.0):
    g, h = derivatives(f, u, *args)
    return -np.linalg.solve(h + shift * np.eye(len(u)), g)


US = jnp.asarray(np.random.default_rng(0).normal(size=T))


@pytest.mark.parametrize("engine", HERE)
def test_jit_gives_the_dense_step(engine):
    step = jax.jit(gnewt.newton_step(cost, engine=engine))
    assert np.allclose(step(US), dense(cost, US), rtol=1e-10, atol=1e-12)
    assert np.allclose(gnewt.newton_step(cost, engine=engine)(US), step(US), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", HERE)
def test_vmap_gives_the_step_of_every_lane(engine):
    many = US + jnp.linspace(-1, 1, 5)[:, None]
    goals = jnp.linspace(0.5, 2.0, 5)
    steps, info = jax.vmap(gnewt.newton_step(cost, engine=engine, full_output=True))(many, goals)
    for lane in range(5):
        assert np.allclose(steps[lane], dense(cost, many[lane], goals[lane]), rtol=1e-9, atol=1e-11)
        values = np.linalg.eigvalsh(derivatives(cost, many[lane], goals[lane])[1])
        assert info.counts[lane].tolist() == [np.sum(values > 0), np.sum(values < 0), 0]
    assert np.all(np.asarray(info.residual) < 1e-10)
    assert np.all(info.success)


def test_a_function_may_close_over_tracers():
    @jax.jit
    def outer(us, goal, shift):
        return gnewt.newton_step(lambda u: cost(u, goal), shift=shift)(us)

    expected = dense(cost, US, 1.7, shift=0.3)
    assert np.allclose(outer(US, 1.7, 0.3), expected, rtol=1e-10, atol=1e-12)
    both = jax.jit(jax.vmap(outer, in_axes=(None, 0, 0)))(US, jnp.array([1.7, 0.4]), jnp.array([0.3, 0.0]))
    assert np.allclose(both[0], expected, rtol=1e-10, atol=1e-12)
    assert np.allclose(both[1], dense(cost, US, 0.4), rtol=1e-10, atol=1e-12)


def test_a_compiled_step_is_traced_once():
    traced = []

    def f(u, goal):
        traced.append(None)
        return cost(u, goal)

    step = jax.jit(gnewt.newton_step(f))
    for goal in (0.5, 1.0, 1.5):
        step(US * goal, goal)
    assert len(traced) == 1


@pytest.mark.parametrize("engine", HERE)
def test_a_factor_travels_through_jit(engine):
    h = np.asarray(derivatives(cost, US)[1])
    factorize = gnewt.factorize(cost, engine=engine)

    @jax.jit
    def inside(u, b):
        factor = factorize(u)
        return factor.solve(b), factor.step(), factor.logdet(), factor.inertia.negative, factor

    solution, step, logdet, negative, factor = inside(US, jnp.arange(float(T)))
    assert np.allclose(solution, np.linalg.solve(h, np.arange(float(T))), rtol=1e-9, atol=1e-11)
    assert np.allclose(step, dense(cost, US), rtol=1e-10, atol=1e-12)
    assert np.isclose(logdet, np.linalg.slogdet(h)[1])
    assert negative == np.sum(np.linalg.eigvalsh(h) < 0)
    # Outside again it is a factor like any other.
    assert factor.inertia == factorize(US).inertia
    assert np.allclose(factor.solve(US), np.linalg.solve(h, US), rtol=1e-9, atol=1e-11)
    assert factor.residual < 1e-12
    assert np.allclose(factor.marginal_variances(), np.diag(np.linalg.inv(h)), rtol=1e-9)
    # And back in.
    again = jax.jit(lambda f, b: f.solve(b))(factor, US)
    assert np.allclose(again, np.linalg.solve(h, US), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("engine", HERE)
def test_what_cannot_be_raised_is_nan_and_a_code(engine):
    def flat(x):
        return x[0] ** 2 + x[1] * 0.0 + (x[2] + x[3]) ** 2

    step, info = jax.jit(gnewt.newton_step(flat, engine=engine, full_output=True))(jnp.ones(4))
    assert gnewt.newton.STEP_STATUSES[int(info.code)] == "singular"
    assert np.all(np.isnan(step))
    assert info.inertia == (2, 0, 2)
    assert "x[1]" in info.null_vertices
    nan, info = jax.jit(gnewt.newton_step(lambda x: jnp.sum(jnp.log(x)), engine=engine, full_output=True))(
        jnp.array([1.0, -1.0])
    )
    assert info.status == "nonfinite"
    assert np.all(np.isnan(nan))


def test_a_status_inside_jit_says_what_to_use():
    with pytest.raises(gnewt.StepError, match="code"):
        jax.jit(lambda u: gnewt.newton_step(cost, full_output=True)(u)[1].status == "ok")(US)


def test_the_residual_costs_nothing_where_nobody_reads_it():
    def ops(full):
        step = gnewt.newton_step(cost, full_output=full)
        f = jax.jit(lambda u: step(u)[0] if full else step(u))
        # Instructions, not lines: a program from the cache of conftest.py comes without the tables of source lines.
        return f.lower(US).compile().as_text().count(" = ")

    assert ops(True) == ops(False)


def test_pytrees_of_mixed_shapes_inside_jit():
    def f(p, scale):
        return jnp.sum((p["a"] - 1) ** 2) + (p["b"][0] * p["a"][0, 1] - scale) ** 2 + p["b"][0] ** 4

    p = {"a": jnp.arange(4.0).reshape(2, 2), "b": [jnp.array(0.7)]}
    step = jax.jit(gnewt.newton_step(f))(p, 2.0)
    host = gnewt.newton_step(f)(p, 2.0)
    assert jax.tree_util.tree_structure(step) == jax.tree_util.tree_structure(p)
    assert all(np.allclose(a, b) for a, b in zip(jax.tree.leaves(step), jax.tree.leaves(host), strict=True))


def test_minimize_inside_jit_equals_the_host():
    def solve(u, goal):
        return gnewt.minimize(cost, u, (goal,), max_steps=30)

    host = solve(US, 1.2)
    inside = jax.jit(solve)(US, 1.2)
    assert host.status == inside.status == "converged"
    assert int(inside.num_steps) == host.num_steps
    assert np.allclose(inside.x, host.x, rtol=1e-10, atol=1e-12)
    for name in ("value", "grad_norm", "shift", "radius", "ratio"):
        theirs = np.asarray(getattr(inside.history, name))[: host.num_steps]
        # The last ratios are quotients of rounding errors.
        assert np.allclose(
            theirs,
            [getattr(r, name) for r in host.history],
            rtol=1e-6,
            atol=1e-2 if name == "ratio" else 1e-12,
        )
    assert np.all(np.isnan(inside.history.value[host.num_steps :]))
    lanes = jax.vmap(solve, in_axes=(0, None))(jnp.stack([US, 0 * US, US + 1]), 1.2)
    assert np.all(lanes.success)
    assert np.allclose(lanes.x[0], host.x, rtol=1e-9, atol=1e-10)
    assert int(lanes.num_steps[0]) == host.num_steps


@pytest.mark.parametrize("engine", HERE)
def test_float32(engine):
    us = US.astype(jnp.float32)
    step = jax.jit(gnewt.newton_step(cost, engine=engine))(us)
    assert step.dtype == jnp.float32
    assert np.allclose(step, dense(cost, US), rtol=1e-3, atol=1e-4)


def test_an_unknown_engine():
    with pytest.raises(gnewt.PlanError, match="unknown engine"):
        gnewt.newton_step(cost, engine="magic")(US)


def test_constants_stay_constants_inside_jit():
    a = jnp.asarray(np.random.default_rng(1).normal(size=(T, T)) + 3 * np.eye(T))

    def f(x):
        inverse = jnp.linalg.inv(a @ a.T)  # opaque, but nothing that depends on x
        return jnp.sum((inverse @ x - jnp.sort(a[0])) ** 2) + jnp.sum(x**4)

    assert np.allclose(jax.jit(gnewt.newton_step(f))(US), dense(f, US), rtol=1e-9, atol=1e-11)
