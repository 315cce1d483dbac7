"""Sweep: f, its gradient and one H·v of a flat program on known numbers, operation by operation.

JAX takes a millisecond to trace the derivatives of one operation, and as long again for each of thousands of operations of
an unrolled loop. Here it is asked once for each kind of operation (`sweep_rules.py`), and NumPy does the rest: a forward
sweep with tangents, and a reverse sweep with cotangents and their derivatives along the same direction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.numpy_run import Known, NumpyProgram, as_known
from gnewt.jaxprs.program import Instr, Lit, Operand, Program
from gnewt.jaxprs.sweep_rules import Pair, Rule, Rules, Tangents


def sweep_derivatives(
    program: Program,
    args: Sequence[Numeric],
    directions: Sequence[np.ndarray | None],
    hoisted: Sequence[Numeric] = (),
) -> tuple[Known, list[np.ndarray], list[np.ndarray]]:
    """Differentiate the first output of a program, a number.

    Args:
        program: the flat program.
        args: its operands.
        directions: for each operand v, or None where it is not differentiated.
        hoisted: captured constants of the program, by position.

    Returns:
        The value, the gradient with respect to each operand that has a direction, and H·v in the same parts.
    """
    with np.errstate(all="ignore"):
        return _Sweep(program, args, directions, hoisted).run(program)


class _Sweep:
    def __init__(
        self,
        program: Program,
        args: Sequence[Numeric],
        directions: Sequence[np.ndarray | None],
        hoisted: Sequence[Numeric],
    ) -> None:
        self._values: dict[int, Known] = {v: as_known(a) for v, a in zip(program.ins, args, strict=True)}
        self._values.update((var, as_known(hoisted[at])) for var, at in program.consts)
        self._tangents: dict[int, np.ndarray] = {
            v: d for v, d in zip(program.ins, directions, strict=True) if d is not None
        }
        self._moving = list(self._tangents)
        self._rules = Rules()
        self._numpy = NumpyProgram(program, hoisted)
        self._tape: list[tuple[Instr, Rule, list[Known], Tangents]] = []

    def run(self, program: Program) -> tuple[Known, list[np.ndarray], list[np.ndarray]]:
        for instr in program.instrs:
            self._forward(instr)
        end = program.outs[0]
        found = self._reverse(end)
        zeros = {v: np.zeros_like(self._values[v]) for v in self._moving}
        gradient, curved = ([found[v][i] if v in found else zeros[v] for v in self._moving] for i in (0, 1))
        return self._read(end), gradient, curved

    def _read(self, v: Operand) -> Known:
        return np.asarray(v.value, v.dtype) if isinstance(v, Lit) else self._values[v]

    def _forward(self, instr: Instr) -> None:
        values = [self._read(v) for v in instr.ins]
        tangents = [None if isinstance(v, Lit) else self._tangents.get(v) for v in instr.ins]
        active = [t is not None for t in tangents]
        if not any(active):
            self._values.update(zip(instr.outs, self._numpy.apply(instr)(values), strict=True))
            return
        rule = self._rules.of(instr, active)
        outs, moved = rule.push(values, tangents)
        self._values.update(zip(instr.outs, outs, strict=True))
        self._tangents.update((v, t) for v, t in zip(instr.outs, moved, strict=True) if t is not None)
        self._tape.append((instr, rule, values, tangents))

    def _reverse(self, end: Operand) -> dict[int, Pair]:
        """Cotangents of all variables that lead to the end."""
        if isinstance(end, Lit):
            return {}
        one = np.ones_like(self._values[end])
        found: dict[int, Pair] = {end: (one, np.zeros_like(one))}
        for instr, rule, values, tangents in reversed(self._tape):
            ends = [found.pop(v, None) for v in instr.outs]
            if all(pair is None for pair in ends):
                continue
            for v, pair in zip(instr.ins, rule.pull(values, tangents, ends), strict=True):
                if pair is None or isinstance(v, Lit):
                    continue
                c, dc = pair
                old = found.get(v)
                found[v] = (c, dc) if old is None else (old[0] + c, old[1] + dc)
        return found
