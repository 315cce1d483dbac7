"""Array programs: evaluated when their outputs are asked for, and keeping costly values.

In: a flat program and its inputs, some of them late. Out: its outputs, one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from gnewt.jaxprs import Lit, Operand, Program, bind_instr, flatten_jaxpr
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.liveness import needed
from gnewt.jaxprs.primitives import primitive
from gnewt.kkt.derivatives.keep import Keeper


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function of arrays as a flat program, with the constants that it captures."""

    program: Program
    hoisted: list[Numeric]

    @classmethod
    def of(cls, f: Callable, *avals: jax.ShapeDtypeStruct) -> Traced:
        """Trace f at the given shapes."""
        hoisted: list[Numeric] = []
        return cls(flatten_jaxpr(jax.make_jaxpr(f)(*avals), hoisted), hoisted)

    def reads(self, number: int) -> bool:
        """Whether an output depends on input `number`."""
        return self.program.ins[number] in needed(self.program.instrs, self.program.outs)[1]


class ArrayProgram:
    """A traced function at given inputs; inputs may be given late, outputs are computed when they are asked for."""

    def __init__(self, traced: Traced, keeper: Keeper) -> None:
        self._program, self._keeper = traced.program, keeper
        self._env: dict[int, Numeric] = {var: traced.hoisted[at] for var, at in traced.program.consts}

    def give(self, first: int, values: Sequence[Numeric]) -> None:
        """Set the inputs from number `first` on."""
        self._env.update(zip(self._program.ins[first : first + len(values)], values, strict=True))

    def get(self, number: int) -> jax.Array:
        """Compute an output."""
        env, out = self._env, self._program.outs[number]
        waiting = [instr for instr in self._program.instrs if instr.outs[0] not in env]
        for instr in needed(waiting, [out])[0]:
            outs = bind_instr(instr, [self._read(v) for v in instr.ins])
            if primitive(instr.prim).costly:
                outs = [self._keeper.keep(outs[0], costly=True)]
            env.update(zip(instr.outs, outs, strict=True))
        return self._read(out)  # type: ignore[return-value]

    def _read(self, v: Operand) -> Numeric:
        return v.value if isinstance(v, Lit) else self._env[v]
