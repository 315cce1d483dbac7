"""Moves of single vertices that make a separator lighter (Fiduccia and Mattheyses 1982, for vertex separators).

The twin of cpp/refinement.cpp.
"""

from __future__ import annotations

import dataclasses
import heapq

LEFT, RIGHT, BETWEEN = 0, 1, 2
_ROUNDS = 6
"""Of moves, at most."""
_FUTILE = 120
"""Moves without a better cut at which a round ends."""


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedGraph:
    """A graph of its own: neighbours, how many edges an edge stands for, what a vertex weighs."""

    near: list[list[int]]
    bond: list[list[int]]
    weight: list[int]


@dataclasses.dataclass(eq=False)
class Cut:
    """Where every vertex is; no edge joins left and right."""

    side: list[int]
    weight: list[int]
    """Of left, right and between."""

    def score(self) -> int:
        """Less is better: a light separator, and sides that are not too different."""
        total, larger = sum(self.weight), max(self.weight[LEFT], self.weight[RIGHT])
        over = max(0, 4 * larger - 3 * total)  # beyond three quarters
        return 4 * self.weight[BETWEEN] * (total + larger + 5 * over) + larger


class Refinement:
    """Vertices leave the separator for one side, one at a time, and pull their neighbours on the other into it."""

    def __init__(self, graph: WeightedGraph, cut: Cut) -> None:
        self.near, self.weight, self.cut = graph.near, graph.weight, cut
        self.heaviest = max(graph.weight)
        self.pulled = [[0] * len(graph.weight), [0] * len(graph.weight)]
        """What a vertex of the separator would pull into it, by the side that it goes to."""
        self.locked = [False] * len(graph.weight)
        self.log: list[tuple[int, int]] = []
        """A vertex, and where it was."""

    def grow(self, seed: int) -> None:
        """Grow the left side from a vertex until it is as heavy as the right one; keep the best cut on the way."""
        cut = self.cut
        cut.side[:] = [RIGHT] * len(self.weight)
        cut.weight[:] = [0, sum(self.weight), 0]
        self.log.clear()
        heap: list[tuple[int, int]] = []

        def start(v: int) -> None:
            self.put(v, BETWEEN)
            self.weigh(v)
            heapq.heappush(heap, (-self.gain(v, LEFT), -v))

        start(seed)
        untouched = kept = best = 0
        while cut.weight[LEFT] < cut.weight[RIGHT]:
            if not heap:  # the rest is not connected with what was reached
                while cut.side[untouched] != RIGHT:
                    untouched += 1
                start(untouched)
            value, v = (-i for i in heapq.heappop(heap))
            if cut.side[v] != BETWEEN or value != self.gain(v, LEFT):
                continue
            for w in self.move(v, LEFT):
                heapq.heappush(heap, (-self.gain(w, LEFT), -w))
            score = cut.score()
            if kept == 0 or score < best:
                best, kept = score, len(self.log)
        self.take_back(kept)

    def refine(self) -> None:
        """Move vertices until no round of moves gives a better cut."""
        for _ in range(_ROUNDS):
            if not self.improve():
                break

    def improve(self) -> bool:
        """Play one round: a vertex leaves the separator at most once; what follows the best cut is taken back."""
        self.locked = [False] * len(self.weight)
        self.log.clear()
        heaps: tuple[list[tuple[int, int]], ...] = ([], [])

        def offer(v: int) -> None:
            for to in (LEFT, RIGHT):
                heapq.heappush(heaps[to], (-self.gain(v, to), -v))

        for v, side in enumerate(self.cut.side):
            if side == BETWEEN:
                self.weigh(v)
                offer(v)
        before = best = self.cut.score()
        kept = futile = 0
        while futile < _FUTILE:
            to = self.choose(heaps)
            if to < 0:
                break
            v = -heaps[to][0][1]
            self.locked[v] = True
            for w in self.move(v, to):
                if not self.locked[w]:
                    offer(w)
            futile += 1
            score = self.cut.score()
            if score < best:
                best, kept, futile = score, len(self.log), 0
        self.take_back(kept)
        return best < before

    def choose(self, heaps: tuple[list[tuple[int, int]], ...]) -> int:
        """Return the side that the best vertex goes to, -1 if none may move. Drops entries that are out of date."""
        side, locked, weight = self.cut.side, self.locked, self.cut.weight
        for to in (LEFT, RIGHT):
            heap = heaps[to]
            while heap:
                value, v = -heap[0][0], -heap[0][1]
                current = side[v] == BETWEEN and not locked[v] and value == self.gain(v, to)
                if current and self.is_allowed(v, to):
                    break
                heapq.heappop(heap)
        if not heaps[LEFT] or not heaps[RIGHT]:
            return LEFT if heaps[LEFT] else RIGHT if heaps[RIGHT] else -1
        left, right = -heaps[LEFT][0][0], -heaps[RIGHT][0][0]
        if left != right:
            return LEFT if left > right else RIGHT
        return LEFT if weight[LEFT] <= weight[RIGHT] else RIGHT

    def is_allowed(self, v: int, to: int) -> bool:
        """Whether a side stays lighter than three quarters, or is the lighter one."""
        weight = self.cut.weight
        lighter = weight[to] < weight[1 - to]
        return lighter or 4 * (weight[to] + self.weight[v] - self.heaviest) <= 3 * sum(weight)

    def gain(self, v: int, to: int) -> int:
        return self.weight[v] - self.pulled[to][v]

    def put(self, v: int, to: int) -> None:
        origin = self.cut.side[v]
        self.log.append((v, origin))
        self.cut.weight[origin] -= self.weight[v]
        self.cut.weight[to] += self.weight[v]
        self.cut.side[v] = to

    def take_back(self, kept: int) -> None:
        while len(self.log) > kept:
            self.put(*self.log[-1])
            del self.log[-2:]  # `put` has logged this, too

    def weigh(self, v: int) -> None:
        side = self.cut.side
        self.pulled[RIGHT][v] = sum([self.weight[w] for w in self.near[v] if side[w] == LEFT])
        self.pulled[LEFT][v] = sum([self.weight[w] for w in self.near[v] if side[w] == RIGHT])

    def move(self, v: int, to: int) -> list[int]:
        """Take v out of the separator; return the vertices of the separator whose gains have changed."""
        side, changed = self.cut.side, []
        self.put(v, to)
        for w in self.near[v]:
            if side[w] == BETWEEN:
                self.pulled[1 - to][w] += self.weight[v]
                changed.append(w)
            elif side[w] == 1 - to:
                self.put(w, BETWEEN)
                self.weigh(w)
                changed.append(w)
                for x in self.near[w]:
                    if side[x] == BETWEEN:
                        self.pulled[to][x] -= self.weight[w]
                        changed.append(x)
        return changed
