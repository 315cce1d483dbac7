"""Merge small fronts where the modelled time falls: a child with its parent, or leaves alike with each other.

An order names single vertices, and a state of twelve scalars whose components couple differently is several of
them. Their fronts are small, and a front costs time before its first flop: one front per stage is faster, though it
stores some zeros. Merging changes neither the answer nor whether a plan is causal: the vertices of a child and those
of its siblings' subtrees are not coupled, so the child may wait until all of them are gone.

Times are in picoseconds, measured on the native engine (float64, one Zen 3 core with AVX2). Integers, so that the
native twin (cpp/merge.cpp) takes the same decisions.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from typing import NamedTuple

import numpy as np

from gnewt import _native
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.sparsity import KKTGraph
from gnewt.plan.tree import TreeDecomposition, sum_rows


class TimeModel(NamedTuple):
    """Constants of the modelled times, in picoseconds. The native twin gets these same numbers with every call."""

    few: int = 16  # children up to which their messages are looked at one by one
    large: int = 100_000  # scalars beyond which fronts are left alone: their times would leave 64 bits
    front: int = 22_000  # a causal front before its first flop
    input: int = 27_500  # one input: its pivot and the test of the pivot
    input_row: int = 1_360  # one entry in the row of an input
    cube: int = 7  # n³ - b³, to which the Schur complement is proportional
    pairs: int = 54_000  # the substitution of pairs before its first flop
    product: int = 46  # one multiply-add of a substitution
    cross: int = 1_600  # one entry between a pair and the rest
    nested: int = 3_000  # one entry of the matrix of pairs that read each other
    nested_pair: int = 1_500  # one read of a pair by a pair, for each pair of the front
    nested_rest: int = 180  # one read of a pair by a pair, for each scalar of the front that is no pair
    free_front: int = 150_000  # a front of a free plan before its first flop
    free_unknown: int = 50_000  # one unknown of a free plan: the search for its pivot
    free_entry: int = 2_500  # one entry of a front of a free plan
    free_product: int = 100  # one entry of a front of a free plan, for each unknown that is eliminated
    message: int = 32_500  # a message from a child to a causal parent
    straddling: int = 49_500  # more for a message that meets pairs and others in the parent: several pieces
    whole: int = 16_500  # more for a message that meets pairs alone or others alone
    message_entry: int = 690  # one entry of a message


MODEL = TimeModel()


def causal_time(p: int, q: int, b: int, reads: int, cross: bool) -> int:
    """Time of a front of a causal plan, without the messages of its children.

    Args:
        p: scalars of its pairs, which are substituted.
        q: scalars of its inputs, each eliminated with a test.
        b: scalars of its separator.
        reads: Jacobian entries between two of its pairs, which are substituted one by one.
        cross: whether its pairs are coupled with the rest other than by their Jacobians.
    """
    n, m = q + b, MODEL
    time = m.front + q * (m.input + m.input_row * n) + m.cube * (n**3 - b**3)
    if p:
        time += m.pairs + m.product * p * (2 * p + n) * (n + 2)
    if p and cross:
        time += p * n * (m.cross + m.product * (n + 2))
    if reads:
        time += m.nested * p * (p + 3) + reads * (m.nested_pair * p + m.nested_rest * n)
    return time


def free_time(e: int, b: int) -> int:
    """Time of a symmetric indefinite front that eliminates e unknowns, some of them duals, and keeps b."""
    n, m = e + b, MODEL
    return m.free_front + m.free_unknown * e + n * n * (m.free_entry + m.free_product * e)


def message_time(b: int, straddles: bool) -> int:
    """Time to add a Schur complement to a causal parent; more pieces if it meets pairs and others there."""
    return MODEL.message + (MODEL.straddling if straddles else MODEL.whole) + MODEL.message_entry * b * b


@dataclasses.dataclass(frozen=True, eq=False)
class Bags:
    """What the model needs to know of the bags of a tree. A free plan has p = 0 and counts unknowns in q and b."""

    causal: bool
    parent: np.ndarray
    """int32[B]: in postorder."""
    p: np.ndarray
    q: np.ndarray
    b: np.ndarray
    """int64[B]: scalars of pairs, inputs, separator."""
    reads: np.ndarray
    """int64[B]: Jacobian entries between two pairs of the bag."""
    link_ptr: np.ndarray
    link_bag: np.ndarray
    link_reads: np.ndarray
    """CSR: ... between a pair of this bag and a pair of another."""
    sep_ptr: np.ndarray
    sep_item: np.ndarray
    """CSR: items of the separator."""
    bag_of_item: np.ndarray
    """int32: the bag that eliminates an item."""
    pairs_of_item: np.ndarray
    """int64: scalars of an item x_v if they have duals, else 0."""


def merge_fronts(graph: KKTGraph, tree: TreeDecomposition, causal: bool) -> TreeDecomposition:
    """Merge bags of a tree whose items are x_v (2v) and λ_v (2v + 1). Once per plan, about O(Σ|ξ| log B).

    First leaves with the same parent and the same separator are put together (a star has thousands), then children
    join their parents, greedily: those that save most go first, the lower child among equals. Every merge lowers
    the modelled time of the whole. The bags of the result are in postorder.
    """
    bags = describe_bags(graph, tree, causal)
    top = _name_groups(bags) if _native.LIBRARY is not None else Merger(bags).run()
    # The last bag of a group names it, so that ascending names are a postorder again.
    num = tree.num_bags
    kept = np.flatnonzero(top == np.arange(num))
    number = np.empty(num, np.int32)
    number[kept] = np.arange(len(kept))
    bag = np.repeat(number[top], np.diff(tree.frontal_ptr))
    in_kept = np.repeat(top == np.arange(num), np.diff(tree.separator_ptr))
    up = tree.parent[kept]
    return TreeDecomposition(
        np.where(up < 0, -1, number[top[up]]).astype(np.int32),
        _starts(np.bincount(bag, minlength=len(kept))),
        tree.frontal_idx[np.argsort(bag, kind="stable")],
        _starts(np.diff(tree.separator_ptr)[kept]),
        tree.separator_idx[in_kept],
    )


def describe_bags(graph: KKTGraph, tree: TreeDecomposition, causal: bool) -> Bags:
    """Sizes and reads of the bags. Vectorised."""
    num, size = tree.num_bags, np.repeat(graph.sizes, 2)
    p = sum_rows(tree.frontal_ptr, size[tree.frontal_idx] * (tree.frontal_idx % 2))
    q = sum_rows(tree.frontal_ptr, size[tree.frontal_idx]) - p
    b = sum_rows(tree.separator_ptr, size[tree.separator_idx])
    bag_of_item = np.full(len(size), -1, np.int32)
    bag_of_item[tree.frontal_idx] = np.repeat(np.arange(num), np.diff(tree.frontal_ptr))
    items = tree.separator_ptr, tree.separator_idx, bag_of_item
    if not causal:
        none, nothing = np.zeros(num, np.int64), np.zeros(0, np.int64)
        no_links = np.zeros(num + 1, np.int64), nothing.astype(np.int32), nothing
        return Bags(
            False, tree.parent, none, p + q, b, none, *no_links, *items, np.zeros(len(size), np.int64)
        )
    reads = _reads_between(graph, bag_of_item[::2], num)
    pairs = size * np.repeat(~graph.is_input, 2)
    return Bags(True, tree.parent, p, q - p, b, *reads, *items, pairs)


def _reads_between(
    graph: KKTGraph, bag_of: np.ndarray, num: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    reader, read = np.repeat(np.arange(graph.num_vertices), np.diff(graph.reads.ptr)), graph.reads.idx
    pairs = ~graph.is_input[read]
    reader, read = reader[pairs], read[pairs]
    count = graph.sizes[reader] * graph.sizes[read]
    a, b = bag_of[reader].astype(np.int64), bag_of[read].astype(np.int64)
    apart = a != b
    inside = np.bincount(a[~apart], count[~apart], num).astype(np.int64)
    between = Adjacency.from_pairs(num, a, b, symmetric=False)
    key = np.repeat(np.arange(num), np.diff(between.ptr)) * num + between.idx
    at = np.searchsorted(key, (a * num + b)[apart])
    return inside, between.ptr, between.idx, np.bincount(at, count[apart], len(key)).astype(np.int64)


def _name_groups(bags: Bags) -> np.ndarray:
    return _native.merge_fronts(
        bags.causal,
        bags.parent,
        (bags.p, bags.q, bags.b, bags.reads),
        (bags.link_ptr, bags.link_bag, bags.link_reads),
        (bags.sep_ptr, bags.sep_item),
        (bags.bag_of_item, bags.pairs_of_item),
        np.array(MODEL, np.int64),
    )


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


class Merger:
    """Groups of bags, each named by its highest one."""

    def __init__(self, bags: Bags) -> None:
        self.causal = bags.causal
        self.parent = bags.parent.tolist()
        self.p, self.q, self.b = bags.p.tolist(), bags.q.tolist(), bags.b.tolist()
        self.reads = bags.reads.tolist()
        self.links = [v.tolist() for v in (bags.link_ptr, bags.link_bag, bags.link_reads)]
        self.bag_of, self.pairs_of = bags.bag_of_item.tolist(), bags.pairs_of_item.tolist()
        ptr, items = bags.sep_ptr.tolist(), bags.sep_item.tolist()
        self.separator = [items[a:z] for a, z in itertools.pairwise(ptr)]
        num = len(self.parent)
        self.into = list(range(num))
        self.members = [[i] for i in range(num)]
        self.children: list[list[int]] = [[] for _ in range(num)]
        for i, up in enumerate(self.parent):
            if up >= 0:
                self.children[up].append(i)

    def find(self, i: int) -> int:
        while self.into[i] != i:
            self.into[i] = i = self.into[self.into[i]]
        return i

    def time(self, group: list[int], kids: list[int]) -> int:
        """Time of one front made of a group, or of a child and its parent, with the messages of its children."""
        p, q, b = sum(self.p[i] for i in group), sum(self.q[i] for i in group), self.b[group[-1]]
        if not self.causal:
            return free_time(q, b)
        reads = sum(self.reads[i] for i in group)
        if len(group) == 2 and self.p[group[0]] and self.p[group[1]]:
            reads += self.crossing(*group)
        time, cross = 0, False
        for k in kids:
            hits = self.hits(k, group) if p else 0
            straddles = 0 < hits < self.b[k]
            cross |= straddles
            if not (len(kids) == 1 and hits == p == self.b[k]):  # else it is used where it lies
                time += message_time(self.b[k], straddles)
        return time + causal_time(p, q, b, reads, cross)

    def hits(self, k: int, group: list[int]) -> int:
        """Scalars of the separator of k that are pairs of the group."""
        return sum([self.pairs_of[i] for i in self.separator[k] if self.find(self.bag_of[i]) in group])

    def crossing(self, c: int, up: int) -> int:
        """Reads of pairs of `up` by pairs of c."""
        ptr, bag, reads = self.links
        return sum(
            [reads[k] for i in self.members[c] for k in range(ptr[i], ptr[i + 1]) if self.find(bag[k]) == up]
        )

    def saved(self, c: int, up: int) -> int:
        """Time that is saved if c joins its parent."""
        p, q, b = self.p[c] + self.p[up], self.q[c] + self.q[up], self.b[up]
        if p + q + b > MODEL.large:
            return 0
        mine, theirs = self.children[c], self.children[up]
        if not self.causal:
            return self.time([c], []) + self.time([up], []) - self.time([c, up], [])
        if len(mine) + len(theirs) - 1 > MODEL.few:  # the messages of the others stay as they are
            cross = self.p[c] + self.p[up] > 0
            apart = message_time(self.b[c], cross) + sum(
                causal_time(self.p[i], self.q[i], self.b[i], self.reads[i], True) for i in (c, up)
            )
            reads = self.reads[c] + self.reads[up]
            best = apart - causal_time(p, q, b, reads, True)
            return best if best <= 0 else apart - causal_time(p, q, b, reads + self.crossing(c, up), True)
        best = message_time(self.b[c], True) - causal_time(p, q, b, 0, False)
        best += sum(causal_time(self.p[i], self.q[i], self.b[i], self.reads[i], True) for i in (c, up))
        best += sum(message_time(self.b[k], True) for k in mine)
        if best <= 0:  # not even if all that is unknown were in favour
            return best
        others = [k for k in theirs if k != c] + mine
        return self.time([c], mine) + self.time([up], theirs) - self.time([c, up], others)

    def join(self, c: int, up: int) -> None:
        self.reads[up] += self.reads[c] + self.crossing(c, up)
        self.p[up] += self.p[c]
        self.q[up] += self.q[c]
        self.members[up] += self.members[c]
        self.into[c] = up

    def join_twins(self, up: int) -> None:
        """Merge leaves below one bag that have the same separator, in rounds: two by two, those two by two, ..."""
        leaves = sorted((self.separator[k], k) for k in self.children[up] if not self.children[k])
        for _, same in itertools.groupby(leaves, lambda leaf: leaf[0]):
            group, before = [k for _, k in same], 0
            while len(group) != before:
                before = len(group)
                for a, z in zip(group[:-1:2], group[1::2], strict=True):
                    if self.twins_save(a, z):
                        self.join(a, z)
                group = [k for k in group if self.into[k] == k]
        self.children[up] = [k for k in self.children[up] if self.into[k] == k]

    def twins_save(self, a: int, z: int) -> bool:
        p, q, b = self.p[a] + self.p[z], self.q[a] + self.q[z], self.b[z]
        if p + q + b > MODEL.large:
            return False
        if not self.causal:
            return free_time(q, b) < free_time(self.q[a], b) + free_time(self.q[z], b)
        apart = sum(causal_time(self.p[i], self.q[i], b, self.reads[i], False) for i in (a, z))
        together = causal_time(p, q, b, self.reads[a] + self.reads[z], False)
        return together < apart + message_time(b, False)

    def run(self) -> np.ndarray:
        """Merge all that pays; return the name of each bag's group."""
        heap: list[tuple[int, int]] = []

        def offer(c: int) -> None:
            if self.into[c] == c and self.parent[c] >= 0:
                saved = self.saved(c, self.find(self.parent[c]))
                if saved > 0:
                    heapq.heappush(heap, (-saved, c))

        for up in range(len(self.parent)):
            self.join_twins(up)
        for c in range(len(self.parent)):
            offer(c)
        while heap:
            value, c = heapq.heappop(heap)
            if self.into[c] != c:
                continue
            up = self.find(self.parent[c])
            saved = self.saved(c, up)
            if saved < -value:  # what is around it has changed since
                if saved > 0:
                    heapq.heappush(heap, (-saved, c))
                continue
            near = self.children[c][: MODEL.few]
            self.join(c, up)
            self.children[up] = [k for k in self.children[up] if k != c] + self.children[c]
            for k in (up, *near):
                offer(k)
        return np.array([self.find(i) for i in range(len(self.parent))], np.int64)
