"""Newton steps on the unconstrained CUTEst problems of sif2jax: structure, exactness, times.

    python benchmarks/cutest.py                  all problems → benchmarks/results/cutest.{json,md}
    python benchmarks/cutest.py ROSENBR SPARSINE those only, printed

At the start point and at a randomly perturbed one: f, g and H·v of the structure against JAX's derivatives of
the function; then the Newton step, with ‖Hδ + g‖/‖g‖ from a Hessian-vector product of the function.
Times are seconds of one process on one thread: trace and plan of a structure, compile (first call minus
second) and evaluation of the local models, one factorisation, solve and refinement.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse
import json
import pathlib
import statistics
import time
from typing import Any

import jax
import numpy as np
import sif2jax
from rich.progress import track

import gnewt
from gnewt.kkt import lifted_product
from gnewt.newton.objective import Objective
from gnewt.newton.step import describe
from gnewt.newton.system import system_of
from gnewt.plan import make_plan

HERE = pathlib.Path(__file__).parent
COLUMNS = (
    "problem N families kept width order trace_s plan_s compile_s linearize_s step_s hv_error residual status"
)
PERTURBATION = 0.1
"""Standard deviation of the perturbed point, relative to max(1, |x|)."""


def distinct_problems() -> list[Any]:
    """All unconstrained problems, each once (the list names SCURLY10, 20 and 30 twice)."""
    return list({p.name: p for p in sif2jax.unconstrained_minimisation_problems}.values())


def measure(problem: Any) -> dict[str, Any]:
    """Measure one problem at both points; the row holds the worse error of the two."""

    def f(y: Any) -> Any:
        return problem.objective(y, problem.args)

    start = np.asarray(problem.y0)
    noise = np.random.default_rng(0).normal(size=start.shape)
    points = [start, start + PERTURBATION * np.maximum(1.0, np.abs(start)) * noise]
    objective = Objective(f)
    begin = time.perf_counter()
    structure = objective.at((start,)).structure
    traced = time.perf_counter()
    plan = structure.memo(("plan", "auto"), lambda: make_plan(structure))
    planned = time.perf_counter()
    row: dict[str, Any] = {
        "problem": problem.name,
        "N": structure.num_inputs,
        "families": len(structure.families),
        "opaque": sum(bool(family.note) for family in structure.families),
        "kept": structure.num_pairs,
        "width": plan.certificate.width,
        "flops": plan.certificate.flops,
        "bytes": plan.certificate.bytes,
        "order": plan.order_name,
        "trace_s": traced - begin,
        "plan_s": planned - traced,
        "value_error": 0.0,
        "grad_error": 0.0,
        "hv_error": 0.0,
    }
    row["points"] = [_at_point(objective, x, row) for x in points]
    row["status"] = "/".join(point["status"] for point in row["points"])
    row["residual"] = max((p["residual"] for p in row["points"] if p["status"] == "ok"), default=None)
    row["step_s"] = min((p["step_s"] for p in row["points"] if "step_s" in p), default=None)
    return row


def _at_point(objective: Objective, x: np.ndarray, row: dict[str, Any]) -> dict[str, Any]:
    point = objective.at((x,))
    try:
        system = system_of(point)
    except gnewt.PlanError as refusal:
        return {"status": "refused", "message": str(refusal)}
    structure = point.structure
    begin = time.perf_counter()
    models = jax.block_until_ready(system.linearize(point))
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    models = jax.block_until_ready(system.linearize(point))
    again = time.perf_counter() - begin
    row.setdefault("compile_s", first - again)
    row["linearize_s"] = min(again, row.get("linearize_s", np.inf))
    if system.nonfinite(point, models) is not None:
        return {"status": "nonfinite"}
    v = np.random.default_rng(1).normal(size=structure.num_inputs)
    value, gradient, curved = (np.asarray(a) for a in system.derivatives(point, v))
    ours = lifted_product(structure, np.asarray(models.sources), v)
    _worst(row, "value_error", np.atleast_1d(models.value), np.atleast_1d(value))
    _worst(row, "grad_error", np.asarray(models.duals[: structure.num_inputs]), gradient)
    _worst(row, "hv_error", ours, curved)
    begin = time.perf_counter()
    step, numbers = system.factor_solve(models, 0.0, -models.duals[: structure.num_inputs])
    info = describe(gnewt.Factor(point, models, numbers, 0.0, step, system))
    return {
        "status": info.status,
        "residual": info.residual,
        "inertia": tuple(info.inertia),
        "step_s": time.perf_counter() - begin,
    }


def _worst(row: dict[str, Any], name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    scale = max(float(np.max(np.abs(theirs), initial=0.0)), 1e-300)
    row[name] = max(row[name], float(np.max(np.abs(ours - theirs), initial=0.0)) / scale)


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown, with a summary."""

    def cell(value: Any) -> str:
        if value is None:
            return "–"
        return f"{value:.2g}" if isinstance(value, float) else str(value)

    names = COLUMNS.split()
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join([summary(rows), "", *lines, ""])


def summary(rows: list[dict[str, Any]]) -> str:
    """Say in a few lines what the table shows."""
    setup = [row["trace_s"] + row["plan_s"] for row in rows]
    solved = [p for row in rows for p in row["points"] if p["status"] == "ok"]
    counts = {s: sum(p["status"] == s for row in rows for p in row["points"]) for s in STATUSES}
    return "\n".join(
        [
            f"{len(rows)} problems at two points each (start, perturbed); {jax.__version__=}, float64, one thread.",
            "",
            f"- trace + plan: median {statistics.median(setup):.2f} s, maximum {max(setup):.2f} s",
            f"- families: at most {max(row['families'] for row in rows)}; "
            f"opaque: {sum(row['opaque'] for row in rows)}",
            f"- H·v through the structure against JAX: at most {max(row['hv_error'] for row in rows):.1e}",
            f"- steps: {counts}; largest residual of a step called ok: "
            f"{max((p['residual'] for p in solved), default=0.0):.1e}",
        ]
    )


STATUSES = ("ok", "inaccurate", "singular", "nonfinite", "refused")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="*", help="names; all if none is given")
    chosen = parser.parse_args().problems
    jax.config.update("jax_enable_x64", True)
    problems = [p for p in distinct_problems() if not chosen or p.name in chosen]
    rows = []
    for problem in track(problems, description="CUTEst"):
        rows.append(measure(problem))
        jax.clear_caches()  # compiled code of 197 problems would fill the memory
        if not chosen:
            results = HERE / "results"
            results.mkdir(exist_ok=True)
            (results / "cutest.json").write_text(json.dumps(rows, indent=1) + "\n")
            (results / "cutest.md").write_text(table(rows))
    print(table(rows) if chosen else summary(rows))


if __name__ == "__main__":
    main()
