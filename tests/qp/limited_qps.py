"""Random convex QPs with limits (seeded): hypertrees of one shape with many sets of numbers, and their dense form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gnewt.qp import Hyperedge
from qp.qps import random_hypertree

KINDS = ("plain", "degenerate", "pinned", "linear", "redundant", "infeasible", "unbounded", "scaled")


class Numbers(NamedTuple):
    """Numbers of the edges and vertices of one shape; arrays of any kind."""

    Q: list[Any]
    b: list[Any]
    G: list[Any]
    h: list[Any]
    C: list[Any]
    lower: list[Any]
    upper: list[Any]
    low: list[Any]
    up: list[Any]


class Shape(NamedTuple):
    """What QPs of one family share."""

    bags: list[list[str]]
    sizes: dict[str, int]
    rows: list[int]
    limits: list[int]

    def edges(self, n: Numbers) -> tuple[list[Hyperedge], dict[str, Any]]:
        """Edges and bounds."""
        edges = [
            Hyperedge(bag, n.Q[i], n.b[i], n.G[i], n.h[i], f"bag{i}", n.C[i], n.lower[i], n.upper[i])
            for i, bag in enumerate(self.bags)
        ]
        return edges, {v: (n.low[i], n.up[i]) for i, v in enumerate(self.sizes)}


def random_shape(seed: int) -> Shape:
    rng = np.random.default_rng(seed)
    bags = random_hypertree(rng, int(rng.integers(1, 8)))
    sizes = {v: int(rng.integers(1, 4)) for bag in bags for v in bag}
    widths = [sum(sizes[v] for v in bag) for bag in bags]
    rows = [int(rng.integers(0, max(1, k // 3) + 1)) for k in widths]
    limits = [int(rng.integers(1, k + 2)) for k in widths]
    return Shape(bags, sizes, rows, limits)


def random_numbers(shape: Shape, seed: int, kind: str) -> Numbers:
    """A QP that has a solution, but for the kinds `infeasible` and `unbounded`."""
    rng = np.random.default_rng(seed)
    x0 = {v: rng.normal(size=n) for v, n in shape.sizes.items()}
    out = Numbers(*([] for _ in Numbers._fields))
    unit = 10.0 ** rng.integers(-3, 4) if kind == "scaled" else 1.0
    for i, bag in enumerate(shape.bags):
        x = np.concatenate([x0[v] for v in bag])
        k, m, n = len(x), shape.rows[i], shape.limits[i]
        rank = 0 if kind in ("linear", "unbounded") else int(rng.integers(k // 2, k + 1))
        root = rng.normal(size=(rank, k))
        G, C = rng.normal(size=(m, k)), rng.normal(size=(n, k))
        if kind == "redundant" and m > 1:
            G[-1] = G[0] - 2 * G[:-1].sum(0)
        if kind in ("degenerate", "redundant") and n > 1:
            C[-1] = 3 * C[0]
        middle = C @ x
        lower, upper = middle - rng.exponential(size=n), middle + rng.exponential(size=n)
        if kind == "degenerate":  # many limits through one point
            upper = np.where(rng.random(n) < 0.5, middle, upper)
        if kind == "pinned":
            same = rng.random(n) < 0.3
            lower, upper = np.where(same, middle, lower), np.where(same, middle, upper)
        lower[rng.random(n) < 0.3] = -np.inf
        upper[rng.random(n) < 0.3] = np.inf
        if kind == "pinned":
            lower, upper = np.where(same, middle, lower), np.where(same, middle, upper)
        if kind == "infeasible" and i == 0:
            C[-1], lower[-1], upper[-1] = 0.0, -np.inf, np.inf
            C[-1, 0], upper[-1] = 1.0, x[0] - 40.0
        parts = (root.T @ root, rng.normal(size=k) * 3, G, G @ x, C, lower, upper)
        parts = (
            parts[0] * unit,
            parts[1] * unit,
            G * unit,
            G @ x * unit,
            C / unit,
            lower / unit,
            upper / unit,
        )
        for field, part in zip(out, parts, strict=False):
            field.append(part)
    for v, n in shape.sizes.items():
        low, up = x0[v] - 20 * rng.exponential(size=n) - 0.1, x0[v] + 20 * rng.exponential(size=n) + 0.1
        if kind == "pinned":
            same = rng.random(n) < 0.3
            low, up = np.where(same, x0[v], low), np.where(same, x0[v], up)
        elif kind not in ("linear", "infeasible"):
            low[rng.random(n) < 0.2], up[rng.random(n) < 0.2] = -np.inf, np.inf
        if kind == "infeasible":
            low, up = x0[v] - 20.0, x0[v] + 20.0
        if kind == "unbounded":
            low, up = np.full(n, -np.inf), np.full(n, np.inf)
        out.low.append(low)
        out.up.append(up)
    return out


class Dense(NamedTuple):
    Q: np.ndarray
    b: np.ndarray
    A: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def to_dense(shape: Shape, n: Numbers) -> Dense:
    """½xᵀQx - bᵀx subject to lower ≤ Ax ≤ upper: rows of G, then of C, then bounds; in the order of `shape.sizes`."""
    start = dict(zip(shape.sizes, np.cumsum([0, *shape.sizes.values()]), strict=False))
    total = sum(shape.sizes.values())
    Q, b = np.zeros((total, total)), np.zeros(total)
    rows: list[list[Any]] = [[], [], [], []]
    for i, bag in enumerate(shape.bags):
        at = np.concatenate([np.arange(start[v], start[v] + shape.sizes[v]) for v in bag])
        Q[np.ix_(at, at)] += n.Q[i]
        b[at] += n.b[i]
        for part, to in ((n.G[i], rows[0]), (n.C[i], rows[1])):
            wide = np.zeros((len(part), total))
            wide[:, at] = part
            to.append(wide)
    A = np.concatenate([*rows[0], *rows[1], np.eye(total)])
    return Dense(
        Q,
        b,
        A,
        np.concatenate([*n.h, *n.lower, *n.low]),
        np.concatenate([*n.h, *n.upper, *n.up]),
    )
