"""Table 1 of the paper, run: the four methods of the DDP family on swing-ups and steering problems.

    python benchmarks/family.py            → results/family.{json,md}
    python benchmarks/family.py --quick    short horizons, printed

Each method starts from the same controls and stops at ‖g‖∞ ≤ 1e-8. Times are the least of several solves, compilation apart. The
order of convergence is measured close to the solution, by how the distance after a full step depends on the one before.
"""

from __future__ import annotations

import one_thread  # noqa: F401

# isort: split
import argparse
import itertools
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

import gnewt  # noqa: E402
from gnewt import control  # noqa: E402
from gnewt.newton import Rollout  # noqa: E402

RESULTS = pathlib.Path(__file__).parent / "results"
TOLERANCE = 1e-8
MAX_STEPS = 400
REPEATS = 2
NEARBY = (1e-3, 1e-4, 1e-5)
"""Distances, of the largest control, from which the order of convergence is measured."""


class Case(NamedTuple):
    """A problem and where it starts."""

    name: str
    problem: control.Problem
    us: Any


def runge_kutta(flow: Callable, dt: float) -> Callable:
    def step(x: Any, u: Any) -> Any:
        k1 = flow(x, u)
        k2 = flow(x + dt / 2 * k1, u)
        k3 = flow(x + dt / 2 * k2, u)
        k4 = flow(x + dt * k3, u)
        return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return step


def pendulum(horizon: int) -> Case:
    dt = 4.0 / horizon

    def flow(x: Any, u: Any) -> Any:
        return jnp.array([x[1], u[0] - 9.81 * jnp.sin(x[0]) - 0.1 * x[1]])

    def cost(x: Any, u: Any) -> Any:
        return dt * (0.1 * u[0] ** 2 + 0.1 * x[1] ** 2)

    def last(x: Any) -> Any:
        return 10 * (x[0] - jnp.pi) ** 2 + 2 * x[1] ** 2

    problem = control.Problem(runge_kutta(flow, dt), cost, last, jnp.zeros(2), horizon)
    return Case("pendulum swing-up", problem, 0.1 * jnp.ones((horizon, 1)))


def cartpole(horizon: int) -> Case:
    dt = 3.0 / horizon
    goal = jnp.array([0.0, jnp.pi, 0.0, 0.0])

    def flow(x: Any, u: Any) -> Any:
        s, c = jnp.sin(x[1]), jnp.cos(x[1])
        push = (u[0] + 0.5 * s * (x[3] ** 2 + 9.81 * c)) / (1 + 0.5 * s**2)
        turn = (-u[0] * c - 0.5 * x[3] ** 2 * c * s - 1.5 * 9.81 * s) / (1 + 0.5 * s**2)
        return jnp.array([x[2], x[3], push, turn])

    def cost(x: Any, u: Any) -> Any:
        return dt * (0.1 * u[0] ** 2 + 0.1 * jnp.sum((x - goal) ** 2))

    def last(x: Any) -> Any:
        return 100 * jnp.sum((x - goal) ** 2)

    problem = control.Problem(runge_kutta(flow, dt), cost, last, jnp.zeros(4), horizon)
    return Case("cartpole swing-up", problem, 0.1 * jnp.ones((horizon, 1)))


def acrobot(horizon: int) -> Case:
    dt = 4.0 / horizon
    goal = jnp.array([jnp.pi, 0.0, 0.0, 0.0])

    def flow(x: Any, u: Any) -> Any:
        # Two links of mass and length 1, inertia 1/3 about their ends, torque at the elbow.
        c2, s2 = jnp.cos(x[1]), jnp.sin(x[1])
        m11, m12, m22 = 5 / 3 + c2, 1 / 3 + 0.5 * c2, 1 / 3
        h1 = -0.5 * s2 * (2 * x[2] * x[3] + x[3] ** 2)
        g2 = 0.5 * 9.81 * jnp.sin(x[0] + x[1])
        g1 = 1.5 * 9.81 * jnp.sin(x[0]) + g2
        r1, r2 = -h1 - g1 - 0.1 * x[2], u[0] - 0.5 * s2 * x[2] ** 2 - g2 - 0.1 * x[3]
        det = m11 * m22 - m12**2
        return jnp.array([x[2], x[3], (m22 * r1 - m12 * r2) / det, (m11 * r2 - m12 * r1) / det])

    def cost(x: Any, u: Any) -> Any:
        return dt * (0.01 * u[0] ** 2 + 0.01 * jnp.sum(x[2:] ** 2))

    def last(x: Any) -> Any:
        return 50 * jnp.sum((x - goal) ** 2)

    problem = control.Problem(runge_kutta(flow, dt), cost, last, jnp.zeros(4), horizon)
    return Case("acrobot swing-up", problem, 0.5 * jnp.sin(jnp.arange(horizon) * dt * 3)[:, None])


def car(horizon: int) -> Case:
    dt = 6.0 / horizon

    def flow(x: Any, u: Any) -> Any:
        return jnp.array([x[3] * jnp.cos(x[2]), x[3] * jnp.sin(x[2]), x[3] * jnp.tan(u[1]) / 2, u[0]])

    def cost(x: Any, u: Any) -> Any:
        return dt * (
            0.05 * u[0] ** 2
            + 0.5 * u[1] ** 2
            + 0.01 * (jnp.sqrt(x[0] ** 2 + 0.01) + jnp.sqrt(x[1] ** 2 + 0.01))
        )

    def last(x: Any) -> Any:
        return 20 * jnp.sum(x**2)

    problem = control.Problem(
        runge_kutta(flow, dt), cost, last, jnp.array([1.0, 1.0, 3 * jnp.pi / 2, 0.0]), horizon
    )
    return Case("car parking", problem, jnp.tile(jnp.array([0.1, 0.1]), (horizon, 1)))


def drone(horizon: int) -> Case:
    dt = 3.0 / horizon

    def flow(x: Any, u: Any) -> Any:
        lift = 9.81 + u[0] + u[1]
        return jnp.array(
            [x[3], x[4], x[5], -lift * jnp.sin(x[2]), lift * jnp.cos(x[2]) - 9.81, 4 * (u[0] - u[1])]
        )

    def cost(x: Any, u: Any) -> Any:
        wall = 5 * jnp.exp(-4 * ((x[0] - 1.0) ** 2 + (x[1] - 0.1) ** 2))
        return dt * (0.1 * jnp.sum(u**2) + wall + 0.05 * jnp.sum(x[3:] ** 2))

    def last(x: Any) -> Any:
        return 50 * jnp.sum((x - jnp.array([2.0, 0, 0, 0, 0, 0])) ** 2)

    problem = control.Problem(runge_kutta(flow, dt), cost, last, jnp.zeros(6), horizon)
    return Case("planar quadrotor, obstacle", problem, jnp.zeros((horizon, 2)))


CASES = (pendulum, cartpole, car, drone, acrobot)


def order_of_convergence(case: Case, method: str, best: Any) -> float:
    """How the distance after one full step (η = 1, μ = 0) depends on the distance before it: a slope in logarithms."""
    scale = max(1.0, float(jnp.max(jnp.abs(best))))
    away = scale * jnp.asarray(np.random.default_rng(0).uniform(-1, 1, best.shape))
    newton = gnewt.newton_step(case.problem.stages.objective, order="causal")
    points = []
    for distance in NEARBY:
        us = best + distance * away
        if method == "newton":
            after = us + newton(us, case.problem.given)
        else:
            always = Rollout(control.METHODS[method][0], armijo=-1e300)
            after = control.solve(case.problem, us, method, search=always, tol=0.0, max_steps=1).us
        points.append((float(jnp.max(jnp.abs(us - best))), float(jnp.max(jnp.abs(after - best)))))
    above = [(a, b) for a, b in points if b > 1e-12 * scale]
    # The steepest: the last pair may lie where rounding ends the convergence.
    slopes = [np.log(d / b) / np.log(c / a) for (a, b), (c, d) in itertools.pairwise(above)]
    return float(max(slopes, default=np.nan))


def run(case: Case, method: str, repeats: int) -> dict[str, Any]:
    start = float(jnp.max(jnp.abs(jax.grad(case.problem)(case.us))))
    tol = TOLERANCE / max(1.0, 1e-3 * start)
    begin = time.perf_counter()
    res = control.solve(case.problem, case.us, method, tol=tol, max_steps=MAX_STEPS)
    first = time.perf_counter() - begin
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        res = control.solve(case.problem, case.us, method, tol=tol, max_steps=MAX_STEPS)
        seconds.append(time.perf_counter() - begin)
    exact = float(jnp.max(jnp.abs(jax.grad(case.problem)(res.us))))
    best = control.solve(case.problem, res.us, "nonlinear-newton", tol=0.0, max_steps=10).us
    return {
        "problem": case.name,
        "horizon": case.problem.horizon,
        "method": method,
        "status": res.status,
        "iterations": res.num_steps,
        "factorizations": res.result.num_factorizations,
        "seconds": min(seconds),
        "compile_seconds": first - min(seconds),
        "fun": res.fun,
        "grad_norm": exact,
        "order": order_of_convergence(case, method, best),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| problem | method | iterations | ms to ‖g‖∞ ≤ 1e-8 | order | f | ‖g‖∞ |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        done = r["grad_norm"] <= 2 * TOLERANCE
        count = f"{r['iterations']}" if done else f"{r['iterations']} ({r['status']})"
        spent = f"{1e3 * r['seconds']:.1f}" if done else "–"
        order = "–" if np.isnan(r["order"]) else f"{r['order']:.1f}"
        lines.append(
            f"| {r['problem']}, T = {r['horizon']} | {r['method']} | {count} | {spent} | {order} | {r['fun']:.6g} | {r['grad_norm']:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("cases", nargs="*", help="names of cases")
    args = parser.parse_args()
    rows = []
    for make in CASES:
        if args.cases and make.__name__ not in args.cases:
            continue
        case = make(20 if args.quick else 100)
        for method in control.METHODS:
            rows.append(run(case, method, 1 if args.quick else REPEATS))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            if not args.quick and not args.cases:
                _write(rows)


def _write(rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "family.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "family.md").write_text("# The DDP family, run\n\n" + table(rows) + "\n")


if __name__ == "__main__":
    main()
