"""Cuts: a scalar program taken apart into cores, small nonlinear functions that linear combinations connect.

A Runge-Kutta step is a chain of four calls of the same flow, and its second derivatives are those of the flow,
joined by products of Jacobians. Between two narrow places of a program, everything that is not linear is one
core; its arguments are linear combinations of the inputs and of the results of earlier cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gnewt.kkt.derivatives.scalars import ScalarProgram, live_nodes

_MAX_PLACES = 40
"""Narrow places that are considered: every pair of them is priced."""


@dataclasses.dataclass(frozen=True)
class Core:
    """A nonlinear part of a program: nodes, in order."""

    args: tuple[int, ...]
    """Nodes outside of it that it reads and along which it is differentiated."""
    given: tuple[int, ...]
    """Nodes outside that do not depend on x differentiably: data, conditions."""
    nodes: tuple[int, ...]
    outs: tuple[int, ...]


Combination = dict[int, float]
"""base → coefficient; bases are the inputs and the results of cores."""


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Cores in order, and what lies between them."""

    cores: tuple[Core, ...]
    combination: dict[int, Combination]
    """Node → its combination, for arguments of cores and outputs."""


def cut(program: ScalarProgram, x: Sequence[int], outputs: Sequence[int]) -> Cuts:
    """Take a program apart where second derivatives become cheapest."""
    nodes = live_nodes(program, outputs)
    depends = set(x)
    for node in nodes:
        if any(a in depends for a in program.args[node]):
            depends.add(node)
    moving = [node for node in nodes if node in depends and program.args[node]]
    linear = {node: _linear_terms(program, node, depends) for node in moving}
    places = _narrow_places(program, moving, outputs, len(x))
    pieces = [moving[a:b] for a, b in _cheapest(program, moving, linear, places, depends, outputs, len(x))]
    cores = [core for piece in pieces if (core := _core(program, piece, linear, depends, moving, outputs))]
    inside = {node for core in cores for node in core.nodes}
    bases = {*x, *(out for core in cores for out in core.outs)}
    made: dict[int, Combination] = {}
    for node in [*x, *moving]:
        if node in bases:
            made[node] = {node: 1.0}
        elif node not in inside:
            total: Combination = {}
            for a, c in linear[node] or ():
                for base, d in made[a].items():
                    total[base] = total.get(base, 0.0) + c * d
            made[node] = total
    wanted = {*outputs, *(a for core in cores for a in core.args)}
    return Cuts(tuple(cores), {node: made.get(node, {}) for node in wanted})


def _linear_terms(program: ScalarProgram, node: int, depends: set[int]) -> list[tuple[int, float]] | None:
    """Return [(argument, coefficient)] where a node is linear in what moves, up to a constant; else None."""
    name, args = program.names[node], program.args[node]
    if not np.issubdtype(program.dtypes[node], np.floating):
        return None
    if any(a in depends and not np.issubdtype(program.dtypes[a], np.floating) for a in args):
        return None
    if name == "add":
        return [(a, 1.0) for a in args if a in depends]
    if name == "sub":
        return [(a, c) for a, c in zip(args, (1.0, -1.0), strict=True) if a in depends]
    if name == "neg":
        return [(args[0], -1.0)]
    if name == "convert_element_type":
        return [(args[0], 1.0)]
    if name == "mul":
        for a, b in (args, args[::-1]):
            if a in program.value:
                return [(b, float(program.value[a]))]
    if name == "div" and args[1] in program.value:
        return [(args[0], 1.0 / float(program.value[args[1]]))]
    return None


def _narrow_places(program: ScalarProgram, moving: list[int], outputs: Sequence[int], size: int) -> list[int]:
    """Choose places between nodes where few values are alive, ends included."""
    at = {node: i for i, node in enumerate(moving)}
    last = {a: i for i, node in enumerate(moving) for a in program.args[node] if a in at}
    last.update({node: len(moving) for node in outputs if node in at})
    change = np.zeros(len(moving) + 2, np.int64)
    for node, end in last.items():
        change[at[node] + 1] += 1
        change[end + 1] -= 1
    alive = np.cumsum(change)  # alive[i]: values made before node i that are read by it or later
    inner = [
        i
        for i in range(1, len(moving))
        if alive[i] <= 4 * size and alive[i] <= alive[i - 1] and alive[i] < alive[i + 1]
    ]
    inner = sorted(sorted(inner, key=lambda i: (alive[i], i))[:_MAX_PLACES])
    return [0, *inner, len(moving)]


def _cheapest(
    program: ScalarProgram,
    moving: list[int],
    linear: dict[int, list[tuple[int, float]] | None],
    places: list[int],
    depends: set[int],
    outputs: Sequence[int],
    size: int,
) -> list[tuple[int, int]]:
    """Choose the cuts with the least modelled number of multiplications, by dynamic programming."""
    best = [(0, 0)]
    for j in range(1, len(places)):
        options = []
        for i in range(j):
            core = _core(program, moving[places[i] : places[j]], linear, depends, moving, outputs)
            options.append((best[i][0] + (_price(program, core, linear, size) if core else 0), i))
        best.append(min(options))
    cuts, j = [], len(places) - 1
    while j:
        i = best[j][1]
        cuts.append((places[i], places[j]))
        j = i
    return cuts[::-1]


def _price(
    program: ScalarProgram, core: Core, linear: dict[int, list[tuple[int, float]] | None], size: int
) -> int:
    """Estimate the operations for a core's share of the second derivatives along `size` directions.

    A value that depends on d arguments takes part in about 3d operations of a scalar program, which count three times
    because they are compiled one by one. The patterns are bit sets: bit i for argument i.
    """
    first = {a: 1 << i for i, a in enumerate(core.args)}
    for node in core.nodes:
        args = [a for a in program.args[node] if a in first]
        first[node] = 0
        for a in args:
            first[node] |= first[a]
    inside = {node: first[node] for node in core.nodes}
    pairs: set[tuple[int, int]] = set()
    for node in core.nodes:
        if linear[node] is not None:
            continue
        args = [a for a in program.args[node] if first.get(a)]
        curved = [
            (a, b)
            for a in args
            for b in args
            if a != b or program.names[node] != "mul" or len(set(args)) == 1
        ]
        pairs.update((first[a], first[b]) for a, b in curved)
    coupled = [0] * len(core.args)
    for a, b in pairs:
        for i in range(len(coupled)):
            if a >> i & 1:
                coupled[i] |= b
            if b >> i & 1:
                coupled[i] |= a
    bent = sum(row != 0 for row in coupled)
    entries = sum(row.bit_count() for row in coupled)
    slopes = sum(inside[out].bit_count() for out in core.outs)
    written = 9 * sum(pattern.bit_count() for pattern in inside.values())
    return written + size * (slopes + entries) + size * size * bent


def _core(
    program: ScalarProgram,
    piece: list[int],
    linear: dict[int, list[tuple[int, float]] | None],
    depends: set[int],
    moving: list[int],
    outputs: Sequence[int],
) -> Core | None:
    """Make the core of a piece: its nonlinear nodes, and the linear ones between two of them."""
    behind: set[int] = set()
    for node in piece:
        if linear[node] is None or any(a in behind for a in program.args[node]):
            behind.add(node)
    needed: set[int] = set()
    for node in reversed(piece):
        if node in behind and (linear[node] is None or node in needed):
            needed.update(program.args[node])
            needed.add(node)
    nodes = [node for node in piece if node in behind and node in needed]
    if not nodes:
        return None
    inside = set(nodes)
    read = dict.fromkeys(a for node in nodes for a in program.args[node] if a not in inside)
    args = [a for a in read if a in depends and np.issubdtype(program.dtypes[a], np.floating)]
    given = [a for a in read if a not in args and a not in program.value]
    asked = {a for node in moving if node not in inside for a in program.args[node]} | set(outputs)
    outs = [n for n in nodes if n in asked and np.issubdtype(program.dtypes[n], np.floating)]
    return Core(tuple(args), tuple(given), tuple(nodes), tuple(outs))
