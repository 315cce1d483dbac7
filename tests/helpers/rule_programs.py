"""Programs for single rules: linear algebra and lookups in lanes, reductions, cumulative operations, complex numbers, nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import lax

from helpers.program_table import points


class RuleProgram(NamedTuple):
    """A function, its argument, and what its graph may have."""

    f: Callable
    x: Any
    opaque: int | None = 0
    """The most scalars that an opaque family may read; 0: none may be opaque."""
    width: int | None = None
    """The largest width."""


RULE_PROGRAMS: dict[str, Callable[[], RuleProgram]] = {}


def p(fn: Callable) -> Callable:
    RULE_PROGRAMS[fn.__name__] = fn
    return fn


def convex(x: Any) -> Any:
    return sum(jnp.sum(v**2) + 0.1 * jnp.sum(v**4) for v in jax.tree_util.tree_leaves(x))


def spd(x: Any) -> Any:
    """[..., n] ↦ [..., n, n], positive definite."""
    return x[..., :, None] * x[..., None, :] + 2 * jnp.eye(x.shape[-1], dtype=x.dtype)


@p
def constant_entries_in_a_product() -> RuleProgram:
    def skew(w: Any) -> Any:
        return jnp.array([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])

    return RuleProgram(lambda w: jnp.sum((skew(w) @ skew(w) + jnp.eye(3)) ** 2) + convex(w), points(3))


@p
def solves_in_lanes() -> RuleProgram:
    def f(x: Any) -> Any:
        return jnp.sum(jax.vmap(jnp.linalg.solve)(spd(x), jnp.sin(x)) ** 2) + convex(x)

    return RuleProgram(f, points(5, 2), opaque=6, width=8)


@p
def cholesky_and_eigenvalues_in_two_axes_of_lanes() -> RuleProgram:
    def f(x: Any) -> Any:
        L = jnp.linalg.cholesky(spd(x))
        logdet = 2 * jnp.sum(jnp.log(jnp.diagonal(L, axis1=-2, axis2=-1)))
        return logdet + jnp.sum(jnp.linalg.det(spd(x)) ** 2) + convex(x)

    return RuleProgram(f, points(2, 3, 2), opaque=4, width=8)


@p
def cholesky_of_tiled_matrices_in_lanes() -> RuleProgram:
    def of_lane(row: Any) -> Any:
        @jax.custom_jvp
        def root(m: Any) -> Any:
            return jnp.linalg.cholesky(jnp.tile(m[:1, :1], (2, 2)) * 0.1 + m)

        root.defjvp(lambda ms, ts: jax.jvp(root.__wrapped__, ms, ts))
        return jnp.sum(root(spd(row)) ** 3)

    def f(x: Any) -> Any:
        return jnp.sum(jax.vmap(of_lane)(x)) + convex(x)

    return RuleProgram(f, points(5, 2), opaque=4, width=8)


@p
def interpolation_in_a_table() -> RuleProgram:
    table = jnp.linspace(-1.0, 1.0, 9)

    def f(x: Any) -> Any:
        return jnp.sum(jnp.interp(jnp.sin(x), table, jnp.cos(3 * table)) * x) + convex(x)

    return RuleProgram(f, points(40), opaque=1, width=3)


@p
def sorts_in_lanes() -> RuleProgram:
    def f(x: Any) -> Any:
        order = jnp.argsort(x, axis=1)
        taken = jnp.take_along_axis(x, order, axis=1)
        return jnp.sum(jnp.sort(x, axis=1) * taken[:, ::-1] * jnp.arange(1.0, 4)) + convex(x)

    return RuleProgram(f, points(6, 3), opaque=3, width=9)


@p
def cumulative_products() -> RuleProgram:
    def f(x: Any) -> Any:
        front = jnp.cumprod(jnp.concatenate([jnp.full(2, 1.5), 1 + x]))
        return jnp.sum(jnp.cumprod(1 + x) ** 2) + jnp.sum(front) ** 2 + convex(x)

    return RuleProgram(f, points(12), width=4)


@p
def cumulative_maxima_with_ties() -> RuleProgram:
    def f(x: Any) -> Any:
        return jnp.sum(lax.cummax(x, reverse=True) ** 2 * x) + jnp.sum(lax.cumlogsumexp(x) ** 2) + convex(x)

    return RuleProgram(f, jnp.ones(9))


@p
def a_loop_with_cumulative_operations() -> RuleProgram:
    def f(x: Any) -> Any:
        def step(c: Any, u: Any) -> Any:
            return 0.5 * c + lax.cummin(jnp.sin(u) + c) * jnp.cumprod(1 + 0.1 * u), jnp.sum(c**2)

        return lax.scan(step, jnp.ones(24), x)[1].sum() + convex(x)

    return RuleProgram(f, points(3, 24))


@p
def a_maximum_of_many() -> RuleProgram:
    def f(x: Any) -> Any:
        return jnp.max(jnp.sin(x) * x) ** 2 + jnp.linalg.norm(x, jnp.inf) ** 2 + jnp.min(x) + convex(x)

    return RuleProgram(f, points(60), width=4)


@p
def a_maximum_with_ties_and_constants() -> RuleProgram:
    def f(x: Any) -> Any:
        return jnp.max(jnp.concatenate([jnp.array([0.1, 1.0]), x])) ** 2 + jnp.prod(1 + 0.1 * x) + convex(x)

    return RuleProgram(f, jnp.ones(20), width=10)


@p
def arrays_of_size_zero() -> RuleProgram:
    def f(tree: Any) -> Any:
        x, nothing = tree
        total = jnp.sum((jnp.zeros((3, 0)) @ x[:0] + x[:3]) ** 2) + jnp.sum(nothing[:, None] * x)
        total += jnp.prod(nothing) * jnp.prod(x[:0]) * convex(x) + jnp.sum(jnp.sort(nothing))
        (a, _), _ = lax.scan(lambda c, u: ((c[0] * u, c[1] * u), c[1]), (x[0], nothing), x)
        b, _ = lax.scan(lambda c, u: (c * u, c), x[1], x[:0])
        return total + a + b**2 + jnp.sum(x[jnp.zeros(0, int)]) + jnp.concatenate([nothing, x])[1] ** 2

    return RuleProgram(f, (points(5), jnp.zeros(0)))


@p
def a_complex_carry() -> RuleProgram:
    def f(x: Any) -> Any:
        def step(z: Any, u: Any) -> Any:
            z = 0.9 * z * jnp.exp(1j * u) + 0.1 * u
            return z, (z * jnp.conj(z)).real + z.imag

        z, costs = lax.scan(step, jnp.asarray(1 + 0.5j), x)
        return costs.sum() + (z**2 / (2 + z)).real + convex(x)

    return RuleProgram(f, points(8), width=4)


@p
def complex_arithmetic_and_transforms() -> RuleProgram:
    def f(x: Any) -> Any:
        z = lax.complex(x[:4], x[4:])
        size = jnp.sum(jnp.abs(z * (1 + 2j)) + jnp.log(z + 3).real)
        return size + jnp.sum(jnp.abs(jnp.fft.rfft(x[:4])) ** 2) + convex(x)

    return RuleProgram(f, points(8), opaque=4)


@p
def a_hidden_markov_model() -> RuleProgram:
    """Transitions and emissions are parameters of all times."""
    seen = np.random.default_rng(1).integers(0, 4, 20)

    def f(x: Any) -> Any:
        A = jax.nn.log_softmax(x[:25].reshape(5, 5))
        B = jax.nn.log_softmax(x[25:].reshape(5, 4))

        def step(a: Any, o: Any) -> Any:
            return jax.nn.logsumexp(a[:, None] + A, axis=0) + B[:, o], None

        a, _ = lax.scan(step, jnp.zeros(5), jnp.asarray(seen))
        return -jax.nn.logsumexp(a) + convex(x)

    return RuleProgram(f, points(45), width=62)


@p
def a_hidden_markov_model_with_given_transitions() -> RuleProgram:
    A = jax.nn.log_softmax(points(3, 3, seed=2))

    def f(e: Any) -> Any:
        def step(a: Any, b: Any) -> Any:
            return jax.nn.logsumexp(a[:, None] + A, axis=0) + b, None

        return -jax.nn.logsumexp(lax.scan(step, e[0], e[1:])[0]) + convex(e)

    return RuleProgram(f, points(15, 3), width=6)


@p
def segments_choices_and_norms() -> RuleProgram:
    groups = jnp.asarray([0, 2, 0, 1, 2, 2, 1, 0])

    def f(x: Any) -> Any:
        sums = jax.ops.segment_sum(x**2, groups, 3)
        chosen = jnp.select([x > 0.2, x < -0.2], [x**3, -x], jnp.sin(x))
        pieces = jnp.piecewise(x, [x < 0, x >= 0], [lambda v: v**2, lambda v: jnp.cos(v)])
        branch = jax.vmap(lambda v: lax.cond(v > 0, lambda w: w**3, jnp.sin, v))(x)
        norms = jnp.linalg.norm(x.reshape(4, 2), axis=1)
        return jnp.sum(sums**2) + jnp.sum(chosen * pieces) + jnp.sum(branch + norms.mean()) + convex(x)

    return RuleProgram(f, points(8), opaque=1)
