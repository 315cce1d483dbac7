"""Control of a nonlinear elliptic equation: heat a plate so that it takes a wanted temperature, with a source that has limits.

The temperature y is the variable, and the source follows from it: q = -Δy + y³. It is limited from below and above, and costs.
The tree of a grid is as wide as the grid: that is what a plane graph costs, and a dense Hessian costs more.
Run: python examples/heat_source.py [--cells 22] [--out heat_source.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

EFFORT, STRONGEST = 1e-4, 12.0


def source(y):
    """q = -Δy + y³ on the unit square, with y = 0 at its edge."""
    h = 1 / (len(y) + 1)
    edge = jnp.pad(y, 1)
    around = edge[2:, 1:-1] + edge[:-2, 1:-1] + edge[1:-1, 2:] + edge[1:-1, :-2]
    return (4 * y - around) / h**2 + y**3


def draw(path, wanted, y, q):
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for ax, field, title in zip(axes, (wanted, y, q), ("wanted", "reached", "source"), strict=True):
        image = ax.imshow(field, cmap="inferno" if title != "source" else "viridis", origin="lower")
        ax.set(title=title, xticks=[], yticks=[])
        fig.colorbar(image)
    fig.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=22)
    parser.add_argument("--out", default="heat_source.png")
    args = parser.parse_args()

    at = np.linspace(0, 1, args.cells + 2)[1:-1]
    wanted = np.where((np.abs(at[:, None] - 0.35) < 0.2) & (np.abs(at - 0.6) < 0.25), 0.6, 0.0)

    def cost(y):
        return jnp.mean((y - wanted) ** 2) + EFFORT * jnp.mean(source(y) ** 2)

    limit = gnewt.between(source, 0.0, STRONGEST)
    res = gnewt.minimize(cost, jnp.zeros((args.cells, args.cells)), constraints={"source": limit})
    print(res)
    q = np.asarray(source(res.x))
    limited = np.asarray(res.active["source"])
    full, off = int(np.sum(limited & (q > STRONGEST / 2))), int(np.sum(limited & (q < STRONGEST / 2)))
    print(f"{q.size} cells: {full} at full power, {off} switched off, {q.size - full - off} between")
    draw(args.out, wanted, np.asarray(res.x), q)


if __name__ == "__main__":
    main()
