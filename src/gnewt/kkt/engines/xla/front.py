"""Eliminate a batch of equal fronts: bare pairs by substitution, the other unknowns by static pivots.

Pivots are taken in a fixed order, first the pairs (x_v, λ_v) as 2×2 pivots, then the inputs one by one: a batch cannot
permute its members differently at a low price. In a convex problem every leading block of pairs has a determinant of
at least one, so the order is a good one. Nothing is assumed: a pivot at the level of rounding is replaced by a larger
one, and every front says whether what it computed is the inverse of its block, without large gains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from gnewt.kkt.engines.reference.pivots import THRESHOLD
from gnewt.kkt.engines.xla.schedule import FrontShape

_Sweeping: TypeAlias = tuple[Array, Array]
"""A batch of matrices between two sweeps, and the magnitudes on their diagonals."""
_WRITTEN_OUT = 16
"""Sweeps of a front up to which they are written out on a GPU."""
SMALL_SUMS = 16
"""Sums of products up to which a product of matrices is written as such on a GPU: a kernel of its own, fused with what
is around it, where a batched product is a call of a library."""


def multiply(a: Float[Array, "w i j"], b: Float[Array, "w j k"]) -> Float[Array, "w i k"]:
    """A batch of products of matrices."""
    if jax.default_backend() == "cpu" or (a.shape[-1] > SMALL_SUMS and b.shape[-1] > 2):
        return a @ b
    return jnp.sum(a[:, :, :, None] * b[:, None, :, :], axis=2)


class Gains(NamedTuple):
    """What is kept of a batch of fronts: x_p = F z, and z_q = K⁻¹ r - X z_b."""

    f: Float[Array, "w p rest"]
    inverse: Float[Array, "w q q"]
    x: Float[Array, "w q b"]


class Pivots(NamedTuple):
    """What the pivots of a batch say. Padded ones are one."""

    single: Float[Array, "w k"]
    pair: Float[Array, "w m 3"]
    """a, b, c of [[a, b], [b, c]], for every pair (x_v, λ_v) that is not bare."""
    clean: Bool[Array, " w"]
    """Whether the inverse is one, and all gains are small."""


class FrontMessage(NamedTuple):
    """What a batch of fronts passes on: Schur complements, and the magnitudes added to their diagonals."""

    schur: Float[Array, "w b b"]
    added: Float[Array, "w b"]


def eliminate(
    shape: FrontShape,
    nesting: int,
    matrix: Float[Array, "w n n"],
    f: Float[Array, "w p rest"],
    g: Float[Array, "w p p"],
    magnitude: Float[Array, "w rest"],
    shift: Float[Array, "w k"],
    eps: float,
) -> tuple[Gains, Pivots, FrontMessage]:
    """Eliminate the first p + q coordinates of every front.

    Args:
        nesting: longest chain of bare pairs that read one another.
        magnitude: Σ of the magnitudes added to the diagonal so far, of all coordinates but the bare pairs.
        shift: μ for the inputs, zero for padding.
        eps: rounding of the entries.
    """
    p, q, dtype = shape.p, shape.q, matrix.dtype
    square = matrix[:, p:, p:]
    before = magnitude
    if p:
        f = substitute(f, g, nesting)
        half = 0.5 * multiply(matrix[:, :p, :p], f) + matrix[:, :p, p:]
        product = multiply(jnp.swapaxes(f, 1, 2), half)
        square = square + product + jnp.swapaxes(product, 1, 2)
        magnitude = magnitude + 2 * jnp.sum(jnp.abs(f * half), axis=1)
    if shape.k:
        inputs = slice(2 * shape.m, q)
        diagonal = jnp.zeros(square.shape[:2], dtype).at[:, inputs].set(shift)
        square = square + diagonal[:, :, None] * jnp.eye(shape.rest, dtype=dtype)
    block, cross = square[:, :q, :q], square[:, :q, q:]
    scale = _scale(square, magnitude)
    inverse, single, pair = _invert(shape, block, scale[:, :q], eps)
    unit = jnp.sqrt(scale)
    error = jnp.eye(q, dtype=dtype) - multiply(block, inverse)
    close = jnp.abs(error) * unit[:, None, :q] <= eps ** (1 / 3) * unit[:, :q, None]
    clean = jnp.all(close, axis=(1, 2))
    if q > 1:
        # One step of Newton's method for the inverse, where it converges.
        better = inverse + multiply(inverse, error)
        better = 0.5 * (better + jnp.swapaxes(better, 1, 2))
        inverse = jnp.where(clean[:, None, None], better, inverse)
    x = multiply(inverse, cross)
    product = multiply(jnp.swapaxes(cross, 1, 2), x)
    schur = square[:, q:, q:] - 0.5 * (product + jnp.swapaxes(product, 1, 2))
    if q and shape.b:
        # A gain is small in the units of the user, or in those of the diagonal.
        relative = jnp.minimum(unit[:, :q, None] / unit[:, None, q:], 1.0)
        clean = clean & jnp.all(jnp.abs(x) * relative <= 1 / THRESHOLD, axis=(1, 2))
    added = magnitude[:, q:] - before[:, q:] + jnp.sum(jnp.abs(cross * x), axis=1)
    return Gains(f, inverse, x), Pivots(single, pair, clean), FrontMessage(schur, added)


def substitute(f: Array, g: Array, nesting: int) -> Array:
    """(I - G)⁻¹F where G, the pairs that read one another, vanishes after `nesting` products.

    Each round makes one more layer of pairs final, by the arithmetic of a substitution: powers of G would cancel.
    """
    if nesting <= 2:
        x = f
        for _ in range(nesting):
            x = f + multiply(g, x)
        return x
    return jax.lax.fori_loop(0, nesting, lambda _, x: f + multiply(g, x), f)


def _scale(matrix: Array, magnitude: Array) -> Array:
    """Size of every diagonal entry: what was added to it, or its largest coupling if that is nothing."""
    largest = jnp.max(jnp.abs(matrix), axis=2, initial=0.0)
    return jnp.where(magnitude > 0, magnitude, jnp.where(largest > 0, largest, 1.0))


def _invert(shape: FrontShape, block: Array, scale: Array, eps: float) -> tuple[Array, Array, Array]:
    """K⁻¹ by sweeps, pairs first: (inverse, 1×1 pivots, 2×2 pivots).

    A sweep on the pivot P maps K_PP to -P⁻¹, K_PR to P⁻¹K_PR and K_RR to its Schur complement; after all sweeps -K⁻¹ is
    left. Every sweep is one elementwise operation on the whole batch. A pivot that is no more than rounding is set to
    √eps of the magnitude it came from, where the change and the growth it causes do equal harm.
    """
    m, dtype = shape.m, block.dtype
    width = block.shape[0]
    index = jnp.arange(shape.q)

    def take(matrix: Array, i: Array) -> Array:
        return jax.lax.dynamic_index_in_dim(matrix, i, 1, keepdims=False)

    def sweep_pair(carry: _Sweeping, i: Array) -> tuple[_Sweeping, Array]:
        matrix, scale = carry
        u, v = take(matrix, i), take(matrix, m + i)
        a, b, c = (take(u, i)[:, None], take(v, i)[:, None], take(v, m + i)[:, None])
        # The determinant has no units: x_v and λ_v have inverse ones, and -1 is always part of b.
        size = (take(scale, i) * take(scale, m + i))[:, None] + 1 + b**2
        tiny = ~(jnp.abs(a * c - b * b) > eps**0.7 * size)
        other = jnp.sqrt(jnp.maximum(a * c + eps**0.5 * size, 0.0))
        b = jnp.where(tiny, jnp.where(b < 0, -other, other), b)
        det = a * c - b * b
        first, second = (c * u - b * v) / det, (a * v - b * u) / det
        is_i, is_j = index == i, index == m + i
        scale = scale + jnp.abs(u * first) + jnp.abs(v * second)
        rest = matrix - u[:, :, None] * first[:, None, :] - v[:, :, None] * second[:, None, :]
        first = jnp.where(is_i, -c / det, jnp.where(is_j, b / det, first))
        second = jnp.where(is_i, b / det, jnp.where(is_j, -a / det, second))
        return (_put(_put(rest, second, is_j), first, is_i), scale), jnp.concatenate([a, b, c], axis=1)

    def sweep(carry: _Sweeping, i: Array) -> tuple[_Sweeping, Array]:
        matrix, scale = carry
        u = take(matrix, i)
        d, size = take(u, i)[:, None], take(scale, i)[:, None]
        tiny = ~(jnp.abs(d) > eps**0.7 * size)
        d = jnp.where(tiny, jnp.where(d < 0, -size, size) * eps**0.5, d)
        row = u / d
        scale = scale + jnp.abs(u * row)
        rest = matrix - u[:, :, None] * row[:, None, :]
        return (_put(rest, jnp.where(index == i, -1 / d, row), index == i), scale), d[:, 0]

    carry = (block, scale)
    pair, single = jnp.zeros((0, width, 3), dtype), jnp.zeros((0, width), dtype)
    if m:
        carry, pair = _repeat(sweep_pair, carry, range(m))
    if shape.k:
        carry, single = _repeat(sweep, carry, range(2 * m, shape.q))
    return -carry[0], single.T, jnp.swapaxes(pair, 0, 1)


def _repeat(
    sweep: Callable[[_Sweeping, Array], tuple[_Sweeping, Array]], carry: _Sweeping, pivots: range
) -> tuple[_Sweeping, Array]:
    """Sweep on one pivot after the other.

    A GPU spends as long on the counters and copies of a loop as on a sweep of small fronts, so short loops are
    written out; a CPU gains nothing, and compiles for longer.
    """
    if len(pivots) > (_WRITTEN_OUT if jax.default_backend() != "cpu" else 1):
        return jax.lax.scan(sweep, carry, jnp.arange(pivots.start, pivots.stop))
    found = []
    for i in pivots:
        carry, one = sweep(carry, jnp.asarray(i))
        found.append(one)
    return carry, jnp.stack(found)


def _put(matrix: Array, row: Array, here: Array) -> Array:
    """Replace one row and the same column of a symmetric matrix."""
    matrix = jnp.where(here[None, None, :], row[:, :, None], matrix)
    return jnp.where(here[None, :, None], row[:, None, :], matrix)
