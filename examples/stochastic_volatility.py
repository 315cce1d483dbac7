"""Stochastic volatility: how nervous was a market, day by day? A Laplace approximation whose Hessian is dense.

The variables are the shocks, and log volatilities are sums of them (the non-centred form): every observation depends on all
shocks before it. H is dense, its graph is a chain, and so mode, evidence, marginals and draws cost as much as a chain.
Run: python examples/stochastic_volatility.py [--days 1000] [--out stochastic_volatility.png]
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

SCALE, MEMORY = 0.2, 0.97


def simulate(days):
    """Log volatilities, and returns of a market that has them."""
    rng = np.random.default_rng(3)
    h = np.zeros(days)
    for i in range(days):
        h[i] = (MEMORY * h[i - 1] if i else 0.0) + SCALE * rng.standard_normal()
    return h, np.exp(h / 2) * rng.standard_normal(days)


def neg_log_joint(shocks, returns):
    """-log p(shocks, returns), and the log volatilities."""

    def day(h, now):
        shock, seen = now
        h = MEMORY * h + SCALE * shock
        return h, (0.5 * (h + seen**2 * jnp.exp(-h)) + 0.5 * shock**2 + jnp.log(2 * jnp.pi), h)

    _, (terms, h) = jax.lax.scan(day, jnp.zeros(()), (shocks, returns))
    return jnp.sum(terms), {"h": h}


def draw(path, truth, returns, h, std, draws):
    days = np.arange(len(h))
    fig, (top, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    top.plot(days, returns, lw=0.6, color="grey", label="returns")
    top.legend(loc="upper left")
    below.fill_between(days, np.exp((h - 2 * std) / 2), np.exp((h + 2 * std) / 2), alpha=0.3, label="± 2 std")
    below.plot(days, np.exp(draws.T / 2), lw=0.3, color="grey")
    below.plot(days, np.exp(h / 2), label="mode")
    below.plot(days, np.exp(truth / 2), ":", color="black", label="truth")
    below.set(xlabel="day", ylabel="volatility")
    below.legend(loc="upper left")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--out", default="stochastic_volatility.png")
    args = parser.parse_args()

    truth, returns = simulate(args.days)
    start = jnp.zeros(args.days)
    found = gnewt.laplace(neg_log_joint, start, (returns,), has_aux=True, keep=True)
    h = np.asarray(neg_log_joint(found.mode, returns)[1]["h"])
    std = np.sqrt(found.output_variances()["h"])
    shocks = found.sample(jax.random.key(0), (5,))
    draws = np.asarray(jax.vmap(lambda z: neg_log_joint(z, returns)[1]["h"])(shocks))

    print(f"{found.result.message} ({found.result.num_steps} steps)")
    inside = np.mean(np.abs(truth - h) < 2 * std)
    print(
        f"log evidence {float(found.log_evidence):.2f}; the truth is within two standard deviations on {inside:.0%} of days"
    )
    print(found.factor.certificate)
    draw(args.out, truth, returns, h, std, draws)


if __name__ == "__main__":
    main()
