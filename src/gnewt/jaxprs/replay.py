"""Replay: evaluate flat programs with JAX. Values (tracers included) → values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from gnewt.jaxprs.compat import Numeric, bind_equation, jaxpr_function, scan_counts
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
    program: Program,
    args: Sequence[Numeric],
    hoisted: Sequence[Numeric] | Mapping[int, Numeric] = (),
    bind: Callable[[Instr, Sequence[Numeric]], Sequence[jax.Array]] = bind_instr,
) -> list[jax.Array]:
    """Evaluate a program; `hoisted` holds its captured constants by position, `bind` applies an equation."""
    env: dict[int, Numeric] = dict(zip(program.ins, args, strict=True))
    env.update((var, hoisted[at]) for var, at in program.consts)

    def read(v: Operand) -> Numeric:
        return jnp.asarray(v.value, v.dtype) if isinstance(v, Lit) else env[v]

    for instr in program.instrs:
        env.update(zip(instr.outs, bind(instr, [read(v) for v in instr.ins]), strict=True))
    return [read(v) for v in program.outs]  # type: ignore[misc]


def bind_for_products(instr: Instr, args: Sequence[Numeric]) -> Sequence[jax.Array]:
    """Apply an equation whose derivatives will be taken twice: bodies of loops are computed again in the reverse sweep.

    Stacks of all that a body computes make a loop of light stages five times slower than its arithmetic.
    """
    if instr.prim != "scan" or instr.region is not None:
        return bind_instr(instr, args)
    body, params = jaxpr_function(instr.params["jaxpr"]), instr.params
    num_consts, num_carry = scan_counts(params)
    consts, first, moving = (
        args[:num_consts],
        args[num_consts : num_consts + num_carry],
        args[num_consts + num_carry :],
    )

    def stage(carry: list[jax.Array], x: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        outs = body(*consts, *carry, *x)
        return outs[:num_carry], outs[num_carry:]

    again = jax.checkpoint(stage, prevent_cse=False)
    options = {k: params[k] for k in ("length", "reverse", "unroll") if k in params}
    last, ys = jax.lax.scan(again, list(first), list(moving), **options)
    return [*last, *ys]  # type: ignore[list-item]
