"""H·v through the lifted system: what the local models say of the Hessian, without eliminating anything.

With W = ∂²L (the local Hessians, added up) and J = ∂Φ, split into inputs u and pairs x:

    y = J_u v + J_x y          forward: how the kept slots move
    t = W [v; y]
    μ = t_x + J_xᵀ μ           backward: how the duals move (J_x is nilpotent, so both are triangular)
    H·v = t_u + J_uᵀ μ

It is compared with a Hessian-vector product of f itself before a new structure is trusted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnewt.graph import Structure


class _Entries(NamedTuple):
    """Nonzeros of a sparse matrix."""

    values: np.ndarray
    rows: np.ndarray
    cols: np.ndarray


def lifted_product(structure: Structure, sources: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Compute H·v from the sources of `linearize`. Host, float64; O(nonzeros of K)."""
    jacobian, hessian = _matrices(structure, np.asarray(sources, np.float64))
    # Slots are in topological order: a row reads slots before its own, so that one pass along the rows solves.
    order = np.argsort(jacobian.rows, kind="stable")
    entries = [column[order].tolist() for column in jacobian]
    moved = [*np.asarray(v, np.float64).tolist(), *([0.0] * structure.num_pairs)]
    for value, row, col in zip(*entries, strict=True):
        moved[row] += value * moved[col]
    weights = hessian.values * np.asarray(moved)[hessian.cols]
    duals = np.bincount(hessian.rows, weights, structure.num_slots).tolist()
    for value, row, col in zip(*(reversed(column) for column in entries), strict=True):
        duals[col] += value * duals[row]
    return np.asarray(duals[: structure.num_inputs])


def _matrices(structure: Structure, sources: np.ndarray) -> tuple[_Entries, _Entries]:
    """J and the symmetric W over all slots; an entry may be listed in parts."""
    jacobian = [_Entries(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    hessian = jacobian.copy()
    at = 0
    for family in structure.families:
        if family.outs is not None:
            o, j = np.nonzero(family.jac_pattern)
            block = sources[at : at + family.n * len(o)]
            at += family.n * len(o)
            jacobian.append(_Entries(block, family.outs[:, o].ravel(), family.args[:, j].ravel()))
        i, j = np.nonzero(np.tril(family.hess_pattern))
        block = sources[at : at + family.n * len(i)]
        at += family.n * len(i)
        rows, cols = family.args[:, i].ravel(), family.args[:, j].ravel()
        # The strict lower triangle of each local Hessian stands for its mirror image too.
        mirror = np.tile(i != j, family.n)
        hessian += [_Entries(block, rows, cols), _Entries(block[mirror], cols[mirror], rows[mirror])]
    return _joined(jacobian), _joined(hessian)


def _joined(parts: list[_Entries]) -> _Entries:
    return _Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
