"""Swing up an acrobot: two links, and a motor at the elbow only.

Far from a solution iLQR is the more robust method, close to it Newton's is the faster one: so both, one after the other.

Run: python examples/acrobot.py [--horizon 150] [--out acrobot.png]
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

SECONDS = 4.0
DAMPING = 0.2
GRAVITY, REACH, INERTIA = (
    9.81,
    0.5,
    1.0 / 12,
)  # links of 1 kg and 1 m; the middle of a link is its centre of mass


def flow(x, u):
    """ẋ of (shoulder, elbow, their rates); both angles are 0 hanging, the elbow's is relative to the upper link."""
    q1, q2, w1, w2 = x
    cos, sin = jnp.cos(q2), jnp.sin(q2)
    m22 = INERTIA + REACH**2
    m12 = m22 + REACH * cos
    m11 = 2 * INERTIA + 1 + 2 * REACH**2 + 2 * REACH * cos
    lower = GRAVITY * REACH * jnp.sin(q1 + q2)
    b1 = REACH * sin * (2 * w1 * w2 + w2**2) - GRAVITY * (REACH + 1) * jnp.sin(q1) - lower
    b2 = u[0] - REACH * sin * w1**2 - lower
    determinant = m11 * m22 - m12**2
    turn = jnp.stack([m22 * b1 - m12 * b2, m11 * b2 - m12 * b1]) / determinant
    return jnp.concatenate([x[2:], turn - DAMPING * x[2:]])


def dynamics(x, u, dt):
    """One Runge–Kutta step of fourth order."""
    k1 = flow(x, u)
    k2 = flow(x + dt / 2 * k1, u)
    k3 = flow(x + dt / 2 * k2, u)
    k4 = flow(x + dt * k3, u)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def stage_cost(x, u, dt):
    return 0.1 * dt * u[0] ** 2


def final_cost(x):
    return 50 * ((x[0] - jnp.pi) ** 2 + x[1] ** 2) + 5 * (x[2] ** 2 + x[3] ** 2)


def draw(path, states, torques):
    times = np.linspace(0, SECONDS, len(states))
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for t in np.linspace(0, len(states) - 1, 40).astype(int):
        q1, q2 = states[t, 0], states[t, 0] + states[t, 1]
        elbow = np.array([np.sin(q1), -np.cos(q1)])
        tip = elbow + np.array([np.sin(q2), -np.cos(q2)])
        left.plot(
            *np.array([[0, 0], elbow, tip]).T,
            "o-",
            ms=3,
            color="C0",
            alpha=0.1 + 0.9 * (t / len(states)) ** 2,
        )
    left.set(aspect="equal", title="swing-up, faint to dark")
    right.plot(times, states[:, :2], label=["shoulder (rad)", "elbow (rad)"])
    right.step(times[:-1], torques, where="post", label="torque (Nm)")
    right.set(xlabel="time (s)")
    right.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=150)
    parser.add_argument("--out", default="acrobot.png")
    args = parser.parse_args()

    problem = control.Problem(
        dynamics, stage_cost, final_cost, jnp.zeros(4), args.horizon, final_time=SECONDS
    )
    times = np.linspace(0, SECONDS, args.horizon, endpoint=False)
    us = np.sin(3 * times)[:, None]
    print(f"{'method':>17} {'step':>5} {'cost':>12} {'|gradient|':>11} {'shift':>9}")
    for method, steps in (("ilqr", 60), ("nonlinear-newton", 500)):
        solution = control.solve(problem, us, method, max_steps=steps)
        us = solution.us
        for k in range(0, solution.num_steps, max(1, solution.num_steps // 8)):
            row = solution.history[k]
            print(f"{method:>17} {k:5d} {row.value:12.5f} {row.grad_norm:11.1e} {row.shift:9.1e}")
        print(f"{method:>17} {solution.num_steps:5d} {solution.fun:12.5f} {solution.grad_norm:11.1e}")
    shoulder, elbow = np.asarray(solution.xs[-1, :2])
    print(
        f"{solution.message}; it ends at shoulder {shoulder:.4f}, elbow {elbow:.4f} rad (upright: {np.pi:.4f}, 0)"
    )
    draw(args.out, np.asarray(solution.xs), np.asarray(solution.us)[:, 0])


if __name__ == "__main__":
    main()
