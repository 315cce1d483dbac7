"""Limits of a problem: which quantities are limited, and by which numbers. The numbers are data, the rest is fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import ConstraintError, user_line
from gnewt._typing import Array, PyTree
from gnewt.control.check import bind, line_of
from gnewt.newton.constrained.forms import Constraint, read_constraints

STAGE_NAMES = ("t", "dt", "params", "data", "past_x", "past_u")
"""Further arguments of dynamics, stage cost and stage constraints, recognised by name."""
FINAL_NAMES = ("t", "dt", "params", "past_x", "past_u")
_PAIR = "write (lower, upper): numbers, or pytrees in its form; None and ±inf for no limit"


@dataclasses.dataclass(frozen=True, eq=False)
class Limited:
    """What is limited in a problem. Names: control_limits, state_limits, periodic, and those of the constraints."""

    names: tuple[str, ...] = ()
    stage: dict[str, Constraint] = dataclasses.field(default_factory=dict)
    """Constraints at all stages, by their names here: `stage_constraints`, or `stage_constraints['name']`."""
    final: dict[str, Constraint] = dataclasses.field(default_factory=dict)
    forms: dict[str, Any] = dataclasses.field(default_factory=dict)
    """For `stage_constraints` and `final_constraint` the treedef in which they were given."""
    where: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of what is limited by constraints: everything but the controls."""
        return tuple(name for name in self.names if name != "control_limits")

    @cached_property
    def _calls(self) -> dict[str, Callable[..., PyTree]]:
        calls = {name: bind(_function(c), name, 2, STAGE_NAMES) for name, c in self.stage.items()}
        return calls | {name: bind(_function(c), name, 1, FINAL_NAMES) for name, c in self.final.items()}

    def check(self) -> None:
        """Raise GraphError where a function asks for an argument that there is not."""
        _ = self._calls

    def stage_rows(self, x: PyTree, u: PyTree, extras: dict[str, PyTree]) -> dict[str, PyTree]:
        """What the stage constraints limit, at one stage."""
        return {name: _floating(self._calls[name](x, u, **extras), name, c) for name, c in self.stage.items()}

    def final_rows(self, first: PyTree, last: PyTree, extras: dict[str, PyTree]) -> dict[str, PyTree]:
        """What is limited at the end."""
        found = {
            name: _floating(self._calls[name](last, **extras), name, c) for name, c in self.final.items()
        }
        if "periodic" in self.names:
            found["periodic"] = jax.tree.map(lambda a, b: b - a, first, last)
        return found

    def constraints(self, limits: Mapping[str, PyTree]) -> dict[str, Constraint]:
        """Constraints of `minimize` on the auxiliary data, with these numbers."""
        out = {}
        for name in self.rows:
            pair: Any = (0.0, 0.0) if name == "periodic" else limits[name]
            lower, upper = pair
            given = self.stage.get(name) or self.final.get(name)
            is_equality = name == "periodic" or (given is not None and given.is_equality)
            out[name] = Constraint(
                name, lower, upper, is_equality, self.where if given is None else given.where
            )
        return out

    def nested(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Put what was found by name into the form in which constraints were given."""
        out = {name: found[name] for name in ("control_limits", "state_limits", "periodic") if name in found}
        for kind, tree in self.forms.items():
            mine = self.stage if kind == "stage_constraints" else self.final
            out[kind] = jax.tree_util.tree_unflatten(tree, [found[name] for name in mine])
        return out


def _function(constraint: Constraint) -> Callable[..., PyTree]:
    """Those of a problem are functions, never names of entries: `_constraints` refuses the rest."""
    assert callable(constraint.fn)
    return constraint.fn


def _floating(value: PyTree, name: str, constraint: Constraint) -> PyTree:
    for leaf in jax.tree.leaves(value):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ConstraintError(
                f"{name} returns {jnp.result_type(leaf)}, not real numbers",
                line_of(constraint.fn),
                "return floating-point numbers",
            )
    return value


def read_limits(
    controls: object, states: object, stage: object, final: object, x0: PyTree, horizon: int, periodic: bool
) -> tuple[Limited, dict[str, PyTree]]:
    """Read the limits of a problem: what is limited, and the numbers."""
    names: list[str] = []
    numbers: dict[str, PyTree] = {}
    for name, given in (("control_limits", controls), ("state_limits", states)):
        if given is not None:
            names.append(name)
            pair = _read_pair(given, name)
            if name == "state_limits":
                _check_form(pair, x0, horizon, name, "x0")
            numbers[name] = pair
    found: dict[str, dict[str, Constraint]] = {"stage_constraints": {}, "final_constraint": {}}
    forms = {}
    for kind, given in (("stage_constraints", stage), ("final_constraint", final)):
        if given is None:
            continue
        parts, forms[kind] = _read_constraints(given, kind)
        found[kind] = parts
        for name, c in parts.items():
            numbers[name] = _numbers_of(c, name)
        names += parts
    if periodic:
        names.append("periodic")
    limited = Limited(tuple(names), found["stage_constraints"], found["final_constraint"], forms, user_line())
    limited.check()
    return limited, numbers


def _read_constraints(given: object, kind: str) -> tuple[dict[str, Constraint], Any]:
    named = read_constraints(given)
    places = jax.tree_util.tree_unflatten(named.tree, list(range(len(named.items))))
    labels = {i: f"[{key!r}]" for key, i in places.items()} if isinstance(places, dict) else {}
    parts = {}
    for i, constraint in enumerate(named.items):
        if isinstance(constraint.fn, str):
            raise ConstraintError(
                f"{kind} has limits for {constraint.fn!r}, and no function",
                user_line(),
                "write gnewt.between(fn, lower, upper) or gnewt.equal(fn, target)",
            )
        parts[kind if isinstance(given, Constraint) else kind + labels.get(i, f"[{i}]")] = constraint
    return parts, named.tree


def _numbers_of(c: Constraint, name: str) -> tuple[PyTree, PyTree]:
    lower = _strong(c.lower, f"the lower limit of {name}", c.where)
    if c.is_equality:
        return lower, lower
    upper = _strong(c.upper, f"the upper limit of {name}", c.where)
    _check_crossed(lower, upper, name, c.where)
    return lower, upper


def _read_pair(given: object, name: str) -> tuple[PyTree, PyTree]:
    where = user_line()
    if hasattr(given, "lb") and hasattr(given, "ub"):  # scipy.optimize.Bounds
        given = (given.lb, given.ub)  # type: ignore[attr-defined]
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConstraintError(f"{name} is {given!r}, not a pair", where, _PAIR)
    lower, upper = (
        _strong(v, f"the {side} limit of {name}", where)
        for v, side in zip(given, ("lower", "upper"), strict=True)
    )
    if lower is None and upper is None:
        raise ConstraintError(f"{name} without a limit", where, "give lower, upper, or both")
    _check_crossed(lower, upper, name, where)
    return lower, upper


def _strong(limit: PyTree, what: str, where: str) -> PyTree:
    """Numbers of a limit as arrays with a dtype of their own."""

    def array(leaf: Any) -> Array:
        try:
            out = jnp.asarray(leaf, float)
        except (TypeError, ValueError):
            raise ConstraintError(
                f"{what} is {leaf!r}, not a number", where, "give numbers, ±inf or None"
            ) from None
        if not isinstance(out, Tracer) and np.isnan(np.asarray(out)).any():
            raise ConstraintError(f"{what} is NaN", where, "give numbers; ±inf or None for no limit")
        return out

    return jax.tree.map(array, limit)


def _check_crossed(lower: PyTree, upper: PyTree, name: str, where: str) -> None:
    """Raise ConstraintError where a lower limit is above an upper one; forms that differ are found later."""
    low, up = jax.tree.leaves(lower), jax.tree.leaves(upper)
    if len(low) != len(up) or any(isinstance(v, Tracer) for v in (*low, *up)):
        return
    for a, b in zip(low, up, strict=True):
        try:
            crossed = np.asarray(a) > np.asarray(b)
        except ValueError:
            return
        if crossed.any():
            at = np.argwhere(crossed)[0].tolist()
            values = [float(np.broadcast_to(v, crossed.shape)[tuple(at)]) for v in (a, b)]
            raise ConstraintError(
                f"the limits of {name} cross: {values[0]:g} > {values[1]:g}" + (f" at {at}" if at else ""),
                where,
                "give lower ≤ upper",
            )


def _check_form(pair: tuple[PyTree, PyTree], like: PyTree, horizon: int, name: str, of: str) -> None:
    for side, limit in zip(("lower", "upper"), pair, strict=True):
        spread(limit, like, horizon, f"the {side} limit of {name}", of)


def spread(limit: PyTree, like: PyTree, horizon: int, what: str, of: str) -> PyTree:
    """Give a limit the form of a pytree and a row for every stage; None leaves become infinite.

    Args:
        like: one state or one control.
        of: what `like` is called, for errors.
    """
    inf = -np.inf if "lower" in what else np.inf
    leaves, tree = jax.tree_util.tree_flatten(like)
    given = jax.tree_util.tree_flatten(limit, is_leaf=lambda v: v is None)
    values, form = given
    if len(values) == 1 and form != tree and (values[0] is None or np.ndim(values[0]) == 0):
        values = values * len(leaves)
    elif form.num_leaves != tree.num_leaves or len(values) != len(leaves):
        raise ConstraintError(
            f"{what} has the structure {form}, but {of} has {tree}",
            user_line(),
            "give one number, or a pytree of the same form; its leaves may be None",
        )
    out = []
    for value, leaf in zip(values, leaves, strict=True):
        shape, dtype = np.shape(leaf), jnp.result_type(leaf)
        whole = (horizon, *shape)
        value = inf if value is None else value
        xp = jnp if isinstance(value, Tracer) else np
        array = xp.asarray(value, dtype)
        if array.shape not in (whole, shape) and not _fits(array.shape, shape):
            raise ConstraintError(
                f"{what} has shape {array.shape}, but {of} has a leaf of shape {shape}",
                user_line(),
                f"give a number, shape {shape}, or one row per stage: shape {whole}",
            )
        out.append(xp.broadcast_to(array, whole))
    return jax.tree_util.tree_unflatten(tree, out)


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def replaced_limits(
    limited: Limited, old: Mapping[str, PyTree], name: str, value: object, horizon: int
) -> dict[str, PyTree]:
    """Other numbers for one kind of limits."""
    parts = limited.stage if name == "stage_constraints" else limited.final
    known = (name in limited.names) if name.endswith("limits") else name in limited.forms
    if not known:
        raise ConstraintError(
            f"the problem has no {name} to replace",
            user_line(),
            "give them to control.Problem, if only as ±inf",
        )
    if name.endswith("limits"):
        return {**old, name: _same_form(_read_pair(value, name), old[name], name)}
    forms = limited.forms[name]
    single = forms == jax.tree_util.tree_structure(0)
    try:
        values = [value] if single else forms.flatten_up_to(value)
    except ValueError:
        raise ConstraintError(
            f"{name} was given as {forms}",
            user_line(),
            "give limits in the same form: (lower, upper), or the target",
        ) from None
    found = dict(old)
    for (part, c), given in zip(parts.items(), values, strict=True):
        if isinstance(given, Constraint):
            new = _numbers_of(given, part)
        elif c.is_equality:
            target = _strong(given, f"the target of {part}", user_line())
            new = (target, target)
        else:
            new = _read_pair(given, part)
        found[part] = _same_form(new, old[part], part)
    return found


def _same_form(new: PyTree, old: PyTree, name: str) -> PyTree:
    """The new numbers, in the shapes of the old ones, so that nothing is compiled anew."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise ConstraintError(
            f"{name} had the structure {jax.tree.structure(old)}, and now has {jax.tree.structure(new)}",
            user_line(),
            "give limits in the same form; ±inf for no limit",
        )

    def fitted(a: Array, b: Array) -> Array:
        try:
            return jnp.broadcast_to(a, jnp.shape(b))
        except ValueError:
            raise ConstraintError(
                f"{name} has a leaf of shape {jnp.shape(a)} where it had {jnp.shape(b)}",
                user_line(),
                "give limits of the same shape",
            ) from None

    return jax.tree.map(fitted, new, old)
