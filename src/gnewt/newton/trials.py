"""Values of f along a step: how far to go, and how much of what is seen is rounding.

A gradient with its Hessians and a factorisation costs many values of f. So a step that f likes is tried at a few other
lengths before derivatives are asked for, which saves about a quarter of them far from the solution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

_ALIKE = 0.05
"""Lengths that differ by this share are not worth another value."""
_SHORTEST, _LONGEST, _FAR = 0.1, 10.0, 3.0
"""The next length, in terms of the longest tried: between the first two; the last where no minimum is in sight."""


class Line(NamedTuple):
    """f along a step p whose quadratic model is known."""

    before: Float[Array, ""]
    """f(x)"""
    slope: Float[Array, ""]
    """gᵀp"""
    curvature: Float[Array, ""]
    """pᵀHp"""


class Trials(NamedTuple):
    """What was tried."""

    first: Float[Array, ""]
    """f(x + p)"""
    length: Float[Array, ""]
    """The best t: f(x + t·p) is the least value seen."""
    noise: Float[Array, ""]
    """How much f changed where every input was moved by a rounding; 0 where that was not tried."""
    count: Int[Array, ""]
    """Values of f."""


class _Search(NamedTuple):
    next: Array
    lengths: Array
    """[2]: of the two least values; 0 for none."""
    values: Array
    first: Array
    noise: Array
    probes: Bool[Array, ""]
    """The next value is taken next to x."""
    count: Array
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
    zero = jnp.zeros((), x.dtype)

    def look(s: _Search) -> _Search:
        # One place that evaluates f: it is compiled once.
        found = value(jnp.where(s.probes, _beside(x), x + s.next * step))
        is_first = s.count == 0
        first = jnp.where(is_first, found, s.first)
        counts = jnp.isfinite(found) & ~s.probes
        best = counts & (is_first | (found < s.values[0] - noise))
        second = counts & ~best & (found < s.values[1])
        lengths = jnp.where(best, jnp.stack([s.next, s.lengths[0]]), s.lengths)
        values = jnp.where(best, jnp.stack([found, s.values[0]]), s.values)
        lengths = lengths.at[1].set(jnp.where(second, s.next, lengths[1]))
        values = values.at[1].set(jnp.where(second, found, values[1]))
        following = _minimum(line, lengths, values)
        new = jnp.all(jnp.abs(following - lengths) > _ALIKE * lengths)
        liked = likes(first)
        change = jnp.abs(found - line.before)
        probes = is_first & ~liked & measures
        goes_on = liked & counts & new & (s.count < most)
        return _Search(
            following,
            lengths,
            values,
            first,
            jnp.where(s.probes & jnp.isfinite(change), change, s.noise),
            probes,
            s.count + 1,
            ~(goes_on | probes),
        )

    begin = _Search(
        zero + 1,
        jnp.zeros(2, x.dtype),
        jnp.full(2, jnp.inf, x.dtype),
        zero,
        zero,
        jnp.zeros((), bool),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(lambda s: ~s.done, look, begin)
    length = jnp.where(end.lengths[0] > 0, end.lengths[0], 1.0)
    return Trials(end.first, length, end.noise, end.count)


def _beside(x: Array) -> Array:
    """Move every coordinate by a rounding, up or down."""
    signs = jnp.where(jnp.cos(1.0 + 2.399963 * jnp.arange(x.size, dtype=x.dtype)) < 0, -1.0, 1.0)
    return x * (1 + 2 * jnp.finfo(x.dtype).eps * signs.astype(x.dtype))


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
    grid = top * jnp.geomspace(_SHORTEST, _LONGEST, 41, dtype=lengths.dtype)
    height = ((fourth * grid + third) * grid + 0.5 * curvature) * grid**2 + slope * grid
    at = jnp.argmin(height)
    low, high = grid[jnp.maximum(at - 1, 0)], grid[jnp.minimum(at + 1, len(grid) - 1)]

    def polish(_: Any, t: Array) -> Array:
        first = slope + (curvature + (3 * third + 4 * fourth * t) * t) * t
        second = curvature + (6 * third + 12 * fourth * t) * t
        return jnp.where(second > 0, jnp.clip(t - first / jnp.where(second > 0, second, 1.0), low, high), t)

    inside = jax.lax.fori_loop(0, 3, polish, grid[at])
    return jnp.where(at == len(grid) - 1, _FAR * top, inside)
