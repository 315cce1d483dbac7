"""Forms: what the arguments of a call look like. Arguments → tree, shapes, names, which of them are differentiated.

Bad arguments are refused here. What calls that look alike have in common is made once (`signature`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from gnewt._errors import TraceError, explain_error, user_line
from gnewt._typing import PyTree
from gnewt.jaxprs import is_float
from gnewt.trace.arguments import Fixed, is_data, leaf_names


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """What calls that look alike have in common."""

    leaves: list[jax.ShapeDtypeStruct]
    """Shapes and dtypes of the data."""
    diff: list[bool]
    """For each leaf whether it is a variable."""
    order: list[int]
    """Positions of the variables (counted in the order of the arguments) in the order of argnums."""
    names: tuple[str, ...]
    """Of the variables."""
    in_tree: Any
    """Treedef of the variables."""


class Arguments:
    """The arguments of one call: positional ones and, last, the keyword arguments, taken apart."""

    def __init__(self, args: tuple[PyTree, ...], chosen: tuple[int, ...]) -> None:
        self.args, self.chosen = args, chosen
        self._parts = [
            jax.tree_util.tree_flatten(arg, None if i in chosen else _is_fixed) for i, arg in enumerate(args)
        ]
        self.values = [v for leaves, _ in self._parts for v in leaves if not isinstance(v, Fixed)]
        """The data: numbers and arrays."""

    @property
    def fixes(self) -> bool:
        """Whether an argument, or a part of one, is no data."""
        return len(self.values) < sum(len(leaves) for leaves, _ in self._parts)

    def signature(self) -> Hashable | None:
        """What two calls agree in if their arguments look alike, and are good or bad alike; None for bad ones."""
        try:
            kinds = [_kind(v) for leaves, _ in self._parts for v in leaves]
        except (TypeError, OverflowError):
            return None
        return tuple([tree for _, tree in self._parts]), tuple(kinds)

    def form(self, f: Callable, inputs: PyTree) -> Form:
        """Look at the arguments closely; raise TraceError where they cannot be differentiated.

        Args:
            inputs: the variables, in the form in which a step is returned.
        """
        args, chosen = self.args, self.chosen
        _check_leaves(f, args, chosen)
        structs = [_struct(leaf) for leaf in self.values]
        diff = [i in chosen for i, arg in enumerate(args) for _ in jax.tree_util.tree_leaves(arg)]
        names = leaf_names(f, args)
        _check_inputs(names, structs, diff)
        moving = tuple(n for n, d in zip(names, diff, strict=True) if d)
        return Form(structs, diff, _leaf_order(args, chosen), moving, jax.tree_util.tree_structure(inputs))


def _is_fixed(part: object) -> bool:
    return isinstance(part, Fixed)


def _kind(value: Any) -> Hashable:
    if isinstance(value, Fixed):
        return Fixed
    aval = jax.typeof(value)
    return type(value), aval.shape, aval.dtype, getattr(aval, "weak_type", False)


def _check_leaves(f: Callable, args: tuple[PyTree, ...], chosen: tuple[int, ...]) -> None:
    for i in chosen:
        for path, leaf in jax.tree_util.tree_leaves_with_path(args[i]):
            if is_data(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct):
                continue
            name = leaf_names(f, [0] * i + [leaf, {}])[-1] + jax.tree_util.keystr(path)
            raise TraceError(
                f"input {name} is {leaf!r} ({type(leaf).__name__}), not a real number or an array of them",
                user_line(),
                "differentiate by numbers only: give it as another argument, or capture it in the function; "
                "take a module apart, equinox.partition(module, equinox.is_inexact_array), give its arrays, "
                "and join both parts inside the function (equinox.combine)",
            )


def _check_inputs(names: Sequence[str], avals: Sequence[jax.ShapeDtypeStruct], diff: Sequence[bool]) -> None:
    size = 0
    for aval, name, d in zip(avals, names, diff, strict=True):
        if not d:
            continue
        size += int(np.prod(aval.shape, dtype=np.int64))
        if aval.dtype in (np.float32, np.float64):
            continue
        if is_float(aval.dtype):
            raise TraceError(
                f"input {name} has dtype {aval.dtype}: too few digits to factorise with",
                user_line(),
                f"take the step in float32 or float64, {name}.astype(jnp.float32); the function may convert inside",
            )
        if jnp.issubdtype(aval.dtype, jnp.complexfloating):
            remedy = "give its real and imaginary parts as two real inputs"
        else:
            remedy = "convert it to float, or pass it as another argument and leave it out of argnums"
        raise TraceError(
            explain_error(
                f"input {name} has dtype {aval.dtype}: Newton steps are taken in real numbers",
                user_line(),
                remedy,
            )
        )
    if size == 0:
        raise TraceError(
            explain_error(
                "the inputs are empty: there is nothing to differentiate",
                user_line(),
                "give at least one variable",
            )
        )


def _struct(leaf: ArrayLike) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _leaf_order(args: tuple[PyTree, ...], chosen: tuple[int, ...]) -> list[int]:
    """Positions of the differentiated leaves (counted in the order of args) in the order of argnums."""
    first, at = {}, 0
    for i, arg in enumerate(args):
        if i in chosen:
            count = len(jax.tree_util.tree_leaves(arg))
            first[i] = list(range(at, at + count))
            at += count
    return [leaf for i in chosen for leaf in first[i]]


def definition(f: Callable) -> tuple[str, int]:
    """Where a function, a method or a callable object is defined; no place where that is not known."""
    while isinstance(f, partial):
        f = f.func
    f = inspect.unwrap(f)
    code = getattr(f, "__code__", None) or getattr(type(f).__call__, "__code__", None)
    return ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
