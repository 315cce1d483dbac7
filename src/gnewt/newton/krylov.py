"""The trust-region subproblem from products H·v: Lanczos, and the exact solution in the space that it spans.

With S = diag(size of the rows of H)^(-1/2) the ball is ‖S⁻¹p‖ ≤ Δ. Lanczos on SHS from Sg gives SHS ≈ QTQᵀ with T
tridiagonal, and the subproblem in y, p = SQy, has k variables: it is solved by the eigenvalues of T (GLTR). The
vectors are kept and orthogonalised against each other, so that T stays true.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gnewt.kkt import LocalModels
from gnewt.newton.loop import Problem
from gnewt.newton.subproblem import Solution, Spectrum

_MOST = 100
_NUMBERS = 20_000_000
"""Limits on the number of Lanczos vectors, and on the memory that they take."""


class _Lanczos(NamedTuple):
    basis: Array
    diagonal: Array
    beside: Array
    count: Array
    y: Array
    shift: Array
    decrease: Array
    done: Array


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

    def extend(s: _Lanczos) -> _Lanczos:
        q = s.basis[s.count]
        w = scale * problem.product(x, scale * q)
        diagonal = s.diagonal.at[s.count].set(jnp.vdot(q, w))
        for _ in range(2):  # twice is enough
            w = w - s.basis.T @ (s.basis @ w)
        beta = jnp.linalg.norm(w)
        ended = ~(beta > 10 * eps * jnp.max(jnp.abs(diagonal)))
        basis = s.basis.at[s.count + 1].set(jnp.where(ended, 0.0, w / jnp.maximum(beta, tiny)))
        y, shift, decrease = _solve_tridiagonal(diagonal, s.beside, s.count + 1, size, radius, reach)
        small = beta * jnp.abs(y[s.count]) <= share * size
        return _Lanczos(
            basis,
            diagonal,
            s.beside.at[s.count].set(beta),
            s.count + 1,
            y,
            shift,
            decrease,
            ended | small,
        )

    zero = jnp.zeros((), dtype)
    begin = _Lanczos(
        jnp.zeros((most + 1, n), dtype).at[0].set(gradient / jnp.maximum(size, tiny)),
        jnp.zeros(most, dtype),
        jnp.zeros(most, dtype),
        jnp.zeros((), jnp.int32),
        jnp.zeros(most, dtype),
        zero,
        zero - jnp.inf,
        jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(lambda s: ~s.done & (s.count < most), extend, begin)
    step = scale * (end.basis[:most].T @ end.y)
    length = jnp.linalg.norm(end.y)
    return Solution(step, end.shift, end.decrease, end.decrease > 0, spectrum, zero.astype(jnp.int32), length)


def _solve_tridiagonal(
    diagonal: Array, beside: Array, count: Array, size: Array, radius: Array, reach: Array
) -> tuple[Array, Array, Array]:
    """Return (y, μ, predicted decrease) of min size·y₁ + ½yᵀTy in the ball, T the leading block of `count` rows."""
    most = len(diagonal)
    inside = jnp.arange(most) < count
    large = 1.0 + 4 * jnp.max(jnp.abs(diagonal)) + 4 * jnp.max(jnp.abs(beside))
    links = jnp.where(inside[1:], beside[: most - 1], 0.0)
    matrix = jnp.diag(jnp.where(inside, diagonal, large)) + jnp.diag(links, 1) + jnp.diag(links, -1)
    values, vectors = jnp.linalg.eigh(matrix)
    c = size * vectors[0]
    top = jnp.maximum(jnp.max(jnp.abs(values)), jnp.finfo(values.dtype).tiny)
    floor = jnp.finfo(values.dtype).eps * top

    def parts(shift: Array) -> Array:
        return -c / jnp.maximum(values + shift, floor)

    newton = parts(jnp.zeros(()))
    takes_newton = (values[0] > floor) & (jnp.linalg.norm(newton) <= reach)
    low = jnp.maximum(0.0, -values[0])

    def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = bracket
        middle = 0.5 * (a + b)
        long = jnp.linalg.norm(parts(middle)) > radius
        return jnp.where(long, middle, a), jnp.where(long, b, middle)

    _, shift = jax.lax.fori_loop(0, 60, halve, (low, low + size / radius))
    on_ball = parts(shift)
    # The part along the lowest eigenvector fills the ball: in the (nearly) hard case the equation cannot.
    room = jnp.sqrt(jnp.maximum(radius**2 - jnp.sum(on_ball[1:] ** 2), 0.0))
    on_ball = on_ball.at[0].set(jnp.where(c[0] > 0, -room, room))
    z = jnp.where(takes_newton, newton, on_ball)
    decrease = -(jnp.vdot(c, z) + 0.5 * jnp.vdot(values, z**2))
    return vectors @ z, jnp.where(takes_newton, 0.0, shift), decrease
