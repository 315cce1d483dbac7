"""Columns of a family: constants packed into few data arrays, and the arguments of a call read from slots.

In: ids of constants, or templates of a call's arguments. Out: `Packer` and `ColumnReader`, which local functions use.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import DType
from gnewt.trace.constants import Const, Constants
from gnewt.trace.scalar_pool import Take
from gnewt.trace.template import Template


class ColumnReader:
    """Gives a call its columns: slices of x where they are plain slots, expressions elsewhere."""

    def __init__(self, templates: list[Template], amap: tuple[int, ...], dtypes: list[DType]) -> None:
        self.dtypes = dtypes
        self.places: list[tuple[Template, tuple[int, ...], int]] = []
        at_arg = at_const = 0
        for template in templates:
            self.places.append((template, amap[at_arg : at_arg + template.k], at_const))
            at_arg += template.k
            at_const += len(template.consts)
        self.plain = [t.k == 1 and not t.nodes and not t.consts for t in templates]

    def bind(self, x: jax.Array, consts: list[jax.Array]) -> Take:
        """Return the columns at given arguments and constants."""

        def take(lo: int, hi: int) -> jax.Array:
            if hi == lo:
                return jnp.zeros((0,), x.dtype)
            dtype = self.dtypes[lo]
            if all(self.plain[lo:hi]):
                index = [self.places[c][1][0] for c in range(lo, hi)]
                if index == list(range(index[0], index[0] + hi - lo)):
                    return x[index[0] : index[0] + hi - lo].astype(dtype)
                return x[np.array(index)].astype(dtype)
            values = []
            for c in range(lo, hi):
                template, where, at = self.places[c]
                inputs = [entry(x, i).astype(d) for i, d in zip(where, template.args, strict=True)]
                values += template.evaluate(inputs, consts[at : at + len(template.consts)])
            return jnp.stack([jnp.asarray(v).astype(dtype) for v in values])

        return Take(take, len(self.dtypes))


class Packer:
    """Packs constant columns into few arrays: by dtype, and by whether all instances share the value."""

    def __init__(self, constants: Constants, columns: list[np.ndarray]) -> None:
        self.place: list[tuple[int, int]] = [(0, 0)] * len(columns)
        boxes: dict[tuple[bool, np.dtype], list[int]] = {}
        for j, column in enumerate(columns):
            shared = bool((column == column[0]).all())
            boxes.setdefault((shared, np.dtype(constants.dtype_of(column[0]))), []).append(j)
        data, axes = [], []
        for b, ((shared, _), members) in enumerate(boxes.items()):
            table = np.stack([columns[j][0] if shared else columns[j] for j in members], -1)
            data.append(constants.take(table))
            axes.append(None if shared else 0)
            for i, j in enumerate(members):
                self.place[j] = (b, i)
        self.data: tuple[Const, ...] = tuple(data)
        self.axes: tuple[int | None, ...] = tuple(axes)

    def unpack(self, data: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the scalars of one instance, in the order of the columns."""
        return [entry(data[b], i) for b, i in self.place]


def entry(values: jax.Array, i: int) -> jax.Array:
    """Return values[i]. JAX takes ten times as long to trace the brackets."""
    if not isinstance(values, jax.Array):
        return values[i]
    return jax.lax.index_in_dim(values, i, keepdims=False)
