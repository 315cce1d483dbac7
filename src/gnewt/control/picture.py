"""A solution as a picture: states, controls, limits, multipliers, feedback bands, convergence. Needs matplotlib."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gnewt._errors import OptionError, PlanError, StepError, user_line
from gnewt._typing import Argument, PyTree
from gnewt._viz import BLUE, COLOURS, INK, RED, SMALL, legend, new_figure, tidy
from gnewt.control.limits import spread
from gnewt.control.problem import Stage
from gnewt.newton.picture import draw_convergence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gnewt.control.solve import Solution

_DEVIATIONS = 2.0
_MOST = 8
"""Panels of states and of controls that are drawn; of more, the first."""
_MOST_PRICES = 6
_NOTHING = 1e-6
"""Share of the largest multiplier below which another is none."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """States or controls by their columns, what limits them, and how far the closed loop spreads them."""

    names: list[str]
    values: np.ndarray
    """[rows, columns]"""
    lower: np.ndarray
    upper: np.ndarray
    std: np.ndarray | None = None


def draw_solution(solution: Solution, noise: Argument[float]) -> Figure:
    """Draw the picture of a solution."""
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise OptionError(
            f"noise is {noise!r}",
            user_line(),
            "give a share of the range of each state, such as 0.01; 0 for no bands",
        )
    if np.ndim(solution.code):
        raise StepError(
            f"this Solution is a batch of shape {np.shape(solution.code)}, made by vmap",
            user_line(),
            "take one of it: jax.tree.map(lambda a: a[0], solution).plot()",
        )
    states, controls = _states(solution), _controls(solution)
    found = _bands(solution, states, noise) if noise else None
    note = ""
    if found is not None:
        states, controls = (
            dataclasses.replace(r, std=s) for r, s in zip((states, controls), found, strict=True)
        )
        note = f"; bands: ±2 std in closed loop, every stage disturbed by {100 * noise:g} % of each state's range"
    prices = _prices(solution)
    left = min(len(states.names), _MOST)
    right = min(len(controls.names), _MOST)
    title = f"{solution.method}: {solution.status} after {int(solution.num_steps)} steps, cost {float(solution.fun):.6g}{note}"
    below = right + bool(prices)
    figure = new_figure(11.0, 0.7 + 1.45 * max(left, below + 1, 3), title)
    both: Any = figure.subfigures(1, 2)
    time, unit = _time(solution)
    of_states = both[0].subplots(left, 1, squeeze=False)[:, 0]
    others = both[1].subplots(below + 1, 1, squeeze=False)[:, 0]
    _draw_rows(of_states, states, time, "state", False)
    _draw_rows(others[:right], controls, time, "control", True)
    if prices:
        _draw_prices(others[right], prices, time)
    draw_convergence(others[below], solution.result)
    for ax in (of_states[-1], others[below - 1]):
        ax.tick_params(labelbottom=True)
        ax.set_xlabel(unit, fontsize=SMALL, color=INK)
    return figure


def _time(solution: Solution) -> tuple[np.ndarray, str]:
    """When x_0 … x_T are."""
    horizon, end = solution.problem.horizon, solution.final_time
    at = np.arange(horizon + 1.0)
    return (at, "stage") if end is None else (at * float(end) / horizon, "time")


def _columns(tree: PyTree, name: str) -> tuple[list[str], np.ndarray]:
    """Names and values of the columns of leaves [rows, ...]."""
    names, parts = [], []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        flat = np.asarray(leaf).reshape(len(leaf), -1)
        stem = name + jax.tree_util.keystr(path)
        names += [stem if np.ndim(leaf) == 1 else f"{stem}[{j}]" for j in range(flat.shape[1])]
        parts.append(flat)
    return names, np.concatenate(parts, 1) if parts else np.zeros((0, 0))


def _limits(solution: Solution, name: str, like: PyTree, first: int) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) for all rows; `first` rows come before what is limited."""
    horizon = solution.problem.horizon
    found = []
    for side, pair in (("lower", 0), ("upper", 1)):
        pairs: Any = solution.problem.given["limits"].get(name, (None, None))
        given = pairs[pair]
        whole = spread(given, like, horizon, f"the {side} limit of {name}", name)
        rows = _columns(whole, "")[1]
        found.append(np.concatenate([np.full((first, rows.shape[1]), np.nan), rows]))
    return found[0], found[1]


def _states(solution: Solution) -> Rows:
    names, values = _columns(solution.xs, "x")
    one = jax.tree.map(lambda a: np.asarray(a)[0], solution.xs)
    return Rows(names, values, *_limits(solution, "state_limits", one, 1))


def _controls(solution: Solution) -> Rows:
    names, values = _columns(solution.us, "u")
    one = jax.tree.map(lambda a: np.asarray(a)[0], solution.us)
    return Rows(names, values, *_limits(solution, "control_limits", one, 0))


def _prices(solution: Solution) -> list[tuple[str, np.ndarray]]:
    """Multipliers of limits by stage, those that are not zero; controls' have T rows, states' are at x_1 … x_T."""
    found = []
    for kind, tree in solution.multipliers.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if np.ndim(leaf) == 0 or len(leaf) != solution.problem.horizon:
                continue  # of the final state
            flat = np.asarray(leaf).reshape(len(leaf), -1)
            stem = kind.replace("_limits", "").replace("stage_constraints", "") + jax.tree_util.keystr(path)
            for j in range(flat.shape[1]):
                found.append((stem if flat.shape[1] == 1 else f"{stem}[{j}]", flat[:, j]))
    sizes = [float(np.abs(values).max()) for _, values in found]
    order = np.argsort(sizes)[::-1][:_MOST_PRICES]
    return [found[i] for i in order if sizes[i] > _NOTHING * max(sizes)]


def _bands(solution: Solution, states: Rows, noise: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Standard deviations of states and controls in closed loop; None where there is no policy by stages.

    P_{t+1} = (A + BK) P (A + BK)ᵀ + W with A, B of the dynamics at the solution, and W of states alone: what a memory
    holds is exact.
    """
    try:
        gains = jnp.asarray(solution.gains)
    except PlanError:
        return None
    problem = solution.problem
    stages = problem.stages
    us, given = stages.split(solution.result.x, problem.given)
    carries = solution.carries
    before = jax.tree.map(lambda a: jnp.asarray(a)[:-1], carries)
    first = jax.tree.map(lambda a: a[0], before)
    unravel_x, unravel_u = ravel_pytree(first)[1], ravel_pytree(jax.tree.map(lambda a: a[0], us))[1]
    is_state = ravel_pytree(
        {k: jax.tree.map(lambda a, k=k: jnp.full(a.shape, float(k == "x")), v) for k, v in first.items()}
    )[0]

    def advance(x: jax.Array, u: jax.Array, stage: Stage) -> jax.Array:
        return ravel_pytree(stages.advance(unravel_x(x), unravel_u(u), stage, given))[0]

    def flat(tree: PyTree) -> jax.Array:
        return jax.vmap(lambda row: ravel_pytree(row)[0])(tree)

    points = (flat(before), flat(jax.tree.map(jnp.asarray, us)), stages.stages(given))
    A = jax.vmap(jax.jacfwd(advance, 0))(*points)
    B = jax.vmap(jax.jacfwd(advance, 1))(*points)
    own = np.flatnonzero(np.asarray(is_state))
    w = np.zeros(len(is_state))
    w[own] = noise * np.ptp(states.values, axis=0)
    return _spread_noise(np.asarray(A), np.asarray(B), np.asarray(gains), w, own)


def _spread_noise(
    A: np.ndarray, B: np.ndarray, K: np.ndarray, w: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Walk the covariance along the closed loop: (std of states [T + 1, n], std of controls [T, m])."""
    P, of_states, of_controls = np.zeros((len(w), len(w))), [], []
    for a, b, k in zip(A, B, K, strict=True):
        of_states.append(np.diag(P)[own])
        of_controls.append(np.einsum("ij,jl,il->i", k, P, k))
        closed = a + b @ k
        P = closed @ P @ closed.T + np.diag(w**2)
    of_states.append(np.diag(P)[own])
    return np.sqrt(np.maximum(of_states, 0.0)), np.sqrt(np.maximum(of_controls, 0.0))


def _draw_rows(axes: np.ndarray, rows: Rows, time: np.ndarray, kind: str, steps: bool) -> None:
    """One panel for each column."""
    for j, ax in enumerate(axes):
        values, colour = rows.values[:, j], RED if steps else BLUE
        if rows.std is not None:
            half = _DEVIATIONS * rows.std[:, j]
            edges = (_held(values - half, time), _held(values + half, time))
            ax.fill_between(time, *edges, color=colour, alpha=0.18, lw=0, step="post" if steps else None)
        where = {"drawstyle": "steps-post"} if steps else {}
        ax.plot(time, _held(values, time), color=colour, lw=1.4, **where)
        near = [_near(limit[:, j], values) for limit in (rows.lower, rows.upper)]
        for limit in near:
            if np.isfinite(limit).any():
                ax.plot(time, _held(limit, time), color=INK, lw=0.9, ls="--", **where)
        _focus(ax, np.concatenate([values, *near]))
        more = f", {len(axes)} of {len(rows.names)}" if j == 0 and len(axes) < len(rows.names) else ""
        tidy(ax, f"{kind} {rows.names[j]}{more}")
        ax.tick_params(labelbottom=False)


def _held(values: np.ndarray, time: np.ndarray) -> np.ndarray:
    """A row for every time: controls hold until the end of their stage."""
    return np.append(values, values[-1:]) if len(values) < len(time) else values


def _near(limit: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A limit where it is not far from what it limits; NaN elsewhere, so that it does not squeeze the curve."""
    span = float(np.ptp(values))
    with np.errstate(invalid="ignore"):
        is_near = np.abs(limit - values) <= (1.5 * span if span else 10 * np.abs(values) + 1)
    return np.where(np.isfinite(limit) & is_near, limit, np.nan)


def _focus(ax: Axes, shown: np.ndarray) -> None:
    """Keep wide bands from squeezing what they surround: they may run out of the panel."""
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    room = 0.6 * (high - low) if high > low else max(abs(high), 1.0)
    bottom, top = ax.get_ylim()
    ax.set_ylim(max(bottom, low - room), min(top, high + room))


def _draw_prices(ax: Axes, prices: list[tuple[str, np.ndarray]], time: np.ndarray) -> None:
    for (name, values), colour in zip(prices, COLOURS, strict=False):
        ax.plot(time, _held(values, time), color=colour, lw=1.2, drawstyle="steps-post", label=name)
    tidy(ax, "multipliers of limits (the price of each)")
    legend(ax, ncols=2 if len(prices) > 3 else 1)
