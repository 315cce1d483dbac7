"""Tree decompositions by elimination: bags χ = ι ∪ ξ, their tree T, and the proof that they are valid."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from gnewt import _native
from gnewt._errors import PlanError
from gnewt.plan.adjacency import Adjacency

NO_LIMIT = 2**62


class OverLimit(PlanError):
    """An order whose tree would not be worth its memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class TreeDecomposition:
    """(T, χ): bags in postorder (children before parents). ι is eliminated in the bag, ξ = χ ∩ χ(parent)."""

    parent: np.ndarray
    """int32[B]: parent bag, -1 for a root."""
    frontal_ptr: np.ndarray
    frontal_idx: np.ndarray
    """int64[B + 1], int32: ι of each bag, in the order of elimination."""
    separator_ptr: np.ndarray
    separator_idx: np.ndarray
    """int64[B + 1], int32: ξ of each bag, in the order of elimination."""

    @property
    def num_bags(self) -> int:
        return len(self.parent)

    def frontal(self, i: int) -> np.ndarray:
        """ι of bag i."""
        return self.frontal_idx[self.frontal_ptr[i] : self.frontal_ptr[i + 1]]

    def separator(self, i: int) -> np.ndarray:
        """ξ of bag i."""
        return self.separator_idx[self.separator_ptr[i] : self.separator_ptr[i + 1]]

    def bag(self, i: int) -> np.ndarray:
        """χ of bag i, ι first."""
        return np.concatenate([self.frontal(i), self.separator(i)])

    def width(self, sizes: np.ndarray) -> int:
        """max Σ n_v over a bag, minus one: tree-width counted in scalars (E7)."""
        frontal = sum_rows(self.frontal_ptr, sizes[self.frontal_idx])
        separator = sum_rows(self.separator_ptr, sizes[self.separator_idx])
        return int((frontal + separator).max(initial=0)) - 1


def sum_rows(ptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ of the integers in each row of a CSR array; an empty row gives 0."""
    return np.diff(np.concatenate([[0], np.cumsum(values)])[ptr])


def decompose(
    adjacency: Adjacency,
    order: np.ndarray,
    tail: int | None = None,
    vertex_of_item: np.ndarray | None = None,
    limit: int = NO_LIMIT,
) -> TreeDecomposition:
    """Eliminate along `order` symbolically and return the tree decomposition.

    A vertex may consist of several *items* that are eliminated together (x_v and λ_v); separators are then
    sets of items, so that a bag holds λ_w only where it is really needed. A vertex joins its parent's bag
    when this adds no fill.

    Args:
        adjacency: couplings between items (items are vertices if `vertex_of_item` is None).
        order: permutation of the vertices.
        tail: vertices from this position on form one bag.
        vertex_of_item: vertex of each item, -1 for a number that no item bears.
        limit: raise OverLimit once the separators of the single steps hold more elements together. A bad
            order of 10⁵ vertices would hold 10¹⁰.

    Cost O(Σ|ξ|), once per plan.
    """
    num = len(order)
    tail = num if tail is None else tail
    if vertex_of_item is None:
        vertex_of_item = np.arange(num)
    if _native.LIBRARY is not None:
        order, of_item = (np.ascontiguousarray(a, np.int32) for a in (order, vertex_of_item))
        arrays = _native.decompose(adjacency.ptr, adjacency.idx, order, tail, of_item, limit)
        if arrays is None:
            raise OverLimit(f"the separators of this order hold more than {limit} elements")
        return TreeDecomposition(*arrays)
    position = np.empty(num, np.int64)
    position[order] = np.arange(num)
    position_of_item = np.where(vertex_of_item < 0, num, position[vertex_of_item])
    return _decompose_items(adjacency, position_of_item, num, tail, limit)


def _decompose_items(
    adjacency: Adjacency, position_of_item: np.ndarray, num: int, tail: int, limit: int
) -> TreeDecomposition:
    """Decompose as `decompose` does, in Python; the position of a number that no item bears is `num`."""
    steps = min(num, tail + 1)
    # The tail is one bag.
    step_of_item = np.where(position_of_item == num, steps, np.minimum(position_of_item, tail))
    by_position = np.argsort(position_of_item, kind="stable")
    items_of_step = _group_values(step_of_item[by_position], by_position, steps)
    step_list = step_of_item.tolist()

    # Items later than a step that are coupled to one of its own items.
    row = np.repeat(np.arange(len(step_of_item)), np.diff(adjacency.ptr))
    later = step_of_item[adjacency.idx] > step_of_item[row]
    direct = _group_values(step_of_item[row[later]], adjacency.idx[later], steps)

    structs: list[set[int]] = []
    held = 0
    parent = [-1] * steps
    children: list[list[int]] = [[] for _ in range(steps)]
    for step in range(steps):
        struct = set(direct[step])
        for c in children[step]:
            struct |= structs[c]
        struct.difference_update(items_of_step[step])
        structs.append(struct)
        held += len(struct)
        if held > limit:
            raise OverLimit(f"the separators of this order hold more than {limit} elements")
        if struct:
            parent[step] = min([step_list[i] for i in struct])
            children[parent[step]].append(step)

    # A child whose separator is exactly its parent's bag joins it (a fundamental supernode). Only one can:
    # two children in one bag would be coupled there without reason.
    top = list(range(steps))
    for p in range(steps - 1, -1, -1):
        whole = len(items_of_step[p]) + len(structs[p])
        heir = max(children[p], key=lambda c: (len(structs[c]), c), default=-1)
        if heir >= 0 and len(structs[heir]) == whole:
            top[heir] = top[p]
    return _collect(parent, top, structs, items_of_step, position_of_item.tolist())


def _collect(
    parent: list[int],
    top: list[int],
    structs: list[set[int]],
    items_of_step: list[list[int]],
    position_of_item: list[int],
) -> TreeDecomposition:
    """Gather the steps that share a bag (named by its last step `top`) and number the bags in postorder."""
    members: dict[int, list[int]] = {}
    for step, t in enumerate(top):
        members.setdefault(t, []).append(step)
    kids: dict[int, list[int]] = {t: [] for t in members}
    for t in members:
        if parent[t] >= 0:
            kids[top[parent[t]]].append(t)
    sequence: list[int] = []
    stack = [(t, False) for t in reversed(list(members)) if parent[t] < 0]
    while stack:
        t, expanded = stack.pop()
        if expanded:
            sequence.append(t)
        else:
            stack.append((t, True))
            stack.extend((c, False) for c in reversed(kids[t]))
    number = {t: i for i, t in enumerate(sequence)}
    frontal = [[i for s in members[t] for i in items_of_step[s]] for t in sequence]
    separator = [sorted(structs[t], key=lambda i: (position_of_item[i], i)) for t in sequence]
    parents = [-1 if parent[t] < 0 else number[top[parent[t]]] for t in sequence]
    return TreeDecomposition(np.array(parents, np.int32), *_flatten(frontal), *_flatten(separator))


def _flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(ptr, idx) of a list of rows."""
    ptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return ptr, np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(ptr[-1]))


def _group_values(key: np.ndarray, values: np.ndarray, num: int) -> list[list[int]]:
    """Values that share a key, in their given order, for each key 0..num-1."""
    order = np.argsort(key, kind="stable")
    ends = np.searchsorted(key[order], np.arange(num + 1)).tolist()
    flat = values[order].tolist()
    return [flat[ends[i] : ends[i + 1]] for i in range(num)]


def check_tree(tree: TreeDecomposition, num_vertices: int, edges: Iterable[Sequence[int]]) -> None:
    """Raise PlanError unless (T, χ) is a tree decomposition of the hypergraph.

    Checked: vertex cover; edge cover (each edge lies in some bag); running intersection (the bags that
    hold a vertex are connected in T).
    """
    bags = [set(tree.bag(i).tolist()) for i in range(tree.num_bags)]
    for i, p in enumerate(tree.parent.tolist()):
        if p != -1 and p <= i:
            raise PlanError(f"bag {i} comes after its parent {p}: not a tree in postorder")
    holders: list[list[int]] = [[] for _ in range(num_vertices)]
    for i, bag in enumerate(bags):
        for v in bag:
            holders[v].append(i)
    for v, where in enumerate(holders):
        if not where:
            raise PlanError(f"vertex cover: vertex {v} is in no bag")
        tops = [i for i in where if tree.parent[i] == -1 or v not in bags[tree.parent[i]]]
        if len(tops) > 1:
            raise PlanError(f"running intersection: vertex {v} is in bags {tops[:4]} that are not connected")
    for edge in edges:
        members = set(edge)
        if members and not any(members <= bags[i] for i in holders[next(iter(members))]):
            raise PlanError(f"edge cover: no bag holds the edge {sorted(members)}")
