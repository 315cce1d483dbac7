"""Pictures of runs and of uncertainty. Need matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gnewt._errors import StepError, user_line
from gnewt._typing import PyTree
from gnewt._viz import (
    BLUE,
    COLOURS,
    GOLD,
    GREEN,
    GREY,
    INK,
    PURPLE,
    RED,
    SMALL,
    legend,
    new_figure,
    tidy,
    whole_steps,
)
from gnewt.graph import Output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gnewt.newton.factor import Factor
    from gnewt.newton.result import Result

_MOST_PANELS, _MOST_LINES = 8, 6
_SMALLEST = 1e-10
"""Share of the largest radius or shift below which another is not shown."""
_MANY = 60
"""Points beyond which a band is a line without marks."""


def columns_of(history: Any) -> dict[str, np.ndarray]:
    """A history as one array for each column, rows that were not reached left out; inertia is [steps, 3]."""
    if hasattr(history, "_fields"):
        found = {name: np.asarray(getattr(history, name)) for name in history._fields}
    elif history:
        found = {
            name: np.array([np.asarray(getattr(r, name)) for r in history]) for name in history[0]._fields
        }
    else:
        return {}
    reached = np.isfinite(found["value"])
    return {name: column[reached] for name, column in found.items()}


def draw_result(result: Result[Any]) -> Figure:
    """Draw how a run converged: f, ‖g‖, inertia of H, radius and shift; with constraints violation, μ and step lengths."""
    if np.ndim(result.code):
        raise StepError(
            f"this Result is a batch of shape {np.shape(result.code)}, made by vmap",
            user_line(),
            "take one of it: jax.tree.map(lambda a: a[0], res).plot()",
        )
    columns = columns_of(result.history)
    count = len(columns.get("value", ()))
    verdict = f"{result.status} after {int(result.num_steps)} steps: f = {float(result.fun):.6g}, |g| = {float(result.grad_norm):.1e}"
    figure = new_figure(9.5, 5.0, verdict)
    axes = figure.subplots(2, 2, sharex=True)
    _draw_values(axes[0, 0], columns, float(result.fun))
    _draw_errors(axes[0, 1], columns, result)
    if "inertia" in columns:
        _draw_inertia(axes[1, 0], columns["inertia"], getattr(result.factor, "inertia", None))
    else:
        _draw_lengths(axes[1, 0], columns)
    _draw_safety(axes[1, 1], columns, _kept(columns, result))
    for ax in axes[1]:
        ax.set_xlabel("step", fontsize=SMALL, color=INK)
        ax.set_xlim(-0.02 * max(count, 1) - 0.5, 1.02 * count + 0.5)
        whole_steps(ax.xaxis)
    return figure


def _kept(columns: Mapping[str, np.ndarray], result: Result[Any]) -> np.ndarray:
    """Which steps were taken: after a refused one value and gradient are the old ones."""
    if "grad_norm" not in columns:
        return np.ones(0, bool)
    values = np.append(columns["value"], float(result.fun))
    sizes = np.append(columns["grad_norm"], float(result.grad_norm))
    return (np.diff(values) != 0) | (np.diff(sizes) != 0)


def draw_convergence(ax: Axes, result: Result[Any]) -> None:
    """Draw the errors of a run alone."""
    _draw_errors(ax, columns_of(result.history), result)
    ax.set_xlabel("step", fontsize=SMALL, color=INK)
    whole_steps(ax.xaxis)


def _draw_values(ax: Axes, columns: Mapping[str, np.ndarray], last: float) -> None:
    """f above its least value, on a logarithmic scale where it falls by more than a factor of ten."""
    values = np.append(columns.get("value", np.zeros(0)), last)
    low = float(np.min(values))
    above = values - low
    positive = above[above > 0]
    if len(positive) > 1 and positive.max() > 10 * positive.min():
        ax.semilogy(np.flatnonzero(above > 0), positive, "o-", color=BLUE, ms=3, lw=1.2)
        tidy(ax, f"f above its least value {low:.6g}")
    else:
        ax.plot(values, "o-", color=BLUE, ms=3, lw=1.2)
        tidy(ax, "f")


def _draw_errors(ax: Axes, columns: Mapping[str, np.ndarray], result: Result[Any]) -> None:
    """What has to vanish: the gradient, or the error of the first-order conditions with its parts."""
    if "grad_norm" in columns:
        lines = {"|g|": np.append(columns["grad_norm"], float(result.grad_norm))}
    else:
        parts = {
            "dual": "dual",
            "violation": "violation",
            "complementarity": "complementarity",
            "mu": "barrier μ",
        }
        lines = {label: columns[name] for name, label in parts.items() if name in columns}
    for (name, line), colour in zip(lines.items(), (BLUE, RED, PURPLE, GOLD), strict=False):
        at = np.flatnonzero(np.asarray(line) > 0)
        if len(at):
            ax.semilogy(at, line[at], "o-", color=colour, ms=3, lw=1.2, label=name)
    if "grad_norm" not in columns and math.isfinite(float(result.kkt_error)) and float(result.kkt_error) > 0:
        count = len(columns.get("value", ()))
        ax.semilogy([count], [float(result.kkt_error)], "*", color=GREEN, ms=8, label="error at the end")
    tol = float(result.tol)
    if tol > 0:
        ax.axhline(tol, color=GREY, lw=0.9, ls=":", label="tolerance")
    tidy(
        ax,
        "largest entry of the gradient" if "grad_norm" in columns else "errors of the first-order conditions",
    )
    legend(ax)


def _draw_inertia(ax: Axes, inertia: np.ndarray, last: Any) -> None:
    """Negative and zero eigenvalues of H before each step and at the end; a cross where H itself was not factorised."""
    if last is not None:
        inertia = np.concatenate([inertia.reshape(-1, 3), [[int(n) for n in last]]])
    steps = np.arange(len(inertia))
    known = inertia[:, 0] >= 0
    negative, zero = np.where(known, inertia[:, 1], 0), np.where(known, inertia[:, 2], 0)
    ax.bar(steps, negative, color=RED, width=0.7, label="negative")
    if zero.any():
        ax.bar(steps, zero, bottom=negative, color=GOLD, width=0.7, label="zero")
    good = known & (negative + zero == 0)
    if good.any():
        ax.plot(
            steps[good],
            np.zeros(good.sum()),
            "o",
            color=GREEN,
            ms=4,
            clip_on=False,
            label="none: positive definite",
        )
    if not known.all():
        ax.plot(
            steps[~known],
            np.zeros(int(np.sum(~known))),
            "x",
            color=GREY,
            ms=4,
            clip_on=False,
            label="only H + μI was factorised",
        )
    ax.set_ylim(0, max(1.0, 1.15 * float((negative + zero).max(initial=0))))
    whole_steps(ax.yaxis)
    tidy(ax, f"negative eigenvalues of H, of {int(inertia.sum(1).max(initial=0)):,}")
    legend(ax)


def _draw_lengths(ax: Axes, columns: Mapping[str, np.ndarray]) -> None:
    """Step lengths of an interior point."""
    for name, label, colour in (("length", "primal", BLUE), ("dual_length", "multipliers", GOLD)):
        if name in columns:
            ax.plot(columns[name], "o-", color=colour, ms=3, lw=1.0, label=label)
    ax.set_ylim(-0.03, 1.08)
    tidy(ax, "step lengths")
    legend(ax)


def _draw_safety(ax: Axes, columns: Mapping[str, np.ndarray], kept: np.ndarray) -> None:
    """Radius of the trust region and shift μ; steps that were refused are marked."""
    tops = []
    for name, label, colour in (("radius", "radius", BLUE), ("shift", "shift μ of H + μI", RED)):
        line = columns.get(name, np.zeros(0))
        at = np.flatnonzero(np.isfinite(line) & (line > 0))
        if len(at):
            ax.semilogy(at, line[at], "o-", color=colour, ms=3, lw=1.2, label=label)
            tops.append(float(line[at].max()))
    radius = columns.get("radius", np.zeros(0))
    refused = np.flatnonzero(~kept & np.isfinite(radius)) if len(kept) == len(radius) else np.zeros(0, int)
    if len(refused):
        ax.plot(refused, radius[refused], "x", color=INK, ms=6, label="refused")
    if tops:
        low, high = ax.get_ylim()
        ax.set_ylim(max(min(low, min(tops) / 3), _SMALLEST * max(tops)), max(high, 3 * max(tops)))
    else:
        ax.text(
            0.5, 0.5, "no step was shifted", transform=ax.transAxes, ha="center", fontsize=SMALL, color=GREEN
        )
        ax.set_yticks([])
    tidy(ax, "how steps are kept safe")
    legend(ax)


def draw_bands(factor: Factor, of: str, deviations: float, mean: PyTree = None) -> Figure:
    """Draw marginal bands: mean ± deviations · std of the inputs, or of the auxiliary data.

    Args:
        of: `"inputs"` or `"outputs"`.
        mean: what the bands are drawn around; the point of the factor (for outputs: the auxiliary data there) unless given.
    """
    if factor.is_traced or not factor.is_positive_definite:
        raise StepError(
            "there are no marginal bands: H + μI is not positive definite here"
            if not factor.is_traced
            else "a picture cannot be part of a compiled function",
            user_line(),
            "draw the factor at a minimum, `gnewt.minimize(...).factor`, outside jit",
        )
    variances = factor.marginal_variances() if of == "inputs" else factor.output_variances()
    centre = _middles(factor, of) if mean is None else mean
    named = jax.tree_util.tree_flatten_with_path(variances)[0]
    middles = jax.tree.leaves(centre)
    panels = [
        (
            ("x" if of == "inputs" else "") + jax.tree_util.keystr(path),
            np.asarray(middle),
            np.asarray(np.sqrt(variance)),
        )
        for (path, variance), middle in zip(named, middles, strict=True)
    ]
    points = [p for p in panels if p[1].ndim == 0]
    series = [p for p in panels if p[1].ndim > 0][:_MOST_PANELS]
    count = len(series) + bool(points)
    rows = math.ceil(count / 2) if count > 2 else count
    columns = 2 if count > 2 else 1
    figure = new_figure(9.5, 1.0 + 2.4 * rows, f"mean ± {deviations:g} standard deviations")
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for ax, (name, middle, std) in zip(axes, series, strict=False):
        _draw_band(ax, name, middle, deviations * std)
    if points:
        _draw_points(axes[len(series)], points, deviations)
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure


def _middles(factor: Factor, of: str) -> PyTree:
    """Values of the inputs, or of the auxiliary data, at the point of a factor; NaN for what no slot holds."""
    structure = factor.system.structure
    if of == "inputs":
        return structure.unravel(factor.point.x)
    slots = np.asarray(factor.models.slots)

    def read(output: Output) -> np.ndarray:
        return np.where(output.is_slot, slots[np.maximum(output.slots, 0)], np.nan)

    return jax.tree.map(read, structure.outputs, is_leaf=lambda node: isinstance(node, Output))


def _draw_band(ax: Axes, name: str, middle: np.ndarray, half: np.ndarray) -> None:
    """One array: a line for each of its columns, with a band around it."""
    middle, half = middle.reshape(len(middle), -1), half.reshape(len(half), -1)
    shown = min(middle.shape[1], _MOST_LINES)
    at = np.arange(len(middle))
    for j in range(shown):
        colour, label = COLOURS[j % len(COLOURS)], f"[:, {j}]" if middle.shape[1] > 1 else None
        if len(at) > _MANY:
            ax.fill_between(
                at, middle[:, j] - half[:, j], middle[:, j] + half[:, j], color=colour, alpha=0.22, lw=0
            )
            ax.plot(at, middle[:, j], color=colour, lw=1.2, label=label)
        else:
            aside = 0.12 * (j - (shown - 1) / 2)
            ax.errorbar(
                at + aside,
                middle[:, j],
                half[:, j],
                fmt="o",
                ms=3,
                lw=1.1,
                color=colour,
                capsize=0,
                label=label,
            )
    left = f", {shown} of {middle.shape[1]} columns" if shown < middle.shape[1] else ""
    tidy(ax, f"{name}{left}", "index")
    whole_steps(ax.xaxis)
    legend(ax, ncols=shown, loc="lower right", bbox_to_anchor=(1.0, 1.0))


def _draw_points(ax: Axes, points: list[tuple[str, np.ndarray, np.ndarray]], deviations: float) -> None:
    """Single numbers below each other: each in units of its own, since they need not be of one size."""
    for i, (name, value, std) in enumerate(points):
        half = deviations * float(std)
        ax.errorbar([0.0], [i], xerr=[1.0], fmt="o", ms=4, lw=1.4, color=BLUE)
        ax.text(
            0.0,
            i - 0.12,
            f"{name} = {float(value):.4g} ± {half:.2g}",
            fontsize=SMALL,
            ha="center",
            va="bottom",
            color=INK,
        )
    tidy(ax, "single numbers, each in units of its own band")
    ax.set_ylim(len(points) - 0.5, -0.8)
    ax.set_xlim(-1.6, 1.6)
    ax.set_yticks([])
    ax.set_xticks([-1, 0, 1])
