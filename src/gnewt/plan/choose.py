"""make_plan: choose an order, decompose, lay out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gnewt._errors import PlanError
from gnewt.graph import Certificate, Plan, Structure
from gnewt.plan.cost import certify, expected_cost, parallel_cost
from gnewt.plan.fronts import lay_out, split_tree
from gnewt.plan.merge import merge_fronts
from gnewt.plan.orderings import (
    Order,
    check_order,
    cyclic_reduction,
    hessian_first,
    is_causal,
    min_degree,
    min_fill,
    nested_dissection,
    reverse_time,
)
from gnewt.plan.sparsity import KKTGraph, kkt_graph
from gnewt.plan.tree import NO_LIMIT, OverLimit, TreeDecomposition

_GREEDY: dict[str, Callable[[KKTGraph, int], Order]] = {
    "causal_min_degree": lambda g, most: min_degree(g.adjacency, g.sizes, g.reads, most),
    "causal_min_fill": lambda g, most: min_fill(g.adjacency, g.sizes, g.reads, most),
    "min_degree": lambda g, most: min_degree(g.adjacency, g.sizes, None, most),
    "min_fill": lambda g, most: min_fill(g.adjacency, g.sizes, None, most),
}
"""Orders that can be given up while they are made."""

ORDERS: dict[str, Callable[[KKTGraph], Order]] = {
    "causal_min_degree": lambda g: _GREEDY["causal_min_degree"](g, NO_LIMIT),
    "reverse_time": reverse_time,
    "causal_min_fill": lambda g: _GREEDY["causal_min_fill"](g, NO_LIMIT),
    "min_degree": lambda g: _GREEDY["min_degree"](g, NO_LIMIT),
    "min_fill": lambda g: _GREEDY["min_fill"](g, NO_LIMIT),
    "nested_dissection": lambda g: nested_dissection(g.adjacency, g.sizes),
    "cyclic_reduction": cyclic_reduction,
    "hessian": hessian_first,
}
"""Orders by name."""

_CHOICES = {
    "auto": ("causal_min_degree", "min_degree", "reverse_time"),
    "causal": ("causal_min_degree", "reverse_time"),
    "parallel": ("causal_min_degree", "reverse_time", "min_degree", "cyclic_reduction"),
    "best_of": tuple(ORDERS),
}
"""Names that stand for the cheapest of several orders; `parallel` for a device that runs levels side by side."""
_SMALL = 300
"""Vertices up to which `auto` also tries min-fill, which costs degree² per vertex."""
_LARGE = 100_000
"""Vertices beyond which `auto` leaves out the slowest order: on graphs this long reverse time is as good."""
_HOPELESS = 2048
"""Width beyond which no further order is tried that has no limit of its own on the symbolic work."""

_NARROW = 64
"""Separator elements for each vertex up to which the order of the program is priced before all others."""
_MARGIN = 2.0
"""How many times the cost of the best order a greedy one may reach before it is given up."""
_MOST_ELEMENTS = 10**8
"""Separator elements (400 MB) beyond which an order is dropped, if there is another."""


def make_plan(
    structure: Structure,
    order: str | Sequence[object] | np.ndarray = "auto",
    *,
    causal: bool = False,
    merge: bool = True,
) -> Plan:
    """Plan the elimination of the structure's KKT system. Once per structure.

    Args:
        order: a name in `ORDERS`; `"auto"`, `"causal"`, `"parallel"` or `"best_of"` for the cheapest of several; or the slots
            in the order of their elimination: a sequence of integers or of integer arrays (the slots of one
            vertex, `g.slots(handle)`).
        causal: refuse an order that is not causal.
        merge: merge small fronts where this saves time. Without it every front is a bag of the order's tree
            decomposition, whose width the certificate names in both cases.
    """
    if not isinstance(order, str):
        graph, given = _given(structure, order)
        chosen = _price(structure, graph, given, "given")
        priced = [chosen]
    else:
        graph = kkt_graph(structure)
        priced = _named(structure, graph, order, causal)
        allowed = [c for c in priced if c.causal or not causal] or priced
        chosen = min(allowed, key=lambda c: c.cost)
    if causal and not chosen.causal:
        raise PlanError(
            f"the order ({chosen.name}) is not causal: a vertex is eliminated after a vertex that it reads",
            _first_violation(structure, graph, chosen.order.vertices),
            "use order='causal', or put every node before its arguments",
        )
    tree, certificate = chosen.tree, chosen.certificate
    if merge:
        tree = merge_fronts(graph, tree, chosen.causal)
        certificate = dataclasses.replace(certify(structure, graph, tree), width=certificate.width)
    plan = lay_out(structure, graph, chosen.order, tree, certificate, chosen.name)
    return dataclasses.replace(plan, considered=tuple((c.name, c.certificate, c.cost) for c in priced))


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    """An order with its tree and its price."""

    name: str
    order: Order
    causal: bool
    tree: TreeDecomposition
    certificate: Certificate

    parallel: bool
    """Whether it is to run on a device that runs the fronts of a level side by side."""

    @property
    def cost(self) -> float:
        if self.parallel:
            return parallel_cost(self.certificate, self.tree, self.causal)
        return expected_cost(self.certificate, self.causal)


def _price(
    structure: Structure,
    graph: KKTGraph,
    order: Order,
    name: str,
    limit: int = NO_LIMIT,
    parallel: bool = False,
) -> _Candidate:
    tree = split_tree(graph, order, limit)
    causal = is_causal(graph, order.vertices)
    return _Candidate(name, order, causal, tree, certify(structure, graph, tree), parallel)


def _named(structure: Structure, graph: KKTGraph, order: str, causal: bool) -> list[_Candidate]:
    """Price the orders that a name stands for; those that cannot be cheaper than the best so far are left out."""
    if order in ORDERS:
        return [_price(structure, graph, ORDERS[order](graph), order)]
    if order not in _CHOICES:
        known = ", ".join([*_CHOICES, *ORDERS])
        raise PlanError(f"unknown order {order!r}", remedy=f"use one of {known}, or give a sequence")
    names = list(_CHOICES[order])
    if graph.num_vertices <= _SMALL and order == "auto":
        names += ["causal_min_fill", "min_fill", "nested_dissection"]
    if order == "auto" and not causal and graph.num_vertices > _LARGE and len(graph.reads.idx):
        names.remove("causal_min_degree")
    if len(graph.reads.idx) == 0:  # nothing waits for a reader: the causal orders are the free ones
        names = [name for name in names if name not in ("min_degree", "min_fill", "reverse_time")]
    priced: dict[str, _Candidate] = {}
    best: _Candidate | None = None
    parallel = order == "parallel"
    if "reverse_time" in names:
        # The order of the program costs nothing to make. Where it is narrow, it bounds the work on the others.
        with contextlib.suppress(OverLimit):
            most = _NARROW * graph.num_vertices
            best = _price(structure, graph, reverse_time(graph), "reverse_time", most, parallel)
            priced["reverse_time"] = best
    for name in names:
        if name in priced or (
            name == "reverse_time" and best is not None and best.certificate.width > _HOPELESS
        ):
            continue
        try:
            made = _GREEDY[name](graph, _affordable(best)) if name in _GREEDY else ORDERS[name](graph)
            candidate = _price(structure, graph, made, name, _worthwhile(best), parallel)
        except OverLimit:
            continue
        priced[name] = candidate
        if (candidate.causal or not causal) and (best is None or candidate.cost < best.cost):
            best = candidate
    assert best is not None  # every choice begins with a causal order
    return [priced[name] for name in names if name in priced]


def _affordable(best: _Candidate | None) -> int:
    """Flops beyond which a greedy order is given up: it is not going to be cheaper than `best`.

    Σ|ι||χ|² over its steps is at most that over the bags, up to couplings that items have and vertices have not.
    """
    return NO_LIMIT if best is None else int(_MARGIN * best.cost)


def _worthwhile(best: _Candidate | None) -> int:
    """Separator elements beyond which an order cannot be cheaper than `best`, or needs too much memory.

    A step's separator has at most 2|χ| items and a bag at most |ι| steps, so their sum is at most
    2 Σ|ι||χ| <= 2 Σ|ι||χ|², twice the flops.
    """
    return NO_LIMIT if best is None else int(min(2 * best.cost, _MOST_ELEMENTS))


def _given(structure: Structure, order: Sequence[object] | np.ndarray) -> tuple[KKTGraph, Order]:
    """Take the user's groups of slots as vertices, eliminated as listed."""
    groups = [np.ravel(np.asarray(group)) for group in order]
    listed = np.concatenate([*groups, np.zeros(0, np.int64)])
    if not np.issubdtype(listed.dtype, np.integer) or not np.array_equal(
        np.sort(listed), np.arange(structure.num_slots)
    ):
        missing = np.setdiff1d(np.arange(structure.num_slots), listed)
        detail = f"; the first one missing is {structure.slot_name(int(missing[0]))}" if len(missing) else ""
        raise PlanError(
            f"the order lists {len(listed)} slots and is not a permutation of all {structure.num_slots}{detail}",
            remedy="name every input and every node exactly once",
        )
    rank = np.empty(structure.num_slots, np.int64)
    rank[listed] = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    _refuse_dependent(structure, rank)
    graph = kkt_graph(structure, rank)
    rank_of_vertex = np.empty(graph.num_vertices, np.int64)
    rank_of_vertex[graph.vertex_of_slot] = 2 * rank + (np.arange(structure.num_slots) < structure.num_inputs)
    vertices = np.argsort(rank_of_vertex, kind="stable").astype(np.int32)
    check_order(graph, vertices)
    return graph, Order(vertices, len(vertices))


def _refuse_dependent(structure: Structure, rank: np.ndarray) -> None:
    for f in structure.nodes:
        family = structure.families[f]
        same = rank[family.outs][:, :, None] == rank[family.args][:, None, :]  # type: ignore[index]
        kinds = (family.args >= structure.num_inputs)[:, None, :]
        if np.any(same & kinds):
            i = int(np.argwhere(same & kinds)[0, 0])
            raise PlanError(
                f"the order puts {family.label(i)} and a node that it reads into one vertex",
                family.where,
                "list them one after the other",
            )


def _first_violation(structure: Structure, graph: KKTGraph, order: np.ndarray) -> str:
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    reader = np.repeat(np.arange(graph.num_vertices), np.diff(graph.reads.ptr))
    bad = int(np.argmax(position[reader] >= position[graph.reads.idx]))
    slot_of = {int(v): s for s, v in reversed(list(enumerate(graph.vertex_of_slot)))}
    v, w = slot_of[int(reader[bad])], slot_of[int(graph.reads.idx[bad])]
    return f"{structure.slot_name(v)} reads {structure.slot_name(w)} ({structure.slot_where(v)})"
