"""The rule tables: what each primitive means for id arrays. Filled by the modules that follow.

A rule is `rule(lift, instr, ins) -> list of outputs`. Inputs and outputs are `Const`s or NumPy arrays of scalar
ids, with a leading batch axis of length 1 or `lift.batch`. A rule raises `Opaque` where it does not apply;
the equation then becomes a family with dense local derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

RULES: dict[str, Callable] = {}
"""Primitive name → rule on id arrays (at least one input depends on the variables)."""

MOVES: dict[str, Callable] = {}
"""Primitive name → data movement on any NumPy array with a leading batch axis: ids or values. A list, where an equation
has several outputs."""

NUMPY: dict[str, Callable] = {}
"""Primitive name → NumPy function of (params, *values) for constants."""

FOLDS: dict[str, Callable] = {}
"""Primitive name → NumPy function of (instr, values) for constants, where the shapes matter."""


class Opaque(Exception):
    """The rule does not apply here; the message says why."""


def rule(*names: str) -> Callable:
    """Register a rule for the named primitives."""

    def register(fn: Callable) -> Callable:
        for name in names:
            RULES[name] = fn
        return fn

    return register


def move(*names: str) -> Callable:
    """Register a data movement for the named primitives."""

    def register(fn: Callable) -> Callable:
        for name in names:
            MOVES[name] = fn
        return fn

    return register


def apply_move(instr: Any, arrays: Sequence[Any]) -> list[Any]:
    """Move data: one array for each output of the equation."""
    moved = MOVES[instr.prim](instr, None, *arrays)
    return moved if isinstance(moved, list) else [moved]
