"""Checks of options: each says what is wrong with a value, where it was given, and what to give instead."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import OptionError, user_line
from gnewt.newton.numbers import RealLike


def check_shift(shift: Any) -> RealLike:
    """μ of H + μI: one real number, finite where it is known."""
    value = _real("shift", shift, "μ of H + μI; to weigh inputs differently, add a cost to the objective")
    if isinstance(value, Tracer):
        return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
    if not np.isfinite(value):
        raise OptionError(f"shift is {value}", user_line(), "give a finite number, 0 for the Newton step")
    return float(value)


def check_tolerance(tol: Any) -> RealLike:
    """A bound on the gradient: one number, not negative."""
    value = _real("tol", tol, "a bound on the largest entry of the gradient")
    if not isinstance(value, Tracer) and not value >= 0:
        raise OptionError(
            f"tol is {value}: no gradient is as small as that",
            user_line(),
            "give a number ≥ 0; 0 runs until f no longer decreases",
        )
    if not isinstance(value, Tracer) and np.isinf(value):
        raise OptionError(
            "tol is inf: every gradient is as small as that",
            user_line(),
            "give a finite number; to evaluate f and nothing more, use max_steps=0",
        )
    return tol


def check_limits(max_steps: Any, time_limit: Any, callback: Any) -> int:
    """When a run ends at the latest; the number of steps as an integer."""
    if isinstance(max_steps, Tracer):
        raise OptionError(
            "max_steps is traced: the history of a run has so many rows",
            user_line(),
            "give a Python integer; or stop earlier by tol",
        )
    try:
        steps = operator.index(max_steps)
    except TypeError:
        steps = -1
    if steps < 0:
        raise OptionError(
            f"max_steps is {max_steps!r}", user_line(), "give a whole number of steps, 0 or more"
        )
    if not isinstance(time_limit, int | float | np.number) or not float(time_limit) >= 0:
        raise OptionError(
            f"time_limit is {time_limit!r}", user_line(), f"give seconds, or {math.inf} for no limit"
        )
    if callback is not None and not callable(callback):
        raise OptionError(
            f"callback is {callback!r}", user_line(), "give a function of one gnewt.newton.Progress, or None"
        )
    return steps


def check_args(args: Any) -> tuple[Any, ...]:
    """Further arguments of a function: a tuple."""
    if not isinstance(args, tuple | list):
        raise OptionError(
            f"args is a {type(args).__name__}, not a tuple",
            user_line(),
            "write args=(value,) for one further argument",
        )
    return tuple(args)


def check_kwargs(kwargs: Any) -> dict[str, Any]:
    """Keyword arguments of a function: a mapping from their names."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(
            f"kwargs is a {type(kwargs).__name__}, not a dict",
            user_line(),
            'write kwargs={"name": value} for a keyword argument of the function',
        )
    return dict(kwargs or {})


def check_choice(name: str, value: Any, known: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in known:
        raise OptionError(f"{name} is {value!r}", user_line(), f"give one of {', '.join(map(repr, known))}")
    return value


def _real(name: str, value: Any, meaning: str) -> Any:
    """A real number, known or traced."""
    shape = None
    if isinstance(value, Tracer | np.ndarray | np.generic) or hasattr(value, "dtype"):
        shape, real = value.shape, jnp.issubdtype(value.dtype, jnp.floating)
        real = real or jnp.issubdtype(value.dtype, jnp.integer)
    else:
        real = isinstance(value, int | float)
    if shape not in (None, ()) or not real:
        kind = f"an array of shape {shape}" if shape else repr(value)
        raise OptionError(f"{name} is {kind}", user_line(), f"give one real number: {meaning}")
    return value
