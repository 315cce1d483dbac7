"""Objective: what the user gave (a function, a Graph, a Structure), seen at given arguments."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.core import Tracer

from gnewt._errors import GraphError, PlanError, explain_error, user_line
from gnewt._typing import Argument, PyTree
from gnewt.graph import Data, Graph, Handle, Structure, evaluate
from gnewt.newton.arithmetic import Array
from gnewt.trace import Entry, Replay, TracedFunction, trace_function

LONG = 600
"""Equations of f beyond which its derivatives are not compiled: XLA takes minutes for an unrolled loop of a few
thousand. Residuals then come from the evaluation of the graph, which is checked against f once, uncompiled."""


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """An objective at one call: its structure, the data of this call, the flat inputs. A pytree of its numbers."""

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    x: Array
    data: Data
    captured: Any
    """Values that `replay` needs besides x."""
    structure: Structure
    replay: Replay | None
    """The function itself, (captured, x) ↦ f; None for a graph, which is its own function."""
    is_long: bool
    """The function has too many equations for its derivatives to be compiled."""
    entry: Entry | None = None
    """What the structure came from; None for a graph, and inside compiled functions."""

    @property
    def is_traced(self) -> bool:
        """Whether the numbers are known only when a program runs: inside jit, vmap or grad."""
        return any(
            isinstance(v, Tracer) for v in jax.tree_util.tree_leaves((self.x, self.data, self.captured))
        )

    @property
    def still(self) -> Point:
        """The same numbers, without their derivatives: known, where only a derivative made them tracers."""
        if not self.is_traced:
            return self
        parts = (self.x, self.data, self.captured)
        x, data, captured = jax.tree.map(
            lambda v: jax.lax.stop_gradient(v) if isinstance(v, Tracer) else v, parts
        )
        return dataclasses.replace(self, x=x, data=data, captured=captured)

    def original(self, maps: Any, x: Array) -> Array:
        """Evaluate the objective at other inputs: the function itself, unless it is too long to be compiled."""
        if self.replay is None or self.is_long:
            return evaluate(self.structure, maps, self.data, x)[0]
        return self.replay(self.captured, x)


class _Origin:
    """What a point without its numbers is to JAX. It holds the structure weakly: JAX keeps the trees of the arguments of
    compiled functions, and these functions belong to the structure."""

    __slots__ = ("hash", "is_long", "replay", "structure")

    def __init__(self, point: Point) -> None:
        self.structure = weakref.ref(point.structure)
        self.replay = None if point.replay is None else weakref.ref(point.replay)
        self.is_long = point.is_long
        self.hash = hash((id(point.structure), id(point.replay), point.is_long))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Origin) and self._parts() == other._parts()

    def _parts(self) -> tuple[object, ...]:
        return (self.structure, self.replay, self.is_long)


def _flatten_point(point: Point) -> tuple[tuple[Any, ...], _Origin]:
    return (point.x, point.data, point.captured), _Origin(point)


def _unflatten_point(origin: _Origin, numbers: Sequence[Any]) -> Point:
    structure, replay = origin.structure(), None if origin.replay is None else origin.replay()
    assert structure is not None  # whoever calls a function of the structure holds it
    x, data, captured = numbers
    return Point(x, data, captured, structure, replay, origin.is_long)


jax.tree_util.register_pytree_node(Point, _flatten_point, _unflatten_point)


class Objective:
    """A function of pytrees, or a hand-written graph, to be seen as a structure."""

    def __init__(
        self,
        target: Any,
        argnums: Argument[int | Sequence[int]] = 0,
        has_aux: bool = False,
        keep: bool | str | Sequence[str] = (),
    ) -> None:
        self.target = target
        self.traced: TracedFunction | None = None
        if isinstance(target, Graph | Structure):
            if argnums != 0 or has_aux or keep:
                raise GraphError(
                    "argnums and has_aux are for functions: a graph knows its inputs",
                    remedy="leave them out; inputs of a graph are given as one list",
                )
        elif callable(target):
            self.traced = trace_function(target, argnums, has_aux, keep)
        else:
            raise TypeError(
                explain_error(
                    f"expected a JAX function or a gnewt.Graph, got {type(target).__name__}",
                    user_line(),
                    "pass the objective itself, not its value; in this order: minimize(f, x0), newton_step(f)(x)",
                )
            )

    def at(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Point:
        """Find structure, data and flat inputs at these arguments."""
        if self.traced is not None:
            found = self.traced.find(args, kwargs)
            x = found.structure.ravel(self.traced.inputs_of(args))
            long = found.num_equations > LONG
            return Point(x, found.data, found.captured, found.structure, found.replay, long, found.entry)
        if kwargs:
            raise GraphError(
                f"a graph was given keyword arguments: {', '.join(kwargs)}",
                user_line(),
                "give the values of its inputs, in their order",
            )
        structure = self.target.structure() if isinstance(self.target, Graph) else self.target
        assert isinstance(structure, Structure)
        tree: PyTree = args[0] if len(args) == 1 else tuple(args)
        return Point(structure.ravel(tree), structure.data, (), structure, None, False)

    def slots(self, order: Argument[str | Sequence[Any] | np.ndarray]) -> Any:
        """Translate an order of handles into an order of slots."""
        if not isinstance(order, str | Sequence | np.ndarray):
            raise PlanError(
                f"order is {order!r}, neither a name nor a sequence of slots",
                remedy="use 'auto', a name in gnewt.plan.ORDERS, or all slots in the order of their elimination",
            )
        if isinstance(order, str) or not isinstance(self.target, Graph):
            return order
        return [self.target.slots(h) if isinstance(h, Handle) else h for h in order]

    def aux(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Evaluate f once more for its auxiliary output (not compiled: f may capture new values at each call)."""
        assert self.traced is not None
        return self.traced.f(*args, **kwargs)[1]
