"""Replay: evaluate flat programs with JAX. Values (tracers included) → values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import Numeric, bind_equation
from gnewt.jaxprs.primitives import fold_instr
from gnewt.jaxprs.program import Instr, Lit, Operand, Program


def bind_instr(instr: Instr, args: Sequence[Numeric]) -> list[jax.Array]:
    """Apply one equation, all operands given (literal ones too)."""
    if instr.region is not None:
        return run_program(instr.region, args)
    return bind_equation(instr.eqn, args)


def bind_scalars(instr: Instr, args: Sequence[Numeric]) -> jax.Array:
    """Apply an elementwise equation to scalars: its parameters know no shapes."""
    return instr.eqn.primitive.bind(*args, **instr.params)


def run_program(
    program: Program, args: Sequence[Numeric], hoisted: Sequence[Numeric] | Mapping[int, Numeric] = ()
) -> list[jax.Array]:
    """Evaluate a program; `hoisted` holds its captured constants by position."""
    env: dict[int, Numeric] = dict(zip(program.ins, args, strict=True))
    env.update((var, hoisted[at]) for var, at in program.consts)

    def read(v: Operand) -> Numeric:
        return jnp.asarray(v.value, v.dtype) if isinstance(v, Lit) else env[v]

    for instr in program.instrs:
        env.update(zip(instr.outs, bind_instr(instr, [read(v) for v in instr.ins]), strict=True))
    return [read(v) for v in program.outs]  # type: ignore[misc]


def fold_program(
    program: Program, args: Sequence[Numeric], hoisted: Sequence[Numeric] = ()
) -> list[np.ndarray | jax.Array]:
    """Evaluate a program on known numbers, by NumPy; where NumPy cannot, by JAX, one operation at a time.

    JAX compiles every operation anew for each set of its parameters: an unrolled loop that reads x[0], x[1], … takes it
    a minute.
    """
    env: dict[int, np.ndarray | jax.Array] = {v: _known(a) for v, a in zip(program.ins, args, strict=True)}
    env.update((var, _known(hoisted[at])) for var, at in program.consts)

    def read(v: Operand) -> np.ndarray | jax.Array:
        return np.asarray(v.value, v.dtype) if isinstance(v, Lit) else env[v]

    for instr in program.instrs:
        values = [read(v) for v in instr.ins]
        folded = None
        if values and all(isinstance(v, np.ndarray) for v in values):
            folded = fold_instr(instr, [v[None] for v in values])
        if folded is None:
            outs = [_known(out) for out in bind_instr(instr, [jnp.asarray(v) for v in values])]
        else:
            pairs = zip(folded, instr.out_avals, strict=True)
            outs = [np.asarray(out[0], aval.dtype) for out, aval in pairs]
        env.update(zip(instr.outs, outs, strict=True))
    return [read(v) for v in program.outs]


def _known(value: Numeric) -> np.ndarray | jax.Array:
    """Return a value as a NumPy array, unless it is of a type that only JAX has."""
    extended = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended)
    return value if extended else np.asarray(value)  # type: ignore[return-value]
