"""One look for all pictures. matplotlib is optional: what draws asks for a figure here, and is told where it is missing."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, GREY, PALE = "#222222", "#9a9a9a", "#e4e4e4"
BLUE, RED, GREEN, GOLD, PURPLE, TEAL = "#1f5a96", "#c0432f", "#3f7d3a", "#c98a1b", "#77508f", "#2a8c93"
COLOURS = (BLUE, RED, GREEN, GOLD, PURPLE, TEAL)
SMALL = 8
"""Size of letters."""


class MissingLibrary(ImportError):
    """A library is needed that is not installed; the message says how to get it."""


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure that belongs to no window; notebooks show it, `savefig` writes it."""
    if not has_matplotlib():
        raise MissingLibrary("pictures need matplotlib, which is not installed: pip install 'gnewt[viz]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    if title:
        figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
    return figure


def tidy(ax: Axes, title: str = "", xlabel: str = "") -> None:
    """Give an axis the house look."""
    ax.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK)
    for side, spine in ax.spines.items():
        spine.set_color(GREY)
        spine.set_visible(side in ("left", "bottom"))
    if title:
        ax.set_title(title, fontsize=9, loc="left", color=INK)
    if xlabel:
        ax.set_xlabel(xlabel, fontsize=SMALL, color=INK)
    ax.grid(True, color=PALE, lw=0.6)
    ax.set_axisbelow(True)
    ax.margins(x=0.02)


def whole_steps(axis: Axis) -> None:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def legend(ax: Axes, **options: object) -> None:
    """A legend without a frame, where there is something to name."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=SMALL - 1, frameon=False, handlelength=1.4, borderaxespad=0.2, **options)  # type: ignore[arg-type]
