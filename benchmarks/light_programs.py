"""Programs as users write them: light stages, sparse Jacobians, indefinite Hessians; and a few heavy ones beside them.

Each entry of `PROGRAMS` returns the objective and its point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

PyTree: TypeAlias = object
Program: TypeAlias = tuple[Callable[..., Array], PyTree]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(name: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Put a program into the table."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS[name] = make
        return make

    return register


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    """Random numbers, the same for the same seed."""
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape))


def pole(x: Array, u: Array) -> Array:
    """Accelerations of a cart of mass 1 with a pole of mass 0.1 and length 0.5, upright at angle 0."""
    sin, cos = jnp.sin(x[1]), jnp.cos(x[1])
    push = (u + 0.05 * x[3] ** 2 * sin) / 1.1
    angular = (9.81 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return jnp.stack([x[2], x[3], push - 0.05 * angular * cos / 1.1, angular])


def swing_up(advance: Callable[[Array, Array], Array], effort: float) -> Callable[[Array], Array]:
    """The cost of a swing-up from the hanging state."""

    def cost(us: Array) -> Array:
        def stage(x: Array, u: Array) -> tuple[Array, Array]:
            return advance(x, u), effort * u**2 + 0.05 * (1 - jnp.cos(x[1])) + 0.01 * x[0] ** 2

        x, costs = jax.lax.scan(stage, jnp.array([0.0, jnp.pi, 0.0, 0.0]), us)
        return costs.sum() + 10 * (1 - jnp.cos(x[1])) + x[2] ** 2 + x[3] ** 2 + x[0] ** 2

    return cost


@program("cartpole, Euler, T = 500")
def cartpole_euler() -> Program:
    return swing_up(lambda x, u: x + 0.01 * pole(x, u), 1e-8), normal(500, scale=5.0)


@program("cartpole, Euler, T = 500, definite")
def cartpole_definite() -> Program:
    return swing_up(lambda x, u: x + 0.01 * pole(x, u), 50.0), normal(500)


@program("second-order dynamics in R³, T = 300")
def second_order() -> Program:
    def cost(us: Array) -> Array:
        def stage(carry: tuple[Array, Array], u: Array) -> tuple[tuple[Array, Array], Array]:
            x, before = carry
            new = 2 * x - before + 0.01 * (u - jnp.sin(x) - 0.1 * x * jnp.sum(x**2))
            return (new, x), jnp.sum(new**2) + 0.1 * jnp.sum(u**2)

        start = jnp.array([0.3, -0.2, 0.1])
        return jax.lax.scan(stage, (start, start), us)[1].sum()

    return cost, normal(300, 3, scale=0.1)


@program("4 agents coupled pairwise, T = 120")
def agents() -> Program:
    def cost(us: Array) -> Array:
        def stage(state: tuple[Array, Array], u: Array) -> tuple[tuple[Array, Array], Array]:
            place, speed = state
            apart = place[:, None] - place[None, :]
            repel = jnp.sum(apart * jnp.exp(-jnp.sum(apart**2, -1, keepdims=True)), 1)
            speed = speed + 0.1 * (u + repel - 0.2 * speed)
            place = place + 0.1 * speed
            return (place, speed), jnp.sum((place - 1) ** 2) + 0.1 * jnp.sum(u**2)

        return jax.lax.scan(stage, (normal(4, 2), jnp.zeros((4, 2))), us)[1].sum()

    return cost, normal(120, 4, 2, scale=0.1)


@program("chain + 5 shared parameters, N = 805")
def shared() -> Program:
    def cost(tree: dict[str, Array]) -> Array:
        p = tree["p"]

        def stage(x: Array, u: Array) -> tuple[Array, Array]:
            force = p[0] * u[:2] - p[1] * jnp.sin(x[:2]) - p[2] * x[2:] + p[3] * u[2:] * x[:2] + p[4]
            new = jnp.concatenate([x[:2] + 0.05 * x[2:], x[2:] + 0.05 * force])
            return new, jnp.sum(new**2) + 0.1 * jnp.sum(u**2)

        return jax.lax.scan(stage, jnp.array([0.5, -0.5, 0.0, 0.0]), tree["u"])[1].sum() + jnp.sum(
            (p - 1) ** 2
        )

    return cost, {"u": normal(200, 4, scale=0.1), "p": jnp.ones(5)}


@program("bundle adjustment, N = 216")
def bundle() -> Program:
    rng = np.random.default_rng(0)
    cameras, points = 6, 60
    camera, point = (
        np.repeat(np.arange(cameras), 34),
        np.concatenate([rng.permutation(points)[:34] for _ in range(cameras)]),
    )
    seen = 0.3 * rng.standard_normal((len(camera), 2))

    def project(pose: Array, place: Array) -> Array:
        angle = pose[:3]
        turned = place + jnp.cross(angle, place) + 0.5 * jnp.cross(angle, jnp.cross(angle, place))
        moved = turned + pose[3:]
        return moved[:2] / (4 + moved[2])

    def cost(tree: dict[str, Array]) -> Array:
        shown = jax.vmap(project)(tree["poses"][camera], tree["points"][point])
        prior = jnp.sum(tree["poses"] ** 2) + 0.01 * jnp.sum(tree["points"] ** 2)
        return jnp.sum((shown - seen) ** 2) + 0.1 * prior

    return cost, {"poses": normal(cameras, 6, scale=0.1), "points": normal(points, 3)}


def network(layers: int, weight: float) -> Program:
    """A narrow deep network: 4 units a layer."""

    def cost(tree: dict[str, Array]) -> Array:
        def layer(h: Array, wb: tuple[Array, Array]) -> tuple[Array, None]:
            return jnp.tanh(wb[0] @ h + wb[1]), None

        h, _ = jax.lax.scan(layer, jnp.array([0.5, -0.3, 0.2, 0.1]), (tree["w"], tree["b"]))
        return jnp.sum((h - 0.5) ** 2) + weight * (jnp.sum(tree["w"] ** 2) + jnp.sum(tree["b"] ** 2))

    return cost, {"w": normal(layers, 4, 4, scale=0.5), "b": normal(layers, 4, scale=0.1, seed=1)}


@program("narrow network, 60 layers")
def narrow_network() -> Program:
    return network(60, 1e-3)


@program("narrow network, 60 layers, definite")
def definite_network() -> Program:
    return network(60, 1.0)


@program("stencil PDE 100 × 40")
def stencil() -> Program:
    def cost(us: Array) -> Array:
        def stage(field: Array, u: Array) -> tuple[Array, Array]:
            left, right = jnp.roll(field, 1), jnp.roll(field, -1)
            new = field + 0.1 * (left - 2 * field + right) - 0.02 * field**3 + 0.1 * u
            return new, jnp.sum(new**2) + 0.1 * jnp.sum(u**2)

        return jax.lax.scan(stage, jnp.sin(jnp.linspace(0, 6.28, 40)), us)[1].sum()

    return cost, normal(100, 40, scale=0.1)


@program("Σ of 5,000 terms and 3 global sums")
def sums() -> Program:
    def cost(x: Array) -> Array:
        mean, square, wave = jnp.mean(x), jnp.mean(x**2), jnp.mean(jnp.sin(x))
        local = jnp.sum(jnp.cos(x) + x**2 + 0.1 * x**4)
        return local + 10 * mean**2 + square * wave + jnp.exp(mean)

    return cost, normal(5000, scale=0.5)


@program("Rosenbrock, N = 100,000")
def rosenbrock() -> Program:
    return lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2), normal(100_000, scale=0.5)


@program("binary reduction over 1,024 inputs")
def reduction() -> Program:
    def cost(x: Array) -> Array:
        level = x
        while level.shape[0] > 1:
            level = jnp.tanh(level[::2] * level[1::2] + level[::2])
        return level[0] + 0.5 * jnp.sum(x**2)

    return cost, normal(1024, scale=0.3)


@program("cartpole, Runge-Kutta, T = 200")
def cartpole_rk4() -> Program:
    def advance(x: Array, u: Array) -> Array:
        h = 0.02
        k1 = pole(x, u)
        k2 = pole(x + h / 2 * k1, u)
        k3 = pole(x + h / 2 * k2, u)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + pole(x + h * k3, u))

    return swing_up(advance, 0.01), normal(200)


@program("state-space model, 1,000 observations")
def state_space() -> Program:
    seen = normal(1000, seed=3)

    def cost(tree: dict[str, Array]) -> Array:
        decay, noise = jnp.tanh(tree["decay"]), jnp.exp(tree["noise"])

        def stage(x: Array, e: Array) -> tuple[Array, Array]:
            new = decay * x + noise * e
            return new, new

        path = jax.lax.scan(stage, jnp.asarray(0.0), tree["e"])[1]
        return jnp.sum(0.5 * tree["e"] ** 2 + 0.5 * path + 0.5 * seen**2 * jnp.exp(-path))

    return cost, {"e": normal(1000, scale=0.3), "decay": jnp.asarray(0.9), "noise": jnp.asarray(-1.0)}


@program("scenario tree of depth 8, by vmap")
def scenario_tree() -> Program:
    def cost(us: Array) -> Array:
        x, total, at = jnp.array([[0.5, 0.0]]), jnp.zeros(()), 0
        wind = jnp.array([-0.1, 0.1])
        for depth in range(8):
            n = 2**depth
            u = us[at : at + n]
            at += n
            total = total + (jnp.sum(x**2) + 0.1 * jnp.sum(u**2)) / n
            force = u[:, None] - jnp.sin(x[:, :1]) + wind
            new = jnp.stack(
                [jnp.broadcast_to(x[:, :1] + 0.1 * x[:, 1:], force.shape), x[:, 1:] + 0.1 * force], -1
            )
            x = new.reshape(2 * n, 2)
        return total + 10 * jnp.mean(1 - jnp.cos(x[:, 0]))

    return cost, normal(255, scale=0.1)
