"""minimize: Newton's method from the host, with progress, or inside jit, by the same loop."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from gnewt._typing import PyTree
from gnewt.graph import Graph, Structure
from gnewt.newton.check import self_check
from gnewt.newton.factor import Factor, Inertia
from gnewt.newton.loop import NONFINITE, RUNNING, Problem, Record, Search, State, advance, largest, run, start
from gnewt.newton.objective import Objective, Point
from gnewt.newton.result import Result
from gnewt.newton.system import System, system_of
from gnewt.newton.trust_region import TrustRegion


def minimize(
    target: Callable | Graph | Structure,
    x0: PyTree,
    args: tuple[Any, ...] = (),
    *,
    search: Search | None = None,
    has_aux: bool = False,
    tol: float = 1e-8,
    max_steps: int = 200,
    order: str | Sequence[Any] = "auto",
    curvature: str = "exact",
    engine: str = "auto",
    verbose: bool = False,
    check: bool = True,
) -> Result:
    """Minimise the objective by Newton's method. Works on the host, inside `jit`, and under `vmap`.

    Each step factorises H + μI with a μ whose inertia certifies positive definiteness, so that the step is a
    descent direction.

    Args:
        target: the objective: a JAX function `f(x, *args)` of any pytree x, or a `gnewt.Graph`.
        x0: start, in the form of the inputs.
        args: further arguments of the function, held fixed.
        search: how steps are kept safe; `TrustRegion()` unless given.
        has_aux: the function returns `(value, aux)`; aux is ignored.
        tol: stop when ‖g‖∞ ≤ tol·max(1, ‖g(x0)‖∞·1e-3) (the second part is for badly scaled objectives).
        max_steps: limit on the number of steps.
        order: elimination order, as in `newton_step`.
        curvature: `"exact"`, or `"gauss_newton"`, which keeps the curvature of the losses only.
        engine: `"auto"`, or one of `gnewt.kkt.ENGINES`.
        verbose: print a line per step to standard error (not inside jit).
        check: compare a new structure with JAX's derivatives of the function, once (not inside jit).
    """
    objective = Objective(target, 0, has_aux)
    point = objective.at((x0, *args))
    system = system_of(point, objective.slots(order), curvature, engine)
    search = TrustRegion() if search is None else search
    if point.is_traced:
        state, rows = run(Problem(system, point), search, point.x, tol, max_steps)
        return _result(system, state, rows, None)
    return _from_host(system, point, search, tol, max_steps, check, verbose)


def _from_host(
    system: System, point: Point, search: Search, tol: float, max_steps: int, check: bool, verbose: bool
) -> Result:
    begin, step = system.structure.memo(("loop", system, search), lambda: _compile(system, search))
    state, limits = begin(system.operands, point, tol, max_steps)
    if int(state.code) == NONFINITE:
        bad = system.nonfinite(point, state.models)
        detail = "" if bad is None else f"{bad[0]} ({bad[1]})"
        return dataclasses.replace(_result(system, state, (), None), detail=detail)
    if check:
        system.structure.memo(("checked", system.curvature), lambda: self_check(system, point, state.models))
    history: list[Record] = []
    while int(state.code) == RUNNING:
        before = int(state.step)
        state = step(system.operands, point, limits, state)
        if int(state.step) > before:
            history.append(_on_host(state.record))
            if verbose:
                print(_line(before, history[-1]), file=sys.stderr)
    last = dataclasses.replace(point, x=state.x)
    raw, numbers = system.factor_solve(state.models, 0.0, -state.models.duals[: system.structure.num_inputs])
    return _result(system, state, tuple(history), Factor(last, state.models, numbers, 0.0, raw, system))


def _compile(system: System, search: Search) -> tuple[Any, Any]:
    """The two halves of the loop, compiled with the integers of the system as operands."""

    def problem_of(operands: Any, point: Point) -> Problem:
        return Problem(system.bind(operands), point)

    def begin(operands: Any, point: Point, tol: Any, max_steps: Any) -> Any:
        return start(problem_of(operands, point), search, point.x, tol, max_steps)

    def step(operands: Any, point: Point, limits: Any, state: State) -> State:
        return advance(problem_of(operands, point), search, limits, state)

    return jax.jit(begin), jax.jit(step)


def _result(system: System, state: State, history: Any, factor: Factor | None) -> Result:
    result = Result(
        x=system.structure.unravel(state.x),
        fun=state.models.value,
        grad_norm=largest(state.models.duals[: system.structure.num_inputs]),
        code=state.code,
        num_steps=state.step,
        num_factorizations=state.factorizations,
        num_evaluations=state.evaluations,
        history=history,
        factor=factor,
    )
    if isinstance(state.code, Tracer):
        return result
    counts = ("code", "num_steps", "num_factorizations", "num_evaluations")
    return dataclasses.replace(
        result,
        fun=float(result.fun),
        grad_norm=float(result.grad_norm),
        **{name: int(getattr(result, name)) for name in counts},
    )


def _on_host(record: Record) -> Record:
    counts = Inertia(*np.asarray(record.inertia).tolist())
    return Record(*(float(v) for v in record[:-1]), inertia=counts)


def _line(step: int, record: Record) -> str:
    return (
        f"{step:4d}  f = {record.value: .10e}  |g| = {record.grad_norm:.2e}  "
        f"shift = {record.shift:.1e}  ratio = {record.ratio:.1e}  inertia {tuple(record.inertia)}"
    )
