"""Programs run by NumPy give what JAX gives: loops in both directions, branches, operations that only JAX has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gnewt.jaxprs import count_operations, flatten_jaxpr, fold_program
from gnewt.jaxprs.flatten import VALUE_CALLS

X = np.array([[0.3, -0.7, 1.1], [0.2, 0.5, -0.4]])


def loop_and_branch(x):
    def stage(carry, row):
        new = lax.cond(row[0] > 0, jnp.sin, lambda c: 0.5 * c, carry) + row
        return new, (new.sum(), lax.switch(jnp.int32(carry[0] * 4), [jnp.cos, jnp.exp, jnp.tanh], row))

    last, (sums, rows) = lax.scan(stage, x[0], x, reverse=True)
    return last, sums, rows


def nested(x):
    return lax.scan(lambda c, row: (lax.fori_loop(0, 3, lambda i, d: d * 0.5 + row[i], c), None), 1.0, x)[0]


def nothing_to_scan(x):
    return lax.scan(lambda c, row: (c + 1.0, row * c), x[0, 0], x[:0])


def only_in_jax(x):
    key = jax.random.key(3)
    return jnp.linalg.det(x @ x.T) + lax.erf(x).sum() + jax.random.normal(key, ())


@pytest.mark.parametrize("function", [loop_and_branch, nested, nothing_to_scan, only_in_jax])
@pytest.mark.parametrize("derivative", [False, True])
def test_numpy_gives_what_jax_gives(function, derivative):
    def run(x):
        def scalar(x):
            return sum(jnp.sum(leaf) for leaf in jax.tree_util.tree_leaves(function(x)))

        return jax.jvp(jax.grad(scalar), (x,), (jnp.cos(x),)) if derivative else function(x)

    hoisted = []
    program = flatten_jaxpr(jax.make_jaxpr(run)(X), hoisted, VALUE_CALLS)
    found = fold_program(program, [X], hoisted)
    for got, want in zip(found, jax.tree_util.tree_leaves(run(X)), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_work_is_that_of_all_iterations():
    def work(n):
        closed = jax.make_jaxpr(lambda x: lax.fori_loop(0, n, lambda i, c: jnp.sin(c) * 0.5, x))(1.0)
        return count_operations(flatten_jaxpr(closed, []))

    assert 9.0 < (work(1000) - work(0)) / (work(100) - work(0)) < 11.0
