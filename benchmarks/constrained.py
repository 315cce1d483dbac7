"""Solve the constrained and bounded CUTEst problems of sif2jax with gnewt and with its peers.

    python benchmarks/constrained.py                     all solvers, all problems → results/constrained.{json,md}
    python benchmarks/constrained.py --peers gnewt       one solver; rows of the others are kept
    python benchmarks/constrained.py --skip-done         go on: rows that are there are not run again
    python benchmarks/constrained.py --only HS71 HS15    these problems, printed only
    python benchmarks/constrained.py --report            the tables from the JSON that is there

Problems with n ≤ 300 and m ≤ 600, each from its own start, every solver with its defaults and exact derivatives by JAX.
Limit: 20 seconds of processor time on one core, compilation apart. Solved: violation ≤ 1e-6 and scaled KKT residual ≤ 1e-6,
both computed by JAX from the point and the multipliers that a solver returns (`constrained_problems.judge`), or a feasible
point with f ≤ -1e15, which certifies that there is no minimum. A false success is a claim that the judge does not confirm.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import lanes

RESULTS = pathlib.Path(__file__).parent / "results"
SOLVERS = ("gnewt", "ipopt", "slsqp", "trust-constr", "l-bfgs-b")
LIMIT = 20.0
_COMPILE = 150.0
"""Seconds for tracing and compiling, beyond the limit."""


def solve(chosen: str, name: str, limit: float) -> dict[str, Any]:
    """Run solvers, one after the other, on one problem, and judge where they end. They share compiled functions."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import constrained_problems as problems

    p = problems.load(name)
    if p is None:
        return {"problem": name, "rows": []}
    rows = []
    for solver in chosen.split(","):
        try:
            rows.append(_row(solver, p, limit))
        except Exception as error:  # whatever goes wrong belongs into the table
            why = f"{type(error).__name__}: {str(error)[:150]}"
            rows.append({"solver": solver, "problem": name, "solved": False, "why": why})
    return {"problem": name, "rows": rows}


def _row(solver: str, p: Any, limit: float) -> dict[str, Any]:
    import constrained_problems as problems
    import constrained_solvers as solvers

    row: dict[str, Any] = {"solver": solver, "problem": p.name, "n": len(p.x0), "m": p.m}
    row |= {"equalities": p.num_equalities, "solved": False}
    if solver == "l-bfgs-b" and not p.bounded_only:
        return row | {"why": "not run: bounds only"}
    x, y, z, counts = solvers.run(solver, p, limit)
    row |= counts | problems.judge(p, x, y, z)
    row = {k: (None if isinstance(v, float) and v != v else v) for k, v in row.items()}
    feasible = row["violation"] <= problems.TOL
    unbounded = feasible and row["fun"] is not None and row["fun"] <= problems.UNBOUNDED
    solved = feasible and row["kkt"] <= problems.TOL
    row["solved"] = bool((solved or unbounded) and row["seconds"] <= 1.1 * limit)
    row["why"] = "unbounded" if unbounded else row["status"]
    row["false"] = bool(row["claims"] and not row["solved"])
    return row


def main() -> None:
    """Run, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--peers", default=",".join(SOLVERS), help="solvers, with commas between them")
    parser.add_argument("--skip-done", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="each so-manieth problem, by name")
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    path = RESULTS / "constrained.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    if not options.report:
        rows = _run(options, rows, None if options.only else path)
    if not options.only:
        from constrained_report import write_report

        write_report(rows, RESULTS / "constrained.md")


def _run(
    options: argparse.Namespace, rows: list[dict[str, Any]], path: pathlib.Path | None
) -> list[dict[str, Any]]:
    import constrained_problems as problems

    names = options.only or problems.names()[:: options.every]
    solvers = options.peers.split(",")
    if path is None:
        rows = []
    elif not options.skip_done:
        rows = [r for r in rows if r["solver"] not in solvers or r["problem"] not in names]
    done = {(r["solver"], r["problem"]) for r in rows}
    left = {n: [s for s in solvers if (s, n) not in done] for n in names}
    jobs = [(",".join(missing), n, options.limit) for n, missing in left.items() if missing]
    jobs.sort(key=lambda job: job[0])  # a process serves one set of solvers

    def record(found: dict[str, Any]) -> None:
        ended = [found | {"solver": s} for s in found.get("solver", "").split(",")]
        for row in found.get("rows", ended):
            show(row)
        if path is not None:
            rows.sort(key=lambda r: (r["solver"], r["problem"]))
            path.write_text(json.dumps(rows, indent=0))

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        verdict = "solved" if row["solved"] else "FALSE" if row.get("false") else "FAILED"
        figures = " ".join(
            f"{k} {row[k]:.2e}" if isinstance(row[k], float) else f"{k} {row[k]}"
            for k in ("iterations", "violation", "kkt", "fun", "seconds")
            if row.get(k) is not None
        )
        print(
            f"{row['solver']} {row['problem']}: {verdict} ({row['why']}) {figures}",
            file=sys.stderr,
            flush=True,
        )

    lanes.run_lanes(solve, jobs, options.workers, len(solvers) * (options.limit + _COMPILE), record)
    return rows


if __name__ == "__main__":
    main()
