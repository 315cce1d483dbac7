"""Minimise under constraints: from the arguments of `minimize` to a result, on the host and inside jit."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import StartNotice
from gnewt.graph import Data
from gnewt.newton.arithmetic import Array, known, quietly
from gnewt.newton.constrained.augment import augment
from gnewt.newton.constrained.barrier import Barrier, Box, Dual, Scale
from gnewt.newton.constrained.joint import Joint
from gnewt.newton.constrained.lifted import make_lift, place_nodes
from gnewt.newton.constrained.loop import Settings, advance, begin
from gnewt.newton.constrained.model import Model, Values
from gnewt.newton.constrained.modes import Record, State
from gnewt.newton.constrained.warm import LEAST_MU, PUSH_SHARE, Warm, first_dual, first_mu, fits
from gnewt.newton.objective import Point
from gnewt.newton.statuses import Status
from gnewt.newton.system import SlotOrder, system_of

MU_FIRST = 0.1
MAX_STEPS = 1000
"""Of a run that is given no limit: barrier methods take hundreds of short steps where constraints are badly conditioned."""
_RELAX = 1e-10
"""Limits are moved outwards by this much, relative to their size: problems without an interior get one. A hundred times more
showed in products with multipliers of a few hundred."""
_RELAX_MOST = 50.0
"""Size of a limit beyond which it is not moved further: a solution then violates it by less than 1e-7."""
_PUSH, _PUSH_SHARE = 1e-2, 1e-2
"""The start is moved inside its limits: by this much, or by this share of the interval."""
_LARGEST_GRADIENT = 100.0
_LEAST_SCALE = 1e-8


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """A finished run."""

    state: State
    barrier: Barrier
    history: tuple[Record, ...] | Record
    seconds: float


def make_model(joint: Joint, order: SlotOrder, curvature: str, engine: str) -> Model:
    """Plan the augmented graph, once per structure."""
    rows = joint.rows
    a = augment(
        joint.point.structure,
        rows.slots[rows.equalities],
        rows.slots[rows.inequalities],
        joint.constant is None,
        joint.lifted is not None,
    )
    point = Point(joint.point.x, (), (), a.structure, None, False)
    system = system_of(point, a.order(order), curvature, engine)
    lift = None if joint.lifted is None else make_lift(a.structure, joint.lifted.is_slot)
    return Model(a, system, columns_of(joint), joint.constant, lift)


def columns_of(joint: Joint) -> Data:
    """Data of the families of f and c: of the latter alone, where f does not depend on x."""
    columns = joint.point.data
    if joint.constant is None:
        return columns
    families = joint.point.structure.families
    return tuple(c for c, f in zip(columns, families, strict=True) if not f.is_loss)


def make_box(joint: Joint, rows_scale: Array, relax: float) -> Box:
    """Limits of (x, s), scaled and relaxed."""
    rows = joint.rows
    xp = (
        jnp
        if any(isinstance(v, Tracer) for v in (joint.lower, joint.upper, rows.lower, rows.upper, rows_scale))
        else np
    )
    e, i = rows.equalities, rows.inequalities
    dtype = joint.point.structure.dtype
    unit = xp.concatenate([np.ones(len(joint.lower), dtype), rows_scale[len(e) :]])
    free = np.full(len(unit) - len(joint.lower) - len(i), np.inf)  # lifted nodes
    lower = xp.concatenate([joint.lower, rows.lower[i], -free]).astype(dtype)
    upper = xp.concatenate([joint.upper, rows.upper[i], free]).astype(dtype)
    has_lower, has_upper = xp.isfinite(lower), xp.isfinite(upper)

    def margin(limit: Array) -> Array:
        return relax * xp.clip(xp.abs(limit), 1.0, _RELAX_MOST)

    lower = xp.where(has_lower, unit * (lower - margin(lower)), lower)
    upper = xp.where(has_upper, unit * (upper + margin(upper)), upper)
    return Box(
        lower, upper, has_lower, has_upper, rows.lower[e].astype(dtype) if len(e) else np.zeros(0, dtype)
    )


def push_inside(w: Array, box: Box, push: Array, share: Array) -> Array:
    """Move a point into the interior of its limits."""
    xp = jnp if any(isinstance(v, Tracer) for v in (w, *box)) else np
    width = xp.where(box.has_lower & box.has_upper, box.upper - box.lower, np.inf)
    low = xp.minimum(push * xp.maximum(1.0, xp.abs(box.lower)), share * width)
    up = xp.minimum(push * xp.maximum(1.0, xp.abs(box.upper)), share * width)
    inside = xp.where(box.has_lower, xp.maximum(w, box.lower + low), w)
    return xp.where(box.has_upper, xp.minimum(inside, box.upper - up), inside)


def first_scale(model: Model, x: Array, values: Values) -> Scale:
    """Scale f and every row so that their first gradients are moderate."""
    xp = jnp if isinstance(x, Tracer) else np
    a = model.augmented
    zeros = [np.zeros(size, x.dtype) for size in (a.num_equalities, a.num_inequalities, model.num_lifted)]
    models = model.linearize(values, *zeros)
    read = a.size if model.lift is None else None  # a lifted objective has a gradient at every slot
    size = xp.max(xp.abs(xp.asarray(known(models.duals))[:read]), initial=0.0)
    sizes = model.row_sizes(x)

    def of(size: Array) -> Array:
        wanted = xp.where(size > _LARGEST_GRADIENT, _LARGEST_GRADIENT / xp.maximum(size, 1e-300), 1.0)
        return xp.where(xp.isfinite(wanted), xp.maximum(wanted, _LEAST_SCALE), 1.0)

    return Scale(of(size), of(sizes))


def _relax(joint: Joint) -> float:
    return max(_RELAX, 10 * joint.point.structure.eps)


def barrier_of(joint: Joint, model: Model, scale: Scale) -> Barrier:
    """The scaled problem."""
    return Barrier(model, make_box(joint, scale.rows, _relax(joint)), scale)


def prepare(joint: Joint, model: Model, x: Array, warm: Any = None) -> tuple[Barrier, Array, Dual]:
    """Scaling, limits, and a start inside of them."""
    xp = jnp if joint.is_traced or isinstance(x, Tracer) else np
    n = model.size
    rows = joint.rows
    relax = _relax(joint)
    count = len(rows.equalities) + len(rows.inequalities)
    flat = Scale(xp.ones((), x.dtype), xp.ones(count + model.num_lifted, x.dtype))
    box = make_box(joint, flat.rows, relax)
    part = Box(box.lower[:n], box.upper[:n], box.has_lower[:n], box.has_upper[:n], box.target)
    push, share = _PUSH, _PUSH_SHARE
    if warm is not None:
        push = xp.minimum(PUSH_SHARE * xp.maximum(LEAST_MU, warm.mu), _PUSH)
    inside = push_inside(xp.asarray(x), part, push, share)
    values = model.evaluate(inside)
    nodes = values.slots[:0]
    if joint.lifted is not None:
        nodes = place_nodes(joint.lifted, values.slots[n + len(rows.equalities) :])
        nodes = nodes if warm is None else warm.nodes
        values = model.evaluate(inside, nodes)
        nodes = values.slots[n + len(rows.equalities) :]
    barrier = barrier_of(joint, model, first_scale(model, inside, values))
    box = barrier.box
    c = barrier.rows_of(values)
    w = push_inside(xp.concatenate([inside, c[len(rows.equalities) : count], nodes]), box, push, share)
    if warm is not None:
        return barrier, w, first_dual(barrier, warm)
    one = xp.ones_like(w)
    dual = Dual(c * 0, xp.where(box.has_lower, one, 0.0), xp.where(box.has_upper, one, 0.0))
    return barrier, w, dual


def _fitting(joint: Joint, model: Model, warm: Any) -> Warm | None:
    """The memory of an earlier run, if it is of a problem of this size."""
    rows = joint.rows
    count = len(rows.equalities) + len(rows.inequalities) + model.num_lifted
    size = model.size + len(rows.inequalities) + model.num_lifted
    return warm if fits(warm, count, size) else None


def _resumed(settings: Settings, barrier: Barrier, warm: Warm | None) -> Settings:
    return settings if warm is None else settings._replace(mu_first=first_mu(barrier, warm))


def solve_on_host(
    joint: Joint,
    model: Model,
    settings: Settings,
    warm: Any,
    watch: Callable[[State, Any], bool | None],
    time_limit: float,
) -> Solved:
    """The loop from the host."""
    began = time.monotonic()
    history: list[Record] = []
    with quietly():
        x = known(joint.point.x)
        warm = _fitting(joint, model, warm)
        barrier, w, dual = prepare(joint, model, x, warm)
        settings = _resumed(settings, barrier, warm)
        state = begin(barrier, w, dual, settings, warm is not None)
        ended = None
        try:
            while int(state.code) == Status.RUNNING and ended is None:
                before = int(state.counts.step)
                state = advance(barrier, settings, state)
                if int(state.counts.step) > before:
                    history.append(state.record)
                    if watch(state, barrier.scale):
                        ended = Status.STOPPED
                if ended is None and time.monotonic() - began > time_limit:
                    ended = Status.TIME_LIMIT
        except KeyboardInterrupt:
            ended = Status.INTERRUPTED
    if ended is not None and int(state.code) in (Status.RUNNING, Status.MAX_STEPS):
        state = state._replace(code=np.int32(ended))
    return Solved(state, barrier, tuple(history), time.monotonic() - began)


def solve_in_jit(joint: Joint, model: Model, settings: Settings, warm: Any) -> Solved:
    """The same loop as one lax.while_loop; the history has max_steps rows, NaN behind the last step."""
    warm = _fitting(joint, model, warm)
    barrier, w, dual = prepare(joint, model, jnp.asarray(joint.point.x), warm)
    settings = _resumed(settings, barrier, warm)
    state = begin(barrier, w, dual, settings, warm is not None)
    most = int(settings.max_steps)
    blank = jax.tree_util.tree_map(
        lambda r: jnp.full((most, *jnp.shape(r)), _blank(r), jnp.result_type(r)), state.record
    )

    def once(carry: tuple[State, Record]) -> tuple[State, Record]:
        before, rows = carry
        after = advance(barrier, settings, before)
        at, moved = jnp.minimum(before.counts.step, most - 1), after.counts.step > before.counts.step
        write = lambda h, r: h.at[at].set(jnp.where(moved, r, h[at]))  # noqa: E731
        return after, jax.tree_util.tree_map(write, rows, after.record)

    def goes_on(carry: tuple[State, Record]) -> Array:
        return carry[0].code == Status.RUNNING

    state, rows = jax.lax.while_loop(goes_on, once, (state, blank))
    return Solved(state, barrier, rows, 0.0)


def _blank(record: Array) -> Any:
    return np.nan if jnp.issubdtype(jnp.result_type(record), jnp.floating) else -1


def note_moved(joint: Joint) -> None:
    """Say that the start was outside of its bounds."""
    x, lower, upper = known(joint.point.x), joint.lower, joint.upper
    if any(isinstance(v, Tracer) for v in (x, lower, upper)):
        return
    outside = (x < lower) | (x > upper)
    if outside.any():
        warnings.warn(
            f"x0 is outside of its bounds at {int(outside.sum())} of {len(x)} entries; the run begins inside of them",
            StartNotice,
            stacklevel=4,
        )
