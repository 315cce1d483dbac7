"""Systems to steer: (dynamics, stage cost, final cost, x0)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def pendulum(dt: float = 0.1) -> tuple[Any, Any, Any, Any]:
    def dynamics(x, u):
        return x + dt * jnp.array([x[1], u[0] - jnp.sin(x[0]) - 0.1 * x[1]])

    def cost(x, u):
        return 0.05 * dt * jnp.sum(u**2) + 0.1 * dt * jnp.sum(x**2)

    def last(x):
        return 5.0 * (1 + jnp.cos(x[0])) + 2.0 * x[1] ** 2

    return dynamics, cost, last, jnp.array([0.3, 0.0])


def unicycle(dt: float = 0.2) -> tuple[Any, Any, Any, Any]:
    def dynamics(x, u):
        return x + dt * jnp.array([jnp.cos(x[2]) * u[0], jnp.sin(x[2]) * u[0], u[1] + 0.1 * u[0] * x[2]])

    def cost(x, u):
        return dt * (0.1 * jnp.sum(u**2) + 0.2 * jnp.exp(-4 * ((x[0] - 0.5) ** 2 + (x[1] - 0.6) ** 2)))

    def last(x):
        return 10 * ((x[0] - 1) ** 2 + (x[1] - 1) ** 2 + 0.2 * x[2] ** 2)

    return dynamics, cost, last, jnp.array([0.0, 0.0, 0.1])


def cartpole(dt: float = 0.05) -> tuple[Any, Any, Any, Any]:
    def dynamics(x, u):
        s, c = jnp.sin(x[1]), jnp.cos(x[1])
        push = (u[0] + 0.5 * s * (x[3] ** 2 + 9.8 * c)) / (1 + 0.5 * s**2)
        turn = (-u[0] * c - 0.5 * x[3] ** 2 * c * s - 14.7 * s) / (1 + 0.5 * s**2)
        v = x[2:] + dt * jnp.array([push, turn])
        return jnp.concatenate([x[:2] + dt * v, v])

    def cost(x, u):
        return 0.01 * jnp.sum(u**2) + 0.01 * jnp.sum((x - jnp.array([0.0, jnp.pi, 0, 0])) ** 2)

    def last(x):
        return 100 * jnp.sum((x - jnp.array([0.0, jnp.pi, 0, 0])) ** 2)

    return dynamics, cost, last, jnp.array([0.0, 0.0, 0.0, 0.0])


def linear_quadratic(nx: int = 3, nu: int = 2) -> tuple[Any, Any, Any, Any]:
    a = jnp.eye(nx) + 0.2 * jnp.sin(jnp.arange(nx * nx, dtype=float)).reshape(nx, nx)
    b = jnp.cos(jnp.arange(nx * nu, dtype=float)).reshape(nx, nu)

    def cost(x, u):
        return 0.5 * x @ x + u @ u + 0.3 * u[0] * x[0] + jnp.sum(x) + 0.5 * u[1]

    return (lambda x, u: a @ x + b @ u), cost, (lambda x: 2 * x @ x + x[0]), jnp.arange(1.0, nx + 1)


SYSTEMS = {"pendulum": pendulum, "unicycle": unicycle, "cartpole": cartpole}
