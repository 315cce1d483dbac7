"""Values of f along a step: how far to go, and how much of what is seen is rounding.

A gradient with its Hessians and a factorisation costs many values of f. So a step that f likes is tried at a few other
lengths before derivatives are asked for, which saves about a quarter of them far from the solution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from gnewt.newton.arithmetic import (
    Array,
    argmin,
    is_traced,
    isfinite,
    maximum,
    minimum,
    number,
    unless,
    where,
    while_loop,
)
from gnewt.newton.judge import Line

_ALIKE = 0.05
"""Lengths that differ by this share are not worth another value."""
_SHORTEST, _LONGEST, _FAR = 0.1, 10.0, 3.0
"""The next length, in terms of the longest tried: between the first two; the last where no minimum is in sight."""
_GRID, _POLISH = np.geomspace(_SHORTEST, _LONGEST, 41), 3
"""Lengths that the polynomial is evaluated at (12 % apart), and steps of Newton's method from the best of them."""
PROBE = 2
"""Roundings that every input is moved by where the noise of f is measured: one might round to none."""
_GOLDEN = 2.399963
"""The golden angle: its multiples, taken around a circle, come close to no period."""


class Trials(NamedTuple):
    """What was tried."""

    first: Float[Array, ""]
    """f(x + p)"""
    length: Float[Array, ""]
    """The best t: f(x + t·p) is the least value seen."""
    noise: Float[Array, ""]
    """How much f changed where every input was moved by a rounding; 0 where that was not tried."""
    evaluations: Int[Array, ""]


class _Lengths(NamedTuple):
    next: Array
    lengths: tuple[Array, Array]
    """Of the two least values; 0 for none."""
    values: tuple[Array, Array]
    first: Array
    noise: Array
    probes: Bool[Array, ""]
    """The next value is taken next to x."""
    evaluations: Array
    done: Array


def try_lengths(
    value: Callable[[Array], Array],
    x: Array,
    step: Array,
    line: Line,
    likes: Callable[[Array], Array],
    noise: Array,
    most: int,
    measures: Array,
) -> Trials:
    """Evaluate f at x + p and, if that is liked, at up to `most` other lengths.

    Args:
        likes: whether f(x + p) is worth going on with.
        noise: a difference that does not count.
        measures: whether a step that is not liked is reason to measure the rounding of f at x.
    """

    def look(s: _Lengths) -> _Lengths:
        # One place that evaluates f: it is compiled once.
        found = value(unless(~s.probes, x + s.next * step, lambda: _beside(x)))
        is_first = s.evaluations == 0
        counts = isfinite(found) & ~s.probes
        best = counts & (is_first | (found < s.values[0] - noise))
        second = counts & ~best & (found < s.values[1])
        lengths, values = (
            where(best, (new, old[0]), (old[0], where(second, new, old[1])))
            for new, old in ((s.next, s.lengths), (found, s.values))
        )
        first = where(is_first, found, s.first)
        liked = likes(first)
        following = unless(~liked, s.next, lambda: _minimum(line, lengths, values))
        near, far = (abs(following - length) > _ALIKE * length for length in lengths)
        change = abs(found - line.before)
        measured = where(s.probes & isfinite(change), change, s.noise)
        probes = is_first & ~liked & measures
        done = ~(probes | (liked & counts & near & far & (s.evaluations < most)))
        return _Lengths(following, lengths, values, first, measured, probes, s.evaluations + 1, done)

    zero, inf, no = number(0.0, line.before), number(np.inf, line.before), np.bool_(False)
    begin = _Lengths(zero + 1, (zero, zero), (inf, inf), zero, zero, no, np.int32(0), no)
    end = while_loop(lambda s: ~s.done, look, begin)
    length = where(end.lengths[0] > 0, end.lengths[0], zero + 1)
    return Trials(end.first, length, end.noise, end.evaluations)


def scattered(x: Array) -> Array:
    """As many numbers between -1 and 1, without symmetry or period; the same in every run."""
    xp = jnp if is_traced(x) else np
    return xp.cos(1.0 + _GOLDEN * xp.arange(x.size, dtype=x.dtype))


def _beside(x: Array) -> Array:
    """Move every coordinate by a rounding, up or down."""
    signs = 1 - 2 * (scattered(x) < 0)
    return x * (1 + PROBE * np.finfo(x.dtype).eps * signs.astype(x.dtype))


def _minimum(line: Line, lengths: tuple[Array, Array], values: tuple[Array, Array]) -> Array:
    """Where φ(t) = f + s·t + ½c·t² + d·t³ + e·t⁴ through the values has its minimum; e = 0 where there is one only."""
    slope, curvature = line.slope, line.curvature
    best, second = (where(length > 0, length, number(1.0, length)) for length in lengths)
    beyond, other = (
        (value - line.before - slope * t - 0.5 * curvature * t**2) / t**3
        for t, value in zip((best, second), values, strict=True)
    )
    two = lengths[1] > 0
    fourth = where(two, (beyond - other) / where(two, best - second, 1.0), 0.0)
    third = beyond - fourth * best
    top = maximum(*lengths)
    grid = top * _GRID.astype(top.dtype)
    height = ((fourth * grid + third) * grid + 0.5 * curvature) * grid**2 + slope * grid
    at = argmin(height)
    low, high = grid[maximum(at - 1, 0)], grid[minimum(at + 1, len(_GRID) - 1)]
    t = grid[at]
    for _ in range(_POLISH):
        first = slope + (curvature + (3 * third + 4 * fourth * t) * t) * t
        bend = curvature + (6 * third + 12 * fourth * t) * t
        t = where(bend > 0, minimum(maximum(t - first / where(bend > 0, bend, 1.0), low), high), t)
    return where(at == len(_GRID) - 1, _FAR * top, t)
