"""The trust-region subproblem from products H·v: Lanczos, and the exact solution in the space that it spans.

With S = diag(size of the rows of H)^(-1/2) the ball is ‖S⁻¹p‖ ≤ Δ. Lanczos on SHS from Sg gives SHS ≈ QTQᵀ with T
tridiagonal, and the subproblem in y, p = SQy, has k variables (GLTR). The vectors are kept and orthogonalised against
each other, so that T stays true. The small problem is solved now and then only, by elimination of T + μI for many μ
at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.kkt import LocalModels
from gnewt.newton.loop import Problem
from gnewt.newton.subproblem import Solution, Spectrum

_MOST = 512
_NUMBERS = 20_000_000
"""Limits on the number of Lanczos vectors, and on the memory that they take."""
_BLOCK = 32
"""Lanczos vectors that a new one is made orthogonal to at a time."""
_SHIFTS = 31
"""Shifts of T that are tried at a time."""


class _Lanczos(NamedTuple):
    basis: Float[Array, "rows n"]
    diagonal: Float[Array, " most"]
    beside: Float[Array, " most"]
    count: Int[Array, ""]
    small: _Small
    done: Bool[Array, ""]


class _Small(NamedTuple):
    """A solution of the small problem."""

    y: Float[Array, " most"]
    shift: Float[Array, ""]
    decrease: Float[Array, ""]


def solve_with_products(
    problem: Problem, x: Array, models: LocalModels, radius: Array, reach: Array, spectrum: Spectrum
) -> Solution:
    """Solve until the residual is a small share of the gradient: √‖g‖∞, at most a tenth.

    Args:
        reach: length up to which the Newton step is taken where no negative curvature was met.
    """
    n, dtype = problem.size, x.dtype
    most = max(1, min(n, _MOST, max(10, _NUMBERS // n)))
    scale = 1.0 / jnp.sqrt(models.sources)
    gradient = scale * problem.gradient(models)
    size = jnp.linalg.norm(gradient)
    tiny, eps = jnp.finfo(dtype).tiny, jnp.finfo(dtype).eps
    share = jnp.minimum(0.1, jnp.sqrt(jnp.max(jnp.abs(problem.gradient(models)))))
    multiply = problem.products_at(x)

    def extend(s: _Lanczos) -> _Lanczos:
        q, k = s.basis[s.count], s.count + 1
        w = scale * multiply(scale * q)
        diagonal = s.diagonal.at[s.count].set(jnp.vdot(q, w))
        before = jnp.maximum(s.count - 1, 0)
        w = w - diagonal[s.count] * q - jnp.where(s.count > 0, s.beside[before], 0.0) * s.basis[before]
        w = _remove(s.basis, k, w)
        beta = jnp.linalg.norm(w)
        ended = ~(beta > 10 * eps * jnp.max(jnp.abs(diagonal))) | (k == most)
        basis = s.basis.at[k].set(jnp.where(ended, 0.0, w / jnp.maximum(beta, tiny)))
        # The longer T is, the less often it is worth a look.
        due = ended | (k % jnp.maximum(1, _power_of_two_below(k) // 4) == 0)
        small = jax.lax.cond(
            due, lambda: _solve_tridiagonal(diagonal, s.beside, k, size, radius, reach), lambda: s.small
        )
        accurate = due & (beta * jnp.abs(small.y[s.count]) <= share * size)
        return _Lanczos(basis, diagonal, s.beside.at[s.count].set(beta), k, small, ended | accurate)

    zero = jnp.zeros((), dtype)
    rows = -(-(most + 1) // _BLOCK) * _BLOCK
    begin = _Lanczos(
        jnp.zeros((rows, n), dtype).at[0].set(gradient / jnp.maximum(size, tiny)),
        jnp.zeros(most, dtype),
        jnp.zeros(most, dtype),
        jnp.zeros((), jnp.int32),
        _Small(jnp.zeros(most, dtype), zero, zero - jnp.inf),
        jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(lambda s: ~s.done, extend, begin)
    y, shift, decrease = end.small
    step = scale * (end.basis[:most].T @ y)
    length = jnp.linalg.norm(y)
    return Solution(step, shift, decrease, decrease > 0, spectrum, zero.astype(jnp.int32), length)


def _remove(basis: Array, count: Array, w: Array) -> Array:
    """Make w orthogonal to the first `count` rows; the others are zero."""

    def block(i: Any, w: Array) -> Array:
        rows = jax.lax.dynamic_slice_in_dim(basis, i * _BLOCK, _BLOCK)
        return w - (rows @ w) @ rows

    return jax.lax.fori_loop(0, (count + _BLOCK - 1) // _BLOCK, block, w)


def _power_of_two_below(k: Array) -> Array:
    return jnp.left_shift(1, 31 - jax.lax.clz(k))


def _solve_tridiagonal(
    diagonal: Array, beside: Array, count: Array, size: Array, radius: Array, reach: Array
) -> _Small:
    """Minimise size·y₁ + ½yᵀTy in the ball, T the leading block of `count` rows."""
    dtype, most = diagonal.dtype, len(diagonal)
    inside = jnp.arange(most) < count
    links = jnp.where(jnp.arange(most) < count - 1, beside, 0.0)
    diagonal = jnp.where(inside, diagonal, 0.0)
    first = jnp.zeros(most, dtype).at[0].set(-size)
    shares = jnp.arange(1, _SHIFTS + 1, dtype=dtype) / (_SHIFTS + 1)

    def solve(shifts: Array, rhs: Array) -> tuple[Array, Array, Array]:
        definite, y = _eliminate(diagonal, links, count, shifts, rhs)
        return definite, y, jnp.linalg.norm(y, axis=0)

    def narrow(s: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, _, rounds = s
        shifts = low + (high - low) * shares
        definite, _, lengths = solve(shifts, first)
        too_small = jnp.sum(~definite | (lengths > radius))  # the first so many
        edges = jnp.concatenate([low[None], shifts, high[None]])
        known = jnp.concatenate([jnp.zeros(2, dtype), lengths, s[2][None]])[too_small + 2]
        return edges[too_small], edges[too_small + 1], known, rounds + 1

    zero = jnp.zeros((), dtype)
    # T + μI ⪰ size/Δ there, so that ‖y‖ ≤ Δ.
    highest = 1.01 * (jnp.max(jnp.abs(diagonal)) + 2 * jnp.max(jnp.abs(links)) + size / radius)
    _, shift, _, _ = jax.lax.while_loop(
        lambda s: (s[2] < 0.9 * radius) & (s[3] < 9), narrow, (zero, highest, zero, jnp.zeros((), jnp.int32))
    )
    definite, both, lengths = solve(jnp.stack([zero, shift]), first)
    takes_newton = definite[0] & (lengths[0] <= reach)
    on_ball = both[:, 1]
    # What is missing to the boundary (in the nearly hard case no shift gives it) goes along the lowest eigenvector.
    z = on_ball
    for _ in range(3):
        z = solve(shift[None], z)[1][:, 0]
        z = z / jnp.maximum(jnp.linalg.norm(z), jnp.finfo(dtype).tiny)
    along = jnp.vdot(on_ball, z)
    room = jnp.maximum(radius**2 - jnp.vdot(on_ball, on_ball), 0.0)
    away = jnp.where(along >= 0, 1.0, -1.0) * (jnp.sqrt(along**2 + room) - jnp.abs(along))
    y = jnp.where(takes_newton, both[:, 0], on_ball + away * z)
    y = jnp.where(inside & jnp.isfinite(y), y, 0.0)
    following = jnp.concatenate([y[1:], zero[None]])
    decrease = -(size * y[0] + 0.5 * jnp.vdot(y, diagonal * y) + jnp.vdot(y, links * following))
    return _Small(y, jnp.where(takes_newton, 0.0, shift), decrease)


def _eliminate(
    diagonal: Array, links: Array, count: Array, shifts: Array, rhs: Array
) -> tuple[Bool[Array, " s"], Float[Array, "most s"]]:
    """Solve (T + μI)y = rhs for every shift: whether T + μI ≻ 0, and y, one column for each."""
    most, tiny = len(diagonal), jnp.finfo(diagonal.dtype).tiny
    empty = jnp.zeros((most + 1, len(shifts)), diagonal.dtype)

    def down(i: Any, s: tuple[Array, ...]) -> tuple[Array, ...]:
        pivots, known, pivot, carried, definite = s
        link = jnp.where(i > 0, links[i - 1], 0.0)
        factor = link / pivot
        pivot = diagonal[i] + shifts - link * factor
        carried = rhs[i] - factor * carried
        definite = definite & (pivot > 0)
        pivot = jnp.where(pivot == 0, tiny, pivot)
        return pivots.at[i].set(pivot), known.at[i].set(carried), pivot, carried, definite

    ones = jnp.ones_like(shifts)
    begin = (empty, empty, ones, jnp.zeros_like(shifts), ones > 0)
    pivots, known, _, _, definite = jax.lax.fori_loop(0, count, down, begin)

    def up(j: Any, y: Array) -> Array:
        i = count - 1 - j
        return y.at[i].set((known[i] - links[i] * y[i + 1]) / pivots[i])

    return definite, jax.lax.fori_loop(0, count, up, empty)[:most]
