"""First derivatives of scalar operations, as nodes of the same program.

The common operations have their rule here; the partial derivative of any other is asked of JAX once, for that single
operation, and written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import numpy as np

from gnewt.jaxprs import flatten_jaxpr
from gnewt.jaxprs.compat import Numeric
from gnewt.kkt.derivatives.scalars import ScalarProgram
from gnewt.kkt.derivatives.writeout import write_out

Rule: TypeAlias = Callable[[ScalarProgram, int, tuple[int, ...], int], int]
"""(program, node, its arguments, number of an argument) ↦ node of the derivative."""


def partial(program: ScalarProgram, node: int, i: int) -> int:
    """Return the node of ∂node/∂(its i-th argument)."""
    key = (node, i)
    if key not in program.partials:
        rule = _RULES.get(program.names[node], _by_jax)
        program.partials[key] = rule(program, node, program.args[node], i)
    return program.partials[key]


def _number(program: ScalarProgram, value: float, like: int) -> int:
    return program.constant(np.asarray(value, program.dtypes[like]))


def _times(program: ScalarProgram, value: float, node: int) -> int:
    return program.mul(_number(program, value, node), node)


def _one_over(program: ScalarProgram, node: int) -> int:
    return program.div(_number(program, 1.0, node), node)


def _product(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    return args[1 - i]


def _quotient(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    # One division for both, and for all higher derivatives.
    inverse = _one_over(program, args[1])
    return inverse if i == 0 else program.neg(program.mul(node, inverse))


def _power(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    exponent = program.exponents[node]
    return _times(program, exponent, program.integer_pow(args[0], exponent - 1))


def _tanh(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    return program.sub(_number(program, 1.0, node), program.mul(node, node))


def _logistic(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    return program.mul(node, program.sub(_number(program, 1.0, node), node))


def _rsqrt(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    return _times(program, -0.5, program.mul(node, program.mul(node, node)))


def _log1p(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    return _one_over(program, program.add(_number(program, 1.0, node), args[0]))


_RULES: dict[str, Rule] = {
    "add": lambda p, n, a, i: _number(p, 1.0, n),
    "add_any": lambda p, n, a, i: _number(p, 1.0, n),
    "sub": lambda p, n, a, i: _number(p, -1.0 if i else 1.0, n),
    "neg": lambda p, n, a, i: _number(p, -1.0, n),
    "convert_element_type": lambda p, n, a, i: _number(p, 1.0, n),
    "mul": _product,
    "div": _quotient,
    "integer_pow": _power,
    "sin": lambda p, n, a, i: p.unary("cos", a[0]),
    "cos": lambda p, n, a, i: p.neg(p.unary("sin", a[0])),
    "exp": lambda p, n, a, i: n,
    "expm1": lambda p, n, a, i: p.add(n, _number(p, 1.0, n)),
    "log": lambda p, n, a, i: _one_over(p, a[0]),
    "log1p": _log1p,
    "sqrt": lambda p, n, a, i: _times(p, 0.5, _one_over(p, n)),
    "rsqrt": _rsqrt,
    "tanh": _tanh,
    "logistic": _logistic,
    "own_rule": lambda p, n, a, i: p.own[n](i - 1),
}


def _by_jax(program: ScalarProgram, node: int, args: tuple[int, ...], i: int) -> int:
    """Have JAX differentiate one operation along one argument, and write that out."""
    op = program.ops[node]
    assert op is not None, "an input has no arguments"

    def derivative(*values: jax.Array) -> jax.Array:
        along = np.ones((), program.dtypes[args[i]])
        return jax.jvp(lambda v: op(*values[:i], v, *values[i + 1 :]), (values[i],), (along,))[1]

    def make() -> tuple:
        hoisted: list[Numeric] = []
        avals = [jax.ShapeDtypeStruct((), program.dtypes[a]) for a in args]
        return flatten_jaxpr(jax.make_jaxpr(derivative)(*avals), hoisted), hoisted

    flat, hoisted = program.remember((program.keys[node], i, *(program.dtypes[a] for a in args)), make)
    (found,) = write_out(program, flat, hoisted, [np.asarray(a) for a in args])
    return int(found)
