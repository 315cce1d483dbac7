"""Solve a whole batch at once: a pendulum with a weak motor, from every start of a grid, in one compiled program.

`jax.vmap` over `gnewt.minimize` with limits: each lane stops on its own and says how it ended.
Run: python examples/batches.py [--side 12] [--out batches.png]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

HORIZON, DT, LIMIT = 40, 0.1, 0.6


def rollout(us, start):
    def stage(x, u):
        x = x + DT * jnp.stack([x[1], u - jnp.sin(x[0]) - 0.1 * x[1]])
        return x, x

    return jax.lax.scan(stage, start, us)[1]


def cost(us, start):
    """Come to rest, hanging or upright, with little effort."""
    states = rollout(us, start)
    return 0.1 * jnp.sum(us**2) + jnp.sum(1 - jnp.cos(states[:, 0])) * DT + 10 * jnp.sum(states[-1, 1] ** 2)


@jax.jit
@jax.vmap
def solve(start):
    res = gnewt.minimize(cost, jnp.zeros(HORIZON), (start,), bounds=(-LIMIT, LIMIT), max_steps=100)
    return res.x, res.fun, res.success, res.num_steps


def draw(path, angles, rates, values, starts, us):
    side = len(angles)
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    image = left.pcolormesh(angles, rates, values.reshape(side, side).T, cmap="viridis")
    left.set(xlabel="angle at the start (rad)", ylabel="rate (rad/s)", title="least cost")
    fig.colorbar(image)
    states = np.asarray(jax.vmap(rollout)(us, starts))
    for k in range(0, len(starts), max(1, len(starts) // 40)):
        way = np.concatenate([starts[k : k + 1], states[k]])
        right.plot(way[:, 0], way[:, 1], lw=0.8, color="C0", alpha=0.6)
    right.set(xlabel="angle (rad)", title="some of the ways")
    fig.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=12)
    parser.add_argument("--out", default="batches.png")
    args = parser.parse_args()

    angles, rates = np.linspace(-2, 2, args.side), np.linspace(-1.5, 1.5, args.side)
    starts = np.stack(np.meshgrid(angles, rates, indexing="ij"), -1).reshape(-1, 2)
    jax.block_until_ready(solve(starts))  # compiles
    begin = time.perf_counter()
    us, values, success, steps = jax.block_until_ready(solve(starts))
    seconds = time.perf_counter() - begin
    print(
        f"{int(success.sum())} of {len(starts)} converged, in {int(steps.min())} to {int(steps.max())} steps"
    )
    print(f"{1000 * seconds / len(starts):.2f} ms for each of them")
    draw(args.out, angles, rates, np.asarray(values), starts, us)


if __name__ == "__main__":
    main()
