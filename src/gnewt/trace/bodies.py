"""Bodies: what a loop body couples, read off its scalar graph before it is written as one dense block."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gnewt._errors import TraceError
from gnewt.jaxprs import Lit, Program, is_float, shape_of
from gnewt.trace.constants import Const
from gnewt.trace.lift import Lifter, Value
from gnewt.trace.pool import CALL, INPUT, ROW, Block
from gnewt.trace.regions import NeedRegion
from gnewt.trace.rules import Opaque

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
            flat = np.empty((batch, int(np.prod(shape, dtype=np.int64))), np.int32)
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
            size = int(np.prod(aval.shape, dtype=np.int64))
            stand_ins.append(scratch.add_inputs(size, aval.dtype).reshape(1, *shape_of(aval)))
    k = scratch.pool.size
    every = range(len(body.outs))
    try:
        outs = scratch.run(scratch.prepare(body, stand_ins), stand_ins)
    except (NeedRegion, Opaque, TraceError):
        outs = None
    shapes = [v.shape if isinstance(v, Lit) else shape_of(body.avals[v]) for v in body.outs]
    if any(not is_float(out_dtype(body, o)) for o in every):
        return None
    if outs is None or scratch.pool.size > _MAX_SCALARS:
        computed = {o: list(range(int(np.prod(shapes[o], dtype=np.int64)))) for o in every}
        m = sum(len(p) for p in computed.values())
        dense = np.ones((m, k), bool)
        return BodyPattern({}, computed, shapes, dense, dense, np.ones((m, k, k), bool))
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
    return BodyPattern(passed, computed, shapes, uses, jac, hess)


def out_dtype(body: Program, o: int) -> Any:
    """dtype of output o."""
    out = body.outs[o]
    return out.dtype if isinstance(out, Lit) else body.avals[out].dtype


def propagate(scratch: Lifter, k: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for given scalars: which arguments the value uses, first and second derivative patterns.

    Bit sets in Python integers: bit i of a first pattern, bit k·i + j of a second one.
    """
    uses: dict[int, int] = {}
    firsts: dict[int, int] = {}
    seconds: dict[int, int] = {}
    moments = []
    for block in scratch.pool.blocks:
        if block.kind == INPUT:
            for i in range(block.start, block.stop):
                uses[i] = firsts[i] = 1 << i
                seconds[i] = 0
        elif block.kind == CALL:
            width = block.call.m
            keys = block.keys()[::width]
            moments += [(int(t), block.start + i * width, block, i) for i, t in enumerate(keys)]
        elif block.operands or block.kind == ROW:
            moments += [(int(t), block.start + i, block, i) for i, t in enumerate(block.keys())]
    moments.sort(key=lambda m: m[:2])
    outers: dict[tuple[int, int], int] = {}

    def outer(a: int, b: int) -> int:
        if (a, b) not in outers:
            total = 0
            for i in range(k):
                if a >> i & 1:
                    total |= b << (k * i)
                if b >> i & 1:
                    total |= a << (k * i)
            outers[a, b] = total
        return outers[a, b]

    for _, at, block, i in moments:
        if block.kind == CALL:
            _propagate_call(block, at, i, uses, firsts, seconds, outer)
            continue
        if block.kind == ROW:
            operands = block.cols[block.ptr[i] : block.ptr[i + 1]].tolist()
            active, pairs = [True] * len(operands), ()
        else:
            operands = [int(o[i]) for o in block.operands]
            active = [block.op.is_active(j) for j in range(len(operands))]
            pairs = block.op.pairs(len(operands))
        use = first = second = 0
        for o, on in zip(operands, active, strict=True):
            if o >= 0:
                use |= uses[o]
                if on:
                    first |= firsts[o]
                    second |= seconds[o]
        for a, b in pairs:
            if operands[a] >= 0 and operands[b] >= 0:
                second |= outer(firsts[operands[a]], firsts[operands[b]])
        uses[at], firsts[at], seconds[at] = use, first, second
    m = len(ids)
    out_uses, out_first = np.zeros((m, k), bool), np.zeros((m, k), bool)
    out_second = np.zeros((m, k, k), bool)
    for r, i in enumerate(ids.tolist()):
        if i < 0:
            continue
        out_uses[r] = _bits(uses[i], k)
        out_first[r] = _bits(firsts[i], k)
        out_second[r] = _bits(seconds[i], k * k).reshape(k, k)
    return out_uses, out_first, out_second | out_second.transpose(0, 2, 1)


def _propagate_call(
    block: Block, at: int, i: int, uses: dict, firsts: dict, seconds: dict, outer: Any
) -> None:
    spec = block.call
    columns = [int(o[i]) for o in block.operands]
    for row in range(spec.m):
        use = first = second = 0
        for c, o in enumerate(columns):
            if o < 0:
                continue
            if spec.uses is None or spec.uses[row, c]:
                use |= uses[o]
            if spec.jac is None or spec.jac[row, c]:
                first |= firsts[o]
                second |= seconds[o]
        if spec.hess is None:
            second |= outer(first, first)
        elif not isinstance(spec.hess, str):
            for a, b in zip(*np.nonzero(np.tril(spec.hess[row])), strict=True):
                if columns[a] >= 0 and columns[b] >= 0:
                    second |= outer(firsts[columns[a]], firsts[columns[b]])
        uses[at + row], firsts[at + row], seconds[at + row] = use, first, second


def _bits(value: int, size: int) -> np.ndarray:
    raw = np.frombuffer(value.to_bytes(size // 8 + 1, "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little")[:size].astype(bool)
