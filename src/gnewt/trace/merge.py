"""Merge: equal blocks of the scalar graph become one, so that a rollout which is called twice is there once.

Two blocks are equal if they apply one operation to equal operands. Loops carry values back to blocks that come earlier, so
equality is assumed at first and refuted until nothing changes: what remains holds by induction over time. Scans of one body
with other outputs, and loops that share a part of their carries, agree in the blocks that they share.

Constants are equal if they are made by the same steps from the same values. Equal values that a function captured in two
places count as one, and are watched: where they differ at a later call, another structure is made.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from gnewt.jaxprs import Instr, Program
from gnewt.trace.constants import Const, Constants
from gnewt.trace.scalar_pool import CALL, CARRY, INPUT, OP, ROW, Block, Pool

_MAX_ROUNDS = 60
"""Rounds of refutation; each follows differences once through all blocks, and once around their loops."""


def merge_equal(pool: Pool, constants: Constants) -> np.ndarray | None:
    """Find equal blocks; returns int32[size]: the id that stands for each id, or None where nothing is equal.

    Placeholders of loops must have been resolved. Cost: rounds × size of the blocks that may have an equal.
    """
    numbers = _Numbers(constants)
    kinds = [_kind(block, numbers) for block in pool.blocks]
    count = Counter(kinds)
    several = [b for b, kind in enumerate(kinds) if kind is not None and count[kind] > 1]
    if not several:
        return None
    labels = _refute(pool, kinds, several, numbers)
    if labels is None:
        return None
    return _chosen(pool, labels, several, numbers)


def _refute(
    pool: Pool, kinds: Sequence[Hashable], several: Sequence[int], numbers: _Numbers
) -> list[int] | None:
    """Number the blocks so that equal ones agree; None if that takes too long."""
    names: dict[Hashable, int] = {}
    labels = [names.setdefault((kind, None if kind is not None else b), b) for b, kind in enumerate(kinds)]
    # The identity of a scalar is its block's label and its place there: one array, renewed label by label.
    known = np.empty(pool.size, np.int64)
    place = np.empty(pool.size, np.int64)
    for block, label in zip(pool.blocks, labels, strict=True):
        place[block.start : block.stop] = np.arange(block.n)
        known[block.start : block.stop] = pool.blocks[label].start
    for _ in range(_MAX_ROUNDS):
        changed = False
        first: dict[Hashable, int] = {}
        for b in several:
            block = pool.blocks[b]
            key = (labels[b], kinds[b], *_operands(block, known, place, numbers))
            label = first.setdefault(key, b)
            if label != labels[b]:
                labels[b], changed = label, True
                known[block.start : block.stop] = pool.blocks[label].start
        if not changed:
            return labels
    return None


def _operands(block: Block, known: np.ndarray, place: np.ndarray, numbers: _Numbers) -> tuple[bytes, ...]:
    """Content of the operands: equal for equal blocks."""

    def content(ids: np.ndarray) -> bytes:
        at = np.maximum(ids, 0)
        return np.where(ids >= 0, known[at] + place[at], numbers.of(ids)).tobytes()

    if block.kind == ROW:
        ptr, cols, coefs = block.csr
        return ptr.tobytes(), content(cols), np.where(coefs >= 0, coefs, numbers.of(coefs)).tobytes()
    return tuple(content(o) for o in block.operands)


def _chosen(
    pool: Pool, labels: Sequence[int], several: Sequence[int], numbers: _Numbers
) -> np.ndarray | None:
    """Let the first of equal blocks stand for the others, where it is also made before them."""
    stands = np.arange(pool.size, dtype=np.int32)
    found = False
    for b in several:
        block, first = pool.blocks[b], pool.blocks[labels[b]]
        if first is block or np.any(first.keys() > block.keys()):
            continue
        stands[block.start : block.stop] = np.arange(first.start, first.stop, dtype=np.int32)
        found = True
    if not found:
        return None
    numbers.watch()
    return stands


def _kind(block: Block, numbers: _Numbers) -> Hashable | None:
    """What two equal blocks agree in, their operands apart; None for what is never equal."""
    if block.kind in (INPUT, CARRY):
        return None
    if block.kind == OP:
        return OP, id(block.op), block.n, str(block.dtype)
    if block.kind == ROW:
        return ROW, block.n, len(block.csr[1]), str(block.dtype)
    assert block.kind == CALL
    spec = block.call
    data = tuple(numbers.entry(c) for c in block.data)
    types = (*map(str, block.dtypes), None, *map(str, block.col_dtypes))
    return CALL, spec.key, spec.m, spec.loop is None, spec.detached, block.n, data, types


class _Numbers:
    """Numbers of constants: equal for equal ones."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.alike: list[tuple[int, int]] = []
        made = {out: (fn, ins, i) for fn, ins, outs in constants.steps for i, out in enumerate(outs)}
        structural: dict[Hashable, int] = {}
        by_value: dict[Hashable, int] = {}
        self.numbers = np.empty(len(constants.entries), np.int64)
        self.roots: list[frozenset[int]] = []
        for const in constants.entries:
            first = structural.setdefault(self._key(const, made), const.index)
            number = first if first == const.index else int(self.numbers[first])
            ins = made[const.index][1] if const.index in made else ()
            roots = frozenset().union(*(self.roots[i] for i in ins))
            if isinstance(const.value, np.ndarray) and not const.fixed and number == const.index:
                # Equal now, and from the same values: by different steps, or captured twice.
                key = const.value.tobytes(), const.shape, str(const.dtype), roots
                number = by_value.setdefault(key, number)
                if number != const.index:
                    self.alike.append((number, const.index))
            self.numbers[const.index] = number
            self.roots.append(roots if const.index in made or const.fixed else frozenset([number]))

    def _key(self, const: Const, made: dict[int, tuple]) -> Hashable:
        form = const.shape, str(const.dtype)
        if const.index in made:
            fn, ins, at = made[const.index]
            return "step", self.step_key(fn), tuple(int(self.numbers[i]) for i in ins), at, form
        if const.fixed and isinstance(const.value, np.ndarray):
            return "fixed", const.value.tobytes(), form
        return "one", const.index

    def entry(self, const: Const) -> int:
        return int(self.numbers[const.index])

    def of(self, ids: np.ndarray) -> np.ndarray:
        """int64: a negative number for every element that is named by a negative id."""
        if not len(ids) or ids.min() >= 0:
            return np.zeros(ids.shape, np.int64)
        starts, owners = self.constants.owners
        elements = -1 - np.minimum(ids, -1).astype(np.int64)
        which = np.searchsorted(starts, elements, side="right") - 1
        return -1 - (self.numbers[owners[which]] << 32) - (elements - starts[which])

    def watch(self) -> None:
        """Make it part of the structure's identity that captured values are equal."""
        for a, b in self.alike:
            self.constants.watch_alike(a, b)

    def step_key(self, fn: object) -> Hashable:
        """What two functions agree in that do the same: code and captured values; else the object itself."""
        if isinstance(fn, functools.partial):
            return (
                "partial",
                self.step_key(fn.func),
                self.step_key(fn.args),
                self.step_key(tuple(sorted(fn.keywords.items()))),
            )
        if isinstance(fn, types.FunctionType):
            try:
                cells = tuple(self.step_key(c.cell_contents) for c in fn.__closure__ or ())
            except ValueError:  # a cell that is not filled yet
                return "object", id(fn)
            return "code", id(fn.__code__), cells, self.step_key(fn.__defaults__ or ())
        if isinstance(fn, Instr):
            avals = tuple((a.shape, str(a.dtype)) for a in (*fn.in_avals, *fn.out_avals))
            return ("object", id(fn)) if fn.region is not None else ("instr", fn.key, avals)
        if isinstance(fn, Const):
            return "const", int(self.numbers[fn.index])
        if isinstance(fn, Program):
            return ("object", id(fn)) if fn.key is None else ("program", fn.key)
        if isinstance(fn, np.ndarray):
            return "array", fn.shape, str(fn.dtype), fn.tobytes()
        if isinstance(fn, tuple | list):
            return (type(fn).__name__, *(self.step_key(v) for v in fn))
        if isinstance(fn, bool | int | float | str | type(None) | np.dtype | slice):
            return type(fn).__name__, str(fn)
        return "object", id(fn)
