"""The table of programs that every exactness test runs over: name → (f, args, argnums)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {}


def program(fn: Callable) -> Callable:
    PROGRAMS[fn.__name__] = fn
    return fn


def points(*shape: int, seed: int = 0, scale: float = 0.3) -> jax.Array:
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape))


def cartpole(x: Any, u: Any, dt: Any = 0.05) -> Any:
    p, th, v, w = x
    s, c = jnp.sin(th), jnp.cos(th)
    temp = (u[0] + 0.05 * w**2 * s) / 1.1
    acc = (-9.8 * s - 0.5 * w - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c**2 / 1.1))
    return jnp.stack([p + dt * v, th + dt * w, v + dt * (temp - 0.05 * acc * c / 1.1), w + dt * acc])


X0 = np.array([0.1, 0.2, -0.1, 0.05])


def control(us: Any, x0: Any = X0) -> Any:
    def stage(x: Any, u: Any) -> Any:
        return cartpole(x, u), jnp.sum(x**2) + 0.1 * jnp.sum(u**2)

    x, costs = jax.lax.scan(stage, jnp.asarray(x0, us.dtype), us)
    return costs.sum() + 10 * jnp.sum(x**2)


@program
def scan_control() -> Any:
    return control, (points(2000, 1, scale=0.05),)


@program
def running_cost_as_carry() -> Any:
    def f(us: Any) -> Any:
        def stage(carry: Any, u: Any) -> Any:
            x, total, discount = carry
            total = total + discount * (jnp.sum(x**2) + u @ u)
            return (cartpole(x, u), total, discount * 0.97), None

        (x, total, _), _ = jax.lax.scan(stage, (jnp.asarray(X0), 0.0, 1.0), us)
        return total + x @ x

    return f, (points(30, 1),)


@program
def second_order() -> Any:
    def f(us: Any) -> Any:
        def stage(carry: Any, u: Any) -> Any:
            x, before = carry
            new = 2 * x - before + 0.1 * (jnp.sin(x) + u)
            return (new, x), new**2 + 0.1 * u**2

        (_, _), costs = jax.lax.scan(stage, (0.3, 0.2), us)
        return costs.sum()

    return f, (points(50),)


@program
def delay() -> Any:
    def f(us: Any) -> Any:
        def stage(history: Any, u: Any) -> Any:
            new = 0.9 * history[0] - 0.3 * jnp.sin(history[3]) + u
            return jnp.concatenate([new[None], history[:-1]]), new**2 * (1 + u**2)

        _, costs = jax.lax.scan(stage, jnp.array([0.4, 0.1, 0.2, 0.3]), us)
        return costs.sum()

    return f, (points(40),)


@program
def input_rate() -> Any:
    def f(us: Any) -> Any:
        return control(us) + 3 * jnp.sum((us[1:] - us[:-1]) ** 2) + jnp.sum(jnp.cos(us[1:] * us[:-1]))

    return f, (points(40, 1),)


@program
def shared_parameters() -> Any:
    def f(tree: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            new = x + 0.1 * jnp.tanh(tree["p"][0] * x + tree["p"][1] * u)
            return new, jnp.sum(new**2) + 0.1 * u**2

        _, costs = jax.lax.scan(stage, jnp.array([0.3, -0.2]), tree["u"])
        return costs.sum() + jnp.sum(tree["p"] ** 4)

    return f, ({"u": points(30), "p": jnp.array([0.5, 0.7])},)


@program
def free_final_time() -> Any:
    def f(tree: Any) -> Any:
        us, time = tree
        dt = jnp.exp(time) / 30

        def stage(x: Any, u: Any) -> Any:
            return cartpole(x, u, dt), dt * (jnp.sum(x**2) + u @ u)

        x, costs = jax.lax.scan(stage, jnp.asarray(X0), us)
        return costs.sum() + x @ x + jnp.exp(time)

    return f, ((points(30, 1), jnp.asarray(0.1)),)


def unrolled(us: Any) -> Any:
    x, total = jnp.asarray(X0), 0.0
    for t in range(us.shape[0]):
        total = total + jnp.sum(x**2) + 0.1 * us[t] @ us[t]
        x = cartpole(x, us[t])
    return total + x @ x


@program
def unrolled_loop() -> Any:
    return unrolled, (points(60, 1, scale=0.05),)


@program
def scenario_tree() -> Any:
    def f(u: Any) -> Any:
        x = jnp.zeros((1, 2)) + jnp.array([0.3, -0.1])
        total = jnp.zeros(())
        at = 0
        for depth in range(4):
            n = 2**depth
            noise = jnp.arange(2.0)
            controls = u[at : at + n]
            at += n
            total = total + jnp.sum(jax.vmap(lambda s, c: s @ s + c**2)(x, controls)) / n
            step = jax.vmap(lambda s, c: jax.vmap(lambda w: s + 0.1 * jnp.sin(s[::-1] + c + w))(noise))
            x = step(x, controls).reshape(2 * n, 2)
        return total + jnp.mean(jnp.sum(x**2, 1))

    return f, (points(15),)


def reduction(x: Any) -> Any:
    while x.shape[0] > 1:
        x = jnp.tanh(x[::2] * x[1::2] + x[::2])
    return x[0] + 0.0


@program
def binary_reduction() -> Any:
    return lambda x: reduction(x) + 0.5 * jnp.sum(x**2), (points(1024),)


@program
def squared_sum() -> Any:
    return lambda x: jnp.sum(x**2) ** 2, (points(5000),)


@program
def grid() -> Any:
    def f(x: Any) -> Any:
        dx, dy = x[1:] - x[:-1], x[:, 1:] - x[:, :-1]
        return jnp.sum(jnp.sqrt(1 + dx[:, 1:] ** 2 + dy[1:] ** 2)) + 0.1 * jnp.sum(jnp.cos(x))

    return f, (points(30, 30),)


@program
def bundle_adjustment() -> Any:
    rng = np.random.default_rng(3)
    camera, point = rng.integers(0, 6, 80), rng.integers(0, 25, 80)
    seen = rng.standard_normal((80, 2))

    def f(tree: Any) -> Any:
        c, p = tree["cameras"][camera], tree["points"][point]
        angle, shift = c[:, 0], c[:, 1:]
        rotated = jnp.stack(
            [
                jnp.cos(angle) * p[:, 0] - jnp.sin(angle) * p[:, 1],
                jnp.sin(angle) * p[:, 0] + jnp.cos(angle) * p[:, 1],
            ],
            1,
        )
        depth = 3 + p[:, 2:] + shift[:, 2:]
        return jnp.sum(((rotated + shift[:, :2]) / depth - seen) ** 2)

    return f, ({"cameras": points(6, 4), "points": points(25, 3, seed=1)},)


@program
def deep_network() -> Any:
    def f(tree: Any) -> Any:
        def layer(h: Any, wb: Any) -> Any:
            return jnp.tanh(wb[0] @ h + wb[1]), None

        h, _ = jax.lax.scan(layer, jnp.array([0.5, -0.3, 0.2]), (tree["w"], tree["b"]))
        return jnp.sum((h - 0.5) ** 2) + 0.01 * jnp.sum(tree["w"] ** 2)

    return f, ({"w": points(20, 3, 3, scale=0.7), "b": points(20, 3)},)


@program
def rnn() -> Any:
    inputs = points(12, 4, seed=5, scale=1.0)

    def f(tree: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            h = jnp.tanh(tree["w"] @ h + tree["v"] @ x + tree["b"])
            return h, jnp.sum(h * tree["o"])

        _, ys = jax.lax.scan(cell, jnp.zeros(8), inputs)
        return jnp.sum((ys - 1) ** 2)

    return f, (
        {"w": points(8, 8), "v": points(8, 4, seed=1), "b": points(8, seed=2), "o": points(8, seed=3)},
    )


@program
def solve_in_dynamics() -> Any:
    def f(us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            mass = jnp.array([[2.0 + jnp.cos(x[0]), 0.3 * x[1]], [0.3 * x[1], 1.5]])
            return x + 0.1 * jnp.linalg.solve(mass, jnp.array([u, -x[0]])), x @ x + u**2

        x, costs = jax.lax.scan(stage, jnp.array([0.2, 0.3]), us)
        return costs.sum() + x @ x

    return f, (points(20),)


@program
def cond_in_dynamics() -> Any:
    def f(us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            new = jax.lax.cond(x > 0.1, lambda z: z - 0.3 * z**2 + u, lambda z: 0.8 * z + jnp.sin(u), x)
            return new, new**2 + u**2

        return jax.lax.scan(stage, 0.3, us)[1].sum()

    return f, (points(20),)


@program
def opaque_outside_loops() -> Any:
    def f(x: Any) -> Any:
        mass = jnp.eye(3) * 3 + jnp.outer(jnp.sin(x[:3]), x[3:])
        y = jnp.linalg.solve(mass, x[:3])
        z = jax.lax.cond(x[0] + x[1] > 0, lambda v: v**2, lambda v: jnp.exp(v), x[2])
        return (
            jnp.sum(y**3) + z * x[5] + jnp.sum(jnp.sort(x**2) * jnp.arange(6.0)) + jnp.linalg.slogdet(mass)[1]
        )

    return f, (points(6),)


@program
def rk4_by_fori_loop() -> Any:
    def f(us: Any) -> Any:
        def rhs(x: Any, u: Any) -> Any:
            return jnp.array([x[1], -jnp.sin(x[0]) + u])

        def stage(x: Any, u: Any) -> Any:
            def substep(_: Any, x: Any) -> Any:
                h = 0.02
                k1 = rhs(x, u)
                k2 = rhs(x + h / 2 * k1, u)
                k3 = rhs(x + h / 2 * k2, u)
                k4 = rhs(x + h * k3, u)
                return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

            return jax.lax.fori_loop(0, 4, substep, x), x @ x + 0.1 * u**2

        x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)
        return costs.sum() + x @ x

    return f, (points(25),)


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
