"""Rows: the scalar constraints of a problem, with the slots that they are about and what they may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import ConstraintError
from gnewt._typing import PyTree
from gnewt.graph import Output
from gnewt.newton.arithmetic import Array
from gnewt.newton.constrained.forms import Named, spread_limit
from gnewt.newton.rules import still

_FEASIBLE = 1e-6
"""Violation that a row which does not depend on x may have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Scalar constraints: which slot each stands for, and what it may be. Fixed variables come last, as equalities."""

    slots: np.ndarray
    """int32[rows]: slots of the traced structure; -1 for a row that does not depend on x."""
    lower: Array
    upper: Array
    is_equality: np.ndarray
    """bool[rows]"""
    is_used: np.ndarray
    """bool[rows]: False for rows without a limit, and for those that do not depend on x."""
    names: tuple[tuple[str, str, int], ...]
    """For each constraint its name, where it was written, and how many rows it has."""
    worst: Array
    """The largest violation of a row that does not depend on x."""

    @property
    def equalities(self) -> np.ndarray:
        return np.flatnonzero(self.is_equality & self.is_used)

    @property
    def inequalities(self) -> np.ndarray:
        return np.flatnonzero(~self.is_equality & self.is_used)

    def violations(self, c: Array) -> Array:
        """By how much each row that is used misses its limits: c holds the equalities first."""
        xp = _space(c, self.lower, self.upper)
        order = np.concatenate([self.equalities, self.inequalities])
        return xp.maximum(xp.maximum(self.lower[order] - c, c - self.upper[order]), 0.0)

    def describe(self, used: int) -> str:
        """Name a row, counted as in `violations`."""
        at = int(np.concatenate([self.equalities, self.inequalities])[used])
        for name, where, count in self.names:
            if at < count:
                return f"{name}{f'[{at}]' if count > 1 else ''} ({where})"
            at -= count
        return "a fixed variable"


def read_rows(
    named: Named, outputs: Sequence[PyTree], evaluate: Callable[[], Sequence[PyTree]] | None
) -> tuple[Rows, tuple[Any, ...]]:
    """Read the rows of all constraints, and the form of each constraint.

    Args:
        outputs: for each constraint a pytree of `Output`.
        evaluate: the values of all constraints at the start: for rows that do not depend on x.
    """
    slots: list[Any] = [np.zeros(0, np.int32)]
    lower, upper, equal, shapes, names = [], [], [np.zeros(0, bool)], [], []
    for constraint, name, out in zip(named.items, named.names, outputs, strict=True):
        leaves, tree = jax.tree_util.tree_flatten(out, is_leaf=lambda v: isinstance(v, Output))
        _refuse_results(leaves, name, constraint.where)
        like = jax.tree_util.tree_unflatten(tree, [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in leaves])
        low = spread_limit(constraint.lower, like, -np.inf, f"the lower limit of {name}", constraint.where)
        up = spread_limit(constraint.upper, like, np.inf, f"the upper limit of {name}", constraint.where)
        at = 0
        for o, a, b in zip(leaves, low, up, strict=True):
            slots.append(o.slots.ravel())
            lower.append(a.ravel())
            upper.append(b.ravel())
            equal.append(_equal(constraint.is_equality, a.ravel(), b.ravel(), (name, constraint.where, at)))
            at += o.slots.size
        shapes.append((tree, tuple(o.shape for o in leaves)))
        names.append((name, constraint.where, at))
    flat = np.concatenate(slots).astype(np.int32)
    low, up = flat_vector(lower, np.float64), flat_vector(upper, np.float64)
    used = np.ones(len(flat), bool)
    known_low, known_up = still(low), still(up)
    if not isinstance(known_low, Tracer) and not isinstance(known_up, Tracer):
        used = np.isfinite(known_low) | np.isfinite(known_up)
    fixed = used & (flat < 0)
    rows = Rows(flat, low, up, np.concatenate(equal), used & ~fixed, tuple(names), np.zeros(()))
    return _settle_constants(rows, fixed, evaluate), tuple(shapes)


def with_fixed(rows: Rows, fixed: np.ndarray, lower: Array, upper: Array) -> Rows:
    """Append an equality for every fixed variable.

    Args:
        fixed: slots of the fixed variables.
        lower, upper: their bounds, which are equal.
    """
    if not len(fixed):
        return rows
    yes = np.ones(len(fixed), bool)
    return dataclasses.replace(
        rows,
        slots=np.concatenate([rows.slots, fixed]).astype(np.int32),
        lower=flat_vector([rows.lower, lower], np.float64),
        upper=flat_vector([rows.upper, upper], np.float64),
        is_equality=np.concatenate([rows.is_equality, yes]),
        is_used=np.concatenate([rows.is_used, yes]),
    )


def flat_vector(leaves: Sequence[Any], dtype: Any) -> Array:
    """Join arrays to one vector, traced if one of them is."""
    if any(isinstance(v, Tracer) for v in leaves):
        return jnp.concatenate([jnp.zeros(0, dtype), *[jnp.ravel(jnp.asarray(v, dtype)) for v in leaves]])
    return np.concatenate([np.zeros(0, dtype), *[np.ravel(np.asarray(v, dtype)) for v in leaves]])


def _refuse_results(leaves: Sequence[Output], name: str, where: str) -> None:
    if not sum(o.slots.size for o in leaves):
        raise ConstraintError(f"{name} returns nothing", where, "return the numbers that are constrained")
    for o in leaves:
        if not jnp.issubdtype(o.dtype, jnp.floating):
            hint = "return the quantity itself, and give its limits"
            raise ConstraintError(f"{name} returns {o.dtype}, not real numbers", where, hint)


def _equal(always: bool, lower: Array, upper: Array, place: tuple[str, str, int]) -> np.ndarray:
    """Which entries are equalities; raise ConstraintError where limits cross."""
    name, where, first = place
    lower, upper = still(lower), still(upper)
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return np.full(lower.shape, always)
    bad = (lower > upper) | (lower == np.inf) | (upper == -np.inf)
    if always and not np.all(np.isfinite(lower)):
        raise ConstraintError(f"the target of {name} is not finite", where, "give finite numbers")
    if np.any(bad):
        at = int(np.argmax(bad))
        what = f"the limits of {name} cross: {lower[at]:g} > {upper[at]:g} at entry {first + at}"
        if not lower[at] > upper[at]:
            what = (
                f"the limits of {name} leave nothing: {lower[at]:g} and {upper[at]:g} at entry {first + at}"
            )
        raise ConstraintError(what, where, "give lower ≤ upper")
    return np.asarray((lower == upper) | always)


def _settle_constants(rows: Rows, fixed: np.ndarray, evaluate: Callable[[], Sequence[PyTree]] | None) -> Rows:
    """Look at the rows that do not depend on x: they hold, or nothing can be done about it."""
    if not fixed.any() or evaluate is None:
        return rows
    values = still(flat_vector(jax.tree_util.tree_leaves(evaluate()), np.float64)[fixed])
    low, up = still(rows.lower)[fixed], still(rows.upper)[fixed]
    xp = _space(values, low, up)
    missed = xp.maximum(xp.maximum(low - values, values - up), 0.0)
    missed = xp.where(xp.isnan(values), np.inf, missed)
    worst = xp.max(missed, initial=0.0)
    if xp is np and worst > _FEASIBLE:
        at = int(np.argmax(missed))
        place = int(np.flatnonzero(fixed)[at])
        for name, where, count in rows.names:
            if place < count:
                raise ConstraintError(
                    f"entry {place} of {name} does not depend on x: it is {values[at]:g}, and its limits are "
                    f"{low[at]:g} and {up[at]:g}",
                    where,
                    "leave it out, or correct its limits",
                )
            place -= count
    return dataclasses.replace(rows, worst=worst)


def _space(*arrays: Any) -> Any:
    return jnp if any(isinstance(a, Tracer) for a in arrays) else np
