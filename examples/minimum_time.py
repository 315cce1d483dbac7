"""Move a crane's load in minimum time: the final time is a decision variable.

All stages have the length final_time / horizon; the force is bounded by a tanh. Run: python examples/minimum_time.py [--horizon 80]
[--out minimum_time.png]
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

TROLLEY, LOAD, ROPE, GRAVITY = 2.0, 1.0, 1.0, 9.81
STRONGEST, DISTANCE = 10.0, 3.0
GOAL = jnp.array([DISTANCE, 0.0, 0.0, 0.0])


def force(u):
    return STRONGEST * jnp.tanh(u[0])


def dynamics(x, u, dt):
    """One Runge–Kutta step of (position, swing of the rope, their rates)."""

    def flow(x):
        sin, cos = jnp.sin(x[1]), jnp.cos(x[1])
        push = force(u) + LOAD * sin * (ROPE * x[3] ** 2 + GRAVITY * cos)
        speed_up = push / (TROLLEY + LOAD * sin**2)
        return jnp.stack([x[2], x[3], speed_up, -(speed_up * cos + GRAVITY * sin) / ROPE])

    k1 = flow(x)
    k2 = flow(x + dt / 2 * k1)
    k3 = flow(x + dt / 2 * k2)
    k4 = flow(x + dt * k3)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def stage_cost(x, u):
    return 1e-3 * u[0] ** 2


def final_cost(x, t):
    """The time it takes, and to be there at rest."""
    return t + 500 * jnp.sum((x - GOAL) ** 2)


def draw(path, times, xs, us):
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    top.plot(times, xs[:, 0], label="trolley (m)")
    top.plot(times, xs[:, 0] + ROPE * np.sin(xs[:, 1]), label="load (m)")
    top.plot(times, xs[:, 1], label="swing (rad)")
    top.legend()
    bottom.step(times[:-1], us, where="post", color="C3")
    bottom.set(xlabel="time (s)", ylabel="force (N)")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=80)
    parser.add_argument("--out", default="minimum_time.png")
    args = parser.parse_args()

    problem = control.Problem(
        dynamics,
        stage_cost,
        final_cost,
        jnp.zeros(4),
        args.horizon,
        final_time=3.0,
        optimize="final_time",
    )
    first = 0.3 * np.cos(np.pi * np.linspace(0, 1, args.horizon))[:, None]  # speed up, then brake
    solution = control.solve(problem, first, "newton", max_steps=500)

    xs, us = np.asarray(solution.xs), np.asarray(jax.vmap(force)(solution.us))
    times = np.linspace(0, float(solution.final_time), args.horizon + 1)
    print(f"{'time':>6} {'trolley':>8} {'swing':>8} {'speed':>8} {'force':>8}")
    for t in np.linspace(0, args.horizon - 1, 9).astype(int):
        print(f"{times[t]:6.3f} {xs[t, 0]:8.4f} {xs[t, 1]:8.4f} {xs[t, 2]:8.4f} {us[t]:8.3f}")
    print(f"{times[-1]:6.3f} {xs[-1, 0]:8.4f} {xs[-1, 1]:8.4f} {xs[-1, 2]:8.4f}")
    print(f"{solution.message} ({solution.num_steps} steps, |g| = {solution.grad_norm:.1e})")
    rigid = 2 * (DISTANCE * (TROLLEY + LOAD) / STRONGEST) ** 0.5
    print(f"minimum time {times[-1]:.4f} s; a load that cannot swing would take {rigid:.4f} s")
    draw(args.out, times, xs, us)


if __name__ == "__main__":
    main()
