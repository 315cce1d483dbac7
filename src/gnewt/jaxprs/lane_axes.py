"""Lanes, equation by equation: along which axis of its results an equation does the same thing to every slice of its operands.

In: an equation and, for each operand, the axis that numbers the lanes (None: all lanes share the operand). Out: the axis of
each operand that the equation needs, and the axis of each result. `NotLanes` where an equation mixes lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from gnewt.jaxprs.primitives import primitive
from gnewt.jaxprs.program import Instr, shape_of, size_of

Axis: TypeAlias = int | None
Axes: TypeAlias = Sequence[Axis]
Step: TypeAlias = tuple[list[Axis], list[Axis]]
"""(axis that each operand must have, axis of each result)."""


class NotLanes(Exception):
    """An equation mixes lanes, or nothing is known about it."""


def follow_axes(instr: Instr, axes: Axes) -> Step:
    """Follow the lanes through one equation, some operand of which has them."""
    known = primitive(instr.prim)
    if known.elementwise:
        return _together(instr, axes, lambda a: a)
    if instr.prim in _RULES:
        return _RULES[instr.prim](instr, axes)
    if instr.prim in _CORE:
        return _leading(instr, axes)
    if known.repeats or instr.prim in ("argmax", "argmin"):
        over = instr.params["axes"]
        return _together(instr, axes, lambda a: a - sum(o < a for o in over), over)
    raise NotLanes(instr.prim)


def _together(
    instr: Instr, axes: Axes, move: Callable[[int], int], taken: Sequence[int] = (), scalars: bool = True
) -> Step:
    """All operands have the lanes along the same axis, which the equation moves; scalars may stand beside them."""
    found = {a for a in axes if a is not None}
    if len(found) != 1 or found & set(taken):
        raise NotLanes(instr.prim)
    (axis,) = found
    wanted = [None if scalars and not aval.shape else axis for aval in instr.in_avals]
    return wanted, [move(axis)] * len(instr.outs)


def _first(instr: Instr, axes: Axes) -> int:
    """The axis of the first operand; the others are shared."""
    if axes[0] is None or any(a is not None for a in axes[1:]):
        raise NotLanes(instr.prim)
    return axes[0]


def _shared_rest(instr: Instr, axis: int, out: int) -> Step:
    return [axis, *[None] * (len(instr.ins) - 1)], [out] * len(instr.outs)


# Movement


def _reshape(instr: Instr, axes: Axes) -> Step:
    axis = _first(instr, axes)
    before, after = shape_of(instr.in_avals[0]), shape_of(instr.out_avals[0])
    for out, size in enumerate(after):
        if size == before[axis] and size_of(after[:out]) == size_of(before[:axis]):
            return _shared_rest(instr, axis, out)
    raise NotLanes(instr.prim)


def _broadcast(instr: Instr, axes: Axes) -> Step:
    axis = _first(instr, axes)
    return _shared_rest(instr, axis, int(instr.params["broadcast_dimensions"][axis]))


def _transpose(instr: Instr, axes: Axes) -> Step:
    axis = _first(instr, axes)
    return _shared_rest(instr, axis, list(instr.params["permutation"]).index(axis))


def _slice(instr: Instr, axes: Axes) -> Step:
    axis = _first(instr, axes)
    if shape_of(instr.in_avals[0])[axis] != shape_of(instr.out_avals[0])[axis]:
        raise NotLanes(instr.prim)
    return _shared_rest(instr, axis, axis)


def _pad(instr: Instr, axes: Axes) -> Step:
    axis = _first(instr, axes)
    if tuple(instr.params["padding_config"][axis]) != (0, 0, 0):
        raise NotLanes(instr.prim)
    return _shared_rest(instr, axis, axis)


def _tile(instr: Instr, axes: Axes) -> Step:
    return _together(instr, axes, lambda a: a, [i for i, n in enumerate(instr.params["reps"]) if n != 1])


def _along(name: str) -> Callable[[Instr, Axes], Step]:
    """Equations that work along the axis given by a parameter, and leave the other axes alone."""

    def follow(instr: Instr, axes: Axes) -> Step:
        return _together(instr, axes, lambda a: a, (instr.params[name],), scalars=False)

    return follow


def _reverse(instr: Instr, axes: Axes) -> Step:
    return _together(instr, axes, lambda a: a, instr.params["dimensions"])


def _stack(instr: Instr, axes: Axes) -> Step:
    at = instr.params["axis"]
    return _together(instr, axes, lambda a: a + (a >= at), scalars=False)


def _unstack(instr: Instr, axes: Axes) -> Step:
    at = instr.params["axis"]
    return _together(instr, axes, lambda a: a - (a > at), (at,))


# Indices


def _dynamic_update(instr: Instr, axes: Axes) -> Step:
    found = {a for a in axes[:2] if a is not None}
    if len(found) != 1 or any(a is not None for a in axes[2:]):
        raise NotLanes(instr.prim)
    (axis,) = found
    if shape_of(instr.in_avals[0])[axis] != shape_of(instr.in_avals[1])[axis]:
        raise NotLanes(instr.prim)
    return [axis, axis, *axes[2:]], [axis]


_SCATTERS = ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")


def _gather(instr: Instr, axes: Axes) -> Step:
    d, (operand, index) = instr.params["dimension_numbers"], axes
    rank = len(instr.out_avals[0].shape)
    batch = [i for i in range(rank) if i not in d.offset_dims]
    pairs = dict(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
    if operand in pairs and index in (None, pairs[operand]):
        return [operand, pairs[operand]], [batch[pairs[operand]]]
    if operand is None and index is not None and index < len(instr.in_avals[1].shape) - 1:
        back = {i: o for o, i in pairs.items()}
        return [back.get(index), index], [batch[index]]
    if operand is None or index is not None or operand in d.collapsed_slice_dims:
        raise NotLanes(instr.prim)
    size = shape_of(instr.in_avals[0])[operand]
    if operand in d.start_index_map or instr.params["slice_sizes"][operand] != size:
        raise NotLanes(instr.prim)
    kept = [a for a in range(len(instr.in_avals[0].shape)) if a not in (*d.collapsed_slice_dims, *pairs)]
    return [operand, None], [int(d.offset_dims[kept.index(operand)])]


def _scatter(instr: Instr, axes: Axes) -> Step:
    d, (operand, index, update) = instr.params["dimension_numbers"], axes
    rank, updates = len(instr.in_avals[0].shape), shape_of(instr.in_avals[2])
    batch = [i for i in range(len(updates)) if i not in d.update_window_dims]
    pairs = dict(zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True))
    kept = [a for a in range(rank) if a not in (*d.inserted_window_dims, *pairs)]
    for axis in range(rank):
        if axis in pairs:
            wanted = [axis, pairs[axis], batch[pairs[axis]]]
        elif axis in kept and axis not in d.scatter_dims_to_operand_dims:
            wanted = [axis, None, int(d.update_window_dims[kept.index(axis)])]
            if updates[wanted[2]] != shape_of(instr.in_avals[0])[axis]:
                continue
        else:
            continue
        if all(a in (None, w) for a, w in zip((operand, index, update), wanted, strict=True)):
            return wanted, [axis]
    raise NotLanes(instr.prim)


def follow_numbers(instr: Instr, axes: Axes, columns: Collection[int]) -> Step:
    """Follow the lanes where an index array holds, at these columns, the number of the lane: it picks the lane itself."""
    if instr.prim == "gather":
        d = instr.params["dimension_numbers"]
        starts, dropped, rank, window = (
            d.start_index_map,
            d.collapsed_slice_dims,
            instr.out_avals[0],
            d.offset_dims,
        )
    elif instr.prim in _SCATTERS:
        d = instr.params["dimension_numbers"]
        starts, dropped = d.scatter_dims_to_operand_dims, d.inserted_window_dims
        rank, window = instr.in_avals[2], d.update_window_dims
    else:
        raise NotLanes("a number of the lane that is no index")
    picked = [int(starts[c]) for c in columns]
    batch = [i for i in range(len(rank.shape)) if i not in window]
    index = axes[1]
    if len(picked) != 1 or picked[0] not in dropped or index is None or index >= len(batch):
        raise NotLanes(instr.prim)
    own = batch[index]
    all_three: list[Axis] = [picked[0], index, own]
    wanted = all_three[: len(axes)]
    if any(a not in (None, w) for a, w in zip(axes, wanted, strict=True)):
        raise NotLanes(instr.prim)
    return wanted, [own if instr.prim == "gather" else picked[0]]


# Products and linear algebra


def _dot_general(instr: Instr, axes: Axes) -> Step:
    (contract_a, contract_b), (batch_a, batch_b) = instr.params["dimension_numbers"]
    left, right = axes
    for i, pair in enumerate(zip(batch_a, batch_b, strict=True)):
        if left in (None, pair[0]) and right in (None, pair[1]):
            return [int(pair[0]), int(pair[1])], [i]
    if left is not None and right is not None:
        raise NotLanes(instr.prim)
    free_a = [i for i in range(len(instr.in_avals[0].shape)) if i not in (*contract_a, *batch_a)]
    free_b = [i for i in range(len(instr.in_avals[1].shape)) if i not in (*contract_b, *batch_b)]
    if left in free_a:
        return [left, None], [len(batch_a) + free_a.index(left)]
    if right in free_b:
        return [None, right], [len(batch_a) + len(free_a) + free_b.index(right)]
    raise NotLanes(instr.prim)


_CORE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("cholesky", "lu", "eigh", "eig", "svd", "qr", "geqrf", "schur", "hessenberg"), (2,)),
    **dict.fromkeys(("tridiagonal", "symmetric_product"), (2,)),
    "triangular_solve": (2, 2),
    "householder_product": (2, 1),
    "lu_pivots_to_permutation": (1,),
    "tridiagonal_solve": (1, 1, 1, 2),
    "top_k": (1,),
}
"""Linear algebra: the number of axes, at the end of each operand, that belong together."""


def _leading(instr: Instr, axes: Axes) -> Step:
    core = _CORE[instr.prim]
    batch = {len(a.shape) - c for a, c in zip(instr.in_avals, core, strict=True)}
    found = {a for a in axes if a is not None}
    if len(batch) != 1 or len(found) != 1 or max(found) >= min(batch):
        raise NotLanes(instr.prim)
    (axis,) = found
    return [axis] * len(axes), [axis] * len(instr.outs)


def _fft(instr: Instr, axes: Axes) -> Step:
    rank = len(instr.in_avals[0].shape)
    core = range(rank - len(instr.params["fft_lengths"]), rank)
    return _together(instr, axes, lambda a: a, core)


_RULES: dict[str, Callable[[Instr, Axes], Step]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    **dict.fromkeys(
        ("copy", "optimization_barrier", "device_put"), lambda i, axes: _together(i, axes, lambda a: a)
    ),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "rev": _reverse,
    **dict.fromkeys(("slice", "dynamic_slice"), _slice),
    "pad": _pad,
    "tile": _tile,
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split"), _along("axis")),
    **dict.fromkeys(("sort", "concatenate"), _along("dimension")),
    "stack": _stack,
    "unstack": _unstack,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    **dict.fromkeys(_SCATTERS, _scatter),
    "dot_general": _dot_general,
    "fft": _fft,
}


def narrow_params(instr: Instr, wanted: Axes, outs: Axes) -> dict[str, object]:
    """Parameters of the equation where the axis of the lanes has length 1."""
    params = dict(instr.params)
    axis, out = wanted[0], outs[0]
    if instr.prim in ("reshape", "broadcast_in_dim"):
        name = "new_sizes" if instr.prim == "reshape" else "shape"
        params[name] = _replaced(shape_of(instr.out_avals[0]), out, 1)
    elif instr.prim == "slice":
        params["limit_indices"] = _replaced(params["limit_indices"], axis, 1)
    elif instr.prim in ("dynamic_slice", "gather") and axis is not None:
        params["slice_sizes"] = _replaced(params["slice_sizes"], axis, 1)
    return params


def _replaced(values: Sequence[int], at: Axis, value: int) -> tuple[int, ...]:
    return tuple(value if i == at else v for i, v in enumerate(values))
