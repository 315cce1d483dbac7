"""Programs, continued: loops of all kinds, indexing, precision, rules of their own."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from helpers.program_table import X0, cartpole, control, points, program


@program
def checkpointed_scan() -> Any:
    def f(us: Any) -> Any:
        @jax.checkpoint
        def stage(x: Any, u: Any) -> Any:
            return cartpole(x, u), jnp.sum(x**2) + u @ u

        return jax.lax.scan(stage, jnp.asarray(X0), us)[1].sum()

    return f, (points(30, 1),)


@program
def stencil_pde() -> Any:
    def f(tree: Any) -> Any:
        def step(u: Any, source: Any) -> Any:
            inner = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]) - 0.05 * u[1:-1] * (u[2:] - u[:-2])
            return jnp.concatenate([u[:1], inner + source * 0.1, u[-1:]]), jnp.sum(u**2)

        u, costs = jax.lax.scan(step, tree["u"], tree["s"])
        return costs.sum() + jnp.sum((u - 1) ** 2)

    return f, ({"u": jnp.sin(jnp.arange(100.0)), "s": points(40, 98)},)


@program
def rosenbrock() -> Any:
    def f(x: Any) -> Any:
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return f, (points(100_000),)


@program
def dicts_and_scalars() -> Any:
    def f(tree: Any) -> Any:
        return (
            tree["a"] ** 2 * tree["b"]["c"].sum()
            + jnp.prod(tree["b"]["c"])
            + jnp.cos(tree["d"][0] * tree["a"])
        )

    return f, ({"a": 0.7, "b": {"c": points(4)}, "d": (0.3,)},)


@program
def softplus_at_zero() -> Any:
    def f(x: Any) -> Any:
        return (
            jnp.sum(jax.nn.softplus(x) ** 2)
            + jnp.sum(jnp.logaddexp(x[1:], 2 * x[:-1]))
            + jnp.sum(jax.nn.relu(x - 1))
        )

    return f, (jnp.zeros(6),)


@program
def real_fft() -> Any:
    return lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x)) ** 2 * jnp.arange(9.0)) + jnp.sum(x**4), (points(16),)


@program
def logsumexp() -> Any:
    return lambda x: jax.scipy.special.logsumexp(x * jnp.arange(20.0)) + jnp.sum(x**2), (points(20),)


@program
def stopped_gradient() -> Any:
    def f(x: Any) -> Any:
        scale = jax.lax.stop_gradient(jnp.max(jnp.abs(x)))
        return jnp.sum((x / scale) ** 2 * jax.lax.stop_gradient(jnp.sin(x))) + scale * jnp.sum(x[:2] ** 3)

    return f, (points(7),)


@program
def inside_and_after() -> Any:
    def f(tree: Any) -> Any:
        us, q = tree
        shared = jnp.sin(q[0] * q[1])

        def stage(x: Any, u: Any) -> Any:
            y = x * shared + u
            return jnp.tanh(y), (y**2, y)

        x, (costs, ys) = jax.lax.scan(stage, 0.3, us)
        return costs.sum() + jnp.sum(ys[1:] * ys[:-1]) * shared + x * shared + jnp.sum(jnp.cos(ys)) ** 2

    return f, ((points(20), jnp.array([0.4, 0.6])),)


@program
def single_precision() -> Any:
    return control, (points(30, 1).astype(jnp.float32),)


@program
def reverse_scan() -> Any:
    def f(us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            new = 0.9 * jnp.sin(x) + u
            return new, new**2 * u

        x, costs = jax.lax.scan(stage, 0.1, us, reverse=True)
        return jnp.sum(costs * jnp.arange(20.0)) + x**2

    return f, (points(20),)


@program
def nested_scans() -> Any:
    def f(u: Any) -> Any:
        def outer(x: Any, row: Any) -> Any:
            def inner(y: Any, v: Any) -> Any:
                return jnp.sin(y) + 0.2 * v * x[0], y**2

            y, costs = jax.lax.scan(inner, x[1], row)
            return jnp.array([y, x[0] * 0.9]), costs.sum()

        x, costs = jax.lax.scan(outer, jnp.array([0.3, 0.5]), u)
        return costs.sum() + x @ x

    return f, (points(8, 5),)


@program
def nested_lifted_scans() -> Any:
    def f(u: Any) -> Any:
        def outer(x: Any, row: Any) -> Any:
            def inner(y: Any, v: Any) -> Any:
                return y + 0.1 * (jnp.roll(y, 1) - y) * v + 0.05 * jnp.sin(x), jnp.sum(y**2)

            y, costs = jax.lax.scan(inner, x, row)
            return y, costs.sum()

        x, costs = jax.lax.scan(outer, jnp.linspace(0.0, 1.0, 40), u)
        return costs.sum() + x @ x

    return f, (points(4, 3),)


@program
def lax_map() -> Any:
    def f(x: Any) -> Any:
        return jnp.sum(jax.lax.map(lambda r: jnp.sin(r[0]) * r[1] ** 2 + jnp.sum(r), x) ** 2)

    return f, (points(12, 3),)


@program
def several_carries() -> Any:
    def f(us: Any) -> Any:
        def stage(carry: Any, u: Any) -> Any:
            a, b, m, count = carry
            m = m * 0.9 + jnp.outer(b, b) * 0.1
            a = jnp.sin(a) + u
            b = jnp.tanh(m @ b + a * (1 + 0.1 * count))
            return (a, b, m, count + 1), jnp.sum(b**2)

        (a, _, m, _), costs = jax.lax.scan(stage, (0.1, jnp.ones(2), jnp.eye(2), 0), us)
        return costs.sum() + a**2 + jnp.sum(m**2)

    return f, (points(15),)


@program
def indexed_fori_loop() -> Any:
    def f(us: Any) -> Any:
        def step(t: Any, carry: Any) -> Any:
            x, total = carry
            return cartpole(x, us[t]), total + jnp.sum(x**2) + us[t] @ us[t] * (t + 1)

        x, total = jax.lax.fori_loop(0, 40, step, (jnp.asarray(X0), 0.0))
        return total + x @ x

    return f, (points(40, 1),)


@program
def custom_rules() -> Any:
    @jax.custom_jvp
    def clipped(x: Any) -> Any:
        return jnp.where(x > 0, x, 0.0)

    @clipped.defjvp
    def _jvp(primals: Any, tangents: Any) -> Any:
        return clipped(primals[0]), jax.nn.sigmoid(10 * primals[0]) * tangents[0]

    @jax.custom_vjp
    def odd(x: Any) -> Any:
        return jnp.sum(x) * x

    odd.defvjp(lambda x: (jnp.sum(x) * x, x), lambda x, g: (jnp.sum(g * x) + jnp.sum(x) * g,))

    def f(x: Any) -> Any:
        return jnp.sum(clipped(x) ** 2 * x) + jnp.sum(odd(x * 2) ** 2)

    return f, (points(5),)


@program
def extra_arguments() -> Any:
    def f(scale: Any, x: Any, index: Any, mask: Any) -> Any:
        return jnp.sum(jnp.where(mask, jnp.sin(x[index]) * scale, x**2)) + jnp.sum(jnp.diff(x) ** 4)

    args = (2.0, points(6), jnp.array([1, 0, 3, 2, 5, 5]), jnp.array([True, False, True, True, False, True]))
    return f, args, 1


@program
def two_argnums() -> Any:
    return (
        lambda a, k, b: jnp.sum(jnp.sin(a * b[0]) ** k) + b[1] ** 2,
        (points(4), 3, points(2, seed=1)),
        (2, 0),
    )


@program
def dense_products() -> Any:
    def f(tree: Any) -> Any:
        a, x = tree
        return jnp.sum(jnp.tanh(a @ x) ** 2) + jnp.sum((a @ a.T - jnp.eye(5)) ** 2)

    return f, ((points(5, 5), points(5, seed=1)),)


@program
def convolution() -> Any:
    kernel = np.array([0.2, -0.5, 0.2, 0.1])

    def f(x: Any) -> Any:
        y = jnp.convolve(x, kernel, mode="same")
        image = jax.lax.conv_general_dilated(
            x.reshape(1, 1, 6, 5),
            jnp.asarray(kernel.reshape(1, 1, 2, 2)),
            (2, 1),
            "SAME",
            rhs_dilation=(1, 2),
        )
        return jnp.sum(jnp.sin(y) ** 2) + jnp.sum(image**4) + jnp.sum(jnp.cumsum(x) ** 3)

    return f, (points(30),)


@program
def scatters() -> Any:
    index = np.array([0, 2, 2, 5])

    def f(x: Any) -> Any:
        y = jnp.zeros(6).at[index].add(x[:4] ** 2).at[1].set(x[4] * x[0])
        z = x.at[3].multiply(2.0)
        return jnp.sum(jnp.exp(y) * z) + jnp.sum(jnp.pad(x, 2) ** 3) + jnp.sum(y[::-1] * jnp.flip(x))

    return f, (points(6),)


@program
def discontinuous_pieces() -> Any:
    def f(x: Any) -> Any:
        best = jnp.argmax(x)
        return (
            x[best] ** 2
            + jnp.sum(jnp.floor(5 * x) * x**2)
            + jnp.sum(jnp.where(x > 0, x**3, -x))
            + jnp.max(x) * jnp.min(x)
        )

    return f, (points(9),)


@program
def row_sums_used_often() -> Any:
    def f(x: Any) -> Any:
        s = jnp.sum(x**2)
        return jnp.sum(jnp.sin(x * s)) + s + s**2

    return f, (points(12),)


@program
def mixed_precision() -> Any:
    def f(tree: Any) -> Any:
        a, b = tree
        return jnp.sum(jnp.sin(a.astype(jnp.float64)) * b) + jnp.sum((a * a).astype(jnp.float64) * b**2)

    return f, ((points(5).astype(jnp.float32), points(5, seed=2)),)


@program
def partial_application() -> Any:
    return functools.partial(lambda k, x: jnp.sum(jnp.sin(k * x)) ** 2, 3.0), (points(5),)


@program
def weight_on_the_last_state() -> Any:
    """Mayer's problem: the objective reads the last state alone, and linearly."""

    def f(us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]))]), u**2 + x[1] ** 2

        x, costs = jax.lax.scan(stage, jnp.ones(2), us)
        return costs.sum() - 0.5 * x[0]

    return f, (points(7),)
