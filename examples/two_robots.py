"""Two robots change places without touching each other, with limited force.

Each is a chain of its own; the distance that they keep couples the two at every stage.
Run: python examples/two_robots.py [--horizon 40] [--out two_robots.png]
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

DT, FORCE, APART = 0.1, 2.0, 1.0
STARTS = jnp.array([[-2.0, 0.1, 0.0, 0.0], [2.0, -0.1, 0.0, 0.0]])
GOALS = jnp.array([[2.0, 0.0, 0.0, 0.0], [-2.0, 0.0, 0.0, 0.0]])


def walk(start, us):
    """A point with drag that grows with its speed: position and velocity."""

    def stage(x, u):
        drag = 0.3 * x[2:] * jnp.sqrt(0.01 + jnp.sum(x[2:] ** 2))
        after = jnp.concatenate([x[:2] + DT * x[2:] + DT**2 / 2 * (u - drag), x[2:] + DT * (u - drag)])
        return after, after

    return jax.lax.scan(stage, start, us)[1]


def both(us):
    return [walk(STARTS[i], us[:, i]) for i in range(2)]


def effort(us):
    return DT * jnp.sum(us**2)


def ends(us):
    return [states[-1] - goal for states, goal in zip(both(us), GOALS, strict=True)]


def apart(us):
    first, second = both(us)
    return jnp.sum((first[:, :2] - second[:, :2]) ** 2, -1)


def draw(path, walks, distances):
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for i, states in enumerate(walks):
        left.plot(states[:, 0], states[:, 1], f"C{i}")
        for t in range(0, len(states), 4):
            shade = 0.1 + 0.6 * t / len(states)
            left.add_patch(plt.Circle(states[t, :2], APART / 2, color=f"C{i}", alpha=shade, fill=False))
    left.set(aspect="equal", xlabel="x (m)", ylabel="y (m)")
    right.plot(DT * np.arange(1, len(distances) + 1), np.sqrt(distances))
    right.axhline(APART, color="k", linestyle=":")
    right.set(xlabel="time (s)", ylabel="distance (m)")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=40)
    parser.add_argument("--out", default="two_robots.png")
    args = parser.parse_args()

    # A start on which both would meet head on is a saddle: each swerves to its own side.
    # Each function walks by itself; gnewt finds that it is the same walk, and the graph has it once.
    res = gnewt.minimize(
        effort,
        0.3
        * jnp.array([[0.5, 1.0], [-0.5, -1.0]])
        * jnp.cos(jnp.linspace(0, jnp.pi, args.horizon))[:, None, None],
        bounds=(-FORCE, FORCE),
        constraints={"ends": gnewt.equal(ends), "apart": gnewt.between(apart, APART**2)},
    )
    print(res)
    distances = np.asarray(apart(res.x))
    print(f"nearest: {np.sqrt(distances.min()):.6f} m, allowed {APART}")
    draw(args.out, [np.asarray(w) for w in both(res.x)], distances)


if __name__ == "__main__":
    main()
