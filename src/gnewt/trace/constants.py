"""Constants: everything that does not depend on the inputs, as a small program run anew at every call.

A constant array is an entry of a straight-line program (the *prelude*) from captured values and extra
arguments to data columns. Where all values are known the program runs in NumPy, at once (eager JAX would
compile each new operation and shape); where some are tracers of the caller it runs in JAX and only shapes
are known while lifting. A value that shapes the structure is *watched*: it becomes part of the cache key.

Arrays carry a leading batch axis, of length 1 or of the number of loop iterations they are lifted over.
Each scalar of a constant array can be named by a negative id, so constants and variables share id arrays.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.jaxprs import as_known, size_of
from gnewt.jaxprs.compat import DType, Numeric

PLUS, MINUS = 0, 1
"""Coefficients +1 and -1 that come from the code itself; every other coefficient is a (negative) constant id."""


Known: TypeAlias = np.ndarray | jax.Array
"""A known array: NumPy's, except for PRNG keys."""
Shape: TypeAlias = Sequence[int]
PreludeStep: TypeAlias = Callable[..., Sequence[Known]]
"""One step of the prelude: step(numpy or jax.numpy, *values) ↦ values."""


class Unknown(Exception):
    """A value that would shape the structure is a tracer."""


@dataclasses.dataclass(slots=True, eq=False)
class Const:
    """One constant array of the prelude."""

    index: int
    shape: tuple[int, ...]
    """With the leading batch axis."""
    dtype: DType
    value: Known | None
    """None if it depends on a tracer."""
    fixed: bool
    """Depends on literals only: the same at every call."""
    start: int = -1
    """First element number, or -1 while its elements have no ids."""


Value: TypeAlias = Const | np.ndarray
"""What a variable holds while lifting: a `Const`, or int32 ids of shape [1 | batch, *shape]."""


def all_constant(values: Sequence[Value]) -> TypeGuard[Sequence[Const]]:
    """Whether no value depends on the variables."""
    return all(isinstance(v, Const) for v in values)


class Constants:
    """The prelude under construction, and its replay."""

    def __init__(self) -> None:
        self.entries: list[Const] = []
        self.inputs: list[int] = []
        self.steps: list[tuple[PreludeStep, tuple[int, ...], tuple[int, ...]]] = []
        self.watched: dict[tuple[int, str], bytes] = {}
        self.alike: list[tuple[int, int]] = []
        """Entries of equal values that were taken for one."""
        self._starts: list[int] = []
        self._owners: list[int] = []
        self._num_elements = 0
        self._scalars: dict[tuple[bytes, DType], Const] = {}

    # Entries

    def _entry(self, shape: Shape, dtype: DType, value: Known | None, fixed: bool) -> Const:
        const = Const(len(self.entries), tuple(shape), dtype, value, fixed)
        self.entries.append(const)
        return const

    def add_input(self, value: Numeric | None, shape: Shape, dtype: DType) -> Const:
        """Add a captured array or an extra argument; `value` is None for a tracer."""
        const = self._entry((1, *shape), dtype, None if value is None else as_known(value)[None], False)
        self.inputs.append(const.index)
        return const

    def add_fixed(self, value: Known) -> Const:
        """Add a value that comes from the program text."""
        return self._entry(value.shape, value.dtype, value, True)

    def apply(
        self, fn: PreludeStep, ins: Sequence[Const], outs: Sequence[tuple[Shape, DType]]
    ) -> list[Const]:
        """Add the step `fn(xp, *values) -> tuple` with outputs of the given (shape, dtype)."""
        known = all(c.value is not None for c in ins)
        fixed = all(c.fixed for c in ins)
        values: Sequence[Known | None] = [None] * len(outs)
        if known:
            values = fn(np, *[c.value for c in ins])
        consts = [
            self._entry(shape, dtype, value, fixed)
            for (shape, dtype), value in zip(outs, values, strict=True)
        ]
        if not fixed:
            self.steps.append((fn, tuple(c.index for c in ins), tuple(c.index for c in consts)))
        return consts

    # Values that shape the structure

    def watch(self, const: Const, kind: str = "value") -> np.ndarray:
        """Return the value and make it part of the cache key.

        Of kind "zeros" only where it is nonzero counts, and is returned; of kind "units" where it is zero and where one.
        """
        if const.value is None:
            raise Unknown
        if not const.fixed:
            self.watched[const.index, kind] = _digest(const.value, kind)
        value = np.asarray(const.value)
        return value != 0 if kind == "zeros" else value

    def watch_alike(self, a: int, b: int) -> None:
        """Make it part of the cache key that two entries are equal."""
        self.alike.append((a, b))

    @property
    def owners(self) -> tuple[np.ndarray, np.ndarray]:
        """First element number of every constant whose elements have ids, in rising order, and whose it is."""
        return np.asarray(self._starts, np.int64), np.asarray(self._owners, np.int64)

    def run(self, inputs: Sequence[Numeric]) -> tuple[list[Known], bool]:
        """Replay with new inputs; returns the values of all entries, and whether the watched ones agree."""
        values: list[Known] = [c.value if c.fixed else None for c in self.entries]  # type: ignore[misc]
        for index, value in zip(self.inputs, inputs, strict=True):
            values[index] = value[None] if isinstance(value, Tracer) else as_known(value)[None]
        for fn, ins, outs in self.steps:
            args = [values[i] for i in ins]
            xp = jnp if any(isinstance(a, Tracer) for a in args) else np
            for i, value in zip(outs, fn(xp, *args), strict=True):
                values[i] = value
        for (index, kind), digest in self.watched.items():
            if isinstance(values[index], Tracer) or _digest(values[index], kind) != digest:
                return values, False
        if any(_differ(values[a], values[b]) for a, b in self.alike):
            return values, False
        return values, True

    # Elements

    def elements(self, const: Const) -> np.ndarray:
        """Return the ids of all scalars of a constant, in its shape."""
        size = size_of(const.shape)
        if const.start < 0 and size:
            const.start = self._num_elements
            self._starts.append(const.start)
            self._owners.append(const.index)
            self._num_elements += size
        return (-1 - const.start - np.arange(size, dtype=np.int32)).reshape(const.shape)

    def scalar(self, value: Numeric, dtype: DType) -> int:
        """Return the id of a literal; equal literals share one id."""
        array = np.asarray(value, dtype)
        return int(self.elements(self.scalar_const(array, array.dtype))[0])

    def scalar_const(self, value: Numeric, dtype: DType) -> Const:
        """Return the constant that holds a literal; equal literals share one."""
        array = np.asarray(value, dtype)
        key = (array.tobytes(), array.dtype)
        if key not in self._scalars:
            self._scalars[key] = self.add_fixed(array.reshape(1))
        return self._scalars[key]

    def take(self, ids: np.ndarray) -> Const:
        """Collect elements into one new constant of the shape of `ids`."""
        elements = -1 - ids.ravel().astype(np.int64)
        place = np.searchsorted(self._starts, elements, side="right") - 1
        used, local = np.unique(place, return_inverse=True)
        owners = [self.entries[self._owners[p]] for p in used]
        sizes = [size_of(c.shape) for c in owners]
        shift = np.concatenate([[0], np.cumsum(sizes)])[:-1] - np.asarray(self._starts)[used]
        index = (elements + shift[local.ravel()]).reshape(ids.shape)
        dtype = owners[0].dtype

        def step(xp: ModuleType, *values: Known) -> tuple[Known]:
            flat = [xp.ravel(v) for v in values]
            return ((flat[0] if len(flat) == 1 else xp.concatenate(flat))[index],)

        return self.apply(step, owners, [(ids.shape, dtype)])[0]

    def value_of(self, ids: np.ndarray) -> Known | None:
        """Return the values of elements that are fixed, None if any is not."""
        const = self.take(ids)
        return const.value if const.fixed else None

    # Arithmetic of coefficients: arrays of PLUS, MINUS or constant ids

    def times(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Multiply coefficients elementwise."""
        out = np.where(a == PLUS, b, a)
        both = (a >= 0) & (b >= 0)
        out[both] = a[both] ^ b[both]
        hard = np.flatnonzero((a != PLUS) & (b != PLUS) & ~both)
        if hard.size:
            out[hard] = self._product(a[hard], b[hard])
        return out

    def _product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # Equal products share an id: a constant weight times a constant coefficient stays one constant.
        pairs, inverse = np.unique(np.stack([a, b]), axis=1, return_inverse=True)
        ids = []
        negative = pairs < 0
        sign = np.where(pairs == MINUS, -1, 1).prod(0)
        dtype = self.dtype_of(pairs[negative][0])
        first = self.take(np.where(negative[0], pairs[0], self.scalar(1, dtype)))
        second = self.take(np.where(negative[1], pairs[1], self.scalar(1, dtype)))
        product = self.apply(
            lambda xp, x, y: ((x * y * sign).astype(dtype),), [first, second], [(sign.shape, dtype)]
        )[0]
        ids = self.elements(product)
        return ids[inverse.ravel()]

    def sums(self, group: np.ndarray, coefs: np.ndarray, num: int, dtype: DType) -> np.ndarray:
        """Add coefficients that share a group number; every group has at least one."""
        counts = np.bincount(group, minlength=num)
        out = np.zeros(num, np.int32)
        out[group] = coefs
        many = counts[group] > 1
        if many.any():
            ids = self.as_ids(coefs[many], dtype)
            groups, local = np.unique(group[many], return_inverse=True)
            local = local.ravel()
            size = len(groups)

            def step(xp: ModuleType, v: Known) -> tuple[Known]:
                if xp is np:
                    return (np.bincount(local, v, size).astype(dtype),)
                return (jnp.zeros(size, dtype).at[local].add(v),)

            total = self.apply(step, [self.take(ids)], [((size,), dtype)])[0]
            out[groups] = self.elements(total)
        return out

    def as_ids(self, coefs: np.ndarray, dtype: DType) -> np.ndarray:
        """Replace PLUS and MINUS by the ids of the literals 1 and -1."""
        if not np.any(coefs >= 0):
            return coefs
        one, minus = self.scalar(1, dtype), self.scalar(-1, dtype)
        return np.where(coefs == PLUS, one, np.where(coefs == MINUS, minus, coefs)).astype(np.int32)

    def dtype_of(self, element: int | np.integer) -> DType:
        return self.entries[self._owners[bisect.bisect_right(self._starts, -1 - int(element)) - 1]].dtype

    def by_dtype(self, ids: np.ndarray) -> list[tuple[np.dtype, np.ndarray]]:
        """Split element ids by dtype: (dtype, positions)."""
        if len(ids) == 1:
            return [(np.dtype(self.dtype_of(ids[0])), np.zeros(1, np.int64))]
        place = np.searchsorted(self._starts, -1 - ids.astype(np.int64), side="right") - 1
        used, local = np.unique(place, return_inverse=True)
        dtypes = [np.dtype(self.entries[self._owners[p]].dtype) for p in used]
        distinct = list(dict.fromkeys(dtypes))
        code = np.array([distinct.index(d) for d in dtypes])[local.ravel()]
        return [(d, np.flatnonzero(code == i)) for i, d in enumerate(distinct)]


def _differ(a: Known, b: Known) -> bool:
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is not b
    return np.asarray(a).tobytes() != np.asarray(b).tobytes()


def _digest(value: Numeric, kind: str) -> bytes:
    array = np.asarray(value)
    if kind == "value":
        return array.tobytes()
    zeros = np.packbits(array != 0).tobytes()
    return zeros if kind == "zeros" else zeros + np.packbits(array == 1).tobytes()
