"""Tables of the page "Choose a tool", from the results of the benchmarks."""

from __future__ import annotations

import json
import pathlib

RESULTS = pathlib.Path(__file__).parents[1] / "benchmarks" / "results"


def _rows(name, table):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["tables"][table]


def _number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def light_table() -> str:
    """Steps of programs as users write them: width, times, ratios."""
    lines = [
        "| program | N | width | gnewt µs | `value_and_grad` µs | dense µs | dense / gnewt |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _rows("light-avx512", "Programs"):
        dense = row.get("dense µs") or 0
        told = (
            (_number(dense), f"{dense / row['step µs']:.0f}")
            if dense == dense and dense
            else ("not measured", "–")
        )
        cells = [
            row["program"],
            f"{row['N']:,}",
            row["width"],
            _number(row["step µs"]),
            _number(row["value_and_grad µs"]),
        ]
        lines.append("| " + " | ".join(map(str, (*cells, *told))) + " |")
    return "\n".join(lines)


def cutest_table() -> str:
    """Steps on CUTEst against coloured sparse and dense Hessians."""
    lines = [
        "| problem | N | gnewt µs | gnewt / (coloured H + CHOLMOD) | gnewt / dense |",
        "|---|---|---|---|---|",
    ]
    for row in _rows("cutest_step-avx2", "Problems"):
        ratios = [f"{row[key]:.3g}" if row.get(key) else "–" for key in ("gnewt / asdex", "gnewt / dense")]
        lines.append(
            "| " + " | ".join((row["problem"], f"{row['N']:,}", _number(row["gnewt µs"]), *ratios)) + " |"
        )
    return "\n".join(lines)


MARKS = {"<!-- table light -->": light_table, "<!-- table cutest -->": cutest_table}
"""Marks on pages, and what stands there on the site."""
