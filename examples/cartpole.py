"""Swing up a cartpole, with the four methods of the DDP family.

Run: python examples/cartpole.py [--horizon 200] [--out cartpole.png]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gnewt import control

jax.config.update("jax_enable_x64", True)

SECONDS = 4.0
CART, POLE, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81
GOAL = jnp.array([0.0, jnp.pi, 0.0, 0.0])


def flow(x, u):
    """ẋ of (position, angle, velocity, rate); the angle is 0 hanging, π upright."""
    _, angle, velocity, rate = x
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    mass = CART + POLE * sin**2
    push = u[0] + POLE * sin * (LENGTH * rate**2 + GRAVITY * cos)
    swing = -u[0] * cos - POLE * LENGTH * rate**2 * cos * sin - (CART + POLE) * GRAVITY * sin
    return jnp.stack([velocity, rate, push / mass, swing / (LENGTH * mass)])


def dynamics(x, u, dt):
    """One step of the explicit midpoint rule."""
    return x + dt * flow(x + dt / 2 * flow(x, u), u)


def stage_cost(x, u, dt):
    return dt * (0.1 * x[0] ** 2 + 0.1 * u[0] ** 2)


def final_cost(x):
    return jnp.sum(jnp.array([10.0, 30.0, 1.0, 1.0]) * (x - GOAL) ** 2)


def draw(path, states, forces):
    times = np.linspace(0, SECONDS, len(states))
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 7), layout="constrained")
    for t in np.linspace(0, len(states) - 1, 30).astype(int):
        x, angle = states[t, :2]
        tip = x + LENGTH * np.sin(angle), -LENGTH * np.cos(angle)
        top.plot([x, tip[0]], [0, tip[1]], color="C0", alpha=0.15 + 0.85 * t / len(states))
    top.set(aspect="equal", xlabel="position (m)", title="swing-up, faint to dark")
    bottom.plot(times, states[:, 1], label="angle (rad)")
    bottom.plot(times, states[:, 0], label="position (m)")
    bottom.step(times[:-1], forces / 10, where="post", label="force (10 N)")
    bottom.axhline(np.pi, color="grey", lw=0.8, ls=":")
    bottom.set(xlabel="time (s)")
    bottom.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=200)
    parser.add_argument("--out", default="cartpole.png")
    args = parser.parse_args()

    problem = control.Problem(
        dynamics, stage_cost, final_cost, jnp.zeros(4), args.horizon, final_time=SECONDS
    )
    # Rock the cart at the frequency at which the pole swings.
    times = np.linspace(0, SECONDS, args.horizon, endpoint=False)
    first = 5 * np.sin((GRAVITY / LENGTH) ** 0.5 * times)[:, None]

    print(f"{'method':>18} {'steps':>6} {'cost':>10} {'|gradient|':>11} {'ms':>7}")
    solutions = []
    for method in control.METHODS:
        control.solve(problem, first, method)  # compiles
        begin = time.perf_counter()
        solution = control.solve(problem, first, method)
        ms = 1e3 * (time.perf_counter() - begin)
        solutions.append(solution)
        print(
            f"{method:>18} {solution.num_steps:6d} {solution.fun:10.6f} {solution.grad_norm:11.1e} {ms:7.0f}  {solution.status}"
        )
    best = min(solutions, key=lambda s: s.fun)
    print(f"{best.method}: {best.message}; the pole ends at {float(best.xs[-1, 1]):.4f} rad")
    draw(args.out, np.asarray(best.xs), np.asarray(best.us)[:, 0])


if __name__ == "__main__":
    main()
