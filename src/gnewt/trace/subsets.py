"""Some of the iterations of a loop: lift a part for each subset of them, and put the results together.

In: which iterations belong together, and the values of operands over all of them. Out: values over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np

from gnewt.trace.constants import Const, Known, Value, all_constant
from gnewt.trace.lift import Context, Lifter


def lift_subsets(
    lift: Lifter,
    groups: Sequence[np.ndarray],
    values: Sequence[Value],
    write: Callable[[int, list[Value]], list[Value]],
) -> list[Value]:
    """Call `write(number, operands)` for each group of iterations; their results, in the order of the iterations."""
    outer = lift.ctx
    found, end = [], outer.offset
    for b, at in enumerate(groups):
        lift.ctx = Context(len(at), outer.keys[at], outer.offset)
        found.append(write(b, [_restricted(lift, v, at) for v in values]))
        end = max(end, lift.ctx.offset)
    lift.ctx, outer.offset = outer, end
    back = np.argsort(np.concatenate(groups))
    sizes = [len(at) for at in groups]
    return [_merged(lift, parts, sizes, back) for parts in zip(*found, strict=True)]


def _restricted(lift: Lifter, value: Value, at: np.ndarray) -> Value:
    """The values of some iterations."""
    if value.shape[0] == 1:
        return value
    if not isinstance(value, Const):
        return value[at]
    shape = (len(at), *value.shape[1:])
    return lift.constants.apply(lambda xp, v: (v[at],), [value], [(shape, value.dtype)])[0]


def _merged(lift: Lifter, values: Sequence[Value], sizes: Sequence[int], back: np.ndarray) -> Value:
    """Put the results of all groups together."""

    def merge(xp: ModuleType, *parts: Known) -> tuple[Known]:
        full = [xp.broadcast_to(p, (n, *p.shape[1:])) for p, n in zip(parts, sizes, strict=True)]
        return (xp.concatenate(full)[back],)

    if all_constant(values):
        shape = (len(back), *values[0].shape[1:])
        return lift.constants.apply(merge, values, [(shape, values[0].dtype)])[0]
    return np.asarray(merge(np, *[lift.ids(v) for v in values])[0])
