"""The trust-region subproblem from products H·v: Lanczos, and the exact solution in the space that it spans.

With S = diag(size of the rows of H)^(-1/2) the ball is ‖S⁻¹p‖ ≤ Δ. Lanczos on SHS from Sg gives SHS ≈ QTQᵀ with T
tridiagonal, and the subproblem in y, p = SQy, has k variables (GLTR). The vectors are kept, and made orthogonal to
each other anew whenever they are about to lose that (Simon's partial reorthogonalisation), so that T stays true. The
small problem is solved now and then only, by elimination of T + μI for many μ at once. Where the vectors fill their
memory and the Newton step is inside of the ball, conjugate gradients go on from there, which need no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.kkt import LocalModels
from gnewt.newton.loop import Task
from gnewt.newton.subproblem import BallStep, Spectrum

_FEW = 48
_MOST = 512
_NUMBERS = 20_000_000
"""Limits on the number of Lanczos vectors (most steps need few, and a small memory is cheaper to set up), and on the
memory that they take."""
_BLOCK = 16
"""Lanczos vectors that a new one is made orthogonal to at a time."""
_SHIFTS = 31
"""Shifts of T that are tried at a time."""
_TIGHT, _LOOSE = 0.03, 0.1
"""Bounds on the share of the gradient that the residual may keep: less costs products, more costs steps."""
_SPANNED = 10
"""Roundings of T: a next vector shorter than that is noise, and the space holds the solution."""
_ABOVE = 1.01
"""How far above its bound, by Gershgorin's circles, the largest shift is, so that rounding does not matter."""
_FILLED, _ROUNDS = 0.9, 9
"""A shift is good enough where ‖y‖ is this share of the radius; rounds (each divides the bracket by 32) at most."""
_SHARPEN = 3
"""Steps of inverse iteration towards the lowest eigenvector of T."""
_FARTHEST = 1e3
"""How many times farther than Lanczos conjugate gradients go, where no radius is known yet."""
_TURNS = 4
"""Conjugate gradients take at most so many times N steps: exact ones would take N."""

Product = Callable[[Array], Array]


class _Lanczos(NamedTuple):
    basis: Float[Array, "rows n"]
    diagonal: Float[Array, " most"]
    beside: Float[Array, " most"]
    lost: Float[Array, "2 most"]
    """Estimates of q·qⱼ for the newest vector q and the one before it, all j."""
    again: Bool[Array, ""]
    """The next vector is made orthogonal, too."""
    size: Int[Array, ""]
    """Number of vectors that T is known for."""
    small: _Small
    done: Bool[Array, ""]
    full: Bool[Array, ""]
    """The memory was full before the problem was solved."""


class _Small(NamedTuple):
    """A solution of the small task."""

    y: Float[Array, " most"]
    shift: Float[Array, ""]
    decrease: Float[Array, ""]


class _Ball(NamedTuple):
    """The subproblem in the scaled variables."""

    gradient: Float[Array, " n"]
    size: Float[Array, ""]
    """‖gradient‖."""
    radius: Float[Array, ""]
    reach: Float[Array, ""]
    share: Float[Array, ""]
    """The residual may be so much of the gradient."""


def solve_with_products(
    task: Task, x: Array, models: LocalModels, radius: Array, reach: Array, spectrum: Spectrum
) -> BallStep:
    """Solve until the residual is a small share of the gradient: √‖g‖∞, within bounds.

    Args:
        reach: length up to which the Newton step is taken where no negative curvature was met.
    """
    n = task.size
    most = max(1, min(n, _MOST, max(10, _NUMBERS // n)))
    scale = 1.0 / jnp.sqrt(models.sources)
    gradient = scale * task.gradient(models)
    share = jnp.clip(jnp.sqrt(jnp.max(jnp.abs(task.gradient(models)))), _TIGHT, _LOOSE)
    ball = _Ball(gradient, jnp.linalg.norm(gradient), radius, reach, share)
    product = task.products_at(x)

    def multiply(v: Array) -> Array:
        return scale * product(scale * v)

    few = _lanczos(multiply, ball, _begin(ball, min(most, _FEW)))

    def more() -> tuple[Array, Array, Array]:
        return _finish(multiply, ball, _lanczos(multiply, ball, _grow(few, _begin(ball, most))))

    def enough() -> tuple[Array, Array, Array]:
        return _finish(multiply, ball, few)

    p, shift, decrease = jax.lax.cond(few.full, more, enough) if most > _FEW else enough()
    length, zero = jnp.linalg.norm(p), jnp.zeros((), jnp.int32)
    return BallStep(scale * p, shift, decrease, decrease > 0, spectrum, zero, length)


def _begin(ball: _Ball, most: int) -> _Lanczos:
    n, dtype = ball.gradient.size, ball.gradient.dtype
    zero, empty, count, no = (
        jnp.zeros((), dtype),
        jnp.zeros(most, dtype),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )
    first = ball.gradient / jnp.maximum(ball.size, jnp.finfo(dtype).tiny)
    basis = jnp.zeros((_rows(most), n), dtype).at[0].set(first)
    small = _Small(empty, zero, zero - jnp.inf)
    return _Lanczos(basis, empty, empty, jnp.zeros((2, most), dtype), no, count, small, no, no)


def _rows(most: int) -> int:
    """Room for the vectors and the one behind the last, in whole blocks."""
    return -(-(most + 1) // _BLOCK) * _BLOCK


def _grow(s: _Lanczos, empty: _Lanczos) -> _Lanczos:
    """Go on with the memory of a larger empty one."""

    def pad(old: Array, new: Array) -> Array:
        return jnp.pad(old, [(0, more - few) for few, more in zip(old.shape, new.shape, strict=True)])

    return jax.tree.map(pad, s, empty)._replace(done=empty.done, full=empty.full)


def _lanczos(multiply: Product, ball: _Ball, begin: _Lanczos) -> _Lanczos:
    """Span a space that holds a good enough solution, or fill the memory."""
    most, dtype = len(begin.diagonal), begin.diagonal.dtype
    tiny, eps = jnp.finfo(dtype).tiny, jnp.finfo(dtype).eps

    def extend(s: _Lanczos) -> _Lanczos:
        at, k = s.size, s.size + 1
        q, before = s.basis[at], jnp.maximum(at - 1, 0)
        w = multiply(q)
        diagonal = s.diagonal.at[at].set(jnp.vdot(q, w))
        w = w - diagonal[at] * q - jnp.where(at > 0, s.beside[before], 0.0) * s.basis[before]
        lost = _estimate(s.lost, diagonal, s.beside, at, jnp.linalg.norm(w))
        due = s.again | (jnp.max(jnp.where(jnp.arange(most) < at, jnp.abs(lost[0]), 0.0)) > jnp.sqrt(eps))
        w = jax.lax.cond(due, lambda: _remove(s.basis, k, w), lambda: w)
        lost = lost.at[0].set(jnp.where(due, eps, lost[0]))
        beta = jnp.linalg.norm(w)
        spanned = ~(beta > _SPANNED * eps * jnp.max(jnp.abs(diagonal)))
        ended = spanned | (k == most)
        basis = s.basis.at[k].set(jnp.where(spanned, 0.0, w / jnp.maximum(beta, tiny)))
        # The longer T is, the less often it is worth a look.
        looks = ended | (k % jnp.maximum(1, _power_of_two_below(k) // 4) == 0)
        small = jax.lax.cond(looks, lambda: _solve_tridiagonal(diagonal, s.beside, k, ball), lambda: s.small)
        accurate = looks & (beta * jnp.abs(small.y[at]) <= ball.share * ball.size)
        beside, full = s.beside.at[at].set(beta), ended & ~spanned & ~accurate
        return _Lanczos(basis, diagonal, beside, lost, due & ~s.again, k, small, ended | accurate, full)

    return jax.lax.while_loop(lambda s: ~s.done, extend, begin)


def _estimate(lost: Array, diagonal: Array, beside: Array, at: Array, beta: Array) -> Array:
    """Follow how q·qⱼ grows from rounding, by the recurrence that the vectors themselves obey."""
    most, eps = len(diagonal), jnp.finfo(diagonal.dtype).eps
    j = jnp.arange(most)
    now = jnp.where(j == at, 1.0, lost[0])
    left = jnp.concatenate([jnp.zeros(1, now.dtype), beside[:-1] * now[:-1]])
    right = beside * jnp.concatenate([now[1:], jnp.zeros(1, now.dtype)])
    last = jnp.where(at > 0, beside[jnp.maximum(at - 1, 0)], 0.0)
    grown = right + (diagonal - diagonal[at]) * now + left - last * lost[1]
    noise = 2 * eps * (jnp.max(jnp.abs(diagonal)) + jnp.max(jnp.abs(beside)))
    grown = (grown + jnp.where(grown < 0, -noise, noise)) / jnp.maximum(beta, jnp.finfo(now.dtype).tiny)
    return jnp.stack([jnp.where(j < at, grown, jnp.where(j == at, eps * most, 0.0)), now])


def _finish(multiply: Product, ball: _Ball, s: _Lanczos) -> tuple[Array, Array, Array]:
    """Return (p, shift, decrease); with conjugate gradients where the Newton step needs more vectors than there are."""
    p = _combine(s.basis, s.size, s.small.y)
    goes_on = s.full & (s.small.shift == 0) & (s.small.decrease > 0)
    p, decrease = jax.lax.cond(
        goes_on, lambda: _conjugate_gradients(multiply, ball, s, p), lambda: (p, s.small.decrease)
    )
    return p, s.small.shift, decrease


def _conjugate_gradients(multiply: Product, ball: _Ball, s: _Lanczos, p: Array) -> tuple[Array, Array]:
    """Go on where Lanczos ended: its next step is that of conjugate gradients, along the direction after T⁻¹eₖ."""
    last = jnp.zeros_like(s.diagonal).at[s.size - 1].set(1.0)
    _, t = _eliminate(s.diagonal, s.beside, s.size, jnp.zeros(1, p.dtype), last)
    before = _combine(s.basis, s.size, t[:, 0])
    residual = -ball.gradient - multiply(p)
    pushed = multiply(before)
    direction = residual - jnp.vdot(pushed, residual) / jnp.vdot(pushed, before) * before
    decrease = 0.5 * (jnp.vdot(residual, p) - jnp.vdot(ball.gradient, p))
    reach = jnp.where(jnp.isfinite(ball.reach), ball.reach, _FARTHEST * jnp.linalg.norm(p))

    def step(c: tuple[Array, ...]) -> tuple[Array, ...]:
        p, residual, direction, decrease, _, count = c
        pushed = multiply(direction)
        curvature, slope = jnp.vdot(direction, pushed), jnp.vdot(residual, direction)
        # To the minimum along the direction, or to the boundary.
        along, square = jnp.vdot(p, direction), jnp.vdot(direction, direction)
        room = jnp.maximum(reach**2 - jnp.vdot(p, p), 0.0)
        end = room / jnp.maximum(along + jnp.sqrt(along**2 + square * room), jnp.finfo(p.dtype).tiny)
        length = jnp.where(curvature > 0, slope / curvature, jnp.inf)
        leaves = ~(length < end)
        length = jnp.where(leaves, end, length)
        p = p + length * direction
        rest = residual - length * pushed
        ratio = jnp.vdot(rest, rest) / jnp.vdot(residual, residual)
        gain = length * slope - 0.5 * length**2 * curvature
        good = jnp.linalg.norm(rest) <= ball.share * ball.size
        return p, rest, rest + ratio * direction, decrease + gain, leaves | good, count + 1

    begin = (p, residual, direction, decrease, jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(lambda c: ~c[4] & (c[5] < _TURNS * ball.gradient.size), step, begin)
    return end[0], end[3]


def _combine(basis: Array, count: Array, y: Array) -> Array:
    """Σ yᵢ·qᵢ over the first `count` rows."""
    y = jnp.pad(y, (0, len(basis) - len(y)))

    def block(i: Array, p: Array) -> Array:
        rows = jax.lax.dynamic_slice_in_dim(basis, i * _BLOCK, _BLOCK)
        return p + jax.lax.dynamic_slice_in_dim(y, i * _BLOCK, _BLOCK) @ rows

    return jax.lax.fori_loop(0, (count + _BLOCK - 1) // _BLOCK, block, jnp.zeros_like(basis[0]))


def _remove(basis: Array, count: Array, w: Array) -> Array:
    """Make w orthogonal to the first `count` rows; the others are zero."""

    def block(i: Array, w: Array) -> Array:
        rows = jax.lax.dynamic_slice_in_dim(basis, i * _BLOCK, _BLOCK)
        return w - (rows @ w) @ rows

    return jax.lax.fori_loop(0, (count + _BLOCK - 1) // _BLOCK, block, w)


def _power_of_two_below(k: Array) -> Array:
    return jnp.left_shift(1, 31 - jax.lax.clz(k))


def _solve_tridiagonal(diagonal: Array, beside: Array, count: Array, ball: _Ball) -> _Small:
    """Minimise size·y₁ + ½yᵀTy in the ball, T the leading block of `count` rows."""
    dtype, most = diagonal.dtype, len(diagonal)
    size, radius, reach = ball.size, ball.radius, ball.reach
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
    highest = _ABOVE * (jnp.max(jnp.abs(diagonal)) + 2 * jnp.max(jnp.abs(links)) + size / radius)
    _, shift, _, _ = jax.lax.while_loop(
        lambda s: (s[2] < _FILLED * radius) & (s[3] < _ROUNDS),
        narrow,
        (zero, highest, zero, jnp.zeros((), jnp.int32)),
    )
    definite, both, lengths = solve(jnp.stack([zero, shift]), first)
    takes_newton = definite[0] & (lengths[0] <= reach)
    on_ball = both[:, 1]
    # What is missing to the boundary (in the nearly hard case no shift gives it) goes along the lowest eigenvector.

    def sharpen(_: Array, z: Array) -> Array:
        z = solve(shift[None], z)[1][:, 0]
        return z / jnp.maximum(jnp.linalg.norm(z), jnp.finfo(dtype).tiny)

    z = jax.lax.fori_loop(0, _SHARPEN, sharpen, on_ball)
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

    def down(i: Array, s: tuple[Array, ...]) -> tuple[Array, ...]:
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

    def up(j: Array, y: Array) -> Array:
        i = count - 1 - j
        return y.at[i].set((known[i] - links[i] * y[i + 1]) / pivots[i])

    return definite, jax.lax.fori_loop(0, count, up, empty)[:most]
