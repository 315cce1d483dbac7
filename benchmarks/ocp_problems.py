"""Constrained optimal control problems, each written once for JAX and for casadi.

Functions of a stage get a module `m` with sin, cos, minimum and maximum, and return lists of scalars. Cartpole, acrobot
and quadpendulum have the formulations of LIPA's comparison (Euler's rule, the same constants and starts).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Scalars = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Ocp:
    """min Σ cost(x_t, u_t) + final_cost(x_T) - reward·p, x_{t+1} = step(x_t, u_t), path(x_t) ≤ 0, x_T = goal."""

    name: str
    horizon: int
    x0: np.ndarray
    step: Callable[[Any, Scalars, Scalars], list[Any]]
    cost: Callable[[Any, Scalars, Scalars], Any]
    final_cost: Callable[[Any, Scalars], Any]
    lower: np.ndarray
    """Limits of the control."""
    upper: np.ndarray
    states: np.ndarray
    """Start of the states, [T + 1, n]."""
    controls: np.ndarray
    goal: np.ndarray | None = None
    path: Callable[[Any, Scalars, Any], list[Any]] | None = None
    """Of a state and the shared parameter (zero where there is none)."""
    reward: float | None = None
    """Of the shared parameter p; None without one."""


def _dot(values: Scalars) -> Any:
    return sum(v * v for v in values)


def _swing(m: Any, cart: float, pole: float, length: float, x: Scalars, force: Any) -> list[Any]:
    """Time derivative of a cart with a pole: (position, angle, velocity, angular velocity)."""
    s, c, w = m.sin(x[1]), m.cos(x[1]), x[3]
    a, b, d = cart + pole, pole * length * c, pole * length**2
    f, g = force + pole * length * s * w * w, -pole * 9.81 * length * s
    det = a * d - b * b
    return [x[2], w, (d * f - b * g) / det, (a * g - b * f) / det]


def _euler(rate: Callable[..., list[Any]], dt: float) -> Callable[..., list[Any]]:
    return lambda m, x, u: [xi + dt * di for xi, di in zip(_items(x), rate(m, x, u), strict=True)]


def _items(x: Any) -> list[Any]:
    return [x[i] for i in range(x.shape[0])] if hasattr(x, "shape") else list(x)


def _line(x0: np.ndarray, goal: np.ndarray, horizon: int) -> np.ndarray:
    return np.linspace(x0, goal, horizon + 1)


def cartpole() -> Ocp:
    goal, x0 = np.array([0.0, np.pi, 0.0, 0.0]), np.array([0.0, 0.2, 0.0, -0.1])

    def off(x: Scalars) -> list[Any]:
        return [x[i] - goal[i] for i in range(4)]

    return Ocp(
        "cartpole",
        50,
        x0,
        _euler(lambda m, x, u: _swing(m, 10.0, 1.0, 0.5, x, u[0]), 0.1),
        lambda m, x, u: 0.1 * _dot(off(x)) + 0.01 * u[0] * u[0],
        lambda m, x: 1000.0 * _dot(off(x)),
        np.array([-5.0]),
        np.array([5.0]),
        _line(x0, goal, 50),
        np.zeros((50, 1)),
        goal,
    )


def acrobot() -> Ocp:
    goal = np.array([np.pi, 0.0, 0.0, 0.0])
    m1, m2, l1, c1, c2, i1, i2, g = 1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 9.8

    def rate(m: Any, x: Scalars, u: Scalars) -> list[Any]:
        s2, k2, w1, w2 = m.sin(x[1]), m.cos(x[1]), x[2], x[3]
        d1 = m1 * c1**2 + m2 * (l1**2 + c2**2 + 2 * l1 * c2 * k2) + i1 + i2
        d2 = m2 * (c2**2 + l1 * c2 * k2) + i2
        p2 = m2 * c2 * g * m.cos(x[0] + x[1] - np.pi / 2)
        p1 = -m2 * l1 * c2 * w2 * s2 * (w2 + 2 * w1)
        p1 = p1 + (m1 * c1 + m2 * l1) * g * m.cos(x[0] - np.pi / 2) + p2
        top = u[0] + d2 / d1 * p1 - m2 * l1 * c2 * w1 * w1 * s2 - p2
        a2 = top / (m2 * c2**2 + i2 - d2 * d2 / d1)
        return [w1, w2, -(d2 * a2 + p1) / d1, a2]

    def off(x: Scalars) -> list[Any]:
        return [x[i] - goal[i] for i in range(4)]

    none = np.array([np.inf])
    return Ocp(
        "acrobot",
        50,
        np.zeros(4),
        _euler(rate, 0.1),
        lambda m, x, u: 0.05 * _dot(off(x)) + 0.005 * u[0] * u[0],
        lambda m, x: 500.0 * _dot(off(x)),
        -none,
        none,
        np.zeros((51, 4)),
        np.zeros((50, 1)),
    )


def quadpendulum(shared: bool = False) -> Ocp:
    mass, rod, arm, inertia, friction, g, dt = 0.486, 0.0972, 0.25, 0.00383, 0.01, 9.81, 0.025
    total, pole = mass + rod, 0.5
    x0, goal = np.array([-2.5, 1.5, 0, 0, 0, 0, 0, 0]), np.array([3.0, -1.5, 0, np.pi, 0, 0, 0, 0])
    hover = 0.5 * total * g
    weights = 5.0 * np.array([10.0, 10, 1, 1, 1, 1, 1, 1])
    discs = ((-1.0, 0.5, 0.5), (0.75, -1.0, 0.75), (-2.0, -1.0, 0.5), (2.0, 1.0, 0.5))

    def rate(m: Any, x: Scalars, u: Scalars) -> list[Any]:
        s, c = m.sin(x[3]), m.cos(x[3])
        b, k, w = rod * pole * c, rod * pole * s, x[7]
        thrust, rub = u[0] + u[1], -friction * (x[7] - x[6])
        f0 = -thrust * m.sin(x[2]) + rod * pole * s * w * w
        f1 = thrust * m.cos(x[2]) - total * g - rod * pole * c * w * w
        f3 = rub - rod * g * pole * s
        a3 = (f3 - (b * f0 + k * f1) / total) / (rod * pole**2 - (rod * pole) ** 2 / total)
        a2 = ((u[0] - u[1]) * arm - rub) / inertia
        return [x[4], x[5], x[6], x[7], (f0 - b * a3) / total, (f1 - k * a3) / total, a2, a3]

    def cost(m: Any, x: Scalars, u: Scalars) -> Any:
        off = _dot([x[i] - goal[i] for i in range(3)]) + 1 + m.cos(x[3])
        return 0.5 * (0.01 * off + 0.05 * _dot([u[0] - hover, u[1] - hover]))

    def path(m: Any, x: Scalars, margin: Any) -> list[Any]:
        s, c = m.sin(x[2]), m.cos(x[2])
        tip = (x[0] + pole * m.sin(x[3]), x[1] - pole * m.cos(x[3]))
        parts = [(x[0], x[1], 0.05 * arm)]
        for dx, dy, r in ((0.0, 0.15, 1.0), (-1.0, 0.3, 0.3), (1.0, 0.3, 0.3)):
            dx, dy = dx * arm, dy * arm
            parts.append((x[0] + c * dx - s * dy, x[1] + s * dx + c * dy, r * arm))
        parts.append((*tip, 0.1 * arm))
        rows = [x[2] - 0.75 * np.pi, -x[2] - 0.75 * np.pi]
        for px, py, r in parts:
            rows += [-px - 4.0 + r, -py - 2.0 + r, px - 4.0 + r, py - 2.0 + r]
        for ox, oy, radius in discs:
            rows += [(radius + r + margin) ** 2 - (px - ox) ** 2 - (py - oy) ** 2 for px, py, r in parts]
            along = (tip[0] - x[0], tip[1] - x[1])
            at = ((ox - x[0]) * along[0] + (oy - x[1]) * along[1]) / (_dot(along) + 1e-12)
            at = m.minimum(1.0, m.maximum(0.0, at))
            near = (x[0] + at * along[0] - ox, x[1] + at * along[1] - oy)
            rows.append((radius + margin) ** 2 - _dot(near))
        return rows

    limit = mass * g * np.ones(2)
    return Ocp(
        "quadpendulum, shared parameter" if shared else "quadpendulum",
        200,
        x0,
        _euler(rate, dt),
        cost,
        lambda m, x: 0.5 * sum(w * (x[i] - goal[i]) ** 2 for i, w in enumerate(weights)),
        0.1 * limit,
        3.0 * limit,
        _line(x0, goal, 200),
        np.full((200, 2), hover),
        goal,
        path,
        10.0 if shared else None,
    )


def cartpole200() -> Ocp:
    goal, dt = np.array([0.0, np.pi, 0.0, 0.0]), 0.02

    def step(m: Any, x: Scalars, u: Scalars) -> list[Any]:
        x = _items(x)

        def rate(y: Scalars) -> list[Any]:
            return _swing(m, 1.0, 0.2, 0.5, y, u[0])

        def moved(by: float, d: Scalars) -> list[Any]:
            return [a + by * b for a, b in zip(x, d, strict=True)]

        k1 = rate(x)
        k2 = rate(moved(dt / 2, k1))
        k3 = rate(moved(dt / 2, k2))
        k4 = rate(moved(dt, k3))
        return [a + dt / 6 * (p + 2 * q + 2 * r + s) for a, p, q, r, s in zip(x, k1, k2, k3, k4, strict=True)]

    return Ocp(
        "cartpole200",
        200,
        np.zeros(4),
        step,
        lambda m, x, u: dt * (0.05 * u[0] * u[0] + 0.1 * (1 + m.cos(x[1])) + 0.01 * x[3] * x[3]),
        lambda m, x: 0.0 * x[0],
        np.array([-8.0]),
        np.array([8.0]),
        _line(np.zeros(4), goal, 200),
        np.zeros((200, 1)),
        goal,
        lambda m, x, p: [x[0] - 0.8, -x[0] - 0.8],
    )


def quadrotor() -> Ocp:
    mass, inertia, arm, g, dt = 0.5, 0.01, 0.2, 9.81, 0.05
    goal = np.array([4.0, 0, 0, 0, 0, 0])
    discs = ((1.2, 0.15, 0.5), (2.8, -0.2, 0.5))
    hover = mass * g / 2

    def rate(m: Any, x: Scalars, u: Scalars) -> list[Any]:
        thrust = (u[0] + u[1]) / mass
        spin = arm * (u[0] - u[1]) / inertia
        return [x[3], x[4], x[5], -thrust * m.sin(x[2]), thrust * m.cos(x[2]) - g, spin]

    def step(m: Any, x: Scalars, u: Scalars) -> list[Any]:
        x = _items(x)
        half = [a + dt / 2 * d for a, d in zip(x, rate(m, x, u), strict=True)]
        return [a + dt * d for a, d in zip(x, rate(m, half, u), strict=True)]

    def cost(m: Any, x: Scalars, u: Scalars) -> Any:
        off = _dot([x[i] - goal[i] for i in range(6)])
        return dt * (0.1 * _dot([u[0] - hover, u[1] - hover]) + 0.1 * off)

    return Ocp(
        "quadrotor, two discs",
        100,
        np.zeros(6),
        step,
        cost,
        lambda m, x: 0.0 * x[0],
        np.zeros(2),
        np.full(2, 2 * mass * g),
        _line(np.zeros(6), goal, 100),
        np.full((100, 2), hover),
        goal,
        lambda m, x, p: [r * r - (x[0] - a) ** 2 - (x[1] - b) ** 2 for a, b, r in discs],
    )


def problems() -> list[Ocp]:
    return [
        cartpole(),
        acrobot(),
        cartpole200(),
        quadrotor(),
        quadpendulum(),
        quadpendulum(shared=True),
    ]
