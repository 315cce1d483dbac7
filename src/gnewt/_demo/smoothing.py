"""A rate that wanders, seen through counts: the mode of its density, with marginal bands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from gnewt._demo.setting import Setting
from gnewt._typing import Array
from gnewt._viz import BLUE, GREY, INK, legend, new_figure, tidy
from gnewt.newton import Laplace, laplace, minimize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "smooth a rate that is seen through counts, with error bars by selected inversion"
_PRECISION = 60.0
"""Of the changes of the logarithm of the rate."""


def prepare(size: int, seed: int) -> Setting:
    """Counts of a rate that swings, and their negative log density."""
    times = np.linspace(0.0, 1.0, size)
    truth = 1.2 + np.sin(7 * times) + 0.5 * np.sin(23 * times)
    counts = np.random.default_rng(seed).poisson(np.exp(truth))
    seen = jnp.asarray(counts, float)

    def density(z: Array) -> Array:
        change = z[1:] - z[:-1]
        return jnp.sum(jnp.exp(z) - seen * z) + 0.5 * _PRECISION * jnp.sum(change**2) + 0.005 * jnp.sum(z**2)

    start = jnp.zeros(size)

    def solve(verbose: bool) -> Laplace:
        return laplace(density, minimize(density, start, verbose=True) if verbose else start)

    return Setting(density, start, solve, {"truth": truth, "counts": counts})


def draw(setting: Setting, found: Laplace) -> Figure:
    """Counts, truth, and the band in which the rate lies."""
    figure = new_figure(9.5, 4.2)
    ax = figure.subplots()
    mode, std = np.asarray(found.mode), np.asarray(found.std())
    at = np.arange(len(mode))
    ax.plot(at, setting.extra["counts"], ".", color=GREY, ms=3, label="counts")
    ax.plot(at, np.exp(setting.extra["truth"]), color=INK, lw=1.0, ls="--", label="true rate")
    ax.fill_between(at, np.exp(mode - 2 * std), np.exp(mode + 2 * std), color=BLUE, alpha=0.25, lw=0)
    ax.plot(at, np.exp(mode), color=BLUE, lw=1.6, label="mode, ± 2 standard deviations")
    tidy(ax, f"rate; log evidence {float(found.log_evidence):.2f}", "index")
    legend(ax)
    return figure
