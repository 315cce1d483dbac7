"""The joint problem: objective and constraints traced together, their limits read, fixed variables taken out."""

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
from gnewt.newton.constrained.forms import Constraint, Named, read_bounds, read_constraints, spread_limit
from gnewt.newton.constrained.lifted import LiftedStart
from gnewt.newton.objective import Objective, Point


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Scalar constraints: which slot each stands for, and what it may be."""

    slots: np.ndarray
    """int32[rows]: slots of the traced structure; -1 for a constant."""
    lower: Array
    upper: Array
    is_equality: np.ndarray
    """bool[rows]"""
    is_used: np.ndarray
    """bool[rows]: False for rows without a limit and for constants."""

    @property
    def equalities(self) -> np.ndarray:
        return np.flatnonzero(self.is_equality & self.is_used)

    @property
    def inequalities(self) -> np.ndarray:
        return np.flatnonzero(~self.is_equality & self.is_used)


@dataclasses.dataclass(frozen=True, eq=False)
class Joint:
    """A constrained problem at one call."""

    point: Point
    """Of the traced structure: inputs are the free variables."""
    rows: Rows
    lower: Array
    """Bounds of the free variables."""
    upper: Array
    named: Named
    shapes: tuple[Any, ...]
    """For each constraint the treedef, shapes and sizes of what its function returns."""
    free: np.ndarray | None
    """Places of the free variables among all scalars of x; None where all are free."""
    whole: Array
    """x0 as one vector, fixed variables at their bounds."""
    in_tree: Any
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    constant: Array | None
    """The value of an objective that does not depend on x."""
    outputs: PyTree
    """Slots of all kept auxiliary data, by name."""
    kept: Callable[[], PyTree] | None = None
    """Evaluates the kept auxiliary data at the start: for those of its numbers that do not depend on x."""
    lifted: LiftedStart | None = None
    """First values of the nodes of a lifted graph."""

    def unravel(self, x: Array) -> PyTree:
        """Turn a vector of free variables into the form of x."""
        xp = jnp if isinstance(x, Tracer) or isinstance(self.whole, Tracer) else np
        full = x
        if self.free is not None:
            full = _put(xp, self.whole, self.free, x)
        return self.shaped(full)

    def shaped(self, full: Array) -> PyTree:
        """Turn a vector over all scalars of x into the form of x."""
        ends = np.cumsum([0, *[int(np.prod(a.shape, dtype=np.int64)) for a in self.in_avals]])
        leaves = [
            jnp.asarray(full[i:j].reshape(a.shape), a.dtype)
            for i, j, a in zip(ends, ends[1:], self.in_avals, strict=False)
        ]
        return jax.tree_util.tree_unflatten(self.in_tree, leaves)

    def spread(self, free: Array, fill: float = 0.0) -> PyTree:
        """Turn numbers for the free variables into the form of x; fixed ones get the same number."""
        if self.free is None:
            return self.shaped(free)
        xp = jnp if isinstance(free, Tracer) else np
        return self.shaped(_put(xp, xp.full(self.whole.shape, fill, free.dtype), self.free, free))

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


def _put(xp: Any, whole: Array, places: np.ndarray, values: Array) -> Array:
    if xp is jnp:
        return jnp.asarray(whole).at[places].set(values)
    full = np.array(whole)
    full[places] = values
    return full


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
    leaves, in_tree = jax.tree_util.tree_flatten(x0)
    avals = tuple(jax.ShapeDtypeStruct(np.shape(v), jnp.result_type(v)) for v in leaves)
    whole = _flat(leaves, jnp.result_type(*avals) if avals else np.float64)
    low, up = _flat(lower, whole.dtype), _flat(upper, whole.dtype)
    _check_crossed(low, up, x0)
    fixed = _fixed(low, up)
    function = _joint_function(target, named, has_aux, kept)
    if fixed is None:
        point, constant = _trace(function, x0, args, kwargs)
        free = None
    else:
        free = np.flatnonzero(~fixed)
        whole = np.where(fixed, low, whole)
        low, up = low[free], up[free]
        shell = Joint(None, None, low, up, named, (), free, whole, in_tree, avals, None, None)  # type: ignore[arg-type]

        def of_free(z: Array, rest: Array, *more: PyTree, **named_args: PyTree) -> PyTree:
            full = jnp.asarray(rest).at[free].set(z)
            return function(shell.shaped(full), *more, **named_args)

        point, constant = _trace(of_free, jnp.asarray(whole[free]), (jnp.asarray(whole), *args), kwargs)
    outputs: Any = point.structure.outputs
    rows, shapes = _rows(named, outputs["constraints"])
    found = outputs["kept"]
    joint = Joint(point, rows, low, up, named, shapes, free, whole, in_tree, avals, constant, found)
    return dataclasses.replace(joint, kept=lambda: function(x0, *args, **kwargs)[1]["kept"])


def _joint_function(
    target: Callable[..., Any], named: Named, has_aux: bool, kept: Sequence[Any] | None
) -> Callable[..., PyTree]:
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


def _vertices(target: Graph | Structure, kept: Sequence[Any]) -> dict[Any, Output]:
    """Slots of vertices of a graph."""
    if not isinstance(target, Graph):
        return {}
    slots = {handle: target.slots(handle) for handle in kept}
    return {h: Output(s, np.full(s.shape, Kind.SLOT, np.int8), np.dtype(h.dtype)) for h, s in slots.items()}


def _trace(
    function: Callable[..., Any], x: PyTree, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]
) -> tuple[Point, Array | None]:
    """The point of the joint function; where the objective is constant, its constraints stand in for it."""
    try:
        return Objective(function, 0, True, True).at((x, *args), kwargs), None
    except ConstantError:

        def stand_in(x: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
            value, aux = function(x, *args, **kwargs)
            total = sum((jnp.sum(v) for v in jax.tree_util.tree_leaves(aux)), start=jnp.zeros_like(value))
            return total, aux

        point = Objective(stand_in, 0, True, True).at((x, *args), kwargs)
        return point, function(x, *args, **kwargs)[0]


def _rows(named: Named, outputs: Sequence[PyTree]) -> tuple[Rows, tuple[Any, ...]]:
    slots, lower, upper, equal, shapes = [], [], [], [], []
    for constraint, name, out in zip(named.items, named.names, outputs, strict=True):
        leaves, tree = jax.tree_util.tree_flatten(out, is_leaf=lambda v: isinstance(v, Output))
        shapes.append((tree, tuple(o.shape for o in leaves)))
        where = constraint.where
        low = spread_limit(
            constraint.lower, out_like(leaves, tree), -np.inf, f"the lower limit of {name}", where
        )
        up = spread_limit(
            constraint.upper, out_like(leaves, tree), np.inf, f"the upper limit of {name}", where
        )
        for o, a, b in zip(leaves, low, up, strict=True):
            if not jnp.issubdtype(o.dtype, jnp.floating):
                raise ConstraintError(
                    f"{name} returns {o.dtype}, not real numbers", where, "return floating-point numbers"
                )
            slots.append(o.slots.ravel())
            lower.append(a.ravel())
            upper.append(b.ravel())
            equal.append(_equal(constraint.is_equality, a, b, name, where))
    flat = np.concatenate([np.zeros(0, np.int32), *slots]).astype(np.int32)
    low, up = (_flat(v, np.float64) for v in (lower, upper))
    is_equality = np.concatenate([np.zeros(0, bool), *equal])
    used = flat >= 0
    if not isinstance(low, Tracer) and not isinstance(up, Tracer):
        used = used & (np.isfinite(low) | np.isfinite(up))
    return Rows(flat, low, up, is_equality, used), tuple(shapes)


def out_like(leaves: Sequence[Output], tree: Any) -> PyTree:
    """The form of an output, with shapes for leaves."""
    return jax.tree_util.tree_unflatten(tree, [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in leaves])


def _equal(always: bool, lower: Array, upper: Array, name: str, where: str) -> np.ndarray:
    """Which entries are equalities; raise ConstraintError where limits cross."""
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return np.full(lower.shape, always).ravel()
    if np.any(lower > upper) or np.any(lower == np.inf) or np.any(upper == -np.inf):
        bad = int(np.argmax((lower > upper) | (lower == np.inf) | (upper == -np.inf)))
        raise ConstraintError(
            f"the limits of {name} cross: {lower.ravel()[bad]:g} > {upper.ravel()[bad]:g} at entry {bad}",
            where,
            "give lower ≤ upper",
        )
    same = lower == upper
    if always and not np.all(np.isfinite(lower)):
        raise ConstraintError(f"the target of {name} is not finite", where, "give finite numbers")
    return np.asarray(same | always).ravel()


def _flat(leaves: Sequence[Any], dtype: Any) -> Array:
    if any(isinstance(v, Tracer) for v in leaves):
        return jnp.concatenate([jnp.zeros(0, dtype), *[jnp.ravel(jnp.asarray(v, dtype)) for v in leaves]])
    return np.concatenate([np.zeros(0, dtype), *[np.ravel(np.asarray(v, dtype)) for v in leaves]])


def _check_crossed(lower: Array, upper: Array, x0: PyTree) -> None:
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return
    bad = (lower > upper) | (lower == np.inf) | (upper == -np.inf)
    if np.any(bad):
        at = int(np.argmax(bad))
        raise ConstraintError(
            f"the bounds of {_name_of(x0, at)} cross: {lower[at]:g} > {upper[at]:g}",
            user_line(),
            "give lower ≤ upper",
        )


def _name_of(x0: PyTree, at: int) -> str:
    """Name a scalar of x as a person would."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(x0)[0]:
        count = int(np.prod(np.shape(leaf), dtype=np.int64))
        if at < count:
            index = np.unravel_index(at, np.shape(leaf)) if np.shape(leaf) else ()
            inside = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
            return f"x{jax.tree_util.keystr(path)}{inside}"
        at -= count
    return "x"


def _fixed(lower: Array, upper: Array) -> np.ndarray | None:
    """Which variables have equal bounds; None where there are none, or where bounds are traced."""
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return None
    fixed = lower == upper
    return fixed if fixed.any() else None


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
    structure = point.structure
    low, up = _flat(lower, structure.dtype), _flat(upper, structure.dtype)
    _check_crossed(low, up, x0)
    named = read_constraints([c for c, _ in own])
    outputs = [
        Output(slots, np.full(slots.shape, Kind.SLOT, np.int8), np.dtype(structure.dtype)) for _, slots in own
    ]
    rows, shapes = _rows(named, outputs)
    in_tree = jax.tree_util.tree_structure(x0)
    avals = structure.in_avals
    return Joint(point, rows, low, up, named, shapes, None, point.x, in_tree, avals, None, {})
