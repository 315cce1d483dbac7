"""Causal elimination, step by step: which slots go when, and what they are coupled to. Integers, once per order.

The engines (`gnewt.kkt.engines`) solve; this elimination explains. A step eliminates one *unit*: the outputs of an instance,
or inputs that belong together. Every input is then an affine policy of slots that are known before it.
Units go before everything that their instances read.
"""

from __future__ import annotations

import dataclasses
import heapq
from functools import cached_property

import numpy as np

from gnewt.graph import Structure

_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class CausalStep:
    """One unit to eliminate. Node units are substituted, input units minimised over."""

    is_input: bool
    slots: np.ndarray
    """int[e]: the slots eliminated, ascending."""
    separator: np.ndarray
    """int[b]: slots that are coupled to them and go later: what an input listens to."""
    losses: tuple[tuple[int, int], ...]
    """(family, instance) of the losses that read these slots, and no slot that went before."""
    nodes: tuple[tuple[int, int], ...]
    """(family, instance) of the nodes that define these slots."""
    finished: tuple[tuple[int, int], ...]
    """Those of `nodes` whose outputs have all been eliminated now."""


@dataclasses.dataclass(frozen=True, eq=False)
class CausalOrder:
    """The steps of an elimination of a structure, children first."""

    structure: Structure
    steps: tuple[CausalStep, ...]

    @property
    def width(self) -> int:
        """Largest number of slots in a step and its separator."""
        return max((len(s.slots) + len(s.separator) for s in self.steps), default=0)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the input steps."""
        return tuple(i for i, step in enumerate(self.steps) if step.is_input)


def causal_order(structure: Structure, slots: np.ndarray) -> CausalOrder:
    """Eliminate in the given order of slots, as far as units allow.

    Cost O(Σ degree²) on the elimination graph of the units.
    """
    position = np.empty(structure.num_slots, np.int64)
    position[slots] = np.arange(structure.num_slots)
    unit_of, members = _units(structure)
    reads, near = _neighbours(structure, unit_of, len(members))
    waiting = np.zeros(len(members), np.int64)
    for parents in reads:
        waiting[list(parents)] += 1
    rank = [int(position[m].max()) for m in members]
    ready = [(rank[u], u) for u in range(len(members)) if not waiting[u]]
    heapq.heapify(ready)
    found: list[tuple[list[int], set[int]]] = []
    while ready:
        _, u = heapq.heappop(ready)
        is_input = members[u][0] < structure.num_inputs
        separator = near[u] | reads[u]
        for w in separator:
            near[w] |= separator
            near[w].discard(w)
            near[w].discard(u)
        for w in reads[u]:
            waiting[w] -= 1
            if not waiting[w]:
                heapq.heappush(ready, (rank[w], w))
        # An input that the last inputs listen to is minimised over together with them: its front holds theirs.
        if is_input and found and u in found[-1][1] and members[found[-1][0][0]][0] < structure.num_inputs:
            found[-1] = ([*found[-1][0], u], separator)
        else:
            found.append(([u], separator))
    return CausalOrder(structure, tuple(_steps(structure, unit_of, members, rank, found)))


def _units(structure: Structure) -> tuple[np.ndarray, list[np.ndarray]]:
    """Slots that one instance defines belong together, unless one of them reads another: (unit of slot, slots of units)."""
    n = structure.num_slots
    families = [structure.families[f] for f in structure.nodes]
    tables = [(family.args, family.outs) for family in families if family.outs is not None and family.m]
    unit_of = _joined([outs for _, outs in tables], n)
    apart = np.zeros(n, bool)
    for args, outs in tables:
        mixed = (unit_of[args][:, :, None] == unit_of[outs][:, None, :]).any((1, 2))
        apart[unit_of[outs[mixed]]] = True
    unit_of = np.where(apart[unit_of], n + np.arange(n), unit_of)
    _, unit_of = np.unique(unit_of, return_inverse=True)
    order = np.argsort(unit_of, kind="stable")
    return unit_of, np.split(order, np.flatnonzero(np.diff(unit_of[order])) + 1)


def _joined(tables: list[np.ndarray], num: int) -> np.ndarray:
    """For each slot the least slot that rows of the tables join it with, over any number of rows."""
    least = np.arange(num)
    while True:
        before = least.copy()
        for table in tables:
            # The slot that a row's least slot stands for is joined, too: chains of rows shrink by halves.
            lowest = least[table].min(1, keepdims=True)
            np.minimum.at(least, least[table], lowest)
            np.minimum.at(least, table, lowest)
        least = least[least]
        if np.array_equal(least, before):
            return least


def _neighbours(structure: Structure, unit_of: np.ndarray, num: int) -> tuple[list[set[int]], list[set[int]]]:
    """For each unit, the units that its instances read, and the units that share a loss with it."""
    reads, near = ([set[int]() for _ in range(num)] for _ in range(2))
    for family in structure.families:
        found, ends = (near, family.args) if family.outs is None else (reads, family.outs)
        for args, mine in zip(unit_of[family.args].tolist(), unit_of[ends].tolist(), strict=True):
            for u in set(mine):
                found[u].update(args)
                found[u].discard(u)
    return reads, near


def _steps(
    structure: Structure,
    unit_of: np.ndarray,
    members: list[np.ndarray],
    rank: list[int],
    found: list[tuple[list[int], set[int]]],
) -> list[CausalStep]:
    """Write the eliminated units out in slots, and give each the instances that belong to it."""
    when = np.zeros(len(members), np.int64)
    for i, (units, _) in enumerate(found):
        when[units] = i
    step_of = when[unit_of]
    losses: list[list[tuple[int, int]]] = [[] for _ in found]
    nodes: list[list[tuple[int, int]]] = [[] for _ in found]
    finished: list[list[tuple[int, int]]] = [[] for _ in found]
    for f, family in enumerate(structure.families):
        if family.outs is None:
            if family.k:
                for row, i in enumerate(step_of[family.args].min(1).tolist()):
                    losses[i].append((f, row))
            continue
        for row, steps in enumerate(step_of[family.outs].tolist()):
            for i in sorted(set(steps)):
                nodes[i].append((f, row))
            if steps:
                finished[max(steps)].append((f, row))
    steps = []
    for i, (units, separator) in enumerate(found):
        late = sorted(separator, key=rank.__getitem__)
        steps.append(
            CausalStep(
                bool(members[units[0]][0] < structure.num_inputs),
                np.sort(np.concatenate([members[u] for u in units])),
                np.concatenate([_NONE, *(members[u] for u in late)]),
                tuple(losses[i]),
                tuple(nodes[i]),
                tuple(finished[i]),
            )
        )
    return steps
