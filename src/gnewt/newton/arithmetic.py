"""Arithmetic of the loop: NumPy's on the host, JAX's inside jit, so that loop and searches are written once.

A search compares a few numbers and adds a few vectors. Compiled for every structure that took longer than all its
derivatives; NumPy needs some microseconds. An operation is JAX's if and only if one of its operands is traced.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

if TYPE_CHECKING:
    Array: TypeAlias = Any
else:
    Array = jax.Array | np.ndarray | np.generic | float | int
"""A number or a vector of either kind, or a number of Python. No type checker knows what they share."""
S = TypeVar("S")


def is_traced(a: Any, b: Any = None) -> bool:
    """Whether one of two numbers is known only when a program runs."""
    return isinstance(a, Tracer) or isinstance(b, Tracer)


def staged(compute: Callable[[], S]) -> S:
    """What a function returns, computed by JAX with all numbers traced.

    Under a vmap or a derivative without jit, numbers that do not depend on the lane are known, and known and traced ones mix.
    """
    return compute() if is_traced(jnp.zeros(())) else jax.jit(compute)()


def known(value: Array) -> Array:
    """NumPy's form of a number or vector; one inside jit stays as it is."""
    return value if isinstance(value, Tracer) else np.asarray(value)[()]


def as_known(tree: S) -> S:
    """NumPy's form of all numbers of a pytree that are known."""
    return jax.tree_util.tree_map(known, tree)


def number(value: float, like: Array) -> Array:
    """A constant in the precision of a number or vector, traced if that is."""
    return jnp.full((), value, like.dtype) if isinstance(like, Tracer) else like.dtype.type(value)


def zeros_like(value: Array) -> Array:
    """Zeros, traced if the value is."""
    return jnp.zeros_like(value) if isinstance(value, Tracer) else np.zeros_like(value)[()]


def smallest(like: Array) -> Array:
    """The smallest positive number (that is not subnormal) of a precision."""
    return np.finfo(like.dtype).tiny


def quietly() -> contextlib.AbstractContextManager[object]:
    """Let numbers become infinite or NaN without a word, as they do inside jit. The loop looks at them itself."""
    return np.errstate(all="ignore")


def where(condition: Array, yes: Any, no: Any) -> Any:
    """Choose between two pytrees."""
    if not isinstance(condition, Tracer):
        return yes if condition else no
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), yes, no)


def unless(condition: Array, value: S, compute: Callable[[], S]) -> S:
    """The value, or what is computed where the condition does not hold. (lax.cond would copy its operands under vmap.)"""
    if isinstance(condition, Tracer):
        return where(condition, value, compute())
    return value if condition else compute()


def maximum(a: Array | float, b: Array | float) -> Array:
    """The larger one; NaN if one of them is."""
    if isinstance(a, float) and isinstance(b, float):  # NumPy's scalars of double precision are, too
        return _double(b if b > a or b != b else a)
    return jnp.maximum(a, b) if is_traced(a, b) else np.maximum(a, b)


def minimum(a: Array | float, b: Array | float) -> Array:
    """The smaller one; NaN if one of them is."""
    if isinstance(a, float) and isinstance(b, float):
        return _double(b if b < a or b != b else a)
    return jnp.minimum(a, b) if is_traced(a, b) else np.minimum(a, b)


def _double(a: float) -> np.float64:
    """NumPy's form of a number: a division by zero is no error."""
    return a if isinstance(a, np.float64) else np.float64(a)


def isfinite(a: Array) -> Array:
    """Whether a number is neither NaN nor infinite."""
    if isinstance(a, float):
        return np.bool_(math.isfinite(a))
    return jnp.isfinite(a) if is_traced(a) else np.isfinite(a)


def sqrt(a: Array) -> Array:
    """√a."""
    return jnp.sqrt(a) if is_traced(a) else np.sqrt(a)


def vdot(a: Array, b: Array) -> Array:
    """aᵀb."""
    return jnp.vdot(a, b) if is_traced(a, b) else np.dot(a, b)


def norm(a: Array) -> Array:
    """‖a‖₂."""
    return jnp.linalg.norm(a) if is_traced(a) else np.sqrt(np.dot(a, a))


def largest(a: Array) -> Array:
    """‖a‖∞."""
    if is_traced(a):
        return jnp.max(jnp.abs(a), initial=0.0)
    found = np.abs(np.asarray(a))
    return np.maximum.reduce(found) if found.size else found.dtype.type(0)


def are_finite(*arrays: Array) -> Array:
    """Whether all numbers are finite."""
    if any(isinstance(a, Tracer) for a in arrays):
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in arrays]))
    return np.bool_(all(_is_finite(np.asarray(a)) for a in arrays))


def _is_finite(a: np.ndarray) -> bool:
    """A sum that is finite says it at once; large numbers may have an infinite one."""
    return math.isfinite(np.add.reduce(a, axis=None)) or bool(np.isfinite(a).all())


def argmin(a: Array) -> Array:
    """The place of the least element."""
    return jnp.argmin(a) if is_traced(a) else np.argmin(a)


def while_loop(goes_on: Callable[[S], Array], body: Callable[[S], S], begin: S) -> S:
    """Run the body as long as the loop goes on: Python's loop unless a number that it begins with is traced."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves(begin)):
        return jax.lax.while_loop(goes_on, body, begin)
    while goes_on(begin):
        begin = body(begin)
    return begin
