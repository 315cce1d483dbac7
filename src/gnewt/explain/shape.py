"""The name of a structure: chain, tree, star, grid, … read off the graph that is ordered.

Hubs (variables that touch very many others) are set aside first. What is left is looked at from one end, level by
level: a chain has many levels that are about as large as what one local function joins; a tree has levels much
larger than its width; a grid has levels as large as its width, of variables that touch few others.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

from gnewt.graph import Plan, Structure
from gnewt.plan import KKTGraph, kkt_graph

_FEW = 4.0
"""A structure falls apart if its largest part holds at most one of so many of its variables."""
_DENSE = 0.6
"""Share of the variables in the widest bag from which on a structure is dense."""
_LEVELS = 5
"""Levels that a chain has at least."""
_REACH = 3.0
"""How many times as many variables as one local function joins a level of a chain may have."""

KINDS = ("separable", "chain", "tree", "star", "grid", "network", "dense")


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a structure looks like."""

    name: str
    """One of `KINDS`."""
    hubs: int
    """Scalars that were set aside because they touch very many others."""
    parts: int
    """Parts into which the structure falls without its hubs."""
    levels: int
    """Breadth-first levels of its largest part."""

    def __str__(self) -> str:
        text = f"{self.name} with {self.hubs} shared scalars" if self.hubs > 1 else self.name
        if self.hubs == 1:
            text = f"{self.name} with one shared scalar"
        return f"{text}, in {self.parts} parts" if self.parts > 1 and self.name != "star" else text


def name_shape(structure: Structure, plan: Plan) -> Shape:
    """Name the structure of which `plan` is a plan. Cost O(nonzeros of K) but for a few sorts."""
    graph = kkt_graph(structure)
    matrix, sizes = _matrix(graph), graph.sizes
    if len(sizes) == 0:
        return Shape("separable", 0, 0, 0)
    total = float(sizes.sum())
    whole = _parts(matrix, sizes)
    if whole.max() <= total / _FEW:
        return Shape("separable", 0, len(whole), 1)
    hubs = _find_hubs(matrix, sizes)
    shared, rest = int(sizes[hubs].sum()), np.flatnonzero(~hubs)
    parts = _parts(matrix[rest][:, rest], sizes[rest])
    if shared and parts.max(initial=0) <= (total - shared) / _FEW:
        return Shape("star", shared, len(parts), 1)
    width = plan.certificate.width + 1
    levels = _levels(matrix[rest][:, rest], sizes[rest])
    shape = Shape("", shared, len(parts), len(levels))
    if width >= _DENSE * whole.max():
        return dataclasses.replace(shape, name="dense", hubs=0)
    if width >= structure.num_inputs <= 2 * shared:
        return dataclasses.replace(shape, name="dense", hubs=0)
    local = _local_size(structure, matrix, sizes)
    if len(levels) > _LEVELS and levels.max() <= _REACH * local:
        return dataclasses.replace(shape, name="chain")
    centre = _centre(graph, plan)
    around = np.flatnonzero(~centre)
    apart = _parts(matrix[around][:, around], sizes[around])
    if len(apart) > _FEW and apart.max() <= sizes[around].sum() / (2 * _FEW):
        return dataclasses.replace(shape, name="star", hubs=int(sizes[centre].sum()), parts=len(apart))
    if len(levels) == _LEVELS and levels.max() <= _REACH * local:
        return dataclasses.replace(shape, name="chain")
    if width >= structure.num_inputs:
        return dataclasses.replace(shape, name="dense", hubs=0)
    if width - shared <= max(local, levels.max() / 2):
        return dataclasses.replace(shape, name="tree")
    degree = matrix @ sizes
    even = np.quantile(degree, 0.9) <= 2 * np.mean(degree)
    return dataclasses.replace(shape, name="grid" if even else "network")


def _local_size(structure: Structure, matrix: sp.csr_matrix, sizes: np.ndarray) -> float:
    """Scalars that one local function joins."""
    joined = max((f.k + (0 if f.is_loss else f.m) for f in structure.families if f.n > 1), default=0)
    return max(float(np.median(matrix @ sizes)) + 1, float(joined))


def _matrix(graph: KKTGraph) -> sp.csr_matrix:
    pattern = graph.adjacency
    shape = (graph.num_vertices,) * 2
    return sp.csr_matrix((np.ones(len(pattern.idx)), pattern.idx, pattern.ptr), shape)


def _parts(matrix: sp.csr_matrix, sizes: np.ndarray) -> np.ndarray:
    """Scalars in each connected part."""
    if len(sizes) == 0:
        return np.zeros(0)
    return np.bincount(connected_components(matrix, directed=False)[1], weights=sizes)


def _find_hubs(matrix: sp.csr_matrix, sizes: np.ndarray) -> np.ndarray:
    """Mark variables that touch many more than the others do, and more than a level of a grid would hold."""
    degree = matrix @ sizes
    total = float(sizes.sum())
    hubs = degree > max(3 * float(np.median(degree)), min(2 * total**0.5, total / 2))
    # Where they are many, they are no exception.
    return hubs if 3 * sizes[hubs].sum() <= sizes.sum() else np.zeros(len(sizes), bool)


def _centre(graph: KKTGraph, plan: Plan) -> np.ndarray:
    """Mark the vertices of the widest front."""
    widest = int(np.argmax(np.diff(plan.elim_ptr) + np.diff(plan.sep_ptr)))
    marked = np.zeros(graph.num_vertices, bool)
    marked[graph.vertex_of_slot[plan.bag(widest)]] = True
    return marked


def _levels(matrix: sp.csr_matrix, sizes: np.ndarray) -> np.ndarray:
    """Scalars in each breadth-first level of the largest part, seen from one of its ends."""
    if len(sizes) == 0:
        return np.ones(1)
    label = connected_components(matrix, directed=False)[1]
    mine = np.flatnonzero(label == np.argmax(np.bincount(label, weights=sizes)))
    part, weight = matrix[mine][:, mine], sizes[mine]
    degree, start, distance = np.diff(part.indptr), 0, np.zeros(len(mine))
    for _ in range(3):  # an end is as far away as can be from somewhere that is far from somewhere
        distance = dijkstra(part, directed=False, indices=start, unweighted=True)
        far = np.flatnonzero(distance == distance.max())
        start = int(far[np.argmin(degree[far])])
    return np.bincount(distance.astype(np.int64), weights=weight)
