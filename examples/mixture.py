"""Fit the weights of a mixture: probabilities that sum to one, most of which are zero at the solution.

Run: python examples/mixture.py [--samples 400] [--out mixture.png]
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

PLACES, WIDTH = np.linspace(-4, 4, 33), 0.5


def bells(x):
    """Density of every component at every x."""
    return np.exp(-0.5 * ((x[:, None] - PLACES) / WIDTH) ** 2) / (WIDTH * np.sqrt(2 * np.pi))


def draw(path, samples, weights):
    line = np.linspace(-5, 5, 400)
    fig, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.hist(samples, bins=50, density=True, color="0.85")
    axes.plot(line, bells(line) @ weights, label="mixture")
    for place, weight in zip(PLACES, weights, strict=True):
        if weight > 1e-4:
            axes.plot([place, place], [0, weight], color="C1", linewidth=3)
    axes.set(xlabel="x", title="bars: weights that are not zero")
    axes.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--out", default="mixture.png")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    samples = np.where(
        rng.random(args.samples) < 0.3, rng.normal(-2, 0.6, args.samples), rng.normal(1.2, 0.9, args.samples)
    )
    density = jnp.asarray(bells(samples))

    def surprise(weights):
        return -jnp.mean(jnp.log(density @ weights))

    res = gnewt.minimize(
        surprise,
        jnp.full(len(PLACES), 1 / len(PLACES)),
        bounds=(0.0, 1.0),
        constraints={"sum": gnewt.equal(jnp.sum, 1.0)},
    )
    print(res)
    weights = np.asarray(res.x)
    print(
        f"{np.sum(weights > 1e-4)} of {len(PLACES)} components have a weight; they sum to {weights.sum():.10f}"
    )
    # Of a likelihood that is homogeneous in its weights the multiplier of their sum is one.
    print(f"the multiplier of the sum is {float(res.multipliers['sum']):.6f}")
    draw(args.out, samples, weights)


if __name__ == "__main__":
    main()
