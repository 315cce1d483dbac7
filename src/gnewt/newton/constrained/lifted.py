"""Lifted graphs: nodes hold values of their own, and their equations x_v = Φ_v(x_pa) close on the way.

K is the matrix of the graph, taken at the slots; only its right-hand side is another one:

    rows of inputs and nodes    -(∂l + Jᵀy + Jᵀλ - λ)        with multipliers λ that are carried, not swept
    rows of multipliers         -(Φ(x_pa) - x)               the gaps

Values and local models are computed for all nodes at once, and an elimination with right-hand sides on all rows gives the
step: no evaluation runs through the graph, so that a start whose forward evaluation overflows is as good as any.

Where only some nodes are lifted, the others are computed from them, in as many rounds as their longest chain has nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import ConstraintError, user_line
from gnewt._typing import Array, PyTree
from gnewt.graph import Data, Graph, Handle, Maps, Output, Structure, node_values, objective
from gnewt.newton.constrained.augment import Augmented
from gnewt.newton.objective import Point


@dataclasses.dataclass(frozen=True, eq=False)
class Lift:
    """Which nodes hold values of their own."""

    is_slot: np.ndarray
    """bool[M]: nodes with values of their own; the others are computed from them."""
    rounds: int
    """Longest chain of nodes that are computed."""

    @property
    def key(self) -> bytes:
        return self.is_slot.tobytes()


def make_lift(structure: Structure, is_slot: np.ndarray | None) -> Lift:
    """Count the rounds that the other nodes take; None lifts all nodes."""
    if is_slot is None:
        return Lift(np.ones(structure.num_pairs, bool), 0)

    def count() -> Lift:
        n = structure.num_inputs
        depth = np.zeros(structure.num_slots, np.int64)
        free = np.concatenate([np.zeros(n, bool), ~is_slot])
        while True:
            new = depth.copy()
            for f in structure.nodes:
                family = structure.families[f]
                below = depth[family.args].max(1, initial=0) + 1
                assert family.outs is not None
                np.maximum.at(new, family.outs, np.broadcast_to(below[:, None], family.outs.shape))
            new = np.where(free, new, 0)
            if np.array_equal(new, depth):
                return Lift(is_slot, int(depth.max(initial=0)))
            depth = new

    return structure.memo(("lift", is_slot.tobytes()), count)


def complete(lift: Lift, structure: Structure, maps: Maps, data: Data, slots: jax.Array) -> jax.Array:
    """Compute the nodes that hold no value of their own from those that do."""
    n = structure.num_inputs

    def once(_: Any, s: jax.Array) -> jax.Array:
        return jnp.concatenate([s[:n], jnp.where(lift.is_slot, s[n:], node_values(structure, maps, data, s))])

    return jax.lax.fori_loop(0, lift.rounds, once, slots) if lift.rounds else slots


def lifted_values(
    lift: Lift, maps: Maps, point: Point, nodes: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(f, slots, gaps) at given values of the nodes. All of it side by side, but for the rounds."""
    structure, data = point.structure, point.data
    slots = complete(lift, structure, maps, data, jnp.concatenate([point.x, nodes]))
    gaps = node_values(structure, maps, data, slots) - slots[structure.num_inputs :]
    return objective(structure, maps, data, slots), slots, jnp.where(lift.is_slot, gaps, 0.0)


def solve_lifted(
    a: Augmented,
    engine: Any,
    arrays: PyTree,
    sources: Array,
    diagonal: Array,
    sides: tuple[Array, ...],
) -> tuple[jax.Array, Any]:
    """Eliminate K with the given diagonals and solve for all unknowns.

    Args:
        sides: right-hand sides of x, equalities, inequalities, nodes, gaps; one column each.

    Returns:
        The solution over inputs (multipliers of equalities among them), nodes, multipliers of nodes; and the elimination.
    """
    base = len(sources) - a.num_diagonals
    sources = jnp.concatenate([sources[:base], jnp.asarray(diagonal, sources.dtype)])
    x, equalities, inequalities, nodes, gaps = (jnp.asarray(s, sources.dtype) for s in sides)
    right = jnp.concatenate([x, equalities, nodes])
    right = right.at[a.inequalities].add(inequalities)
    zero = jnp.zeros((), sources.dtype)
    _, found = engine.factor_solve(
        arrays, sources, zero, jnp.zeros((a.structure.num_inputs, 1), sources.dtype)
    )
    return engine.solve_whole(arrays, sources, found, jnp.concatenate([right, gaps])), found


# What a user gives


def lifted_names(lifted: Any, target: Any, has_aux: bool) -> tuple[Any, ...]:
    """Names (of a graph: handles) whose starts are given; raise ConstraintError where the form is wrong."""
    if isinstance(lifted, bool):
        return ()
    if not isinstance(lifted, Mapping):
        raise ConstraintError(
            f"lifted is a {type(lifted).__name__}",
            user_line(),
            "use lifted=True, or lifted={name of an entry of the auxiliary data: start}",
        )
    if isinstance(target, Graph):
        for handle in lifted:
            if not isinstance(handle, Handle):
                raise ConstraintError(
                    f"lifted names {handle!r}, and a graph knows its vertices by handles",
                    user_line(),
                    "use lifted={handle: start} with handles that g.node returned",
                )
    elif not has_aux:
        raise ConstraintError(
            f"lifted names entries of the auxiliary data ({', '.join(map(repr, lifted))}), and there is none",
            user_line(),
            "return (value, {name: ...}) from the objective and use has_aux=True, or use lifted=True",
        )
    return tuple(lifted)


@dataclasses.dataclass(frozen=True, eq=False)
class LiftedStart:
    """First values of the named nodes."""

    is_slot: np.ndarray | None
    """bool[M], in the numbering of the traced structure; None where all nodes are lifted."""
    places: np.ndarray
    """Which nodes get a value."""
    values: Array


def read_start(lifted: Any, structure: Structure, outputs: Any) -> LiftedStart:
    """Find the nodes that the starts are for.

    Entries that are constants or inputs keep the values that they have.

    Args:
        outputs: for every name a pytree of `Output`.
    """
    n = structure.num_inputs
    if isinstance(lifted, bool):
        return LiftedStart(None, np.zeros(0, np.int64), np.zeros(0, structure.dtype))
    is_slot, places, values = np.zeros(structure.num_pairs, bool), [], []
    for name, start in lifted.items():
        key = name.name if isinstance(name, Handle) else name
        found, tree = jax.tree_util.tree_flatten(outputs[key], is_leaf=lambda v: isinstance(v, Output))
        given, form = jax.tree_util.tree_flatten(start)
        if form != tree:
            raise ConstraintError(
                f"the start of {name!r} has the structure {form}, the entry has {tree}",
                user_line(),
                "give the start in the form of the entry",
            )
        for output, value in zip(found, given, strict=True):
            value = _start_of(name, value, output)
            mine = output.slots.ravel() >= n
            is_slot[output.slots.ravel()[mine] - n] = True
            places.append(output.slots.ravel()[mine] - n)
            values.append(value.ravel()[mine])
    if not is_slot.any():
        raise ConstraintError(
            f"lifted entries ({', '.join(map(repr, lifted))}) hold no value that is computed from x",
            user_line(),
            "name entries that the objective computes on its way, or leave lifted= out",
        )
    xp = jnp if any(isinstance(v, Tracer) for v in values) else np
    return LiftedStart(is_slot, np.concatenate(places), xp.concatenate(values).astype(structure.dtype))


def _start_of(name: Any, value: Any, output: Output) -> Array:
    xp = jnp if isinstance(value, Tracer) else np
    value = xp.asarray(value)
    if not np.issubdtype(value.dtype, np.number) or np.issubdtype(value.dtype, np.complexfloating):
        raise ConstraintError(f"the start of {name!r} is {value.dtype}", user_line(), "give real numbers")
    try:
        value = xp.broadcast_to(value, output.shape)
    except ValueError:
        raise ConstraintError(
            f"the start of {name!r} has shape {value.shape}, the entry {output.shape}",
            user_line(),
            "give one value for every number of the entry",
        ) from None
    if xp is np and not np.all(np.isfinite(value)):
        raise ConstraintError(f"the start of {name!r} is not finite", user_line(), "give finite numbers")
    return value


def place_nodes(start: LiftedStart, nodes: Array) -> Array:
    """The first values of all nodes: those that were given, and forward values of the others."""
    if not len(start.places):
        return nodes
    if isinstance(nodes, Tracer) or isinstance(start.values, Tracer):
        return jnp.asarray(nodes).at[start.places].set(start.values)
    full = np.array(nodes)
    full[start.places] = start.values
    return full


def read_outputs(outputs: PyTree, slots: Array, evaluate: Callable[[], PyTree] | None) -> PyTree:
    """The kept auxiliary data, with their numbers at the slots.

    Args:
        slots: of the traced structure.
        evaluate: evaluates the same data at the start, for numbers that do not depend on x.
    """
    xp = jnp if isinstance(slots, Tracer) else np
    found, tree = jax.tree_util.tree_flatten(outputs, is_leaf=lambda v: isinstance(v, Output))
    fixed: list[Any] = [0.0] * len(found)
    if evaluate is not None and not all(output.is_slot.all() for output in found):
        fixed = jax.tree_util.tree_leaves(evaluate())
    leaves = [
        jnp.asarray(xp.where(output.is_slot, slots[np.maximum(output.slots, 0)], value), output.dtype)
        for output, value in zip(found, fixed, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, leaves)
