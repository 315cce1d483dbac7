"""Evaluation: index vectors as slices, and derivatives through the evaluation in every mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph.affine import IndexMaker, add_pieces, find_pieces, read_pieces


def strided(rng):
    """A random index vector start + Σ stride·i, sometimes with a tail that breaks the pattern."""
    axes = int(rng.integers(0, 4))
    shape = [int(n) for n in rng.integers(1, 5, axes)]
    strides = [int(s) for s in rng.choice([0, 1, 2, 3, 5, 7, 12, 20, -1, -4], axes)]
    index = np.zeros(shape, np.int64)
    for axis, stride in enumerate(strides):
        step = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(axes)])
        index = index + stride * step
    index = index.ravel() - index.min() + int(rng.integers(0, 3))
    return np.concatenate([index, rng.integers(0, 5, 2)]) if rng.random() < 0.2 else index


def test_pieces_read_and_add_as_indexing_does():
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(50):
        index = strided(rng)
        pieces = find_pieces(index)
        if pieces is None:
            continue
        found += 1
        size = int(index.max()) + 1 + int(rng.integers(0, 2))
        values, rows = rng.standard_normal(size), rng.standard_normal((size, 2))
        assert np.array_equal(read_pieces(jnp.asarray(values), pieces), values[index])
        assert np.array_equal(read_pieces(jnp.asarray(rows), pieces), rows[index])
        terms = rng.standard_normal(len(index))
        expected = values.copy()
        np.add.at(expected, index, terms)
        assert np.allclose(add_pieces(jnp.asarray(values), pieces, jnp.asarray(terms)), expected, atol=1e-13)
    assert found > 30


@pytest.mark.parametrize("shape", [(7, 3), (40, 3), (1, 5), (4, 1), (0, 3), (3, 0), (5, 80)])
@pytest.mark.parametrize("kind", ["rows", "overlapping", "random"])
@pytest.mark.parametrize("at_once", [False, True])
def test_tables_read_and_add_as_indexing_does(shape, kind, at_once):
    rng = np.random.default_rng(1)
    n, k = shape
    i, j = np.arange(n)[:, None], np.arange(k)[None, :]
    table = {"rows": k * i + j, "overlapping": i + j, "random": rng.integers(0, 50, shape)}[kind] + 2
    maker = IndexMaker(at_once)
    made = maker.table(table.astype(np.int32))
    assert (made.whole >= 0) == (at_once and shape == (40, 3) and kind != "random")
    values = rng.standard_normal(int(table.max(initial=0)) + 2)
    assert np.array_equal(made.read(jnp.asarray(values), maker.arrays), values[table].T)
    assert np.array_equal(made.read_rows(jnp.asarray(values), maker.arrays), values[table])
    terms = rng.standard_normal(shape)
    expected = values.copy()
    np.add.at(expected, table, terms)
    assert np.allclose(
        made.add(jnp.asarray(values), jnp.asarray(terms.T), maker.arrays), expected, atol=1e-12
    )
    if k <= 64:
        columns = [None if j == 1 else jnp.asarray(terms[:, j]) for j in range(k)]
        expected = values.copy()
        np.add.at(expected, table, np.where(np.arange(k) == 1, 0.0, terms))
        assert np.allclose(made.add(jnp.asarray(values), columns, maker.arrays), expected, atol=1e-12)


def build(horizon, irregular):
    """A chain with memory; with `irregular` its nodes also read earlier nodes without a pattern."""
    rng = np.random.default_rng(5)
    g = gnewt.Graph()
    u = [g.input((2,), name=f"u{t}") for t in range(horizon)]
    x = [g.constant(np.array([0.1, 0.2])), g.constant(np.array([0.3, -0.1]))]
    program = []
    for t in range(horizon):
        other = int(rng.integers(len(x))) if irregular else len(x) - 2
        program.append(other)
        x.append(g.node(step, x[-1], x[other], u[t]))
        g.loss(cost, x[-1], u[t])

    def plain(us):
        x = [jnp.array([0.1, 0.2]), jnp.array([0.3, -0.1])]
        total = 0.0
        for t, other in enumerate(program):
            x.append(step(x[-1], x[other], us[t]))
            total = total + cost(x[-1], us[t])
        return total

    return g, plain


def step(a, b, u):
    return jnp.sin(a) + 0.5 * a[::-1] * b + u


def cost(x, u):
    return jnp.sum(x**2) + jnp.prod(u) + jnp.sum(u**4)


@pytest.mark.parametrize("irregular", [False, True])
def test_evaluation_is_differentiable_twice_in_every_mode(irregular):
    g, plain = build(6, irregular)
    us = list(0.4 * np.random.default_rng(0).standard_normal((6, 2)))
    x = jnp.concatenate(us)

    def through(x):
        return g(list(x.reshape(6, 2)))

    def direct(x):
        return plain(x.reshape(6, 2))

    assert float(through(x)) == pytest.approx(float(direct(x)), rel=1e-13)
    assert np.allclose(jax.jit(jax.grad(through))(x), jax.grad(direct)(x), rtol=1e-11)
    expected = jax.jit(jax.hessian(direct))(x)
    for mode in (
        lambda f: jax.jacfwd(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: jax.jacfwd(jax.jacfwd(f)),
    ):
        assert np.allclose(jax.jit(mode(through))(x), expected, rtol=1e-10, atol=1e-12)


def test_evaluation_under_vmap():
    g, plain = build(5, False)
    xs = 0.3 * np.random.default_rng(2).standard_normal((3, 5, 2))
    values = jax.jit(jax.vmap(lambda us: g(list(us))))(jnp.asarray(xs))
    assert np.allclose(values, [plain(us) for us in xs], rtol=1e-13)
