"""Nonlinear back-substitution under bounds on the inputs: a primal-dual barrier around the policies of `rollout.py`.

    minimise  f(u) - μ Σ log(u - l) - μ Σ log(b - u)      Q_uu + Σ,  Σ = z_l/(u - l) + z_b/(b - u)

The graph of f gets a loss ½ w u² on every input whose w is zero where f is evaluated. Its Hessians are the last sources: an
elimination finds Σ there, and the gradient of the barrier on the duals of the inputs. A step is a rollout of the policies, cut
where an input would come too close to its bound: every iterate is strictly inside, and nothing is clipped on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._typing import PyTree
from gnewt.graph import Family, Structure
from gnewt.kkt import LocalModels
from gnewt.newton.arithmetic import Array, where
from gnewt.newton.box import Box, BoxDual
from gnewt.newton.causal import CausalElimination, causal_elimination
from gnewt.newton.judge import NOISE, RISE, ROUNDING, Line, Trial, Tried
from gnewt.newton.loop import Task, all_finite, largest_shift
from gnewt.newton.rollout import Rollout, RolloutMemory
from gnewt.newton.statuses import Status

_MU_WARM = 1e-4
"""μ after an earlier run, where multipliers are moderate ..."""
_MODERATE = 100.0
_SHORT, _RAISE, _RAISES = 0.2, 10.0, 6
"""A step that bounds cut to this length raises μ by so much, so many times in a run: the bounds were too close."""
_MU_SHARE, _MU_POWER, _SOLVED = 0.2, 1.5, 10.0
"""μ ← min(0.2μ, μ^1.5) where the error of the barrier problem is at most 10μ."""
_LEAST_CUT = 0.1
"""Share of its length that a step keeps where it is cut at a bound."""
_TAU = 0.99
"""A step leaves at least 1 - τ of the distance to a bound."""
_FAR = 1e10
"""Bound multipliers stay within this factor of μ over the distance."""
_PINNED = 1e30
"""Σ of inputs with equal bounds."""
_RELATIVE = 1e-3
"""Share of the first gradient that scales the tolerance, as without bounds."""
_ENOUGH = 1e-6
"""Error of the conditions that ends a run as `stalled` where rounding lets no step through."""


class BoxRecord(NamedTuple):
    """One round of the history."""

    value: Array
    """f before the step."""
    dual: Array
    """‖∇f - z_l + z_b‖∞ before the step."""
    complementarity: Array
    mu: Array
    shift: Array
    length: Array
    dual_length: Array


class BoxCounts(NamedTuple):
    step: Array
    factorizations: Array
    evaluations: Array
    gradients: Array


class BoxState(NamedTuple):
    """A run between two rounds."""

    models: LocalModels
    """Of f alone."""
    dual: BoxDual
    mu: Array
    memory: RolloutMemory
    counts: BoxCounts
    code: Array
    raises: Array
    """How often μ may still be raised."""
    limit: Array
    """Threshold on the error of the conditions."""
    record: BoxRecord


def with_diagonal(structure: Structure) -> Structure:
    """Append ½ w u² on every input: its Hessians are the last sources. Once per structure."""

    def make() -> Structure:
        inputs = np.arange(structure.num_inputs, dtype=np.int32)[:, None]
        family = Family(_diagonal, inputs, data_axes=(0,), name="bounds")
        return dataclasses.replace(structure, families=(*structure.families, family), data=())

    return structure.memo("with diagonal", make)


def _diagonal(s: jax.Array, w: jax.Array) -> jax.Array:
    return 0.5 * w * s[0] ** 2


@dataclasses.dataclass(frozen=True, eq=False)
class Boxed:
    """A task on a structure `with_diagonal`, with bounds of its inputs. Everything is traceable."""

    task: Task
    rollout: Rollout
    box: Box

    @property
    def sweep(self) -> CausalElimination:
        return causal_elimination(self.task.system)  # type: ignore[arg-type]

    def begin(self, u: Array, tol: Array, dual: BoxDual | None = None, mu: Array | None = None) -> BoxState:
        """Take derivatives at the start, which must be inside the bounds. With multipliers of an earlier run it is centred."""
        task, box = self.task, self.box
        if dual is not None:
            if mu is None:
                largest = jnp.maximum(jnp.max(dual.lower, initial=0.0), jnp.max(dual.upper, initial=0.0))
                mu = _MU_WARM * jnp.maximum(1.0, largest / _MODERATE)
            u, dual = box.centred(u, dual, mu)
        slots = task.system.slots(dataclasses.replace(task.point, x=u))  # type: ignore[union-attr]
        models = task.models(u, slots)
        size = jnp.max(jnp.abs(jnp.where(box.is_pinned, 0.0, self.gradient(models))), initial=0.0)
        one = jnp.ones((), u.dtype)
        low, up = box.gaps(u)
        limit = tol * jnp.maximum(1.0, _RELATIVE * size)
        mu = jnp.maximum(self._unit(models) if mu is None else mu, limit / (_SOLVED + 1))
        if dual is None:
            dual = BoxDual(jnp.where(box.has_lower, mu / low, 0.0), jnp.where(box.has_upper, mu / up, 0.0))
        dual = self._near(dual, u, mu)
        none = jnp.zeros((), jnp.int32)
        code = jnp.where(all_finite(models), int(Status.RUNNING), int(Status.NONFINITE)).astype(jnp.int32)
        memory = RolloutMemory(one * 0, one, one)
        record = BoxRecord(*(one * jnp.nan for _ in BoxRecord._fields))
        counts = BoxCounts(none, none, none + 1, none + 1)
        st = BoxState(models, dual, mu * one, memory, counts, code, none + _RAISES, limit, record)
        return self._lowered(self._ended(st))

    def _unit(self, models: LocalModels) -> Array:
        """A complementarity that the gradient could ask for: the mean of |∇f| times the distance to the closer bound."""
        low, up = self.box.gaps(models.slots[: self.task.size])
        has = jnp.asarray(self.box.has_lower) | jnp.asarray(self.box.has_upper)
        close = jnp.minimum(
            jnp.where(jnp.asarray(self.box.has_lower), low, jnp.inf),
            jnp.where(jnp.asarray(self.box.has_upper), up, jnp.inf),
        )
        products = jnp.where(has, jnp.abs(self.gradient(models)) * close, 0.0)
        return jnp.sum(products) / jnp.maximum(jnp.sum(has), 1)

    def gradient(self, models: LocalModels) -> Array:
        return jnp.asarray(models.duals)[: self.task.size]

    def errors(self, st: BoxState, mu: Array | float) -> tuple[Array, Array]:
        """Errors of the barrier problem's conditions: dual, complementarity."""
        u, box = st.models.slots[: self.task.size], self.box
        low, up = box.gaps(u)
        left = jnp.where(box.is_pinned, 0.0, self.gradient(st.models) - st.dual.lower + st.dual.upper)
        products = (
            jnp.where(box.has_lower, low * st.dual.lower - mu, 0.0),
            jnp.where(box.has_upper, up * st.dual.upper - mu, 0.0),
        )
        return jnp.max(jnp.abs(left), initial=0.0), jnp.max(jnp.abs(jnp.stack(products)), initial=0.0)

    def patched(self, st: BoxState) -> LocalModels:
        """Derivatives of the barrier problem, with Σ in place of the barrier's own curvature."""
        n, box, models = self.task.size, self.box, st.models
        u = models.slots[:n]
        low, up = box.gaps(u)
        sigma = jnp.where(box.is_pinned, _PINNED, st.dual.lower / low + st.dual.upper / up)
        sources = jnp.asarray(models.sources).at[-n:].set(sigma.astype(models.sources.dtype))
        duals = jnp.asarray(models.duals).at[:n].add(st.mu * box.push(u))
        return dataclasses.replace(models, sources=sources, duals=duals)

    def advance(self, st: BoxState) -> BoxState:
        """One round: policies with the least shift that serves, a rollout along them, derivatives there."""
        task, box, n = self.task, self.box, self.task.size
        u = st.models.slots[:n]
        tau = jnp.maximum(_TAU, 1 - st.mu)
        best = self._search(st, tau)
        line, tried = best.line, best.tried
        noise = self._noise(st)
        there = jnp.where(box.is_pinned, u, tried.found[:n])
        after = jax.lax.cond(
            best.good & tried.passed, lambda: task.models(there, tried.found), lambda: st.models
        )
        sane = all_finite(after)
        # Judged by the whole step: bounds cut steps that promise much to lengths that promise nothing.
        drowns = line.promises(1.0) <= noise
        taken = best.good & tried.passed & sane
        dual, length = self._moved(st, there - u, tau)
        new = st._replace(models=after, dual=self._near(dual, there, st.mu))
        # Where the promise is rounding the conditions decide.
        closer = sum(self.errors(new, st.mu)) < sum(self.errors(st, st.mu))
        taken = taken & (~drowns | closer)
        st = self._settled(st, new, best, taken, length, noise)
        return self._lowered(self._ended(st))

    def _search(self, st: BoxState, tau: Array) -> Any:
        """Eliminate until every Q_uu + Σ + μI is positive definite, and shorten along the curve."""
        rollout, sweep, task, box, n = self.rollout, self.sweep, self.task, self.box, self.task.size
        patched, u, data = self.patched(st), st.models.slots[: self.task.size], task.point.data
        before = jnp.asarray(st.models.value) + st.mu * box.barrier(u)
        noise = self._noise(st)

        def attempt(a: _Attempt) -> _Attempt:
            shift, factor, share = rollout._schedule(st.models, a.tries, a.shift, a.factor)
            found, swept = rollout._run(task, sweep, patched, shift, share)
            curve = swept.curve + shift * swept.size if rollout.duals == "adjoint" else swept.curve
            line = Line(before, swept.slope, curve)
            maps = task.system.maps  # type: ignore[union-attr]

            def value(length: Array) -> tuple[Array, Array]:
                f, slots = sweep.follow(maps, data, st.models.slots, found, length)
                fits = box.stays(u, slots[:n], tau)
                return jnp.where(fits, f + st.mu * box.barrier(slots[:n]), jnp.inf), slots

            most = swept.good * jnp.where(share < 1, rollout.max_halvings_without, rollout.max_halvings)
            tried = self._shorten(value, u, line, noise, tau, st.memory.longest, most, st.models.slots)
            count = a.evaluations + tried.evaluations
            return _Attempt(shift, factor, swept.good, line, tried, a.tries + 1, count)

        def goes_on(a: _Attempt) -> Array:
            fails = rollout._leaves_out(a.tries - 1) & ~a.tried.passed & (a.tried.value != -jnp.inf)
            return (~a.good | fails) & (a.shift < largest_shift(st.models))

        nan, no, none = before * jnp.nan, jnp.zeros((), bool), jnp.zeros((), jnp.int32)
        nothing = Tried(st.memory.longest, nan, no, none, jnp.asarray(st.models.slots))
        first = _Attempt(st.memory.shift, st.memory.factor, no, Line(before, nan, nan), nothing, none, none)
        return jax.lax.while_loop(goes_on, attempt, first)

    def _shorten(
        self,
        value: Callable[[Array], tuple[Array, Array]],
        u: Array,
        line: Line,
        noise: Array,
        tau: Array,
        longest: Array,
        most: Array,
        slots: Array,
    ) -> Tried:
        """Shorten a step until it stays inside and f keeps a share of what the model promises.

        Where it leaves the bounds it is cut as a straight line to its end would be, but to a tenth at most: a rollout that
        blows up says nothing about shorter ones. Otherwise it is halved.
        """
        n, share, box = self.task.size, self.rollout.armijo, self.box

        def once(last: tuple[Tried, Array]) -> tuple[Tried, Array]:
            tried, length = last
            there, found = value(length)
            passed = Trial(line.before, there, line.promises(length), noise).passes(share)
            straight = jnp.where(jnp.isfinite(found[:n]), found[:n] - u, 0.0)
            cut = box.longest(u, straight, tau)
            shorter = length * jnp.where(cut < 1, jnp.maximum(cut, _LEAST_CUT), 0.5)
            return Tried(length, there, passed, tried.evaluations + 1, found), shorter

        def goes_on(last: tuple[Tried, Array]) -> Array:
            tried = last[0]
            return ~tried.passed & (tried.value != -jnp.inf) & (tried.evaluations < most)

        nan, no, none = noise * jnp.nan, jnp.zeros((), bool), jnp.zeros((), jnp.int32)
        first = Tried(longest, nan, no, none, jnp.asarray(slots))
        return jax.lax.while_loop(goes_on, once, (first, longest))[0]

    def _noise(self, st: BoxState) -> Array:
        return NOISE * self.task.eps * jnp.maximum(jnp.abs(st.models.value), jnp.finfo(st.mu.dtype).tiny)

    def _moved(self, st: BoxState, step: Array, tau: Array) -> tuple[BoxDual, Array]:
        """Multipliers after a step of the inputs, by the linearised complementarity."""
        low, up = self.box.gaps(st.models.slots[: self.task.size])
        has = self.box.has_lower, self.box.has_upper
        down = jnp.where(has[0], st.mu / low - st.dual.lower - st.dual.lower / low * step, 0.0)
        over = jnp.where(has[1], st.mu / up - st.dual.upper + st.dual.upper / up * step, 0.0)
        length = jnp.ones((), step.dtype)
        for z, dz in zip(st.dual, (down, over), strict=True):
            falls = (dz < 0) & (z > 0)
            cut = jnp.where(falls, tau * z / -jnp.where(dz < 0, dz, -1.0), jnp.inf)
            length = jnp.minimum(length, jnp.min(cut, initial=jnp.inf))
        return BoxDual(st.dual.lower + length * down, st.dual.upper + length * over), length

    def _near(self, dual: BoxDual, u: Array, mu: Array) -> BoxDual:
        """Keep multipliers near μ over the distance."""
        gaps, has = self.box.gaps(u), (self.box.has_lower, self.box.has_upper)
        parts = [
            jnp.where(h, jnp.clip(z, mu / (_FAR * g), _FAR * mu / g), 0.0)
            for z, g, h in zip(dual, gaps, has, strict=True)
        ]
        return BoxDual(*parts)

    def _settled(
        self, st: BoxState, new: BoxState, best: Any, taken: Array, length: Array, noise: Array
    ) -> BoxState:
        """Take the step and lower the shift, or raise it; see whether rounding or a bound of f ends the run."""
        rollout, models = self.rollout, st.models
        cut = best.tried.passed & ~all_finite(new.models) & (best.tried.length > self.task.eps)
        lower, slower = rollout._change(models, best.shift, best.factor, up=False)
        higher, faster = rollout._change(models, best.shift, best.factor, up=True)
        promised = best.line.promises(1.0)
        drowns = promised <= RISE * noise
        stuck = ~taken & ~cut & (drowns | (higher > largest_shift(models)))
        least = self._least(st)
        lowers = stuck & (st.mu > least)
        dual, comp = self.errors(st, 0.0)
        fine = (jnp.maximum(dual, comp) <= jnp.maximum(st.limit, _ENOUGH)) | (promised <= ROUNDING * noise)
        ended = jnp.where(fine, int(Status.STALLED), int(Status.NO_DECREASE))
        ended = jnp.where(best.good, ended, int(Status.SINGULAR))
        code = jnp.where(stuck & ~lowers, ended, int(Status.RUNNING))
        fell = taken & (jnp.asarray(new.models.value) < -1.0 / self.task.eps**2)
        code = jnp.where(fell | (best.tried.value == -jnp.inf), int(Status.UNBOUNDED), code).astype(jnp.int32)
        shift = jnp.where(taken, lower, jnp.where(cut, best.shift, jnp.where(lowers, 0.0, higher)))
        factor = jnp.where(taken, slower, jnp.where(cut, best.factor, jnp.where(lowers, 1.0, faster)))
        longest = jnp.where(cut, best.tried.length / 2, 1.0)
        c = st.counts
        counts = BoxCounts(
            c.step + 1,
            c.factorizations + best.tries,
            c.evaluations + best.evaluations,
            c.gradients + best.tried.passed,
        )
        step = where(taken, best.tried.length, best.tried.length * 0)
        record = BoxRecord(models.value, dual, comp, st.mu, best.shift, step, length)
        kept = where(taken, new, st)
        mu = jnp.where(lowers, jnp.maximum(least, _MU_SHARE * st.mu), st.mu)
        higher_mu = jnp.minimum(_RAISE * mu, self._unit(kept.models))
        raises = taken & (best.tried.length < _SHORT) & (st.raises > 0) & (higher_mu > mu)
        mu = jnp.where(raises, higher_mu, mu)
        memory = RolloutMemory(shift, factor, longest)
        kept = kept._replace(raises=st.raises - raises)
        return kept._replace(mu=mu, memory=memory, counts=counts, code=code, record=record)

    def _least(self, st: BoxState) -> Array:
        return st.limit / (_SOLVED + 1)

    def _ended(self, st: BoxState) -> BoxState:
        dual, comp = self.errors(st, 0.0)
        done = (jnp.maximum(dual, comp) <= st.limit) & (st.code == Status.RUNNING)
        return st._replace(code=jnp.where(done, int(Status.CONVERGED), st.code).astype(jnp.int32))

    def _lowered(self, st: BoxState) -> BoxState:
        """Lower μ where its barrier problem is solved; one that is solved may solve the next."""
        least = self._least(st)

        def is_solved(mu: Array) -> Array:
            dual, comp = self.errors(st, mu)
            return (jnp.maximum(dual, comp) <= _SOLVED * mu) & (mu > least)

        def lower(mu: Array) -> Array:
            return jnp.maximum(least, jnp.minimum(_MU_SHARE * mu, mu**_MU_POWER))

        mu = jax.lax.while_loop(is_solved, lower, st.mu)
        return st._replace(mu=mu)


class _Attempt(NamedTuple):
    """One elimination, and the best that was found along its curve."""

    shift: Array
    factor: Array
    good: Array
    line: Line
    tried: Tried
    tries: Array
    evaluations: Array


def run_boxed(boxed: Boxed, st: BoxState, most: int) -> tuple[BoxState, PyTree]:
    """Run so many rounds at most inside jit; the history has `most` rows, NaN behind the last."""
    rows = jax.tree.map(lambda r: jnp.full((most,), jnp.nan, r.dtype), st.record)

    def once(carry: tuple[BoxState, PyTree]) -> tuple[BoxState, PyTree]:
        before, rows = carry
        after = boxed.advance(before)
        at = jnp.minimum(before.counts.step, most - 1)
        return after, jax.tree.map(lambda h, r: h.at[at].set(r), rows, after.record)

    def goes_on(carry: tuple[BoxState, PyTree]) -> Array:
        return (carry[0].code == Status.RUNNING) & (carry[0].counts.step < most)

    last, rows = jax.lax.while_loop(goes_on, once, (st, rows))
    late = last.code == Status.RUNNING
    return last._replace(code=jnp.where(late, int(Status.MAX_STEPS), last.code).astype(jnp.int32)), rows
