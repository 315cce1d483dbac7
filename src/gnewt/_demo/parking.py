"""Park a car whose pedals and steering act some steps late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from gnewt._demo.setting import Setting
from gnewt._typing import Array
from gnewt.control import Problem, Solution, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "park a car whose commands act four steps late, with limits on both"
_SECONDS, _WHEELBASE, _DELAY = 8.0, 2.5, 4
_START = (6.0, 2.5, 0.0, 0.0)
"""x, y, heading, speed: beside the car in front; the gap is at the origin."""
_LIMITS = (2.0, 0.55)
"""Of acceleration and steering."""


def _dynamics(x: Array, u: Array, dt: Array, past_u: Array) -> Array:
    """A car on one track; what acts now is the oldest command that is still on its way."""
    acceleration, steering = past_u[0]
    heading = x[2] + dt * x[3] / _WHEELBASE * jnp.tan(steering)
    middle, way = (x[2] + heading) / 2, dt * (x[3] + dt / 2 * acceleration)
    moved = [x[0] + way * jnp.cos(middle), x[1] + way * jnp.sin(middle), heading, x[3] + dt * acceleration]
    return jnp.stack(moved)


def _stage_cost(x: Array, u: Array, dt: Array) -> Array:
    return dt * (0.1 * u[0] ** 2 + 0.5 * u[1] ** 2 + 0.01 * (x[0] ** 2 + x[1] ** 2))


def _final_cost(x: Array) -> Array:
    return 100 * jnp.sum(x**2)


def prepare(size: int, seed: int) -> Setting:
    """Start backwards, to the right and then to the left: at rest steering does nothing."""
    limits = jnp.array(_LIMITS)
    problem = Problem(
        _dynamics,
        _stage_cost,
        _final_cost,
        jnp.array(_START),
        size,
        final_time=_SECONDS,
        history=(None, jnp.zeros((_DELAY, 2))),
        control_limits=(-limits, limits),
    )
    first = np.where(np.arange(size)[:, None] < size / 2, [-0.4, -0.1], [0.4, 0.1])
    first = first + 0.01 * np.random.default_rng(seed).standard_normal(first.shape)
    return Setting(
        problem,
        problem.decision(first),
        lambda verbose: solve(problem, first, "newton", max_steps=500, verbose=verbose),
    )


def draw(setting: Setting, solution: Solution) -> Figure:
    """States, controls, limits, multipliers and feedback bands."""
    return solution.plot()
