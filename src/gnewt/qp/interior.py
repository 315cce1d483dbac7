"""The interior point of convex QPs: Mehrotra's predictor and corrector, with proximal terms that keep K quasidefinite.

    minimise ½xᵀQx - bᵀx   subject to   Ax - s = 0,  l ≤ (x, s) ≤ u         equal limits make an equality

One elimination and two or three solves a round. Limits are data: infinite and equal ones are masks, so that a compiled program
serves them all. No line search, no filter: the problem is convex, and both residuals fall by 1 - α.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array, where, while_loop
from gnewt.newton.statuses import Status
from gnewt.qp.saddle import Entries, Saddle

_SWEEPS = 8
"""Of the equilibration."""
_PROXIMAL = 1e-9
"""ρ and δ, where the entries of Q and A are about one: the steps are those of a proximal method of multipliers."""
_DUAL_SHARE = 1e-3
"""δ in units of ρ. Without an interior multipliers are large, and δ is the pace at which they grow."""
_RAISE, _PROXIMAL_MOST = 100.0, 1e-3
_PINNED = 1e20
"""Diagonal of scalars with equal bounds."""
_FREE = 1e20
"""D of rows without a finite limit: their multiplier stays zero."""
_BOUNDARY = 0.995
_REFINEMENTS = 2
_MOST_STEPS = 100
_CLOSE, _WAIT = 1e-7, 8
"""Errors that are accepted where they have not become smaller for so many rounds."""
_PATIENCE, _CENTRED = 3, 0.3
"""After so many rounds without progress a step aims at no less than this share of μ."""
_RAY = 1e-8
"""How well a ray must satisfy the conditions of a certificate."""
_ROUNDINGS = 8.0
"""Roundings of a limit that scalars keep away from it."""
_LARGE = 1e5
"""Size of x, where data are about one, from which on its changes are looked at, too."""
_TINY = 1e-30


class Problem(NamedTuple):
    """Numbers of a QP, or of its scaled form."""

    entries: Entries
    b: Array
    lower: Array
    """[n + m]: of (x, s)."""
    upper: Array


class Point(NamedTuple):
    v: Array
    """(x, s)"""
    y: Array
    """Multipliers of Ax - s = 0."""
    lower: Array
    """Multipliers of the limits of v, zero where there is none."""
    upper: Array


class State(NamedTuple):
    at: Point
    best: Point
    error: Array
    """Of the best point."""
    waited: Array
    step: Array
    proximal: Array
    """ρ and δ: raised where an elimination gave no finite step."""
    code: Array


class Scaling(NamedTuple):
    column: Array
    row: Array
    cost: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Interior:
    """A QP in scaled numbers."""

    saddle: Saddle
    p: Problem
    sources: Array
    tol: Array | float

    @property
    def xp(self) -> Any:
        traced = any(isinstance(v, Tracer) for v in (self.p.b, self.p.lower, self.p.upper, self.sources))
        return jnp if traced else np

    @property
    def least(self) -> Array:
        """The usual ρ and δ; in single precision they must stand out from its rounding."""
        return self.xp.asarray(max(_PROXIMAL, float(jnp.finfo(self.p.b.dtype).eps)), self.p.b.dtype)

    @property
    def n(self) -> int:
        return self.saddle.num_scalars

    # What is limited, by which numbers

    @property
    def pinned(self) -> Array:
        return self.p.lower >= self.p.upper

    def has(self) -> tuple[Array, Array]:
        xp = self.xp
        return xp.isfinite(self.p.lower) & ~self.pinned, xp.isfinite(self.p.upper) & ~self.pinned

    def gaps(self, v: Array) -> tuple[Array, Array]:
        """Distances to the limits; 1 where there is none."""
        has, xp = self.has(), self.xp
        return xp.where(has[0], v - self.p.lower, 1.0), xp.where(has[1], self.p.upper - v, 1.0)

    # Residuals

    def stationarity(self, at: Point) -> Array:
        """∇L over (x, s); zero at pinned scalars, whose multiplier makes it so."""
        x, xp = at.v[: self.n], self.xp
        of_x = self.saddle.product(self.p.entries, x) - self.p.b + self.saddle.columns(self.p.entries, at.y)
        whole = xp.concatenate([of_x, -at.y]) - at.lower + at.upper
        return xp.where(self.pinned, 0.0, whole)

    def feasibility(self, at: Point) -> Array:
        """Ax - s."""
        return self.saddle.rows(self.p.entries, at.v[: self.n]) - at.v[self.n :]

    def mean(self, at: Point) -> Array:
        """μ"""
        xp, (low, up), has = self.xp, self.gaps(at.v), self.has()
        total = xp.sum(xp.where(has[0], low * at.lower, 0.0)) + xp.sum(xp.where(has[1], up * at.upper, 0.0))
        return total / xp.maximum(xp.sum(has[0]) + xp.sum(has[1]), 1)

    def error(self, at: Point) -> Array:
        """Largest of the primal and dual residuals and the gap, each beside what it is the difference of."""
        xp, e = self.xp, self.p.entries
        x = at.v[: self.n]
        qx, ax, ay = self.saddle.product(e, x), self.saddle.rows(e, x), self.saddle.columns(e, at.y)
        primal = _size(xp, self.feasibility(at)) / (1 + xp.maximum(_size(xp, ax), _size(xp, at.v[self.n :])))
        beside = xp.maximum(xp.maximum(_size(xp, qx), _size(xp, ay)), _size(xp, self.p.b))
        dual = _size(xp, self.stationarity(at)) / (1 + beside)
        has, (low, up) = self.has(), self.gaps(at.v)
        gap = xp.sum(xp.where(has[0], low * at.lower, 0.0)) + xp.sum(xp.where(has[1], up * at.upper, 0.0))
        value = 0.5 * xp.sum(x * qx) - xp.sum(self.p.b * x)
        return xp.maximum(xp.maximum(primal, dual), gap / (1 + xp.abs(value)))

    # Steps

    def begin(self) -> Point:
        """Solve a well-conditioned problem of the same shape, and move its solution inside the limits."""
        xp, n, has, p = self.xp, self.n, self.has(), self.p
        one = xp.ones(len(p.lower), p.b.dtype)
        near = xp.where(xp.isfinite(p.lower), p.lower, xp.where(xp.isfinite(p.upper), p.upper, 0.0))
        diagonal = xp.concatenate([xp.where(self.pinned[:n], _PINNED, 1.0), -one[n:]])
        rhs = xp.concatenate([p.b, near[n:]])
        solution, _ = self.saddle.factor(self.sources, diagonal, rhs)
        x = xp.where(self.pinned[:n], near[:n], solution[:n])
        v = xp.concatenate([x, self.saddle.rows(p.entries, x)])
        width = xp.where(has[0] & has[1], p.upper - p.lower, np.inf)
        push = xp.minimum(1.0, 0.25 * width)
        v = xp.where(has[0], xp.maximum(v, p.lower + push), v)
        v = xp.where(has[1], xp.minimum(v, p.upper - push), v)
        v = xp.where(self.pinned, p.lower, v)
        return Point(v, solution[n:] * 0, xp.where(has[0], one, 0.0), xp.where(has[1], one, 0.0))

    def _inside(self, v: Array) -> Array:
        """Keep distances above the rounding of their limits: a step may end on a limit where it should end next to it."""
        xp, has, p = self.xp, self.has(), self.p
        width = xp.where(has[0] & has[1], p.upper - p.lower, np.inf)
        unit = _ROUNDINGS * float(jnp.finfo(v.dtype).eps)
        low = xp.minimum(unit * xp.maximum(1.0, xp.abs(p.lower)), 0.25 * width)
        up = xp.minimum(unit * xp.maximum(1.0, xp.abs(p.upper)), 0.25 * width)
        v = xp.where(has[0], xp.maximum(v, p.lower + low), v)
        return xp.where(has[1], xp.minimum(v, p.upper - up), v)

    def advance(self, st: State) -> State:
        """One predictor and one corrector."""
        xp, at, has = self.xp, st.at, self.has()
        mu = self.mean(at)
        factor = self._factor(at, st.proximal)
        none = 0 * at.v
        guess = self._direction(at, factor, 0 * mu, (none, none))
        reach = self._longest(at, guess, 1.0)
        there = Point(*(a + reach * d for a, d in zip(at, guess, strict=True)))
        share = (self.mean(there) / xp.maximum(mu, _TINY)) ** 3
        # Predictor and corrector may go round in a cycle. A step without the second-order term that also centres leaves it.
        cycles = st.waited >= _PATIENCE
        share = xp.where(cycles, xp.maximum(share, _CENTRED), share)
        curves = xp.where(cycles, 0.0, 1.0)
        second = (
            xp.where(has[0], curves * guess.v * guess.lower, 0.0),
            xp.where(has[1], -curves * guess.v * guess.upper, 0.0),
        )
        step = self._direction(at, factor, xp.clip(share, 0.0, 1.0) * mu, second)
        length = self._longest(at, step, _BOUNDARY)
        new = Point(*(a + length * d for a, d in zip(at, step, strict=True)))
        new = new._replace(v=self._inside(new.v))
        return self._judge(st, new)

    def _factor(self, at: Point, proximal: Array) -> tuple[Any, Array, Array]:
        """K at the present Σ; with Σ of the slacks."""
        xp, n = self.xp, self.n
        low, up = self.gaps(at.v)
        sigma = at.lower / low + at.upper / up
        of_x = xp.where(self.pinned[:n], _PINNED, sigma[:n] + proximal)
        has = self.has()
        limited = (has[0] | has[1])[n:]
        soft = xp.where(limited, 1 / xp.maximum(sigma[n:], 1 / _FREE), xp.where(self.pinned[n:], 0.0, _FREE))
        diagonal = xp.concatenate(
            [of_x, -(soft + xp.maximum(_DUAL_SHARE * proximal, 10 * jnp.finfo(soft.dtype).eps))]
        )
        rhs = xp.concatenate([self.p.b, 0 * soft])
        _, factor = self.saddle.factor(self.sources, diagonal, rhs)
        return factor, diagonal, sigma

    def _direction(
        self, at: Point, factor: tuple[Any, Array, Array], mu: Array, second: tuple[Array, Array]
    ) -> Point:
        """Solve for one step: complementarity products are to become μ, less what the predictor says of their curvature."""
        xp, n, has = self.xp, self.n, self.has()
        found, diagonal, sigma = factor
        low, up = self.gaps(at.v)
        # z_l becomes (μ - second)/gap - Σ_l dv; z_u likewise.
        want_low = xp.where(has[0], (mu - second[0]) / low - at.lower, 0.0)
        want_up = xp.where(has[1], (mu - second[1]) / up - at.upper, 0.0)
        r_v = self.stationarity(at) - want_low + want_up
        limited = (has[0] | has[1])[n:]
        soft = xp.where(limited, 1 / xp.maximum(sigma[n:], 1 / _FREE), 0.0)
        rhs = -xp.concatenate([r_v[:n], self.feasibility(at) + soft * r_v[n:]])

        def refine(step: Array) -> Array:
            return step + self.saddle.again(found, rhs - self._times(diagonal, step))

        step = repeat(1 + _REFINEMENTS, refine, 0 * rhs, xp is jnp)
        dx, dy = xp.where(self.pinned[:n], 0.0, step[:n]), step[n:]
        ds = xp.where(limited, soft * (dy - r_v[n:]), xp.where(self.pinned[n:], 0.0, self._slide(at, dx)))
        dy = xp.where(limited | self.pinned[n:], dy, -at.y)
        dv = xp.concatenate([dx, ds])
        d_low = xp.where(has[0], want_low - at.lower / low * dv, 0.0)
        d_up = xp.where(has[1], want_up + at.upper / up * dv, 0.0)
        return Point(dv, dy, d_low, d_up)

    def _slide(self, at: Point, dx: Array) -> Array:
        """Slacks of rows without limits follow their rows."""
        return self.saddle.rows(self.p.entries, dx) + self.feasibility(at)

    def _times(self, diagonal: Array, step: Array) -> Array:
        n, e = self.n, self.p.entries
        x, y = step[:n], step[n:]
        top = self.saddle.product(e, x) + self.saddle.columns(e, y)
        return self.xp.concatenate([top, self.saddle.rows(e, x)]) + diagonal * step

    def _longest(self, at: Point, step: Point, share: float) -> Array:
        """The longest step that keeps gaps and multipliers positive."""
        xp, (low, up), has = self.xp, self.gaps(at.v), self.has()
        pairs = (
            (low, step.v, has[0]),
            (up, -step.v, has[1]),
            (at.lower, step.lower, has[0]),
            (at.upper, step.upper, has[1]),
        )
        length = xp.ones((), at.v.dtype)
        for value, change, mine in pairs:
            falls = mine & (change < 0)
            cut = xp.where(falls, share * value / -xp.where(falls, change, -1.0), np.inf)
            length = xp.minimum(length, xp.min(cut, initial=np.inf))
        return length

    # Where the run stands

    def first(self) -> State:
        at, xp = self.begin(), self.xp
        none = xp.zeros((), np.int32)
        ok = xp.all(xp.isfinite(at.v)) & xp.all(xp.isfinite(at.y))
        code = xp.where(ok, int(Status.RUNNING), int(Status.NONFINITE)).astype(np.int32)
        return self._judge(
            State(at, at, xp.asarray(np.inf, at.v.dtype), none, none - 1, self.least, code), at
        )

    def _judge(self, st: State, new: Point) -> State:
        xp = self.xp
        finite = xp.all(xp.isfinite(new.v)) & xp.all(xp.isfinite(new.y))
        at = where(finite, new, st.at)
        error = xp.where(finite, self.error(at), np.inf)
        better = error < 0.9 * st.error
        waited = xp.where(better, 0, st.waited + 1)
        best, least = where(error < st.error, at, st.best), xp.minimum(error, st.error)
        step = st.step + 1
        code = xp.where(step >= _MOST_STEPS, int(Status.MAX_STEPS), int(Status.RUNNING))
        proximal = xp.where(finite, xp.maximum(self.least, 0.1 * st.proximal), _RAISE * st.proximal)
        stuck = (waited >= _WAIT) | (proximal > _PROXIMAL_MOST)
        code = xp.where(stuck & (least <= _CLOSE), int(Status.STALLED), code)
        code = xp.where((proximal > _PROXIMAL_MOST) & (least > _CLOSE), int(Status.NO_DECREASE), code)
        code = xp.where(finite & self._falls(st.at, at), int(Status.UNBOUNDED), code)
        code = xp.where(finite & self._is_infeasible(at), int(Status.INFEASIBLE), code)
        code = xp.where(least <= self.tol, int(Status.CONVERGED), code)
        code = xp.where(st.code == Status.RUNNING, code, st.code)
        return State(at, best, least, waited.astype(np.int32), step, proximal, code.astype(np.int32))

    def _is_infeasible(self, at: Point) -> Array:
        """Farkas: multipliers whose combination of rows and limits reads 0 ≤ a negative number."""
        xp, n, has, p = self.xp, self.n, self.has(), self.p
        pinned = self.pinned
        combined = self.saddle.columns(p.entries, at.y) + (at.upper - at.lower)[:n]
        rest = xp.where(pinned[:n], -combined, 0.0)  # multipliers of pinned scalars
        ends = xp.sum(xp.where(pinned[n:], at.y * xp.where(pinned[n:], p.lower[n:], 0.0), 0.0))
        ends = ends + xp.sum(rest * xp.where(pinned[:n], p.lower[:n], 0.0))
        ends = ends + xp.sum(xp.where(has[1], at.upper * xp.where(has[1], p.upper, 0.0), 0.0))
        ends = ends - xp.sum(xp.where(has[0], at.lower * xp.where(has[0], p.lower, 0.0), 0.0))
        left = xp.maximum(_size(xp, xp.where(pinned[:n], 0.0, combined)), self._split(at))
        return (ends < 0) & (left <= _RAY * -ends)

    def _split(self, at: Point) -> Array:
        """How far multipliers of rows are from those of their limits."""
        n = self.n
        return _size(self.xp, self.xp.where(self.pinned[n:], 0.0, at.y + (at.lower - at.upper)[n:]))

    def _falls(self, old: Point, new: Point) -> Array:
        """Whether x, or the last change of a large x, is a direction along which the cost falls without end."""
        n = self.n
        far = _size(self.xp, new.v[:n]) > _LARGE
        return self._is_ray(new.v[:n]) | (far & self._is_ray(new.v[:n] - old.v[:n]))

    def _is_ray(self, x: Array) -> Array:
        """Whether nothing limits the fall of a linear cost along x."""
        xp, p = self.xp, self.p
        fall = xp.sum(p.b * x)
        slides = xp.concatenate([x, self.saddle.rows(p.entries, x)])
        down = xp.where(xp.isfinite(p.lower), xp.maximum(-slides, 0.0), 0.0)
        over = xp.where(xp.isfinite(p.upper), xp.maximum(slides, 0.0), 0.0)
        left = xp.maximum(
            _size(xp, self.saddle.product(p.entries, x)), xp.maximum(_size(xp, down), _size(xp, over))
        )
        return (fall > 0) & (left <= _RAY * fall)

    def run(self) -> State:
        return while_loop(lambda st: st.code == Status.RUNNING, self.advance, self.first())


def _size(xp: Any, a: Array) -> Array:
    return xp.max(xp.abs(a), initial=0.0)


def equilibrate_saddle(saddle: Saddle, p: Problem) -> tuple[Problem, Scaling]:
    """Scale rows and columns of K towards largest entries of one, by powers of two; and the cost."""
    traced = any(isinstance(v, Tracer) for v in (p.b, p.lower, p.upper, *p.entries))
    xp = jnp if traced else np
    column = xp.ones(saddle.num_scalars, p.b.dtype)
    row = xp.ones(saddle.num_rows, p.b.dtype)

    def sweep(at: tuple[Array, Array]) -> tuple[Array, Array]:
        columns, rows = saddle.largest(saddle.scaled(p.entries, *at))
        return at[0] * _inverse_root(xp, columns), at[1] * _inverse_root(xp, rows)

    column, row = repeat(_SWEEPS, sweep, (column, row), traced)
    entries = saddle.scaled(p.entries, column, row)
    biggest = xp.maximum(_size(xp, entries.Q), _size(xp, column * p.b))
    cost = xp.where(biggest > 0, _power(xp, 1 / xp.where(biggest > 0, biggest, 1.0)), 1.0)
    units = xp.concatenate([1 / column, row])
    problem = Problem(
        entries._replace(Q=cost * entries.Q),
        cost * column * p.b,
        _times(xp, units, p.lower),
        _times(xp, units, p.upper),
    )
    return problem, Scaling(column, row, cost)


def _times(xp: Any, unit: Array, limit: Array) -> Array:
    return xp.where(xp.isfinite(limit), unit * xp.where(xp.isfinite(limit), limit, 0.0), limit)


def _power(xp: Any, size: Array) -> Array:
    return xp.exp2(xp.round(xp.log2(size)))


def _inverse_root(xp: Any, size: Array) -> Array:
    return xp.where(size > 0, _power(xp, xp.where(size > 0, size, 1.0) ** -0.5), 1.0)


def solve_interior(saddle: Saddle, p: Problem, tol: Array | float) -> tuple[State, Point, Scaling]:
    """Solve a QP: the final state, and its best point in the user's units."""
    scaled, scale = equilibrate_saddle(saddle, p)
    interior = Interior(saddle, scaled, saddle.sources(scaled.entries), tol)
    st = interior.run()
    xp, n = interior.xp, saddle.num_scalars
    at = where(st.code == Status.INFEASIBLE, st.at, where(st.code == Status.UNBOUNDED, st.at, st.best))
    units = xp.concatenate([scale.column, 1 / scale.row])
    y = at.y * scale.row / scale.cost
    # A row without a lower limit has no negative multiplier, not even one of the size of rounding.
    y = xp.where(xp.isfinite(p.lower[n:]), y, xp.maximum(y, 0.0))
    y = xp.where(xp.isfinite(p.upper[n:]), y, xp.minimum(y, 0.0))
    left = (
        interior.saddle.product(scaled.entries, at.v[:n])
        - scaled.b
        + interior.saddle.columns(scaled.entries, at.y)
    )
    z = xp.where(interior.pinned[:n], -left, (at.upper - at.lower)[:n])
    v = xp.clip(at.v * units, p.lower, p.upper)
    zero = 0 * z
    return st, Point(v, y, zero, z / (scale.column * scale.cost)), scale


def repeat(count: int, body: Callable[[Any], Any], begin: Any, traced: bool) -> Any:
    """Run the body so often; a loop of the compiled program, so that it is compiled once."""
    if traced:
        return jax.lax.fori_loop(0, count, lambda _, at: body(at), begin)
    for _ in range(count):
        begin = body(begin)
    return begin
