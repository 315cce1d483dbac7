"""Model-predictive control under limits: a cartpole, T = 50, |u| ≤ 8. `python benchmarks/mpc.py` writes results/mpc.md.

A closed loop of 500 steps with disturbances (noise at every step, a push at every hundredth), with few iterations and with
converged plans, on the same disturbances; and iterations of `control.solve` from the solution next to it.
"""

from __future__ import annotations

import os
import pathlib
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np

from gnewt import control

jax.config.update("jax_enable_x64", True)
HORIZON, STEPS, LIMIT, DT = 50, 500, 8.0, 0.04
UPRIGHT = jnp.array([0.0, jnp.pi, 0.0, 0.0])
ITERATIONS = (1, 2, 3)
CONVERGED = 60
RESULTS = pathlib.Path(__file__).parent / "results" / "mpc.md"


def dynamics(x, u):
    """A cartpole, semi-implicit Euler."""
    s, c = jnp.sin(x[1]), jnp.cos(x[1])
    push = (u[0] + 0.5 * s * (x[3] ** 2 + 9.8 * c)) / (1 + 0.5 * s**2)
    turn = (-u[0] * c - 0.5 * x[3] ** 2 * c * s - 14.7 * s) / (1 + 0.5 * s**2)
    v = x[2:] + DT * jnp.array([push, turn])
    return jnp.concatenate([x[:2] + DT * v, v])


def stage_cost(x, u):
    return 0.01 * jnp.sum(u**2) + 0.01 * jnp.sum((x - UPRIGHT) ** 2)


def final_cost(x):
    return 100 * jnp.sum((x - UPRIGHT) ** 2)


def disturbances():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(STEPS, 4)) * np.array([0.0, 0.0, 0.02, 0.05])
    noise[100::100] += np.array([0.0, 0.0, 0.2, 1.0])
    return noise


def run_loop(problem, iterations):
    """(cost of the loop, largest |u| of any plan, share of steps at a limit, median ms, largest ms of a step)."""
    advance, cost = jax.jit(dynamics), jax.jit(stage_cost)
    x = jnp.array([0.3, jnp.pi, 0.0, 0.0])
    plan = control.mpc_step(problem, x, jnp.zeros((HORIZON, 1)), iterations=CONVERGED)
    control.mpc_step(problem, x, plan, iterations=iterations)  # compiles
    total, largest, saturated, seconds = 0.0, 0.0, 0, []
    for push in disturbances():
        begin = time.perf_counter()
        plan = jax.block_until_ready(control.mpc_step(problem, x, plan, iterations=iterations))
        seconds.append(time.perf_counter() - begin)
        largest = max(largest, float(jnp.abs(plan.plan).max()))
        saturated += float(jnp.abs(plan.u[0])) > 0.99 * LIMIT
        total += float(cost(x, plan.u))
        x = advance(x, plan.u) + push
    return total, largest, saturated / STEPS, 1e3 * np.median(seconds), 1e3 * max(seconds)


def warm_starts(problem, method):
    """Iterations from a solution after x0 moved by up to 0.05, in 20 random directions."""
    rng = np.random.default_rng(1)
    x0 = jnp.array([0.3, jnp.pi - 0.3, 0.0, 0.0])
    best = control.solve(problem.replace(x0=x0), jnp.zeros((HORIZON, 1)), method)
    counts = []
    for _ in range(20):
        way = rng.normal(size=4)
        moved = x0 + 0.05 * rng.uniform() * way / np.linalg.norm(way)
        counts.append(int(control.solve(problem.replace(x0=moved), best, method).num_steps))
    return int(best.num_steps), counts


def main():
    problem = control.Problem(
        dynamics, stage_cost, final_cost, UPRIGHT, HORIZON, control_limits=(-LIMIT, LIMIT)
    )
    reference = run_loop(problem, CONVERGED)
    lines = [
        "# Model-predictive control under limits",
        "",
        f"Cartpole, T = {HORIZON}, |u| ≤ {LIMIT:g}, {STEPS} steps with disturbances; wall time on one core, compilation apart.",
        "",
        "| iterations | cost | beside converged plans | largest input of a plan | steps at a limit | median ms | largest ms | Hz |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for iterations in (*ITERATIONS, CONVERGED):
        cost, largest, share, median, most = (
            reference if iterations == CONVERGED else run_loop(problem, iterations)
        )
        lines.append(
            f"| {iterations} | {cost:.4f} | {100 * (cost / reference[0] - 1):+.2f} % | {largest:.12g} | {100 * share:.0f} % "
            f"| {median:.2f} | {most:.2f} | {1e3 / median:.0f} |"
        )
    lines += [
        "",
        "Iterations of `control.solve` from the solution next to it, x0 moved by up to 0.05 (20 random directions):",
        "",
        "| method | from zero | least | median | most |",
        "|---|---|---|---|---|",
    ]
    for method in control.METHODS:
        cold, counts = warm_starts(problem, method)
        lines.append(f"| {method} | {cold} | {min(counts)} | {np.median(counts):g} | {max(counts)} |")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
