"""make_plan: choose an order, decompose, lay out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gnewt._errors import PlanError
from gnewt.graph import Certificate, Plan, Structure
from gnewt.plan.approximate import approximate_degree, find_hubs
from gnewt.plan.cost import DUAL_PENALTY, certify, expected_cost, message_cost, parallel_cost
from gnewt.plan.dissection import nested_dissection
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
    reverse_time,
)
from gnewt.plan.sparsity import KKTGraph, kkt_graph
from gnewt.plan.tree import NO_LIMIT, OverLimit, TreeDecomposition, sum_rows

_LIMITED: dict[str, Callable[[KKTGraph, int], Order]] = {
    "approximate_degree": lambda g, most: approximate_degree(g.adjacency, g.sizes, None, most),
    "causal_approximate_degree": lambda g, most: approximate_degree(g.adjacency, g.sizes, g.reads, most),
    "causal_min_degree": lambda g, most: min_degree(g.adjacency, g.sizes, g.reads, most),
    "min_degree": lambda g, most: min_degree(g.adjacency, g.sizes, None, most),
    "causal_min_fill": lambda g, most: min_fill(g.adjacency, g.sizes, g.reads, most),
    "min_fill": lambda g, most: min_fill(g.adjacency, g.sizes, None, most),
    "nested_dissection": lambda g, most: nested_dissection(g.adjacency, g.sizes, most),
}
"""Orders that can be given up while they are made."""


def _unlimited(make: Callable[[KKTGraph, int], Order]) -> Callable[[KKTGraph], Order]:
    return lambda graph: make(graph, NO_LIMIT)


ORDERS: dict[str, Callable[[KKTGraph], Order]] = {
    **{name: _unlimited(make) for name, make in _LIMITED.items()},
    "reverse_time": reverse_time,
    "cyclic_reduction": cyclic_reduction,
    "hessian": hessian_first,
}
"""Orders by name."""

_CAUSAL = ("causal_approximate_degree", "causal_min_degree", "reverse_time")
_ALL = ("approximate_degree", *_CAUSAL, "min_degree")
_CHOICES = {
    "auto": (*_ALL, "causal_min_fill", "min_fill", "nested_dissection"),
    "causal": _CAUSAL,
    "parallel": (*_ALL, "cyclic_reduction"),
    "best_of": tuple(ORDERS),
}
"""Names that stand for the cheapest of several orders; `parallel` for a device that runs levels side by side."""
_FREE = ("approximate_degree", "min_degree", "min_fill", "nested_dissection")
_ESTIMATES = ("causal_approximate_degree", "approximate_degree", "nested_dissection")
_CLEARLY = 1.02
"""How many times as much another order has to cost for one of these to be preferred: merging blurs smaller differences."""
_SURELY = 1.5
"""How many times as much time a plan has to be modelled to take for wide fronts to be joined: the model errs that much."""
_REPEATED = ("approximate_degree", "min_degree", "min_fill", "reverse_time")
"""Orders that a causal one repeats where nothing is read."""
_SMALL, _MEDIUM = 300, 2000
"""Vertices up to which min-fill, which costs degree² per vertex, and exact degrees are tried unasked."""
_HOPELESS = 2048
"""Width beyond which no further order is tried that has no limit of its own on the symbolic work."""
_WORTH_CUTTING = 20
"""Flops, for each unit of Σ degree², from which on a dissection is tried unasked: moving a vertex looks at degree² others."""

_NARROW = 64
"""Separator elements for each vertex up to which the order of the program is priced before all others."""
_MARGIN = 2.0
"""How many times the cost of the best order another one may reach before it is given up."""
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
        chosen = min(allowed, key=lambda c: c.cost * (_CLEARLY if c.name in _ESTIMATES else 1.0))
    if causal and not chosen.causal:
        raise PlanError(
            f"the order ({chosen.name}) is not causal: a vertex is eliminated after a vertex that it reads",
            _first_violation(structure, graph, chosen.order.vertices),
            "use order='causal', or put every node before its arguments",
        )
    tree, certificate = chosen.tree, chosen.certificate
    if merge:
        tree = merge_fronts(graph, tree, chosen.causal)
        if chosen.name in _ESTIMATES and message_cost(graph, tree, chosen.causal) > _MARGIN * chosen.cost:
            chosen, tree = _join_wide_fronts(structure, graph, chosen, tree)
        certificate = certify(structure, graph, tree)
        certificate = dataclasses.replace(certificate, width=chosen.certificate.width)
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
    candidate = _Candidate(name, order, causal, tree, certify(structure, graph, tree), parallel)
    if name in _LIMITED and order.tail < graph.num_vertices <= _SMALL:  # its tail may be worth taking apart
        apart = Order(order.vertices, graph.num_vertices)
        other = _price(structure, graph, apart, name, limit, parallel)
        return other if other.cost < candidate.cost else candidate
    return candidate


def _named(structure: Structure, graph: KKTGraph, order: str, causal: bool) -> list[_Candidate]:
    """Price the orders that a name stands for; those that cannot be cheaper than the best so far are left out."""
    if order in ORDERS:
        return [_price(structure, graph, ORDERS[order](graph), order)]
    if order not in _CHOICES:
        known = ", ".join([*_CHOICES, *ORDERS])
        raise PlanError(f"unknown order {order!r}", remedy=f"use one of {known}, or give a sequence")
    names = _candidates(graph, order)
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
        if name in priced or not (order == "best_of" or _is_worth_trying(name, graph, best)):
            continue
        try:
            made = (
                _LIMITED[name](graph, _affordable(graph, best, name))
                if name in _LIMITED
                else ORDERS[name](graph)
            )
            candidate = _price(structure, graph, made, name, _worthwhile(best), parallel)
        except OverLimit:
            continue
        priced[name] = candidate
        if (candidate.causal or not causal) and (best is None or candidate.cost < best.cost):
            best = candidate
    assert best is not None  # every choice begins with a causal order
    return [priced[name] for name in names if name in priced]


def _candidates(graph: KKTGraph, order: str) -> list[str]:
    """List the orders that a choice has on a graph of this size."""
    names = list(_CHOICES[order])
    if len(graph.reads.idx) == 0:  # nothing waits for a reader: the causal orders are the free ones
        names = [name for name in names if name not in _REPEATED]
    if order == "best_of":
        return names
    if graph.num_vertices > _SMALL:
        names = [name for name in names if not name.endswith("min_fill")]
    if graph.num_vertices > _MEDIUM:
        names = [name for name in names if not name.endswith("min_degree")]
    return names


def _is_worth_trying(name: str, graph: KKTGraph, best: _Candidate | None) -> bool:
    """Whether an order may be better than the best so far, by enough to pay for making it."""
    if best is None:
        return True
    if name == "reverse_time":
        return best.certificate.width <= _HOPELESS
    if name != "nested_dissection":
        return True
    if best.causal and len(graph.reads.idx):
        return False  # a dissection is free: it would have to be narrower by far
    degree = np.diff(graph.adjacency.ptr)[~find_hubs(graph.adjacency, None)]
    return best.certificate.flops > _WORTH_CUTTING * float(np.sum(degree.astype(np.float64) ** 2))


def _join_wide_fronts(
    structure: Structure, graph: KKTGraph, chosen: _Candidate, merged: TreeDecomposition
) -> tuple[_Candidate, TreeDecomposition]:
    """Take all from the first wide front on as one front, if this saves more in messages than it costs in flops.

    Many wide fronts below one that eliminate few unknowns each pass on much more than they compute.
    """
    tree = chosen.tree
    separator = sum_rows(tree.separator_ptr, graph.sizes[tree.separator_idx // 2])
    wide = np.repeat(2 * separator > separator.max(initial=0), np.diff(tree.frontal_ptr))
    position = np.empty(graph.num_vertices, np.int64)
    position[chosen.order.vertices] = np.arange(graph.num_vertices)
    tail = min(int(position[tree.frontal_idx[wide] // 2].min()), chosen.order.tail)
    joined = _price(structure, graph, Order(chosen.order.vertices, tail), chosen.name)
    better = merge_fronts(graph, joined.tree, joined.causal)
    after = joined.cost + message_cost(graph, better, joined.causal)
    before = chosen.cost + message_cost(graph, merged, chosen.causal)
    return (joined, better) if _SURELY * after < before else (chosen, merged)


def _affordable(graph: KKTGraph, best: _Candidate | None, name: str) -> int:
    """Flops beyond which an order is given up while it is made: it is not going to be cheaper than `best`.

    Σ|ι||χ|² over its steps is at most that over the bags, up to couplings that items have and vertices have not.
    """
    if best is None:
        return NO_LIMIT
    free = len(graph.reads.idx) > 0 and name in _FREE
    return int(_MARGIN * best.cost / (DUAL_PENALTY if free else 1.0))


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
