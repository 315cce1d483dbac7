"""The joint problem: objective and constraints traced together, their limits read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import ConstantError, ConstraintError, user_line
from gnewt._typing import PyTree
from gnewt.graph import Graph, Kind, Output, Structure
from gnewt.newton.arithmetic import Array
from gnewt.newton.constrained.forms import Constraint, Named, read_bounds, read_constraints
from gnewt.newton.constrained.lifted import LiftedStart
from gnewt.newton.constrained.rows import Rows, flat_vector, read_rows, with_fixed
from gnewt.newton.objective import Objective, Point
from gnewt.newton.rules import still


@dataclasses.dataclass(frozen=True, eq=False)
class Joint:
    """A constrained problem at one call."""

    point: Point
    """Of the traced structure; its inputs are inside of their bounds, or where these fix them."""
    rows: Rows
    lower: Array
    """Bounds of the inputs; infinite where they are fixed."""
    upper: Array
    named: Named
    shapes: tuple[Any, ...]
    """For each constraint the treedef, shapes and sizes of what its function returns."""
    fixed: np.ndarray
    """Slots of fixed inputs: the last rows are theirs."""
    start: PyTree
    """x0 as it was given."""
    constant: Array | None
    """The value of an objective that does not depend on x."""
    outputs: PyTree
    """Slots of all kept auxiliary data, by name."""
    kept: Callable[[], PyTree] | None = None
    """Evaluates the kept auxiliary data at the start: for those of its numbers that do not depend on x."""
    lifted: LiftedStart | None = None
    """First values of the nodes of a lifted graph."""

    @property
    def is_traced(self) -> bool:
        """Whether some number of the problem is known only when a program runs."""
        nodes = None if self.lifted is None else self.lifted.values
        rows = self.rows
        some = (self.lower, self.upper, rows.lower, rows.upper, rows.worst, self.constant, nodes)
        return self.point.is_traced or any(isinstance(v, Tracer) for v in some)

    @property
    def still(self) -> Joint:
        """The same numbers, without their derivatives: known, where only a derivative made them tracers."""
        if not self.is_traced:
            return self
        rows, kept = self.rows, self.kept
        rows = dataclasses.replace(
            rows, lower=still(rows.lower), upper=still(rows.upper), worst=still(rows.worst)
        )
        lifted = self.lifted
        return dataclasses.replace(
            self,
            point=self.point.still,
            rows=rows,
            lower=still(self.lower),
            upper=still(self.upper),
            constant=still(self.constant),
            kept=None if kept is None else lambda: still(kept()),
            lifted=None if lifted is None else dataclasses.replace(lifted, values=still(lifted.values)),
        )

    def unravel(self, x: Array) -> PyTree:
        """Turn a vector over the inputs into the form of x."""
        return self.point.structure.unravel(x)

    def mirror(self, rows: Array) -> PyTree:
        """Turn one number per row into the form of the constraints."""
        parts, at = [], 0
        for tree, shapes in self.shapes:
            leaves = []
            for shape in shapes:
                count = int(np.prod(shape, dtype=np.int64))
                leaves.append(jnp.asarray(rows[at : at + count]).reshape(shape))
                at += count
            parts.append(jax.tree_util.tree_unflatten(tree, leaves))
        return self.named.mirror(parts)

    def flat_rows(self, given: PyTree) -> Array:
        """The opposite of `mirror`: one number for every row that a person gave."""
        return flat_vector(jax.tree_util.tree_leaves(given), self.point.structure.dtype)

    def name_of(self, at: int) -> str:
        """Name a scalar of x as a person would."""
        return name_of(self.start, at)


def make_joint(
    target: Any,
    x0: PyTree,
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    bounds: Any,
    constraints: Any,
    has_aux: bool,
    kept: Sequence[Any] | None = (),
) -> Joint:
    """Trace the objective and all constraints together, and read their limits.

    Args:
        kept: names of further auxiliary entries that must be slots; of a graph its vertices. None for all real entries.
    """
    lower, upper = read_bounds(bounds, x0)
    if isinstance(target, Graph | Structure):
        from_graph = _own_constraints(target) if isinstance(target, Graph) else []
        joint = _graph_joint(target, x0, lower, upper, constraints, from_graph)
        return dataclasses.replace(joint, outputs=_vertices(target, kept or ()))
    named = read_constraints(constraints)
    if named.on_aux and not has_aux:
        raise ConstraintError(
            f"constraints on auxiliary entries ({', '.join(map(repr, named.on_aux))}) need has_aux=True",
            user_line(),
            "return (value, {name: ...}) from the objective, and use has_aux=True",
        )
    function = _joint_function(target, named, has_aux, kept)
    point, constant = _trace(function, x0, args, kwargs)
    outputs: Any = point.structure.outputs
    evaluate: Callable[[], Any] = lambda: function(x0, *args, **kwargs)[1]  # noqa: E731
    rows, shapes = read_rows(named, outputs["constraints"], lambda: evaluate()["constraints"])
    joint = _bounded(x0, point, (lower, upper), rows, named, shapes)
    return dataclasses.replace(
        joint, constant=constant, outputs=outputs["kept"], kept=lambda: evaluate()["kept"]
    )


def _bounded(
    x0: PyTree,
    point: Point,
    bounds: tuple[list[Any], list[Any]],
    rows: Rows,
    named: Named,
    shapes: tuple[Any, ...],
) -> Joint:
    """Put a problem together; variables with equal bounds become equalities."""
    dtype = point.structure.dtype
    low, up = (flat_vector(v, dtype) for v in bounds)
    none = np.zeros(0, np.int32)
    known_low, known_up = still(low), still(up)
    if isinstance(known_low, Tracer) or isinstance(known_up, Tracer):
        return Joint(point, rows, low, up, named, shapes, none, x0, None, {})
    _check_crossed(known_low, known_up, x0)
    is_fixed = np.asarray(known_low == known_up)
    if not is_fixed.any():
        return Joint(point, rows, low, up, named, shapes, none, x0, None, {})
    if is_fixed.all():
        raise ConstraintError(
            "the bounds fix every variable",
            user_line(),
            "evaluate the objective: there is nothing to minimise",
        )
    fixed = np.flatnonzero(is_fixed).astype(np.int32)
    xp = jnp if any(isinstance(v, Tracer) for v in (point.x, low, up)) else np
    point = dataclasses.replace(point, x=xp.where(is_fixed, low, point.x))
    rows = with_fixed(rows, fixed, low[fixed], up[fixed])
    low, up = xp.where(is_fixed, -np.inf, low), xp.where(is_fixed, np.inf, up)
    return Joint(point, rows, low.astype(dtype), up.astype(dtype), named, shapes, fixed, x0, None, {})


def _joint_function(
    target: Callable[..., Any], named: Named, has_aux: bool, kept: Sequence[Any] | None
) -> Callable[..., Any]:
    """x ↦ (f, {"constraints": [...], "kept": {...}})."""

    def joint(x: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
        found: Any = target(x, *args, **kwargs)
        value, aux = found if has_aux else (found, {})
        names = _real_entries(aux) if kept is None else kept
        wanted = (*named.on_aux, *names)
        if wanted and not isinstance(aux, Mapping):
            raise ConstraintError(
                f"the auxiliary data is a {type(aux).__name__}, and {wanted[0]!r} names an entry of it",
                user_line(),
                "return it as a dict",
            )
        for name in wanted:
            if name not in aux:
                raise ConstraintError(
                    f"the auxiliary data has no entry {name!r}",
                    user_line(),
                    f"use one of {', '.join(map(repr, aux)) or 'no names at all'}",
                )
        parts = [aux[c.fn] if isinstance(c.fn, str) else c.fn(x, *args, **kwargs) for c in named.items]
        return value, {"constraints": parts, "kept": {name: aux[name] for name in names}}

    joint.__name__ = getattr(target, "__name__", "the objective")
    joint.__wrapped__ = target  # type: ignore[attr-defined]
    return joint


def _real_entries(aux: PyTree) -> tuple[Any, ...]:
    """Names of the entries of the auxiliary data that hold real numbers only."""
    if not isinstance(aux, Mapping):
        return ()

    def is_real(entry: PyTree) -> bool:
        leaves = jax.tree_util.tree_leaves(entry)
        return bool(leaves) and all(jnp.issubdtype(jnp.result_type(v), jnp.floating) for v in leaves)

    return tuple(name for name, entry in aux.items() if is_real(entry))


def _vertices(target: Graph | Structure, kept: Sequence[Any]) -> dict[str, Output]:
    """Slots of vertices of a graph, by their names."""
    if not isinstance(target, Graph):
        return {}
    names = [handle.name for handle in kept]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConstraintError(
            f"two lifted vertices have the name {twice[0]!r}",
            user_line(),
            "give them names of their own: g.node(..., name=...)",
        )
    slots = [target.slots(handle) for handle in kept]
    kinds = [np.full(s.shape, Kind.SLOT, np.int8) for s in slots]
    return {h.name: Output(s, k, np.dtype(h.dtype)) for h, s, k in zip(kept, slots, kinds, strict=True)}


def _trace(
    function: Callable[..., Any], x: PyTree, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]
) -> tuple[Point, Array | None]:
    """The point of the joint function; where the objective is constant, its constraints stand in for it."""
    try:
        return Objective(function, 0, True, True).at((x, *args), kwargs), None
    except ConstantError:

        def stand_in(x: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
            value, aux = function(x, *args, **kwargs)
            total: Any = sum(
                (jnp.sum(v) for v in jax.tree_util.tree_leaves(aux)), start=jnp.zeros_like(value)
            )
            return total, aux

        try:
            point = Objective(stand_in, 0, True, True).at((x, *args), kwargs)
        except ConstantError:
            raise ConstraintError(
                "neither the objective nor a constraint depends on x",
                user_line(),
                "check that their results are not detached (stop_gradient, integers, rounding)",
            ) from None
        return point, function(x, *args, **kwargs)[0]


def _check_crossed(lower: Array, upper: Array, x0: PyTree) -> None:
    bad = (lower > upper) | (lower == np.inf) | (upper == -np.inf)
    if np.any(bad):
        at = int(np.argmax(bad))
        raise ConstraintError(
            f"the bounds of {name_of(x0, at)} cross: {lower[at]:g} > {upper[at]:g}",
            user_line(),
            "give lower ≤ upper",
        )


def name_of(x0: PyTree, at: int) -> str:
    """Name a scalar of x as a person would."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(x0)[0]:
        count = int(np.prod(np.shape(leaf), dtype=np.int64))
        if at < count:
            index = np.unravel_index(at, np.shape(leaf)) if np.shape(leaf) else ()
            inside = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
            return f"x{jax.tree_util.keystr(path)}{inside}"
        at -= count
    return "x"


def _own_constraints(graph: Graph) -> list[tuple[Constraint, np.ndarray]]:
    """The constraints on vertices of a graph, with their slots."""
    return [
        (Constraint(handle.name, lower, upper, is_equality, where), graph.slots(handle))
        for handle, lower, upper, is_equality, where in graph.limits
    ]


def _graph_joint(
    target: Graph | Structure,
    x0: PyTree,
    lower: list[Any],
    upper: list[Any],
    constraints: Any,
    own: list[Any],
) -> Joint:
    """The problem of a graph that was written by hand: its constraints are on vertices."""
    if constraints is not None:
        raise ConstraintError(
            "constraints= is for functions; a graph has its own",
            user_line(),
            "add them with g.equal(vertex, target) and g.between(vertex, lower, upper)",
        )
    point = Objective(target).at((x0,))
    dtype = np.dtype(point.structure.dtype)
    named = read_constraints([c for c, _ in own])
    named = dataclasses.replace(named, names=tuple(repr(c.fn) for c, _ in own))
    outputs = [Output(slots, np.full(slots.shape, Kind.SLOT, np.int8), dtype) for _, slots in own]
    rows, shapes = read_rows(named, outputs, None)
    return _bounded(x0, point, (lower, upper), rows, named, shapes)
