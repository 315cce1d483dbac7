"""Checks of what a problem is given: each says what is wrong, where, and what to do."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.errors import JAXIndexError, JAXTypeError

from gnewt._errors import GnewtError, GraphError, user_line
from gnewt._typing import Argument, Array, ArrayLike, PyTree, X


def bind(
    f: Argument[Callable[..., PyTree]], name: str, positional: int, known: tuple[str, ...]
) -> Callable[..., PyTree]:
    """Call f with those of the named arguments that it asks for."""
    if not callable(f):
        raise bad(f"{name} is {type(f).__name__}, not a function", f"give a JAX function {name}(x, ...)")
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = [inspect.Parameter(c, inspect.Parameter.POSITIONAL_ONLY) for c in "xu"[:positional]]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    extra = [p for p in [*plain[positional:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]]
    wanted = [p.name for p in extra if p.name in known]
    unknown = [p.name for p in extra if p.name not in known and p.default is p.empty]
    enough = len(plain) >= positional or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if unknown or not enough:
        has = ", ".join(p.name for p in parameters)
        raise bad(
            f"{name}({has}) cannot be called: it should take {'x, u' if positional == 2 else 'x'}, and nothing else than "
            f"{', '.join(known)} by name",
            "rename the argument, or bind it with functools.partial",
            f,
        )

    def call(*args: PyTree, **extras: PyTree) -> PyTree:
        missing = [n for n in wanted if n not in extras]
        if missing:
            hints = {"dt": "final_time", "past_x": "history", "past_u": "history"}
            needs = ", ".join(f"{n} ({hints.get(n, n)}=)" for n in missing)
            raise bad(
                f"{name} asks for {needs}, which the problem was not given", "give it to control.Problem", f
            )
        try:
            return f(*args, **(extras if open_ended else {n: extras[n] for n in wanted}))
        except (GnewtError, JAXTypeError, JAXIndexError):
            raise
        except (IndexError, TypeError, ValueError) as error:
            raise _unfit(f, name, args, error) from error

    return call


def _unfit(f: Callable[..., PyTree], name: str, args: tuple[PyTree, ...], error: Exception) -> GraphError:
    """Make the error of a function of the problem that fails with the shapes that it is given."""
    shapes = [jax.tree.map(jnp.shape, arg) for arg in args]
    given = ", ".join(f"{letter} of shape {shape}" for letter, shape in zip("xu", shapes, strict=False))
    remedy = "look at the line that fails, above, with these shapes in mind"
    if len(shapes) == 2 and any(
        s == () for s in jax.tree.leaves(shapes[1], is_leaf=lambda s: isinstance(s, tuple))
    ):
        remedy = (
            "controls of shape (horizon,) are scalars at each stage: use u without an index, or give us of shape "
            "(horizon, 1)"
        )
    return bad(f"{name} fails at {given}: {type(error).__name__}: {str(error).splitlines()[0]}", remedy, f)


def floats(tree: X, name: str) -> X:
    """Real numbers, finite where they are known."""
    out = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _checked(leaf, name + jax.tree_util.keystr(path)), tree
    )
    if not jax.tree.leaves(out):
        raise bad(f"{name} is empty", "give at least one number")
    return out


def _checked(leaf: ArrayLike, name: str) -> Array:
    array = strong(float(leaf) if isinstance(leaf, bool | int | float) else leaf)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise bad(f"{name} has dtype {array.dtype}", "give real numbers: .astype(float)")
    if not isinstance(array, Tracer) and not np.isfinite(np.asarray(array)).all():
        raise bad(f"{name} holds NaN or infinity", "give finite numbers")
    return array


def strong(leaf: ArrayLike) -> Array:
    """An array with a dtype of its own: weakly typed ones would be traced apart."""
    return jnp.asarray(leaf, jnp.result_type(leaf))


def rows(tree: X, horizon: int, name: str, real: bool = False) -> X:
    """A pytree whose leaves have a row for every stage."""
    tree = floats(tree, name) if real else jax.tree.map(strong, tree)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if leaf.shape[:1] != (horizon,):
            raise bad(
                f"{name}{jax.tree_util.keystr(path)} has shape {leaf.shape}, but the horizon is {horizon}",
                f"give one row per stage: shape ({horizon}, ...)",
            )
    return tree


def past(tree: X, name: str, x: PyTree) -> X:
    tree = floats(tree, name)
    leaves = jax.tree.leaves(tree)
    if any(leaf.ndim == 0 or leaf.shape[0] != leaves[0].shape[0] or not leaf.shape[0] for leaf in leaves):
        raise bad(f"the leaves of {name} have no common leading axis", "stack the past values, newest last")
    if x is not None:
        same = jax.tree.structure(x) == jax.tree.structure(tree)
        if not same or any(p.shape[1:] != a.shape for p, a in zip(leaves, jax.tree.leaves(x), strict=True)):
            raise bad(f"{name} are not states like x0", "give states stacked along a new first axis")
    return tree


def states_like(tree: PyTree, x: PyTree, count: int, name: str) -> PyTree:
    """States with a row for each of so many times."""
    tree = floats(tree, name)
    same = jax.tree.structure(x) == jax.tree.structure(tree)
    if not same or any(
        a.shape != (count, *jnp.shape(b))
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(x), strict=True)
    ):
        shapes = jax.tree.map(jnp.shape, tree)
        raise bad(
            f"{name} has shapes {shapes}, and no row for each of the {count} states",
            "give states in the form of x0 with a leading axis of horizon + 1",
        )
    return tree


def like(value: PyTree, old: PyTree, name: str) -> PyTree:
    value = jax.tree.map(lambda v, o: jnp.asarray(v, jnp.asarray(o).dtype), value, old)
    wrong = [
        v.shape
        for v, o in zip(jax.tree.leaves(value), jax.tree.leaves(old), strict=True)
        if v.shape != o.shape
    ]
    if wrong:
        raise bad(
            f"{name} has a leaf of shape {wrong[0]} where it had another",
            "make a new problem for other shapes",
        )
    return value


def next_state(new: PyTree, x: X, dynamics: Callable[..., PyTree]) -> X:
    """The state that the dynamics returned, if it is one like x."""
    if jax.tree.structure(new) != jax.tree.structure(x):
        raise bad(
            f"dynamics returns {jax.tree.structure(new)}, but the state is {jax.tree.structure(x)}",
            "return the next state in the form of x0",
            dynamics,
        )
    for (path, leaf), old in zip(
        jax.tree_util.tree_flatten_with_path(new)[0], jax.tree.leaves(x), strict=True
    ):
        if jnp.shape(leaf) != jnp.shape(old):
            raise bad(
                f"dynamics returns x{jax.tree_util.keystr(path)} of shape {jnp.shape(leaf)}, but it has shape {jnp.shape(old)}",
                "return the next state in the form of x0",
                dynamics,
            )
    return jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), new, x)


def scalar(value: PyTree, name: str, cost: Callable[..., PyTree]) -> Array | float | int:
    """A cost, if it is one number."""
    if jax.tree.structure(value).num_nodes != 1 or value is None:
        raise bad(f"{name} returns {jax.tree.structure(value)}, not a scalar", "return one number", cost)
    number = cast(Array | float | int, value)
    if jnp.shape(number) != ():
        raise bad(
            f"{name} returns an array of shape {jnp.shape(number)}, not a scalar", "sum or average it", cost
        )
    return number


def bad(what: str, remedy: str, function: object = None) -> GraphError:
    """Make an error that points at a function of the problem, or at the line that called gnewt."""
    return GraphError(what, line_of(function), remedy)


def line_of(function: object) -> str:
    """`file:line` of a function of the problem, or of the call of gnewt."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return user_line() if code is None else f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno}"
