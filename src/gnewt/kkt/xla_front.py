"""Eliminate a batch of equal fronts: bare pairs by substitution, the other unknowns by static pivots, tested.

Pivots are taken in a fixed order, first the pairs (x_v, λ_v) as 2×2 pivots, then the inputs one by one, because a batch
cannot permute its members differently at a low price. In a convex problem every leading block of pairs has a determinant
of at least one, so the order is a good one; nothing is assumed: each front says whether its pivots were above
rounding, its inverse is one, and its gains are small. Where any front says no, the caller turns to a careful elimination.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from gnewt.kkt.pivots import NOISE, THRESHOLD
from gnewt.kkt.xla_schedule import Shape


class Gains(NamedTuple):
    """What is kept of a batch of fronts: x_p = F z, and z_q = K⁻¹ r - X z_b."""

    f: Float[Array, "w p rest"]
    inverse: Float[Array, "w q q"]
    x: Float[Array, "w q b"]


class Pivots(NamedTuple):
    """What the pivots of a batch say. Padded ones are one."""

    single: Float[Array, "w k"]
    pair: Float[Array, "w m 3"]
    """a, b, c of [[a, b], [b, c]]."""
    good: Bool[Array, " w"]
    """Whether all tests were passed."""


class Message(NamedTuple):
    """What a batch of fronts passes on: Schur complements, and the magnitudes added to their diagonals."""

    schur: Float[Array, "w b b"]
    added: Float[Array, "w b"]


def eliminate(
    shape: Shape,
    doublings: int,
    matrix: Float[Array, "w n n"],
    f: Float[Array, "w p rest"],
    g: Float[Array, "w p p"],
    magnitude: Float[Array, "w rest"],
    shift: Float[Array, "w k"],
    eps: float,
) -> tuple[Gains, Pivots, Message]:
    """Eliminate the first p + q coordinates of every front.

    Args:
        doublings: G vanishes when it is squared this often.
        magnitude: Σ of the magnitudes added to the diagonal so far, of all coordinates but the bare pairs.
        shift: μ for the inputs, zero for padding.
        eps: rounding of the entries.
    """
    p, q, dtype = shape.p, shape.q, matrix.dtype
    square = matrix[:, p:, p:]
    before = magnitude
    if p:
        power = g
        for i in range(doublings):  # (I - G)⁻¹ = (I + G)(I + G²)(I + G⁴)...
            f = f + power @ f
            power = power @ power if i + 1 < doublings else power
        half = 0.5 * (matrix[:, :p, :p] @ f) + matrix[:, :p, p:]
        product = jnp.swapaxes(f, 1, 2) @ half
        square = square + product + jnp.swapaxes(product, 1, 2)
        magnitude = magnitude + 2 * jnp.sum(jnp.abs(f * half), axis=1)
    if shape.k:
        inputs = slice(2 * shape.m, q)
        diagonal = jnp.zeros(square.shape[:2], dtype).at[:, inputs].set(shift)
        square = square + diagonal[:, :, None] * jnp.eye(shape.rest, dtype=dtype)
    block, cross = square[:, :q, :q], square[:, :q, q:]
    inverse, single, pair, above = _invert(shape, block, magnitude[:, :q], eps)
    unit = _units(square, magnitude)
    if q > 1:
        error = jnp.eye(q, dtype=dtype) - block @ inverse
        close = jnp.abs(error) * unit[:, None, :q] <= eps ** (1 / 3) * unit[:, :q, None]
        good = above & jnp.all(close, axis=(1, 2))
        inverse = inverse + inverse @ error
        inverse = 0.5 * (inverse + jnp.swapaxes(inverse, 1, 2))
    else:
        good = above
    x = inverse @ cross
    product = jnp.swapaxes(cross, 1, 2) @ x
    schur = square[:, q:, q:] - 0.5 * (product + jnp.swapaxes(product, 1, 2))
    if q and shape.b:
        size = jnp.abs(x)
        small = jnp.minimum(size, size * unit[:, :q, None] / unit[:, None, q:]) <= 1 / THRESHOLD
        good = good & jnp.all(small, axis=(1, 2))
    added = magnitude[:, q:] - before[:, q:] + jnp.sum(jnp.abs(cross * x), axis=1)
    return Gains(f, inverse, x), Pivots(single, pair, good), Message(schur, added)


def _units(matrix: Array, magnitude: Array) -> Array:
    """Scale of every coordinate: the root of what was added to its diagonal, or of its largest coupling."""
    largest = jnp.max(jnp.abs(matrix), axis=2, initial=0.0)
    scale = jnp.where(magnitude > 0, magnitude, jnp.where(largest > 0, largest, 1.0))
    return jnp.sqrt(scale)


def _invert(shape: Shape, block: Array, magnitude: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    """K⁻¹ by sweeps, pairs first: (inverse, 1×1 pivots, 2×2 pivots, whether all were above rounding).

    A sweep on the pivot P maps K_PP to -P⁻¹, K_PR to P⁻¹K_PR and K_RR to its Schur complement; after all sweeps -K⁻¹ is
    left. Every sweep is one elementwise operation on the whole batch.
    """
    m, k, dtype = shape.m, shape.k, block.dtype
    smallest = jnp.asarray(jnp.finfo(dtype).tiny * 2.0**40, dtype)
    width = block.shape[0]
    if shape.q == 1:
        single = block[:, 0, :]
        good = jnp.abs(single[:, 0]) > jnp.maximum(NOISE * eps * magnitude[:, 0], smallest)
        return 1 / block, single, jnp.zeros((width, 0, 3), dtype), good
    index = jnp.arange(shape.q)

    def take(matrix: Array, i: Array) -> Array:
        return jax.lax.dynamic_index_in_dim(matrix, i, 1, keepdims=False)

    def sweep_pair(carry: tuple[Array, Array, Array], i: Array) -> tuple[tuple[Array, Array, Array], Array]:
        matrix, magnitude, good = carry
        u, v = take(matrix, i), take(matrix, m + i)
        a, b, c = (take(u, i)[:, None], take(v, i)[:, None], take(v, m + i)[:, None])
        det = a * c - b * b
        # The determinant has no units: x_v and λ_v have inverse ones, and -1 is always part of b.
        noise = take(magnitude, i) * take(magnitude, m + i) + 1 + b[:, 0] ** 2
        good = good & (jnp.abs(det[:, 0]) > NOISE * eps * noise)
        first, second = (c * u - b * v) / det, (a * v - b * u) / det
        magnitude = magnitude + jnp.abs(u * first) + jnp.abs(v * second)
        is_i, is_j = index == i, index == m + i
        rest = matrix - u[:, :, None] * first[:, None, :] - v[:, :, None] * second[:, None, :]
        first = jnp.where(is_i, -c / det, jnp.where(is_j, b / det, first))
        second = jnp.where(is_i, b / det, jnp.where(is_j, -a / det, second))
        matrix = _put(_put(rest, second, is_j), first, is_i)
        return (matrix, magnitude, good), jnp.concatenate([a, b, c], axis=1)

    def sweep(carry: tuple[Array, Array, Array], i: Array) -> tuple[tuple[Array, Array, Array], Array]:
        matrix, magnitude, good = carry
        u = take(matrix, i)
        d = take(u, i)[:, None]
        good = good & (jnp.abs(d[:, 0]) > jnp.maximum(NOISE * eps * take(magnitude, i), smallest))
        row = u / d
        magnitude = magnitude + jnp.abs(u * row)
        rest = matrix - u[:, :, None] * row[:, None, :]
        matrix = _put(rest, jnp.where(index == i, -1 / d, row), index == i)
        return (matrix, magnitude, good), d[:, 0]

    carry = (block, magnitude, jnp.ones(width, bool))
    pair, single = jnp.zeros((0, width, 3), dtype), jnp.zeros((0, width), dtype)
    if m:
        carry, pair = jax.lax.scan(sweep_pair, carry, jnp.arange(m))
    if k:
        carry, single = jax.lax.scan(sweep, carry, jnp.arange(2 * m, shape.q))
    return -carry[0], single.T, jnp.swapaxes(pair, 0, 1), carry[2]


def _put(matrix: Array, row: Array, here: Array) -> Array:
    """Replace one row and the same column of a symmetric matrix."""
    matrix = jnp.where(here[None, None, :], row[:, :, None], matrix)
    return jnp.where(here[None, :, None], row[:, None, :], matrix)
