"""The first call: what is compiled for it, and what a persistent compilation cache spares."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.jaxprs import flatten_jaxpr, fold_program
from gnewt.jaxprs.flatten import VALUE_CALLS

EVENTS: Counter = Counter()
jax.monitoring.register_event_listener(lambda name, **_: EVENTS.update([name]))


def make():
    """A new function: nothing that is known of an earlier one serves it."""

    def cost(us):
        def stage(x, u):
            return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]))]), jnp.cos(x[0]) + u**2

        x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)
        return costs.sum() + x @ x

    return cost


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_persistent_cache_has_everything_that_a_step_compiles(transform):
    # What a new process would find on disk is what this one finds after its own caches are emptied.
    before = jax.config.jax_compilation_cache_dir
    if before is None:
        pytest.skip("tests run without a compilation cache")
    us = jnp.linspace(-0.1, 0.1, 37)
    transform(gnewt.newton_step(make()))(us)
    jax.clear_caches()
    EVENTS.clear()
    transform(gnewt.newton_step(make()))(us)
    hits, requests = (
        EVENTS[f"/jax/compilation_cache/{name}"] for name in ("cache_hits", "compile_requests_use_cache")
    )
    assert requests > 0 and hits == requests


def test_an_eager_step_compiles_few_modules():
    """One for the step, one for the derivatives of f (check and residual), one to refine."""
    us = jnp.linspace(-0.1, 0.1, 41)
    jax.clear_caches()
    EVENTS.clear()
    gnewt.newton_step(make(), full_output=True)(us)
    assert EVENTS["/jax/compilation_cache/compile_requests_use_cache"] <= 4


def test_long_functions_are_checked_by_numpy():
    """What NumPy makes of the derivatives of an unrolled program is what JAX makes of them."""
    table = jnp.array([0.5, -1.0, 2.0])

    def f(x):
        total, y = 0.0, x[0]
        for t in range(6):
            y = jnp.sin(y) * table[t % 3] + x[t] / (2 + jnp.cos(x[-t - 1]))
            y = jnp.where(y > 0, y, jax.nn.softplus(y)) + jnp.maximum(x[t], 0.1) * jnp.tanh(x @ x)
            total = total + jnp.sum(x[t : t + 2] ** 3) * y + jnp.linalg.norm(jnp.outer(x, x[:2])) ** 2
        return total + y**-2

    def derivatives(x, v):
        return jax.jvp(jax.value_and_grad(f), (x,), (v,))

    x = jnp.linspace(-0.7, 1.1, 8)
    v = jnp.cos(x)
    hoisted = []
    flat = flatten_jaxpr(jax.make_jaxpr(derivatives)(x, v), hoisted, VALUE_CALLS)
    theirs = jax.tree_util.tree_leaves(jax.jit(derivatives)(x, v))
    for ours, expected in zip(fold_program(flat, [x, v], hoisted), theirs, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)
