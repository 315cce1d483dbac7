"""From an order to a Plan: fronts over KKT unknowns, and where every number of K goes."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from gnewt import _native
from gnewt.graph import Certificate, Plan, Structure
from gnewt.plan.orderings import Order, is_causal
from gnewt.plan.sparsity import KKTGraph
from gnewt.plan.tree import NO_LIMIT, TreeDecomposition, decompose


def split_tree(graph: KKTGraph, order: Order, limit: int = NO_LIMIT) -> TreeDecomposition:
    """Decompose with x_v and λ_v as two items of vertex v: item 2v is x_v, item 2v + 1 is λ_v.

    A separator then holds λ_w only if a vertex that w reads was eliminated before w. In a causal order this
    never happens: its fronts are primal-only, as in the Riccati recursion.
    """
    return decompose(graph.items, order.vertices, order.tail, graph.vertex_of_item, limit)


def lay_out(
    structure: Structure,
    graph: KKTGraph,
    order: Order,
    tree: TreeDecomposition,
    certificate: Certificate,
    name: str,
) -> Plan:
    """Expand the items of the tree into unknowns and compute assembly and extend-add maps. Vectorised."""
    num_inputs, num_slots = structure.num_inputs, structure.num_slots
    num_unknowns = 2 * num_slots - num_inputs
    causal = is_causal(graph, order.vertices)
    elim_ptr, elim_idx = _expand(tree.frontal_ptr, tree.frontal_idx, graph, num_inputs, num_slots)
    sep_ptr, sep_idx = _expand(tree.separator_ptr, tree.separator_idx, graph, num_inputs, num_slots)
    if causal:
        elim_idx = _sort_by_slot(graph, tree, elim_idx, num_inputs, num_slots)

    position = np.empty(num_unknowns, np.int64)
    position[elim_idx] = np.arange(num_unknowns)
    sep_front = np.repeat(np.arange(tree.num_bags), np.diff(sep_ptr))
    key = np.sort(sep_front * num_unknowns + position[sep_idx], kind="stable")
    fronts = _Fronts(elim_ptr, sep_ptr, sep_front, key - sep_front * num_unknowns)

    source, a, b = _sources(structure)
    pairs = np.arange(num_inputs, num_slots)
    inputs = np.arange(num_inputs)
    # The -1 of every pair and the diagonal of every input exist even where no family writes them.
    a = np.concatenate([*a, pairs - num_inputs + num_slots, inputs], dtype=np.int32)
    b = np.concatenate([*b, pairs, inputs], dtype=np.int32)
    entry_ptr, entry_row, entry_col, target = _place_entries(fronts, position, a, b)
    num_pairs = num_slots - num_inputs
    return Plan(
        num_inputs=num_inputs,
        num_slots=num_slots,
        order_name=name,
        causal=causal,
        vertex_of_slot=graph.vertex_of_slot,
        order=_vertex_order(graph, position[:num_slots]),
        parent=tree.parent,
        elim_ptr=elim_ptr,
        elim_idx=elim_idx,
        sep_ptr=sep_ptr,
        sep_idx=elim_idx[fronts.sep_position],
        sep_pos=fronts.locate(tree.parent[sep_front].astype(np.int64), fronts.sep_position).astype(np.int32),
        entry_ptr=entry_ptr,
        entry_row=entry_row,
        entry_col=entry_col,
        source=source,
        target=target[: len(source)],
        pair_entry=target[len(source) : len(source) + num_pairs],
        input_entry=target[len(source) + num_pairs :],
        certificate=certificate,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Fronts:
    """Fronts over *positions*: unknowns numbered in the order of their elimination."""

    elim_ptr: np.ndarray
    """Front i eliminates the positions elim_ptr[i]:elim_ptr[i + 1]."""
    sep_ptr: np.ndarray
    sep_front: np.ndarray
    """The front whose separator an element belongs to."""
    sep_position: np.ndarray
    """Ascending in each separator: the items of a separator lie on one path to the root."""

    @property
    def num_positions(self) -> int:
        return int(self.elim_ptr[-1])

    @cached_property
    def _key(self) -> np.ndarray:
        """Sorted by (front, position): one search finds any position in any separator."""
        return self.sep_front * self.num_positions + self.sep_position

    def locate(self, front: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Local coordinates of positions in fronts that hold them."""
        end = self.elim_ptr[front + 1]
        in_separator = np.searchsorted(self._key, front * self.num_positions + position) - self.sep_ptr[front]
        return np.where(position < end, position, end + in_separator) - self.elim_ptr[front]


def _place_entries(
    fronts: _Fronts, position: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Merge the nonzeros (a, b) of K that fall on one entry: (entry_ptr, entry_row, entry_col, target).

    The front that eliminates the earlier unknown assembles an entry; entries are numbered by their positions.
    """
    if _native.LIBRARY is not None:
        return _native.place_entries(fronts.elim_ptr, fronts.sep_ptr, fronts.sep_position, position, a, b)
    num = fronts.num_positions
    early, late = np.minimum(position[a], position[b]), np.maximum(position[a], position[b])
    entries, target = np.unique(early * num + late, return_inverse=True)
    early, late = entries // num, entries % num
    front = np.searchsorted(fronts.elim_ptr, early, side="right") - 1
    return (
        np.searchsorted(front, np.arange(len(fronts.elim_ptr))),
        fronts.locate(front, late).astype(np.int32),
        (early - fronts.elim_ptr[front]).astype(np.int32),
        np.ravel(target).astype(np.int64),
    )


def _expand(
    ptr: np.ndarray, items: np.ndarray, graph: KKTGraph, num_inputs: int, num_slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Turn lists of items into (ptr, idx) of unknowns."""
    slots = np.argsort(graph.vertex_of_slot, kind="stable")
    slot_ptr = np.concatenate([[0], np.cumsum(graph.sizes)])
    vertex = items // 2
    count = graph.sizes[vertex]
    start = np.concatenate([[0], np.cumsum(count)])
    slot = slots[np.repeat(slot_ptr[vertex] - start[:-1], count) + np.arange(start[-1])]
    dual = np.repeat(items % 2 == 1, count)
    unknown = np.where(dual, slot - num_inputs + num_slots, slot)
    return start[ptr], unknown.astype(np.int32)


def _sort_by_slot(
    graph: KKTGraph, tree: TreeDecomposition, elim_idx: np.ndarray, num_inputs: int, num_slots: int
) -> np.ndarray:
    """Order the unknowns of every front of a causal plan: x of its pairs, their λ, inputs; each by slot.

    Numbers of one family then lie in a front as they lie in the sources. Pairs that read other pairs of the front
    still come before them.
    """
    items, is_pair = tree.frontal_idx, ~graph.is_input[tree.frontal_idx // 2]
    front = np.repeat(np.arange(tree.num_bags), np.diff(tree.frontal_ptr))
    run = _independent_runs(graph, items, front)
    part = np.where(is_pair, items % 2, 2)
    group = np.lexsort((run, part, front))
    changes = np.zeros(len(items), np.int64)
    for value in (run, part, front):
        changes[1:] |= np.diff(value[group]) != 0
    number = np.empty(len(items), np.int64)
    number[group] = np.cumsum(changes)
    slot = np.where(elim_idx < num_slots, elim_idx, elim_idx - num_slots + num_inputs)
    key = np.sort(np.repeat(number, graph.sizes[items // 2]) * num_slots + slot, kind="stable")
    part_of_group = part[group][np.flatnonzero(np.diff(np.cumsum(changes), prepend=-1))]
    dual = part_of_group[key // num_slots] == 1
    return np.where(dual, key % num_slots + num_slots - num_inputs, key % num_slots).astype(np.int32)


def _independent_runs(graph: KKTGraph, items: np.ndarray, front: np.ndarray) -> np.ndarray:
    """Cut the pairs of each front, in the order of their elimination, into runs in which none reads another."""
    place = np.arange(len(items))
    at = np.empty(graph.num_vertices, np.int64)
    at[items[::-1] // 2] = place[::-1]  # of x, which comes before λ
    reader = at[np.repeat(np.arange(graph.num_vertices), np.diff(graph.reads.ptr))]
    read = at[graph.reads.idx]
    inside = (front[reader] == front[read]) & ~graph.is_input[graph.reads.idx]
    last_reader = np.full(len(items), -1, np.int64)
    np.maximum.at(last_reader, read[inside], reader[inside])
    begins, begin = np.zeros(len(items), bool), -1
    of_interest = np.flatnonzero(last_reader >= 0)
    for i, reader_at in zip(of_interest.tolist(), last_reader[of_interest].tolist(), strict=True):
        if reader_at >= begin:
            begin = i
            begins[i] = True
    return np.cumsum(begins)[at[items // 2]]


def _vertex_order(graph: KKTGraph, position: np.ndarray) -> np.ndarray:
    """Vertices by the elimination of the last of their slots."""
    last = np.zeros(graph.num_vertices, np.int64)
    np.maximum.at(last, graph.vertex_of_slot, position)
    return np.argsort(last, kind="stable").astype(np.int32)


def _sources(structure: Structure) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """List (position in the source vector, unknown, unknown) of every structural nonzero of K, once.

    The unknowns come in pieces, for the caller to join.
    """
    source, a, b = [np.zeros(0, np.int64)], [], []
    base = 0
    for family in structure.families:
        if family.outs is not None:
            o, j = np.nonzero(family.jac_pattern)
            source.append(np.arange(base, base + family.n * len(o)))
            a.append((family.outs.take(o, 1) + (structure.num_slots - structure.num_inputs)).ravel())
            b.append(family.args.take(j, 1).ravel())
            base += family.n * len(o)
        i, j = np.nonzero(np.tril(family.hess_pattern))
        source.append(np.arange(base, base + family.n * len(i)))
        a.append(family.args.take(i, 1).ravel())
        b.append(family.args.take(j, 1).ravel())
        # One slot given for two arguments: both halves of the local Hessian fall on its diagonal.
        twice = np.flatnonzero((a[-1] == b[-1]) & np.tile(i != j, family.n))
        source.append(base + twice)
        a.append(a[-1][twice])
        b.append(b[-1][twice])
        base += family.n * len(i)
    return np.concatenate(source), a, b
