"""A report as text: tables of at most about a hundred columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnewt.explain.amounts import amount, plural, ratio

if TYPE_CHECKING:
    from gnewt.explain.report import FamilyRow, Report

_MOST_ROWS = 12


def show_report(report: Report) -> str:
    """Write a report as text."""
    shape = report.shape
    head = (
        f"{shape}: {plural(report.num_inputs, 'input')}, {plural(report.num_kept, 'kept intermediate')}, "
        f"width {report.width}, {plural(report.num_fronts, 'front')}"
    )
    lines = [
        head,
        "",
        *_columns([("family", "times", "in → out", "line", ""), *map(_row, report.families[:_MOST_ROWS])]),
    ]
    if len(report.families) > _MOST_ROWS:
        lines.append(f"  ... and {len(report.families) - _MOST_ROWS} more")
    lines += [
        "",
        f"widest front: {report.widest}",
        "",
        *_columns(_cost_rows(report)),
        *(f"  {cost.method}: {cost.note}" for cost in report.costs.values() if cost.note),
        *(
            f"  {name}: {report.measured[name]:.3g} ms"
            for name in ("value and gradient",)
            if name in report.measured
        ),
        "",
        f"order {report.order}: {report.why_order}",
        f"engine {report.engine}: {report.why_engine}",
    ]
    lines += [f"{row.where}: {row.note}" for row in report.families if "opaque" in row.note][:6]
    advice = report.cheaper
    lines += ["cheaper: " + sentence for sentence in advice] or ["cheaper: nothing was found that would help"]
    return "\n".join(line.rstrip() for line in lines)


def _row(row: FamilyRow) -> tuple[str, ...]:
    shape = f"{row.arguments} → {row.outputs}" if row.outputs else f"{row.arguments} → loss"
    return (row.name, f"{row.instances:,}", shape, row.where, f"[{row.note}]" if row.note else "")


def _cost_rows(report: Report) -> list[tuple[str, ...]]:
    tree = report.costs["tree"]
    timed = any(cost.ms is not None for cost in report.costs.values())
    rows = [("one step by", "flops", "/ tree", "bytes", "measured" if timed else "")]
    for cost in report.costs.values():
        taken = "" if cost.ms is None else f"{cost.ms:.3g} ms"
        share = "–" if cost.flops != cost.flops else ratio(cost.flops, tree.flops)
        rows.append(
            (
                cost.method,
                amount(cost.flops).strip(),
                share,
                "–" if cost.bytes != cost.bytes else f"{amount(cost.bytes)}B",
                taken,
            )
        )
    return rows


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows below each other, columns aligned; the first one to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]
