"""Park a car whose pedals and steering act some steps late.

Delays are a history of the problem: dynamics read `past_u`, and the optimal policy listens to commands that are on their way.
Run: python examples/parking.py [--horizon 80] [--delay 4] [--out parking.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt
from gnewt import control

jax.config.update("jax_enable_x64", True)

SECONDS, WHEELBASE = 8.0, 2.5
START = jnp.array(
    [6.0, 2.5, 0.0, 0.0]
)  # x, y, heading, speed: beside the car in front; the gap is at the origin


def dynamics(x, u, dt, past_u):
    """Kinematic car: position, heading, speed. What acts now is the oldest command that is still on its way."""
    acceleration, steering = past_u[0]
    heading = x[2] + dt * x[3] / WHEELBASE * jnp.tan(steering)
    middle = (x[2] + heading) / 2
    step = dt * (x[3] + dt / 2 * acceleration)
    return jnp.stack(
        [x[0] + step * jnp.cos(middle), x[1] + step * jnp.sin(middle), heading, x[3] + dt * acceleration]
    )


def stage_cost(x, u, dt):
    """Effort, a wall at |steering| = 0.6, and a wish to be home."""
    wall = jax.nn.softplus(20 * (u[1] - 0.6)) + jax.nn.softplus(20 * (-u[1] - 0.6))
    return dt * (0.1 * u[0] ** 2 + 0.5 * u[1] ** 2 + wall + 0.01 * (x[0] ** 2 + x[1] ** 2))


def final_cost(x):
    return 100 * jnp.sum(x**2)


def draw(path, xs, us, delay):
    times = np.linspace(0, SECONDS, len(xs))
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for t in np.linspace(0, len(xs) - 1, 16).astype(int):
        heading = xs[t, 2]
        corners = np.array([[-1, -0.9], [3.5, -0.9], [3.5, 0.9], [-1, 0.9], [-1, -0.9]])
        turned = corners @ np.array([[np.cos(heading), np.sin(heading)], [-np.sin(heading), np.cos(heading)]])
        left.plot(*(turned + xs[t, :2]).T, color="C0", alpha=0.1 + 0.9 * t / len(xs))
    left.plot(xs[:, 0], xs[:, 1], color="C1")
    left.set(aspect="equal", xlabel="x (m)", ylabel="y (m)", title="faint to dark")
    right.step(times[:-1], us, where="post", label=["acceleration (m/s²)", "steering (rad)"])
    right.plot(times, xs[:, 3], label="speed (m/s)")
    right.set(xlabel="time (s)", title=f"commands act {delay} steps late")
    right.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=80)
    parser.add_argument("--delay", type=int, default=4)
    parser.add_argument("--out", default="parking.png")
    args = parser.parse_args()

    problem = control.Problem(
        dynamics,
        stage_cost,
        final_cost,
        START,
        args.horizon,
        final_time=SECONDS,
        history=(None, jnp.zeros((args.delay, 2))),
    )
    # Backwards, to the right and then to the left: at rest steering does nothing, so rest is no place to start from.
    first = np.where(np.arange(args.horizon)[:, None] < args.horizon / 2, [-0.4, -0.1], [0.4, 0.1])
    solution = control.solve(problem, first, "nonlinear-newton", max_steps=500)

    xs, us = np.asarray(solution.xs), np.asarray(solution.us)
    print(f"{'time':>5} {'x':>8} {'y':>8} {'heading':>8} {'speed':>8} {'pedal':>8} {'steering':>8}")
    for t in np.linspace(0, args.horizon - 1, 9).astype(int):
        print(f"{t * SECONDS / args.horizon:5.2f} " + " ".join(f"{v:8.3f}" for v in (*xs[t], *us[t])))
    print(f"{SECONDS:5.2f} " + " ".join(f"{v:8.3f}" for v in xs[-1]))
    print(
        f"{solution.message} ({solution.num_steps} steps, cost {solution.fun:.5f}, |g| = {solution.grad_norm:.1e})"
    )
    print(f"a delay of {args.delay}: width {gnewt.explain(problem, problem.decision(first)).width}")
    draw(args.out, xs, us, args.delay)


if __name__ == "__main__":
    main()
