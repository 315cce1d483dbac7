"""Leaves of arguments: what is no number is refused by name, before anything is traced."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from gnewt._errors import TraceError, explain_error, user_line


def check_leaves(leaves: Sequence[object], names: Sequence[str]) -> None:
    """Raise a TraceError for the first leaf that is neither an array nor a number."""
    for leaf, name in zip(leaves, names, strict=True):
        try:
            jax.typeof(leaf)
        except TypeError as problem:
            kind = type(leaf).__name__
            remedy = "give arrays and numbers only; other values can be captured by the function"
            if callable(leaf):
                remedy = (
                    "split the module into arrays and the rest: params, rest = equinox.partition(module, "
                    "equinox.is_inexact_array); differentiate with respect to params, and join them inside "
                    "the function with equinox.combine(params, rest)"
                )
            raise TraceError(
                explain_error(f"input {name} is a {kind}, not a number: {leaf!r}"[:300], user_line(), remedy)
            ) from problem
