"""Tables and performance profile of `minimize.py`."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np


def write_report(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """Write minimize.md, with every failure named, and minimize.png."""
    solvers = list(dict.fromkeys(row["solver"] for row in rows))
    by_key = {(row["solver"], row["problem"]): row for row in rows}
    problems = sorted({row["problem"] for row in rows})
    lines = [
        "# Minimising the unconstrained CUTEst problems",
        "",
        "Made by `python benchmarks/minimize.py`.",
        "",
    ]
    lines += ["| solver | solved | of | gradients, where all solved (geometric mean) |", "|---|---|---|---|"]
    common = [p for p in problems if all(by_key.get((s, p), {}).get("solved") for s in solvers)]
    for solver in solvers:
        mine = [by_key[solver, p] for p in problems if (solver, p) in by_key]
        solved = sum(row["solved"] for row in mine)
        counts = [max(by_key[solver, p].get("gradients", 1), 1) for p in common]
        mean = f"{np.exp(np.mean(np.log(counts))):.1f}" if counts else "-"
        lines.append(f"| {solver} | {solved} | {len(mine)} | {mean} |")
    lines += ["", *_fewest(solvers, common, by_key), ""]
    for solver in solvers:
        failed = [row for p in problems if (row := by_key.get((solver, p))) and not row["solved"]]
        lines += [f"## Not solved by {solver} ({len(failed)})", ""]
        lines += [f"- {row['problem']} (N = {row.get('N', '?')}): {row['why']}" for row in failed] + [""]
    (folder / "minimize.md").write_text("\n".join(lines))
    _plot(solvers, problems, by_key, folder / "minimize.png")


def _fewest(solvers: list[str], common: list[str], by_key: dict[Any, Any]) -> list[str]:
    if "gnewt" not in solvers or not common:
        return []
    best = 0
    for p in common:
        others = [by_key[s, p].get("gradients", np.inf) for s in solvers if s != "gnewt"]
        best += by_key["gnewt", p]["gradients"] <= min(others, default=np.inf)
    share = 100 * best / len(common)
    return [
        f"On {len(common)} problems that all of them solve gnewt needs the fewest gradients on {share:.0f} %."
    ]


def _plot(solvers: list[str], problems: list[str], by_key: dict[Any, Any], path: pathlib.Path) -> None:
    """Share of problems that a solver solves within a factor of the fewest gradients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cost = np.full((len(problems), len(solvers)), np.inf)
    for i, p in enumerate(problems):
        for j, s in enumerate(solvers):
            row = by_key.get((s, p), {})
            if row.get("solved"):
                cost[i, j] = max(row.get("gradients", 1), 1)
    best = cost.min(1, keepdims=True)
    ratio = np.where(np.isfinite(best), cost / np.where(np.isfinite(best), best, 1.0), np.inf)
    factors = np.logspace(0, 3, 300)
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for j, s in enumerate(solvers):
        axes.plot(factors, [(ratio[:, j] <= f).mean() for f in factors], label=s)
    axes.set(
        xscale="log", xlabel="gradients, relative to the fewest", ylabel="share of problems", ylim=(0, 1)
    )
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
