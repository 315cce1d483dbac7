"""Minimise every unconstrained CUTEst problem of sif2jax with gnewt and with its peers.

    python benchmarks/minimize.py                       all solvers, all problems → results/minimize.{json,md,png}
    python benchmarks/minimize.py --solvers gnewt       one solver
    python benchmarks/minimize.py ROSENBR CHAINWOO      these problems, printed
    python benchmarks/minimize.py --report              tables and profile from the JSON that is there

Each problem has its own size and 60 seconds on one core, compilation included. A problem counts as solved if
‖g‖∞ ≤ max(1e-6, 1e-9·‖g(x₀)‖∞, 1e-8·|f|), or if rounding is reached (H ≻ 0 and ½gᵀH⁻¹g ≤ 1e-15·|f|), or if f is
certified to be unbounded below (f ≤ -1e30 at the point returned). The test is the same for all, by JAX's own gradient.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse
import json
import multiprocessing
import pathlib
import sys
import time
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
LIMIT = 60.0
SOLVERS = ("gnewt", "trust-exact", "trust-krylov", "L-BFGS-B", "optimistix-bfgs")
DENSE = 2000
"""Variables up to which trust-exact, which needs a dense Hessian, is run."""


def solve(solver: str, name: str, limit: float) -> dict[str, Any]:
    """Run one solver on one problem."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np
    import sif2jax

    problem = next(p for p in sif2jax.unconstrained_minimisation_problems if p.name == name)

    def f(y: Any) -> Any:
        return problem.objective(y, problem.args)

    x0 = np.asarray(problem.y0, float)
    row: dict[str, Any] = {"solver": solver, "problem": name, "N": x0.size}
    if solver == "trust-exact" and x0.size > DENSE:
        return row | {"solved": False, "why": f"not run: N > {DENSE}"}
    value_and_grad = jax.jit(jax.value_and_grad(f))
    begin = time.perf_counter()
    run = _gnewt if solver == "gnewt" else _optimistix if solver.startswith("optimistix") else _scipy
    x, more = run(solver, f, x0, limit)
    row |= {"seconds": time.perf_counter() - begin, **more}
    start = np.max(np.abs(value_and_grad(x0)[1]))
    value, gradient = (np.asarray(v) for v in value_and_grad(x))
    size = float(np.max(np.abs(gradient))) if np.all(np.isfinite(gradient)) else float("inf")
    row |= {"fun": float(value), "grad_norm": size}
    if size <= max(1e-6, 1e-9 * start, 1e-8 * abs(float(value))):
        return row | {"solved": True, "why": "gradient"}
    if value <= -1e30 or value == -np.inf:
        return row | {"solved": True, "why": "unbounded"}
    if np.isfinite(value) and x0.size <= 20_000 and _rounding(f, x, float(value)):
        return row | {"solved": True, "why": "rounding"}
    return row | {"solved": False, "why": row.get("message", "")[:120]}


def _rounding(f: Any, x: Any, value: float) -> bool:
    """Whether no step of the exact model could lower f by more than its rounding."""
    import gnewt

    try:
        factor = gnewt.factorize(f, check=False)(x)
    except gnewt.GnewtError:
        return False
    step, _ = factor.flat_step
    return bool(factor.is_positive_definite and -0.5 * factor.flat_gradient @ step <= 1e-15 * abs(value))


def _gnewt(solver: str, f: Any, x0: Any, limit: float) -> tuple[Any, dict[str, Any]]:
    import gnewt

    res = gnewt.minimize(f, x0, tol=1e-6, max_steps=100_000, time_limit=0.8 * limit, check=False)
    taken = 1 + sum(r.ratio >= 1e-4 for r in res.history)
    return res.x, {
        "gradients": taken,
        "evaluations": res.num_evaluations,
        "factorizations": res.num_factorizations,
        "message": f"{res.status}: {res.message}",
    }


def _scipy(solver: str, f: Any, x0: Any, limit: float) -> tuple[Any, dict[str, Any]]:
    import jax
    import numpy as np
    import scipy.optimize

    value, gradient = jax.jit(f), jax.jit(jax.grad(f))
    counts = {"gradients": 0, "evaluations": 0}
    best: list[Any] = [np.inf, x0]
    end = time.perf_counter() + 0.8 * limit

    class OutOfTime(Exception):
        pass

    def fun(x: Any) -> float:
        counts["evaluations"] += 1
        if time.perf_counter() > end:
            raise OutOfTime
        found = float(value(x))
        if found < best[0]:
            best[:] = [found, x.copy()]
        return found

    def jac(x: Any) -> Any:
        counts["gradients"] += 1
        return np.asarray(gradient(x), float)

    start = float(np.max(np.abs(gradient(x0))))
    tol = max(1e-6, 1e-9 * start)
    options: dict[str, Any] = {"maxiter": 10**6}
    more: dict[str, Any] = {}
    if solver == "L-BFGS-B":
        options |= {"gtol": tol, "ftol": 0.0, "maxfun": 10**7, "maxcor": 10}
    else:
        options["gtol"] = tol
        if solver == "trust-exact":
            hessian = jax.jit(jax.hessian(f))
            more["hess"] = lambda x: np.asarray(hessian(x), float)
        else:
            product = jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])
            more["hessp"] = lambda x, v: np.asarray(product(x, v), float)
    try:
        res = scipy.optimize.minimize(fun, x0, jac=jac, method=solver, options=options, **more)
        return res.x, {**counts, "message": str(res.message)}
    except OutOfTime:
        return best[1], {**counts, "message": "time limit"}
    except Exception as error:  # a peer that fails has failed, whatever the reason
        return best[1], {**counts, "message": f"{type(error).__name__}: {error}"}


def _optimistix(solver: str, f: Any, x0: Any, limit: float) -> tuple[Any, dict[str, Any]]:
    import jax.numpy as jnp
    import numpy as np
    import optimistix

    bfgs = optimistix.BFGS(rtol=1e-12, atol=1e-12)
    try:
        res = optimistix.minimise(lambda y, _: f(y), bfgs, jnp.asarray(x0), max_steps=5000, throw=False)
    except Exception as error:
        return x0, {"gradients": 0, "message": f"{type(error).__name__}: {error}"}
    steps = int(res.stats["num_steps"])
    return np.asarray(res.value), {"gradients": steps, "message": f"{res.result}"[:80]}


def _worker(channel: Any) -> None:
    while True:
        solver, name, limit = channel.recv()
        try:
            channel.send(solve(solver, name, limit))
        except MemoryError as error:
            channel.send(
                {"solver": solver, "problem": name, "solved": False, "why": f"out of memory: {error}"}
            )
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:150]}"
            channel.send({"solver": solver, "problem": name, "solved": False, "why": why})


class Runner:
    """A process that is replaced when a problem takes too long."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._used = 0

    def run(self, solver: str, name: str, limit: float) -> dict[str, Any]:
        """Run with a hard limit a little above the solver's own."""
        if self._process is None or self._used >= 25:  # compiled programs pile up
            self.stop()
            self._channel, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_worker, args=(theirs,), daemon=True)
            self._process.start()
            self._used = 0
        self._used += 1
        self._channel.send((solver, name, limit))
        try:
            if self._channel.poll(1.5 * limit + 20):
                return self._channel.recv()
            why = "time limit (killed)"
        except EOFError:
            why = "the process died (memory?)"
        self.stop()
        return {"solver": solver, "problem": name, "solved": False, "why": why}

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None


def main() -> None:
    """Run, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--solvers", default=",".join(SOLVERS))
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--report", action="store_true", help="only write tables and profile")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    options = parser.parse_args()
    path = RESULTS / "minimize.json"
    rows = json.loads(path.read_text()) if path.exists() and (options.report or options.resume) else []
    if not options.report:
        rows = _run(options, rows, None if options.problems else path)
    if options.problems:
        return
    from profile_plot import write_report

    write_report(rows, RESULTS)


def _run(
    options: argparse.Namespace, rows: list[dict[str, Any]], path: pathlib.Path | None
) -> list[dict[str, Any]]:
    import sif2jax

    names = options.problems or sorted({p.name for p in sif2jax.unconstrained_minimisation_problems})
    solvers = options.solvers.split(",")
    known = {(row["solver"], row["problem"]) for row in rows}
    runner = Runner()
    for solver in solvers:
        for i, name in enumerate(names):
            if (solver, name) in known:
                continue
            row = runner.run(solver, name, options.limit)
            rows.append(row)
            took = f"{row['seconds']:.1f} s" if "seconds" in row else ""
            verdict = "solved" if row["solved"] else "FAILED"
            print(
                f"{solver} {i + 1}/{len(names)} {name}: {verdict} ({row['why']}) {took}",
                file=sys.stderr,
                flush=True,
            )
            if path is not None:
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(rows, indent=0))
    runner.stop()
    return rows


if __name__ == "__main__":
    main()
