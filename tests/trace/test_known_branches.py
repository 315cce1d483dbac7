"""Branches and while loops whose predicates do not depend on the variables: resolved while lifting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

X = jnp.array([0.3, -0.7, 0.5, 0.9])


def dense_step(f, x):
    g, h = jax.jit(lambda v: (jax.grad(f)(v), jax.hessian(f)(v)))(x)
    return -np.linalg.solve(h, g)


def check(f, x, reference=None):
    graph = gnewt.trace_graph(f, x)
    assert not any(family.note for family in graph.families)
    exact = dense_step(f if reference is None else reference, x)
    step = gnewt.newton_step(f)
    for found in (step(x), jax.jit(step)(x)):
        assert np.allclose(found, exact, rtol=1e-9, atol=1e-12)
    return graph


def damped(x, u):
    return x - 0.2 * jnp.sin(x) + u


def test_a_loop_with_a_bound_is_as_long_as_it_runs():
    """What libraries write to make a while loop differentiable: a long scan that does nothing in the end."""

    def f(u):
        def step(carry, _):
            i, x = carry
            go = i < 4
            return jax.lax.cond(go, lambda i, x: (i + 1, damped(x, u[i])), lambda i, x: (i, x), i, x), None

        (_, x), _ = jax.lax.scan(step, (0, jnp.asarray(0.1)), None, length=200)
        return x**2 + jnp.sum(u**2)

    graph = check(f, X)
    assert graph.num_slots < 10


def test_branches_that_alternate():
    def f(u):
        def step(x, given):
            i, a = given
            x = jax.lax.cond(i % 2 == 0, lambda x: damped(x, a), lambda x: jnp.cos(x) * a, x)
            return x, x**2 + a**2

        return jax.lax.scan(step, jnp.asarray(0.2), (jnp.arange(4), u))[1].sum()

    check(f, X)


def test_a_branch_not_taken_may_be_infinite():
    """Under vmap JAX evaluates both branches, and the derivative of the square root at zero is not finite."""

    def f(u):
        def step(x, given):
            i, a = given
            x = jax.lax.cond(i > 0, lambda x: damped(x, a) + jnp.sqrt(x), lambda x: x + a**2 + 0.1, x)
            return x, x**2

        return jax.lax.scan(step, jnp.zeros(()), (jnp.arange(4), u))[1].sum() + jnp.sum(u**2)

    check(f, jnp.abs(X))


@pytest.mark.parametrize("bound", [4, 3])
def test_a_while_loop_of_known_length(bound):
    """JAX itself has no reverse mode for it: its own derivatives are those of a Python loop."""
    limit = jnp.asarray(bound)

    def f(u):
        def go(carry):
            return carry[0] < limit

        def step(carry):
            i, x = carry
            return i + 1, damped(x, u[i])

        return jax.lax.while_loop(go, step, (0, jnp.asarray(0.1)))[1] ** 2 + jnp.sum(u**2)

    def loop(u):
        x = jnp.asarray(0.1)
        for i in range(bound):
            x = damped(x, u[i])
        return x**2 + jnp.sum(u**2)

    check(f, X, loop)


def test_a_bound_that_changes_is_another_structure():
    bound = np.array(2)

    def f(u):
        x = jax.lax.fori_loop(0, jnp.asarray(bound), lambda i, x: damped(x, u[i]), jnp.asarray(0.1))
        return x**2 + jnp.sum(u**2)

    first = gnewt.newton_step(f)(X)
    bound[...] = 4
    second = gnewt.newton_step(f)(X)
    assert not np.allclose(first[2], second[2])
    assert np.isclose(second[2], dense_step(lambda u: unrolled(u, 4), X)[2])


def unrolled(u, count):
    x = jnp.asarray(0.1)
    for i in range(count):
        x = damped(x, u[i])
    return x**2 + jnp.sum(u**2)


def test_inner_loops_of_different_lengths():
    """A loop inside a scan whose length is known and differs from iteration to iteration; results go into a buffer."""

    def f(u):
        def step(carry, i):
            x, kept = carry
            x = jax.lax.while_loop(lambda c: c[0] < i, lambda c: (c[0] + 1, damped(c[1], u[c[0]])), (0, x))[1]
            return (x, kept.at[i].set(x)), None

        _, kept = jax.lax.scan(step, (jnp.asarray(0.3), jnp.zeros(4)), jnp.arange(4))[0]
        return jnp.sum(kept**2) + jnp.sum(u**2)

    def loop(u):
        x, total = jnp.asarray(0.3), 0.0
        for i in range(4):
            for j in range(i):
                x = damped(x, u[j])
            total = total + x**2
        return total + jnp.sum(u**2)

    check(f, X, loop)


def test_a_loop_of_unknown_length_is_refused():
    def f(u):
        return jax.lax.while_loop(lambda x: x > 0.1, lambda x: 0.5 * x * jnp.cos(u[0]), u[1]) ** 2

    with pytest.raises(gnewt.TraceError, match="number of iterations"):
        gnewt.newton_step(f)(jnp.array([0.3, 1.0]))
