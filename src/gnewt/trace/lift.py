"""Lift: interpret a program on arrays of scalar ids, writing a `Pool` and a prelude of constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs import Instr, Lit, Program, as_known, bind_instr, shape_of, size_of, where_of
from gnewt.jaxprs.compat import Aval, DType
from gnewt.jaxprs.liveness import dependents, last_reads, read_variables
from gnewt.jaxprs.primitives import fold_instr, primitive
from gnewt.trace.constants import Const, Constants, Known, Unknown, Value, all_constant
from gnewt.trace.opaque_regions import close_regions
from gnewt.trace.rules import RULES, Opaque, Rule
from gnewt.trace.scalar_pool import CALL, CARRY, INPUT, OP, ROW, Block, CallSpec, Pool
from gnewt.trace.template import Op
from gnewt.trace.unrolled_loops import roll_program

Distrust: TypeAlias = frozenset[str] | None
"""What is to be opaque: lines (`file:line`), LOOPS; None for the whole function."""
LOOPS = "loops"
"""All loops and branches of the function itself."""


@dataclasses.dataclass(eq=False)
class Context:
    """Where lifting stands: how many loop iterations at once, and when each of them happens."""

    batch: int
    keys: np.ndarray
    """int64[batch]."""
    offset: int = 0


@dataclasses.dataclass(eq=False)
class Seen:
    """The values of variables, as lifting left them."""

    share: bool
    """Whether equal outputs of a loop body are one: so that kept outputs do not double the slots of what is carried."""
    runs: dict[int, tuple[Program, dict[int, Value]]] = dataclasses.field(default_factory=dict)
    """Programs that were run, by the identity of their list of variables."""
    loops: dict[int, tuple[Any, dict[int, Value]]] = dataclasses.field(default_factory=dict)
    """For each lifted loop (by the identity of its equation) its `LoopCarries`, and the values inside its body."""


class Lifter:
    """Interprets programs. One per structure; the rules (tables) are replaceable."""

    def __init__(self, rules: dict[str, Rule] | None = None) -> None:
        self.rules = RULES if rules is None else rules
        self.constants = Constants()
        self.pool = Pool()
        self.ctx = Context(1, np.zeros(1, np.int64))
        self.ops: dict[Hashable, Op] = {}
        self.hoisted: list[Const] = []
        self.instr: Instr | None = None
        self.read_vars: set[int] = set()
        self.prepared: dict[tuple[int, tuple[bool, ...]], tuple[Program, Program]] = {}
        self.forced: set[int] = set()
        """Equations (by identity) found opaque with results that cannot be slots."""
        self.trips: dict[Hashable, int] = {}
        """While loops (by the keys of their equations) that were lifted, and how many iterations JAX needs for them."""
        self.reverse_only = False
        """Whether JAX can take second derivatives of the function in reverse mode alone."""
        self.distrust: frozenset[str] = frozenset()
        """Equations that a check found wrong: by line, or all loops."""
        self.inside: frozenset[int] = frozenset()
        """Loops (by identity) that are to be lifted inside, although they could be calls."""
        self.apart = False
        """Whether bodies of loops are written part by part, so that loops share parts."""
        self.settled = False
        """Whether it is settled which loops are lifted inside."""
        self.lift_again: Callable[[frozenset[int]], tuple[Lifter, list[np.ndarray]]]
        """Lifts the program again, with other loops inside; set where the program is lifted."""
        self.enclosing: list[Instr] = []
        """The loops we are inside of."""
        self.detached = False
        """Whether the current equation reaches the outputs through zero-derivative operations only."""
        self.seen: Seen | None = None
        """What `outputs` asks for after lifting; None where there is no auxiliary data."""

    # Programs

    def run(self, program: Program, values: Sequence[Value]) -> list[Value]:
        """Interpret a program on given input values."""
        env: dict[int, Value] = dict(zip(program.ins, values, strict=True))
        for var, at in program.consts:
            env[var] = self.hoisted[at]
        last = last_reads(program)
        differentiated = differentiated_vars(program)
        outer, self.read_vars = self.read_vars, read_variables(program.instrs, program.outs)
        for i, instr in enumerate(program.instrs):
            self.detached = differentiated.isdisjoint(instr.outs)
            ins = [self.literal(v) if isinstance(v, Lit) else env[v] for v in instr.ins]
            for var, value in zip(instr.outs, self.apply(instr, ins), strict=True):
                env[var] = value
            for v in last[i] if self.seen is None else ():  # id arrays are freed early
                env.pop(v, None)
        self.read_vars = outer
        if self.seen is not None:
            self.seen.runs[id(program.avals)] = (program, env)
        return [self.literal(v) if isinstance(v, Lit) else env[v] for v in program.outs]

    def prepare(self, program: Program, values: Sequence[Value]) -> Program:
        """Roll unrolled loops and close opaque regions, given which inputs depend on the variables."""
        varying = [not isinstance(v, Const) for v in values]
        memo = (id(program), tuple(varying))
        if memo not in self.prepared:
            inputs = [v for v, flag in zip(program.ins, varying, strict=True) if flag]
            found = dependents(program.instrs, inputs)
            # The program itself is kept: its identity is the key.
            rolled = program if LOOPS in self.distrust else roll_program(program, found, inputs)
            self.prepared[memo] = (program, rolled)

        def opaque(instr: Instr) -> bool:
            known = instr.prim in self.rules or primitive(instr.prim).move is not None
            return id(instr) in self.forced or not known

        return close_regions(self.prepared[memo][1], varying, opaque)

    def apply(self, instr: Instr, ins: list[Value]) -> list[Value]:
        """Apply one equation: by NumPy or JAX on constants, by its rule, or as an opaque call."""
        self.ctx.offset += 1
        self.instr = instr
        # An empty array depends on nothing.
        ins = [v if size_of(v.shape) else self._empty(a) for v, a in zip(ins, instr.in_avals, strict=True)]
        if all_constant(ins):
            return self.fold(instr, ins)
        if instr.outs and not any(size_of(shape_of(a)) for a in instr.out_avals):
            return [self.empty(a) for a in instr.out_avals]
        outs = self._apply(instr, ins)
        return [
            v if isinstance(v, Const) or v.size else self.empty(a)
            for v, a in zip(outs, instr.out_avals, strict=True)
        ]

    def empty(self, aval: Aval) -> Const:
        """What has no entries is a constant, whatever it was computed from."""
        return self.constants.add_fixed(np.zeros((1, *shape_of(aval)), aval.dtype))

    def _apply(self, instr: Instr, ins: list[Value]) -> list[Value]:
        if self.distrust and self._distrusted(instr):
            return self.rules["opaque"](self, instr, ins, "its derivatives did not agree with JAX's")
        try:
            move = primitive(instr.prim).move
            if move is not None:
                return list(move(instr, *[self.ids(v) for v in ins]))
            if instr.prim in self.rules:
                return self.rules[instr.prim](self, instr, ins)
            reason = "no rule for this primitive"
            if instr.region is not None:
                reason = "makes integers, booleans or complex numbers, which cannot be slots"
        except Opaque as problem:
            reason = str(problem)
        except Unknown:
            reason = "indices or predicate known only at run time"
        return self.rules["opaque"](self, instr, ins, reason)

    def _distrusted(self, instr: Instr) -> bool:
        if LOOPS in self.distrust and instr.bodies and not self.enclosing:
            return True
        return primitive(instr.prim).move is None and where_of(instr) in self.distrust

    def fold(self, instr: Instr, ins: Sequence[Const]) -> list[Value]:
        """Apply an equation to constants: a step of the prelude."""
        batch = max([c.shape[0] for c in ins], default=1)
        outs = [((batch, *shape_of(a)), a.dtype) for a in instr.out_avals]

        def step(xp: ModuleType, *values: Known) -> tuple[Known, ...]:
            folded = fold_instr(instr, values) if xp is np else None
            return bind_batched(instr, values, batch, known=xp is np) if folded is None else tuple(folded)

        return list(self.constants.apply(step, ins, outs))

    # Values

    def _empty(self, aval: Aval) -> Const:
        return self.constants.add_fixed(np.zeros((1, *shape_of(aval)), aval.dtype))

    def literal(self, lit: Lit) -> Const:
        value = np.asarray(lit.value, lit.dtype)
        if value.shape == ():
            return self.constants.scalar_const(value, lit.dtype)
        return self.constants.add_fixed(value[None])

    def ids(self, value: Value) -> np.ndarray:
        """Return the ids of a value: variables as they are, constants by their elements."""
        return self.constants.elements(value) if isinstance(value, Const) else value

    def watch(self, value: Value, kind: str = "value") -> np.ndarray:
        """Return a value that shapes the structure; raise if it depends on variables or tracers."""
        if not isinstance(value, Const):
            raise Opaque("indices or predicate that depend on the variables")
        return self.constants.watch(value, kind)

    def align(self, values: Sequence[Value], shape: tuple[int, ...]) -> list[np.ndarray]:
        """Broadcast ids to one shape [lead, *shape]; scalars may stand beside arrays."""
        arrays = [self.ids(v) for v in values]
        arrays = [a.reshape(a.shape[0], *[1] * (len(shape) + 1 - a.ndim), *a.shape[1:]) for a in arrays]
        lead = max(a.shape[0] for a in arrays)
        return [np.broadcast_to(a, (lead, *shape)) for a in arrays]

    # Blocks

    def _base(self, lead: int) -> np.ndarray:
        return self.ctx.keys if lead == self.ctx.batch else self.ctx.keys[:1]

    def add_inputs(self, n: int, dtype: DType) -> np.ndarray:
        block = self.pool.add(Block(INPUT, n, dtype, np.full(1, -1, np.int64), 0))
        return np.arange(block.start, block.stop, dtype=np.int32)

    def add_carries(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        n = size_of(shape)
        block = self.pool.add(Block(CARRY, n, dtype, np.full(1, -1, np.int64), 0, instr=self.instr))
        return np.arange(block.start, block.stop, dtype=np.int32).reshape(shape)

    def hold(self, ids: np.ndarray, dtype: DType) -> np.ndarray:
        """Make values slots: each is computed once, whoever reads it."""
        held = self.add_carries(ids.shape, dtype)
        self.pool.alias.append((held, np.ascontiguousarray(ids)))
        return held

    def add_op(self, op: Op, operands: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
        """Write y = op(operands) at every place of equally shaped id arrays."""
        shape = operands[0].shape
        n = size_of(shape)
        flat = [np.ascontiguousarray(o).reshape(-1) for o in operands]
        lead = shape[0] if n else 1
        when = self._base(lead), self.ctx.offset
        block = self.pool.add(Block(OP, n, dtype, *when, instr=self.instr, op=op, operands=flat))
        return np.arange(block.start, block.stop, dtype=np.int32).reshape(shape)

    def add_rows(
        self, ptr: np.ndarray, cols: np.ndarray, coefs: np.ndarray, shape: Sequence[int], dtype: DType
    ) -> np.ndarray:
        """Write y = Σ coef · col for every row of a CSR matrix; an empty row is a constant zero."""
        empty = np.diff(ptr) == 0
        if empty.any():
            out = np.full(len(empty), self.constants.scalar(0, dtype), np.int32)
            full = np.flatnonzero(~empty)
            rows = np.repeat(np.arange(len(full)), np.diff(ptr)[full])
            lead = full // (len(empty) // shape[0])
            if full.size:
                out[full] = self.add_grouped(rows, cols, coefs, len(full), dtype, lead % self.ctx.batch)
            return out.reshape(shape)
        return self._add_csr(ptr, cols, coefs, self._base(shape[0]), dtype).reshape(shape)

    def _add_csr(
        self, ptr: np.ndarray, cols: np.ndarray, coefs: np.ndarray, base: np.ndarray, dtype: DType
    ) -> np.ndarray:
        block = Block(ROW, len(ptr) - 1, dtype, base, self.ctx.offset, instr=self.instr)
        block.ptr = ptr.astype(np.int64)
        block.cols, block.coefs = (np.ascontiguousarray(part, np.int32) for part in (cols, coefs))
        self.pool.add(block)
        return np.arange(block.start, block.stop, dtype=np.int32)

    def add_sum(self, terms: np.ndarray, coefs: np.ndarray | int, dtype: DType) -> np.ndarray:
        """Write y = Σ over the last axis of terms [*shape, t]."""
        shape, t = terms.shape[:-1], terms.shape[-1]
        n = size_of(shape)
        coefs = np.broadcast_to(np.asarray(coefs, np.int32), terms.shape)
        return self.add_rows(np.arange(n + 1) * t, terms.reshape(-1), coefs.reshape(-1), shape, dtype)

    def add_grouped(
        self, rows: np.ndarray, cols: np.ndarray, coefs: np.ndarray, n: int, dtype: DType, lead: np.ndarray
    ) -> np.ndarray:
        """Write n rows from unordered (row, col, coef) triplets; `lead` says in which iteration each row is."""
        order = np.argsort(rows, kind="stable")
        ptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
        return self._add_csr(ptr, cols[order], coefs[order], self.ctx.keys[lead], dtype)

    def add_call(
        self,
        spec: CallSpec,
        cols: Sequence[np.ndarray],
        data: list[Const],
        dtypes: list[DType],
        col_dtypes: list[DType],
    ) -> np.ndarray:
        """Write the outputs [instances, m] of a call; columns are int32[1 | batch]."""
        n = max([c.shape[0] for c in cols] + [d.shape[0] for d in data], default=1)
        operands = [np.broadcast_to(c, (n,)) for c in cols]
        block = Block(CALL, n * spec.m, np.dtype(object), self._base(n), self.ctx.offset, instr=self.instr)
        block.operands, block.spec, block.data = operands, spec, data
        block.dtypes, block.col_dtypes = dtypes, col_dtypes
        self.pool.add(block)
        return np.arange(block.start, block.stop, dtype=np.int32).reshape(n, spec.m)


def bind_batched(instr: Instr, values: Sequence[Known], batch: int, known: bool) -> tuple[Known, ...]:
    """Apply an equation with JAX, over the leading axis; known values stay known inside the caller's jit."""
    if known:
        with jax.ensure_compile_time_eval():
            return tuple(as_known(o) for o in bind_batched(instr, values, batch, known=False))
    if batch == 1:
        outs = bind_instr(instr, [jnp.asarray(v)[0] if not _extended(v) else v[0] for v in values])
        outs = [o[None] for o in outs]
    else:
        axes = [0 if v.shape[0] > 1 else None for v in values]
        args = [v if a == 0 else v[0] for v, a in zip(values, axes, strict=True)]
        outs = jax.vmap(lambda *a: bind_instr(instr, a), in_axes=tuple(axes), axis_size=batch)(*args)
    return tuple(outs)


def _extended(value: Known) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.extended)


def differentiated_vars(program: Program) -> set[int]:
    """Return the variables through which a derivative of the outputs may flow."""
    found = {v for v in program.outs if isinstance(v, int)}
    for instr in reversed(program.instrs):
        if not primitive(instr.prim).flat and not found.isdisjoint(instr.outs):
            found.update(
                v
                for v, a in zip(instr.ins, instr.in_avals, strict=True)
                if isinstance(v, int) and jnp.issubdtype(a.dtype, jnp.inexact)
            )
    return found
