"""Local derivatives as dense blocks, for walks that take one unit at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Data, Structure
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import local_derivatives

DUALS = ("adjoint", "value", "zero")
"""What the Hessians of the nodes are contracted with: λ = ∂f (Newton), ∂V of what is eliminated already (DDP), 0 (iLQR)."""


_WRITTEN_OUT = 6
"""Inputs of a step, at most, that are eliminated by operations written out."""


class Swept(NamedTuple):
    """What an elimination says of the inputs of one step (or of all rounds of it, [R, ...])."""

    k: Float[Array, "*r e"]
    """Feedforward: -Q_uu⁻¹ q_u."""
    gain: Float[Array, "*r e b"]
    """K = -Q_uu⁻¹ Q_us, over the separator."""
    pivot: Float[Array, "*r"]
    """Smallest pivot of Q_uu + μI; not positive, or NaN, where it is not positive definite."""
    slope: Float[Array, "*r"]
    """q_uᵀ k."""
    curve: Float[Array, "*r"]
    """kᵀ Q_uu k."""


class Numbers(NamedTuple):
    """What an elimination works with."""

    maps: Any
    """Integers of the walk, on the device."""
    data: Data
    slots: Float[Array, " S"]
    duals: Float[Array, " S"]
    jacobians: dict[int, Array]
    hessians: dict[int, Array]
    shift: Float[Array, ""]
    share: Any = 1.0
    """Of the nodes' curvature λ·∂²Φ, where duals are adjoint: 1, or less where the whole of it makes H indefinite."""


class Values(NamedTuple):
    """The value function over the separator of an input step, once its inputs are gone."""

    gradient: Float[Array, "*r b"]
    hessian: Float[Array, "*r b b"]


def jacobian_blocks(structure: Structure, sources: Float[Array, " nnz"]) -> dict[int, Array]:
    """∂ψ of every node family, [n, m, k]."""
    return {
        f: _expand(rows, structure.families[f].jac_pattern)
        for f, rows in _split(structure, sources, want_jacobian=True)
    }


def hessian_blocks(structure: Structure, sources: Float[Array, " nnz"]) -> dict[int, Array]:
    """∂²l of every loss family and ∂²(λ·ψ) of every node family that has any, [n, k, k]."""
    out = {}
    for f, rows in _split(structure, sources, want_jacobian=False):
        pattern = structure.families[f].hess_pattern
        lower = np.zeros(pattern.shape, np.int64)
        i, j = np.nonzero(np.tril(pattern))
        if len(i):
            lower[i, j] = lower[j, i] = np.arange(len(i))
            out[f] = _gather(rows, np.where(pattern, lower, -1))
    return out


def _split(structure: Structure, sources: Array, want_jacobian: bool) -> list[tuple[int, Array]]:
    at, out = 0, []
    for f, family in enumerate(structure.families):
        for is_jacobian, pattern in ((True, family.jac_pattern), (False, np.tril(family.hess_pattern))):
            if is_jacobian and family.is_loss:
                continue
            width = int(pattern.sum())
            rows = sources[at : at + family.n * width].reshape(family.n, width)
            at += family.n * width
            if is_jacobian == want_jacobian:
                out.append((f, rows))
    return out


def _expand(rows: Array, pattern: np.ndarray) -> Array:
    index = np.full(pattern.shape, -1)
    index[np.nonzero(pattern)] = np.arange(int(pattern.sum()))
    return _gather(rows, index)


def _gather(rows: Array, index: np.ndarray) -> Array:
    """rows[n, nnz] to [n, *index.shape]; -1 stands for zero."""
    flat = index.ravel()
    if np.array_equal(flat, np.arange(rows.shape[1])):
        return rows.reshape(rows.shape[0], *index.shape)
    if rows.shape[1] == 0:
        return jnp.zeros((rows.shape[0], *index.shape), rows.dtype)
    padded = rows if (flat >= 0).all() else jnp.pad(rows, ((0, 0), (0, 1)))
    return padded[:, np.where(flat < 0, rows.shape[1], flat)].reshape(rows.shape[0], *index.shape)


def node_hessian(
    structure: Structure, f: int, x: Float[Array, " k"], lam: Float[Array, " m"], data: tuple[Any, ...]
) -> Float[Array, "k k"]:
    """∂²(λ·ψ) at one instance of a family, by the same programs that linearise all of them."""
    family = structure.families[f]
    i, j = np.nonzero(np.tril(family.hess_pattern))
    if not len(i):
        return jnp.zeros((family.k, family.k), x.dtype)
    rows = tuple(
        d if axis is None else jnp.asarray(d)[None] for axis, d in zip(family.data_axes, data, strict=True)
    )
    local = local_derivatives(structure, f, x[:, None], rows, Keeper(x))
    entries = local.hessian(lam[:, None])[:, 0].astype(x.dtype)
    place = np.full((family.k, family.k), -1)
    place[i, j] = place[j, i] = np.arange(len(i))
    return _gather(entries[None], place)[0]


def embed(block: Array, rows: np.ndarray, cols: np.ndarray, n: int, m: int) -> Array:
    """Put a block [..., r, c] into zeros [..., n, m]: by padding where its places are neighbours, else by a gather."""
    return _embed_axis(_embed_axis(block, rows, n, -2), cols, m, -1)


def _embed_axis(block: Array, places: np.ndarray, n: int, axis: int) -> Array:
    places = np.asarray(places)
    if len(places) == n and np.array_equal(places, np.arange(n)):
        return block
    if len(places) == 0:
        shape = list(block.shape)
        shape[axis] = n
        return jnp.zeros(shape, block.dtype)
    at = axis % block.ndim
    if np.array_equal(places, np.arange(places[0], places[0] + len(places))):
        config = [(0, 0, 0)] * block.ndim
        config[at] = (int(places[0]), n - int(places[-1]) - 1, 0)
        return jax.lax.pad(block, jnp.zeros((), block.dtype), config)
    # Places may repeat: one argument given twice. Then their contributions add up.
    moved = jnp.moveaxis(block, at, 0)
    out = jnp.zeros((n, *moved.shape[1:]), block.dtype).at[places].add(moved)
    return jnp.moveaxis(out, 0, at)


def take(values: Array, places: np.ndarray, axis: int = -1) -> Array:
    """values at static places along an axis, by a slice where they are neighbours."""
    places = np.asarray(places)
    at = axis % values.ndim
    if len(places) == 0:
        return jax.lax.slice_in_dim(values, 0, 0, axis=at)
    if np.array_equal(places, np.arange(places[0], places[0] + len(places))):
        if len(places) == values.shape[at]:
            return values
        return jax.lax.slice_in_dim(values, int(places[0]), int(places[-1]) + 1, axis=at)
    return jnp.take(values, places, axis=at)


def minimise_over(
    quu: Float[Array, "e e"],
    qus: Float[Array, "e b"],
    qu: Float[Array, " e"],
    shift: Float[Array, ""],
    definite: bool,
) -> Swept:
    """Eliminate inputs: k and K of the policy u = k + K s, and what the pivots say.

    Args:
        definite: Q_uu + μI is to be positive definite, else everything is NaN. Otherwise any that is not singular will do.
    """
    e = quu.shape[0]
    right = jnp.concatenate([qus, qu[:, None]], axis=1)
    if e == 1:
        pivot = quu[0, 0] + shift
        solved = -right / pivot
    elif not definite:
        shifted = quu + shift * jnp.eye(e, dtype=quu.dtype)
        solved, pivot = -jnp.linalg.solve(shifted, right), jnp.min(jnp.linalg.eigvalsh(shifted))
    elif e <= _WRITTEN_OUT:
        solved, pivot = _eliminate_rows(quu + shift * jnp.eye(e, dtype=quu.dtype), right)
    else:
        root = jnp.linalg.cholesky(quu + shift * jnp.eye(e, dtype=quu.dtype))
        solved = -jax.scipy.linalg.cho_solve((root, True), right)
        pivot = jnp.min(jnp.diagonal(root)) ** 2
    k, gain = solved[:, -1], solved[:, :-1]
    return Swept(k, gain, pivot, jnp.vdot(qu, k), jnp.vdot(k, quu @ k))


def _eliminate_rows(matrix: Float[Array, "e e"], right: Float[Array, "e c"]) -> tuple[Array, Array]:
    """(-matrix⁻¹ right, smallest pivot) row by row: for a few inputs this is faster than three calls of LAPACK."""
    whole = jnp.concatenate([matrix, right], axis=1)
    rows, pivots = list(whole), []
    for j in range(len(rows)):
        pivots.append(rows[j][j])
        unit = rows[j] / rows[j][j]
        rows = [unit if i == j else row - row[j] * unit for i, row in enumerate(rows)]
    smallest = jnp.min(jnp.stack(pivots))
    solved = -jnp.stack(rows)[:, len(rows) :]
    return jnp.where(smallest > 0, solved, jnp.nan), smallest


def pass_on(
    swept: Swept,
    quu: Float[Array, "e e"],
    qus: Float[Array, "e b"],
    qu: Float[Array, " e"],
    keep_shift: bool,
) -> tuple[Float[Array, "b b"], Float[Array, " b"]]:
    """What the elimination of inputs adds to the value function: (Hessian, gradient).

    With `keep_shift` the μ of Q_uu + μI stays in the problem: exactly H + μI. Without it only the policy is made with μ, and
    the value is that of the policy (Tassa et al. 2012).
    """
    if keep_shift:
        return qus.T @ swept.gain, qus.T @ swept.k
    cross = swept.gain.T @ qus
    hessian = swept.gain.T @ quu @ swept.gain + cross + cross.T
    return hessian, swept.gain.T @ (quu @ swept.k + qu) + qus.T @ swept.k
