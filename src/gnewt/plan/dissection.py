"""Nested dissection: a light separator cuts the graph in two; it is eliminated last, and the sides are cut again.

Separators are found on many levels (Hendrickson and Leland; Karypis and Kumar): pairs of vertices with strong bonds become
one, until the graph is small. There regions are grown from several vertices; on the way back to the whole graph single
vertices are moved (`refinement.py`). The vertices of the last parts, and those of each separator, are ordered by approximate
minimum degree on the whole graph, so that what lies around a part counts.

The twin of cpp/separator.cpp and cpp/dissection.cpp.
"""

from __future__ import annotations

import itertools

import numpy as np

from gnewt import _native
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.approximate import approximate_degree, find_hubs
from gnewt.plan.orderings import Order
from gnewt.plan.refinement import BETWEEN, LEFT, RIGHT, Cut, Refinement, WeightedGraph
from gnewt.plan.sparsity import mix
from gnewt.plan.tree import NO_LIMIT, OverLimit

_LEAF = 120
"""Vertices of a part that is not cut any more."""
_LONG, _FEW, _MANY = 10_000, 2, 4
"""Vertices of a part for which few separators are tried; how many these are, and how many for a shorter one."""
_SHARE = 2
"""One part in this many of the flops is all that separators may cost by themselves wherever a dissection is any good: they
take 3-4 % on grids of two and of three dimensions, and their parts have them around."""
_COARSE, _SEEDS = 80, 6
"""Vertices at which coarsening ends, and regions that are grown then."""


def nested_dissection(adjacency: Adjacency, sizes: np.ndarray, most: int = NO_LIMIT) -> Order:
    """Cut the graph by light separators, recursively; separators are eliminated last, hubs after them.

    Args:
        most: raise OverLimit as soon as it is likely, or certain, that the steps cost more flops, Σ|ι||χ|².

    The tree is balanced: its height, the number of steps of a parallel elimination, grows like the logarithm of the
    length. Cost O(nonzeros · log V).
    """
    sizes = np.ascontiguousarray(sizes, np.int64)
    hubs, group = find_hubs(adjacency, None), _indistinguishable(adjacency)
    num, row = int(group.max(initial=-1)) + 1, np.repeat(group, np.diff(adjacency.ptr))
    groups = Adjacency.from_pairs(num, row, group[adjacency.idx])
    weight = np.bincount(group, sizes, num).astype(np.int64)
    stage = np.where(np.bincount(group, hubs, num) > 0, -1, 0).astype(np.int32)
    if _native.LIBRARY is not None:
        found = _native.dissect(groups.ptr, groups.idx, weight, stage, most // _SHARE)
    else:
        found = _dissect(groups, weight, stage, most // _SHARE)
    if found is None:
        raise OverLimit(f"this order costs more than {most} flops")
    return approximate_degree(adjacency, sizes, None, most, found[group])


def _indistinguishable(adjacency: Adjacency) -> np.ndarray:
    """Number the groups of vertices that have the same neighbours and each other. Vectorised.

    Groups go by 64-bit sums of scrambled names. A collision would only put two vertices into one stage.
    """
    name = mix(np.arange(adjacency.num_vertices, dtype=np.uint64))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(name[adjacency.idx], dtype=np.uint64)])
    closed = name + np.diff(total[adjacency.ptr])
    _, first, group = np.unique(closed, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))  # by their first vertex
    return rank[group]


def _dissect(adjacency: Adjacency, sizes: np.ndarray, stage: np.ndarray, most: int) -> np.ndarray | None:
    """Say when the vertices are eliminated: 0 for the last parts, then the separators, the first one last."""
    near, weight = adjacency.lists(), sizes.tolist()
    depth = [-1] * len(weight)
    parts = [(np.flatnonzero(stage >= 0).tolist(), 0)]
    draws, deepest, flops = _Draws(), -1, 0
    while parts:
        part, level = parts.pop()
        if len(part) <= _LEAF:
            continue
        local = {v: i for i, v in enumerate(part)}
        inner = [[local[w] for w in near[v] if w in local] for v in part]
        graph = WeightedGraph(inner, [[1] * len(ws) for ws in inner], [weight[v] for v in part])
        cut = separate(graph, draws, _FEW if len(part) > _LONG else _MANY)
        flops += cut.weight[BETWEEN] ** 3
        if flops > most:
            return None
        if not cut.weight[LEFT] or not cut.weight[RIGHT]:
            continue
        for v, side in zip(part, cut.side, strict=True):
            if side == BETWEEN:
                depth[v] = level
        deepest = max(deepest, level)
        for to in (LEFT, RIGHT):
            parts.append(([v for v, side in zip(part, cut.side, strict=True) if side == to], level + 1))
    turn = np.asarray(depth)
    return np.where(stage < 0, stage, np.where(turn < 0, 0, 1 + deepest - turn)).astype(np.int32)


class _Draws:
    """Numbers that look random and are the same everywhere: a linear congruential generator (Knuth's MMIX)."""

    def __init__(self) -> None:
        self.state = 1

    def below(self, bound: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound


def separate(graph: WeightedGraph, draws: _Draws, tries: int) -> Cut:
    """Return the best of several separators of a graph that has vertices."""
    return min([_separate_once(graph, draws) for _ in range(tries)], key=Cut.score)


def _separate_once(graph: WeightedGraph, draws: _Draws) -> Cut:
    num = len(graph.weight)
    if num <= _COARSE:
        return _first_cut(graph, draws)
    coarse_of, count = _match(graph, draws)
    if 20 * count > 19 * num:  # it hardly gets smaller
        return _first_cut(graph, draws)
    coarse = _separate_once(_contract(graph, coarse_of, count), draws)
    cut = Cut([coarse.side[c] for c in coarse_of], list(coarse.weight))
    Refinement(graph, cut).refine()
    return cut


def _first_cut(graph: WeightedGraph, draws: _Draws) -> Cut:
    """Grow regions from several vertices, and refine their boundaries."""
    cuts = []
    for _ in range(_SEEDS):
        cuts.append(Cut([0] * len(graph.weight), [0, 0, 0]))
        moves = Refinement(graph, cuts[-1])
        moves.grow(draws.below(len(graph.weight)))
        moves.refine()
    return min(cuts, key=Cut.score)


def _match(graph: WeightedGraph, draws: _Draws) -> tuple[list[int], int]:
    """Pair vertices: neighbours with a strong bond, and then those left over that share a neighbour.

    Returns the number of every vertex's pair, and how many there are.
    """
    near, bond, weight = graph.near, graph.bond, graph.weight
    num, heaviest = len(weight), 1 + 3 * sum(weight) // (2 * _COARSE)
    sequence = list(range(num))
    for i in range(num - 1, 0, -1):
        j = draws.below(i + 1)
        sequence[i], sequence[j] = sequence[j], sequence[i]
    sequence.sort(key=lambda v: len(near[v]))  # those with many neighbours find one in the end, too
    coarse_of = [-1] * num
    numbers = itertools.count()

    def pair(v: int, w: int) -> None:
        coarse_of[v] = coarse_of[w] = next(numbers)

    def strongest(v: int, free: bool) -> int:
        found, most = -1, 0
        for w, b in zip(near[v], bond[v], strict=True):
            if b > most and (not free or (coarse_of[w] < 0 and weight[v] + weight[w] <= heaviest)):
                found, most = w, b
        return found

    for v in sequence:
        w = strongest(v, True) if coarse_of[v] < 0 else -1
        if w >= 0:
            pair(v, w)
    waiting = [-1] * (num + 1)  # the last one is for vertices without neighbours
    for v in sequence:
        if coarse_of[v] >= 0:
            continue
        hub = strongest(v, False)
        other = waiting[hub]
        if other >= 0 and weight[v] + weight[other] <= heaviest:
            pair(v, other)
            waiting[hub] = -1
        else:
            waiting[hub] = v
    for v in sequence:
        if coarse_of[v] < 0:
            coarse_of[v] = next(numbers)
    return coarse_of, next(numbers)


def _contract(graph: WeightedGraph, coarse_of: list[int], count: int) -> WeightedGraph:
    weight = [0] * count
    bonds: list[dict[int, int]] = [{} for _ in range(count)]
    for v, c in enumerate(coarse_of):
        weight[c] += graph.weight[v]
        for w, b in zip(graph.near[v], graph.bond[v], strict=True):
            d = coarse_of[w]
            if d != c:
                bonds[c][d] = bonds[c].get(d, 0) + b
    return WeightedGraph([list(row) for row in bonds], [list(row.values()) for row in bonds], weight)
