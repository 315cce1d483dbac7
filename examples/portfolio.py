"""Choose a portfolio: a budget, limits of every share, and a limit of what is sold short. Every portfolio of the frontier starts from the last.

Run: python examples/portfolio.py [--assets 20] [--out portfolio.png]
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

SHORT, LARGEST = 0.3, 0.4


def market(count):
    """Expected returns and covariances of a few factors."""
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(count, 3)) * 0.15
    return rng.normal(0.08, 0.04, count), factors @ factors.T + np.diag(rng.uniform(0.01, 0.06, count))


def choose(wanted, returns, covariance, start=None):
    """The least variance for an expected return. Long and short parts are variables of their own."""

    def variance(parts):
        held = parts["long"] - parts["short"]
        return held @ covariance @ held + 1e-6 * jnp.sum(parts["long"] + parts["short"])

    constraints = {
        "budget": gnewt.equal(lambda p: jnp.sum(p["long"] - p["short"]), 1.0),
        "return": gnewt.between(lambda p: returns @ (p["long"] - p["short"]), wanted),
        "short": gnewt.between(lambda p: jnp.sum(p["short"]), None, SHORT),
    }
    equal = jnp.full(len(returns), 1 / len(returns))
    start = {"long": equal, "short": 0.1 * equal} if start is None else start
    return gnewt.minimize(variance, start, bounds=(0.0, LARGEST), constraints=constraints)


def draw(path, risks, wanted, held):
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    left.plot(100 * risks, 100 * wanted, "o-")
    left.set(xlabel="standard deviation (%)", ylabel="expected return (%)")
    image = right.imshow(held.T, aspect="auto", cmap="RdBu", vmin=-LARGEST, vmax=LARGEST)
    right.set(xlabel="portfolio, from careful to bold", ylabel="asset")
    fig.colorbar(image, label="share")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets", type=int, default=20)
    parser.add_argument("--out", default="portfolio.png")
    args = parser.parse_args()

    returns, covariance = (jnp.asarray(v) for v in market(args.assets))
    one = choose(0.1, returns, covariance)
    print(one)
    print(f"one more per cent of return costs {-0.01 * float(one.multipliers['return']):.5f} of variance")
    wanted = np.linspace(0.06, 0.14, 17)
    frontier = [choose(wanted[0], returns, covariance)]
    for more in wanted[1:]:
        frontier.append(choose(more, returns, covariance, frontier[-1]))
    steps = [res.num_steps for res in frontier]
    print(f"frontier: {sum(res.success for res in frontier)} of {len(wanted)} converged, in {steps} steps")
    held = np.array([res.x["long"] - res.x["short"] for res in frontier])
    draw(args.out, np.sqrt([res.fun for res in frontier]), wanted, held)


if __name__ == "__main__":
    main()
