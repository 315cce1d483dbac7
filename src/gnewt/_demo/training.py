"""Train a deep and narrow network by exact Newton steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._demo.setting import Setting
from gnewt._typing import Array
from gnewt._viz import BLUE, GREY, INK, RED, legend, new_figure, tidy
from gnewt.newton import Result, minimize
from gnewt.newton.picture import draw_convergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "train a deep network of width 2 by exact Newton steps"
_WIDTH, _POINTS, _DECAY = 2, 6, 1e-3


def _predict(weights: dict[str, Array], x: Array) -> Array:
    """A residual network: each layer adds tanh(W h + b)."""

    def layer(h: Array, w: dict[str, Array]) -> tuple[Array, None]:
        return h + jnp.tanh(w["W"] @ h + w["b"]), None

    return jax.lax.scan(layer, jnp.stack([x, jnp.ones_like(x)]), weights)[0][0]


def prepare(size: int, seed: int) -> Setting:
    """`size` layers, a few points of a curve."""
    rng = np.random.default_rng(seed)
    xs = np.linspace(-1.0, 1.0, _POINTS)
    ys = np.sin(3 * xs) + 0.05 * rng.standard_normal(_POINTS)

    def loss(weights: dict[str, Array]) -> Array:
        errors = [(_predict(weights, x) - y) ** 2 for x, y in zip(xs, ys, strict=True)]
        return sum(errors, jnp.zeros(())) + _DECAY * sum(jnp.sum(w**2) for w in jax.tree.leaves(weights))

    first = {
        "W": 0.2 * rng.standard_normal((size, _WIDTH, _WIDTH)),
        "b": 0.1 * rng.standard_normal((size, _WIDTH)),
    }

    def solve(verbose: bool) -> Result[Any]:
        return minimize(loss, first, max_steps=400, tol=1e-7, verbose=verbose)

    return Setting(loss, first, solve, {"xs": xs, "ys": ys, "first": first})


def draw(setting: Setting, result: Result[Any]) -> Figure:
    """The curve before and after, and how the run converged."""
    figure = new_figure(11.0, 4.0)
    curve, errors = figure.subplots(1, 2)
    at = np.linspace(-1.2, 1.2, 200)
    for weights, colour, name in ((setting.extra["first"], GREY, "before"), (result.x, BLUE, "after")):
        values = jax.vmap(lambda x, w=weights: _predict(jax.tree.map(jnp.asarray, w), x))(jnp.asarray(at))
        curve.plot(at, np.asarray(values), color=colour, lw=1.6, label=name)
    curve.plot(
        setting.extra["xs"], setting.extra["ys"], "o", color=RED, ms=5, mec=INK, mew=0.5, label="points"
    )
    curve.set_ylim(-2.0, 2.0)
    tidy(curve, "what the network says")
    legend(curve)
    draw_convergence(errors, result)
    return figure
