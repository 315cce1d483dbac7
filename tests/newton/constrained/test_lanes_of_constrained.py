"""Lanes under vmap end as single runs do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

ROWS = [gnewt.equal(lambda x: jnp.sum(x**2), 40.0), gnewt.between(lambda x: jnp.prod(x), 25.0, None)]


def hs71(x):
    return x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]


def run(x0):
    res = gnewt.minimize(hs71, x0, bounds=(1.0, 5.0), constraints=ROWS)
    return res.x, res.code, res.num_steps, res.num_factorizations, res.history.value


@pytest.fixture(scope="module")
def starts():
    return jax.random.uniform(jax.random.PRNGKey(0), (64, 4), minval=1.0, maxval=5.0)


@pytest.fixture(scope="module")
def singles(starts):
    one = jax.jit(run)
    return [one(x) for x in starts]


def test_vmap_is_single_runs(starts, singles):
    x, code, steps, *_ = jax.jit(jax.vmap(run))(starts)
    assert len(set(np.asarray(steps).tolist())) > 3
    for lane, (x1, code1, *_) in enumerate(singles):
        assert int(code[lane]) == int(code1)
        np.testing.assert_allclose(x[lane], x1, atol=1e-8)


def test_infeasible_lanes_do_not_disturb_the_others():
    def f(x, target):
        return jnp.sum((x - 1) ** 2), {"norm": jnp.sum(x**2), "shifted": jnp.sum(x**2) - target}

    def one(target):
        rows = {"norm": (None, 1.0), "shifted": (0.0, None)}
        res = gnewt.minimize(f, jnp.array([0.3, 0.2]), (target,), constraints=rows, has_aux=True)
        return res.code, res.x

    targets = jnp.array([0.5, 2.0, 0.9])
    code, x = jax.jit(jax.vmap(one))(targets)
    names = [gnewt.newton.Status(int(c)).text for c in code]
    assert names == ["converged", "infeasible", "converged"]
    np.testing.assert_allclose(x[0], np.full(2, np.sqrt(0.5)), atol=1e-7)
