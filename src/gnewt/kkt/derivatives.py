"""Local derivatives of a family at all its instances: J and H for a node, value, gradient and H for a loss.

Two routes. A small function is written out as a scalar program (`kkt.scalars`) of its own derivatives, where
everything that is structurally zero, equal or linear has vanished. Any other function is differentiated by JAX
under vmap, forward over reverse, along the arguments in which it is not linear.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Family, Structure
from gnewt.kkt.scalars import NotScalar, Program, Vectors, live_nodes
from gnewt.kkt.writeout import write_out

MAX_NODES = 40_000
"""Nodes made while a function is written out."""
MAX_OPERATIONS = 3_000
"""Operations that remain, beyond which XLA takes longer to compile than the run time is worth."""


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


@dataclasses.dataclass(frozen=True)
class Jacobian:
    """∂ψ at the nonzeros of the pattern: rows[n, nonzeros], and the entries that all instances share."""

    rows: Array
    shared: dict[int, Any]


def local_derivatives(
    structure: Structure, f: int, x: Array, data: tuple[Any, ...], one: Any
) -> Written | Differentiated:
    """Return the derivatives of family f at x[k, n]; `one` is a 1 that the compiler does not know."""
    family = structure.families[f]
    kinds = tuple((np.shape(d), jnp.result_type(d)) for d in data)
    written = structure.memo(("written", f, x.dtype, kinds), lambda: _write(family, x.dtype, kinds))
    if written is None:
        return Differentiated(family, x, data)
    return Written(written, family, x, data, one)


# Scalar programs


@dataclasses.dataclass(frozen=True, eq=False)
class _Written:
    """The derivatives of a family as one program: its inputs and outputs as nodes."""

    program: Program
    x: np.ndarray
    lam: np.ndarray
    data: list[np.ndarray]
    value: list[int]
    jacobian: list[int]
    hessian: list[int]


def _write(family: Family, dtype: Any, kinds: tuple[tuple[tuple[int, ...], Any], ...]) -> _Written | None:
    """Write the derivatives of a family out, or return None where that is impossible or too long."""
    local = [
        jax.ShapeDtypeStruct(shape if axis is None else shape[1:], kind)
        for (shape, kind), axis in zip(kinds, family.data_axes, strict=True)
    ]
    if family.k * (family.m + family.k) > MAX_OPERATIONS or sum(d.size for d in local) > MAX_NODES:
        return None
    curved = np.flatnonzero(family.hess_pattern.any(0))
    seeds = np.eye(family.k)

    def derivatives(
        x: Array, lam: Array, seeds: Array, some: Array, *data: Any
    ) -> tuple[Array, Array, Array]:
        def psi(x: Array) -> Array:
            return jnp.reshape(family.fn(x, *data), (-1,))

        def pulled(x: Array) -> tuple[Array, Array]:
            y, pull = jax.vjp(psi, x)
            return pull(lam.astype(y.dtype))[0], y

        gradient, y = pulled(x)
        second = some
        if len(curved):
            second = jax.vmap(lambda t: jax.jvp(lambda x: pulled(x)[0], (x,), (t,))[1])(some)
        if family.is_loss:
            return y, gradient[None], second
        if family.k <= 2 * family.m:
            first = jax.vmap(lambda t: jax.jvp(psi, (x,), (t,))[1], out_axes=1)(seeds)
        else:
            first = jax.vmap(jax.vjp(psi, x)[1])(jnp.eye(family.m, dtype=y.dtype))[0]
        return y, first, second

    shapes = [
        jax.ShapeDtypeStruct((family.k,), dtype),
        jax.ShapeDtypeStruct((family.m,), dtype),
        jax.ShapeDtypeStruct(seeds.shape, dtype),
        jax.ShapeDtypeStruct(seeds[curved].shape, dtype),
    ]
    closed = jax.make_jaxpr(derivatives)(*shapes, *local)
    program = Program(MAX_NODES)
    x = program.symbols((family.k,), dtype)
    lam = program.constants(np.ones(1, dtype)) if family.is_loss else program.symbols((family.m,), dtype)
    inputs = [program.symbols(d.shape, d.dtype) for d in local]
    units = [program.constants(e.astype(dtype)) for e in (seeds, seeds[curved])]
    try:
        with jax.ensure_compile_time_eval():
            outs = write_out(program, closed.jaxpr, closed.consts, [x, lam, *units, *inputs])
    except NotScalar:
        return None
    y, first, second = outs
    i, j = np.nonzero(np.tril(family.hess_pattern))
    value = y.tolist() if family.is_loss else []
    jacobian = first[np.nonzero(family.jac_pattern)].tolist()
    hessian = second[np.searchsorted(curved, i), j].tolist()
    if len(live_nodes(program, [*value, *jacobian, *hessian])) > MAX_OPERATIONS:
        return None
    return _Written(program, x, lam, inputs, value, jacobian, hessian)


class Written:
    """Derivatives by a scalar program."""

    def __init__(self, written: _Written, family: Family, x: Array, data: tuple[Any, ...], one: Any) -> None:
        self._written, self._n, self._dtype = written, family.n, x.dtype
        inputs = dict(zip(written.x.tolist(), x, strict=True))
        for nodes, values, axis in zip(written.data, data, family.data_axes, strict=True):
            flat = jnp.reshape(values, (nodes.size,) if axis is None else (family.n, nodes.size))
            inputs.update({int(node): flat[..., i] for i, node in enumerate(nodes.ravel())})
        outputs = [*written.value, *written.jacobian, *written.hessian]
        self._vectors = Vectors(written.program, inputs, outputs, one)

    def _stack(self, found: list[Any], axis: int) -> Array:
        full = [jnp.broadcast_to(jnp.asarray(v, self._dtype), (self._n,)) for v in found]
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


# JAX's own derivatives


class Differentiated:
    """Derivatives by JAX under vmap."""

    def __init__(self, family: Family, x: Array, data: tuple[Any, ...]) -> None:
        self._family, self._x, self._data = family, x, data

    def _map(self, fn: Any, *more: Array) -> Any:
        axes = (1, *[1] * len(more), *self._family.data_axes)
        return jax.vmap(fn, in_axes=axes, out_axes=-1)(self._x, *more, *self._data)

    def values(self) -> Array:
        return self._map(self._family.fn)

    def jacobian(self) -> Jacobian:
        family = self._family
        mode = jax.jacfwd if family.k <= 2 * family.m else jax.jacrev
        if family.is_loss:
            dense = self._map(jax.grad(family.fn))[None]
        else:
            dense = self._map(mode(family.fn))
        return Jacobian(dense[np.nonzero(family.jac_pattern)].astype(self._x.dtype).T, {})

    def hessian(self, lam: Array | None) -> Array:
        family = self._family
        curved = np.flatnonzero(family.hess_pattern.any(0))
        i, j = np.nonzero(np.tril(family.hess_pattern))
        place = np.full(family.k, len(curved))
        place[curved] = np.arange(len(curved))

        def second(x: Array, *rest: Any) -> Array:
            def contracted(z: Array) -> Array:
                full = jnp.concatenate([z, x])[
                    np.where(place < len(curved), place, len(curved) + np.arange(family.k))
                ]
                if family.is_loss:
                    return family.fn(full, *rest)
                lam, *data = rest
                return jnp.vdot(lam, family.fn(full, *data).astype(lam.dtype))

            return jax.jacfwd(jax.grad(contracted))(x[curved])

        dense = self._map(second) if lam is None else self._map(second, lam)
        return dense[place[i], place[j]].astype(self._x.dtype)
