"""Tables of `constrained.py`: counts, iterations, false successes, and every failure with its reason."""

from __future__ import annotations

import math
import pathlib
from typing import Any

Rows = list[dict[str, Any]]


def write_report(rows: Rows, path: pathlib.Path) -> None:
    """Write the Markdown tables."""
    table = {(r["solver"], r["problem"]): r for r in rows}
    solvers = list(dict.fromkeys(r["solver"] for r in rows))
    solvers.sort(key=lambda s: (s != "gnewt", s != "ipopt", s))
    lines = ["# Constrained and bounded CUTEst problems", ""]
    lines += ["`python benchmarks/constrained.py`; how it is measured stands in its first lines.", ""]
    lines += _counts(table, solvers, rows) + _iterations(table, solvers) + _failures(table, solvers)
    path.write_text("\n".join(lines) + "\n")


def _counts(table: dict[tuple[str, str], Any], solvers: list[str], rows: Rows) -> list[str]:
    lines = ["| solver | run | solved | of these unbounded | with bounds only | false successes |"]
    lines += ["|---|---|---|---|---|---|"]
    for s in solvers:
        mine = [r for r in rows if r["solver"] == s and not r["why"].startswith("not run")]
        good = [r for r in mine if r["solved"]]
        cells = (
            s,
            len(mine),
            len(good),
            sum(r["why"] == "unbounded" for r in good),
            sum(r.get("m") == 0 for r in good),
            sum(bool(r.get("false")) for r in mine),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def _iterations(table: dict[tuple[str, str], Any], solvers: list[str]) -> list[str]:
    lines = [
        "| gnewt against | both solve | iterations of gnewt / of the other, geometric mean | better | worse |"
    ]
    lines += ["|---|---|---|---|---|"]
    for s in solvers:
        if s == "gnewt":
            continue
        pairs = [
            (max(1, r["iterations"]), max(1, other["iterations"]))
            for (solver, name), r in table.items()
            if solver == "gnewt"
            and r["solved"]
            and (other := table.get((s, name))) is not None
            and other["solved"]
            and "unbounded" not in (r["why"], other["why"])
        ]
        if pairs:
            mean = math.exp(sum(math.log(a / b) for a, b in pairs) / len(pairs))
            better, worse = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
            lines.append(f"| {s} | {len(pairs)} | {mean:.3f} | {better} | {worse} |")
    return [*lines, ""]


def _failures(table: dict[tuple[str, str], Any], solvers: list[str]) -> list[str]:
    lines = ["Where gnewt or IPOPT fails:", ""]
    lines += [
        "| problem | n | m | gnewt | violation | KKT | IPOPT | violation | KKT |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = sorted({name for _, name in table})
    for name in names:
        ours, theirs = table.get(("gnewt", name)), table.get(("ipopt", name))
        if all(r is None or r["solved"] for r in (ours, theirs)):
            continue
        size = next(r for r in (ours, theirs) if r is not None)
        cells = [name, size.get("n", ""), size.get("m", ""), *_outcome(ours), *_outcome(theirs)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _outcome(row: dict[str, Any] | None) -> tuple[str, str, str]:
    if row is None:
        return "not run", "", ""
    if row["solved"]:
        return f"solved in {row['iterations']}", "", ""
    why = ("false: " if row.get("false") else "") + str(row["why"]).split("(")[0][:60]
    return why, *(f"{row[k]:.0e}" if isinstance(row.get(k), float) else "" for k in ("violation", "kkt"))
