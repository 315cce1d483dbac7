"""Extract: write the expressions of many instances down, following one of them and checking the others in lockstep.

In: the scalar pool, what is a leaf, and for each instance the ids of its results. Out: templates with the arguments and
constants of the instances that they fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gnewt.trace.constants import Constants
from gnewt.trace.fuse import Fuser
from gnewt.trace.scalar_pool import CALL, OP
from gnewt.trace.template import Op, Ref, row_op

MAX_NODES = 2_000
"""Operations of an expression; longer ones are not extracted."""
MAX_KINDS = 32
"""Different expressions of results that are made at the same places; more are not extracted."""


@dataclasses.dataclass(eq=False)
class Extract:
    """An expression with several results, and the instances that it fits."""

    rows: np.ndarray
    """Places of the instances among those that were given."""
    nodes: list[tuple[Op, tuple[Ref, ...]]]
    outs: list[Ref]
    args: np.ndarray
    """int32[n, k]: ids of leaves, no two of them equal in an instance."""
    consts: np.ndarray
    """int32[n, c]: ids of constants."""
    inner: list[np.ndarray]
    """For each node the ids of its values."""


class Extractor:
    """Follows expressions down to leaves."""

    def __init__(self, fuser: Fuser, constants: Constants, leaf: np.ndarray) -> None:
        self.fuser, self.pool, self.constants, self.leaf = fuser, fuser.pool, constants, leaf
        self.dtype_of = np.zeros(self.pool.size, np.int32)
        """A number for the dtype of each scalar."""
        self.dtypes: list[np.dtype] = []
        for block in self.pool.blocks:
            found = block.dtypes if block.kind == CALL else [block.dtype]
            codes = [self._dtype_code(np.dtype(d)) for d in found]
            self.dtype_of[block.start : block.stop] = np.tile(codes, block.n // len(codes))

    def _dtype_code(self, dtype: np.dtype) -> int:
        if dtype not in self.dtypes:
            self.dtypes.append(dtype)
        return self.dtypes.index(dtype)

    def run(self, roots: np.ndarray) -> tuple[list[Extract], np.ndarray]:
        """Extract the expressions of roots [n, r]; also return the instances that are too long or too various."""
        found: list[Extract] = []
        rest = np.arange(len(roots))
        most = min(8 + len(rest) // 16, MAX_KINDS)
        while rest.size:
            walk = _Walk(self, roots[rest])
            if len(found) == most or not walk.run():
                return found, rest
            extract = walk.extract()
            extract.rows = rest[walk.fits]
            found.append(extract)
            rest = rest[~walk.fits]
        return found, rest


class _Walk:
    """Follows the expression of the first instance; `fits` says which others have the same."""

    def __init__(self, extractor: Extractor, roots: np.ndarray) -> None:
        self.ex = extractor
        self.fits = np.ones(len(roots), bool)
        self.outs: list[int] = [int(i) for i in roots[0]]
        self.columns: dict[int, np.ndarray] = {i: roots[:, j] for j, i in enumerate(self.outs)}
        """Of values, by the id in the first instance. What is defined here may be a leaf elsewhere."""
        self.operands: dict[int, tuple[Op, list[Ref | int]]] = {}
        self.leaves: dict[int, int] = {}
        self.consts: list[np.ndarray] = []
        self.const_at: dict[int, list[int]] = {}
        self.waiting = list(self.outs)

    def run(self) -> bool:
        """Walk; False if the expression is too long."""
        while self.waiting:
            if len(self.operands) > MAX_NODES:
                return False
            self._expand(self.waiting.pop())
        self._check_arguments()
        return True

    def _meet(self, column: np.ndarray) -> Ref | int:
        """Return what an operand is: a reference to a leaf or constant, or the id of a value in the first instance."""
        first = int(column[0])
        if first < 0:
            self.fits &= column < 0
            return ("c", self._constant(first, column))
        if first in self.columns:
            self.fits &= column == self.columns[first]
        else:
            self.columns[first] = column
            if self.ex.leaf[first]:
                self.leaves[first] = len(self.leaves)
            else:
                self.waiting.append(first)
        return ("a", self.leaves[first]) if first in self.leaves else first

    def _constant(self, first: int, column: np.ndarray) -> int:
        known = self.const_at.setdefault(first, [])
        for j in known:
            if np.array_equal(self.consts[j], column):
                return j
        known.append(len(self.consts))
        self.consts.append(column)
        return known[-1]

    def _expand(self, first: int) -> None:
        """Find the operation that makes a value, and meet its operands."""
        ex = self.ex
        b = int(np.searchsorted(ex.fuser.starts, first, side="right")) - 1
        block, column = ex.pool.blocks[b], self.columns[first]
        self.fits &= (column >= block.start) & (column < block.stop)
        places = np.where(self.fits, column, first) - block.start
        if first not in self.outs:
            self.fits &= ~ex.leaf[places + block.start]
        if block.kind == OP:
            self.operands[first] = (block.operation, [self._meet(o[places]) for o in block.operands])
            return
        ptr, cols, coefs = ex.fuser.rows[b]
        begin = ptr[places]
        count = int(ptr[places[0] + 1] - begin[0])
        self.fits &= ptr[places + 1] - begin == count
        begin = np.where(self.fits, begin, begin[0])
        factors = [coefs[begin + t] for t in range(count)]
        signs = tuple(2 if f[0] < 0 else int(f[0]) for f in factors)
        for factor, sign in zip(factors, signs, strict=True):
            self.fits &= factor < 0 if sign == 2 else factor == sign
        refs = [self._meet(cols[begin + t]) for t in range(count)]
        refs += [self._meet(f) for f, sign in zip(factors, signs, strict=True) if sign == 2]
        self.operands[first] = (row_op(signs), refs)

    def _check_arguments(self) -> None:
        """Split off instances in which two arguments are one, or types differ."""
        ex = self.ex
        for first in self.leaves:
            column = np.maximum(self.columns[first], 0)
            self.fits &= (self.columns[first] >= 0) & ex.leaf[column]
            self.fits &= ex.dtype_of[column] == ex.dtype_of[first]
        for column in self.consts:
            if (column == column[0]).all():
                continue
            parts = ex.constants.by_dtype(np.where(column < 0, column, column[0]))
            if len(parts) > 1:
                same = np.zeros(len(column), bool)
                same[next(at for _, at in parts if (at == 0).any())] = True
                self.fits &= same
        if len(self.leaves) > 1:
            table = np.sort(np.stack([self.columns[i] for i in self.leaves], 1), 1)
            self.fits &= (table[:, 1:] != table[:, :-1]).all(1)

    def extract(self) -> Extract:
        """Number the values in the order in which they were made."""
        order = sorted(self.operands)
        number = {first: i for i, first in enumerate(order)}

        def refer(refs: Sequence[Ref | int]) -> tuple[Ref, ...]:
            return tuple(("n", number[r]) if isinstance(r, int) else r for r in refs)

        nodes = [(op, refer(refs)) for op, refs in (self.operands[first] for first in order)]
        fits = self.fits
        n = int(fits.sum())
        args = [self.columns[i][fits] for i in self.leaves]
        consts = [c[fits] for c in self.consts]
        empty = np.zeros((n, 0), np.int32)
        return Extract(
            np.zeros(0, np.int64),
            nodes,
            list(refer(self.outs)),
            np.stack(args, 1) if args else empty,
            np.stack(consts, 1) if consts else empty,
            [self.columns[first][fits] for first in order],
        )
