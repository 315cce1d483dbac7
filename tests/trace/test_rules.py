"""Single rules: steps against dense JAX, eagerly, inside jit and in float32; opaque parts and widths as promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import gnewt
from gnewt.trace import trace_graph
from helpers.rule_programs import RULE_PROGRAMS


def dense_step(f, x):
    flat, unravel = ravel_pytree(x)
    g, H = jax.jit(lambda v: (jax.grad(lambda w: f(unravel(w)))(v), jax.hessian(lambda w: f(unravel(w)))(v)))(
        flat
    )
    return -np.linalg.solve(H, g)


@pytest.mark.parametrize("name", list(RULE_PROGRAMS))
def test_step_inside_jit(name):
    program = RULE_PROGRAMS[name]()
    step = ravel_pytree(jax.jit(gnewt.newton_step(program.f))(program.x))[0]
    expected = dense_step(program.f, program.x)
    np.testing.assert_allclose(step, expected, atol=1e-9 * np.max(np.abs(expected)))


@pytest.mark.parametrize("name", list(RULE_PROGRAMS))
def test_opaque_parts_and_width(name):
    program = RULE_PROGRAMS[name]()
    graph = trace_graph(program.f, program.x)
    assert max([family.k for family in graph.families if family.note], default=0) <= program.opaque
    if program.width is not None:
        assert gnewt.explain(program.f, program.x).width <= program.width


@pytest.mark.parametrize("name", ["solves_in_lanes", "a_maximum_of_many", "a_complex_carry"])
def test_step_in_single_precision(name):
    program = RULE_PROGRAMS[name]()
    x = jnp.asarray(program.x, jnp.float32)
    step = gnewt.newton_step(program.f)(x)
    assert step.dtype == jnp.float32
    expected = dense_step(program.f, program.x)
    np.testing.assert_allclose(ravel_pytree(step)[0], expected, atol=1e-3 * np.max(np.abs(expected)))


def test_a_lane_is_one_instance_inside_loops():
    """Lanes of an opaque equation and iterations of a loop are instances alike."""
    A = jnp.asarray(np.random.default_rng(0).standard_normal((40, 2, 2))) + 3 * jnp.eye(2)

    def f(x):  # [3, 40, 2]
        def step(c, u):
            c = jax.vmap(jnp.linalg.solve)(A + c[:, :, None] * c[:, None, :], u)
            return c, jnp.sum(c**2)

        return jax.lax.scan(step, jnp.ones((40, 2)), x)[1].sum() + jnp.sum(x**2)

    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, 40, 2)))
    graph = trace_graph(f, x)
    found = [family for family in graph.families if family.note]
    assert sum(family.n for family in found) == 120 and max(family.k for family in found) <= 10
    np.testing.assert_allclose(graph(x), f(x), rtol=1e-12)
