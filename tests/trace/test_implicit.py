"""Functions with derivatives of their own, whatever is inside them: opaque nodes, exact wherever `jax.hessian` is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gnewt
from helpers.trace_programs import points

A = np.diag(np.arange(1.0, 5.0)) + 0.1


def conjugate_gradients(x):
    y, _ = jax.scipy.sparse.linalg.cg(lambda v: (A + jnp.diag(x**2)) @ v, jnp.sin(x), tol=1e-13)
    return jnp.sum(y**2) + jnp.sum(x**4)


def newton(f, x0):
    return lax.while_loop(lambda x: jnp.abs(f(x)) > 1e-13, lambda x: x - f(x) / jax.grad(f)(x), x0)


def implicit_steps(us):
    """Implicit Euler: every step solves an equation."""

    def step(x, u):
        new = lax.custom_root(
            lambda y: y + 0.1 * y**3 - x - 0.1 * u, x, newton, lambda g, y: y / g(jnp.ones(()))
        )
        return new, new**2 + 0.1 * u**2

    return lax.scan(step, jnp.asarray(0.7), us)[1].sum()


@jax.custom_jvp
def root(a):
    return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-13, lambda x: 0.5 * (x + a / x), a)


root.defjvp(lambda p, t: (root(*p), t[0] / (2 * root(*p))))


def heron(x):
    return jnp.sum(root(1 + x[0] ** 2) * x) + jnp.sum(x**4) + jnp.sum(x**2)


@pytest.mark.parametrize("f", [conjugate_gradients, implicit_steps, heron])
def test_the_step_is_exact(f):
    x = points(4)
    g, h = jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(x)
    exact = -np.linalg.solve(h, g)
    step = gnewt.newton_step(f)
    assert np.allclose(step(x), exact, rtol=1e-9)
    assert np.allclose(jax.jit(step)(x), exact, rtol=1e-9)


def test_an_implicit_step_is_one_node_a_stage():
    graph = gnewt.trace_graph(implicit_steps, points(20))
    assert max(family.k for family in graph.families) == 2


def test_a_reverse_rule_that_has_a_reverse_rule_only():
    """The adjoint of an integrator is another solve: JAX has no forward mode for it, and takes second derivatives in reverse."""

    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (square(x), x), lambda x, t: (2 * t * keep(x),))

    @jax.custom_vjp
    def keep(x):
        return x

    keep.defvjp(lambda x: (x, None), lambda _, t: (t,))

    def f(x):
        return jnp.sum(square(jnp.sin(x))) + jnp.sum(x**2)

    x = points(3)
    exact = (np.sin(2 * x) + 2 * x) / (2 * np.cos(2 * x) + 2)
    step = gnewt.newton_step(f)
    for found in (step(x), jax.jit(step)(x)):
        assert np.allclose(found, -exact, rtol=1e-9)
