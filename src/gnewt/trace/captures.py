"""Captures: has anything that a function can see changed since it was traced?

A function that is called again need not be traced again if its code, its closure, the globals it names and
everything reachable from them are what they were. The walk gives up (and the function is traced anew)
wherever it meets something it cannot see through: being slow is allowed, being stale is not.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable

import jax
import numpy as np
from jax.core import Tracer

_MAX_DEPTH = 12
_MAX_ITEMS = 4000
_MAX_BYTES = 1 << 26
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(...), np.dtype, np.generic)


class _Blind(Exception):
    """Something that cannot be seen through."""


def fingerprint(f: Callable) -> list[tuple[str, object]] | None:
    """List what f captures, to be compared by `same_captures`; None if it cannot be seen through.

    Costs some 100 µs, and a copy-free hash of captured NumPy arrays (they may be written to).
    """
    out: list[tuple[str, object]] = []
    try:
        _walk(f, out, set(), 0)
    except _Blind:
        return None
    return out


def same_captures(old: list[tuple[str, object]] | None, new: list[tuple[str, object]] | None) -> bool:
    """Compare two fingerprints: identity for functions and JAX arrays, value for everything else."""
    if old is None or new is None or len(old) != len(new):
        return False
    for (kind, a), (other, b) in zip(old, new, strict=True):
        if kind != other:
            return False
        if kind == "is":
            if a is not b:
                return False
        elif kind == "ref":
            found = [r() for r in (a, b) if isinstance(r, weakref.ref)]
            if len(found) < 2 or found[0] is None or found[0] is not found[1]:
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def _walk(value: object, out: list[tuple[str, object]], seen: set[int], depth: int) -> None:
    if depth > _MAX_DEPTH or len(out) > _MAX_ITEMS or isinstance(value, Tracer):
        raise _Blind
    if isinstance(value, _ATOMS):
        # NaN differs from itself; its text does not.
        out.append(("value", repr(value) if isinstance(value, float) else value))
        return
    if isinstance(value, jax.Array):
        out.append(("is", value))
        return
    if isinstance(value, np.ndarray):
        if value.dtype == object or value.nbytes > _MAX_BYTES:
            raise _Blind
        out.append(("value", (value.shape, value.dtype.str, hash(value.tobytes()))))
        return
    if id(value) in seen:
        out.append(("value", "seen"))
        return
    seen.add(id(value))
    _walk_inside(value, out, seen, depth)


def _walk_inside(value: object, out: list[tuple[str, object]], seen: set[int], depth: int) -> None:
    deeper = depth + 1
    if isinstance(value, types.FunctionType):
        out.append(("is", value.__code__))
        if not _is_library(value.__module__):
            _walk_function(value, out, seen, deeper)
    elif isinstance(value, types.MethodType):
        _walk(value.__func__, out, seen, deeper)
        _walk(value.__self__, out, seen, deeper)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            _walk(part, out, seen, deeper)
    elif isinstance(value, tuple | list):
        out.append(("value", (type(value).__name__, len(value))))
        for item in value:
            _walk(item, out, seen, deeper)
    elif isinstance(value, dict | types.MappingProxyType):
        out.append(("value", ("dict", len(value))))
        for key, item in value.items():
            _walk(key, out, seen, deeper)
            _walk(item, out, seen, deeper)
    elif isinstance(value, types.ModuleType | types.BuiltinFunctionType | np.ufunc):
        out.append(("is", value))
    elif _is_library(getattr(value, "__module__", None)) and (isinstance(value, type) or callable(value)):
        # jnp.sin and other functions of libraries; a jitted function of the user is seen through below.
        out.append(("is", value))
    elif hasattr(value, "__wrapped__") and callable(value):
        out.append(_weakly(value))
        _walk(value.__wrapped__, out, seen, deeper)
    elif isinstance(value, type):
        out.append(_weakly(value))
        for name, item in vars(value).items():
            if isinstance(item, types.FunctionType | staticmethod | classmethod | property):
                for part in (getattr(item, "__func__", item), getattr(item, "fget", None)):
                    if isinstance(part, types.FunctionType):
                        _walk(part, out, seen, deeper)
            elif not name.startswith("__"):
                _walk(item, out, seen, deeper)
    elif (
        hasattr(value, "__dict__") and not hasattr(type(value), "__getattr__") and not _has_slots(type(value))
    ):
        _walk(type(value), out, seen, deeper)
        _walk(vars(value), out, seen, deeper)
    else:
        raise _Blind


def _weakly(value: object) -> tuple[str, object]:
    """Refer to a callable without keeping it alive: the fingerprint lives in a cache that dies with it."""
    try:
        return "ref", weakref.ref(value)
    except TypeError:
        raise _Blind from None


def _walk_function(f: types.FunctionType, out: list[tuple[str, object]], seen: set[int], depth: int) -> None:
    for part in (f.__defaults__ or (), f.__kwdefaults__ or {}):
        _walk(part, out, seen, depth)
    for cell in f.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            out.append(("value", "empty cell"))
            continue
        _walk(content, out, seen, depth)
    names = _names_in(f.__code__)
    for name in names:
        if name in f.__globals__:
            found = f.__globals__[name]
            _walk(found, out, seen, depth)
            if isinstance(found, types.ModuleType):
                _walk_module(found, names, out, seen, depth)


def _walk_module(
    module: types.ModuleType, names: list[str], out: list[tuple[str, object]], seen: set[int], depth: int
) -> None:
    """Look at the attributes of a user's module that the code may name."""
    if _is_library(module.__name__):
        return
    if depth > _MAX_DEPTH:
        raise _Blind
    for name in names:
        if name in vars(module):
            found = vars(module)[name]
            _walk(found, out, seen, depth + 1)
            if isinstance(found, types.ModuleType) and found is not module:
                _walk_module(found, names, out, seen, depth + 1)


def _names_in(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names += _names_in(const)
    return list(dict.fromkeys(names))


def _has_slots(cls: type) -> bool:
    return any("__slots__" in vars(base) and vars(base)["__slots__"] for base in cls.__mro__[:-1])


@functools.lru_cache(maxsize=1024)
def _is_library(module: str | None) -> bool:
    """Whether a module is installed or part of Python: its functions do not change under us."""
    if not module:
        return False
    root = module.split(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    found = sys.modules.get(root)
    path = getattr(found, "__file__", None) or ""
    return root == "gnewt" or "site-packages" in path or "dist-packages" in path
