"""Fly a planar quadrotor between two pillars, with thrusts that have limits.

The obstacles are constraints: every stage keeps its distance exactly, and multipliers say what each one costs.
Run: python examples/obstacles.py [--horizon 60] [--out obstacles.png]
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

MASS, INERTIA, ARM, GRAVITY, DT = 0.5, 0.01, 0.2, 9.81, 0.05
HOVER = MASS * GRAVITY / 2
GOAL = jnp.array([4.0, 0.0, 0.0, 0.0, 0.0, 0.0])
CENTRES, RADIUS = jnp.array([[1.2, 0.15], [2.8, -0.2]]), 0.5


def rate(x, u):
    """Position, tilt, and their velocities; u are the two thrusts."""
    lift = (u[0] + u[1]) / MASS
    return jnp.stack(
        [
            x[3],
            x[4],
            x[5],
            -lift * jnp.sin(x[2]),
            lift * jnp.cos(x[2]) - GRAVITY,
            ARM / INERTIA * (u[0] - u[1]),
        ]
    )


def flight(us):
    """The cost of a plan, and what is constrained. The midpoint rule."""

    def stage(x, u):
        after = x + DT * rate(x + DT / 2 * rate(x, u), u)
        return after, (after, DT * (0.1 * jnp.sum((u - HOVER) ** 2) + 0.1 * jnp.sum((x - GOAL) ** 2)))

    end, (states, costs) = jax.lax.scan(stage, jnp.zeros(6), us)
    distances = jnp.sum((states[:, None, :2] - CENTRES) ** 2, -1)
    return jnp.sum(costs), {"states": states, "distances": distances, "end": end - GOAL}


def draw(path, states, us, prices):
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for centre in np.asarray(CENTRES):
        left.add_patch(plt.Circle(centre, RADIUS, color="0.8"))
    left.plot(states[:, 0], states[:, 1], color="C1")
    for x, y, tilt in states[::4, :3]:
        across = ARM * np.array([np.cos(tilt), np.sin(tilt)])
        left.plot([x - across[0], x + across[0]], [y - across[1], y + across[1]], color="C0")
    left.set(aspect="equal", xlabel="x (m)", ylabel="z (m)")
    right.step(DT * np.arange(len(us)), us, where="post", label=["left thrust (N)", "right thrust (N)"])
    right.plot(DT * np.arange(1, len(us) + 1), -prices, label=["price of pillar 1", "price of pillar 2"])
    right.set(xlabel="time (s)")
    right.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=60)
    parser.add_argument("--out", default="obstacles.png")
    args = parser.parse_args()

    res = gnewt.minimize(
        flight,
        jnp.full((args.horizon, 2), HOVER),
        has_aux=True,
        bounds=(0.0, 4 * HOVER),
        constraints={"distances": (RADIUS**2, None), "end": (0.0, 0.0)},
        lifted={"states": jnp.linspace(0, 1, args.horizon + 1)[1:, None] * GOAL},
    )
    print(res)
    states = np.asarray(res.outputs["states"])
    nearest = np.linalg.norm(states[:, None, :2] - np.asarray(CENTRES), axis=-1).min(0)
    print(f"nearest to the pillars: {nearest[0]:.6f} and {nearest[1]:.6f} m, allowed {RADIUS}")
    draw(args.out, states, np.asarray(res.x), np.asarray(res.multipliers["distances"]))


if __name__ == "__main__":
    main()
