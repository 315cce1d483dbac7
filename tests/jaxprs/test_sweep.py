"""The sweep gives f, g and H·v as JAX does, operation by operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gnewt.jaxprs import flatten_jaxpr, sweep_derivatives, sweep_rules

_RNG = np.random.default_rng(1)
X, V = 0.5 * _RNG.normal(size=(2, 4, 3))


@jax.custom_vjp
def straight(x):
    return jnp.round(x)


straight.defvjp(lambda x: (jnp.round(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))


soft.defjvp(lambda p, t: (soft(*p), t[0] * jax.nn.sigmoid(p[0])))


def tree(x):
    level = list(jnp.ravel(x))
    while len(level) > 1:
        level = [
            jnp.sin(a) * b + 0.3 * a / (1 + b * b) for a, b in zip(level[::2], level[1::2], strict=False)
        ]
    return level[0] ** 2 + 0.5 * jnp.sum(x**2)


def ragged(x):
    flat = jnp.ravel(x)
    return sum(jnp.sum(jnp.exp(flat[:k])) ** 2 / k + flat[:k] @ flat[-k:] for k in range(1, 7))


def moves(x):
    y = jnp.concatenate([x.T[:, ::2], jnp.ones((3, 1)) * x[0, 0]], axis=1) - x[1][:, None]
    z = jnp.broadcast_to(y[None, :, :1], (2, 3, 5)) * jnp.expand_dims(jnp.pad(y, ((0, 0), (1, 1))), 0)
    return (
        jnp.sum(jnp.tanh(z)) + jnp.sum(x.at[1].set(x[2] ** 2).at[0, 1].add(x[3, 0])) + jnp.cumsum(x)[5] ** 2
    )


def products(x):
    batched = jnp.einsum("bij,bjk->bik", jnp.stack([x, 2 * x]), jnp.stack([x.T, x.T**2]))
    return jnp.sum(batched**2) + jnp.sum(jnp.einsum("ij,kj->ki", x, jnp.sin(x))) + 0.5 * x[0] @ x[1]


def pieces(x):
    y = jnp.where(x > 0, x**3, jnp.maximum(x, -0.2) * x) + jnp.clip(x, x[0, 0], 0.3) + jnp.abs(x)
    return jnp.max(y) * jnp.sum(lax.stop_gradient(y) * x) + lax.cond(x[0, 0] > 0, jnp.sum, jnp.prod, x)


def loops(x):
    one = lax.scan(lambda c, row: (jnp.tanh(c + row), jnp.sum(c**2)), x[0], x)
    two = lax.fori_loop(0, 3, lambda i, c: c * 0.5 + x[i], x[1])
    return jnp.sum(one[0]) + jnp.sum(one[1]) + two @ two


def rules(x):
    return jnp.sum(straight(3 * x) ** 2) + jnp.sum(soft(x) ** 2) + jnp.linalg.det(x.T @ x + jnp.eye(3))


def solved(x):
    return jnp.sum(jnp.linalg.solve(x[:3] + 3 * jnp.eye(3), x[3]) ** 2)


def numbers_of_other_kinds(x):
    half = jnp.asarray(x, jnp.float32) ** 2
    return jnp.sum(jnp.asarray(half, jnp.float64) * x) + jnp.abs(jnp.fft.fft(x[:, 0])[1]) ** 2


FUNCTIONS = [tree, ragged, moves, products, pieces, loops, rules, solved, numbers_of_other_kinds]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_sweep_agrees_with_jax(function):
    hoisted = []
    program = flatten_jaxpr(jax.make_jaxpr(function)(X), hoisted)
    value, (gradient,), (curved,) = sweep_derivatives(program, [X], [V], hoisted)
    wanted, (_, product) = jax.jit(lambda x, v: jax.jvp(jax.value_and_grad(function), (x,), (v,)))(X, V)
    tolerance = 1e-5 if function is numbers_of_other_kinds else 1e-11
    for got, want in zip((value, gradient, curved), (*wanted, product), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_operands_without_a_direction_are_constants():
    program = flatten_jaxpr(jax.make_jaxpr(lambda a, x, b: a * jnp.sum(x**3) + b)(2.0, X, 1.0), [])
    value, gradients, products = sweep_derivatives(program, [2.0, X, 1.0], [None, V, None])
    assert len(gradients) == len(products) == 1
    np.testing.assert_allclose(value, 2 * np.sum(X**3) + 1)
    np.testing.assert_allclose(gradients[0], 6 * X**2)
    np.testing.assert_allclose(products[0], 12 * X * V)


def test_what_the_value_does_not_depend_on_has_no_gradient():
    program = flatten_jaxpr(jax.make_jaxpr(lambda x, y: jnp.sum(x**2))(X, X), [])
    _, gradients, products = sweep_derivatives(program, [X, X], [V, V])
    assert not gradients[1].any() and not products[1].any()


def test_jax_is_asked_once_for_each_kind_of_operation(monkeypatch):
    asked = []
    make = sweep_rules.ByJax.__init__

    def count(self, instr, active, scalars):
        asked.append(instr.prim)
        make(self, instr, active, scalars)

    monkeypatch.setattr(sweep_rules.ByJax, "__init__", count)
    program = flatten_jaxpr(jax.make_jaxpr(tree)(X), [])
    assert len(program.instrs) > 50
    sweep_derivatives(program, [X], [V])
    # From JAX 0.11 on, iterating over an array is one `unstack`.
    assert sorted({*asked} - {"unstack"}) == ["div", "integer_pow", "sin"] and len(asked) <= 6
