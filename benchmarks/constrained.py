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


def solve(solver: str, name: str, limit: float) -> dict[str, Any]:
    """Run one solver on one problem and judge where it ends."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import constrained_problems as problems
    import constrained_solvers as solvers

    p = problems.load(name)
    row: dict[str, Any] = {"solver": solver, "problem": name, "n": len(p.x0), "m": p.m}
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
    parser.add_argument("--every", type=int, default=1, help="each so-manieth problem, by size")
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
    jobs = [(s, n, options.limit) for s in solvers for n in names if (s, n) not in done]

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        verdict = "solved" if row["solved"] else "FALSE" if row.get("false") else "FAILED"
        figures = " ".join(
            f"{k} {row[k]:.2e}" if isinstance(row[k], float) else f"{k} {row[k]}"
            for k in ("iterations", "violation", "kkt", "fun", "seconds")
            if row.get(k) is not None
        )
        print(f"{row['solver']} {row['problem']}: {verdict} ({row['why']}) {figures}", file=sys.stderr)
        if path is not None:
            rows.sort(key=lambda r: (r["solver"], r["problem"]))
            path.write_text(json.dumps(rows, indent=0))

    lanes.run_lanes(solve, jobs, options.workers, options.limit + _COMPILE, record)
    return rows


if __name__ == "__main__":
    main()
