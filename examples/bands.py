"""Where does an optimal trajectory matter? Bands around it: how far states may stray at little cost.

exp(-cost/τ) is a density over plans. Near the optimum it is normal with covariance τ·H⁻¹: the variances of the states along
the way are numbers of the factor, and so are draws. Where the band is narrow the cost insists, where it is wide it does not.
Run: python examples/bands.py [--horizon 80] [--out bands.png]
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

DT, TEMPERATURE = 0.05, 0.02
GATES = jnp.array([[2.0, 1.0], [4.0, -1.0], [6.0, 0.0]])


def flight(us):
    """A drone that steers and throttles past three gates; its cost and its places."""
    count = len(us)
    at = jnp.array([count // 3, 2 * count // 3, count - 1])

    def stage(x, u):
        speed = x[2:] + DT * (u - 0.1 * x[2:] * jnp.sqrt(1 + jnp.sum(x[2:] ** 2)))
        x = jnp.concatenate([x[:2] + DT * speed, speed])
        return x, x[:2]

    _, places = jax.lax.scan(stage, jnp.zeros(4), us)
    return 0.5 * DT * jnp.sum(us**2) + 50 * jnp.sum((places[at] - GATES) ** 2), {"places": places}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=80)
    parser.add_argument("--out", default="bands.png")
    args = parser.parse_args()

    found = gnewt.minimize(flight, jnp.zeros((args.horizon, 2)), has_aux=True)
    print(f"{found.message} ({found.num_steps} steps)")
    factor, aux = gnewt.factorize(flight, has_aux=True, keep=True)(found.x)
    places = np.asarray(aux["places"])
    std = np.sqrt(TEMPERATURE * np.asarray(factor.output_variances()["places"]))
    draws = jnp.sqrt(TEMPERATURE) * factor.sample(jax.random.key(0), (30,))
    strays = np.asarray(jax.vmap(lambda d: flight(found.x + d)[1]["places"])(draws))
    narrow, wide = std.max(1).argmin(), std.max(1).argmax()
    print(
        f"narrowest at stage {narrow} (± {std[narrow].max():.3f}), widest at stage {wide} (± {std[wide].max():.3f})"
    )

    times = DT * np.arange(1, args.horizon + 1)
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    left.plot(*strays.transpose(2, 1, 0), lw=0.4, color="grey")
    left.plot(*places.T, color="C0")
    left.plot(*GATES.T, "o", color="C3", label="gates")
    left.set(xlabel="x (m)", ylabel="y (m)")
    left.legend()
    for i, name in enumerate("xy"):
        right.fill_between(times, places[:, i] - 2 * std[:, i], places[:, i] + 2 * std[:, i], alpha=0.3)
        right.plot(times, places[:, i], label=name)
    right.set(xlabel="time (s)", ylabel="place ± 2 std (m)")
    right.legend()
    fig.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
