"""Programs on known numbers, by NumPy: nothing is compiled.

XLA takes a second or more to compile the derivatives of a loop, and NumPy a tenth of one to run a few hundred of its
iterations. Where NumPy has no twin of an operation, JAX applies that operation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.flatten import VALUE_CALLS, flatten_jaxpr
from gnewt.jaxprs.primitives import primitive
from gnewt.jaxprs.program import Instr, Lit, Operand, Program, size_of
from gnewt.jaxprs.replay import bind_instr
from gnewt.jaxprs.specs import WhileSpec, scan_spec
from gnewt.jaxprs.twins import twin_of

Known: TypeAlias = np.ndarray | jax.Array
"""A known number or array; only JAX has keys of random generators."""
Apply: TypeAlias = Callable[[list[Known]], Sequence[Known]]


_COMPILE, _DISPATCH = 6_000, 50
"""What the first and every call of an operation without a twin in NumPy cost, in operations of NumPy (5 µs each)."""


def count_operations(program: Program, times: int = 1) -> int:
    """Estimate the work of so many runs, that of all iterations of loops included, in operations of NumPy."""
    total = 0
    for instr in program.instrs:
        if instr.prim == "scan":
            total += count_operations(instr.bodies[0], times * int(instr.params["length"]))
        elif instr.bodies and instr.prim != "while":
            total += max(count_operations(body, times) for body in instr.bodies)
        elif instr.prim == "custom_linear_solve":
            total += count_operations(_solution(instr, [])[0], times)
        else:
            total += times if _by_numpy(instr) is not None else _COMPILE + times * _DISPATCH
    return total


def fold_program(
    program: Program, args: Sequence[Numeric], hoisted: Sequence[Numeric] | Mapping[int, Numeric] = ()
) -> list[Known]:
    """Evaluate a program on known numbers; `hoisted` holds its captured constants by position."""
    return NumpyProgram(program, hoisted).run([as_known(a) for a in args])


class NumpyProgram:
    """A program that NumPy can run again and again."""

    def __init__(self, program: Program, hoisted: Sequence[Numeric] | Mapping[int, Numeric] = ()) -> None:
        self._program, self._runner = program, _Runner(hoisted)

    def run(self, args: Sequence[Known]) -> list[Known]:
        """Evaluate the program."""
        with np.errstate(all="ignore"):
            return self._runner.run(self._program, args)

    def apply(self, instr: Instr) -> Apply:
        """Return a function that applies one of its equations."""
        return self._runner.apply(instr)


def apply_of(instr: Instr) -> Apply:
    """Return a function that applies an equation without captured constants to known numbers."""
    return _Runner(()).apply(instr)


def count_trips(
    spec: WhileSpec,
    asked: Sequence[bool],
    values: Sequence[Known],
    hoisted: Mapping[int, Numeric],
    most: int,
) -> int:
    """Count the iterations of a while loop; -1 for more than `most`.

    Args:
        spec: the loop; its body returns the carries that the predicate depends on.
        asked: for each carry whether it is among them.
        values: the operands of the equation.
        hoisted: captured constants by position.
    """
    runner = _Runner(hoisted)
    first, at = spec.cond_consts, spec.cond_consts + spec.body_consts
    carry = list(values[at:])
    with np.errstate(all="ignore"):
        for n in range(most + 1):
            if not bool(runner.run(spec.cond, [*values[:first], *carry])[0]):
                return n
            found = iter(runner.run(spec.body, [*values[first:at], *carry]))
            carry = [next(found) if flag else v for v, flag in zip(carry, asked, strict=True)]
    return -1


class _Runner:
    """Looks at every equation once, however often a loop executes it."""

    def __init__(self, hoisted: Sequence[Numeric] | Mapping[int, Numeric]) -> None:
        items = hoisted.items() if isinstance(hoisted, Mapping) else enumerate(hoisted)
        self._hoisted = {at: as_known(value) for at, value in items}
        self._steps: dict[int, list[tuple[Apply, list[int | np.ndarray], list[int]]]] = {}
        """By the identity of a program: for each equation what to do, its operands, and its outputs."""

    def run(self, program: Program, args: Sequence[Known]) -> list[Known]:
        if id(program) not in self._steps:
            self._steps[id(program)] = [
                (self.apply(i), [_operand(v) for v in i.ins], i.outs) for i in program.instrs
            ]
        env: dict[int, Known] = dict(zip(program.ins, args, strict=True))
        env.update((var, self._hoisted[at]) for var, at in program.consts)
        for apply, ins, outs in self._steps[id(program)]:
            found = apply([env[v] if isinstance(v, int) else v for v in ins])
            env.update(zip(outs, found, strict=True))
        ends = [_operand(v) for v in program.outs]
        return [env[v] if isinstance(v, int) else v for v in ends]

    def apply(self, instr: Instr) -> Apply:
        """What to do for an equation."""
        if any(jnp.issubdtype(a.dtype, jax.dtypes.extended) for a in (*instr.in_avals, *instr.out_avals)):
            return _by_jax(instr)
        if instr.prim == "scan":
            return self._scan(instr)
        if instr.prim == "cond":
            return self._cond(instr)
        if instr.region is not None:
            region = instr.region
            return lambda values: self.run(region, values)
        if instr.prim == "custom_linear_solve":
            hoisted: list[Numeric] = []
            body, places = _solution(instr, hoisted)
            inner = _Runner(hoisted)
            return lambda values: inner.run(body, [values[i] for i in places])
        return _by_numpy(instr) or _by_jax(instr)

    def _scan(self, instr: Instr) -> Apply:
        spec = scan_spec(instr)
        first_x = spec.num_consts + spec.num_carry

        def scan(values: list[Known]) -> list[Known]:
            consts, carry, xs = values[: spec.num_consts], values[spec.num_consts : first_x], values[first_x:]
            rows: list[list[Known]] = []
            for t in range(spec.length)[:: -1 if spec.reverse else 1]:
                outs = self.run(spec.body, [*consts, *carry, *[x[t] for x in xs]])
                carry = outs[: spec.num_carry]
                rows.append(outs[spec.num_carry :])
            rows = rows[:: -1 if spec.reverse else 1]
            avals = instr.out_avals[spec.num_carry :]
            stacked = [
                np.stack([row[i] for row in rows]) if rows else np.zeros(aval.shape, aval.dtype)
                for i, aval in enumerate(avals)
            ]
            return [*carry, *stacked]

        return scan

    def _cond(self, instr: Instr) -> Apply:
        def cond(values: list[Known]) -> list[Known]:
            branch = min(max(int(values[0]), 0), len(instr.bodies) - 1)
            return self.run(instr.bodies[branch], values[1:])

        return cond


def _solution(instr: Instr, hoisted: list[Numeric]) -> tuple[Program, list[int]]:
    """What computes the value of a linear solve, and its operands: constants, and the right-hand side."""
    lengths = instr.params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    places = [*range(first, first + lengths.solve), *range(sum(lengths), len(instr.ins))]
    return flatten_jaxpr(instr.params["jaxprs"].solve, hoisted, VALUE_CALLS), places


def _by_numpy(instr: Instr) -> Apply | None:
    """The equation in NumPy, or None where NumPy cannot."""
    known, dtypes = primitive(instr.prim), [a.dtype for a in instr.out_avals]
    if all(a.dtype == jax.dtypes.float0 or size_of(a.shape) == 0 for a in instr.out_avals):
        # Empty arrays, and tangents of integers, which hold nothing either.
        nothing: list[Known] = [np.zeros(a.shape, a.dtype) for a in instr.out_avals]
        return lambda values: nothing
    if known.move is not None:
        move = known.move
        return lambda values: [m[0] for m in move(instr, *[v[None] for v in values])]
    if any(size_of(a.shape) == 0 for a in instr.in_avals):
        return None
    twin = twin_of(instr)
    if twin is not None:

        def apply(values: list[Known]) -> list[Known]:
            found = twin(instr, [np.asarray(v) for v in values])
            return [np.asarray(v, d) for v, d in zip(found, dtypes, strict=True)]

        return apply
    if known.fold is not None:
        fold = known.fold
        return lambda values: [np.asarray(fold(instr, *[v[None] for v in values])[0], dtypes[0])]
    if known.numpy is None or not instr.ins or any(np.dtype(a.dtype).kind == "V" for a in instr.in_avals):
        return None
    function = known.numpy

    def elementwise(values: list[Known]) -> list[Known]:
        out = function(*values)
        return [out if out.dtype == dtypes[0] else np.asarray(out, dtypes[0])]

    return elementwise


def _by_jax(instr: Instr) -> Apply:
    def apply(values: list[Known]) -> list[Known]:
        with jax.ensure_compile_time_eval():  # also where a program is run inside jit
            return [as_known(out) for out in bind_instr(instr, values)]

    return apply


def _operand(v: Operand) -> int | np.ndarray:
    """A variable, or the number of a literal."""
    return np.asarray(v.value, v.dtype) if isinstance(v, Lit) else v


def as_known(value: Numeric) -> Known:
    """Return a value as a NumPy array, unless it is of a type that only JAX has."""
    extended = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended)
    return value if extended else np.asarray(value)  # type: ignore[return-value]
