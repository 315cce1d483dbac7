"""Elimination orders. Deterministic: ties go to the lower vertex number.

*Causal* orders eliminate every vertex before the vertices it reads; *free* orders are any others.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable

import numpy as np

from gnewt import _native
from gnewt._errors import PlanError
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.sparsity import KKTGraph
from gnewt.plan.tree import NO_LIMIT, OverLimit

WIDE = 512
"""Neighbours at which a greedy order stops refining: what is left is eliminated as one dense front. An
explicit elimination graph costs degree² per vertex; beyond this the dense kernel is the better tool."""


_HUB = 64
"""Neighbours, at least, of a vertex that is taken out of a graph before it is cut into pieces."""


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """A permutation of the vertices; those from `tail` on are eliminated together, as one front."""

    vertices: np.ndarray
    """int32[V]."""
    tail: int


def min_degree(
    adjacency: Adjacency, sizes: np.ndarray, reads: Adjacency | None = None, most: int = NO_LIMIT
) -> Order:
    """Eliminate next the vertex with the fewest scalars around it.

    Args:
        reads: if given, the order is causal: a vertex waits until all its readers are gone.
        most: raise OverLimit as soon as the steps so far cost more flops, Σ|ι||χ|².

    Cost O(Σ degree²) over the elimination graph.
    """
    if _native.LIBRARY is not None:
        return _native_order(False, adjacency, sizes, reads, most)
    near = [set(ns) for ns in adjacency.lists()]
    weight = np.asarray(sizes).tolist()
    score = [sum([weight[w] for w in ns]) for ns in near]

    def eliminate(v: int) -> Iterable[int]:
        around = near[v]
        for u in around:
            mine = near[u]
            fresh = around - mine
            fresh.discard(u)
            mine |= fresh
            mine.discard(v)
            score[u] += sum([weight[w] for w in fresh]) - weight[v]
        return around

    return _play(near, weight, score, eliminate, reads, most)


def min_fill(
    adjacency: Adjacency, sizes: np.ndarray, reads: Adjacency | None = None, most: int = NO_LIMIT
) -> Order:
    """Eliminate next the vertex whose elimination joins the fewest scalars anew. For small graphs.

    fill(v) = Σ n_a n_b over the pairs a, b ∈ near(v) that are not joined. It is kept up to date by
    differences, because eliminating one vertex changes the fill of all that share two neighbours with it.
    """
    if _native.LIBRARY is not None:
        return _native_order(True, adjacency, sizes, reads, most)
    near = [set(ns) for ns in adjacency.lists()]
    weight = np.asarray(sizes).tolist()

    def weigh(vertices: Iterable[int]) -> int:
        return sum([weight[w] for w in vertices])

    # Σ over ordered pairs counts each pair twice; a itself is not a neighbour of a.
    score = [sum([weight[a] * (weigh(ns - near[a]) - weight[a]) for a in ns]) // 2 for ns in near]

    def eliminate(v: int) -> Iterable[int]:
        around = near[v]
        touched = set(around)
        for u in around:  # pairs (v, b) that u no longer has to join
            score[u] -= weight[v] * (weigh(near[u] - around) - weight[v])
        for u in around:
            near[u].discard(v)
        for a in around:
            for b in around - near[a]:
                if b >= a:
                    continue
                common = near[a] & near[b]
                for c in common:
                    score[c] -= weight[a] * weight[b]
                score[a] += weight[b] * weigh(near[a] - common)
                score[b] += weight[a] * weigh(near[b] - common)
                near[a].add(b)
                near[b].add(a)
                touched |= common
        return touched

    return _play(near, weight, score, eliminate, reads, most)


def _native_order(
    use_fill: bool, adjacency: Adjacency, sizes: np.ndarray, reads: Adjacency | None, most: int
) -> Order:
    rows = None if reads is None else (reads.ptr, reads.idx)
    sizes = np.ascontiguousarray(sizes, np.int64)
    found = _native.greedy_order(use_fill, adjacency.ptr, adjacency.idx, sizes, rows, WIDE, most)
    if found is None:
        raise OverLimit(f"this order costs more than {most} flops")
    return Order(*found)


def _play(
    near: list[set[int]],
    weight: list[int],
    score: list[int],
    eliminate: Callable[[int], Iterable[int]],
    reads: Adjacency | None,
    most: int,
) -> Order:
    """Play the elimination game, always taking the vertex with the lowest score.

    Args:
        near: neighbours in the elimination graph.
        eliminate: joins the neighbours of a vertex, updates `near` and `score`, and returns the vertices
            whose score may have changed.
    """
    num = len(near)
    waiting = [0] * num  # readers of v that are still there
    parents = [[] for _ in range(num)] if reads is None else reads.lists()
    for ps in parents:
        for p in ps:
            waiting[p] += 1
    heap = [(score[v], v) for v in range(num) if waiting[v] == 0]
    heapq.heapify(heap)
    done = [False] * num
    order: list[int] = []
    flops = 0
    while heap:
        value, v = heapq.heappop(heap)
        if done[v] or value != score[v]:
            continue  # its score changed, and it was pushed anew
        left = num - len(order) - 1
        if len(near[v]) == left or len(near[v]) > WIDE:
            break
        flops += weight[v] * (weight[v] + sum([weight[u] for u in near[v]])) ** 2
        if flops > most:
            raise OverLimit(f"this order costs more than {most} flops")
        order.append(v)
        done[v] = True
        for u in eliminate(v):
            if waiting[u] == 0:
                heapq.heappush(heap, (score[u], u))
        for p in parents[v]:
            waiting[p] -= 1
            if waiting[p] == 0:
                heapq.heappush(heap, (score[p], p))
    # What is left is one front. Descending numbers are causal, because slots are in topological order.
    rest = [v for v in range(num - 1, -1, -1) if not done[v]]
    return Order(np.array(order + rest, np.int32), len(order))


def hessian_first(graph: KKTGraph) -> Order:
    """All pairs first, children before parents; the Schur complement left on the inputs is H (E21)."""
    pairs = np.flatnonzero(~graph.is_input)[::-1]
    inputs = np.flatnonzero(graph.is_input)
    return Order(np.concatenate([pairs, inputs]).astype(np.int32), len(pairs))


def reverse_time(graph: KKTGraph) -> Order:
    """Nodes from last to first; each input as soon as its last reader is gone. On chains: Riccati's order.

    Causal. Greedy orders look at one vertex at a time and may keep the inputs of a stage waiting while they
    eliminate states of many others; the order in which the program ran never does.
    """
    num = graph.num_vertices
    reader = np.repeat(np.arange(num), np.diff(graph.reads.ptr))
    last = np.full(num, num, np.int64)  # an input that no node reads goes first
    np.minimum.at(last, graph.reads.idx, reader)
    when = np.where(graph.is_input, last, np.arange(num))
    return Order(np.lexsort((np.arange(num), graph.is_input, -when)).astype(np.int32), num)


def cyclic_reduction(graph: KKTGraph, chunk: int = 4) -> Order:
    """Cut long graphs into short pieces that are eliminated side by side, then every other cut, and so on.

    The height of the tree grows like the logarithm of the length, and the fronts of a level have equal shapes. Cuts lie in
    every `chunk`-th level of a breadth-first search; inside a piece the order is reverse time, so that pairs are
    still eliminated by substitution there. Vertices that touch very many others are eliminated last, together.
    """
    num = graph.num_vertices
    whole, adjacency = _whole_instances(graph)
    degree = np.diff(adjacency.ptr)
    hub = degree > max(_HUB, 8 * int(np.median(degree)) if num else 0)
    level, component = _breadth_first(adjacency, hub)
    rank = np.empty(num, np.int64)
    rank[reverse_time(graph).vertices] = np.arange(num)
    # A level is a cut by those that reach the next one; the others belong to the piece before it.
    row = np.repeat(np.arange(len(degree)), degree)
    col = adjacency.idx
    reaches = np.zeros(len(degree), bool)
    reaches[row[(level[col] == level[row] + 1) & ~hub[row] & ~hub[col]]] = True
    cut = reaches & (level % chunk == 0) & (level > 0)
    number = level // chunk
    trailing = np.log2(np.where(cut, number & -number, 1)).astype(np.int64)
    turn = np.where(hub, num, np.where(cut, 1 + trailing, 0))
    # What is of a cut's level and no part of the cut lies before it.
    piece = np.where(cut, number, (level - 1) // chunk)
    order = np.lexsort((rank, piece[whole], component[whole], turn[whole])).astype(np.int32)
    return Order(order, num - int(hub[whole].sum()))


def _whole_instances(graph: KKTGraph) -> tuple[np.ndarray, Adjacency]:
    """(number of the instance that defines each vertex, couplings of instances).

    A stage is cut as a whole: a part of its state that does not read another would make cuts of many shapes.
    """
    _, whole = np.unique(graph.defined_with, return_inverse=True)
    whole = np.ravel(whole)
    if len(whole) == 0 or int(whole.max()) + 1 == graph.num_vertices:
        return whole, graph.adjacency
    row = np.repeat(np.arange(graph.num_vertices), np.diff(graph.adjacency.ptr))
    return whole, Adjacency.from_pairs(int(whole.max()) + 1, whole[row], whole[graph.adjacency.idx])


def _breadth_first(adjacency: Adjacency, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distance of every vertex from an end of its component, component), with some vertices taken out."""
    num = adjacency.num_vertices
    ptr, idx, out = adjacency.ptr.tolist(), adjacency.idx.tolist(), without.tolist()
    near = [[w for w in idx[ptr[v] : ptr[v + 1]] if not (out[v] or out[w])] for v in range(num)]

    def walk(start: int, distance: list[int]) -> list[int]:
        """Set the distances from a vertex, and list what is reached."""
        distance[start], found = 0, [start]
        for v in found:  # which grows on the way
            for w in near[v]:
                if distance[w] < 0:
                    distance[w] = distance[v] + 1
                    found.append(w)
        return found

    seen, level, component = ([-1] * num for _ in range(3))
    count = 0
    for v in range(num):
        if seen[v] < 0:
            # The last vertex that a walk from anywhere finds is far away: an end, from which the levels are counted.
            for u in walk(walk(v, seen)[-1], level):
                component[u] = count
            count += 1
    return np.asarray(level, np.int64), np.asarray(component, np.int64)


def is_causal(graph: KKTGraph, order: np.ndarray) -> bool:
    """Whether every vertex comes before the vertices it reads."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    reader = np.repeat(np.arange(graph.num_vertices), np.diff(graph.reads.ptr))
    return bool(np.all(position[reader] < position[graph.reads.idx]))


def check_order(graph: KKTGraph, order: np.ndarray) -> None:
    """Raise PlanError unless `order` is a permutation of the vertices."""
    if not np.array_equal(np.sort(order), np.arange(graph.num_vertices)):
        raise PlanError(
            f"the order names {len(order)} vertices and is not a permutation of all {graph.num_vertices}",
            remedy="name every input and every node exactly once",
        )
