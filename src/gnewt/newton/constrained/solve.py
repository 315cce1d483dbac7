"""minimize_constrained: from the arguments of `minimize` to a `Result`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.core import Tracer

from gnewt._errors import OptionError, user_line
from gnewt._typing import PyTree
from gnewt.graph import Graph
from gnewt.newton.arithmetic import staged
from gnewt.newton.constrained.derivatives import End, differentiable, end_of
from gnewt.newton.constrained.joint import Joint, make_joint
from gnewt.newton.constrained.lifted import lifted_names, read_start
from gnewt.newton.constrained.loop import Settings
from gnewt.newton.constrained.modes import Record, State
from gnewt.newton.constrained.outcome import make_result
from gnewt.newton.constrained.run import (
    MU_FIRST,
    Solved,
    make_model,
    note_moved,
    solve_in_jit,
    solve_on_host,
)
from gnewt.newton.progress import Progress, Reporter
from gnewt.newton.result import Result
from gnewt.newton.rules import still
from gnewt.newton.system import SlotOrder

_LEAVE_OUT = "leave the option out, or the constraints and bounds"
_HEAD = ("step", "f", "violation", "dual", "mu", "shift", "alpha", "alpha_z", "mode")
_WIDTHS = (5, 17, 9, 9, 8, 8, 8, 8, 0)
_MODES = ("", "restore", "multipliers", "enter")


@dataclasses.dataclass(frozen=True)
class ConstrainedOptions:
    """Options of `minimize` that are not about the problem."""

    search: Any
    order: SlotOrder
    curvature: str
    engine: str
    duals: str
    back_substitution: str
    verbose: bool
    callback: Callable[[Progress], object] | None
    time_limit: float | int
    check: bool


def is_constrained(target: Any, bounds: Any, constraints: Any, lifted: Any) -> bool:
    """Whether the interior point is asked for."""
    own = isinstance(target, Graph) and bool(target.limits)
    return bounds is not None or constraints is not None or own or lifted is not False


def minimize_constrained(
    target: Any,
    x0: PyTree,
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    given: tuple[Any, Any, Any, bool],
    limits: tuple[Any, int],
    options: ConstrainedOptions,
) -> Result:
    """Minimise under constraints and bounds."""
    _refuse(options)
    bounds, constraints, lifted, has_aux = given
    tol, max_steps = limits
    warm = x0.memory if isinstance(x0, Result) else None
    start = x0.x if isinstance(x0, Result) else x0
    kept = None if lifted is True else lifted_names(lifted, target, has_aux)
    joint = make_joint(target, start, args, kwargs, bounds, constraints, has_aux, kept)
    if lifted is not False:
        joint = dataclasses.replace(joint, lifted=read_start(lifted, joint.point.structure, joint.outputs))
    quiet = joint.still
    model = make_model(quiet, options.order, options.curvature, options.engine)
    dtype = np.dtype(joint.point.structure.dtype)
    tol, warm = still(tol), still(warm)
    settings = Settings(
        dtype.type(tol) if not isinstance(tol, Tracer) else tol, max_steps, dtype.type(MU_FIRST), True
    )
    note_moved(quiet)
    if quiet.is_traced or isinstance(tol, Tracer):
        result, end = staged(lambda: _finish(quiet, solve_in_jit(quiet, model, settings, warm), tol))
        return differentiable(joint, model, result, end)
    with Reporter(options.verbose, _HEAD, _WIDTHS, _cells) as reporter:
        watch = _watch(quiet, options, reporter)
        solved = solve_on_host(quiet, model, settings, warm, watch, float(options.time_limit))
    if not joint.is_traced:
        return make_result(quiet, solved, tol)
    return differentiable(joint, model, *_finish(quiet, solved, tol))


def _finish(joint: Joint, solved: Solved, tol: Any) -> tuple[Result, End]:
    return make_result(joint, solved, tol), end_of(solved)


def _refuse(options: ConstrainedOptions) -> None:
    """Refuse options that the interior point has no use for."""
    refuse_search(options.search, options.engine)
    what = None
    if options.duals != "adjoint":
        what = f"duals={options.duals!r}: with constraints the multipliers of the nodes are their adjoints"
    elif options.back_substitution != "linear":
        what = f"back_substitution={options.back_substitution!r}: with constraints steps are linear"
    if what is not None:
        raise OptionError(what, user_line(), _LEAVE_OUT)


def refuse_search(search: Any, engine: str) -> None:
    """Refuse a search, which the interior point brings itself, and an engine that knows no inertia."""
    what = None
    if search is not None:
        what = f"search={type(search).__name__}(): with constraints the search is the filter of the interior point"
    elif engine == "products":
        what = "engine='products': the interior point needs the inertia of an elimination"
    if what is not None:
        raise OptionError(what, user_line(), _LEAVE_OUT)


def _watch(
    joint: Joint, options: ConstrainedOptions, reporter: Reporter
) -> Callable[[State, Any], bool | None]:
    def watch(state: State, scale: Any) -> bool | None:
        record = state.record
        reporter.show(int(state.counts.step), record)
        if options.callback is None:
            return None
        x = joint.unravel(np.asarray(state.at.w[: len(joint.lower)]))
        seen = Progress(int(state.counts.step), x, float(state.at.values.f), float(record.dual), record)
        return options.callback(seen) is True

    return watch


def _cells(step: int, r: Record) -> tuple[str, ...]:
    return (
        f"{step}",
        f"{float(r.value): .9e}",
        f"{float(r.violation):.2e}",
        f"{float(r.dual):.2e}",
        f"{float(r.mu):.1e}",
        f"{float(r.shift):.1e}",
        f"{float(r.length):.1e}",
        f"{float(r.dual_length):.1e}",
        _MODES[int(r.mode)],
    )
