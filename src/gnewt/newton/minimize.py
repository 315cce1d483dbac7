"""minimize: Newton's method from the host, with progress, or inside jit, by the same loop."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._errors import PerformanceNotice, PlanError, WidthError
from gnewt._typing import Argument, PyTree
from gnewt.graph import Graph, Structure
from gnewt.jaxprs.compat import SMALL_KERNELS, count_equations
from gnewt.kkt import ENGINES, unknown_engine
from gnewt.newton.arithmetic import as_known, known, largest, quietly, staged
from gnewt.newton.check import checked, is_checked
from gnewt.newton.constrained import MAX_STEPS, ConstrainedOptions, Warm, is_constrained, minimize_constrained
from gnewt.newton.factor import Factor
from gnewt.newton.implicit import minimiser
from gnewt.newton.loop import (
    Iterate,
    Limits,
    Proposal,
    Record,
    Search,
    State,
    Task,
    run,
    settle,
    some_steps,
    start,
)
from gnewt.newton.numbers import Inertia, RealLike, as_count, as_real
from gnewt.newton.objective import Objective, Point
from gnewt.newton.options import check_args, check_kwargs, check_limits, check_tolerance
from gnewt.newton.products import ProductSystem
from gnewt.newton.progress import Progress, Reporter
from gnewt.newton.result import Result, X
from gnewt.newton.rollout import Rollout, choose_search
from gnewt.newton.rules import Place, still, value
from gnewt.newton.statuses import Status
from gnewt.newton.system import OrderLike, SlotOrder, System, system_of
from gnewt.newton.trust_region import TrustRegion

_MINUTES, _SECONDS = 1e12, 1e10
"""Flops of a factorisation that takes so long on one core. Minutes are hopeless; seconds are, where the tree is
little better than the dense Hessian: hundreds of products take as long, and a step needs several factorisations."""
_QUICKLY_COMPILED = 2000
"""Equations up to which steps are compiled as a whole, in about a second; the search alone has 900. Longer programs
would be compiled twice over for it, and the xla engine takes many seconds. The choice depends on the program alone, so
that equal calls take equal steps."""
_AT_ONCE = 8
"""Steps that are taken by one call of the compiled function: between calls, the keyboard can interrupt."""
_MAX_STEPS = 200
_LITTLE = 10
"""A tree that saves less than this factor of the dense Hessian's flops is little better than it."""


def minimize(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    x0: X | Result[X],
    args: Argument[tuple[PyTree, ...]] = (),
    *,
    kwargs: Argument[Mapping[str, PyTree] | None] = None,
    bounds: Argument[object] = None,
    constraints: Argument[object] = None,
    lifted: Argument[bool | Mapping[str, PyTree]] = False,
    search: Argument[Search | None] = None,
    has_aux: bool = False,
    tol: Argument[RealLike] = 1e-8,
    max_steps: Argument[int | None] = None,
    order: Argument[OrderLike] = "auto",
    curvature: str = "exact",
    engine: str = "auto",
    duals: str = "adjoint",
    back_substitution: str = "linear",
    verbose: bool = False,
    callback: Argument[Callable[[Progress[X]], object] | None] = None,
    time_limit: Argument[float] = float("inf"),
    check: bool = True,
) -> Result[X]:
    """Minimise the objective by Newton's method. Works on the host, inside `jit`, and under `vmap`.

    Each step factorises H + μI with a μ whose inertia certifies positive definiteness: it is a descent direction.
    A run that is interrupted (from the keyboard, by the time limit, by the callback) returns the best iterate so far.

    Args:
        target: the objective: a JAX function `f(x, *args, **kwargs)` of any pytree x, or a `gnewt.Graph`.
        x0: start, in the form of the inputs; or a `Result`, to go on from it with its radius.
        args: further positional arguments of the function, held fixed.
        kwargs: its keyword arguments, held fixed.
        bounds: (lower, upper) on x: numbers, arrays or pytrees in the form of x; None and ±inf for no bound.
        constraints: one, a list or a dict of `gnewt.equal(fn, target)` and `gnewt.between(fn, lower, upper)`; with
            `has_aux=True` also a dict {name: (lower, upper)} on entries of the auxiliary data.
        lifted: let the nodes of the graph be variables whose equations close on the way (multiple shooting). True: all
            of them, beginning with the values at x0. A dict {name of an auxiliary entry: start}, of a graph {vertex:
            start}: these, and all other nodes are computed from them. `res.fun` and `res.outputs` are at the values of
            the nodes, `res.gap` says how far these are from their equations.
        search: how steps are kept safe; `TrustRegion()` unless given.
        has_aux: the function returns `(value, aux)`; aux is ignored, but for what `constraints` and `lifted` name.
        tol: stop when ‖g‖∞ ≤ tol·max(1, ‖g(x0)‖∞·1e-3); with constraints it bounds the scaled error of the first-order
            conditions.
        max_steps: stop after so many steps: 200 unless given, with constraints 1,000.
        order: as in `newton_step`.
        curvature: as in `newton_step`.
        engine: `"auto"`, one of `gnewt.ENGINES`, or `"products"`: no elimination, Lanczos with products H·v in the same
            trust region. `"auto"` falls back to `"products"`, with a `PerformanceNotice`, where the tree is too wide.
        duals: λ in the Hessians of the nodes: `"adjoint"` (Newton), `"value"` (DDP) or `"zero"` (iLQR).
        back_substitution: `"linear"`, or `"nonlinear"`: inputs follow their policies while the graph is evaluated. This
            (and value duals) needs `order="causal"`, and is a search of its own, `gnewt.newton.Rollout`.
        verbose: show a row per step on standard error. Not inside jit; nor the next two.
        callback: called with a `Progress` after each step; the run stops if it returns True.
        time_limit: seconds after which no further step is begun.
        check: compare a new structure with JAX's derivatives of the function, once.
    """
    if is_constrained(target, bounds, constraints, lifted):
        slots = Objective(target, 0, has_aux).slots(order)
        options = ConstrainedOptions(
            search, slots, curvature, engine, duals, back_substitution, verbose, callback, time_limit, check
        )
        given = (bounds, constraints, lifted, has_aux)
        most = MAX_STEPS if max_steps is None else max_steps
        limits = check_tolerance(tol), check_limits(most, time_limit, callback)
        return minimize_constrained(
            target, x0, check_args(args), check_kwargs(kwargs), given, limits, options
        )
    objective = Objective(target, 0, has_aux)
    search = choose_search(search, duals, back_substitution)
    curvature = choose_curvature(search, duals, curvature)
    begin_at, memory = (x0.x, x0.memory) if isinstance(x0, Result) else (x0, None)
    memory = None if isinstance(memory, Warm) else memory
    max_steps = _MAX_STEPS if max_steps is None else max_steps
    tol, max_steps = check_tolerance(tol), check_limits(max_steps, time_limit, callback)
    at = (begin_at, *check_args(args)), check_kwargs(kwargs)
    point, system = checked_system(objective, *at, search, (order, curvature, engine), check)
    if point.is_traced:
        result = staged(lambda: _traced(system, point, search, tol, max_steps, memory))
    else:
        host = _Host(system, search, callback, time_limit, Reporter(verbose))
        result = host.run(point, tol, max_steps, memory)
    return dataclasses.replace(result, tol=tol)


def choose_curvature(search: Search, duals: str, curvature: str) -> str:
    """The curvature that a search wants, or that was asked for."""
    return getattr(search, "curvature", "gauss_newton" if duals == "zero" else curvature)


def checked_system(
    objective: Objective,
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    search: Search,
    options: tuple[Argument[OrderLike], str, str],
    check: bool,
) -> tuple[Point, System | ProductSystem]:
    """Trace and plan; check a new structure, and take a better one where it is wrong. `options`: order, curvature, engine."""
    order, curvature, engine = options
    point = objective.at(args, kwargs)
    system = _system(point, search, slots := objective.slots(order), curvature, engine)
    if check and isinstance(system, System) and not is_checked(system):
        quiet = point.still
        if _checked(system, quiet, search) is not quiet:
            point = objective.at(args, kwargs)
            system = _system(point, search, _other_order(slots, search), curvature, engine)
    return point, system


def _traced(
    system: System | ProductSystem,
    point: Point,
    search: Search,
    tol: RealLike,
    max_steps: int,
    memory: object,
) -> Result:
    """The loop inside jit, and the solution as a function that JAX can differentiate."""
    quiet = point.still
    state, history = run(Task(system, quiet), search, quiet.x, still(tol), max_steps, still(memory))
    result = result_of(system, state, history)
    x = minimiser(system, point.data, state.x, result.success)
    if not isinstance(system, System):
        return dataclasses.replace(result, x=system.structure.unravel(x))
    place = Place(x, point.data, jnp.zeros((), x.dtype))
    fun = value(system, place, state.models)
    return dataclasses.replace(result, x=system.structure.unravel(x), fun=as_real(fun))


def _other_order(order: SlotOrder, search: Search) -> SlotOrder:
    """The order for another structure of the same function: slots of the first one mean nothing there."""
    if isinstance(order, str):
        return order
    return "causal" if isinstance(search, Rollout) else "auto"


def _checked(system: System, point: Point, search: Search) -> Point:
    """The point with a structure that has the derivatives of f; at the slots where the search begins."""
    task = Task(system, point)
    models = None if point.is_traced else task.models(known(point.x), task.first_slots(search))
    return checked(system, point, models)


def _system(
    point: Point, search: Search, order: SlotOrder, curvature: str, engine: str
) -> System | ProductSystem:
    """Plan, unless that is hopeless."""
    if engine not in (*ENGINES, "products"):
        raise unknown_engine(engine, (*ENGINES, "products"))
    if engine != "products":
        try:
            system = system_of(point, order, curvature, engine)
            cost = system.plan.certificate
            dense = cost.flops > _SECONDS and _LITTLE * cost.flops >= cost.dense_flops
            if engine != "auto" or not (dense or cost.flops > _MINUTES):
                return system
            why = (
                f"a factorisation would take {'seconds and is nearly dense' if dense else 'minutes'}: {cost}"
            )
        except WidthError as error:
            if engine != "auto":
                raise
            why = str(error).splitlines()[0]
        notice = f"{why}; going on with products H·v instead (inexact Newton)"
        warnings.warn(notice, PerformanceNotice, stacklevel=4)
    if not isinstance(search, TrustRegion):
        raise PlanError(
            f"{type(search).__name__} needs to factorise H + μI, and the tree is too wide for that",
            remedy="use search=TrustRegion(), which can do with products H·v",
        )
    structure = point.structure
    return structure.memo(("products", curvature), lambda: ProductSystem(structure, curvature))


@dataclasses.dataclass(frozen=True, eq=False)
class _Host:
    """The loop from the host: with progress, and with ways to stop it."""

    system: System | ProductSystem
    search: Search
    callback: Callable[[Progress], object] | None
    time_limit: float
    reporter: Reporter

    def run(self, point: Point, tol: RealLike, max_steps: int, memory: object) -> Result:
        system, search, began = self.system, self.search, time.monotonic()
        task = Task(system, point)
        x = known(point.x)
        models = task.models(x, task.first_slots(search))
        with quietly():
            state, limits = start(task, search, x, models, tol, max_steps, as_known(memory))
        if int(state.code) == Status.NONFINITE:
            bad = system.nonfinite(point, state.models)
            detail = "" if bad is None else f"{bad[0]} ({bad[1]})"
            return dataclasses.replace(result_of(system, state, ()), detail=detail)
        advance = self._advance(task, limits, state)
        history: list[Record] = []
        ended = None
        try:
            with self.reporter as reporter:
                while int(state.code) == Status.RUNNING and ended is None:
                    before = int(state.step)
                    with quietly():
                        state, records = advance(state)
                    history += records
                    if records:
                        reporter.show(before, records[-1])
                        ended = self._asked_to_stop(state, records[-1])
                    if ended is None and time.monotonic() - began > self.time_limit:
                        ended = Status.TIME_LIMIT
        except KeyboardInterrupt:
            ended = Status.INTERRUPTED
        if ended is not None and int(state.code) in (Status.RUNNING, Status.MAX_STEPS):
            state = state._replace(code=np.int32(ended))
        return result_of(system, state, tuple(history), self._last_factor(point, state))

    def _advance(
        self, task: Task, limits: Limits, state: State
    ) -> Callable[[State], tuple[State, list[Record]]]:
        """The next step, or a few; compiled, where that is quick."""
        compiled = self._compiled(task, limits, state)
        if compiled is not None:
            return compiled
        search = self.search
        propose = self._propose(task)

        def advance(state: State) -> tuple[State, list[Record]]:
            proposal = propose(state.at)
            near = task.beside(state.models)
            after = near.models(proposal.x, proposal.slots) if proposal.wanted else state.models
            new = settle(task, search, limits, state, proposal, after)
            return new, [_on_host(new.record)] if new.step > state.step else []

        return advance

    def _compiled(
        self, task: Task, limits: Limits, state: State
    ) -> Callable[[State], tuple[State, list[Record]]] | None:
        """A few steps by one compiled function; one, where somebody looks on or the time is limited.

        None where compiling would take long.
        """
        system, search = self.system, self.search
        if not isinstance(system, System) or system.engine.name == "reference":  # which runs on the host
            return None
        watched = self.callback is not None or self.reporter.verbose
        most = np.int32(1 if watched or self.time_limit < float("inf") else _AT_ONCE)

        def run(
            operands: Any, point: Point, limits: Limits, state: State, most: jax.Array
        ) -> tuple[State, Record]:
            return some_steps(Task(system.bind(operands), point), search, limits, state, most, _AT_ONCE)

        steps = system.structure.memo(
            ("steps", system, search), lambda: jax.jit(run, compiler_options=SMALL_KERNELS)
        )

        def count() -> int:
            return count_equations(steps.trace(system.operands, task.point, limits, state, most).jaxpr)

        if system.structure.memo(("equations", system, search), count) > _QUICKLY_COMPILED:
            return None

        def advance(state: State) -> tuple[State, list[Record]]:
            new, rows = steps(system.operands, task.point, limits, state, most)
            columns = [np.asarray(column) for column in rows]
            count = int(new.step) - int(state.step)
            return new, [_on_host(Record(*(column[i] for column in columns))) for i in range(count)]

        return advance

    def _propose(self, task: Task) -> Callable[[Iterate], Proposal]:
        """The search's `propose`. Where there are products only it is nearly all of the work, and is compiled."""
        system, search = self.system, self.search
        if isinstance(system, System):
            return lambda at: search.propose(task.beside(at.models), at)

        def run(operands: Any, point: Point, at: Iterate) -> Proposal:
            return search.propose(Task(system.bind(operands), point), at)

        steps = system.structure.memo(("propose", system, search), lambda: jax.jit(run))
        return lambda at: as_known(steps(system.operands, task.point, at))

    def _last_factor(self, point: Point, state: State) -> Factor | None:
        """H at the last iterate, eliminated."""
        system = self.system
        if not isinstance(system, System):
            return None
        gradient = known(state.models.duals)[: system.structure.num_inputs]
        raw, numbers = system.factor_solve(state.models, 0.0, jnp.asarray(-gradient))
        return Factor(dataclasses.replace(point, x=state.x), state.models, numbers, 0.0, raw, system)

    def _asked_to_stop(self, state: State, record: Record) -> Status | None:
        if self.callback is None:
            return None
        structure = self.system.structure
        size = float(largest(known(state.models.duals)[: structure.num_inputs]))
        seen = Progress(int(state.step), structure.unravel(state.x), float(state.models.value), size, record)
        return Status.STOPPED if self.callback(seen) is True else None


def result_of(
    system: System | ProductSystem,
    state: State,
    history: tuple[Record, ...] | Record,
    factor: Factor | None = None,
) -> Result:
    """What became of a run."""
    return Result(
        x=system.structure.unravel(state.x),
        fun=as_real(state.models.value),
        grad_norm=as_real(largest(known(state.models.duals)[: system.structure.num_inputs])),
        code=as_count(state.code),
        num_steps=as_count(state.step),
        num_factorizations=as_count(state.factorizations),
        num_evaluations=as_count(state.evaluations),
        num_gradients=as_count(state.gradients),
        history=history,
        memory=state.memory,
        factor=factor,
    )


def _on_host(record: Record) -> Record:
    counts = Inertia(*np.asarray(record.inertia).tolist())
    return Record(*(float(v) for v in record[:-1]), inertia=counts)
