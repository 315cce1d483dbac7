"""Structural keys: what two programs that mean the same function have in common. Program → hashable key."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import Aval, Numeric
from gnewt.jaxprs.program import Lit, Operand, Program


class Key:
    """A nested tuple that remembers its hash: programs of thousands of equations are looked up at every call."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Key) and self._hash == other._hash and self.value == other.value


def program_key(program: Program) -> Key:
    """Return the key of a program: its equations, with variables numbered in order of appearance."""
    number: dict[int, int] = {}

    def name(v: Operand) -> Hashable:
        return literal_key(v) if isinstance(v, Lit) else number.setdefault(v, len(number))

    head = tuple((name(v), _aval_key(program.avals[v])) for v in program.ins)
    consts = tuple((name(v), _aval_key(program.avals[v])) for v, _ in program.consts)
    body = []
    for instr in program.instrs:
        ins = tuple(name(v) for v in instr.ins)
        body.append((instr.key, ins, tuple((name(v), _aval_key(program.avals[v])) for v in instr.outs)))
    return Key((head, consts, tuple(body), tuple(name(v) for v in program.outs)))


def literal_key(literal: Lit) -> Hashable:
    """Return a hashable stand-in for a literal."""
    return ("lit", literal.dtype, literal.shape, value_key(literal.value))


def same_operand(a: Operand, b: Operand) -> bool:
    """Whether two operands are the same variable, or literals of the same value."""
    if isinstance(a, Lit) or isinstance(b, Lit):
        return isinstance(a, Lit) and isinstance(b, Lit) and value_key(a.value) == value_key(b.value)
    return a == b


def _aval_key(aval: Aval) -> Hashable:
    return (aval.shape, aval.dtype, getattr(aval, "weak_type", False))


def value_key(value: Numeric) -> Hashable:
    """Return a hashable stand-in for a known array: its bits, so that 0.0 is not -0.0 and a NaN equals itself."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return (str(value.dtype), value_key(jax.random.key_data(value)))
    array = np.asarray(value)
    return (array.dtype, array.shape, array.tobytes())
