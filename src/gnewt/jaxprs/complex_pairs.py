"""Complex numbers as pairs of reals: a program whose complex values are taken apart into real and imaginary parts.

In: a flat program. Out: an equal program in which sums, products, movement, loops and branches are real. What has no rule
here (an FFT, abs) is applied to complex numbers, put together before it and taken apart behind it: a region.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.jaxprs.compat import Aval, Numeric
from gnewt.jaxprs.parts import retraced
from gnewt.jaxprs.primitives import primitive
from gnewt.jaxprs.program import Instr, Lit, Operand, Program
from gnewt.jaxprs.replay import bind_instr
from gnewt.jaxprs.specs import scan_spec, while_spec

_MAX_POWER = 4
"""Larger integer powers are left to JAX."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A complex value."""

    re: jax.Array
    im: jax.Array


Split: TypeAlias = jax.Array | Pair
Captured: TypeAlias = dict[int, Split]


def split_complex(program: Program) -> Program:
    """Take the complex values of a program apart; a program without any is returned as it is.

    Captured constants keep their positions.
    """
    if not _has_complex(program):
        return program

    def run(args: list[jax.Array], captured: dict[int, jax.Array]) -> list[jax.Array]:
        outs = _run(program, [_split(a) for a in args], {at: _split(v) for at, v in captured.items()})
        return [_joined(o) for o in outs]

    return retraced(program, run) or program


def _is_complex(aval: Aval) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.complexfloating))


def _has_complex(program: Program) -> bool:
    return any(_is_complex(a) for a in program.avals) or any(
        _has_complex(b) for i in program.instrs for b in i.bodies
    )


def _split(value: Numeric) -> Split:
    array = jnp.asarray(value)
    return Pair(array.real, array.imag) if jnp.iscomplexobj(array) else array


def _joined(value: Split) -> jax.Array:
    return jax.lax.complex(value.re, value.im) if isinstance(value, Pair) else value


def _run(program: Program, args: Sequence[Split], captured: Captured) -> list[Split]:
    env: dict[int, Split] = dict(zip(program.ins, args, strict=True))
    env.update((var, captured[at]) for var, at in program.consts)

    def read(v: Operand) -> Split:
        return _split(jnp.asarray(v.value, v.dtype)) if isinstance(v, Lit) else env[v]

    for instr in program.instrs:
        outs = _apply(instr, [read(v) for v in instr.ins], captured)
        env.update(zip(instr.outs, outs, strict=True))
    return [read(v) for v in program.outs]


def _apply(instr: Instr, args: list[Split], captured: Captured) -> list[Split]:
    if instr.prim in _INSIDE and (any(map(_has_complex, instr.bodies))):
        return _INSIDE[instr.prim](instr, args, captured)
    pairs = [a for a in args if isinstance(a, Pair)]
    if not pairs and not any(_is_complex(a) for a in instr.out_avals):
        return list(bind_instr(instr, [_joined(a) for a in args]))
    if instr.prim in _LINEAR or primitive(instr.prim).move is not None:
        return _both(instr, args)
    if instr.prim in _RULES:
        found = _RULES[instr.prim](instr, *args)
        if found is not None:
            return [found]
    return [_split(o) for o in bind_instr(instr, [_joined(a) for a in args])]


_LINEAR = frozenset(
    {
        *("add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "select_n", "stop_gradient"),
        *("gather", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter-sub"),
    }
)
"""Applied to real and imaginary parts alike; real operands (indices, predicates) are shared."""


def _both(instr: Instr, args: list[Split]) -> list[Split]:
    params = instr.params

    def part(name: str) -> list[jax.Array]:
        values = [getattr(a, name) if isinstance(a, Pair) else a for a in args]
        outs = instr.eqn.primitive.bind(*values, **params)
        return list(outs) if instr.eqn.primitive.multiple_results else [outs]

    found = zip(part("re"), part("im"), instr.out_avals, strict=True)
    return [Pair(re, im) if _is_complex(aval) else re for re, im, aval in found]


# Arithmetic


def _times(a: Pair, b: Pair, product: Callable = jnp.multiply) -> Pair:
    return Pair(
        product(a.re, b.re) - product(a.im, b.im),
        product(a.re, b.im) + product(a.im, b.re),
    )


def _mul(instr: Instr, a: Pair, b: Pair) -> Pair:
    return _times(a, b)


def _div(instr: Instr, a: Pair, b: Pair) -> Pair:
    top, size = _times(a, Pair(b.re, -b.im)), b.re * b.re + b.im * b.im
    return Pair(top.re / size, top.im / size)


def _dot(instr: Instr, a: Pair, b: Pair) -> Pair:
    params = dict(instr.params)
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = np.dtype(a.re.dtype)
    return _times(a, b, lambda x, y: instr.eqn.primitive.bind(x, y, **params))


def _power(instr: Instr, a: Pair) -> Pair | None:
    y = instr.params.get("y", 2)
    if not 0 < y <= _MAX_POWER:
        return None
    out = a
    for _ in range(y - 1):
        out = _times(out, a)
    return out


def _exp(instr: Instr, a: Pair) -> Pair:
    size = jnp.exp(a.re)
    return Pair(size * jnp.cos(a.im), size * jnp.sin(a.im))


def _convert(instr: Instr, a: Split) -> Split | None:
    dtype = np.dtype(instr.params["new_dtype"])
    if dtype.kind != "c":
        return None
    real = np.finfo(dtype).dtype
    if isinstance(a, Pair):
        return Pair(a.re.astype(real), a.im.astype(real))
    return Pair(a.astype(real), jnp.zeros(a.shape, real))


_RULES: dict[str, Callable[..., Split | None]] = {
    "mul": _mul,
    "div": _div,
    "dot_general": _dot,
    "square": _power,
    "integer_pow": _power,
    "exp": _exp,
    "convert_element_type": _convert,
    "real": lambda instr, a: a.re,
    "imag": lambda instr, a: a.im,
    "conj": lambda instr, a: Pair(a.re, -a.im) if isinstance(a, Pair) else Pair(a, jnp.zeros_like(a)),
    "complex": lambda instr, re, im: Pair(re, im),
    "eq": lambda instr, a, b: (a.re == b.re) & (a.im == b.im),
    "ne": lambda instr, a, b: (a.re != b.re) | (a.im != b.im),
}


# Loops and branches


def _scan(instr: Instr, args: list[Split], captured: Captured) -> list[Split]:
    spec = scan_spec(instr)
    consts, rest = args[: spec.num_consts], args[spec.num_consts :]
    init, xs = rest[: spec.num_carry], rest[spec.num_carry :]

    def step(carry: list[Split], x: list[Split]) -> tuple[list[Split], list[Split]]:
        outs = _run(instr.bodies[0], [*consts, *carry, *x], captured)
        return outs[: spec.num_carry], outs[spec.num_carry :]

    last, ys = jax.lax.scan(step, init, xs, length=spec.length, reverse=spec.reverse)
    return [*last, *ys]


def _cond(instr: Instr, args: list[Split], captured: Captured) -> list[Split]:
    branches = [lambda *v, body=body: _run(body, v, captured) for body in instr.bodies]
    return list(jax.lax.switch(_joined(args[0]), branches, *args[1:]))


def _while(instr: Instr, args: list[Split], captured: Captured) -> list[Split]:
    spec = while_spec(instr)
    at = spec.cond_consts + spec.body_consts

    def go(carry: list[Split]) -> jax.Array:
        return _joined(_run(spec.cond, [*args[: spec.cond_consts], *carry], captured)[0])

    def step(carry: list[Split]) -> list[Split]:
        return _run(spec.body, [*args[spec.cond_consts : at], *carry], captured)

    return list(jax.lax.while_loop(go, step, args[at:]))


_INSIDE: dict[str, Callable[[Instr, list[Split], Captured], list[Split]]] = {
    "scan": _scan,
    "cond": _cond,
    "while": _while,
}


jax.tree_util.register_dataclass(Pair, data_fields=["re", "im"], meta_fields=[])
