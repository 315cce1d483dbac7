"""Numbers of results: Python numbers where they are known, arrays inside jit and for a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from jax.core import Tracer

from gnewt._typing import Array

Real: TypeAlias = float | np.floating | Array
"""A real number of a result."""
Count: TypeAlias = int | np.integer | np.bool_ | Array
"""An integer (or a truth value) of a result."""
RealLike: TypeAlias = int | float | np.number | Array
"""A real number that a user gives."""


class Inertia(NamedTuple):
    """Numbers of positive, negative and zero eigenvalues of H + μI: integers, or traced inside jit."""

    positive: Count
    negative: Count
    zero: Count


def is_known(value: Count | Real) -> bool:
    """Whether a number is known, and one: neither inside jit nor a batch."""
    return not isinstance(value, Tracer) and np.ndim(value) == 0


def as_real(value: Real) -> Real:
    """Turn a number into a float where it is known."""
    return float(value) if is_known(value) else value


def as_count(value: Count) -> Count:
    """Turn a number into an integer where it is known."""
    return int(value) if is_known(value) else value


def as_inertia(counts: Array) -> Inertia:
    """Name the three counts, the last axis of the array."""
    return Inertia(*(as_count(counts[..., i]) for i in range(3)))


_SAFE = 1e-290, 1e290
"""Sums of squares between these have neither overflown nor lost digits."""


def column_norms(x: Array) -> np.ndarray:
    """Euclidean norm of each column, safe against overflow of the squares."""
    x = np.asarray(x, np.float64)
    if x.shape[1] == 1:  # the usual case, in a third of the time
        squares = float(np.dot(x[:, 0], x[:, 0]))
        if _SAFE[0] < squares < _SAFE[1]:
            return np.array([math.sqrt(squares)])
    scale = np.max(np.abs(x), axis=0, initial=0.0)
    unit = np.where((scale > 0) & np.isfinite(scale), scale, 1.0)
    return np.where(np.isfinite(scale), unit * np.linalg.norm(x / unit, axis=0), scale)


def show(name: str, code: Count, text: Callable[[], str]) -> str:
    """What a prompt shows; numbers inside jit and batches are not looked at."""
    if isinstance(code, Tracer):
        return f"<{name} inside a transformation>"
    return text() if np.ndim(code) == 0 else f"<{name} of shape {np.shape(code)}>"
