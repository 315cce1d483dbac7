"""Tables and performance profile of `minimize.py`."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]
Table = dict[tuple[str, str], dict[str, Any]]


def write_report(rows: Rows, folder: pathlib.Path) -> None:
    """Write minimize.md, with every failure named, and minimize.png."""
    table = {(row["solver"], row["problem"]): row for row in rows}
    precisions = [s for s in ("gnewt-float64", "gnewt-float32") if any(row["solver"] == s for row in rows)]
    order = ("gnewt", "trust-exact", "trust-krylov", "L-BFGS-B", "optimistix-bfgs")
    solvers = [s for s in order if any(row["solver"] == s for row in rows)]
    problems = sorted({row["problem"] for row in rows if row["solver"] in solvers})
    lines = [
        "# Minimising the unconstrained CUTEst problems",
        "",
        "Made by `python benchmarks/minimize.py`: each problem of sif2jax at its own size, 60 s of one core.",
        "",
        *_counts(solvers, problems, table),
        "",
        *_comparison(solvers, problems, table),
        *_profile_table(solvers, problems, table),
        *_precisions(precisions, table),
    ]
    for solver in [*solvers, *precisions]:
        failed = [row for row in rows if row["solver"] == solver and not row["solved"]]
        lines += [f"## Not solved by {solver} ({len(failed)})", ""]
        lines += [f"- {row['problem']} (N = {row.get('N', '?')}): {row['why']}" for row in failed] + [""]
    lines += _all_rows(solvers, problems, table)
    (folder / "minimize.md").write_text("\n".join(lines))
    try:
        _plot(solvers, problems, table, folder / "minimize.png")
    except ImportError:
        print("no matplotlib: minimize.png is not drawn", file=sys.stderr)


def _solved(table: Table, solver: str, problem: str) -> bool:
    return bool(table.get((solver, problem), {}).get("solved"))


def _ends_together(table: Table, solvers: list[str], problem: str) -> bool:
    """Whether all values agree to six digits: the test of the gradient also passes at other points, or early."""
    values = np.array([table[s, problem]["fun"] for s in solvers])
    return bool(np.ptp(values) <= 1e-6 * max(1.0, np.min(np.abs(values))))


def _counts(solvers: list[str], problems: list[str], table: Table) -> list[str]:
    lines = [
        "| solver | solved | of | by gradient | rounding | unbounded | gradients, where all solved (geometric mean) |",
        "|---|---|---|---|---|---|---|",
    ]
    common = [p for p in problems if all(_solved(table, s, p) for s in solvers)]
    for solver in solvers:
        mine = [table[solver, p] for p in problems if (solver, p) in table]
        solved = [row for row in mine if row["solved"]]
        ways = [sum(row["why"] == why for row in solved) for why in ("gradient", "rounding", "unbounded")]
        logs = [np.log(max(table[solver, p]["gradients"], 1)) for p in common]
        mean = f"{np.exp(np.mean(logs)):.1f} (of {len(common)})" if logs else "–"
        lines.append(
            f"| {solver} | {len(solved)} | {len(mine)} | " + " | ".join(map(str, ways)) + f" | {mean} |"
        )
    return lines


def _comparison(solvers: list[str], problems: list[str], table: Table) -> list[str]:
    """Gradients against each peer where both solve, and against all where gnewt and another solve."""
    if "gnewt" not in solvers or len(solvers) < 2:
        return []

    def line(name: str, peers: list[str], chosen: list[str]) -> str:
        fewer = equal = 0
        for p in chosen:
            mine = table["gnewt", p]["gradients"]
            theirs = min(table[s, p]["gradients"] for s in peers if _solved(table, s, p))
            fewer, equal = fewer + (mine < theirs), equal + (mine == theirs)
        n = max(len(chosen), 1)
        more = len(chosen) - fewer - equal
        shares = f"{fewer} ({100 * fewer / n:.0f} %) | {equal} | {more} | {100 * (fewer + equal) / n:.0f} %"
        return f"| {name} | {len(chosen)} | {shares} |"

    peers = [s for s in solvers if s != "gnewt"]
    lines = [
        "Evaluations of the gradient by gnewt, against those of a peer, on the problems that both solve:",
        "",
        "| against | problems | gnewt fewer | as many | more | no more than it |",
        "|---|---|---|---|---|---|",
    ]
    for s in peers:
        both = [p for p in problems if _solved(table, "gnewt", p) and _solved(table, s, p)]
        lines.append(line(s, [s], both))
    common = [p for p in problems if all(_solved(table, s, p) for s in solvers)]
    some = [p for p in problems if _solved(table, "gnewt", p) and any(_solved(table, s, p) for s in peers)]
    lines.append(line("the best of all, where all solve", peers, common))
    same = [p for p in common if _ends_together(table, solvers, p)]
    lines.append(line("the best of all, where all end in the same minimum", peers, same))
    lines.append(line("the best of those that solve", peers, some))
    return [*lines, ""]


def _profile_table(solvers: list[str], problems: list[str], table: Table) -> list[str]:
    factors = (1, 1.5, 2, 4, 10, 100)
    ratio = _ratios(solvers, problems, table)
    lines = [
        "Share of all problems that a solver solves with at most τ times the fewest gradients (`minimize.png`):",
        "",
        "| τ | " + " | ".join(solvers) + " |",
        "|---" * (len(solvers) + 1) + "|",
    ]
    for factor in factors:
        shares = [f"{100 * (ratio[:, j] <= factor).mean():.0f} %" for j in range(len(solvers))]
        lines.append(f"| {factor} | " + " | ".join(shares) + " |")
    return [*lines, ""]


def _precisions(precisions: list[str], table: Table) -> list[str]:
    if len(precisions) < 2:
        return []
    counts = {s: sum(r["solved"] for (t, _), r in table.items() if t == s) for s in precisions}
    total = sum(1 for s, _ in table if s == "gnewt-float64")
    lost = 100 * (1 - counts["gnewt-float32"] / max(counts["gnewt-float64"], 1))
    return [
        f"At a tolerance of 1e-3 gnewt solves {counts['gnewt-float64']} of the {total} smallest in float64 and "
        f"{counts['gnewt-float32']} in float32 ({lost:.1f} % fewer).",
        "",
    ]


def _all_rows(solvers: list[str], problems: list[str], table: Table) -> list[str]:
    lines = [
        "## Gradients per problem",
        "",
        "(–: not solved)",
        "",
        "| problem | N | " + " | ".join(solvers) + " |",
        "|---" * (len(solvers) + 2) + "|",
    ]
    for p in problems:
        sizes = [table[s, p]["N"] for s in solvers if "N" in table.get((s, p), {})]
        cells = [str(table[s, p]["gradients"]) if _solved(table, s, p) else "–" for s in solvers]
        lines.append(f"| {p} | {sizes[0] if sizes else '?'} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _ratios(solvers: list[str], problems: list[str], table: Table) -> np.ndarray:
    """Gradients relative to the fewest, [problem, solver]; inf where not solved."""
    cost = np.full((len(problems), len(solvers)), np.inf)
    for i, p in enumerate(problems):
        for j, s in enumerate(solvers):
            if _solved(table, s, p):
                cost[i, j] = max(table[s, p]["gradients"], 1)
    best = cost.min(1, keepdims=True)
    return np.where(np.isfinite(best), cost / np.where(np.isfinite(best), best, 1.0), np.inf)


def _plot(solvers: list[str], problems: list[str], table: Table, path: pathlib.Path) -> None:
    """Share of problems that a solver solves within a factor of the fewest gradients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ratio = _ratios(solvers, problems, table)
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
