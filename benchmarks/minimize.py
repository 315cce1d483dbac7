"""Minimise every unconstrained CUTEst problem of sif2jax with gnewt and with its peers.

    python benchmarks/minimize.py                       all solvers, all problems → results/minimize.{json,md,png}
    python benchmarks/minimize.py --workers 16          sixteen processes, each on a core of its own
    python benchmarks/minimize.py --solvers gnewt       one solver; rows of the others are kept
    python benchmarks/minimize.py --resume              go on: rows that are there are not run again
    python benchmarks/minimize.py --float32             gnewt on the 100 smallest in float32 and float64 at 1e-3
    python benchmarks/minimize.py ROSENBR CHAINWOO      these problems, printed only
    python benchmarks/minimize.py --report              tables and profile from the JSON that is there

Each problem has its own size and 60 seconds of one core, compilation included: processor time of the worker's
process, so that a busy machine costs nobody a problem. A problem counts as solved if
‖g‖∞ ≤ max(1e-6, 1e-9·‖g(x₀)‖∞, 1e-8·|f|), or if rounding is reached (H ≻ 0 and ½gᵀH⁻¹g ≤ 1e-15·|f|), or if f is
certified to be unbounded below (f ≤ -1e30 at the point returned). The test is the same for all, by JAX's own gradient,
and every solver stops as soon as it sees a gradient that passes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import lanes
import minimize_solvers

RESULTS = pathlib.Path(__file__).parent / "results"
LIMIT = 60.0
SOLVERS = ("gnewt", "trust-exact", "trust-krylov", "L-BFGS-B", "optimistix-bfgs")
PRECISIONS = ("gnewt-float64", "gnewt-float32")
"""gnewt at 1e-3, in both precisions."""


def solve(solver: str, name: str, limit: float) -> dict[str, Any]:
    """Run one solver on one problem and judge where it ends."""
    import jax

    jax.config.update("jax_enable_x64", solver != "gnewt-float32")
    import numpy as np
    import sif2jax

    problem = next(p for p in sif2jax.unconstrained_minimisation_problems if p.name == name)
    x0 = np.asarray(problem.y0, np.float32 if solver == "gnewt-float32" else np.float64)
    row: dict[str, Any] = {"solver": solver, "problem": name, "N": x0.size}
    if (why := minimize_solvers.too_large(solver, x0.size)) is not None:
        return row | {"solved": False, "why": f"not run: {why}"}

    def f(y: Any) -> Any:
        return problem.objective(y, problem.args)

    value_and_grad = jax.jit(jax.value_and_grad(f))
    start = float(np.max(np.abs(value_and_grad(x0)[1])))
    tol = 1e-3 if solver in PRECISIONS else 1e-6
    small = minimize_solvers.Small(tol, start)
    begin = time.process_time()
    x, more = minimize_solvers.run(solver, f, x0, small, begin + limit)
    row |= {"seconds": time.process_time() - begin, **more}
    value, gradient = (np.asarray(v, np.float64) for v in value_and_grad(x))
    size = float(np.max(np.abs(gradient))) if np.all(np.isfinite(gradient)) else float("inf")
    row |= {"fun": float(value), "grad_norm": size}
    if row["seconds"] > 1.1 * limit:
        return row | {"solved": False, "why": f"time limit: it took {row['seconds']:.0f} s"}
    if small(float(value), size):
        return row | {"solved": True, "why": "gradient"}
    if value <= -1e30:
        return row | {"solved": True, "why": "unbounded"}
    if np.isfinite(value) and _rounding(
        f, x, abs(float(value)) * (5e-7 if x0.dtype == np.float32 else 1e-15)
    ):
        return row | {"solved": True, "why": "rounding"}
    return row | {"solved": False, "why": row.get("message", "")[:120]}


def _rounding(f: Any, x: Any, noise: float) -> bool:
    """Whether no step of the exact model could lower f by more than its rounding."""
    import gnewt

    try:
        factor = gnewt.factorize(f, check=False)(x)
    except gnewt.GnewtError:
        return False
    step, _ = factor.flat_step
    return bool(factor.is_positive_definite and -0.5 * factor.flat_gradient @ step <= noise)


def _smallest(count: int) -> list[str]:
    import sif2jax

    sizes = {p.name: p.y0.size for p in sif2jax.unconstrained_minimisation_problems}
    return sorted(sorted(sizes), key=lambda name: sizes[name])[:count]


def main() -> None:
    """Run, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--solvers", default=",".join(SOLVERS))
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--workers", type=int, default=1, help="processes, each pinned to its own core")
    parser.add_argument("--float32", action="store_true", help="gnewt at 1e-3 on the 100 smallest, twice")
    parser.add_argument("--report", action="store_true", help="only write tables and profile")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    options = parser.parse_args()
    path = RESULTS / "minimize.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    if not options.report:
        rows = _run(options, rows, None if options.problems else path)
    if not options.problems:
        from profile_plot import write_report

        write_report(rows, RESULTS)


def _run(
    options: argparse.Namespace, rows: list[dict[str, Any]], path: pathlib.Path | None
) -> list[dict[str, Any]]:
    names = options.problems or _smallest(100 if options.float32 else 10**6)
    solvers = PRECISIONS if options.float32 else options.solvers.split(",")
    if not options.resume or path is None:
        rows = [row for row in rows if row["solver"] not in solvers]
    known = {(row["solver"], row["problem"]) for row in rows}
    jobs = [(s, n, options.limit) for s in solvers for n in names if (s, n) not in known]

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        took = f"{row['seconds']:.1f} s, {row.get('gradients')} gradients" if "seconds" in row else ""
        verdict = "solved" if row["solved"] else "FAILED"
        text = f"{row['solver']} {row['problem']}: {verdict} ({row['why']}) {took}"
        print(text, file=sys.stderr, flush=True)
        if path is not None:
            path.parent.mkdir(exist_ok=True)
            rows.sort(key=lambda r: (r["solver"], r["problem"]))
            path.write_text(json.dumps(rows, indent=0))

    lanes.run_lanes(solve, jobs, options.workers, 2 * options.limit + 120, record)
    return rows


if __name__ == "__main__":
    main()
