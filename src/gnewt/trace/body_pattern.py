"""What the body of a loop couples: which outputs depend on which inputs, to first and second order.

In: a flat program. Out: a `BodyPattern`, read off the scalar graph of one iteration, for `loop_bodies` to decide whether
the body becomes one dense call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from gnewt._errors import TraceError
from gnewt.jaxprs import Program, is_float, shape_of, size_of
from gnewt.jaxprs.compat import DType
from gnewt.trace.constants import Const
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.opaque_regions import NeedRegion
from gnewt.trace.rules import Opaque
from gnewt.trace.scalar_pool import CALL, INPUT, ROW, Block, Pool

_MAX_SCALARS = 20_000
"""Bodies with more scalar operations are taken as dense."""


@dataclasses.dataclass(eq=False)
class BodyPattern:
    """Which outputs pass an argument on, which are computed, and how those depend on the arguments."""

    passed: dict[int, dict[int, int]]
    """For each output, flat place → column it passes on."""
    computed: dict[int, list[int]]
    """For each output, the flat places that are computed."""
    shapes: list[tuple[int, ...]]
    uses: np.ndarray
    jac: np.ndarray
    hess: np.ndarray
    size: int
    """Scalar operations of one iteration."""

    def density(self) -> float:
        """Fraction of argument pairs that are coupled."""
        coupled = self.hess.any(0) | (self.jac.T.astype(np.int64) @ self.jac.astype(np.int64) > 0)
        return float(coupled.mean()) if coupled.size else 1.0

    def outputs(self, lift: Lifter, values: list[Value], ids: np.ndarray | None) -> list[Value]:
        """Put the outputs together from call results and passed arguments."""
        columns = [c for v in values if not isinstance(v, Const) for c in v.reshape(v.shape[0], -1).T]
        batch = lift.ctx.batch
        outs: list[Value] = []
        at = 0
        for o, shape in enumerate(self.shapes):
            flat = np.empty((batch, size_of(shape)), np.int32)
            for place, column in self.passed.get(o, {}).items():
                flat[:, place] = columns[column]
            for place in self.computed.get(o, []):
                flat[:, place] = ids[:, at]  # type: ignore[index]
                at += 1
            outs.append(flat.reshape(batch, *shape))
        return outs


def analyse_body(lift: Lifter, body: Program, values: list[Value], sums: list[bool]) -> BodyPattern | None:
    """Lift a body once, on fresh scalars, and propagate dependence; None where it cannot be a block."""
    scratch = Lifter(lift.rules)
    scratch.forced = lift.forced
    stand_ins: list[Value] = []
    for value, var in zip(values, body.ins, strict=True):
        aval = body.avals[var]
        if isinstance(value, Const):
            stand_ins.append(
                scratch.constants.add_fixed(value.value)
                if value.fixed and value.shape[0] == 1 and value.value is not None
                else scratch.constants.add_input(None, shape_of(aval), aval.dtype)
            )
        elif not is_float(aval.dtype):
            return None
        else:
            size = size_of(aval.shape)
            stand_ins.append(scratch.add_inputs(size, aval.dtype).reshape(1, *shape_of(aval)))
    k = scratch.pool.size
    every = range(len(body.outs))
    try:
        outs = scratch.run(scratch.prepare(body, stand_ins), stand_ins)
    except (NeedRegion, Opaque, TraceError):
        outs = None
    shapes = [shape_of(body.aval(v)) for v in body.outs]
    if any(not is_float(out_dtype(body, o)) for o in every):
        return None
    if outs is None or scratch.pool.size > _MAX_SCALARS:
        computed = {o: list(range(size_of(shapes[o]))) for o in every}
        m = sum(len(p) for p in computed.values())
        dense = np.ones((m, k), bool)
        return BodyPattern({}, computed, shapes, dense, dense, np.ones((m, k, k), bool), _MAX_SCALARS)
    scratch.pool.resolve()
    target = getattr(scratch.pool, "target", None)
    passed, computed, ids = {}, {}, []
    for o, value in zip(every, outs, strict=True):
        flat = scratch.ids(value).ravel()
        flat = flat if target is None else scratch.pool.follow(target, flat)
        is_sum = sums[o]
        for place, i in enumerate(flat.tolist()):
            if 0 <= i < k and not is_sum:
                passed.setdefault(o, {})[place] = i
            else:
                computed.setdefault(o, []).append(place)
                ids.append(i)
    uses, jac, hess = propagate(scratch, k, np.array(ids, np.int64))
    return BodyPattern(passed, computed, shapes, uses, jac, hess, scratch.pool.size)


def out_dtype(body: Program, o: int) -> DType:
    """dtype of output o."""
    return body.aval(body.outs[o]).dtype


def propagate(scratch: Lifter, k: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for given scalars: which arguments the value uses, first and second derivative patterns."""
    found = _Patterns(k)
    for _, at, block, i in _in_order(scratch.pool):
        if block.kind == INPUT:
            found.set(at, 1 << at, 1 << at, 0)
        elif block.kind == CALL:
            found.add_call(block, at, i)
        else:
            found.add_operation(block, at, i)
    m = len(ids)
    uses, first, second = np.zeros((m, k), bool), np.zeros((m, k), bool), np.zeros((m, k, k), bool)
    for r, i in enumerate(ids.tolist()):
        if i >= 0:
            uses[r] = _bits(found.uses[i], k)
            first[r] = _bits(found.firsts[i], k)
            second[r] = _bits(found.seconds[i], k * k).reshape(k, k)
    return uses, first, second | second.transpose(0, 2, 1)


def _in_order(pool: Pool) -> list[tuple[int, int, Block, int]]:
    """List (moment, id, block, place in it) of all scalars in order of time; of a call the first id of each instance."""
    moments = []
    for block in pool.blocks:
        width = block.call.m if block.kind == CALL else 1
        if block.kind in (INPUT, CALL, ROW) or block.operands:
            keys = block.keys()[::width].tolist()
            moments += [(t, block.start + i * width, block, i) for i, t in enumerate(keys)]
    return sorted(moments, key=lambda moment: moment[:2])


class _Patterns:
    """What each scalar depends on, as bit sets: bit i for argument i, bit k·i + j for a pair of arguments."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.uses: dict[int, int] = {}
        self.firsts: dict[int, int] = {}
        self.seconds: dict[int, int] = {}
        self._outers: dict[tuple[int, int], int] = {}

    def set(self, at: int, use: int, first: int, second: int) -> None:
        self.uses[at], self.firsts[at], self.seconds[at] = use, first, second

    def _outer(self, a: int, b: int) -> int:
        """Return all pairs of an argument in a and one in b, in both orders."""
        if (a, b) not in self._outers:
            total = 0
            for i in range(self.k):
                if a >> i & 1:
                    total |= b << (self.k * i)
                if b >> i & 1:
                    total |= a << (self.k * i)
            self._outers[a, b] = total
        return self._outers[a, b]

    def _combine(
        self,
        operands: list[int],
        used: Sequence[bool],
        active: Sequence[bool],
        pairs: Iterable[tuple[int, int]],
    ) -> tuple[int, int, int]:
        """Return uses, first and second pattern of a function of scalars, curved along the given pairs."""
        use = first = second = 0
        for o, reads, moves in zip(operands, used, active, strict=True):
            if o >= 0:
                use |= self.uses[o] if reads else 0
                first |= self.firsts[o] if moves else 0
                second |= self.seconds[o] if moves else 0
        for a, b in pairs:
            if operands[a] >= 0 and operands[b] >= 0:
                second |= self._outer(self.firsts[operands[a]], self.firsts[operands[b]])
        return use, first, second

    def add_operation(self, block: Block, at: int, i: int) -> None:
        """Take scalar i of a block of operations or rows."""
        if block.kind == ROW:
            ptr, cols, _ = block.csr
            operands = cols[ptr[i] : ptr[i + 1]].tolist()
            active, pairs = [True] * len(operands), ()
        else:
            operands = [int(o[i]) for o in block.operands]
            active = [block.operation.is_active(j) for j in range(len(operands))]
            pairs = block.operation.pairs(len(operands))
        self.set(at, *self._combine(operands, [True] * len(operands), active, pairs))

    def add_call(self, block: Block, at: int, i: int) -> None:
        """Take the outputs of instance i of a call."""
        spec = block.call
        columns = [int(o[i]) for o in block.operands]
        every = [True] * len(columns)
        for row in range(spec.m):
            used = every if spec.uses is None else spec.uses[row].tolist()
            active = every if spec.jac is None else spec.jac[row].tolist()
            pairs = ()
            if isinstance(spec.hess, np.ndarray):
                pairs = zip(*np.nonzero(np.tril(spec.hess[row])), strict=True)
            use, first, second = self._combine(columns, used, active, pairs)
            if spec.hess is None:
                second |= self._outer(first, first)
            self.set(at + row, use, first, second)


def _bits(value: int, size: int) -> np.ndarray:
    raw = np.frombuffer(value.to_bytes(size // 8 + 1, "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little")[:size].astype(bool)
