"""The derivatives of a small family as one scalar program: value, ∂ψ and ∂²(λ·ψ) at their structural nonzeros.

The function is traced once. Its scalar program is differentiated by rules of our own (`symbolic`); where a primitive has
a derivative that its scalar operations do not have, JAX's derivatives are written out instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Family
from gnewt.jaxprs import Instr, Program, flatten_jaxpr, size_of
from gnewt.jaxprs.compat import DType, Numeric
from gnewt.jaxprs.flatten import VALUE_CALLS, count_equations
from gnewt.jaxprs.primitives import primitive
from gnewt.kkt.derivatives.scalars import NotScalar, ScalarProgram, live_nodes
from gnewt.kkt.derivatives.symbolic import Differentiator
from gnewt.kkt.derivatives.writeout import write_out

Kinds: TypeAlias = tuple[tuple[tuple[int, ...], DType], ...]
"""Shape and dtype of each data array of a family."""


@dataclasses.dataclass(frozen=True)
class Jacobian:
    """∂ψ at the nonzeros of the pattern: rows[n, nonzeros], and the entries that all instances share."""

    rows: Array
    shared: Mapping[int, Numeric]


MAX_OPERATIONS = 3_000
"""Operations that may remain: XLA compiles about 500 a second."""


MACHINE_OPERATIONS = 6_000
"""Operations that the native machine takes, which compiles nothing: writing them takes about a tenth of a second."""
_GROWTH = 8
"""Equations of a function's derivatives, as JAX writes them, for each of its own."""


def affordable(n: int, equations: int) -> int:
    """Return how many operations are worth compiling, for n instances of a function with so many equations.

    Many instances pay for long programs; and where the equations are mostly scalar already (a Runge-Kutta step of a
    cartpole: 1,500 operations), writing them out costs nothing more.
    """
    return min(MAX_OPERATIONS, max(64 + 16 * n, equations))


def data_of_one(family: Family, kinds: Kinds) -> list[jax.ShapeDtypeStruct]:
    """Return the data of one instance."""
    return [
        jax.ShapeDtypeStruct(shape if axis is None else shape[1:], kind)
        for (shape, kind), axis in zip(kinds, family.data_axes, strict=True)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class WrittenDerivatives:
    """The derivatives of a family as one program: its inputs and outputs as nodes."""

    program: ScalarProgram
    x: np.ndarray
    lam: np.ndarray
    data: list[np.ndarray]
    value: list[int]
    jacobian: list[int]
    hessian: list[int]
    short: bool = True
    """Whether XLA may compile the program: it has not too many operations."""


def write_derivatives(
    family: Family, dtype: DType, kinds: Kinds, machine: bool = False
) -> WrittenDerivatives | None:
    """Write the derivatives of a family out, or return None where that is impossible or too long.

    Args:
        machine: whether the native machine may run the program: it may then be longer than what XLA would compile.
    """
    local = data_of_one(family, kinds)
    entries = int(family.jac_pattern.sum() + np.tril(family.hess_pattern).sum())
    scalars = sum(d.size for d in local)
    if entries > MAX_OPERATIONS or scalars > MAX_OPERATIONS:
        return None

    def psi(x: Array, *data: Numeric) -> Array:
        return jnp.reshape(family.fn(x, *data), (-1,))

    shape = jax.ShapeDtypeStruct((family.k,), dtype)
    closed = jax.make_jaxpr(psi)(shape, *local)
    hoisted: list[Numeric] = []
    flat = flatten_jaxpr(closed, hoisted)
    short = affordable(family.n, _GROWTH * count_equations(closed))
    limit = MACHINE_OPERATIONS if machine else short
    if sum(size_of(aval.shape) for instr in flat.instrs for aval in instr.out_avals) > limit:
        return None
    draft = _Draft(family, ScalarProgram(2 * limit + scalars), dtype, local)
    try:
        if all(_has_rules(instr) for instr in flat.instrs):
            written = draft.by_rules(flat, hoisted)
        else:
            written = draft.by_jax(psi)
    except NotScalar:
        return None
    count = len(live_nodes(written.program, [*written.value, *written.jacobian, *written.hessian]))
    return dataclasses.replace(written, short=count <= short) if count <= limit else None


def _has_rules(instr: Instr) -> bool:
    """Whether the derivatives of an equation are those of the scalar operations that it is written out as."""
    known = primitive(instr.prim)
    real = not any(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in instr.out_avals)
    return real and (not known.own_rule or instr.prim in ("custom_jvp_call", "stop_gradient"))


class _Draft:
    """A family's derivatives in the making."""

    def __init__(
        self, family: Family, program: ScalarProgram, dtype: DType, local: list[jax.ShapeDtypeStruct]
    ) -> None:
        self._family, self._program, self._dtype, self._local = family, program, dtype, local
        self._x = program.symbols((family.k,), dtype)
        one = np.ones(1, dtype)
        self._lam = program.constants(one) if family.is_loss else program.symbols((family.m,), dtype)
        self._data = [program.symbols(d.shape, d.dtype) for d in local]
        self._curved = np.flatnonzero(family.hess_pattern.any(0))

    def by_rules(self, flat: Program, hoisted: list[Numeric]) -> WrittenDerivatives:
        """Differentiate ψ as a scalar program."""
        family, program = self._family, self._program
        (y,) = write_out(program, flat, hoisted, [self._x, *self._data])
        outs = y.tolist()
        along = Differentiator(program, self._x.tolist())
        one = program.constant(np.ones((), program.dtypes[outs[0]])) if outs else 0
        # Of a single result the gradient serves for both derivatives, and λ scales the second one.
        single = family.m == 1
        seeds = (
            [one]
            if single
            else [
                program.convert(v, program.dtypes[o]) for v, o in zip(self._lam.tolist(), outs, strict=True)
            ]
        )
        gradient = along.gradient(outs, seeds)
        first = [gradient] if single else self._jacobian(along, outs, one)
        hessian: dict[tuple[int, int], int] = {}
        i, j = np.nonzero(np.tril(family.hess_pattern))
        for b in self._curved.tolist():
            rows = i[j == b].tolist()
            if rows:
                hessian |= {
                    (a, b): node
                    for a, node in zip(rows, along.tangents([gradient[a] for a in rows], b), strict=True)
                }
        second = [hessian[a, b] for a, b in zip(i.tolist(), j.tolist(), strict=True)]
        if single and not family.is_loss:
            second = [
                program.mul(program.convert(int(self._lam[0]), program.dtypes[node]), node) for node in second
            ]
        jacobian = [first[o][a] for o, a in zip(*np.nonzero(family.jac_pattern), strict=True)]
        return self._done(y, jacobian, second)

    def _jacobian(self, along: Differentiator, outs: list[int], one: int) -> list[list[int]]:
        if self._family.k <= 2 * self._family.m:
            columns = [along.tangents(outs, j) for j in range(self._family.k)]
            return [list(row) for row in zip(*columns, strict=True)]
        return [along.gradient([out], [one]) for out in outs]

    def by_jax(self, psi: Callable[..., Array]) -> WrittenDerivatives:
        """Write out the derivatives that JAX takes: for rules that scalar operations do not have."""
        family, program, curved = self._family, self._program, self._curved
        seeds = np.eye(family.k)

        def derivatives(
            x: Array, lam: Array, seeds: Array, some: Array, *data: Numeric
        ) -> tuple[Array, Array, Array]:
            def pulled(x: Array) -> tuple[Array, Array]:
                y, pull = jax.vjp(lambda x: psi(x, *data), x)
                return pull(lam.astype(y.dtype))[0], y

            gradient, y = pulled(x)
            second = some
            if len(curved):
                second = jax.vmap(lambda t: jax.jvp(lambda x: pulled(x)[0], (x,), (t,))[1])(some)
            if family.is_loss:
                return y, gradient[None], second
            if family.k <= 2 * family.m:
                first = jax.vmap(lambda t: jax.jvp(lambda x: psi(x, *data), (x,), (t,))[1], out_axes=1)(seeds)
            else:
                first = jax.vmap(jax.vjp(lambda x: psi(x, *data), x)[1])(jnp.eye(family.m, dtype=y.dtype))[0]
            return y, first, second

        shapes = [
            jax.ShapeDtypeStruct(s, self._dtype)
            for s in ((family.k,), (family.m,), seeds.shape, seeds[curved].shape)
        ]
        hoisted: list[Numeric] = []
        flat = flatten_jaxpr(jax.make_jaxpr(derivatives)(*shapes, *self._local), hoisted, VALUE_CALLS)
        units = [program.constants(e.astype(self._dtype)) for e in (seeds, seeds[curved])]
        y, first, second = write_out(program, flat, hoisted, [self._x, self._lam, *units, *self._data])
        i, j = np.nonzero(np.tril(family.hess_pattern))
        jacobian = first[np.nonzero(family.jac_pattern)].tolist()
        return self._done(y, jacobian, second[np.searchsorted(curved, i), j].tolist())

    def _done(self, y: np.ndarray, jacobian: list[int], hessian: list[int]) -> WrittenDerivatives:
        value = y.tolist() if self._family.is_loss else []
        return WrittenDerivatives(self._program, self._x, self._lam, self._data, value, jacobian, hessian)
