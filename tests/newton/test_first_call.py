"""The first call: what is compiled for it, and what a persistent compilation cache spares."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import gnewt

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
def test_a_persistent_cache_has_everything_that_a_step_compiles(transform, tmp_path):
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
