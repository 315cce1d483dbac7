"""The page of a report: one HTML file with its data, style and program inside. It loads nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from gnewt.explain.condensed_tree import condense_tree
from gnewt.explain.flops import count_fronts

if TYPE_CHECKING:
    from gnewt.explain.report import Report

_BINS = (256, 1024, 4096)
"""Squares to a side in which a matrix is drawn, from far and from near."""
_MOST_CELLS = 60_000
_MOST_FAMILIES = 40
_MOST_NAMES = 8
_SIDE = 640
"""Pixels: the height of a page inside a notebook."""


def make_page(report: Report) -> str:
    """Write the page."""
    parts = resources.files("gnewt.explain") / "assets"
    style, program, body = (
        (parts / name).read_text("utf-8") for name in ("page.css", "page.js", "page.html")
    )
    # "</" inside a string of JSON would end the script.
    data = json.dumps(_data(report), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    fill = {"@STYLE@": style, "@PROGRAM@": program, "@DATA@": data.replace("</", "<\\/")}
    fill["@TEXT@"] = html.escape(str(report))
    for mark, text in fill.items():
        body = body.replace(mark, text)
    return body


def embed_page(report: Report) -> str:
    """Write the page as a frame, so that its style does not reach the notebook around it."""
    inner = html.escape(make_page(report), quote=True)
    return f'<iframe srcdoc="{inner}" style="width:100%;height:{_SIDE}px;border:0" title="gnewt explain"></iframe>'


def _data(report: Report) -> dict[str, Any]:
    shape = report.shape
    return {
        "head": f"{shape}",
        "facts": {
            "structure": str(shape),
            "inputs N": report.num_inputs,
            "kept intermediates": report.num_kept,
            "width": report.width,
            "fronts": report.num_fronts,
            "order": f"{report.order}: {report.why_order}",
            "engine": f"{report.engine}: {report.why_engine}",
            "widest front": report.widest,
        },
        "cheaper": report.cheaper,
        "costs": [
            {
                "method": cost.method,
                "flops": _number(cost.flops),
                "bytes": _number(cost.bytes),
                "ms": cost.ms,
                "note": cost.note,
            }
            for cost in report.costs.values()
        ],
        "families": _families(report),
        "tree": _tree(report),
        "matrices": _matrices(report),
    }


def _number(x: float) -> float | None:
    return None if x != x else x


def _families(report: Report) -> Mapping[str, Any]:
    """Families and which of them read which; inputs are one more."""
    structure = report.system.structure
    shown = structure.families[:_MOST_FAMILIES]
    maker = np.full(structure.num_slots, len(structure.families) + 1)
    maker[: structure.num_inputs] = 0
    for f in structure.nodes:
        maker[structure.families[f].outs] = f + 1
    nodes = [
        {
            "name": "inputs",
            "kind": "input",
            "n": structure.num_inputs,
            "where": "",
            "note": "",
            "k": 0,
            "m": 1,
        }
    ]
    edges = []
    for f, family in enumerate(shown):
        kind = "loss" if family.is_loss else "node"
        nodes.append(
            {
                "name": family.name,
                "kind": kind,
                "n": family.n,
                "k": family.k,
                "m": family.m,
                "where": family.where,
                "note": family.note,
            }
        )
        counts = np.bincount(maker[family.args].ravel(), minlength=len(shown) + 1)[: len(shown) + 1]
        edges += [[int(g), f + 1, int(counts[g])] for g in np.flatnonzero(counts)]
    return {"nodes": nodes, "edges": edges, "left_out": len(structure.families) - len(shown)}


def _tree(report: Report) -> list[dict[str, Any]]:
    """Fronts as they are drawn."""
    plan, names = report.system.plan, report.names
    flops = count_fronts(plan)
    elim, sep = np.diff(plan.elim_ptr), np.diff(plan.sep_ptr)
    return [
        {
            "p": own.parent,
            "c": own.count,
            "e": int(elim[own.front]),
            "s": int(sep[own.front]),
            "f": float(flops[own.front]),
            "v": names.bag(own.front, _MOST_NAMES),
            "w": names.lines(own.front),
        }
        for own in condense_tree(plan, names.key)
    ]


def _matrices(report: Report) -> list[dict[str, Any]]:
    """Sparsity of KKT matrix and Hessian, as they come and in the order of elimination."""
    plan = report.system.plan
    row, col = plan.entry_unknowns
    place = np.empty(plan.num_unknowns, np.int64)
    place[plan.elim_idx] = np.arange(plan.num_unknowns)
    drawn = [
        _matrix("KKT matrix, as it comes", plan.num_unknowns, row, col),
        _matrix("KKT matrix, in the order of elimination", plan.num_unknowns, place[row], place[col]),
    ]
    if report.hessian is not None:
        found = report.hessian
        n = report.num_inputs
        row, col = np.repeat(np.arange(n), np.diff(found.pattern.indptr)), found.pattern.indices
        row, col = row[row >= col], col[row >= col]
        place = np.empty(n, np.int64)
        place[found.order] = np.arange(n)
        drawn += [
            _matrix("Hessian, as it comes", n, row, col),
            _matrix("Hessian, ordered for a sparse factor", n, place[row], place[col]),
        ]
    return drawn


def _matrix(title: str, n: int, row: np.ndarray, col: np.ndarray) -> dict[str, Any]:
    """Fill squares, from coarse to fine; each list holds the distances from one filled square to the next."""
    levels = []
    for bins in _BINS:
        bins = min(bins, n)
        filled = np.zeros(bins * bins, bool)
        r, c = (np.asarray(a, np.int64) * bins // max(n, 1) for a in (row, col))
        filled[r * bins + c] = filled[c * bins + r] = True
        cells = np.flatnonzero(filled)
        if len(cells) > _MOST_CELLS and levels:
            break
        levels.append({"bins": bins, "cells": np.diff(cells, prepend=0).tolist()})
        if bins == n:
            break
    entries = int(np.sum(np.where(row == col, 1, 2)))
    return {"title": title, "n": n, "entries": entries, "levels": levels}
