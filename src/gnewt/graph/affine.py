"""Index vectors as strided slices: what XLA fuses, where a gather or a scatter would be a loop of its own.

Arguments of a loop over time, of a vector or of a grid lie at start + Σ strideᵢ·iᵢ. Such index vectors are found
once per structure (host, integers); reading and adding through them is slicing, reshaping and padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._typing import Array

_MAX_PIECES = 8
"""More pieces than this are read by one gather."""
_WORTH_A_SLICE = 16
"""Places for which one more slice is worth its compile time."""
_WORTH_READING_APART = 256
"""Places for which one more slice is worth its compile time where all can be read at once: a gather reads a place in a
nanosecond, and slices are put together by a loop of their own."""
_MAX_COLUMNS = 64
"""A table with more columns than this is read as a whole."""


@dataclasses.dataclass(frozen=True)
class Strided:
    """The index vector start + Σ strideᵢ·iᵢ over 0 ≤ i < shape, in row-major order of i."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_nested(self) -> bool:
        """Whether the places (repetitions apart) are distinct and each stride steps over all inner ones."""
        extent = 1
        for stride, length in sorted((abs(s), n) for s, n in zip(self.strides, self.shape, strict=True) if s):
            if stride < extent:
                return False
            extent += stride * (length - 1)
        return True


Pieces = tuple[Strided, ...]
"""An index vector, piece after piece."""


def find_pieces(index: np.ndarray) -> Pieces | None:
    """Write an index vector as few strided pieces, or return None. O(length)."""
    index = np.asarray(index, np.int64).ravel()
    whole = _nest(index)
    if whole is not None and whole.is_nested:
        return (whole,)
    pieces = []
    at = 0
    while at < len(index):
        if len(pieces) == _MAX_PIECES:
            return None
        rest = index[at:]
        step = int(rest[1] - rest[0]) if len(rest) > 1 else 0
        breaks = np.flatnonzero(np.diff(rest) != step)
        length = int(breaks[0]) + 1 if len(breaks) else len(rest)
        pieces.append(Strided(int(rest[0]), (length,), (step,)))
        at += length
    return tuple(pieces)


def _nest(index: np.ndarray) -> Strided | None:
    """Write an index vector as one strided piece of up to four axes, or return None."""
    shape: list[int] = []
    strides: list[int] = []
    while len(index) > 1:
        if len(shape) == 4:
            return None
        step = index[1] - index[0]
        breaks = np.flatnonzero(np.diff(index) != step)
        length = int(breaks[0]) + 1 if len(breaks) else len(index)
        if len(index) % length:
            return None
        rows = index.reshape(-1, length)
        if np.any(rows != rows[:, :1] + step * np.arange(length)):
            return None
        shape.insert(0, length)
        strides.insert(0, int(step))
        index = rows[:, 0]
    return Strided(int(index[0]), tuple(shape), tuple(strides)) if len(index) else None


def read_pieces(values: jax.Array, pieces: Pieces) -> jax.Array:
    """Return values[index] along the first axis."""
    parts = [_read(values, piece) for piece in pieces]
    if not parts:
        return values[:0]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def take_places(values: jax.Array, index: np.ndarray) -> jax.Array:
    """Return values[index] for an index known now, by slices where few suffice: they fuse, a gather does not."""
    pieces = find_pieces(index)
    return values[index] if pieces is None else read_pieces(values, pieces)


def _read(values: jax.Array, piece: Strided) -> jax.Array:
    low, order, flips = _positive(piece)
    rest = values.shape[1:]
    extent = _extent(piece, order)
    out = jax.lax.slice_in_dim(values, low, low + extent)
    for axis in order:
        # out has the axes read so far, then one axis that covers what remains.
        stride, length = abs(piece.strides[axis]), piece.shape[axis]
        at = out.ndim - 1 - len(rest)
        if axis == order[-1]:
            out = jax.lax.slice_in_dim(out, 0, stride * (length - 1) + 1, stride, at)
            break
        inner = out.shape[at] - stride * (length - 1)
        out = _resize(out, length * stride, at)
        out = out.reshape(*out.shape[:at], length, stride, *rest)
        out = jax.lax.slice_in_dim(out, 0, inner, axis=at + 1)
    if not order:
        out = out.reshape(rest)
    out = jnp.flip(out, flips) if flips else out
    out = jnp.transpose(out, [*np.argsort(order), *range(len(order), out.ndim)]) if len(order) > 1 else out
    shape = [n if s else 1 for n, s in zip(piece.shape, piece.strides, strict=True)]
    return jnp.broadcast_to(out.reshape(*shape, *rest), (*piece.shape, *rest)).reshape(piece.size, *rest)


def add_pieces(total: jax.Array, pieces: Pieces, values: jax.Array) -> jax.Array:
    """Add values[i] to total[index[i]]; places may repeat."""
    at = 0
    for piece in pieces:
        part = values if piece.size == len(values) else jax.lax.slice_in_dim(values, at, at + piece.size)
        total = _add(total, piece, part)
        at += piece.size
    return total


def _add(total: jax.Array, piece: Strided, values: jax.Array) -> jax.Array:
    """The transpose of `_read`: sum repetitions, spread by padding, add to the slice."""
    low, order, flips = _positive(piece)
    values = values.reshape(piece.shape)
    repeated = [axis for axis, stride in enumerate(piece.strides) if not stride]
    values = jnp.sum(values, repeated) if repeated else values
    kept = [axis for axis, stride in enumerate(piece.strides) if stride]
    values = jnp.transpose(values, [kept.index(axis) for axis in order]) if len(order) > 1 else values
    values = jnp.flip(values, flips) if flips else values
    inner = 1
    for axis in reversed(order):
        stride, length = abs(piece.strides[axis]), piece.shape[axis]
        if inner == 1 and values.ndim == len(order):
            values = values.reshape(*values.shape, 1)
        at = values.ndim - 1
        values = _resize(values, stride, at)
        values = values.reshape(*values.shape[: at - 1], length * stride)
        inner += stride * (length - 1)
        values = jax.lax.slice_in_dim(values, 0, inner, axis=values.ndim - 1)
    values = values.reshape(inner)
    here = jax.lax.slice_in_dim(total, low, low + inner)
    return jax.lax.dynamic_update_slice(total, here + values.astype(total.dtype), (low,))


def _positive(piece: Strided) -> tuple[int, list[int], list[int]]:
    """Lowest place; axes that move, outermost (largest stride) first; places in that order to be reversed."""
    order = sorted((a for a, s in enumerate(piece.strides) if s), key=lambda a: -abs(piece.strides[a]))
    flips = [i for i, axis in enumerate(order) if piece.strides[axis] < 0]
    low = piece.start + sum(min(0, s) * (n - 1) for s, n in zip(piece.strides, piece.shape, strict=True))
    return low, order, flips


def _extent(piece: Strided, order: list[int]) -> int:
    return 1 + sum(abs(piece.strides[a]) * (piece.shape[a] - 1) for a in order)


def _resize(x: jax.Array, length: int, axis: int) -> jax.Array:
    """Pad an axis with zeros at its end to the given length."""
    if x.shape[axis] == length:
        return x
    config = [(0, length - x.shape[axis] if a == axis else 0, 0) for a in range(x.ndim)]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), config)


@dataclasses.dataclass(frozen=True)
class Index:
    """An index vector for compiled code: strided pieces, or (at) the place of its array among the maps."""

    size: int
    pieces: Pieces | None
    at: int = -1

    def read(self, values: jax.Array, maps: Maps) -> jax.Array:
        """Return values[index]."""
        return gather(values, maps[self.at]) if self.pieces is None else read_pieces(values, self.pieces)

    def add(self, total: jax.Array, values: jax.Array, maps: Maps) -> jax.Array:
        """Add values[i] to total[index[i]]."""
        if self.pieces is None:
            places = total.at[maps[self.at]]
            return places.add(
                values.astype(total.dtype), mode="promise_in_bounds", wrap_negative_indices=False
            )
        return add_pieces(total, self.pieces, values)


def gather(values: jax.Array, index: Array) -> jax.Array:
    """Return values[index] along the first axis, for an index map: all its places exist."""
    return jnp.asarray(values).at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


@dataclasses.dataclass(frozen=True)
class Table:
    """An index table int[n, k]: columns to read one by one, blocks of neighbouring columns to add to."""

    shape: tuple[int, int]
    columns: tuple[Index, ...]
    """One for each column, or empty where there are too many of them."""
    blocks: tuple[tuple[int, int, Index], ...]
    """(first column, end, places row by row): each block is one slice where that is possible."""
    whole: int = -1
    """Where it is read at once, the place of the transposed table among the maps."""

    def read(self, values: jax.Array, maps: Maps) -> jax.Array:
        """Return values[table], the columns first: [k, n]."""
        if self.whole >= 0:
            return gather(values, maps[self.whole])
        if self.columns and self.shape[0] > 1:
            return jnp.stack([column.read(values, maps) for column in self.columns])
        return self.read_rows(values, maps).T

    def read_rows(self, values: jax.Array, maps: Maps) -> jax.Array:
        """Return values[table]: [n, k]."""
        n, k = self.shape
        parts = [index.read(values, maps).reshape(n, end - first) for first, end, index in self.blocks]
        if len(parts) == 1:
            return parts[0]
        return jnp.concatenate(parts, axis=1) if parts else jnp.zeros((n, k), values.dtype)

    def add(self, total: jax.Array, columns: Sequence[jax.Array | None] | jax.Array, maps: Maps) -> jax.Array:
        """Add columns[j][i] to total[table[i, j]]; None stands for a column of zeros."""
        for first, end, index in self.blocks:
            if isinstance(columns, jax.Array):
                values = columns[first:end].T
            else:
                part = columns[first:end]
                if all(column is None for column in part):
                    continue
                zero = jnp.zeros(self.shape[0], total.dtype)
                values = jnp.stack([zero if c is None else c.astype(total.dtype) for c in part], axis=1)
            total = index.add(total, values.reshape(-1), maps)
        return total


Maps = Sequence[Array]
"""The index arrays that have no strided form, as arguments of compiled functions."""


def distinct_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First rows of each kind, and the kind of every row. Hashes bytes: np.unique would compare columns."""
    number: dict[bytes, int] = {}
    kind = np.array([number.setdefault(row.tobytes(), len(number)) for row in table], np.int64)
    first = np.full(len(number), len(table), np.int64)
    np.minimum.at(first, kind, np.arange(len(table)))
    return first, kind


class IndexMaker:
    """Prepares index vectors and tables; collects the arrays that compiled functions take as arguments."""

    def __init__(self, at_once: bool = False) -> None:
        self.arrays: list[np.ndarray] = []
        self._at_once = at_once
        """Tables are read by one gather where slices would be short; they are written to by slices all the same."""

    def array(self, array: np.ndarray) -> int:
        """Register an array; return its place among the maps."""
        self.arrays.append(np.ascontiguousarray(array, np.int32))
        return len(self.arrays) - 1

    def index(self, vector: np.ndarray, most: int = _MAX_PIECES) -> Index:
        """Prepare an index vector (raveled), with at most so many pieces."""
        vector = np.ravel(vector)
        pieces = find_pieces(vector)
        if pieces is not None and len(pieces) <= max(1, most):
            return Index(len(vector), pieces)
        return Index(len(vector), None, self.array(vector))

    def table(self, table: np.ndarray, most: int | None = None) -> Table:
        """Prepare an index table [n, k], with at most so many slices, else as one gather.

        A slice costs as much to compile as a gather of any length, so that few places are worth few slices.

        Args:
            table: places.
            most: slices, at most; by default as many as the number of places is worth.
        """
        n, k = table.shape
        at_once = self._at_once and most is None
        most = 1 + table.size // _WORTH_A_SLICE if most is None else most
        columns = [find_pieces(column) for column in table.T] if k <= _MAX_COLUMNS else [None]
        blocks = _blocks(table, columns) if None not in columns else []
        needed = sum(len(pieces) for _, _, pieces in blocks if pieces is not None)
        reads = sum(len(pieces) for pieces in columns if pieces is not None)
        if n > 1:
            needed = max(needed, reads)
        if None in columns or needed > most:
            return Table((n, k), (), ((0, k, self.index(table, most)),) if k else ())
        return Table(
            (n, k),
            tuple(Index(n, pieces) for pieces in columns),
            tuple((first, end, Index(n * (end - first), pieces)) for first, end, pieces in blocks),
            self.array(table.T)
            if at_once and n > 1 and reads > 1 and table.size < reads * _WORTH_READING_APART
            else -1,
        )


def _blocks(table: np.ndarray, columns: Sequence[Pieces | None]) -> list[tuple[int, int, Pieces | None]]:
    """Join neighbouring columns whose places, row by row, form one strided piece: (first, end, pieces)."""
    k = table.shape[1]
    blocks: list[tuple[int, int, Pieces | None]] = []
    first = 0
    while first < k:
        end, pieces = first + 1, columns[first]
        while end < k:
            wider = _nest(table[:, first : end + 1].ravel().astype(np.int64))
            if wider is None or not wider.is_nested:
                break
            end, pieces = end + 1, (wider,)
        blocks.append((first, end, pieces))
        first = end
    return blocks
