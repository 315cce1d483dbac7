"""A report as plain data: numbers, strings, lists and dicts, for JSON and for programs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnewt.explain.report import Report


def report_data(report: Report) -> dict[str, object]:
    """Write a report as a dict; numbers that are not known are None."""
    return {
        "structure": report.structure,
        "shape": str(report.shape),
        "inputs": report.num_inputs,
        "kept": report.num_kept,
        "width": report.width,
        "fronts": report.num_fronts,
        "widest_front": report.widest,
        "order": report.order,
        "why_order": report.why_order,
        "engine": report.engine,
        "why_engine": report.why_engine,
        "families": [dataclasses.asdict(row) for row in report.families],
        "costs": {
            name: {
                "flops": _known(cost.flops),
                "bytes": _known(cost.bytes),
                "ms": _known(cost.ms),
                "note": cost.note,
            }
            for name, cost in report.costs.items()
        },
        "gradient_ms": report.measured.get("value and gradient"),
        "cheaper": list(report.cheaper),
    }


def _known(x: float | None) -> float | None:
    return None if x is None or not math.isfinite(x) else float(x)
