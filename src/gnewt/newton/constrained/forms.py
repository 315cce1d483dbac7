"""Constraints and bounds as a user writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import ConstraintError, user_line
from gnewt._typing import Argument, PyTree

Limit: TypeAlias = Any
"""A number, an array or a pytree of them; None for no limit."""


@dataclasses.dataclass(frozen=True, eq=False)
class Constraint:
    """lower ≤ fn(x, *args) ≤ upper, entry by entry. Made by `gnewt.between` and `gnewt.equal`."""

    fn: Callable[..., PyTree] | str
    """The function; or the name of an entry of the auxiliary data of the objective."""
    lower: Limit
    upper: Limit
    is_equality: bool
    where: str
    """`file:line` where the constraint was written."""

    def __repr__(self) -> str:
        name = self.fn if isinstance(self.fn, str) else getattr(self.fn, "__name__", "function")
        return f"<{'equal' if self.is_equality else 'between'}({name}) at {self.where}>"


def equal(fn: Argument[Callable[..., PyTree]], target: Limit = 0.0) -> Constraint:
    """Ask for fn(x, *args) = target.

    Args:
        fn: takes the arguments of the objective and returns any pytree of numbers.
        target: a number for all entries, or a pytree in the form of what fn returns.
    """
    _refuse_no_function(fn, "equal")
    return Constraint(fn, target, target, True, user_line())


def between(fn: Argument[Callable[..., PyTree]], lower: Limit = None, upper: Limit = None) -> Constraint:
    """Ask for lower ≤ fn(x, *args) ≤ upper. Entries with equal limits are equalities.

    Args:
        fn: takes the arguments of the objective and returns any pytree of numbers.
        lower: a number for all entries, or a pytree in the form of what fn returns; None and -inf for no limit.
        upper: the same from above.
    """
    _refuse_no_function(fn, "between")
    if lower is None and upper is None:
        raise ConstraintError("a constraint without a limit", user_line(), "give lower, upper, or both")
    return Constraint(fn, lower, upper, False, user_line())


def _refuse_no_function(fn: object, name: str) -> None:
    if not callable(fn):
        raise ConstraintError(
            f"gnewt.{name} was given a {type(fn).__name__}, not a function",
            user_line(),
            f"write gnewt.{name}(lambda x: ..., ...); the function takes the arguments of the objective",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Named:
    """All constraints of a problem, with the form in which they were given."""

    items: tuple[Constraint, ...]
    names: tuple[str, ...]
    tree: Any
    """Treedef of the container: one, a list or a dict."""

    @property
    def on_aux(self) -> tuple[str, ...]:
        """Names of entries of the auxiliary data that are constrained."""
        return tuple(c.fn for c in self.items if isinstance(c.fn, str))

    def mirror(self, parts: Sequence[Any]) -> PyTree:
        """Put one thing per constraint into the form in which the constraints were given."""
        return jax.tree_util.tree_unflatten(self.tree, parts)


def read_constraints(given: Any) -> Named:
    """Read one constraint, a list or a dict of them, or a dict of limits on auxiliary entries."""
    if given is None:
        given = []
    if isinstance(given, Constraint):
        return Named((given,), ("constraint",), jax.tree_util.tree_structure(0))
    if isinstance(given, Mapping):
        items = {name: _entry(name, value) for name, value in given.items()}
        names = sorted(items)  # as pytrees of dicts are
        tree = jax.tree_util.tree_structure({name: 0 for name in items})
        return Named(tuple(items[n] for n in names), tuple(map(repr, names)), tree)
    if not isinstance(given, list | tuple):
        raise ConstraintError(
            f"constraints is a {type(given).__name__}",
            user_line(),
            "give gnewt.equal(fn) or gnewt.between(fn, lower, upper), a list or a dict of them, or with has_aux=True a "
            "dict {name: (lower, upper)}",
        )
    for i, item in enumerate(given):
        if not isinstance(item, Constraint):
            raise ConstraintError(
                f"constraint {i} is a {type(item).__name__}",
                user_line(),
                "make it with gnewt.equal(fn, target) or gnewt.between(fn, lower, upper)",
            )
    tree = jax.tree_util.tree_structure([0] * len(given))
    return Named(tuple(given), tuple(f"constraint {i}" for i in range(len(given))), tree)


def _entry(name: Any, value: Any) -> Constraint:
    if isinstance(value, Constraint):
        return value
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(name, str):
        lower, upper = value
        same = lower is upper and lower is not None
        if lower is None and upper is None:
            raise ConstraintError(
                f"constraint {name!r} has no limit",
                user_line(),
                "give (lower, upper), one of them may be None",
            )
        return Constraint(name, lower, upper, same, user_line())
    raise ConstraintError(
        f"constraint {name!r} is a {type(value).__name__}",
        user_line(),
        "give gnewt.equal(fn, target), gnewt.between(fn, lower, upper), or (lower, upper) for an entry of the auxiliary data",
    )


def spread_limit(
    limit: Limit, like: PyTree, default: float, what: str, where: str
) -> list[np.ndarray | jax.Array]:
    """Give a limit the form of a pytree: one array per leaf, broadcast; None and missing parts are the default.

    Args:
        limit: a number, an array, or a pytree whose leaves may be None.
        like: a pytree of things with a shape.
        what: name of the limit, for errors.
    """
    leaves = jax.tree_util.tree_leaves(like)
    if limit is None or (jax.tree_util.all_leaves([limit]) and np.ndim(limit) == 0):
        given = [limit] * len(leaves)
    else:
        given = _match(limit, like, what, where)
    return [_broadcast(v, leaf.shape, default, what, where) for v, leaf in zip(given, leaves, strict=True)]


def _match(limit: Any, like: PyTree, what: str, where: str) -> list[Any]:
    """One part of a limit for every leaf: lists of numbers count as arrays, and a part may stand for a whole subtree."""
    tree = jax.tree_util.tree_structure(like)
    try:
        return tree.flatten_up_to(limit)
    except ValueError:
        pass
    try:
        parts: list[Any] = []
        jax.tree_util.tree_map(
            lambda v, below: parts.extend([v] * jax.tree_util.tree_structure(below).num_leaves),
            limit,
            like,
            is_leaf=lambda v: v is None,
        )
        return parts
    except ValueError:
        form = jax.tree_util.tree_structure(limit, is_leaf=lambda v: v is None)
    raise ConstraintError(
        f"{what} has the structure {form}, and should have {tree}",
        where,
        "give one number for all entries, or a pytree of the same form; its leaves may be None",
    )


def _broadcast(value: Any, shape: tuple[int, ...], default: float, what: str, where: str) -> Any:
    if value is None:
        return np.full(shape, default)
    wrong = ConstraintError(f"{what} is {value!r}, not a number", where, "give numbers, ±inf or None")
    xp = jnp if any(isinstance(v, Tracer) for v in jax.tree_util.tree_leaves(value)) else np
    if isinstance(value, list | tuple):
        value = jax.tree_util.tree_map(
            lambda v: default if v is None else v, value, is_leaf=lambda v: v is None
        )
    try:
        array = xp.asarray(value)
        if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
            raise wrong
        array = array.astype(float)
    except (TypeError, ValueError):
        raise wrong from None
    try:
        array = xp.broadcast_to(array, shape)
    except ValueError:
        raise ConstraintError(
            f"{what} has shape {array.shape}, and does not fit {shape}",
            where,
            "give a number or an array that broadcasts",
        ) from None
    if not isinstance(array, Tracer) and np.isnan(array).any():
        raise ConstraintError(f"{what} is NaN", where, "give numbers; ±inf or None for no limit")
    return array


def read_bounds(given: Any, x: PyTree) -> tuple[list[Any], list[Any]]:
    """Lower and upper bounds of the inputs: one array per leaf."""
    where = user_line()
    if given is None:
        given = (None, None)
    if hasattr(given, "lb") and hasattr(given, "ub"):  # scipy.optimize.Bounds
        given = (given.lb, given.ub)
    right = "write bounds=(lower, upper): two numbers, arrays or pytrees in the form of x; None for no bound"
    if not isinstance(given, tuple | list) or len(given) != 2:
        if isinstance(given, tuple | list) and all(
            isinstance(p, tuple | list) and len(p) == 2 for p in given
        ):
            raise ConstraintError(
                f"bounds is a list of {len(given)} pairs, as SciPy takes it",
                where,
                right + "; here bounds=([l, ...], [u, ...])",
            )
        raise ConstraintError(f"bounds is a {type(given).__name__}, not a pair", where, right)
    leaves = jax.tree_util.tree_leaves(x)
    pairs = [isinstance(p, tuple | list) and len(p) == 2 and all(_is_number(v) for v in p) for p in given]
    if all(pairs) and len(leaves) == 1 and np.shape(leaves[0]) == (2,) and isinstance(given, list):
        raise ConstraintError("bounds is a list of pairs, as SciPy takes it", where, right)
    lower = spread_limit(given[0], x, -np.inf, "the lower bound", where)
    upper = spread_limit(given[1], x, np.inf, "the upper bound", where)
    return lower, upper


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)
