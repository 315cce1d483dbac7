"""Decide now, learn later: a tank whose demand branches into scenarios. No solver for chains fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from gnewt._demo.setting import Setting
from gnewt._typing import Array
from gnewt._viz import BLUE, GREY, RED, new_figure, tidy
from gnewt.newton import Result, minimize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "fill a tank while the demand branches into scenarios"
_STEPS, _START, _TARGET = 3, 0.2, 1.0
_DEMANDS = np.array([0.6, 1.4])
"""At every branching: low or high."""


def _tank(level: Array, flow: Array, demand: Array) -> Array:
    """Level after a step: inflow, less demand, less a leak that grows with the level."""
    return level + 0.3 * (jnp.exp(flow) - demand - 0.2 * jnp.sqrt(1 + level**2))


def _demand(depth: int) -> np.ndarray:
    return np.ones(1) if depth == 0 else np.tile(_DEMANDS, 2 ** (depth - 1))


def _expected_cost(flows: list[Array]) -> Array:
    """flows[d] has a row of decisions for each of the 2^d branches at depth d."""
    level, last, total = jnp.array([_START]), jnp.zeros(1), jnp.zeros(())
    for depth, decisions in enumerate(flows):
        if depth:  # the demand becomes known: every branch splits
            level, last = jnp.repeat(level, 2), jnp.repeat(last, 2)
        for step in range(_STEPS):
            flow = decisions[:, step]
            level = _tank(level, flow, _demand(depth))
            cost = 10 * (level - _TARGET) ** 2 + jnp.exp(flow) + 20 * (flow - last) ** 2
            total, last = total + jnp.sum(cost) / 2**depth, flow
    return total


def prepare(size: int, seed: int) -> Setting:
    """`size` branchings: 2^size scenarios."""
    rng = np.random.default_rng(seed)
    first = [0.01 * rng.standard_normal((2**depth, _STEPS)) for depth in range(size + 1)]
    return Setting(_expected_cost, first, lambda verbose: minimize(_expected_cost, first, verbose=verbose))


def draw(setting: Setting, result: Result[Any]) -> Figure:
    """Levels and inflows of all scenarios: blue after a low demand, red after a high one."""
    figure = new_figure(9.0, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True)
    levels = np.array([_START])
    for depth, row in enumerate(result.x):
        flows, demand = np.asarray(row), _demand(depth)
        levels = np.repeat(levels, 2) if depth else levels
        path = [levels]
        for flow in flows.T:
            path.append(np.asarray(_tank(path[-1], flow, demand)))
        times = depth * _STEPS + np.arange(_STEPS + 1)
        for branch in range(2**depth):
            colour = GREY if not depth else (BLUE, RED)[branch % 2]
            top.plot(times, [p[branch] for p in path], color=colour, lw=1.0, alpha=0.8)
            inflow = np.exp([*flows[branch], flows[branch, -1]])
            bottom.step(times, inflow, where="post", color=colour, lw=1.0, alpha=0.8)
        levels = path[-1]
    top.axhline(_TARGET, color=GREY, ls=":", lw=1.0)
    tidy(top, f"level in {2 ** (len(result.x) - 1)} scenarios; blue: the demand turned out low, red: high")
    tidy(bottom, "inflow: decided before the next demand is known", "step")
    return figure
