"""Pool: the scalar graph that lifting writes, in blocks of equal operations.

A scalar has an id ≥ 0 (constants have negative ids, see `constants`). A block is a range of ids made by one
operation at many places:

- input: the scalars of the input pytree;
- op: y = op(operands), elementwise;
- row: y = Σ coef · operand, any number of terms (CSR);
- call: a whole jaxpr applied at n places, m outputs each;
- carry: placeholders for loop-carried values, aliased to the ids that define them.

Every block knows when it happens: `base[b] + offset` orders operations in time, also inside loops, where all
iterations are written at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeAlias

import jax
import numpy as np

from gnewt.jaxprs import Instr, size_of
from gnewt.jaxprs.compat import Aval, DType, Numeric
from gnewt.trace.constants import Const
from gnewt.trace.template import Op

INPUT, OP, ROW, CALL, CARRY = "input", "op", "row", "call", "carry"


@dataclasses.dataclass(frozen=True, eq=False)
class Take:
    """The columns of a call: take(lo, hi) returns the columns lo..hi-1 as one vector."""

    read: Callable[[int, int], jax.Array]
    width: int
    """How many columns there are."""

    def __call__(self, lo: int, hi: int) -> jax.Array:
        return self.read(lo, hi)


CallFunction: TypeAlias = Callable[[Take, Sequence[Numeric]], list[jax.Array]]
"""(columns, data arrays) ↦ output vectors."""


@dataclasses.dataclass(eq=False)
class CallSpec:
    """A jaxpr applied at many places: a loop body as one dense block, or an opaque operation."""

    key: Hashable
    name: str
    fn: CallFunction
    m: int
    jac: np.ndarray | None = None
    """bool[m, columns]: structural dependence; dense if None."""
    hess: np.ndarray | Literal["none"] | None = None
    """bool[m, columns, columns]: structural curvature of each output; dense if None, zero if "none"."""
    uses: np.ndarray | None = None
    """bool[m, columns]: which columns the value of an output needs; all if None."""
    note: str = ""
    loop: int | None = None
    """Identity of the equation, if this is a whole iteration of a loop that carries nothing, and short enough to lift."""
    detached: bool = False
    """Reaches the objective through zero-derivative operations only."""


@dataclasses.dataclass(eq=False)
class Block:
    """A range of ids made by one operation."""

    kind: str
    n: int
    dtype: DType
    """Says nothing for a call, whose outputs have their own."""
    base: np.ndarray
    offset: int
    instr: Instr | None = None
    op: Op | None = None
    operands: list[np.ndarray] = dataclasses.field(default_factory=list)
    """op: int32[n] for each operand; call: int32[instances] for each column."""
    ptr: np.ndarray | None = None
    cols: np.ndarray | None = None
    coefs: np.ndarray | None = None
    spec: CallSpec | None = None
    data: list[Const] = dataclasses.field(default_factory=list)
    dtypes: list[DType] = dataclasses.field(default_factory=list)
    """call: dtype of each output."""
    col_dtypes: list[DType] = dataclasses.field(default_factory=list)
    """call: dtype of each column."""
    start: int = -1
    """First id; set when the block is added to the pool."""

    @property
    def stop(self) -> int:
        return self.start + self.n

    @property
    def call(self) -> CallSpec:
        """What a call block applies."""
        assert self.spec is not None
        return self.spec

    @property
    def operation(self) -> Op:
        """What an op block applies."""
        assert self.op is not None
        return self.op

    @property
    def csr(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ptr, cols, coefs) of a row block."""
        assert self.ptr is not None and self.cols is not None and self.coefs is not None
        return self.ptr, self.cols, self.coefs

    def keys(self) -> np.ndarray:
        """int64[n]: when each scalar is made."""
        return np.repeat(self.base, self.n // len(self.base)) + self.offset


class Pool:
    """All scalars, in blocks, in the order in which lifting met them."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.size = 0
        self.alias: list[tuple[np.ndarray, np.ndarray]] = []
        """(placeholder ids, ids that define them)."""

    def add(self, block: Block) -> Block:
        block.start = self.size
        self.blocks.append(block)
        self.size += block.n
        return block

    def starts(self) -> np.ndarray:
        return np.array([b.start for b in self.blocks], np.int64)

    def resolve(self) -> np.ndarray:
        """Follow placeholders to the ids that define them (pointer jumping), everywhere.

        Returns bool[size]: the ids that loops carry; they are slots for all their consumers.
        """
        target = np.arange(self.size, dtype=np.int32)
        carried = np.zeros(self.size, bool)
        self.target = target
        if not self.alias:
            return carried
        for ids, defs in self.alias:
            target[ids.ravel()] = defs.ravel()
        while True:
            follow = np.where(target >= 0, target[np.maximum(target, 0)], target)
            if np.array_equal(follow, target):
                break
            target = follow
        for ids, _ in self.alias:
            goal = target[ids.ravel()]
            carried[goal[goal >= 0]] = True
        self._redirect(target)
        self.target = target
        return carried

    def merge(self, stands: np.ndarray, carried: np.ndarray) -> np.ndarray:
        """Let some scalars stand for others; returns which are carried now.

        Args:
            stands: int32[size]: the id that stands for each id.
            carried: as `resolve` has returned it.
        """
        self._redirect(stands)
        self.target = self.follow(stands, self.target)
        now = np.zeros_like(carried)
        now[stands[carried]] = True
        return now

    def _redirect(self, target: np.ndarray) -> None:
        for block in self.blocks:
            block.operands = [self.follow(target, o) for o in block.operands]
            if block.cols is not None:
                block.cols = self.follow(target, block.cols)

    @staticmethod
    def follow(target: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return np.where(ids >= 0, target[np.maximum(ids, 0)], ids)


def split_columns(
    values: Sequence[Const | np.ndarray], avals: Sequence[Aval]
) -> tuple[list[np.ndarray], list[DType]]:
    """Return one column, with its dtype, for every scalar of the values that depend on the variables."""
    cols: list[np.ndarray] = []
    dtypes: list[DType] = []
    for value, aval in zip(values, avals, strict=True):
        if not isinstance(value, Const):
            cols += list(value.reshape(value.shape[0], -1).T)
            dtypes += [aval.dtype] * size_of(value.shape[1:])
    return cols, dtypes


def split_arguments(
    take: Take,
    columns: Sequence[Numeric],
    shapes: Sequence[tuple[int, ...]],
    variable: Sequence[bool],
) -> list[Numeric]:
    """Put the arguments of a call together: variables from scalars begin:end, constants from data columns."""
    args: list[Numeric] = []
    at, column = 0, iter(columns)
    for shape, is_variable in zip(shapes, variable, strict=True):
        if is_variable:
            size = size_of(shape)
            args.append(take(at, at + size).reshape(shape))
            at += size
        else:
            args.append(next(column))
    return args
