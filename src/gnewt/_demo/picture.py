"""Draw the swing-up, the dense Hessian, and the elimination that never forms it. Needs matplotlib."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from gnewt._demo.cartpole import DT, POLE_LENGTH
from gnewt.graph import Plan

_INK, _GREY, _BLUE, _RED = "#222222", "#9a9a9a", "#1f5a96", "#c0432f"
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f7fb", "#6f9fd0", "#0b2a4f"])


def draw_demo(
    path: pathlib.Path, states: np.ndarray, us: np.ndarray, hessian: np.ndarray, plan: Plan
) -> None:
    """Write the picture: motion, trajectory, |H|, and the fronts in the order of elimination."""
    fig = Figure(figsize=(11.5, 8.6), layout="constrained", facecolor="white")
    axes = fig.subplot_mosaic([["motion", "time"], ["hessian", "fronts"]], height_ratios=[0.8, 1.0])
    for ax in axes.values():
        ax.tick_params(labelsize=8, color=_GREY, labelcolor=_INK)
        for spine in ax.spines.values():
            spine.set_color(_GREY)
    _draw_motion(axes["motion"], states)
    _draw_time(axes["time"], states, us)
    _draw_hessian(fig, axes["hessian"], hessian)
    _draw_fronts(axes["fronts"], plan)
    fig.savefig(path, dpi=150)


def _draw_motion(ax: Axes, states: np.ndarray) -> None:
    """Show the pole at regular times, faint to dark, and the path of its tip."""
    tip_x = states[:, 0] + POLE_LENGTH * np.sin(states[:, 1])
    tip_y = -POLE_LENGTH * np.cos(states[:, 1])
    ax.axhline(0, color=_GREY, lw=0.8, zorder=0)
    ax.plot(tip_x, tip_y, color=_RED, lw=0.8, alpha=0.7)
    frames = np.unique(np.linspace(0, len(states) - 1, 28).astype(int))
    for t in frames:
        alpha = 0.12 + 0.88 * (t / (len(states) - 1)) ** 2
        pole = np.array([[states[t, 0], 0.0], [tip_x[t], tip_y[t]]])
        ax.plot(pole[:, 0], pole[:, 1], color=_BLUE, lw=1.8, alpha=alpha, solid_capstyle="round")
        ax.plot(states[t, 0], 0, "s", color=_INK, ms=6, alpha=alpha)
    ax.plot(tip_x[-1], tip_y[-1], "o", color=_RED, ms=6)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_title("swing-up", fontsize=10, loc="left", color=_INK)
    ax.set_xlabel("position (m)", fontsize=8)


def _draw_time(ax: Axes, states: np.ndarray, us: np.ndarray) -> None:
    """Show angle and position over time, with the force on a second axis."""
    times = DT * np.arange(len(states))
    force = ax.twinx()
    force.fill_between(times[:-1], us, step="post", color=_RED, alpha=0.18, lw=0)
    force.step(times[:-1], us, where="post", color=_RED, lw=0.9)
    force.set_ylabel("force (N)", fontsize=8, color=_RED)
    force.tick_params(labelsize=8, labelcolor=_RED, color=_GREY)
    limit = 1.15 * np.abs(us).max()
    force.set_ylim(-limit, limit)
    ax.plot(times, states[:, 1], color=_BLUE, lw=1.8, label="angle (rad)")
    ax.plot(times, states[:, 0], color=_INK, lw=1.2, label="position (m)")
    ax.axhline(np.pi, color=_BLUE, lw=0.7, ls=":")
    ax.set_zorder(force.get_zorder() + 1)
    ax.patch.set_visible(False)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    ax.set_xlabel("time (s)", fontsize=8)
    ax.set_title("trajectory and force", fontsize=10, loc="left", color=_INK)


def _draw_hessian(fig: Figure, ax: Axes, hessian: np.ndarray) -> None:
    """Show |H| on a logarithmic scale."""
    size = np.abs(hessian)
    density = np.mean(size > 0)
    top = float(size.max())
    image = ax.imshow(
        np.maximum(size, 1e-8 * top), norm=LogNorm(1e-5 * top, top), cmap=_BLUES, interpolation="none"
    )
    bar = fig.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    ax.set_title(
        f"|H|, {len(hessian)} inputs: {100 * density:.0f} % nonzero", fontsize=10, loc="left", color=_INK
    )


def _draw_fronts(ax: Axes, plan: Plan) -> None:
    """Show the KKT matrix in the order of elimination, fill-in included; fronts enlarged in an inset."""
    n = plan.num_unknowns
    place = np.empty(n, int)
    place[plan.elim_idx] = np.arange(n)
    pattern = np.zeros((n, n))
    for i in range(plan.num_fronts):
        own = place[plan.eliminated(i)]
        bag = np.concatenate([own, place[plan.separator(i)]])
        pattern[np.ix_(own, bag)] = pattern[np.ix_(bag, own)] = 1.0
    density = pattern.mean()
    # A thin band would vanish between pixels: thicken it for the overview, keep it exact in the inset.
    reach = max(1, n // 400)
    shown = pattern.copy()
    for shift in range(1, reach):
        shown[shift:] = np.maximum(shown[shift:], pattern[:-shift])
    ax.imshow(shown, cmap=_BLUES, vmin=0, vmax=1.2, interpolation="none")
    width = plan.certificate.width
    ax.set_title(
        f"KKT matrix along the tree: {n}², {100 * density:.1f} % nonzero, width {width}",
        fontsize=10,
        loc="left",
        color=_INK,
    )
    inset = ax.inset_axes((0.56, 0.5, 0.42, 0.46))
    view = min(n, max(24, 6 * (width + 1)))
    inset.imshow(pattern[:view, :view], cmap=_BLUES, vmin=0, vmax=1.6, interpolation="none")
    for i in range(plan.num_fronts):
        own = place[plan.eliminated(i)]
        if own.max() < view:
            low, high = own.min() - 0.5, own.max() + 0.5
            inset.plot([low, high, high, low, low], [low, low, high, high, low], color=_RED, lw=1.0)
    inset.set_xlim(-0.5, view - 0.5)
    inset.set_ylim(view - 0.5, -0.5)
    inset.set_xticks([])
    inset.set_yticks([])
    inset.set_title("first fronts; red: eliminated", fontsize=7, color=_INK, pad=2)
    for spine in inset.spines.values():
        spine.set_color(_GREY)
