"""The rule table: what each primitive means for id arrays. Filled by the modules that write rules.

A rule is `rule(lift, instr, ins) -> list of outputs`. Inputs and outputs are `Const`s or NumPy arrays of scalar
ids, with a leading batch axis of length 1 or `lift.batch`. A rule raises `Opaque` where it does not apply;
the equation then becomes a family with dense local derivatives. Primitives that only move data need no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

Rule: TypeAlias = Callable[..., list]
"""(lifter, equation, operands) ↦ results."""
_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
"""Primitive name → rule on id arrays (at least one input depends on the variables)."""


class Opaque(Exception):
    """The rule does not apply here; the message says why."""


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Register a rule for the named primitives."""

    def register(fn: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register
