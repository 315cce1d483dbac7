"""From the last state of a run to a `Result`, in the user's scale."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._typing import PyTree
from gnewt.newton.arithmetic import Array, quietly
from gnewt.newton.constrained.joint import Joint
from gnewt.newton.constrained.kkt import KKTFactor, factor_at
from gnewt.newton.constrained.lifted import read_outputs
from gnewt.newton.constrained.modes import State
from gnewt.newton.constrained.run import Solved
from gnewt.newton.constrained.warm import leave
from gnewt.newton.numbers import as_count, as_real
from gnewt.newton.result import Result
from gnewt.newton.statuses import Status

_WORTH_NAMING = 1e-8
"""Violation from which on a message names the row."""


def make_result(joint: Joint, solved: Solved, tol: Any) -> Result:
    """Unscale, bring x within its bounds, and say what became of the run."""
    state, b = solved.state, solved.barrier
    xp = jnp if isinstance(state.code, Tracer) else np
    n = b.sizes[0]
    rows = joint.rows
    left = leave(b, state)
    order = np.concatenate([rows.equalities, rows.inequalities]).astype(int)
    none = xp.zeros(len(rows.slots), state.at.w.dtype)
    y, active = (
        _place(xp, none, order, left.y[: b.num_rows]),
        _place(xp, none > 0, order, _active(xp, solved)),
    )
    z = (left.upper - left.lower)[:n]
    if len(joint.fixed):
        z = _place(xp, z, joint.fixed, y[len(rows.slots) - len(joint.fixed) :])
    x, f, missed = _inside(xp, joint, solved)
    worst = xp.maximum(xp.max(missed, initial=0.0), rows.worst)
    dual, primal, comp = b.errors(state.at, state.gradient, state.dual, state.schedule.mu * 0)
    code = xp.where(rows.worst > _WORTH_NAMING * 100, int(Status.INFEASIBLE), state.code)
    gap = xp.max(xp.abs(state.at.c[b.num_rows :]), initial=0.0)
    return Result(
        x=joint.unravel(x),
        fun=as_real(f),
        grad_norm=as_real(xp.max(xp.abs(_stationarity(xp, solved)), initial=0.0) / b.scale.f),
        code=as_count(code),
        num_steps=as_count(state.counts.step),
        num_factorizations=as_count(state.counts.factorizations),
        num_evaluations=as_count(state.counts.evaluations),
        num_gradients=as_count(state.counts.gradients),
        history=solved.history,  # type: ignore[arg-type]
        memory=left,
        factor=None if xp is jnp else _factor(joint, solved),
        detail="" if xp is jnp else _detail(joint, solved, np.asarray(missed)),
        tol=tol,
        violation=as_real(worst),
        kkt_error=as_real(xp.maximum(dual, xp.maximum(primal, comp))),
        multipliers=joint.mirror(y),
        bound_multipliers=joint.unravel(z),
        active=joint.mirror(active),
        gap=as_real(gap),
        outputs=_outputs(joint, state),
    )


def _factor(joint: Joint, solved: Solved) -> KKTFactor | None:
    """The KKT factor, where there are derivatives to make it of."""
    if int(solved.state.code) == Status.NONFINITE:
        return None
    with quietly():
        return factor_at(joint, solved.barrier, solved.state)


def _detail(joint: Joint, solved: Solved, missed: np.ndarray) -> str:
    """Name what is to blame: what is not finite, or the most violated row."""
    state, b = solved.state, solved.barrier
    code = int(state.code)
    if code in (Status.CONVERGED, Status.STALLED):
        return ""
    if code == Status.NONFINITE:
        return _nonfinite(joint, solved)
    named = []
    if len(missed) and np.nanmax(missed, initial=0.0) > _WORTH_NAMING:
        at = int(np.nanargmax(missed))
        named.append(f"most violated is {joint.rows.describe(at)}, by {missed[at]:.1e}")
    gaps = np.abs(np.asarray(state.at.c[b.num_rows :]))
    if len(gaps) and gaps.max() > _WORTH_NAMING:
        n = joint.point.structure.num_inputs
        named.append(
            f"the widest gap is {gaps.max():.1e}, at {joint.point.structure.slot_name(n + int(gaps.argmax()))}"
        )
    return "; ".join(named)


def _nonfinite(joint: Joint, solved: Solved) -> str:
    state, b = solved.state, solved.barrier
    bad = np.flatnonzero(~np.isfinite(np.asarray(state.at.c[: b.num_rows])))
    if len(bad):
        return f"{joint.rows.describe(int(bad[0]))} is not finite"
    if not np.isfinite(float(state.at.f)):
        return "the objective is not finite"
    found = b.model.system.nonfinite(b.model.point(np.asarray(state.at.w[: b.sizes[0]])), state.models)
    return "" if found is None else f"{found[0]} ({found[1]})"


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
    """Rows whose limit carries a multiplier larger than its distance; equalities all."""
    state, b = solved.state, solved.barrier
    n, m, k = b.sizes
    low, up = b.gaps(state.at.w)
    at_lower = b.box.has_lower & (state.dual.lower > low)
    at_upper = b.box.has_upper & (state.dual.upper > up)
    return xp.concatenate([np.ones(m, bool), (at_lower | at_upper)[n : n + k]])


def _inside(xp: Any, joint: Joint, solved: Solved) -> tuple[Array, Array, Array]:
    """x within its own bounds, which were relaxed on the way; f there, and by how much rows miss their limits there."""
    state, b = solved.state, solved.barrier
    n, dtype = b.sizes[0], state.at.w.dtype
    x = xp.clip(state.at.w[:n], joint.lower, joint.upper).astype(dtype)
    values, c = state.at.values, state.at.c
    if b.model.lift is None:
        if len(joint.fixed):
            x = _place(xp, x, joint.fixed, joint.rows.lower[len(joint.rows.slots) - len(joint.fixed) :])
        if xp is jnp or not np.array_equal(x, state.at.w[:n]):
            with quietly():
                values = b.model.evaluate(x)
                c = b.rows_of(values)
    c = (c / b.scale.rows)[: b.num_rows]
    target = xp.concatenate([b.box.target, np.zeros(b.num_rows - len(b.box.target), dtype)])
    return x, values.f, joint.rows.violations(c + target)
