"""Arguments of one call, as `jax.grad` takes them: which are data, and which are passed through as they are."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import TraceError, user_line
from gnewt._typing import Array, PyTree, X


class Fixed:
    """Something that is no array, among arguments: a part of their form, not of their data.

    A pytree without leaves. What f makes of it is seen in the program of f; it needs no equality.
    """

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


jax.tree_util.register_pytree_node(Fixed, lambda fixed: ((), fixed), lambda fixed, _: fixed)


class Untraceable(Exception):
    """The function itself raised when JAX traced it."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason


def as_argnums(argnums: Any) -> int | tuple[int, ...]:
    """An integer, or a tuple of them."""
    try:
        if not isinstance(argnums, Iterable):
            return operator.index(argnums)
        numbers = tuple(operator.index(i) for i in argnums)
    except TypeError:
        numbers = None
    if not numbers:
        wrong = (
            "neither an integer nor a sequence of them" if numbers is None else "empty: it names no variable"
        )
        raise TraceError(
            f"argnums = {argnums!r} is {wrong}",
            user_line(),
            "give positions of arguments, counted from 0; values come later: newton_step(f)(x)",
        )
    return numbers


def chosen_args(argnums: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """The positions that argnums mean where there are so many positional arguments."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if not count:
        raise TraceError(
            "the function was given no positional arguments", user_line(), "give it the variables: step(x)"
        )
    if any(not -count <= i < count for i in numbers):
        raise TraceError(
            f"argnums = {argnums}, but the function was given {count} positional arguments",
            user_line(),
            "count positional arguments from 0; keyword arguments are never differentiated",
        )
    found = tuple(i % count for i in numbers)
    if len(set(found)) < len(found):
        raise TraceError(
            f"argnums = {argnums} names an argument twice", user_line(), "name each argument once"
        )
    return found


def take_apart(
    args: Sequence[PyTree], kwargs: Mapping[str, PyTree], chosen: Sequence[int], close: bool = False
) -> tuple[PyTree, ...]:
    """Return positional arguments and, last, the keyword arguments, with `Fixed` for what is no data.

    Strings, booleans, functions and other objects are no data. Numbers and arrays are, unless `close`: then every
    value outside `chosen` that is known is a constant of the function, so that Python code can branch on it.
    """

    def fix(leaf: object) -> object:
        if close and not isinstance(leaf, Tracer):
            return Fixed(_number(leaf))
        return leaf if is_data(leaf) else Fixed(leaf)

    parts: list[PyTree] = [*args, dict(kwargs)]
    return tuple(part if i in chosen else jax.tree_util.tree_map(fix, part) for i, part in enumerate(parts))


def _number(leaf: object) -> object:
    """A known number of JAX as one of NumPy: comparisons of the former become tracers while f is traced."""
    if not isinstance(leaf, jax.Array) or leaf.shape or not jnp.issubdtype(leaf.dtype, np.generic):
        return leaf
    return leaf.item() if leaf.weak_type else np.asarray(leaf)[()]


def call(f: Callable[..., PyTree], *parts: PyTree) -> PyTree:
    """Call f with arguments that were taken apart."""

    def is_fixed(leaf: object) -> bool:
        return isinstance(leaf, Fixed)

    def open_up(leaf: object) -> object:
        return leaf.value if isinstance(leaf, Fixed) else leaf

    *args, kwargs = jax.tree_util.tree_map(open_up, parts, is_leaf=is_fixed)
    return f(*args, **kwargs)


def run_abstractly(
    run: Callable[[tuple[PyTree, ...], dict[str, PyTree]], X],
    args: Sequence[PyTree],
    kwargs: Mapping[str, PyTree] | None,
) -> X:
    """Return run(args, kwargs) with a tracer in the place of each `jax.ShapeDtypeStruct`: its numbers are not known."""
    leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs or {})))
    unknown = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
    found: list[X] = []

    def filled(*tracers: jax.Array) -> None:
        for i, tracer in zip(unknown, tracers, strict=True):
            leaves[i] = tracer
        found.append(run(*jax.tree_util.tree_unflatten(tree, leaves)))

    if unknown:
        jax.eval_shape(filled, *[leaves[i] for i in unknown])
    else:
        filled()
    return found[0]


def unknown_as_nan(value: Array) -> Array:
    """NaN (0 for integers) in the place of a value that is known by its shape alone."""
    if not isinstance(value, Tracer):
        return value
    return np.full(value.shape, np.nan if jnp.issubdtype(value.dtype, jnp.inexact) else 0, value.dtype)


def is_data(leaf: object) -> bool:
    """Whether a leaf is a number or an array. A bool of Python is a switch."""
    if isinstance(leaf, bool):
        return False
    try:
        jax.typeof(leaf)
    except (TypeError, OverflowError):  # no number, or one that no array can hold
        return False
    return True


def parameters(f: Callable[..., PyTree]) -> list[str]:
    """Names of the parameters of f; none where they are not known."""
    try:
        return list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        return []


def leaf_names(f: Callable[..., PyTree], parts: Sequence[PyTree]) -> list[str]:
    """Name the leaves of arguments that were taken apart, after the parameters of f."""
    params, names = parameters(f), []
    for i, part in enumerate(parts[:-1]):
        name = params[i] if i < len(params) else f"arg{i}"
        names += [name + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(part)]
    for (key, *path), _ in jax.tree_util.tree_leaves_with_path(parts[-1]):
        names.append(str(key.key) + jax.tree_util.keystr(tuple(path)))
    return names
