"""Values of f along a step: how far to go, and how much of what is seen is rounding.

A gradient with its Hessians and a factorisation costs many values of f. So a step that f likes is tried at a few other
lengths before derivatives are asked for, which saves about a quarter of them far from the solution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.newton.judge import Line

_ALIKE = 0.05
"""Lengths that differ by this share are not worth another value."""
_SHORTEST, _LONGEST, _FAR = 0.1, 10.0, 3.0
"""The next length, in terms of the longest tried: between the first two; the last where no minimum is in sight."""
_GRID, _POLISH = 41, 3
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
    lengths: Array
    """[2]: of the two least values; 0 for none."""
    values: Array
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
        found = value(jnp.where(s.probes, _beside(x), x + s.next * step))
        is_first = s.evaluations == 0
        counts = jnp.isfinite(found) & ~s.probes
        best = counts & (is_first | (found < s.values[0] - noise))
        second = counts & ~best & (found < s.values[1])
        lengths, values = (
            jnp.where(best, jnp.stack([new, old[0]]), old.at[1].set(jnp.where(second, new, old[1])))
            for new, old in ((s.next, s.lengths), (found, s.values))
        )
        following = _minimum(line, lengths, values)
        new = jnp.all(jnp.abs(following - lengths) > _ALIKE * lengths)
        first = jnp.where(is_first, found, s.first)
        liked = likes(first)
        change = jnp.abs(found - line.before)
        measured = jnp.where(s.probes & jnp.isfinite(change), change, s.noise)
        probes = is_first & ~liked & measures
        done = ~(probes | (liked & counts & new & (s.evaluations < most)))
        return _Lengths(following, lengths, values, first, measured, probes, s.evaluations + 1, done)

    zero, none, no = jnp.zeros((), x.dtype), jnp.zeros(2, x.dtype), jnp.zeros((), bool)
    begin = _Lengths(zero + 1, none, none + jnp.inf, zero, zero, no, jnp.zeros((), jnp.int32), no)
    end = jax.lax.while_loop(lambda s: ~s.done, look, begin)
    length = jnp.where(end.lengths[0] > 0, end.lengths[0], 1.0)
    return Trials(end.first, length, end.noise, end.evaluations)


def scattered(n: int, dtype: np.dtype) -> Array:
    """Numbers between -1 and 1 without symmetry or period; the same in every run."""
    return jnp.cos(1.0 + _GOLDEN * jnp.arange(n, dtype=dtype))


def _beside(x: Array) -> Array:
    """Move every coordinate by a rounding, up or down."""
    signs = jnp.where(scattered(x.size, x.dtype) < 0, -1.0, 1.0)
    return x * (1 + PROBE * jnp.finfo(x.dtype).eps * signs.astype(x.dtype))


def _minimum(line: Line, lengths: Array, values: Array) -> Array:
    """Where φ(t) = f + s·t + ½c·t² + d·t³ + e·t⁴ through the values has its minimum; e = 0 where there is one only."""
    slope, curvature = line.slope, line.curvature
    known = jnp.where(lengths > 0, lengths, 1.0)
    beyond = (values - line.before - slope * known - 0.5 * curvature * known**2) / known**3
    two = lengths[1] > 0
    apart = jnp.where(two, known[0] - known[1], 1.0)
    fourth = jnp.where(two, (beyond[0] - beyond[1]) / apart, 0.0)
    third = beyond[0] - fourth * known[0]
    top = jnp.max(jnp.where(lengths > 0, lengths, 0.0))
    grid = top * jnp.geomspace(_SHORTEST, _LONGEST, _GRID, dtype=lengths.dtype)
    height = ((fourth * grid + third) * grid + 0.5 * curvature) * grid**2 + slope * grid
    at = jnp.argmin(height)
    low, high = grid[jnp.maximum(at - 1, 0)], grid[jnp.minimum(at + 1, len(grid) - 1)]

    def polish(_: Array, t: Array) -> Array:
        first = slope + (curvature + (3 * third + 4 * fourth * t) * t) * t
        second = curvature + (6 * third + 12 * fourth * t) * t
        return jnp.where(second > 0, jnp.clip(t - first / jnp.where(second > 0, second, 1.0), low, high), t)

    inside = jax.lax.fori_loop(0, _POLISH, polish, grid[at])
    return jnp.where(at == len(grid) - 1, _FAR * top, inside)
