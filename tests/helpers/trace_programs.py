"""The programs that every exactness test runs over: optimal control, trees, networks; and those of `more_programs`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from helpers import more_programs
from helpers.program_table import PROGRAMS, X0, cartpole, control, points, program

__all__ = ["PROGRAMS", "cartpole", "control", "more_programs", "points", "reduction", "unrolled"]


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
