"""Rules for reductions other than sums: max, min and prod over axes, and scattered maxima and minima.

In: ids of operands. Out: ids. A maximum of many values is a sum in which one term survives: its derivative selects, so the
values are not coupled. A product of many values is a tree of small products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Instr, is_float
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.indices import join_batch, scatter_index
from gnewt.jaxprs.primitives import primitive
from gnewt.trace.call_rules import MAX_COLUMNS
from gnewt.trace.constants import PLUS
from gnewt.trace.elementwise_rules import fold_or_write
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.rules import Opaque, rule
from gnewt.trace.scalar_pool import CallSpec, Take
from gnewt.trace.sum_rules import reduced_terms
from gnewt.trace.template import Op

_REDUCERS = {
    "reduce_max": jax.lax.reduce_max,
    "reduce_min": jax.lax.reduce_min,
    "reduce_prod": jax.lax.reduce_prod,
    "scatter-max": jax.lax.reduce_max,
    "scatter-min": jax.lax.reduce_min,
}
"""What reduces the values that an equation brings together."""
_GROUP = 8
"""As many values are reduced by one operation, with JAX's own derivative."""


@rule("reduce_max", "reduce_min", "reduce_prod")
def _reduce(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    terms = reduced_terms(lift, instr, ins[0])
    if terms.shape[-1] > _GROUP and instr.prim != "reduce_prod" and not lift.detached:
        return [_select(lift, instr, terms)]
    return [_tree(lift, instr, terms, lift.detached)]


@rule("scatter-max", "scatter-min")
def _scatter(lift: Lifter, instr: Instr, ins: list[Value]) -> list[Value]:
    """Reduce the old value of every place that is hit and its updates.

    An equation without a rule is JAX's, and JAX's forward mode is wrong where indices out of bounds are clipped.
    """
    if not is_float(instr.out_avals[0].dtype):
        raise Opaque("a scattered maximum of integers that depend on the variables")
    index = scatter_index(instr, lift.watch(ins[1]))
    array, index, update = join_batch([lift.ids(ins[0]), index, lift.ids(ins[2])])
    batch = array.shape[0]
    out, index, update = (a.reshape(batch, -1) for a in (np.array(array), index, update))
    hit = np.unique(index[index >= 0])
    if not hit.size:
        return [array]
    terms = _scattered_terms(out[:, hit], np.searchsorted(hit, index), index >= 0, update)
    out[:, hit] = _tree(lift, instr, terms, lift.detached)
    return [out.reshape(array.shape)]


def _scattered_terms(old: np.ndarray, place: np.ndarray, valid: np.ndarray, update: np.ndarray) -> np.ndarray:
    """[B, places, terms]: the old value of every place and its updates; the old value again where there are fewer."""
    batch, count = old.shape
    row, at = np.nonzero(valid)
    target = row * count + place[row, at]
    order = np.argsort(target, kind="stable")
    first = np.searchsorted(target[order], target[order])
    rank = np.arange(len(order)) - first
    terms = np.repeat(old.reshape(-1, 1), 2 + rank.max(), axis=1)
    terms[target[order], 1 + rank] = update[row, at][order]
    return terms.reshape(batch, count, -1)


def _tree(lift: Lifter, instr: Instr, terms: np.ndarray, detached: bool) -> np.ndarray:
    """Reduce the last axis in groups, level by level; places where all values are constant stay constant."""
    while terms.shape[-1] > 1:
        count = terms.shape[-1]
        whole = count - count % _GROUP
        level = []
        if whole:
            level.append(
                _group(lift, instr, terms[..., :whole].reshape(*terms.shape[:-1], -1, _GROUP), detached)
            )
        if count > whole:
            last = terms[..., None, whole:]
            level.append(last[..., 0] if last.shape[-1] == 1 else _group(lift, instr, last, detached))
        terms = np.concatenate(level, -1)
    return terms[..., 0]


def _group(lift: Lifter, instr: Instr, groups: np.ndarray, detached: bool) -> np.ndarray:
    count = groups.shape[-1]
    op = _reduction_op(lift, instr, count, detached)
    dtype = instr.out_avals[0].dtype
    operands = [np.ascontiguousarray(groups[..., i]) for i in range(count)]
    return fold_or_write(lift, instr, operands, op, lambda rest: lift.add_op(op, rest, dtype))


def _reduction_op(lift: Lifter, instr: Instr, count: int, detached: bool) -> Op:
    key = (instr.prim, count, np.dtype(instr.out_avals[0].dtype), detached)
    if key not in lift.ops:
        reduce = _REDUCERS[instr.prim]

        def fn(values: Sequence[jax.Array]) -> jax.Array:
            stacked = jnp.stack(values)
            return reduce(jax.lax.stop_gradient(stacked) if detached else stacked, (0,))

        # What reaches the objective through zero-derivative operations only couples nothing.
        active = (False,) * count if detached else None
        curved = "none" if detached else primitive(instr.prim).curvature
        lift.ops[key] = Op(key, instr.prim, fn, active, curved)
    return lift.ops[key]


# A maximum over many values


def _select(lift: Lifter, instr: Instr, terms: np.ndarray) -> np.ndarray:
    """y = Σ [x_i = m] x_i / Σ [x_i = m], where m, the maximum, is data: equal values share the derivative, as in JAX."""
    dtype = instr.out_avals[0].dtype
    # Computed twice, in two programs, a value might differ in the last bit.
    terms = lift.hold(terms, dtype)
    top, ties = _extreme(lift, instr, terms)
    chosen = _op(lift, ("chosen", np.dtype(dtype)), _chosen)
    share = _op(lift, ("share", np.dtype(dtype)), _share)
    tops = np.broadcast_to(top[..., None], terms.shape)
    parts = lift.add_op(chosen, [terms, np.ascontiguousarray(tops)], dtype)
    return lift.add_op(share, [lift.add_sum(parts, PLUS, dtype), ties], dtype)


def _chosen(values: Sequence[jax.Array]) -> jax.Array:
    x, top = values
    return jnp.where(x == jax.lax.stop_gradient(top), x, jnp.zeros_like(x))


def _share(values: Sequence[jax.Array]) -> jax.Array:
    total, ties = values
    return total / jax.lax.stop_gradient(ties)


def _op(lift: Lifter, key: tuple[str, np.dtype], fn: Callable[[Sequence[jax.Array]], jax.Array]) -> Op:
    if key not in lift.ops:
        lift.ops[key] = Op(key, key[0], fn, (True, False), "none")
    return lift.ops[key]


def _extreme(lift: Lifter, instr: Instr, terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The maximum over the last axis, and how many values attain it, as data."""
    count, dtype = terms.shape[-1], instr.out_avals[0].dtype
    if count > MAX_COLUMNS:
        top = lift.hold(_tree(lift, instr, terms, True), dtype)
        equal = Op(("equal", np.dtype(dtype)), "equal", _equal, (False, False), "none")
        equal = lift.ops.setdefault(equal.key, equal)
        tops = np.ascontiguousarray(np.broadcast_to(top[..., None], terms.shape))
        return top, lift.add_sum(lift.add_op(equal, [terms, tops], dtype), PLUS, dtype)
    reduce = _REDUCERS[instr.prim]

    def fn(take: Take, _: Sequence[Numeric]) -> list[jax.Array]:
        x = jax.lax.stop_gradient(take(0, count))
        top = reduce(x, (0,))
        return [jnp.stack([top, jnp.sum(x == top, dtype=x.dtype)])]

    spec = CallSpec(
        ("extreme", instr.prim, count, np.dtype(dtype)),
        instr.prim,
        fn,
        2,
        np.zeros((2, count), bool),
        "none",
        detached=True,
    )
    places = terms.reshape(terms.shape[0], -1, count)
    found = [
        lift.add_call(spec, list(places[:, p].T), [], [dtype] * 2, [dtype] * count)
        for p in range(places.shape[1])
    ]
    both = np.stack(found, 1).reshape(*terms.shape[:-1], 2)
    return both[..., 0], both[..., 1]


def _equal(values: Sequence[jax.Array]) -> jax.Array:
    x, top = values
    return jax.lax.stop_gradient((x == top).astype(x.dtype))
