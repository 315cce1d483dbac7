"""Approximate minimum degree: the greedy order for graphs of any size (Amestoy, Davis and Duff 1996).

The elimination graph is not formed. What an eliminated vertex has joined is kept as one list, an *element*; a vertex
knows the elements that it is in, and those of its first neighbours that no element covers. Vertices with equal lists go
together from then on, elements that another one covers are dropped, and what several elements have in common is counted
several times: degrees are bounds. Vertices count by their sizes.
"""

from __future__ import annotations

import heapq

import numpy as np

from gnewt import _native
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.orderings import Order
from gnewt.plan.tree import NO_LIMIT, OverLimit

_DENSE = 10.0
"""Times √V: neighbours beyond which a vertex is a hub. It would be looked at in nearly every step."""
_FEW = 8
"""Hubs are few: at most one vertex in this many."""
_TAIL = 32
"""Vertices beyond which a rest that is complete is not taken apart: its separators would hold V² elements."""
_PATIENCE = 10**8
"""Looks at lists, and some more for each entry of the graph, after which what is left is taken as one front."""


def approximate_degree(
    adjacency: Adjacency,
    sizes: np.ndarray,
    reads: Adjacency | None = None,
    most: int = NO_LIMIT,
    stage: np.ndarray | None = None,
) -> Order:
    """Eliminate next the vertex with the fewest scalars around it, as far as the quotient graph tells.

    Ties go to the higher vertex: programs number in time, and the order of a chain is reverse time. Hubs go last.

    Args:
        reads: if given, the order is causal: a vertex waits until all its readers are gone.
        most: raise OverLimit as soon as the steps so far cost more flops, Σ|ι||χ|².
        stage: int32[V], if given: vertices of a lower stage go first, those of a negative one last.

    Cost about O(nonzeros of the factor), often much less.
    """
    if stage is None:
        stage = np.where(find_hubs(adjacency, reads), -1, 0).astype(np.int32)
    sizes = np.ascontiguousarray(sizes, np.int64)
    patience = _PATIENCE + 500 * (adjacency.num_vertices + len(adjacency.idx))
    if _native.LIBRARY is not None:
        rows = None if reads is None else (reads.ptr, reads.idx)
        found = _native.approximate_order(adjacency.ptr, adjacency.idx, sizes, rows, stage, most, patience)
    else:
        found = _Game(adjacency, sizes, reads, stage).run(most, patience)
    if found is None:
        raise OverLimit(f"this order costs more than {most} flops")
    return Order(*found)


def find_hubs(adjacency: Adjacency, reads: Adjacency | None) -> np.ndarray:
    """Mark the vertices that are eliminated last because they touch very many others, unless they are many.

    In a causal order only those that read nothing can wait that long.
    """
    num = adjacency.num_vertices
    hubs = np.diff(adjacency.ptr) > max(64.0, _DENSE * np.sqrt(num))
    if reads is not None:
        hubs &= np.diff(reads.ptr) == 0
    return hubs if _FEW * int(hubs.sum()) <= num else np.zeros(num, bool)


class _Game:
    """The elimination as cpp/approximate_degree.cpp plays it."""

    def __init__(
        self, adjacency: Adjacency, sizes: np.ndarray, reads: Adjacency | None, stage: np.ndarray
    ) -> None:
        self.num = adjacency.num_vertices
        self.stage = stage.tolist()
        self.weight = np.where(stage >= 0, sizes, 0).tolist()
        """Of a vertex and those that go with it; 0 once it is gone, or goes with another."""
        self.near = [[w for w in ns if self.weight[w]] for ns in adjacency.lists()]
        self.degree = [sum([self.weight[w] for w in ns]) for ns in self.near]
        self.elements: list[list[int]] = [[] for _ in range(self.num)]
        self.members: dict[int, list[int]] = {}
        self.element_weight: dict[int, int] = {}
        self.together = [[v] for v in range(self.num)]
        self.left, self.work = sum(self.weight), 0
        self.reads = [[] for _ in range(self.num)] if reads is None else reads.lists()
        self.waiting = [0] * self.num
        for ws in self.reads:
            for w in ws:
                self.waiting[w] += 1
        self.heap: list[tuple[int, int, int]] = []

    def run(self, most: int, patience: int) -> tuple[np.ndarray, int] | None:
        for v in range(self.num):
            self.offer(v)
        order: list[int] = []
        flops, participants = 0, sum(s >= 0 for s in self.stage)
        while self.heap:
            _, value, behind = heapq.heappop(self.heap)
            p = -behind
            if not self.weight[p] or value != self.degree[p]:
                continue  # it was pushed anew
            if self.work > patience:
                break
            joined = self.around(p)
            if self.left == sum([self.weight[v] for v in joined]) and participants - len(order) > _TAIL:
                break  # what is left is one front
            own, around = self.settle(p, joined)
            flops += own * (own + around) ** 2
            if flops > most:
                return None
            order += self.together[p]
            for v in self.together[p]:
                for w in self.reads[v]:
                    self.waiting[w] -= 1
                    if self.waiting[w] == 0:
                        self.offer(w)
        gone = set(order)
        rest = [v for v in range(self.num - 1, -1, -1) if v not in gone]
        complete = all(self.stage[v] < 0 for v in rest)
        return np.array(order + rest, np.int32), self.num if complete else len(order)

    def offer(self, v: int) -> None:
        if self.weight[v] and self.waiting[v] == 0:
            heapq.heappush(self.heap, (self.stage[v], self.degree[v], -v))

    def settle(self, p: int, joined: list[int]) -> tuple[int, int]:
        """Finish the elimination of p, and of those that can go with it.

        Returns their scalars, and those around them.
        """
        inside = {p, *joined}
        total = sum([self.weight[v] for v in joined])
        outside = self.count_outside(joined)
        alike: dict[int, list[int]] = {}
        for v in joined:
            name = self.update(v, p, inside, outside)
            if self.waiting[v]:
                continue
            alone = not self.near[v] and len(self.elements[v]) == 1  # it has p and those around p
            if alone and self.stage[v] == self.stage[p]:
                self.left -= self.weight[v]
                total -= self.weight[v]
                self.merge(p, v)
            else:
                alike.setdefault(name, []).append(v)
        for _, group in sorted(alike.items()):
            self.join_twins(sorted(group))
        own, self.weight[p] = self.weight[p], 0
        self.members[p] = [v for v in joined if self.weight[v]]
        self.element_weight[p] = total
        for v in self.members[p]:
            self.degree[v] = min(self.degree[v] + total, self.left) - self.weight[v]
            self.offer(v)
        return own, total

    def around(self, p: int) -> list[int]:
        """List the vertices around p, which is eliminated, and drop the elements that they cover."""
        found = dict.fromkeys([v for v in self.near[p] if self.weight[v]])
        for e in self.elements[p]:
            members = self.members.pop(e, [])
            self.work += len(members)
            found.update(dict.fromkeys([v for v in members if self.weight[v]]))
        found.pop(p, None)
        self.left -= self.weight[p]
        return list(found)

    def count_outside(self, joined: list[int]) -> dict[int, int]:
        """For every element around: the scalars that are not joined."""
        outside: dict[int, int] = {}
        for v in joined:
            for e in self.elements[v]:
                outside[e] = outside.get(e, self.element_weight[e]) - self.weight[v]
            self.work += len(self.elements[v])
        return outside

    def update(self, v: int, p: int, inside: set[int], outside: dict[int, int]) -> int:
        """Rewrite the lists of a vertex, and bound the scalars around it that p has not joined.

        Returns a number that vertices with equal lists share.
        """
        self.work += len(self.near[v]) + len(self.elements[v])
        near = [w for w in self.near[v] if self.weight[w] and w not in inside]
        elements = []
        for e in self.elements[v]:
            if not self.members.get(e):
                continue
            if outside[e] == 0:
                del self.members[e]  # p has joined all of it
            else:
                elements.append(e)
        bound = sum([self.weight[w] for w in near]) + sum([outside[e] for e in elements])
        self.degree[v] = min(self.degree[v], bound)
        self.near[v], self.elements[v] = near, [*elements, p]
        return sum(near) + sum(elements)

    def join_twins(self, group: list[int]) -> None:
        for i, a in enumerate(group[:-1]):
            if not self.weight[a]:
                continue
            lists = {*self.near[a], *self.elements[a]}
            for b in group[i + 1 :]:
                if not self.weight[b] or self.stage[a] != self.stage[b]:
                    continue
                if (len(self.near[a]), len(self.elements[a])) != (len(self.near[b]), len(self.elements[b])):
                    continue
                self.work += len(lists)
                if lists.issuperset(self.near[b]) and lists.issuperset(self.elements[b]):
                    self.merge(a, b)

    def merge(self, a: int, b: int) -> None:
        """Let b go with a from now on."""
        self.weight[a] += self.weight[b]
        self.weight[b] = 0
        self.together[a] += self.together[b]
