"""The flat program: a jaxpr as plain Python objects. Calls are inlined, variables are numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

import jax.numpy as jnp
from jax.typing import DTypeLike

from gnewt.jaxprs.compat import Aval, Equation, Numeric, Params, where_of_equation


class Lit:
    """A literal operand."""

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, value: Numeric, aval: Aval) -> None:
        self.value = value
        self.shape = tuple(aval.shape)
        self.dtype = aval.dtype


Operand: TypeAlias = int | Lit
"""A variable's number, or a literal."""


@dataclasses.dataclass(slots=True, eq=False)
class Instr:
    """One equation, on variables that are numbers."""

    prim: str
    params: Params
    ins: Sequence[Operand]
    outs: list[int]
    eqn: Equation
    """The JAX equation; of a region or a rolled loop its first one."""
    bodies: tuple[Program, ...] = ()
    """Flattened sub-programs (a scan's body, a cond's branches)."""
    key: Hashable = None
    """Structural identity: primitive, parameters, sub-programs (not the variables)."""
    region: Program | None = None
    """The equations that a region stands for."""
    site: Equation | None = None
    """The equation whose source line names this one."""
    in_avals: tuple[Aval, ...] = ()
    out_avals: tuple[Aval, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class Program:
    """A jaxpr, flat: calls inlined, variables numbered, captured constants listed by position."""

    avals: list[Aval]
    """Shape and dtype of every variable."""
    ins: list[int]
    consts: list[tuple[int, int]]
    """(variable, position in the list of hoisted constants)."""
    instrs: list[Instr]
    outs: Sequence[Operand]
    key: Hashable = None
    repeatable: bool = True
    """Whether another call may use it: false where a derivative rule captures a tracer of the caller."""

    def new_var(self, aval: Aval) -> int:
        """Return the number of a new variable."""
        self.avals.append(aval)
        return len(self.avals) - 1

    def aval(self, operand: Operand) -> Aval:
        """Return shape and dtype of an operand."""
        return operand if isinstance(operand, Lit) else self.avals[operand]


def variables(operands: Iterable[Operand]) -> list[int]:
    """Return the operands that are variables."""
    return [v for v in operands if isinstance(v, int)]


def shape_of(aval: Aval) -> tuple[int, ...]:
    """Return the static shape of an aval."""
    return tuple(int(n) for n in aval.shape)


def is_float(dtype: DTypeLike) -> bool:
    """Real floating point, the machine-learning types included."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def size_of(shape: Iterable[int]) -> int:
    """Return how many scalars an array of this shape has."""
    return math.prod(map(int, shape))


def where_of(place: Instr | Equation | None) -> str:
    """Return `file:line` of the user's code that made an equation."""
    if isinstance(place, Instr):
        return where_of_equation(place.site) or where_of_equation(place.eqn)
    return where_of_equation(place)
