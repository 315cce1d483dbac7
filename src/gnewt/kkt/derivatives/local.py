"""Local derivatives of a family at all its instances: J and H for a node, value, gradient and H for a loss.

Three routes. A small function is written out as a scalar program (`written`) of its own derivatives, where
everything that is structurally zero, equal or linear has vanished; the native library runs it (`native`), or XLA
compiles it. A longer one is taken apart into such functions (`composed`). Any other is differentiated by JAX under vmap, forward over reverse, along the arguments
in which it is not linear.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Family, Structure, take_places
from gnewt.jaxprs.compat import DType, Numeric
from gnewt.kkt.derivatives.arrays import ArrayProgram, Traced
from gnewt.kkt.derivatives.composed import Composed, Composition, bind_inputs, compose
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.scalars import Vectors, fill
from gnewt.kkt.derivatives.written import (
    MAX_OPERATIONS,
    Jacobian,
    Kinds,
    WrittenDerivatives,
    data_of_one,
    write_derivatives,
)

MIN_WORK = 256
"""Arguments of all instances together from which a function is worth taking apart."""


class Local(Protocol):
    """The derivatives of one family at one iterate."""

    def values(self) -> Array:
        """Return l at every instance (losses only)."""
        ...

    def jacobian(self) -> Jacobian:
        """Return ∂ψ at every instance."""
        ...

    def hessian(self, lam: Array | None) -> Array:
        """Return ∂²(λ·ψ) with λ[m, n], or ∂²l, at the nonzeros of tril(hess_pattern): [nonzeros, n]."""
        ...


def data_kinds(family: Family, data: tuple[Numeric, ...]) -> Kinds:
    """Return shape and dtype of each data array, for all instances."""
    return tuple(
        (np.shape(d) if axis is None else (family.n, *np.shape(d)[1:]), jnp.result_type(d))
        for axis, d in zip(family.data_axes, data, strict=True)
    )


def written_of(
    structure: Structure, f: int, dtype: DType, kinds: Kinds, machine: bool
) -> WrittenDerivatives | None:
    """Return the derivatives of family f as a scalar program, made once, or None where there is none."""
    key = ("written", f, dtype, kinds, machine)
    return structure.memo(key, lambda: write_derivatives(structure.families[f], dtype, kinds, machine))


def local_derivatives(
    structure: Structure,
    f: int,
    x: Array,
    data: tuple[Numeric, ...],
    keeper: Keeper,
    machine: bool = False,
) -> Written | InParts | Differentiated:
    """Return the derivatives of family f at x[k, n], compiled by XLA: all its instances, or any other number.

    Args:
        machine: whether the native machine was asked before, and the derivatives are written for it.
    """
    family = structure.families[f]
    kinds = data_kinds(family, data)
    written = written_of(structure, f, x.dtype, kinds, machine)
    if written is not None and written.short:
        return Written(written, family, x, data, keeper)
    composed = structure.memo(("composed", f, x.dtype, kinds), lambda: _compose(family, x.dtype, kinds))
    if composed is not None:
        return InParts(composed, family, x, data, keeper)
    num = x.shape[1]
    traced = structure.memo(("traced", f, x.dtype, kinds, num), lambda: _trace(family, x.dtype, kinds, num))
    return Differentiated(traced, family, x, data, keeper)


# Scalar programs


class Written:
    """Derivatives by a scalar program."""

    def __init__(
        self, written: WrittenDerivatives, family: Family, x: Array, data: tuple[Numeric, ...], keeper: Keeper
    ) -> None:
        self._written, self._n, self._dtype = written, x.shape[1], x.dtype
        inputs = bind_inputs(family, written.x, written.data, x, data)
        outputs = [*written.value, *written.jacobian, *written.hessian]
        self._vectors = Vectors(written.program, inputs, outputs, keeper)

    def _stack(self, found: list[Numeric], axis: int) -> Array:
        full = [fill(v, (self._n,), self._dtype) for v in found]
        empty = (0, self._n) if axis == 0 else (self._n, 0)
        return jnp.stack(full, axis=axis) if full else jnp.zeros(empty, self._dtype)

    def values(self) -> Array:
        return self._stack(self._vectors.get(self._written.value), 0)[0]

    def jacobian(self) -> Jacobian:
        found = self._vectors.get(self._written.jacobian)
        shared = {e: v for e, v in enumerate(found) if np.shape(v) == ()}
        return Jacobian(self._stack(found, 1), shared)

    def hessian(self, lam: Array | None) -> Array:
        if lam is not None:
            self._vectors.give(self._written.lam, list(lam))
        return self._stack(self._vectors.get(self._written.hessian), 0)


# Functions taken apart


def _compose(family: Family, dtype: DType, kinds: Kinds) -> Composition | None:
    local = data_of_one(family, kinds)
    if sum(d.size for d in local) > MAX_OPERATIONS or family.k * family.n < MIN_WORK:
        return None

    def psi(x: Array, *data: Numeric) -> Array:
        return jnp.reshape(family.fn(x, *data), (-1,))

    return compose(family, Traced.of(psi, jax.ShapeDtypeStruct((family.k,), dtype), *local), dtype)


class InParts:
    """Derivatives by those of the parts of a function."""

    def __init__(
        self, made: Composition, family: Family, x: Array, data: tuple[Numeric, ...], keeper: Keeper
    ) -> None:
        self._family, self._n, self._composed = family, x.shape[1], Composed(made, family, x, data, keeper)

    def values(self) -> Array:
        return self._composed.values()

    def jacobian(self) -> Jacobian:
        outs, args = np.nonzero(self._family.jac_pattern)
        whole = self._composed.jacobian().reshape(-1, self._n)
        return Jacobian(take_places(whole, outs * self._family.k + args).T, {})

    def hessian(self, lam: Array | None) -> Array:
        i, j = np.nonzero(np.tril(self._family.hess_pattern))
        whole = self._composed.hessian(lam).reshape(-1, self._n)
        return take_places(whole, i * self._family.k + j)


# JAX's own derivatives


@dataclasses.dataclass(frozen=True, eq=False)
class _Derivatives:
    """The derivatives of a family as array programs over all instances."""

    curved: np.ndarray
    """Arguments in which ψ is not linear."""
    straight: np.ndarray
    """The others: their columns of ∂ψ depend on x only through conditions, indices and detached values."""
    main: Traced
    """(x[k, n], *data, λ[m, n]) ↦ l or y, gradient, ∂ψ along the curved arguments, ∂²(λ·ψ)."""
    rest: Traced | None
    """(x, *data) ↦ ∂ψ along the straight arguments."""
    alike: bool
    """Whether the straight columns are the same at all instances: `rest` is then traced at one of them."""


def _trace(family: Family, dtype: DType, kinds: Kinds, num: int) -> _Derivatives:
    curves = family.hess_pattern.any(0)
    curved, straight = np.flatnonzero(curves), np.flatnonzero(~curves)
    order = np.argsort(np.concatenate([curved, straight]))
    seeds = np.eye(len(curved), dtype=dtype)

    def psi(z: Array, w: Array, *data: Numeric) -> Array:
        x = z if len(straight) == 0 else take_places(jnp.concatenate([z, w]), order)
        return jnp.reshape(family.fn(x, *data), (-1,))

    def main(x: Array, *rest: Array) -> tuple[Array, Array, Array, Array]:
        *data, lam = rest
        z, w = take_places(x, curved), take_places(x, straight)

        def pulled(z: Array) -> tuple[tuple[Array, ...], Array]:
            if family.is_loss:
                y, pull = jax.vjp(lambda z, w: psi(z, w, *data), z, w)
            else:
                y, pull = jax.vjp(lambda z: psi(z, w, *data), z)
            return pull(lam.astype(y.dtype)), y

        gradient, y = pulled(z)
        gradient = take_places(jnp.concatenate(gradient), order) if family.is_loss else gradient[0]
        if len(curved) == 0:
            return y, gradient, jnp.zeros((0, family.m), dtype), jnp.zeros((0, 0), dtype)
        second, first = jax.vmap(lambda t: jax.jvp(pulled, (z,), (t,))[1])(seeds)
        return y, gradient, first, second[0]

    def rest(x: Array, *data: Numeric) -> Array:
        z, w = take_places(x, curved), take_places(x, straight)
        if len(straight) > 2 * family.m:
            return jax.jacrev(lambda w: psi(z, w, *data))(w).T
        # Linearised, not jacfwd: the value is then no part of the linear function, loops included, and goes as dead code.
        push = jax.linearize(lambda w: psi(z, w, *data), w)[1]
        return jax.vmap(push)(jnp.eye(len(straight), dtype=dtype))

    whole = [
        jax.ShapeDtypeStruct(shape if axis is None else (num, *shape[1:]), kind)
        for (shape, kind), axis in zip(kinds, family.data_axes, strict=True)
    ]
    x, lam = (jax.ShapeDtypeStruct((size, num), dtype) for size in (family.k, family.m))
    mapped = jax.vmap(main, (1, *family.data_axes, 1), -1)
    traced = Traced.of(mapped, x, *whole, lam)
    columns, alike = None, False
    if len(straight) and not family.is_loss:
        if all(axis is None for axis in family.data_axes):
            columns = Traced.of(rest, jax.ShapeDtypeStruct((family.k,), dtype), *whole)
            alike = not columns.reads(0)
        if not alike:
            columns = Traced.of(jax.vmap(rest, (1, *family.data_axes), -1), x, *whole)
    return _Derivatives(curved, straight, traced, columns, alike)


class Differentiated:
    """Derivatives by JAX under vmap, forward over reverse."""

    def __init__(
        self, traced: _Derivatives, family: Family, x: Array, data: tuple[Numeric, ...], keeper: Keeper
    ) -> None:
        self._traced, self._family, self._x, self._data, self._keeper = traced, family, x, data, keeper
        self._main = ArrayProgram(traced.main, keeper)
        self._main.give(0, [x, *data])
        if family.is_loss:
            self._main.give(1 + len(data), [jnp.ones((1, x.shape[1]), x.dtype)])

    def values(self) -> Array:
        return self._main.get(0)[0]

    def jacobian(self) -> Jacobian:
        family, traced, dtype = self._family, self._traced, self._x.dtype
        outs, args = np.nonzero(family.jac_pattern)
        if family.is_loss:
            return Jacobian(take_places(self._main.get(1).astype(dtype), args).T, {})
        columns = [jnp.asarray(self._main.get(2), dtype)] if len(traced.curved) else []
        if traced.rest is not None:
            rest = ArrayProgram(traced.rest, self._keeper)
            rest.give(0, [self._x[:, 0] if traced.alike else self._x, *self._data])
            found = jnp.asarray(rest.get(0), dtype)
            shape = (len(traced.straight), family.m, self._x.shape[1])
            columns.append(jnp.broadcast_to(found[..., None], shape) if traced.alike else found)
        place = np.argsort(np.concatenate([traced.curved, traced.straight]))
        flat = jnp.concatenate(columns).reshape(family.k * family.m, self._x.shape[1])
        return Jacobian(take_places(flat, place[args] * family.m + outs).T, {})

    def hessian(self, lam: Array | None) -> Array:
        curved = self._traced.curved
        if lam is not None:
            self._main.give(1 + len(self._data), [lam])
        i, j = (np.searchsorted(curved, p) for p in np.nonzero(np.tril(self._family.hess_pattern)))
        second = self._main.get(3)
        # Rules that assume a symmetric operand (cholesky, eigh) have second derivatives that are symmetric along symmetric
        # operands only: in independent entries the symmetric part is what counts, not one triangle.
        second = (second + jnp.swapaxes(second, 0, 1)) / 2
        second = second.reshape(len(curved) ** 2, self._x.shape[1])
        return take_places(second, i * len(curved) + j).astype(self._x.dtype)
