"""A report as a picture: costs, fronts, and the KKT matrix in the order of elimination. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnewt._viz import BLUE, legend, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gnewt.explain.report import Report

_PALE = "#a9c6e4"
_BINS = 400


def draw_report(report: Report) -> Figure:
    """Draw the picture of a report."""
    figure = new_figure(11, 3.6, f"{report.shape}: N = {report.num_inputs:,}, width {report.width}")
    costs, fronts, matrix = figure.subplots(1, 3)
    _draw_costs(costs, report)
    _draw_fronts(fronts, report)
    _draw_matrix(matrix, report)
    return figure


def _draw_costs(ax: Axes, report: Report) -> None:
    known = [cost for cost in report.costs.values() if cost.flops == cost.flops][::-1]
    ax.barh([cost.method for cost in known], [max(cost.flops, 1.0) for cost in known], color=BLUE)
    ax.set_xscale("log")
    tidy(ax, "flops of one step (CG: one iteration)")
    ax.grid(False, axis="y")


def _draw_fronts(ax: Axes, report: Report) -> None:
    """The unknowns of each front, in the order of elimination; of many fronts the widest of each stretch."""
    plan = report.system.plan
    own, sep = np.diff(plan.elim_ptr), np.diff(plan.sep_ptr)
    begins = np.unique(np.linspace(0, plan.num_fronts, _BINS + 1).astype(int))[:-1]
    if len(begins):
        whole = np.maximum.reduceat(own + sep, begins)
        kept = np.maximum.reduceat(own, begins)
        ax.fill_between(begins, whole, step="post", color=_PALE, label="passed on")
        ax.fill_between(begins, kept, step="post", color=BLUE, label="eliminated")
        legend(ax)
    ax.set_ylim(bottom=0)
    tidy(ax, "unknowns of each front", "front")


def _draw_matrix(ax: Axes, report: Report) -> None:
    plan = report.system.plan
    n, bins = plan.num_unknowns, min(plan.num_unknowns, _BINS)
    place = np.empty(n, np.int64)
    place[plan.elim_idx] = np.arange(n)
    row, col = (place[a] * bins // max(n, 1) for a in plan.entry_unknowns)
    filled = np.zeros((bins, bins))
    filled[row, col] = filled[col, row] = 1.0
    ax.imshow(filled, cmap="Blues", interpolation="none", extent=(0, n, n, 0), vmax=1.2)
    tidy(ax, "KKT matrix in the order of elimination")
    ax.grid(False)
