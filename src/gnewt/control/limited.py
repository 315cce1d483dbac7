"""Solving under limits: by the interior point of `minimize` (`newton`), or by a barrier around rollouts (the other methods)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import PlanError, explain_error, user_line
from gnewt._typing import PyTree
from gnewt.control.check import states_like
from gnewt.control.limits import spread
from gnewt.control.problem import Problem
from gnewt.control.slots import stage_order
from gnewt.graph import Family, Output, Structure
from gnewt.newton import Progress, Result, Rollout
from gnewt.newton.arithmetic import Array, known, staged
from gnewt.newton.box import START_PUSH, WARM_PUSH, Box, BoxDual
from gnewt.newton.boxed import Boxed, BoxRecord, BoxState, run_boxed, with_diagonal
from gnewt.newton.constrained.derivatives import End, differentiable
from gnewt.newton.constrained.forms import spread_limit
from gnewt.newton.constrained.joint import make_joint
from gnewt.newton.constrained.run import make_model
from gnewt.newton.loop import Task
from gnewt.newton.numbers import as_count, as_real
from gnewt.newton.objective import Objective, Point
from gnewt.newton.progress import Reporter
from gnewt.newton.rules import still
from gnewt.newton.statuses import Status
from gnewt.newton.system import System, system_of

_HEAD = ("step", "f", "dual", "compl.", "mu", "shift", "alpha", "alpha_z")
_WIDTHS = (5, 17, 9, 9, 8, 8, 8, 8)
_STIFF = 1e8
"""Weight of an equality in the policies at a solution: it is kept to this many digits, and where nothing can keep it any more
(in the last stages before a terminal state) gains stay finite."""
_NEAR = 1e-9
"""Distance to a limit below which a row counts as on it, in the policies at a solution."""


def refuse_other_limits(problem: Problem, method: str) -> None:
    """Raise PlanError where a method with rollouts is asked for more than limits of the controls."""
    more = problem.stages.limited.rows
    if more:
        raise PlanError(
            explain_error(
                f"method={method!r} takes limits of the controls only, and the problem has {', '.join(more)}",
                user_line(),
                "use method='newton', which takes every constraint",
            )
        )


def lifted_start(problem: Problem, lifted: PyTree, method: str) -> bool | dict[str, PyTree]:
    """What `minimize` is to lift: everything, or the states, with their first values."""
    if lifted is False:
        return False
    if method != "newton":
        raise PlanError(
            explain_error(
                f"lifted with method={method!r}: a rollout keeps the dynamics closed",
                user_line(),
                "use method='newton' for multiple shooting, or leave lifted out",
            )
        )
    if lifted is True:
        return True
    xs = states_like(lifted, problem.x0, problem.horizon + 1, "lifted")
    return {"path": jax.tree.map(lambda a: a[1:], xs)}


def bounds_of(problem: Problem, decision: PyTree) -> tuple[PyTree, PyTree]:
    """(lower, upper) in the form of the decision."""
    limits: Any = problem.given["limits"].get("control_limits", (None, None))
    us = problem.stages.split(decision, problem.given)[0]
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), us)
    decided: Any = decision
    sides = []
    for side, limit in zip(("lower", "upper"), limits, strict=True):
        rows = spread(limit, one, problem.horizon, f"the {side} limit of control_limits", "us")
        if problem.stages.optimize:
            inf = -np.inf if side == "lower" else np.inf
            free = {
                name: jax.tree.map(lambda a, v=inf: np.full(np.shape(a), v), decided[name])
                for name in problem.stages.optimize
            }
            rows = {"us": rows, **free}
        sides.append(rows)
    return sides[0], sides[1]


def box_of(problem: Problem, decision: PyTree) -> Box:
    """Bounds of the decision as one vector each."""
    sides = [jax.tree.leaves(side) for side in bounds_of(problem, decision)]
    return Box(*(jnp.concatenate([jnp.ravel(jnp.asarray(v)) for v in side]) for side in sides))


# Rollouts


def boxed_system(problem: Problem, structure: Structure, rollout: Rollout, order: Any) -> System:
    """The system of a structure that has the diagonal of a barrier."""
    wide = with_diagonal(structure)
    order = stage_order(problem, wide) if isinstance(order, str) and order == "stages" else order
    return system_of(_bare(wide), order, rollout.curvature)


def _bare(structure: Structure) -> Point:
    return Point(np.zeros(structure.num_inputs, structure.dtype), (), (), structure, None, False)


def make_boxed(problem: Problem, decision: PyTree, rollout: Rollout, order: Any = "stages") -> Boxed:
    """The barrier problem at the numbers of a problem. Traceable."""
    point = Objective(problem.stages.with_states, has_aux=True).at((decision, problem.given))
    system = boxed_system(problem, point.structure, rollout, order)
    data = (*point.data, (np.zeros(system.structure.num_inputs, system.structure.dtype),))
    there = Point(point.x, data, (), system.structure, None, False)
    return Boxed(Task(system, there), rollout, box_of(problem, decision))


def _without_derivatives(boxed: Boxed) -> Boxed:
    """The same numbers: known, where only a derivative made them tracers."""
    task = dataclasses.replace(boxed.task, point=boxed.task.point.still)
    return dataclasses.replace(boxed, task=task, box=still(boxed.box))


def duals_of(result: Result) -> BoxDual | None:
    """Multipliers of the bounds at the end of an earlier run; None where it had no bounds."""
    if result.bound_multipliers is None:
        return None
    z = jnp.concatenate([jnp.ravel(v) for v in jax.tree.leaves(result.bound_multipliers)])
    return BoxDual(jnp.maximum(-z, 0.0), jnp.maximum(z, 0.0))


def solve_boxed(
    problem: Problem,
    start: PyTree,
    rollout: Rollout,
    order: Any,
    limits: tuple[Any, int],
    watch: tuple[bool, Callable[[Progress], object] | None, float],
) -> Result:
    """Solve under limits of the controls; a `Result` as start brings its multipliers."""
    tol, most = still(limits[0]), limits[1]
    decision, dual = (start.x, still(duals_of(start))) if isinstance(start, Result) else (start, None)
    given = make_boxed(problem, decision, rollout, order)
    boxed = _without_derivatives(given)
    system, structure = boxed.task.system, boxed.task.system.structure
    assert isinstance(system, System)
    push = START_PUSH if dual is None else WARM_PUSH

    def first(point: Point, box: Box, dual: BoxDual | None, tol: Array, push: Array | float) -> BoxState:
        here = dataclasses.replace(boxed, task=Task(system, point), box=box)
        return here.begin(box.inside(point.x, push), tol, dual)

    traced = any(isinstance(v, Tracer) for v in jax.tree.leaves((boxed.task.point, boxed.box, dual, tol)))
    if traced:
        last, history = staged(
            lambda: run_boxed(boxed, first(boxed.task.point, boxed.box, dual, jnp.asarray(tol), push), most)
        )
    else:
        key = (system, rollout, order if isinstance(order, str) else "given")
        begin = structure.memo(("boxed begins", *key), lambda: jax.jit(first))

        def once(point: Point, box: Box, st: BoxState) -> BoxState:
            return dataclasses.replace(boxed, task=Task(system, point), box=box).advance(st)

        advance = structure.memo(("boxed", *key), lambda: jax.jit(once))
        st = begin(boxed.task.point, boxed.box, dual, jnp.asarray(tol, structure.dtype), push)
        last, history = _on_host(boxed, advance, st, most, watch)
    result = _result(boxed, last, history, tol)
    is_given = any(isinstance(v, Tracer) for v in jax.tree.leaves((given.task.point, given.box)))
    return _differentiable(problem, boxed, last, result) if is_given else result


def _differentiable(problem: Problem, boxed: Boxed, st: BoxState, result: Result) -> Result:
    """Tie the solution and its multipliers to the numbers of the problem."""
    bounds = bounds_of(problem, result.x)
    joint = make_joint(problem.stages.with_states, result.x, (problem.given,), {}, bounds, None, True)
    system = boxed.task.system
    assert isinstance(system, System)
    model = make_model(joint.still, "auto", "exact", system.engine.name)
    low, up = boxed.box.gaps(st.models.slots[: boxed.task.size])
    at_lower, at_upper = st.dual.lower / low, st.dual.upper / up
    barrier = jnp.where(boxed.box.is_pinned, jnp.inf, at_lower + at_upper)
    found = differentiable(joint, model, result, End(barrier, at_upper > at_lower))
    return dataclasses.replace(found, multipliers=result.multipliers)


def _on_host(
    boxed: Boxed,
    advance: Callable[[Point, Box, BoxState], BoxState],
    st: BoxState,
    most: int,
    watch: tuple[bool, Callable[[Progress], object] | None, float],
) -> tuple[BoxState, tuple[BoxRecord, ...]]:
    """Rounds from the host: with progress, and with ways to stop."""
    verbose, callback, time_limit = watch
    began, history, ended = time.monotonic(), [], None
    try:
        with Reporter(verbose, _HEAD, _WIDTHS, _cells) as reporter:
            while int(st.code) == Status.RUNNING and ended is None and len(history) < most:
                st = advance(boxed.task.point, boxed.box, st)
                history.append(BoxRecord(*(float(v) for v in st.record)))
                reporter.show(len(history), history[-1])
                if callback is not None:
                    x = boxed.task.system.structure.unravel(st.models.slots[: boxed.task.size])
                    seen = Progress(len(history), x, float(st.models.value), history[-1].dual, history[-1])  # type: ignore[arg-type]
                    ended = Status.STOPPED if callback(seen) is True else None
                if ended is None and time.monotonic() - began > time_limit:
                    ended = Status.TIME_LIMIT
    except KeyboardInterrupt:
        ended = Status.INTERRUPTED
    if int(st.code) == Status.RUNNING:
        st = st._replace(code=np.int32(Status.MAX_STEPS if ended is None else ended))
    return st, tuple(history)


def _cells(step: int, r: BoxRecord) -> tuple[str, ...]:
    small = (f"{v:.1e}" for v in (r.mu, r.shift, r.length, r.dual_length))
    return (f"{step}", f"{r.value: .9e}", f"{r.dual:.2e}", f"{r.complementarity:.2e}", *small)


def _result(boxed: Boxed, st: BoxState, history: Any, tol: Any) -> Result:
    structure, counts = boxed.task.system.structure, st.counts
    dual, comp = boxed.errors(st, 0.0)
    z = st.dual.upper - st.dual.lower
    left = boxed.gradient(st.models) + z
    # Inputs with equal bounds have the multiplier that makes them stationary.
    z = jnp.where(boxed.box.is_pinned, z - left, z)
    return Result(
        x=structure.unravel(jnp.asarray(st.models.slots)[: boxed.task.size]),
        fun=as_real(known(st.models.value)),
        grad_norm=as_real(known(dual)),
        code=as_count(known(st.code)),
        num_steps=as_count(known(counts.step)),
        num_factorizations=as_count(known(counts.factorizations)),
        num_evaluations=as_count(known(counts.evaluations)),
        num_gradients=as_count(known(counts.gradients)),
        history=history,
        memory=None,
        factor=None,
        tol=tol,
        violation=as_real(known(dual) * 0),
        kkt_error=as_real(known(jnp.maximum(dual, comp))),
        bound_multipliers=structure.unravel(z),
    )


# Policies at a solution


@dataclasses.dataclass(frozen=True, eq=False)
class Condensed:
    """The Lagrangian at a solution, with a curvature on every limited slot: what policies of the active set come from."""

    point: Point
    system: System


def condense(problem: Problem, result: Result, curvature: str, order: Any = "stages") -> Condensed:
    """Put y·(s - s̄) + ½ w (s - s̄)² on every limited slot: w is large where a limit is active, and nothing elsewhere."""
    given = problem.given
    point = Objective(problem.stages.with_rows, has_aux=True).at((result.x, given))
    structure = point.structure
    slots, pick = _limited_slots(problem, structure)
    wide = structure.memo(("condensed", slots.tobytes()), partial(_with_pulls, structure, slots))
    order = stage_order(problem, wide) if isinstance(order, str) and order == "stages" else order
    system = system_of(_bare(wide), order, curvature)
    pulls = _pulls(problem, result, pick)
    data = (*point.data, pulls)
    return Condensed(Point(point.x, data, (), wide, None, False), system)


def _with_pulls(structure: Structure, slots: np.ndarray) -> Structure:
    family = Family(_pull, slots[:, None].astype(np.int32), data_axes=(0, 0, 0), name="limits")
    return dataclasses.replace(structure, families=(*structure.families, family), data=())


def _pull(s: jax.Array, y: jax.Array, w: jax.Array, centre: jax.Array) -> jax.Array:
    away = s[0] - centre
    return y * away + 0.5 * w * away**2


def _limited_slots(problem: Problem, structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    """Slots of the decisions and of all rows; and which of the rows, laid end to end, have one."""
    outputs: Any = structure.outputs
    names = sorted(problem.stages.limited.rows)
    leaves: list[Output] = [leaf for name in names for leaf in jax.tree.leaves(outputs[name])]
    rows = np.concatenate([np.zeros(0, np.int64), *(leaf.slots.ravel() for leaf in leaves)]).astype(np.int64)
    has = np.flatnonzero(rows >= 0)
    return np.concatenate([np.arange(structure.num_inputs), rows[has]]), has


def _pulls(problem: Problem, result: Result, pick: np.ndarray) -> tuple[Array, Array, Array]:
    """(y, w, s̄) of every limited slot."""
    stages, limited = problem.stages, problem.stages.limited
    lower, upper = (_flat(side) for side in bounds_of(problem, result.x))
    z, x = _flat(result.bound_multipliers), _flat(result.x)
    y, w = z, _weight(z, x, lower, upper, lower >= upper)
    names = sorted(limited.rows)
    if not names:
        return y, w, x
    _, found = jax.jit(stages.with_rows)(result.x, problem.given)
    multipliers: Any = result.multipliers
    parts: list[tuple[Array, ...]] = []
    for name in names:
        given = limited.constraints(problem.given["limits"])[name]
        for c, m, low, up in _leaves_of(found[name], multipliers[name], given):
            equal = jnp.ones(c.shape, bool) if given.is_equality else low >= up
            parts.append((m, _weight(m, c, low, up, equal), c))
    rows = [jnp.concatenate([jnp.ravel(p[i]) for p in parts])[pick] for i in range(3)]
    return tuple(jnp.concatenate([a, b]) for a, b in zip((y, w, x), rows, strict=True))  # type: ignore[return-value]


def _leaves_of(values: PyTree, multipliers: PyTree, given: Any) -> list[tuple[Array, ...]]:
    low = spread_limit(given.lower, values, -np.inf, "the lower limit", given.where)
    up = spread_limit(given.upper, values, np.inf, "the upper limit", given.where)
    return list(zip(jax.tree.leaves(values), jax.tree.leaves(multipliers), low, up, strict=True))


def _weight(y: Array, value: Array, lower: Array, upper: Array, equal: Array) -> Array:
    """Σ = |y| over the distance to the limit that y belongs to."""
    gap = jnp.where(y > 0, jnp.asarray(upper) - value, value - jnp.asarray(lower))
    gap = jnp.where(jnp.isfinite(gap), gap, jnp.inf)
    found = jnp.minimum(jnp.abs(y) / jnp.maximum(gap, _NEAR), _STIFF)
    return jnp.where(equal, _STIFF, found)


def _flat(tree: PyTree) -> Array:
    return jnp.concatenate([jnp.ravel(jnp.asarray(v)) for v in jax.tree.leaves(tree)])


def active_bounds(problem: Problem, result: Result) -> PyTree:
    """Whether a limit of a control holds with equality and has a multiplier."""
    lower, upper = bounds_of(problem, result.x)
    z = result.bound_multipliers

    def active(x: Array, z: Array, low: Array, up: Array) -> Array:
        gap = jnp.where(z > 0, jnp.asarray(up) - x, x - jnp.asarray(low))
        return (jnp.abs(z) > gap) | (jnp.asarray(low) >= jnp.asarray(up))

    return jax.tree.map(active, result.x, z, lower, upper)
