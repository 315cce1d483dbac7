"""The swing-up of a cartpole: as an explicit graph, and as a plain JAX function to check against.

State x = (position, angle, velocity, angular velocity), angle 0 hanging and π upright; input u, the force on
the cart. Explicit fourth-order Runge–Kutta with step DT.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._typing import Array
from gnewt.graph import Graph

DT = 0.02
CART_MASS, POLE_MASS, POLE_LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81
START = (0.0, 0.0, 0.0, 0.0)
GOAL = (0.0, jnp.pi, 0.0, 0.0)


def velocity_of(x: Array, u: Array) -> Array:
    """Return ẋ of the cartpole under the force u[0]."""
    _, angle, velocity, rate = x
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    mass = CART_MASS + POLE_MASS * sin**2
    push = u[0] + POLE_MASS * sin * (POLE_LENGTH * rate**2 + GRAVITY * cos)
    swing = (
        -u[0] * cos - POLE_MASS * POLE_LENGTH * rate**2 * cos * sin - (CART_MASS + POLE_MASS) * GRAVITY * sin
    )
    return jnp.stack([velocity, rate, push / mass, swing / (POLE_LENGTH * mass)])


def dynamics(x: Array, u: Array) -> Array:
    """Return x_{t+1} = f(x_t, u_t): one Runge–Kutta step."""
    k1 = velocity_of(x, u)
    k2 = velocity_of(x + DT / 2 * k1, u)
    k3 = velocity_of(x + DT / 2 * k2, u)
    k4 = velocity_of(x + DT * k3, u)
    return x + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def stage_cost(x: Array, u: Array) -> Array:
    """Weigh effort, and how far the cart strays."""
    return DT * (0.1 * u[0] ** 2 + 0.1 * x[0] ** 2)


def final_cost(x: Array) -> Array:
    """Ask for the pole upright, the cart at home, both at rest."""
    weight = jnp.array([10.0, 30.0, 1.0, 1.0])
    return jnp.sum(weight * (x - jnp.array(GOAL)) ** 2)


def build_graph(horizon: int) -> Graph:
    """Build the chain u_0, x_1, u_1, x_2, ... by hand: Φ = dynamics, l = stage and final cost."""
    g = Graph()
    u = [g.input((1,), name=f"u{t}") for t in range(horizon)]
    x = g.constant(jnp.array(START), name="x0")
    for t in range(horizon):
        g.loss(stage_cost, x, u[t])
        x = g.node(dynamics, x, u[t], name=f"x{t + 1}")
    g.loss(final_cost, x)
    return g


def plain_cost(us: Array) -> Array:
    """Compute the same objective as a plain JAX function of all forces us[horizon]."""

    def stage(x: Array, u: Array) -> tuple[Array, Array]:
        return dynamics(x, u[None]), stage_cost(x, u[None])

    x, costs = jax.lax.scan(stage, jnp.array(START), us)
    return costs.sum() + final_cost(x)


def first_guess(horizon: int) -> np.ndarray:
    """Return forces that rock the cart at the frequency at which the pole swings."""
    frequency = (GRAVITY / POLE_LENGTH) ** 0.5
    return 5.0 * np.sin(frequency * DT * np.arange(horizon))


def rollout(us: Array) -> Array:
    """Return the states x[horizon + 1, 4] under the forces us[horizon]."""

    def stage(x: Array, u: Array) -> tuple[Array, Array]:
        return dynamics(x, u[None]), x

    last, states = jax.lax.scan(stage, jnp.array(START), us)
    return jnp.concatenate([states, last[None]])
