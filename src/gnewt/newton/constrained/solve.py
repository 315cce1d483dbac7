"""minimize_constrained: from the arguments of `minimize` to a `Result`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import OptionError, user_line
from gnewt._typing import PyTree
from gnewt.graph import Graph
from gnewt.newton.arithmetic import Array, quietly
from gnewt.newton.constrained.joint import Joint, make_joint
from gnewt.newton.constrained.lifted import lifted_names, read_outputs, read_start
from gnewt.newton.constrained.loop import Settings
from gnewt.newton.constrained.modes import Record, State
from gnewt.newton.constrained.run import (
    MU_FIRST,
    Solved,
    make_model,
    note_moved,
    solve_in_jit,
    solve_on_host,
)
from gnewt.newton.numbers import as_count, as_real
from gnewt.newton.progress import Progress, Reporter
from gnewt.newton.result import Result
from gnewt.newton.system import SlotOrder

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
    time_limit: float
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
    model = make_model(joint, options.order, options.curvature, options.engine)
    dtype = np.dtype(joint.point.structure.dtype)
    settings = Settings(
        dtype.type(tol) if not isinstance(tol, Tracer) else tol, max_steps, dtype.type(MU_FIRST), True
    )
    note_moved(joint)
    if joint.point.is_traced or _is_traced(joint):
        solved = solve_in_jit(joint, model, settings, warm)
    else:
        solved = solve_on_host(joint, model, settings, warm, _watch(joint, options), options.time_limit)
    return _result(joint, solved, tol)


def _is_traced(joint: Joint) -> bool:
    rows = joint.rows
    nodes = None if joint.lifted is None else joint.lifted.values
    return any(isinstance(v, Tracer) for v in (joint.lower, joint.upper, rows.lower, rows.upper, nodes))


def _refuse(options: ConstrainedOptions) -> None:
    """Refuse options that the interior point has no use for."""
    what = None
    if options.search is not None:
        what = f"search={type(options.search).__name__}(): with constraints the search is the filter of the interior point"
    elif options.duals != "adjoint":
        what = f"duals={options.duals!r}: with constraints the multipliers of the nodes are their adjoints"
    elif options.back_substitution != "linear":
        what = f"back_substitution={options.back_substitution!r}: with constraints steps are linear"
    elif options.engine == "products":
        what = "engine='products': the interior point needs the inertia of an elimination"
    if what is not None:
        raise OptionError(what, user_line(), "leave the option out, or the constraints and bounds")


def _watch(joint: Joint, options: ConstrainedOptions) -> Callable[[State, Any], bool | None]:
    reporter = Reporter(options.verbose, _HEAD, _WIDTHS, _cells)
    entered = reporter.__enter__()

    def watch(state: State, scale: Any) -> bool | None:
        record = state.record
        entered.show(int(state.counts.step), record)
        if options.callback is None:
            return None
        n = len(joint.lower)
        x = joint.unravel(np.asarray(state.at.w[:n]))
        seen = Progress(int(state.counts.step), x, float(state.at.values.f), float(record.dual), record)  # type: ignore[arg-type]
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


def _result(joint: Joint, solved: Solved, tol: Any) -> Result:
    state, b = solved.state, solved.barrier
    xp = jnp if isinstance(state.code, Tracer) else np
    n = b.sizes[0]
    rows = joint.rows
    sigma, d = b.scale
    y_used = (state.dual.y * d / sigma)[: b.num_rows]
    z = (state.dual.upper - state.dual.lower) / sigma
    order = np.concatenate([rows.equalities, rows.inequalities]).astype(int)
    whole = xp.zeros(len(rows.slots), state.at.w.dtype)
    y, active = _place(xp, whole, order, y_used), _place(xp, whole > 0, order, _active(xp, solved))
    x, value, violation = _inside(xp, joint, solved)
    dual, primal, comp = b.errors(state.at, state.gradient, state.dual, state.schedule.mu * 0)
    stationary = xp.max(xp.abs(_stationarity(xp, solved)), initial=0.0) / sigma
    return Result(
        x=joint.unravel(x),
        fun=as_real(value),
        grad_norm=as_real(stationary),
        code=as_count(state.code),
        num_steps=as_count(state.counts.step),
        num_factorizations=as_count(state.counts.factorizations),
        num_evaluations=as_count(state.counts.evaluations),
        num_gradients=as_count(state.counts.gradients),
        history=solved.history,  # type: ignore[arg-type]
        memory=(state.dual, state.schedule.mu, state.at.w, b.scale),
        factor=None,
        tol=tol,
        violation=as_real(violation),
        kkt_error=as_real(xp.maximum(dual, xp.maximum(primal, comp))),
        multipliers=joint.mirror(y),
        bound_multipliers=joint.spread(z[:n]),
        active=joint.mirror(active),
        gap=as_real(xp.max(xp.abs(state.at.c[b.num_rows :]), initial=0.0)),
        outputs=_outputs(joint, state),
    )


def _stationarity(xp: Any, solved: Solved) -> Array:
    """∇L in x, and in the nodes of a lifted graph."""
    state, b = solved.state, solved.barrier
    n, _, k = b.sizes
    found = b.stationarity(state.gradient, state.dual)
    return xp.concatenate([found[:n], found[n + k :]])


def _outputs(joint: Joint, state: State) -> PyTree:
    """Kept auxiliary data of a lifted graph, at the slots."""
    if joint.lifted is None or not joint.outputs:
        return None
    m = len(joint.rows.equalities)
    n = joint.point.structure.num_inputs
    xp = jnp if isinstance(state.at.values.slots, Tracer) else np
    slots = xp.concatenate([state.at.values.slots[:n], state.at.values.slots[n + m :]])
    return read_outputs(joint.outputs, slots, joint.kept)


def _place(xp: Any, whole: Array, order: np.ndarray, values: Array) -> Array:
    if xp is jnp:
        return jnp.asarray(whole).at[order].set(values)
    full = np.array(whole)
    full[order] = values
    return full


def _active(xp: Any, solved: Solved) -> Array:
    """Rows whose limit carries a multiplier larger than its distance."""
    state, b = solved.state, solved.barrier
    n, m, k = b.sizes
    low, up = b.gaps(state.at.w)
    at_lower = b.box.has_lower & (state.dual.lower > low)
    at_upper = b.box.has_upper & (state.dual.upper > up)
    return xp.concatenate([np.ones(m, bool), (at_lower | at_upper)[n : n + k]])


def _inside(xp: Any, joint: Joint, solved: Solved) -> tuple[Array, Array, Array]:
    """x within its own bounds, which were relaxed on the way; f and the violation of the constraints there."""
    state, b, rows = solved.state, solved.barrier, joint.rows
    n = b.sizes[0]
    x = xp.clip(state.at.w[:n], joint.lower, joint.upper).astype(state.at.w.dtype)
    values = state.at.values
    if b.model.lift is None:  # lifted nodes would move as well
        with quietly():
            values = b.model.evaluate(x)
    c = (b.rows_of(values) / b.scale.rows)[: b.num_rows]
    m = len(rows.equalities)
    lower, upper = rows.lower[rows.inequalities], rows.upper[rows.inequalities]
    worst = xp.max(xp.abs(c[:m]), initial=0.0)
    worst = xp.maximum(worst, xp.max(lower - c[m:], initial=0.0))
    return x, values.f, xp.maximum(worst, xp.max(c[m:] - upper, initial=0.0))
