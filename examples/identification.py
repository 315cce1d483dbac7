"""Identify a pendulum from noisy angles: parameters that all stages share, with standard errors.

The "controls" are small unknown disturbances, so that the model need not be exact. The objective is a negative log posterior; its
inverse Hessian is the covariance, of which only the columns of the parameters are computed.
Run: python examples/identification.py [--horizon 200] [--out identification.png]
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

DT, NOISE, DISTURBANCE = 0.04, 0.05, 0.1
TRUTH = {"length": 0.8, "damping": 0.25}
GUESS = {"length": 1.2, "damping": 0.05}
START = jnp.array([1.5, 0.0])


def dynamics(x, u, params):
    """One Runge–Kutta step of angle and rate; u disturbs the acceleration."""

    def flow(x):
        return jnp.stack([x[1], -9.81 / params["length"] * jnp.sin(x[0]) - params["damping"] * x[1] + u[0]])

    k1 = flow(x)
    k2 = flow(x + DT / 2 * k1)
    k3 = flow(x + DT / 2 * k2)
    k4 = flow(x + DT * k3)
    return x + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def stage_cost(x, u, data):
    return 0.5 * ((x[0] - data) / NOISE) ** 2 + 0.5 * (u[0] / DISTURBANCE) ** 2


def final_cost(x):
    return jnp.zeros(())


def measure(horizon, seed):
    """Angles of the true pendulum, disturbed, with noise."""
    rng = np.random.default_rng(seed)
    x, angles = START, []
    step = jax.jit(dynamics)
    for _ in range(horizon):
        angles.append(float(x[0]))
        x = step(x, DISTURBANCE * rng.standard_normal(1), TRUTH)
    return np.array(angles) + NOISE * rng.standard_normal(horizon)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=200)
    parser.add_argument("--out", default="identification.png")
    args = parser.parse_args()

    seen = measure(args.horizon, seed=0)
    problem = control.Problem(
        dynamics, stage_cost, final_cost, START, args.horizon, data=seen, params=GUESS, optimize="params"
    )
    first = np.zeros((args.horizon, 1))
    solution = control.solve(problem, first, "newton")

    print(f"{'parameter':>10} {'guess':>8} {'estimate':>9} {'± error':>8} {'truth':>8}")
    factor, decision = solution.result.factor, solution.result.x
    for name, truth in TRUTH.items():
        unit = jax.tree.map(jnp.zeros_like, decision)
        unit["params"][name] = jnp.ones(())
        variance = factor.solve(unit)["params"][name]
        estimate = float(solution.params[name])
        print(f"{name:>10} {GUESS[name]:8.3f} {estimate:9.4f} {float(variance) ** 0.5:8.4f} {truth:8.3f}")
    print(f"{solution.message} ({solution.num_steps} steps, |g| = {solution.grad_norm:.1e})")

    times = DT * np.arange(args.horizon)
    fig, ax = plt.subplots(figsize=(9, 4), layout="constrained")
    ax.plot(times, seen, ".", ms=3, color="grey", label="measured angle")
    ax.plot(times, np.asarray(problem.rollout(problem.decision(first)))[:-1, 0], ":", label="first guess")
    ax.plot(times, np.asarray(solution.xs)[:-1, 0], label="identified")
    ax.set(xlabel="time (s)", ylabel="angle (rad)")
    ax.legend()
    fig.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
