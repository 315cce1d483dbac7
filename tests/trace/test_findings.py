"""Small programs that once got a wrong step, each for its kind: host and jit, against JAX's dense derivatives."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import gnewt
from helpers.oracle import backward_error

TABLE = jnp.array([1.0, 2.0, 3.0, 4.0])
"""Coefficients that a condition chooses."""


def run(coefficient: Callable[[Array, Array, Array], Array], x: Array) -> Array:
    """A loop that is linear in its carry, with a coefficient that depends on the carry without a derivative."""

    def step(s: Array, a: Array) -> tuple[Array, Array]:
        s = 0.5 * s + a - 0.1 * coefficient(s, a, x) * s
        return s, s**2 + a**2

    return lax.scan(step, jnp.asarray(0.7), x)[1].sum()


def chosen_by_conditions(x: Array) -> Array:
    def pick(s: Array, a: Array, _: Array) -> Array:
        by_switch = lax.switch((s > a) + 0, [lambda: TABLE[1], lambda: TABLE[3]])
        by_order = TABLE[jnp.argmax(jnp.stack([s, a, 0.2 * s]))]
        return TABLE[(s > 0).astype(int)] + lax.cond(s > 0.3, lambda: 0.2, lambda: 1.1) + by_switch + by_order

    return run(pick, x)


def detached_in_a_nested_loop(x: Array) -> Array:
    def outer(c: Array, row: Array) -> tuple[Array, None]:
        def inner(d: Array, t: Array) -> tuple[Array, None]:
            return lax.stop_gradient(c) * d * 0.6 + jnp.floor(2 * c) * 0.1 * d + t, None

        return lax.scan(inner, c * 0.5, row)[0] + 0.1 * c, None

    return jnp.cos(lax.scan(outer, x.sum(), x.reshape(2, -1))[0]) + jnp.sum(x**2)


def ordered_in_a_loop(x: Array) -> Array:
    def step(s: Array, a: Array) -> tuple[Array, Array]:
        s = jnp.sort(0.5 * s + a * jnp.array([1.0, -1.0, 0.5]))[::-1]
        return s, jnp.sum(s**2 * jnp.arange(1.0, 4.0))

    return lax.scan(step, jnp.array([0.3, -0.2, 0.1]), x)[1].sum() + jnp.sum(x**2)


def each_lane_by_its_own_condition(x: Array) -> Array:
    starts = jnp.array([0.5, -0.5, 1.5])

    def lane(start: Array) -> Array:
        def step(s: Array, a: Array) -> tuple[Array, Array]:
            s = lax.fori_loop(0, 2, lambda _, r: 0.4 * r + TABLE[(r > 0).astype(int)] * r * 0.1, s) + a
            return s, s**2

        return lax.scan(step, start, x)[1].sum()

    return jax.vmap(lane)(starts).sum()


def triangular_factor(x: Array) -> Array:
    a = x.reshape(2, 2)
    return jnp.sum(jnp.sin(jnp.linalg.cholesky(a @ a.T + jnp.eye(2))) * TABLE.reshape(2, 2)) + jnp.sum(x**2)


def triangular_factors_in_a_loop(x: Array) -> Array:
    def step(p: Array, a: Array) -> tuple[Array, Array]:
        p = jnp.linalg.cholesky(jnp.eye(2) + 0.3 * jnp.outer(p[:, 0], p[:, 0]) + a**2 * p @ p.T)
        return p, jnp.sum(p**2)

    return lax.scan(step, jnp.eye(2), x)[1].sum() + jnp.sum(x**2)


def symmetric_eigenvectors(x: Array) -> Array:
    a = x.reshape(2, 2)
    values, vectors = jnp.linalg.eigh(a @ a.T + jnp.diag(jnp.array([0.0, 3.0])))
    return jnp.sum(values**3) + jnp.sum(vectors**4) + 3 * jnp.sum(x**2)


@jax.custom_vjp
def scaled_sine(x: Array, scale: Array) -> Array:
    return jnp.sin(x) * scale


scaled_sine.defvjp(
    lambda x, scale: (jnp.sin(x) * scale, (x, scale)),
    lambda kept, t: (t * jnp.cos(kept[0]) * kept[1], jnp.sum(t * jnp.sin(kept[0]))),
)


def own_reverse_rule_in_a_branch(x: Array) -> Array:
    """The predicate is a column of the call, and no number with a tangent."""
    low = lax.switch(
        jnp.argmax(x[:3]), [jnp.sin, lambda v: scaled_sine(v, v[1]), lambda v: scaled_sine(v, v[0] * v[2])], x
    )

    def step(s: Array, a: Array) -> tuple[Array, Array]:
        s = lax.cond(s > a, lambda v: scaled_sine(v, a), lambda v: 0.5 * v + a, s)
        return s, s**2

    return jnp.sum(low**2) + lax.scan(step, x[0], x)[1].sum() + jnp.sum(x**2)


def scattered_extremes(x: Array) -> Array:
    high = (x**2).at[jnp.array([0, 2, 2])].max(jnp.sin(x[1:]))
    low = jnp.cos(x).at[jnp.array([3, 9, 1])].min(x[:3] * x[1], mode="drop")
    moved = x.at[jnp.argmax(x) - jnp.array([0, 1])].max(x[:2] + x[2:] * x[0])
    return jnp.sum(high * low) + jnp.sum(moved**2) + jnp.sum(x**2)


def indices_from_transforms(x: Array) -> Array:
    """Booleans of a region that makes complex numbers stay inside, or are made outside."""
    y = jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 0.5j), 4)
    chosen = jnp.take(y, (y > 0.1).astype(int) % 4)
    return jnp.sum(chosen**2) + jnp.imag(lax.complex(y, x) * 1j).sum() ** 2 + jnp.sum(x**2)


def loops_that_ignore_what_they_read(x: Array) -> Array:
    """The equations that make an ignored operand stay before the loop."""
    chosen = lax.switch(jnp.argmax(x[:3]), [jnp.sin, jnp.cos, jnp.tanh], x)
    ignored = chosen * 2
    squares = lax.map(lambda pair: pair[0] ** 2, (x, ignored))
    return jnp.sum(squares * jnp.arange(1.0, 5.0)) + jnp.sum(jnp.cos(chosen)) + jnp.sum(x**2)


PROGRAMS = (
    loops_that_ignore_what_they_read,
    own_reverse_rule_in_a_branch,
    scattered_extremes,
    indices_from_transforms,
    chosen_by_conditions,
    detached_in_a_nested_loop,
    ordered_in_a_loop,
    each_lane_by_its_own_condition,
    triangular_factor,
    triangular_factors_in_a_loop,
    symmetric_eigenvectors,
)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_steps_are_exact_inside_jit(f: Callable[[Array], Array]) -> None:
    x = jnp.array([0.5, -1.5, 0.8, 1.0])
    step = jax.jit(gnewt.newton_step(f))(x)
    h, g = np.asarray(jax.hessian(f)(x)), np.asarray(jax.grad(f)(x))
    assert backward_error((h + h.T) / 2, np.asarray(step), g) < 1e-11


@pytest.mark.parametrize("how", ["max", "min"])
def test_scattered_extremes_at_clipped_indices(how: str) -> None:
    """JAX's derivatives are wrong there, in forward mode or in reverse; so the oracle is the same function without a scatter."""

    def f(x: Array) -> Array:
        y = getattr(jnp.sin(x).at[jnp.array([3, 5])], how)(x[:2] ** 2, mode="clip")
        return jnp.sum(y**2) + jnp.sum(x**2)

    def by_hand(x: Array) -> Array:
        last = getattr(jnp, how)(jnp.stack([jnp.sin(x[3]), x[0] ** 2, x[1] ** 2]))
        return jnp.sum(jnp.sin(x[:3]) ** 2) + last**2 + jnp.sum(x**2)

    x = jnp.array([0.5, -1.5, 0.8, 1.0])
    assert np.isclose(f(x), by_hand(x))
    # Inside jit nothing is compared with JAX's derivatives, and nothing is refined by them.
    found = jax.jit(gnewt.newton_step(f, check=False))(x)
    np.testing.assert_allclose(found, jax.jit(gnewt.newton_step(by_hand))(x), rtol=1e-10)


def test_steps_are_exact_on_the_host() -> None:
    x = jnp.array([0.5, -1.5, 0.8, 1.0])
    for f in (chosen_by_conditions, detached_in_a_nested_loop, triangular_factor):
        _, info = gnewt.newton_step(f, full_output=True)(x)  # raises where the structure is wrong
        assert info.status == "ok" and info.residual < 1e-13


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sum(jnp.abs(x)),
        lambda x: jnp.sum(x),
        lambda x: jnp.max(x) + 2 * x[1],
        lambda x: jnp.sum(jnp.sort(x) * TABLE),
    ],
)
def test_a_linear_objective_is_singular(f: Callable[[Array], Array]) -> None:
    x = jnp.array([0.5, -1.5, 0.8, 1.0])
    for engine in gnewt.ENGINES:
        _, info = gnewt.newton_step(f, full_output=True, engine=engine)(x)
        assert info.status == "singular" and tuple(info.inertia) == (0, 0, 4)
    with pytest.raises(gnewt.StepError, match="singular"):
        gnewt.newton_step(f)(x)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200])
def test_a_tiny_or_huge_hessian_is_not_singular(size: float) -> None:
    def f(x: Array, scale: float) -> Array:
        def stage(s: Array, a: Array) -> tuple[Array, Array]:
            s = jnp.tanh(s) + a
            return s, scale * (s**2 + a**2)

        return lax.scan(stage, jnp.asarray(0.3), x)[1].sum()

    x = jnp.array([0.5, -1.5, 0.8, 1.0])
    expected = gnewt.newton_step(f)(x, 1.0)
    for engine in gnewt.ENGINES:
        step, info = gnewt.newton_step(f, full_output=True, engine=engine)(x, size)
        assert info.status == "ok", engine
        np.testing.assert_allclose(step, expected, rtol=1e-12)


def test_what_the_graph_drops_can_be_nonfinite() -> None:
    """A zero row of a matrix meets infinity: the graph is finite without it, the objective is not."""
    matrix = jnp.array([[1.0, 0.0], [0.0, 0.0]])

    def f(x: Array) -> Array:
        return jnp.sum((matrix @ (1 / (x - jnp.array([2.0, 0.5])))) ** 2) + jnp.sum(x**2)

    x = jnp.array([0.1, 0.5])
    assert not np.isfinite(f(x))
    _, info = gnewt.newton_step(f, full_output=True)(x)
    assert info.status == "nonfinite" and "not finite" in info.message
    with pytest.raises(gnewt.StepError, match="not finite"):
        gnewt.newton_step(f)(x)
    _, inside = jax.jit(gnewt.newton_step(f, full_output=True))(x)
    assert inside.code == gnewt.newton.StepStatus.NONFINITE


def test_tables_that_a_python_loop_writes() -> None:
    """An unrolled loop of constants is no loop of the graph: it was rolled up, and then run as its first equation."""

    def f(x: Array) -> Array:
        at, weights = jnp.zeros((40, 3), int), jnp.zeros((40, 3))
        for i in range(40):
            at = at.at[i, : i % 3 + 1].set(jnp.arange(i % 3 + 1) * 2 + i % 4)
            weights = weights.at[i, : i % 3 + 1].set(1.0 / (i + 1))
        return jnp.sum(jnp.sum(x[at] ** 2 * weights, 1) ** 2) + jnp.sum(x**2)

    x = jnp.linspace(-1.0, 1.0, 8)
    h, g = jax.jit(jax.hessian(f))(x), jax.jit(jax.grad(f))(x)
    for step in (gnewt.newton_step(f)(x), jax.jit(gnewt.newton_step(f))(x)):
        assert backward_error(h, step, g) < 1e-13
