"""Local derivatives as dense blocks, and static places of blocks in larger ones."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from gnewt.graph import Data, Structure
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import local_derivatives

DUALS = ("adjoint", "value", "zero")
"""What the Hessians of the nodes are contracted with: λ = ∂f (Newton), ∂V of what is eliminated already (DDP), 0 (iLQR)."""


class CausalModels(NamedTuple):
    """The local models of all instances as dense blocks, and how the curvature of the nodes enters."""

    data: Data
    slots: Float[Array, " S"]
    duals: Float[Array, " S"]
    """λ = ∂f."""
    jacobians: dict[int, Array]
    """∂Φ of every node family, [n, m, k]."""
    hessians: dict[int, Array]
    """∂²l of every loss family and ∂²(λ·Φ) of every node family that has any, [n, k, k]."""
    mode: str
    """One of `DUALS`."""
    share: Float[Array, ""] | float
    """Of the nodes' curvature λ·∂²Φ, in mode adjoint: 1, or less where the whole of this curvature makes H indefinite."""


def local_blocks(
    structure: Structure, sources: Float[Array, " nnz"]
) -> tuple[dict[int, Array], dict[int, Array]]:
    """Return (jacobians, hessians) of `CausalModels` from the vector of local derivatives."""
    jacobians: dict[int, Array] = {}
    hessians: dict[int, Array] = {}
    at = 0
    for f, family in enumerate(structure.families):
        wanted = [] if family.is_loss else [(jacobians, _number(family.jac_pattern))]
        for blocks, places in [*wanted, (hessians, _number_lower(family.hess_pattern))]:
            width = int(places.max(initial=-1)) + 1
            rows = sources[at : at + family.n * width].reshape(family.n, width)
            at += family.n * width
            if width or blocks is jacobians:
                blocks[f] = _spread(rows, places)
    return jacobians, hessians


def _number(pattern: np.ndarray) -> np.ndarray:
    """Number the nonzeros of a pattern row by row; -1 stands for zero."""
    places = np.full(pattern.shape, -1)
    places[np.nonzero(pattern)] = np.arange(np.count_nonzero(pattern))
    return places


def _number_lower(pattern: np.ndarray) -> np.ndarray:
    """Number the nonzeros of the lower triangle of a symmetric pattern; the upper triangle repeats these numbers."""
    lower = _number(np.tril(pattern))
    return np.maximum(lower, lower.T)


def _spread(rows: Float[Array, "n nnz"], places: np.ndarray) -> Array:
    """Write rows[n, nnz] as [n, *places.shape]; -1 stands for zero."""
    (n, width), flat = rows.shape, places.ravel()
    if np.array_equal(flat, np.arange(width)):
        return rows.reshape(n, *places.shape)
    if width == 0:
        return jnp.zeros((n, *places.shape), rows.dtype)
    padded = rows if (flat >= 0).all() else jnp.pad(rows, ((0, 0), (0, 1)))
    return padded[:, np.where(flat < 0, width, flat)].reshape(n, *places.shape)


def node_hessian(
    structure: Structure, f: int, x: Float[Array, " k"], lam: Float[Array, " m"], data: tuple[ArrayLike, ...]
) -> Float[Array, "k k"]:
    """∂²(λ·Φ) at one instance of a family that has any, by the same programs that linearise all instances."""
    family = structure.families[f]
    rows = tuple(
        d if axis is None else jnp.asarray(d)[None] for axis, d in zip(family.data_axes, data, strict=True)
    )
    local = local_derivatives(structure, f, x[:, None], rows, Keeper(x))
    return _spread(local.hessian(lam[:, None]).T.astype(x.dtype), _number_lower(family.hess_pattern))[0]


def add_blocks(blocks: Sequence[tuple[Array, np.ndarray]], size: int) -> Array:
    """Add square blocks [..., k, k], at least one, into zeros [..., size, size], each at its places."""
    return reduce(operator.add, (embed(block, places, places, size, size) for block, places in blocks))


def embed(block: Array, rows: np.ndarray, cols: np.ndarray, n: int, m: int) -> Array:
    """Put a block [..., r, c] into zeros [..., n, m]: by padding where its places are neighbours, else by a scatter."""
    return embed_axis(embed_axis(block, rows, n, -2), cols, m, -1)


def embed_axis(block: Array, places: np.ndarray, n: int, axis: int) -> Array:
    """Put the entries along one axis at the given places among n, all others zero."""
    places, at = np.asarray(places), axis % block.ndim
    if len(places) == 0:
        return jnp.zeros((*block.shape[:at], n, *block.shape[at + 1 :]), block.dtype)
    if _are_neighbours(places):
        if len(places) == n:
            return block
        config = [(0, 0, 0)] * block.ndim
        config[at] = (int(places[0]), n - int(places[-1]) - 1, 0)
        return jax.lax.pad(block, jnp.zeros((), block.dtype), config)
    # Places may repeat: one argument given twice. Then their contributions add up.
    moved = jnp.moveaxis(block, at, 0)
    out = jnp.zeros((n, *moved.shape[1:]), block.dtype).at[places].add(moved)
    return jnp.moveaxis(out, 0, at)


def take(values: Array, places: np.ndarray, axis: int = -1) -> Array:
    """Return values at static places along an axis, by a slice where the places are neighbours."""
    at = axis % values.ndim
    if len(places) == 0:
        return jax.lax.slice_in_dim(values, 0, 0, axis=at)
    if not _are_neighbours(places):
        return jnp.take(values, places, axis=at)
    if len(places) == values.shape[at]:
        return values
    return jax.lax.slice_in_dim(values, int(places[0]), int(places[-1]) + 1, axis=at)


def _are_neighbours(places: np.ndarray) -> bool:
    return np.array_equal(places, np.arange(places[0], places[0] + len(places)))
