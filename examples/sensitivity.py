"""What would a heavier pole, or a stronger motor, change? Derivatives of an optimal trajectory under force limits.

The plan is solved once; its derivatives by the mass of the pole and by the limit come from the last KKT matrix. They predict
the plan for other numbers, which is then solved to compare. While the force is at its limit only the limit moves it.
Run: python examples/sensitivity.py [--horizon 60] [--out sensitivity.png]
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

DT, START = 0.05, jnp.array([0.5, 0.2, 0.0, 0.0])
NUMBERS, CHANGES = {"mass": 0.3, "limit": 5.0}, {"mass": 0.05, "limit": 0.5}


def dynamics(x, u, params):
    """Cart and pole (angle 0 is upright)."""
    sin, cos = jnp.sin(x[1]), jnp.cos(x[1])
    mass = 1.0 + params * sin**2
    push = (u[0] + params * sin * (0.5 * x[3] ** 2 - 9.81 * cos)) / mass
    turn = (-u[0] * cos - 0.5 * params * x[3] ** 2 * cos * sin + (1.0 + params) * 9.81 * sin) / (0.5 * mass)
    speed = x[2:] + DT * jnp.stack([push, turn])
    return jnp.concatenate([x[:2] + DT * speed, speed])


def stage_cost(x, u):
    return DT * (0.02 * u[0] ** 2 + jnp.sum(x**2 * jnp.array([1.0, 5.0, 0.1, 0.1])))


def final_cost(x):
    return jnp.sum(x**2)


def plan(numbers, horizon):
    """The best forces, as a function of mass and limit."""
    problem = control.Problem(
        dynamics,
        stage_cost,
        final_cost,
        START,
        horizon,
        params=numbers["mass"],
        control_limits=(-numbers["limit"], numbers["limit"]),
    )
    return control.solve(problem, jnp.zeros((horizon, 1)), "newton")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=60)
    parser.add_argument("--out", default="sensitivity.png")
    args = parser.parse_args()

    numbers = {name: jnp.asarray(v) for name, v in NUMBERS.items()}
    solution = plan(numbers, args.horizon)
    us = np.asarray(solution.us)[:, 0]
    print(solution.message)
    print(f"at its limit in {np.mean(np.abs(us) > NUMBERS['limit'] - 1e-6):.0%} of the stages")
    slopes = jax.jacfwd(lambda p: plan(p, args.horizon).us[:, 0])(numbers)

    times = DT * np.arange(args.horizon)
    fig, axes = plt.subplots(1, 2, figsize=(12, 4), sharey=True, layout="constrained")
    for ax, (name, change) in zip(axes, CHANGES.items(), strict=True):
        predicted = us + change * np.asarray(slopes[name])
        solved = np.asarray(plan(numbers | {name: numbers[name] + change}, args.horizon).us)[:, 0]
        moved, missed = np.abs(solved - us).max(), np.abs(solved - predicted).max()
        print(
            f"{name:>6} {NUMBERS[name]:g} → {NUMBERS[name] + change:g}: forces move by {moved:.3f}, the prediction misses {missed:.4f}"
        )
        ax.plot(times, us, color="grey", label=f"{name} {NUMBERS[name]:g}")
        ax.plot(times, solved, label=f"{name} {NUMBERS[name] + change:g}, solved")
        ax.plot(times, predicted, "--", label="predicted")
        ax.set(xlabel="time (s)", ylabel="force (N)")
        ax.legend()
    fig.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
