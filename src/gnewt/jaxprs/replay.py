"""Replay: evaluate flat programs with JAX. Values (tracers included) → values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from gnewt.jaxprs.compat import Numeric, bind_equation
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
