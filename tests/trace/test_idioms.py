"""Idioms of JAX programs: random keys in loops, names and hints, rows picked by number, rules around odd values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gnewt
from helpers.oracle import backward_error

IDIOMS: dict[str, tuple[Callable[[Array], Array], Array, int | None]] = {}
"""Name → function, point, and the most scalars that an opaque family may read (None: not looked at)."""


def idiom(x: Array, opaque: int | None = 0) -> Callable:
    def add(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
        IDIOMS[f.__name__] = (f, x, opaque)
        return f

    return add


POINT = jnp.array([0.7, -0.4, 1.2, 0.3, -1.1])


@idiom(POINT)
def a_key_in_the_carry(x: Array) -> Array:
    def step(carry: tuple[Array, Array], a: Array) -> tuple[tuple[Array, Array], Array]:
        h, key = carry
        key, own = jax.random.split(key)
        h = 0.5 * h + a + 0.1 * jax.random.normal(own) * h
        return (h, key), h**2

    return lax.scan(step, (jnp.asarray(1.0), jax.random.key(0)), x)[1].sum() + jnp.sum(x**2)


@idiom(POINT)
def keys_of_all_steps(x: Array) -> Array:
    keys = jax.random.split(jax.random.key(1), len(x))

    def step(h: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        h = jnp.sin(h) * jax.random.uniform(row[1]) + row[0]
        return h, h**2

    return lax.scan(step, jnp.asarray(1.0), (x, keys))[1].sum() + jnp.sum(x**2)


@idiom(POINT)
def names_and_hints(x: Array) -> Array:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("kept"))
    def inner(x: Array) -> Array:
        return checkpoint_name(jnp.sin(x[1:] * x[:-1]), "kept") ** 2

    placed = lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("d")))
    return jnp.sum(inner(placed)) + 2 * jnp.sum(x**2)


@idiom(jnp.arange(12.0).reshape(4, 3) * 0.1 - 0.4 + jnp.eye(4, 3), opaque=3)
def rows_picked_by_their_number(x: Array) -> Array:
    """Row i of the gather and of the scatter is lane i: the index array holds the number of the lane."""
    rows, worst = jnp.arange(4), jnp.argmin(x, axis=1)
    raised = jnp.sin(x).at[rows, worst].add(x[rows, (worst + 1) % 3] ** 2)
    return jnp.sum(x[rows, worst] ** 3) + jnp.sum(raised**2) + 2 * jnp.sum(x**2)


@idiom(jnp.array([0.7, 1.4]), opaque=None)
def a_value_without_derivative(x: Array) -> Array:
    """JAX has no derivative of zeta along its first argument: the rule alone says what it is."""

    @jax.custom_jvp
    def g(x: Array) -> Array:
        return lax.zeta(x + 1.5, jnp.ones_like(x))

    g.defjvps(lambda t, out, x: t * out * jnp.sum(jnp.arange(3.0)) * x)
    return jnp.sum(jax.vmap(g)(x)) + 5 * jnp.sum(x**2)


def _horner(x: Array) -> Array:
    if hasattr(lax, "polynomial"):
        return lax.polynomial(x, [0.5, jnp.asarray(2.0), -1.0, 0.1])
    return 0.5 + x * (2.0 + x * (-1.0 + x * 0.1))


@idiom(POINT)
def a_polynomial(x: Array) -> Array:
    return jnp.sum(_horner(x) ** 2) + jnp.polyval(x, 0.3) ** 2 + 3 * jnp.sum(x**2)


@pytest.mark.parametrize("name", list(IDIOMS))
def test_idioms(name: str) -> None:
    f, x, opaque = IDIOMS[name]

    def flat(v: Array) -> Array:
        return f(v.reshape(x.shape))

    g, H = jax.jit(lambda v: (jax.grad(flat)(v), jax.hessian(flat)(v)))(x.ravel())
    step = gnewt.newton_step(f)
    for found in (step(x), jax.jit(step)(x), jax.jit(jax.vmap(step))(x[None])[0]):
        assert backward_error(np.asarray(H), np.ravel(found), np.asarray(g)) < 1e-12
    if opaque is not None:
        families = gnewt.trace_graph(f, x).families
        assert max([family.k for family in families if family.note], default=0) <= opaque
