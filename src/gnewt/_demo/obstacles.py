"""Fly a planar quadrotor between two pillars: distances are constraints, thrusts have limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._demo.setting import Setting
from gnewt._typing import Array
from gnewt._viz import BLUE, GREY, RED, legend, new_figure, tidy
from gnewt.newton import Result, minimize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "fly a planar quadrotor between two pillars, on the shortest leash that they leave"
_MASS, _INERTIA, _ARM, _GRAVITY, _DT = 0.5, 0.01, 0.2, 9.81, 0.05
_HOVER = _MASS * _GRAVITY / 2
_GOAL = np.array([4.0, 0.0, 0.0, 0.0, 0.0, 0.0])
_CENTRES, _RADIUS = np.array([[1.2, 0.15], [2.8, -0.2]]), 0.5


def _rate(x: Array, u: Array) -> Array:
    """Position, tilt, and their velocities; u are the two thrusts."""
    lift = (u[0] + u[1]) / _MASS
    turn = _ARM / _INERTIA * (u[0] - u[1])
    return jnp.stack([x[3], x[4], x[5], -lift * jnp.sin(x[2]), lift * jnp.cos(x[2]) - _GRAVITY, turn])


def _flight(us: Array) -> tuple[Array, dict[str, Array]]:
    def stage(x: Array, u: Array) -> tuple[Array, tuple[Array, Array]]:
        after = x + _DT * _rate(x + _DT / 2 * _rate(x, u), u)
        cost = 0.1 * jnp.sum((u - _HOVER) ** 2) + 0.1 * jnp.sum((x - _GOAL) ** 2)
        return after, (after, _DT * cost)

    end, (states, costs) = jax.lax.scan(stage, jnp.zeros(6), us)
    distances = jnp.sum((states[:, None, :2] - _CENTRES) ** 2, -1)
    return jnp.sum(costs), {"states": states, "distances": distances, "end": end - _GOAL}


def prepare(size: int, seed: int) -> Setting:
    """Start in hovering flight, with states on a straight line through both pillars."""
    start = _HOVER * (1 + 0.01 * np.random.default_rng(seed).standard_normal((size, 2)))

    def solve(verbose: bool) -> Result[Any]:
        return minimize(
            _flight,
            start,
            has_aux=True,
            bounds=(0.0, 4 * _HOVER),
            constraints={"distances": (_RADIUS**2, None), "end": (0.0, 0.0)},
            lifted={"states": np.linspace(0, 1, size + 1)[1:, None] * _GOAL},
            verbose=verbose,
        )

    return Setting(_flight, start, solve, has_aux=True)


def draw(setting: Setting, result: Result[Any]) -> Figure:
    """The flight, and the price of each pillar."""
    outputs: Any = result.outputs
    multipliers: Any = result.multipliers
    states, prices = np.asarray(outputs["states"]), -np.asarray(multipliers["distances"])
    figure = new_figure(11.0, 6.4)
    axes = figure.subplot_mosaic([["flight", "flight"], ["thrust", "price"]], height_ratios=[1.3, 1.0])
    ax = axes["flight"]
    for x, y in _CENTRES:
        turn = np.linspace(0, 2 * np.pi, 100)
        ax.fill(x + _RADIUS * np.cos(turn), y + _RADIUS * np.sin(turn), color=GREY, alpha=0.45, lw=0)
    ax.plot(states[:, 0], states[:, 1], color=RED, lw=1.0)
    for x, y, tilt in states[:: max(1, len(states) // 24), :3]:
        across = _ARM * np.array([np.cos(tilt), np.sin(tilt)])
        ax.plot([x - across[0], x + across[0]], [y - across[1], y + across[1]], color=BLUE, lw=2.2)
    ax.set_aspect("equal", adjustable="datalim")
    tidy(ax, "position (m); the bar is the aircraft")
    times = _DT * np.arange(len(states))
    for j, colour in ((0, BLUE), (1, RED)):
        axes["thrust"].step(times, np.asarray(result.x)[:, j], where="post", color=colour, lw=1.2)
        axes["price"].plot(times, prices[:, j], color=colour, lw=1.4, label=f"pillar {j + 1}")
    tidy(axes["thrust"], "thrusts (N)", "time (s)")
    tidy(axes["price"], "what each pillar costs: multipliers of its distance", "time (s)")
    legend(axes["price"])
    return figure
