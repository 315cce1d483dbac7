"""Fly a quadrotor of 12 states past obstacles, which are costs.

Run: python examples/quadrotor.py [--horizon 100] [--out quadrotor.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gnewt import control

jax.config.update("jax_enable_x64", True)

SECONDS = 3.0
MASS, ARM, DRAG, GRAVITY = 0.5, 0.17, 0.02, 9.81
INERTIA = jnp.array([3e-3, 3e-3, 5e-3])
HOVER = MASS * GRAVITY / 4
GOAL = jnp.array([4.0, 0.0, 1.0])
OBSTACLES = np.array([[1.2, 0.15, 0.6], [2.6, -0.2, 0.7]])  # x, y, radius of vertical pillars


def flow(x, u):
    """ẋ of position, velocity, roll-pitch-yaw and body rates; u are the thrusts of four rotors."""
    velocity, angles, rates = x[3:6], x[6:9], x[9:12]
    (sr, sp, sy), (cr, cp, cy) = jnp.sin(angles), jnp.cos(angles)
    up = jnp.stack([cr * sp * cy + sr * sy, cr * sp * sy - sr * cy, cr * cp])
    turn = sr * rates[1] + cr * rates[2]
    torque = jnp.stack([ARM * (u[1] - u[3]), ARM * (u[2] - u[0]), DRAG * (u[0] - u[1] + u[2] - u[3])])
    return jnp.concatenate(
        [
            velocity,
            up * jnp.sum(u) / MASS - jnp.array([0.0, 0.0, GRAVITY]),
            jnp.stack([rates[0] + sp / cp * turn, cr * rates[1] - sr * rates[2], turn / cp]),
            (torque - jnp.cross(rates, INERTIA * rates)) / INERTIA,
        ]
    )


def dynamics(x, u, dt):
    """One step of the explicit midpoint rule."""
    return x + dt * flow(x + dt / 2 * flow(x, u), u)


def stage_cost(x, u, dt):
    near = [jnp.exp(4 * (radius**2 - (x[0] - px) ** 2 - (x[1] - py) ** 2)) for px, py, radius in OBSTACLES]
    calm = 0.1 * jnp.sum(x[3:6] ** 2) + 0.2 * jnp.sum(x[6:9] ** 2) + 0.05 * jnp.sum(x[9:] ** 2)
    return dt * (5 * sum(near) + calm + 0.2 * jnp.sum((u - HOVER) ** 2))


def final_cost(x):
    return 50 * jnp.sum((x[:3] - GOAL) ** 2) + 5 * jnp.sum(x[3:] ** 2)


def clearance(xs):
    """Least distance to each pillar, in metres."""
    return [float(np.hypot(xs[:, 0] - px, xs[:, 1] - py).min() - radius) for px, py, radius in OBSTACLES]


def draw(path, xs, us):
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for px, py, radius in OBSTACLES:
        left.add_patch(plt.Circle((px, py), radius, color="C3", alpha=0.4))
    left.plot(xs[:, 0], xs[:, 1], "o-", ms=2)
    left.plot(*GOAL[:2], "*", ms=14, color="C2")
    left.set(aspect="equal", xlabel="x (m)", ylabel="y (m)", title="from above")
    right.step(np.linspace(0, SECONDS, len(us), endpoint=False), us, where="post")
    right.set(xlabel="time (s)", title="thrusts of the rotors (N)")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--out", default="quadrotor.png")
    args = parser.parse_args()

    problem = control.Problem(
        dynamics, stage_cost, final_cost, jnp.zeros(12).at[2].set(1.0), args.horizon, final_time=SECONDS
    )
    first = np.full((args.horizon, 4), HOVER)
    solution = control.solve(problem, first, "ilqr", max_steps=500)

    xs = np.asarray(solution.xs)
    print(f"{'time':>5} {'x':>7} {'y':>7} {'z':>7} {'roll':>7} {'pitch':>7} {'speed':>7}")
    for t in np.linspace(0, args.horizon, 9).astype(int):
        row = (*xs[t, :3], *xs[t, 6:8], np.linalg.norm(xs[t, 3:6]))
        print(f"{t * SECONDS / args.horizon:5.2f} " + " ".join(f"{v:7.3f}" for v in row))
    print(
        f"{solution.message} ({solution.num_steps} steps, cost {solution.fun:.5f}, |g| = {solution.grad_norm:.1e})"
    )
    print("clearance of the pillars: " + ", ".join(f"{c:.3f} m" for c in clearance(xs)))
    draw(args.out, xs, np.asarray(solution.us))


if __name__ == "__main__":
    main()
