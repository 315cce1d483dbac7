"""Which functions are the same: by their code and by what they close over."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Mapping

from gnewt._typing import Callable


def name_of(fn: Callable) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def function_key(fn: Callable) -> tuple[Hashable, object]:
    """Identify a function by its code and what it closes over, so that a lambda made anew in a loop is
    the same function if (and only if) its closure holds the same objects. Returns (key, objects to keep)."""
    if isinstance(fn, functools.partial):
        inner, alive = function_key(fn.func)
        bound = (*fn.args, *sorted(fn.keywords.items()))
        return ("partial", inner, tuple(_value_key(v) for v in fn.args), _items_key(fn.keywords)), (
            alive,
            bound,
        )
    if getattr(fn, "__self__", None) is not None and hasattr(fn, "__func__"):
        return ("method", id(fn.__func__), id(fn.__self__)), (fn,)  # type: ignore[attr-defined]
    if not isinstance(fn, types.FunctionType):
        return ("object", id(fn)), fn
    captured = (*_cells(fn), *(fn.__defaults__ or ()))
    keywords = fn.__kwdefaults__ or {}
    key = (
        "code",
        id(fn.__code__),
        id(fn.__globals__),
        tuple(_value_key(v) for v in captured),
        _items_key(keywords),
    )
    return key, (fn, captured, keywords)


def frozen(fn: Callable) -> Callable:
    """Copy a function with the present contents of its closure: a loop variable may change before it runs."""
    if not isinstance(fn, types.FunctionType) or not fn.__closure__:
        return fn
    contents = _cells(fn)
    if len(contents) == 1 and contents[0] is fn:
        return fn
    cells = tuple(types.CellType(value) for value in contents)
    copy = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _cells(fn: types.FunctionType) -> tuple[object, ...]:
    try:
        return tuple(c.cell_contents for c in (fn.__closure__ or ()))
    except ValueError:  # a cell that is not filled yet, as in a recursive definition
        return (fn,)


def _items_key(items: Mapping[str, object]) -> tuple[Hashable, ...]:
    return tuple(sorted((name, _value_key(v)) for name, v in items.items()))


def _value_key(value: object) -> tuple[str, str]:
    return (
        (type(value).__name__, repr(value))
        if isinstance(value, bool | int | float | str | type(None))
        else ("id", str(id(value)))
    )
