"""The graph that is ordered: KKT sparsity with each (x_v, λ_v) as one vertex, weighted by size.

This is not the moral graph, which is denser (E7): arguments of Φ_v are joined only where ∂²(λ·Φ_v) may be
nonzero, and the terms of a sum s = Σᵢ ψ(xᵢ) are never joined with each other.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from gnewt.graph import Family, Structure, distinct_rows
from gnewt.plan.adjacency import Adjacency

_TOGETHER = 64
"""An instance that defines more scalars than this does not hold them together."""


@dataclasses.dataclass(frozen=True, eq=False)
class KKTGraph:
    """Vertices are groups of slots; an input vertex stands for x_u, any other for the pair (x_v, λ_v)."""

    vertex_of_slot: np.ndarray
    """int32[S]."""
    sizes: np.ndarray
    """int64[V]: n_v in scalars."""
    is_input: np.ndarray
    """bool[V]."""
    primal: Adjacency
    """x_v — x_w coupled by a Hessian entry."""
    reads: Adjacency
    """v → pa(v): λ_v — x_w coupled by a Jacobian entry. Not symmetric."""
    adjacency: Adjacency
    """Both together: what the orderings see."""
    defined_with: np.ndarray
    """int32[V]: the lowest vertex that an instance defines together with this one, or itself."""

    @property
    def num_vertices(self) -> int:
        return len(self.sizes)

    @cached_property
    def items(self) -> Adjacency:
        """Couplings with x_v and λ_v told apart: item 2v is x_v, item 2v + 1 is λ_v."""
        num = self.num_vertices
        reader = np.repeat(np.arange(num), np.diff(self.reads.ptr))
        primal = np.repeat(np.arange(num), np.diff(self.primal.ptr))
        once = primal < self.primal.idx  # the symmetric half
        pairs = np.flatnonzero(~self.is_input)
        a = np.concatenate([2 * primal[once], 2 * reader + 1, 2 * pairs])
        b = np.concatenate(
            [2 * self.primal.idx[once].astype(np.int64), 2 * self.reads.idx.astype(np.int64), 2 * pairs + 1]
        )
        return Adjacency.from_pairs(2 * num, a, b)

    @cached_property
    def vertex_of_item(self) -> np.ndarray:
        """int32[2V]: -1 for the duals that inputs do not have."""
        vertex = np.repeat(np.arange(self.num_vertices, dtype=np.int32), 2)
        vertex[1::2][self.is_input] = -1
        return vertex


def kkt_graph(structure: Structure, group_of_slot: np.ndarray | None = None) -> KKTGraph:
    """Merge indistinguishable slots and collect the couplings between the merged vertices.

    Args:
        group_of_slot: merge by these labels instead (an order given by the user names its own vertices).

    Cost O(nonzeros of K), vectorised; once per structure.
    """
    labels = _signatures(structure) if group_of_slot is None else np.asarray(group_of_slot)
    vertex, first = _number_groups(labels, structure.num_inputs)
    num = len(first)
    hess, jac = [np.zeros((2, 0), np.int64)], [np.zeros((2, 0), np.int64)]
    for family in structure.families:
        h, j = _couplings(family, vertex)
        hess.append(h)
        jac.append(j)
    h, j = np.concatenate(hess, 1), np.concatenate(jac, 1)
    return KKTGraph(
        vertex_of_slot=vertex,
        sizes=np.bincount(vertex, minlength=num),
        is_input=first < structure.num_inputs,
        primal=Adjacency.from_pairs(num, h[0], h[1]),
        reads=Adjacency.from_pairs(num, j[0], j[1], symmetric=False),
        adjacency=Adjacency.from_pairs(num, np.concatenate([h[0], j[0]]), np.concatenate([h[1], j[1]])),
        defined_with=_defined_with(structure, vertex, num),
    )


def _defined_with(structure: Structure, vertex: np.ndarray, num: int) -> np.ndarray:
    lowest = np.arange(num, dtype=np.int32)
    tables = [structure.families[f].outs for f in structure.nodes]
    together = [vertex[outs] for outs in tables if outs is not None and 0 < outs.shape[1] <= _TOGETHER]
    for mates in together:
        np.minimum.at(lowest, mates, mates.min(axis=1, keepdims=True))
    while not np.array_equal(lowest, lowest[lowest]):
        lowest = lowest[lowest]
    return lowest


def _number_groups(labels: np.ndarray, num_inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Number the groups of slots that share a label by their first slot; inputs and others never mix.

    Returns the group of every slot, and the first slot of every group.
    """
    order = np.argsort(labels, kind="stable")
    order = np.concatenate([order[order < num_inputs], order[order >= num_inputs]])
    leads = np.ones(len(order), bool)
    leads[1:] = labels[order[1:]] != labels[order[:-1]]
    leads[np.searchsorted(order >= num_inputs, True) :][:1] = True
    first = order[leads]  # the sort is stable: the first of a run is the lowest slot
    leader = np.empty(len(order), np.int64)
    leader[order] = first[np.cumsum(leads) - 1]
    is_first = np.zeros(len(order), bool)
    is_first[first] = True
    return (np.cumsum(is_first) - 1).astype(np.int32)[leader], np.flatnonzero(is_first)


def _signatures(structure: Structure) -> np.ndarray:
    """Hash, for each slot, the set of (family, instance, role) it takes part in.

    Slots with equal sets have equal rows in K up to their own block. Roles distinguish arguments of one
    instance whose patterns differ. A collision would only merge two vertices, never lose a coupling.
    """
    signature = np.zeros(structure.num_slots, np.uint64)
    for f, family in enumerate(structure.families):
        instance = np.arange(family.n, dtype=np.uint64)
        closed = family.hess_pattern | np.eye(family.k, dtype=bool)
        roles = [(family.args, np.concatenate([family.jac_pattern, closed]).T)]
        if family.outs is not None:
            roles.append((family.outs, family.jac_pattern))
        for r, (slots, bits) in enumerate(roles):
            if slots.size:
                classes = distinct_rows(bits)[1].astype(np.uint64)
                seed = np.uint64(2 * f + r + 1)
                words = mix(mix(instance + seed * np.uint64(1 << 40))[:, None] + classes[None, :])
                np.add.at(signature, slots, words)
    return signature


def mix(z: np.ndarray) -> np.ndarray:
    """Scramble 64-bit words (the finaliser of splitmix64)."""
    z = (z + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _couplings(family: Family, vertex: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertex pairs joined by the family: Hessian pairs, and (defined, read) pairs, each int64[2, ·]."""
    args, arg_of = _distinct_columns(vertex[family.args])
    hess = np.zeros((args.shape[1],) * 2, bool)
    np.logical_or.at(hess, (arg_of[:, None], arg_of[None, :]), family.hess_pattern)
    i, j = np.nonzero(np.tril(hess, -1))
    h = np.stack([args[:, i].ravel(), args[:, j].ravel()]).astype(np.int64)
    if family.outs is None:
        return h, np.zeros((2, 0), np.int64)
    outs, out_of = _distinct_columns(vertex[family.outs])
    jac = np.zeros((outs.shape[1], args.shape[1]), bool)
    np.logical_or.at(jac, (out_of[:, None], arg_of[None, :]), family.jac_pattern)
    o, j = np.nonzero(jac)
    return h, np.stack([outs[:, o].ravel(), args[:, j].ravel()]).astype(np.int64)


def _distinct_columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop repeated columns: a state of 12 scalars is one vertex in every instance."""
    first, column_of = distinct_rows(table.T)
    return table[:, first], column_of
