"""Which of the functions that JAX wrapped are the same: by the user's functions inside.

JAX wraps a derivative rule anew at every use of a custom_jvp or custom_vjp function. Within one trace the same rule need be
looked at once. A rule of JAX's own (`jax.nn.relu`) is the same at every later call, too; one of the user's may read what
has changed since. Nothing here is a promise of JAX's: what is not known gives None, and the caller looks again.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

_PLUMBING = frozenset({"Store", "EqualStore", "DynamicJaxprTrace", "DebugInfo", "InitialResultPaths"})
"""Types of JAX that carry nothing of the user's."""
_MOST_LEVELS = 12


class Same:
    """Something that is equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


class _Unknown(Exception):
    """An object that this module does not know."""


def wrapper_key(value: object) -> Hashable | None:
    """Return what two wrapped functions agree in if they are the same at this moment; None if that is not known."""
    try:
        return _key(value, 0)
    except _Unknown:
        return None


def library_key(value: object) -> Hashable | None:
    """The same for functions of JAX alone: what has this key computes the same at any time; None if that is not known."""
    found = wrapper_key(value)
    return None if found is None or not _is_library(found) else found


def _is_library(key: Hashable) -> bool:
    """Whether everything that is known by its identity is a function of JAX's."""
    if isinstance(key, tuple):
        return all(map(_is_library, key))
    if not isinstance(key, Same):
        return True
    module = getattr(key.value, "__module__", None) or ""
    return callable(key.value) and module.startswith("jax.")


def _key(value: Any, level: int) -> Hashable:
    if level > _MOST_LEVELS:
        raise _Unknown
    deeper = level + 1
    if value is None or isinstance(value, str | bool | int | np.dtype | jax.tree_util.PyTreeDef):
        return (type(value), value)
    if isinstance(value, float | complex | np.ndarray | np.generic | jax.Array):
        return Same(value)
    if isinstance(value, tuple | list):
        return (type(value), tuple([_key(v, deeper) for v in value]))
    if isinstance(value, functools.partial):
        return (
            _key(value.func, deeper),
            _key(value.args, deeper),
            _key(sorted(value.keywords.items()), deeper),
        )
    if isinstance(value, types.MethodType):
        return (Same(value.__func__), Same(value.__self__))
    if isinstance(value, types.FunctionType):
        return _function_key(value, deeper)
    name = type(value).__name__
    if name == "WrappedFun":
        return (_key(value.f, deeper), _key(value.transforms, deeper), _key(value.params, deeper))
    if name == "ShapedArray":
        return value
    if name in _PLUMBING or type(value) is object:
        return name
    if callable(value):
        return Same(value)
    raise _Unknown


def _function_key(function: types.FunctionType, level: int) -> Hashable:
    """The user's functions are known by themselves, JAX's by their code and what they close over."""
    if not function.__module__.startswith("jax."):
        return Same(function)
    if function.__defaults__ or function.__kwdefaults__:
        return Same(function)
    cells = [c.cell_contents for c in function.__closure__ or ()]
    # The memory of a memoised function is a dict of what it returned.
    return (function.__code__, tuple([_key(c, level) for c in cells if not isinstance(c, dict)]))
