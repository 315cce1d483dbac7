"""Swing a pole up with a weak motor on a short track: limits of force and position, and an exact end.

The states are lifted: they start on a straight line between the two poses, and the dynamics close on the way.
Run: python examples/cartpole_limits.py [--horizon 100] [--out cartpole_limits.png]
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

CART, POLE, LENGTH, GRAVITY, SECONDS = 1.0, 0.2, 0.5, 9.81, 3.0
FORCE, TRACK = 8.0, 0.8
GOAL = jnp.array([0.0, np.pi, 0.0, 0.0])


def rate(x, u):
    """Position, angle (0 hangs), and their velocities."""
    sin, cos = jnp.sin(x[1]), jnp.cos(x[1])
    mass = CART + POLE * sin**2
    push = (u + POLE * sin * (LENGTH * x[3] ** 2 + GRAVITY * cos)) / mass
    turn = (-u * cos - POLE * LENGTH * x[3] ** 2 * cos * sin - (CART + POLE) * GRAVITY * sin) / (
        LENGTH * mass
    )
    return jnp.stack([x[2], x[3], push, turn])


def step(x, u, dt):
    """Runge and Kutta's fourth-order step."""
    a = rate(x, u)
    b = rate(x + dt / 2 * a, u)
    c = rate(x + dt / 2 * b, u)
    d = rate(x + dt * c, u)
    return x + dt / 6 * (a + 2 * b + 2 * c + d)


def swing(us):
    """The cost of a plan, and what is constrained."""
    dt = SECONDS / len(us)

    def stage(x, u):
        after = step(x, u, dt)
        return after, (after, dt * (0.05 * u**2 + 0.1 * (1 + jnp.cos(x[1])) + 0.01 * x[3] ** 2))

    end, (states, costs) = jax.lax.scan(stage, jnp.zeros(4), us)
    return jnp.sum(costs), {"states": states, "cart": states[:, 0], "end": end - GOAL}


def draw(path, states, us):
    times = np.linspace(0, SECONDS, len(us) + 1)
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for t in np.linspace(0, len(us) - 1, 25).astype(int):
        x, angle = states[t, :2]
        shade = 0.15 + 0.85 * t / len(us)
        left.plot([x, x + LENGTH * np.sin(angle)], [0, -LENGTH * np.cos(angle)], color="C0", alpha=shade)
    for wall in (-TRACK, TRACK):
        left.axvline(wall, color="k", linewidth=3)
    left.set(aspect="equal", xlabel="x (m)", title="faint to dark")
    right.step(times[:-1], us, where="post", label="force (N)")
    right.plot(times[1:], states[:, 0] * 10, label="position (dm)")
    right.axhline(FORCE, color="k", linestyle=":")
    right.axhline(-FORCE, color="k", linestyle=":")
    right.set(xlabel="time (s)")
    right.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--out", default="cartpole_limits.png")
    args = parser.parse_args()

    res = gnewt.minimize(
        swing,
        jnp.zeros(args.horizon),
        has_aux=True,
        bounds=(-FORCE, FORCE),
        constraints={"cart": (-TRACK, TRACK), "end": (0.0, 0.0)},
        lifted={"states": jnp.linspace(0, 1, args.horizon + 1)[1:, None] * GOAL},
    )
    print(res)
    us, states = np.asarray(res.x), np.asarray(res.outputs["states"])
    print(
        f"largest force {np.abs(us).max():.6f} N of {FORCE}, farthest {np.abs(states[:, 0]).max():.6f} m of {TRACK}"
    )
    print(f"the force is at its limit in {np.sum(np.abs(us) > FORCE - 1e-6)} of {args.horizon} steps")
    draw(args.out, states, us)


if __name__ == "__main__":
    main()
