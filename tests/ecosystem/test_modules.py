"""Modules of equinox and flax as inputs and as closures, losses of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import gnewt

X = jnp.linspace(-1, 1, 6)[:, None]
Y = jnp.sin(3 * X[:, 0])


def check_exact(f, tree):
    flat, back = ravel_pytree(tree)
    g, h = jax.jit(lambda v: (jax.grad(lambda v: f(back(v)))(v), jax.hessian(lambda v: f(back(v)))(v)))(flat)
    exact = -np.linalg.solve(h, g)
    step = gnewt.newton_step(f)
    for found in (step(tree), jax.jit(step)(tree)):
        assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(tree)
        assert np.allclose(ravel_pytree(found)[0], exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max())


def size(tree):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(tree))


def test_equinox_module_as_input():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(1, "scalar", 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    with pytest.raises(gnewt.TraceError, match=r"activation") as caught:
        gnewt.newton_step(lambda m: jnp.sum(jax.vmap(m)(X)))(mlp)
    assert "equinox.partition" in str(caught.value)
    params, rest = eqx.partition(mlp, eqx.is_inexact_array)
    check_exact(lambda p: jnp.mean((jax.vmap(eqx.combine(p, rest))(X) - Y) ** 2) + 0.1 * size(p), params)


@pytest.mark.slow
def test_equinox_module_as_closure():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(1, "scalar", 3, 1, activation=jnp.tanh, key=jax.random.key(0))

    def f(x):
        return jnp.sum((jax.vmap(mlp)(eqx.error_if(x, jnp.any(x > 9), "large")) - Y) ** 2) + size(x)

    check_exact(f, X)


@pytest.mark.slow
def test_flax_modules():
    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    dense = linen.Dense(2, param_dtype=jnp.float64)
    check_exact(
        lambda p: jnp.mean((jnp.tanh(dense.apply(p, X)).sum(1) - Y) ** 2) + 0.1 * size(p),
        dense.init(jax.random.key(0), X),
    )
    linear = nnx.Linear(1, 2, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    form, state = nnx.split(linear)
    check_exact(lambda s: jnp.mean((jnp.tanh(nnx.merge(form, s)(X)).sum(1) - Y) ** 2) + 0.1 * size(s), state)


@pytest.mark.slow
def test_losses_of_optax():
    optax = pytest.importorskip("optax")
    labels = jnp.array([0, 1, 2, 1])

    def f(w):
        entropy = optax.softmax_cross_entropy_with_integer_labels(w, labels)
        return entropy.mean() + optax.huber_loss(w[:, 0], 0.3 * w[:, 1]).sum() + 0.1 * size(w)

    check_exact(f, jnp.linspace(-1, 1, 12).reshape(4, 3))


@pytest.mark.slow
def test_poses_of_jaxlie():
    jaxlie = pytest.importorskip("jaxlie")

    def f(v):
        pose, total = jaxlie.SE3.identity(), 0.1 * jnp.sum(v**2)
        for i in range(2):
            pose = pose @ jaxlie.SE3.exp(v[i])
            total = total + jnp.sum((pose.inverse() @ jaxlie.SE3.exp(0.1 * i * jnp.ones(6))).log() ** 2)
        return total

    v = jnp.linspace(-0.3, 0.4, 12).reshape(2, 6)
    check_exact(f, v)
