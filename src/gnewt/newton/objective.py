"""Objective: what the user gave (a function, a Graph, a Structure), seen at given arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gnewt._errors import GraphError, explain_error, user_line
from gnewt._typing import Array, PyTree
from gnewt.graph import Data, Graph, Handle, Structure, evaluate
from gnewt.trace import TracedFunction, trace_function

LONG = 600
"""Equations of f beyond which its derivatives are not compiled: XLA takes minutes for an unrolled loop of a few
thousand. Residuals then come from the evaluation of the graph, which is checked against f once, uncompiled."""


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """An objective at one call: its structure, the data of this call, the flat inputs."""

    structure: Structure
    data: Data
    x: Array
    captured: Any
    """Values that `original` needs besides x."""
    original: Callable[[Any, Any], Any]
    """The objective, (captured, x) ↦ f, to be compiled: the traced function itself unless it is very long."""
    uncompiled: Callable[[Any], Any] | None = None
    """x ↦ f for a function too long to compile; None where `original` is the function itself."""


class Objective:
    """A function of pytrees, or a hand-written graph, to be seen as a structure."""

    def __init__(
        self,
        target: Callable | Graph | Structure,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
    ) -> None:
        self.target = target
        self.traced: TracedFunction | None = None
        if isinstance(target, Graph | Structure):
            if argnums != 0 or has_aux:
                raise GraphError("argnums and has_aux are for functions: a graph knows its inputs")
        elif callable(target):
            self.traced = trace_function(target, argnums, has_aux)
        else:
            raise TypeError(
                explain_error(
                    f"expected a JAX function or a gnewt.Graph, got {type(target).__name__}",
                    user_line(),
                    "pass the objective itself, not its value",
                )
            )

    def at(self, args: Sequence[Any]) -> Point:
        """Find structure, data and flat inputs at these arguments."""
        if self.traced is not None:
            found = self.traced.find(args)
            x = found.structure.ravel(self.traced.inputs_of(args))
            if found.num_equations <= LONG:
                return Point(found.structure, found.data, x, found.captured, found.replay)
            structure, data = found.structure, found.data
            original = structure.memo("original", lambda: _evaluation(structure))
            replay = functools.partial(found.replay, found.captured)
            return Point(structure, data, x, (structure.maps, data), original, replay)
        structure = self.target.structure() if isinstance(self.target, Graph) else self.target
        assert isinstance(structure, Structure)
        tree: PyTree = args[0] if len(args) == 1 else tuple(args)
        captured = (structure.maps, structure.data)
        original = structure.memo("original", lambda: _evaluation(structure))
        return Point(structure, structure.data, structure.ravel(tree), captured, original)

    def slots(self, order: str | Sequence[Any]) -> Any:
        """Translate an order of handles into an order of slots."""
        if isinstance(order, str) or not isinstance(self.target, Graph):
            return order
        return [self.target.slots(h) if isinstance(h, Handle) else h for h in order]

    def aux(self, args: Sequence[Any]) -> Any:
        """Evaluate f once more for its auxiliary output (not compiled: f may capture new values at each call)."""
        assert self.traced is not None
        return self.traced.f(*args)[1]


def _evaluation(structure: Structure) -> Callable[[Any, Any], Any]:
    return lambda captured, x: evaluate(structure, captured[0], captured[1], x)[0]
