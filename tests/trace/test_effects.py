"""Prints and callbacks that no value needs are left out of the graph, with one notice."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from helpers.trace_programs import points


def noisy(x):
    jax.debug.print("{}", x)

    def body(c, u):
        jax.debug.callback(lambda v: None, u)
        return 0.5 * c + u**2, jnp.cos(c)

    c, costs = jax.lax.scan(body, x[0], x)
    return jax.lax.cond(c > 1e3, lambda: _printed(c), lambda: c) + costs.sum() + jnp.sum(x**4)


def _printed(c):
    jax.debug.print("large: {}", c)
    return c


def test_prints_are_left_out_with_one_notice(capfd):
    x = points(4)
    step = gnewt.newton_step(noisy)
    with pytest.warns(gnewt.EffectNotice, match="debug_print and 2 more") as caught:
        found = step(x)
    assert len([w for w in caught if w.category is gnewt.EffectNotice]) == 1
    assert "test_effects.py" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(step(x), found)
    assert capfd.readouterr().out == ""
    g, h = jax.jit(lambda x: (jax.grad(noisy)(x), jax.hessian(noisy)(x)))(x)
    assert np.allclose(found, -np.linalg.solve(h, g), rtol=1e-10)


def test_checks_are_left_out_with_a_notice():
    """JAX raises here; the step goes on, and says that it does."""
    eqx = pytest.importorskip("equinox")
    x = points(3)

    def f(x):
        return jnp.sum(eqx.error_if(x, jnp.sum(x**2) > 1e-3, "too large") ** 4) + jnp.sum(x**2)

    with pytest.raises(Exception, match="too large"):
        jax.block_until_ready(jax.jit(jax.grad(f))(x))
    with pytest.warns(gnewt.EffectNotice, match="checks that raise") as caught:
        step = gnewt.newton_step(f)(x)
    assert "test_effects.py" in str(caught[0].message)
    assert np.allclose(step, -(4 * x**3 + 2 * x) / (12 * x**2 + 2), rtol=1e-10)
