"""Table 1 of the paper, run: the four methods of the DDP family on swing-ups and steering problems.

    python benchmarks/family.py            → results/family.{json,md}, and the table in docs/control.md
    python benchmarks/family.py --quick    short horizons, printed

Each method starts from the same controls and stops at ‖g‖∞ ≤ 1e-8. Times are processor time, the least of several solves, compilation
apart. Orders of convergence are those of full steps (η = 1, μ = 0) around the solution: see `convergence.py`.
"""

from __future__ import annotations

import one_thread  # noqa: F401

# isort: split
import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

from convergence import Local, local_convergence  # noqa: E402

from gnewt import control  # noqa: E402
from gnewt.control.slots import stage_order  # noqa: E402
from gnewt.newton.causal import causal_elimination  # noqa: E402
from gnewt.newton.objective import Objective  # noqa: E402
from gnewt.newton.system import system_of  # noqa: E402

RESULTS = pathlib.Path(__file__).parent / "results"
TOLERANCE = 1e-8
MAX_STEPS = 400
REPEATS = 2
DOCS = pathlib.Path(__file__).parents[1] / "docs" / "control.md"
MARKS = ("<!-- table 1 -->\n", "<!-- end of table 1 -->\n")
"""Around the table in the docs."""


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


def arm(horizon: int) -> Case:
    dt = 2.0 / horizon
    goal = jnp.array([2.5, -0.5, 0.0, 0.0])

    def flow(x: Any, u: Any) -> Any:
        # Two hanging links of mass and length 1, inertia 1/3 about their ends, a motor at each joint.
        c2, s2 = jnp.cos(x[1]), jnp.sin(x[1])
        m11, m12, m22 = 5 / 3 + c2, 1 / 3 + 0.5 * c2, 1 / 3
        h1 = -0.5 * s2 * (2 * x[2] * x[3] + x[3] ** 2)
        g2 = 0.5 * 9.81 * jnp.sin(x[0] + x[1])
        g1 = 1.5 * 9.81 * jnp.sin(x[0]) + g2
        r1 = u[0] - h1 - g1 - 0.1 * x[2]
        r2 = u[1] - 0.5 * s2 * x[2] ** 2 - g2 - 0.1 * x[3]
        det = m11 * m22 - m12**2
        return jnp.array([x[2], x[3], (m22 * r1 - m12 * r2) / det, (m11 * r2 - m12 * r1) / det])

    def cost(x: Any, u: Any) -> Any:
        return dt * (0.01 * jnp.sum(u**2) + 0.1 * jnp.sum(x[2:] ** 2))

    def last(x: Any) -> Any:
        return 20 * jnp.sum((x - goal) ** 2)

    problem = control.Problem(runge_kutta(flow, dt), cost, last, jnp.zeros(4), horizon)
    return Case("arm of two links lifted", problem, jnp.zeros((horizon, 2)))


def car(horizon: int) -> Case:
    dt = 4.0 / horizon

    def flow(x: Any, u: Any) -> Any:
        return jnp.array([x[3] * jnp.cos(x[2]), x[3] * jnp.sin(x[2]), x[3] * u[1] / 2, u[0]])

    def cost(x: Any, u: Any) -> Any:
        return dt * (0.1 * u[0] ** 2 + 0.1 * u[1] ** 2 + 0.1 * (x[1] - 1) ** 2)

    def last(x: Any) -> Any:
        return 5 * jnp.sum((x - jnp.array([4.0, 1.0, 0.0, 1.0])) ** 2)

    problem = control.Problem(runge_kutta(flow, dt), cost, last, jnp.array([0.0, 0.0, 0.0, 1.0]), horizon)
    return Case("car changes lanes", problem, jnp.zeros((horizon, 2)))


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


CASES = (pendulum, cartpole, car, drone, arm)


def full_step(case: Case, method: str) -> Callable[[Any], Any]:
    """us ↦ us after a step with η = 1 and μ = 0; with what `control.solve` has compiled."""
    objective, given = Objective(case.problem.stages.with_states, has_aux=True), case.problem.given
    duals, back_substitution = control.METHODS[method]
    structure = objective.at((case.us, given)).structure
    order = stage_order(case.problem, structure)
    curvature = "exact" if duals == "adjoint" else "gauss_newton"
    system = system_of(objective.at((case.us, given)), order, curvature)
    sweep = causal_elimination(system)

    @jax.jit
    def follow(arrays: Any, data: Any, models: Any) -> Any:
        mine = sweep.bind(arrays)
        policies = mine.eliminate(data, models, 0.0, duals, definite=False)
        return mine.roll_out(data, models, policies, 1.0)[: structure.num_inputs]

    def step(us: Any) -> Any:
        point = objective.at((jnp.asarray(us), given))
        models = system.linearize(point)
        if back_substitution == "linear":
            gradient = models.duals[: structure.num_inputs]
            return structure.unravel(point.x + system.factor_solve(models, 0.0, -gradient)[0])
        return structure.unravel(follow(sweep.arrays, point.data, models))

    return step


def polished(case: Case, us: Any) -> Any:
    """The solution nearby, to rounding: Newton steps until they stop shrinking."""
    newton = full_step(case, "newton")
    before = np.inf
    for _ in range(10):
        new = newton(us)
        size = float(jnp.max(jnp.abs(new - us)))
        if not size < before / 2:
            break
        us, before = new, size
    return us


def run(case: Case, method: str, repeats: int) -> dict[str, Any]:
    start = float(jnp.max(jnp.abs(jax.grad(case.problem)(case.us))))
    tol = TOLERANCE / max(1.0, 1e-3 * start)
    seconds = []
    for _ in range(1 + repeats):
        begin = time.process_time()
        res = control.solve(case.problem, case.us, method, tol=tol, max_steps=MAX_STEPS)
        seconds.append(time.process_time() - begin)
    least = min(seconds[1:])
    exact = float(jnp.max(jnp.abs(jax.grad(case.problem)(res.us))))
    done = exact <= 2 * TOLERANCE
    local = Local(*[float("nan")] * 4)
    if done:
        local = local_convergence(full_step(case, method), polished(case, res.us))
    return {
        "problem": case.name,
        "horizon": case.problem.horizon,
        "method": method,
        "status": res.status,
        "converged": done,
        "iterations": res.num_steps,
        "factorizations": res.result.num_factorizations,
        "seconds": least,
        "compile_seconds": seconds[0] - least,
        "fun": res.fun,
        "grad_norm": exact,
        **local._asdict(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| problem | method | iterations | ms to ‖g‖∞ ≤ 1e-8 | order (spread) | rate | f | ‖g‖∞ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        count = f"{r['iterations']}" if r["converged"] else f"{r['iterations']} ({r['status']})"
        spent = f"{1e3 * r['seconds']:.1f}" if r["converged"] else "–"
        order = "–" if np.isnan(r["order"]) else f"{r['order']:.2f} ({r['least']:.2f}–{r['most']:.2f})"
        rate = "–" if np.isnan(r["rate"]) else f"{r['rate']:.3f}"
        lines.append(
            f"| {r['problem']}, T = {r['horizon']} | {r['method']} | {count} | {spent} | {order} | {rate} "
            f"| {r['fun']:.6g} | {r['grad_norm']:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("cases", nargs="*", help="names of cases; the others are kept as they were")
    args = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if args.cases and not args.quick and (RESULTS / "family.json").exists():
        earlier = json.loads((RESULTS / "family.json").read_text())
        rows = {(r["problem"], r["method"]): r for r in earlier}
    for make in CASES:
        if args.cases and make.__name__ not in args.cases:
            continue
        case = make(20 if args.quick else 100)
        for method in control.METHODS:
            new = run(case, method, 1 if args.quick else REPEATS)
            print(table([new]).splitlines()[-1], flush=True)
            rows[case.name, method] = new
            if not args.quick:
                _write(list(rows.values()))


def _write(rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "family.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "family.md").write_text("# The DDP family, run\n\n" + table(rows) + "\n")
    text = DOCS.read_text()
    before, rest = text.split(MARKS[0])
    DOCS.write_text(before + MARKS[0] + table(rows) + "\n" + MARKS[1] + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
