"""Whole solutions of optimal control problems: every solver to the same gradient of the same objective, from the same start.

    python benchmarks/control.py               → results/control-<isa>.{json,md}

Ours are the methods of `gnewt.control.solve`, and `gnewt.minimize` on the same function. Peers: crocoddyl's FDDP, casadi with IPOPT and
with fatrop. A solver's own stopping test is loosened as far as the gradient of the reduced objective, which JAX computes at the returned
inputs for all of them, stays below the tolerance. What is done once (tracing, planning, compiling; building an NLP) is shown apart.
"""

from __future__ import annotations

from harness import (
    CLOCK,
    RESULTS,
    Figure,
    environment,
    interleave,
    isa,
    ratio,
    report,
)  # first: it fixes the threads

# isort: split

import argparse
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import control_peers
import jax
import jax.numpy as jnp
import numpy as np
import ocp
from solvers import have

import gnewt
from gnewt import control

TOLERANCE = 1e-8
"""On ‖g‖∞ of the reduced objective at the returned inputs."""
OUR_STEPS, THEIR_STEPS = 500, 2000
IPOPT_TARGET, MPC_TARGET = 3, 500
PATIENCE = 2.0
"""Seconds: a solver that takes longer is timed once."""
LONGEST_COMPILED = 200
"""Horizon to which casadi's NLPs are compiled: their C code grows with it, and took gcc about 50 s at 200."""
OURS = "gnewt nonlinear-newton"
"""The default of `control.solve`, which the figures are about."""
DEFAULTS = ("crocoddyl FDDP", "IPOPT", "fatrop")
"""Peers with their default evaluator."""

Rows = list[dict[str, Any]]
Solve = Callable[[], tuple[np.ndarray, int]]
"""() ↦ inputs[T, nu] and the number of iterations."""


@dataclasses.dataclass(frozen=True)
class Solver:
    """A competitor."""

    name: str
    make: Callable[[float], Solve]
    """Its own tolerance ↦ what is timed."""
    tolerances: tuple[float, ...]
    """Its own tolerances, loosest first."""
    ours: bool = False


def as_control(problem: ocp.Problem, T: int) -> control.Problem:
    stage, dt = ocp.jax_stage(problem, T), problem.duration / T
    return control.Problem(
        lambda x, u: stage(x, u)[0],
        lambda x, u: problem.stage_cost(x, u, dt),
        problem.final_cost,
        jnp.array(problem.start),
        T,
    )


def our_solvers(problem: ocp.Problem, T: int) -> Iterator[Solver]:
    given, f = as_control(problem, T), ocp.jax_cost(problem, T)
    first = jnp.asarray(problem.first_inputs(T))

    def solve(method: str) -> Callable[[float], Solve]:
        def make(tol: float) -> Solve:
            def run() -> tuple[np.ndarray, int]:
                result = control.solve(given, first, method, tol=tol, max_steps=OUR_STEPS)
                return np.asarray(result.us), result.num_steps

            return run

        return make

    def minimize(tol: float) -> Solve:
        def run() -> tuple[np.ndarray, int]:
            result = gnewt.minimize(f, first, tol=tol, max_steps=OUR_STEPS)
            return np.asarray(result.x), result.num_steps

        return run

    ours = (1e-8, 1e-9, 1e-10)
    for method in ("nonlinear-newton", "ddp", "ilqr", "newton"):
        yield Solver(f"gnewt {method}", solve(method), ours, ours=True)
    if T <= 200:  # the same steps as `newton`; compiled once more
        yield Solver("gnewt.minimize", minimize, ours, ours=True)


def peers(problem: ocp.Problem, T: int) -> Iterator[Solver]:
    has_compiler = shutil.which("gcc") is not None

    def fddp(compiled: bool) -> Callable[[float], Solve]:
        models = control_peers.stage_models(problem, T, compiled)

        def make(tol: float) -> Solve:
            run = control_peers.fddp(problem, T, models, THEIR_STEPS, tol)

            def call() -> tuple[np.ndarray, int]:
                solver = run()
                return np.array(solver.us), solver.iter

            return call

        return make

    def casadi(plugin: str, expand: bool, compiled: bool) -> Callable[[float], Solve]:
        def make(tol: float) -> Solve:
            run = ocp.casadi_solver(problem, T, plugin, THEIR_STEPS, expand, tol, compiled)

            def call() -> tuple[np.ndarray, int]:
                z, stats = run()
                stages = np.asarray(z).ravel()[: -problem.nx].reshape(T, -1)
                return stages[:, problem.nx :], stats["iter_count"]

            return call

        return make

    if have("crocoddyl") and have("casadi"):
        yield Solver("crocoddyl FDDP", fddp(False), (1e-10, 1e-12, 1e-14, 3e-15, 1e-15, 1e-16))
        if has_compiler:
            yield Solver("crocoddyl FDDP, compiled", fddp(True), (1e-10, 1e-12, 1e-14, 3e-15, 1e-15, 1e-16))
    if have("casadi"):
        for name, plugin in (("IPOPT", "ipopt"), ("fatrop", "fatrop")):
            own = (1e-8, 1e-10, 1e-12)
            yield Solver(name, casadi(plugin, False, False), own)
            yield Solver(f"{name}, expand", casadi(plugin, True, False), own)
            if has_compiler and T <= LONGEST_COMPILED:
                yield Solver(f"{name}, compiled", casadi(plugin, False, True), own[1:2])


def measure(problem: ocp.Problem, T: int) -> Rows:
    """Solve one problem with everyone."""
    clock = time.process_time if CLOCK == "cpu" else time.perf_counter
    f = ocp.jax_cost(problem, T)
    value_and_grad = jax.jit(jax.value_and_grad(f))
    name = f"{problem.name} T={T}"
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    times: dict[str, float] = {}
    ours = []
    for solver in (*our_solvers(problem, T), *peers(problem, T)):
        setup = seconds = iterations = value = residual = 0
        for i, tol in enumerate(solver.tolerances):
            begin = clock()
            run = solver.make(tol)
            if solver.ours and not i:
                run()
            setup = max(setup, clock() - begin)
            begin = clock()
            us, iterations = run()
            seconds = clock() - begin
            value, gradient = value_and_grad(us)
            residual = float(jnp.max(jnp.abs(gradient)))
            if residual <= TOLERANCE:
                break
        if seconds > PATIENCE:
            times[solver.name] = seconds
        else:
            calls[solver.name] = run
        if solver.ours and residual <= TOLERANCE:
            ours.append(solver.name)
        rows[solver.name] = {
            "solver": solver.name,
            "iterations": iterations,
            "residual": residual,
            "objective": f"{float(value):.9f}",
            "own tolerance": f"{tol:g}",
            "setup s": max(setup - seconds, 0.0) if solver.ours else setup,
        }
        print(
            f"{name}: {solver.name}: {seconds:.3f} s, {iterations} iterations, residual {residual:.1e}",
            flush=True,
        )
    times |= interleave(calls, repeats=9)
    best = min(ours, key=lambda n: times[n])
    for label, row in rows.items():
        row["ms"] = 1e3 * times[label]
        row["ms / iteration"] = row["ms"] / max(row["iterations"], 1)
        row["of our best"] = times[label] / times[best]
        row["converged"] = "yes" if row["residual"] <= TOLERANCE else "NO"
    return list(rows.values())


def measure_multicopter(horizons: list[int]) -> Rows:
    """crocoddyl's own quadrotor in C++: another problem, for the time of an iteration."""
    clock = time.process_time if CLOCK == "cpu" else time.perf_counter
    rows = []
    for T in horizons:
        run = control_peers.multicopter(ocp.QUADROTOR, T, 20)
        seconds = []
        for _ in range(3):
            begin = clock()
            solver = run()
            seconds.append(clock() - begin)
        milliseconds = 1e3 * min(seconds)
        rows.append(
            {
                "T": T,
                "iterations": solver.iter,
                "its own stopping test": solver.stop,
                "ms": milliseconds,
                "ms / iteration": milliseconds / max(solver.iter, 1),
            }
        )
    return rows


def measure_mpc() -> Rows:
    """Closed loop on the cartpole: 100 steps from hanging, horizon 50."""
    T, steps = 50, 100
    problem = dataclasses.replace(ocp.CARTPOLE, duration=2.0)
    given, stage = as_control(problem, T), jax.jit(ocp.jax_stage(problem, T))
    calls, rows = {}, []
    for method in ("nonlinear-newton", "ilqr"):
        for iterations in (1, 2):

            def loop(method: str = method, iterations: int = iterations) -> Any:
                x, plan = jnp.array(problem.start), jnp.asarray(problem.first_inputs(T))
                for _ in range(steps):
                    plan = control.mpc_step(given, x, plan, iterations=iterations, method=method)
                    x = stage(x, plan.u)[0]
                return x

            name = f"{method}, {iterations} iterations"
            last = np.asarray(loop())
            calls[name] = loop
            rows.append(
                {"mpc_step, T=50": name, "‖x - goal‖ after 4 s": float(np.linalg.norm(last - problem.goal))}
            )
    times = interleave(calls, repeats=9)
    for row in rows:
        seconds = times[row["mpc_step, T=50"]] / steps
        row |= {"µs": 1e6 * seconds, "Hz": 1 / seconds}
    return rows


def figures(tables: dict[str, Rows]) -> list[Figure]:
    """What was promised, from the rows: our default against every peer at T = 1000; the rate of mpc_step."""
    found = []
    for heading, rows in tables.items():
        times = {row["solver"]: row["ms"] for row in rows if row.get("converged") == "yes"}
        if OURS in times and heading.endswith("T = 1000"):
            for peer in DEFAULTS:
                target = IPOPT_TARGET if peer == "IPOPT" else 1
                name = f"{heading}: {OURS} faster than {peer}"
                found.append(Figure(name, ratio(times.get(peer), times[OURS]), ">=", target))
        found += [
            Figure("cartpole T=50: mpc_step, 2 iterations", row["Hz"], ">=", MPC_TARGET, "Hz")
            for row in rows
            if row.get("mpc_step, T=50") == "nonlinear-newton, 2 iterations"
        ]
    return found


def earlier(name: str) -> dict[str, Rows]:
    """Tables of earlier runs of the same commit: the benchmark can be run in parts."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return {}
    content, where = json.loads(path.read_text()), environment()
    # The results themselves make the tree dirty.
    keys = [
        [str(e[key]).removesuffix("-dirty") for key in ("commit", "clock", "cpu")]
        for e in (content["environment"], where)
    ]
    return content["tables"] if keys[0] == keys[1] else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--horizons", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--problems", nargs="+", default=["cartpole", "quadrotor", "mpc"])
    args = parser.parse_args()
    name = f"control-{isa()}"
    tables = earlier(name)
    for problem in (p for p in (ocp.CARTPOLE, ocp.QUADROTOR) if p.name in args.problems):
        for T in args.horizons:
            tables[f"{problem.name} ({problem.nx}, {problem.nu}), T = {T}"] = measure(problem, T)
    if "quadrotor" in args.problems and have("crocoddyl") and have("pinocchio"):
        tables["crocoddyl's own quadrotor in C++ (another problem)"] = measure_multicopter(args.horizons)
    if "mpc" in args.problems:
        tables["Model-predictive control"] = measure_mpc()
    report(
        name,
        f"Solutions of optimal control problems ({isa()})",
        tables,
        figures(tables),
        [
            f"Residual: ‖g‖∞ of the reduced objective at the returned inputs, by JAX; asked for: {TOLERANCE:g}.\n"
            f"A solver that did not get there in its {OUR_STEPS} (ours) or {THEIR_STEPS} iterations is marked.",
            "Setup: tracing, planning and compiling for gnewt; building (and compiling) the problem for casadi; the cpu clock does not see gcc.\nNot part of ms.",
            "casadi's default evaluator is its virtual machine on MX; expand: on SX; compiled: as C, gcc -O2 (T = 200 only: about 50 s of gcc there on a busy machine; T = 1000 was not tried).",
            "The figures are those of one method, the default of `control.solve`.",
            "crocoddyl has Python action models with casadi's derivatives (virtual machine, or compiled): it ships no C++ model of these.\nIts own quadrotor has quaternions, "
            "velocities in the frame of the body and an integrated cost, so that the optimum is another; at most 20 iterations of it are shown for the time of one.",
        ],
    )


if __name__ == "__main__":
    main()
