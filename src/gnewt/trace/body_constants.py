"""Constants of a long loop body that shape its derivatives: integers, and entries that are zero or one.

In: a body and the values of its inputs. Out: the constants that stay data, and a function that puts the arguments
together. The equations of a physics engine are general, its models are not: indices come from arrays, and most entries of axes,
frames and inertias are zero. Once these are part of the structure, most of the equations vanish from written-out
derivatives. They are watched: a model with other zeros has another structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Program, is_float, size_of
from gnewt.jaxprs.compat import Numeric
from gnewt.trace.constants import Const
from gnewt.trace.lift import Lifter, Value

LONG_BODY = 300
"""Equations from which a body is worth it; below, data costs little and structures should not depend on zeros."""
_MAX_SIZE = 4096
"""Entries of an array that is looked into."""


@dataclasses.dataclass(frozen=True, eq=False)
class Settled:
    """What is known of one constant: entries that are part of the structure, and whether any others remain."""

    known: np.ndarray
    values: np.ndarray
    whole: bool

    def key(self) -> Hashable:
        return (self.known.tobytes(), self.values.tobytes(), self.values.dtype.str)

    def fill(self, column: Numeric | None) -> Numeric:
        """Return the constant, given its data column."""
        if self.whole or column is None:
            return jnp.asarray(self.values)
        return jnp.where(self.known, self.values, column)


def settle_constants(lift: Lifter, body: Program, values: Sequence[Value]) -> list[Settled | None]:
    """Return for each constant input of a body what becomes part of the structure; None elsewhere."""
    if len(body.instrs) < LONG_BODY:
        return [None] * len(values)
    return [_settle(lift, value) if isinstance(value, Const) else None for value in values]


def _settle(lift: Lifter, const: Const) -> Settled | None:
    if const.value is None or const.shape[0] != 1 or not 0 < size_of(const.shape) <= _MAX_SIZE:
        return None
    if jnp.issubdtype(const.dtype, np.number) or const.dtype == np.bool_:
        value = np.asarray(const.value)[0]
        if const.fixed or not is_float(const.dtype):
            lift.watch(const)
            return Settled(np.ones(value.shape, bool), value, True)
        lift.watch(const, "units")
        known = (value == 0) | (value == 1)
        return Settled(known, np.where(known, value, 0).astype(value.dtype), bool(known.all()))
    return None
