"""Derivatives of a scalar program by its own rules: gradients in reverse, tangents forward, all of them nodes.

What JAX would do by tracing the function again for every derivative is done here on node numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnewt.jaxprs import is_float
from gnewt.jaxprs.primitives import primitive
from gnewt.kkt.derivatives.partials import partial
from gnewt.kkt.derivatives.scalars import ScalarProgram, live_nodes


class Differentiator:
    """Derivatives along the inputs x of a program."""

    def __init__(self, program: ScalarProgram, x: Sequence[int]) -> None:
        self._program = program
        self._place = {node: i for i, node in enumerate(x)}
        self._x = list(x)
        self._masks: list[int] = []
        """For each node the inputs that it depends on differentiably, as bits."""

    def depends(self, node: int) -> int:
        """Return the inputs that a node depends on, as bits."""
        program, masks = self._program, self._masks
        for n in range(len(masks), node + 1):
            place = self._place.get(n)
            mask = 0 if place is None else 1 << place
            if place is None and is_float(program.dtypes[n]) and not primitive(program.names[n]).flat:
                for a in self._active(n):
                    mask |= masks[a]
            masks.append(mask)
        return masks[node]

    def _active(self, node: int) -> tuple[int, ...]:
        """Arguments with a derivative: of what has a rule of its own, the value itself is none of them."""
        args = self._program.args[node]
        return args[1:] if node in self._program.own else args

    def gradient(self, outs: Sequence[int], seeds: Sequence[int]) -> list[int]:
        """Return the nodes of ∂(Σ seeds·outs)/∂x."""
        program = self._program
        adjoints: dict[int, int] = {}

        def give(node: int, term: int) -> None:
            if self.depends(node) and program.value.get(term) != 0:
                term = program.convert(term, program.dtypes[node])
                adjoints[node] = program.add(adjoints[node], term) if node in adjoints else term

        for out, seed in zip(outs, seeds, strict=True):
            give(out, seed)
        for node in reversed(live_nodes(program, outs)):
            if node in adjoints and node not in self._place:
                self._push(node, adjoints[node], give)
        zeros = [program.constant(np.zeros((), program.dtypes[s])) for s in self._x]
        return [adjoints.get(s, zero) for s, zero in zip(self._x, zeros, strict=True)]

    def _push(self, node: int, weight: int, give) -> None:
        program, args = self._program, self._program.args[node]
        if program.names[node] == "select_n":
            zero = program.constant(np.zeros((), program.dtypes[node]))
            for i in range(1, len(args)):
                cases = [weight if i == j else zero for j in range(1, len(args))]
                give(args[i], program.select(args[0], cases))
            return
        first = len(args) - len(self._active(node))
        for i in range(first, len(args)):
            if self.depends(args[i]):
                give(args[i], program.mul(weight, partial(program, node, i)))

    def tangents(self, outs: Sequence[int], along: int) -> list[int]:
        """Return the nodes of ∂outs/∂x[along]."""
        program, bit = self._program, 1 << along
        found: dict[int, int] = {}
        for node in self._live(tuple(outs)):
            if node == self._x[along]:
                found[node] = program.constant(np.ones((), program.dtypes[node]))
            elif self.depends(node) & bit:
                found[node] = self._pull(node, found)
        zeros = {out: program.constant(np.zeros((), program.dtypes[out])) for out in outs}
        return [found.get(out, zeros[out]) for out in outs]

    def _live(self, outs: tuple[int, ...]) -> list[int]:
        """Nodes whose tangents are needed. What only the value of a function with a rule needs may have no derivative."""

        def find() -> list[int]:
            moving = set(outs)
            for node in reversed(live := live_nodes(self._program, outs)):
                if node in moving:
                    moving.update(self._active(node))
            return [node for node in live if node in moving]

        return self._program.remember(("moving", outs), find)

    def _pull(self, node: int, found: dict[int, int]) -> int:
        program, args = self._program, self._program.args[node]
        zero = program.constant(np.zeros((), program.dtypes[node]))
        if program.names[node] == "select_n":
            return program.select(args[0], [found.get(a, zero) for a in args[1:]])
        total = zero
        for i in range(len(args) - len(self._active(node)), len(args)):
            tangent = found.get(args[i])
            if tangent is not None and program.value.get(tangent) != 0:
                tangent = program.convert(tangent, program.dtypes[node])
                total = program.add(total, program.mul(tangent, partial(program, node, i)))
        return total
