"""H·v through the lifted system: what the local models say of the Hessian, without eliminating anything.

With W = ∂²L (the local Hessians, added up) and J = ∂Φ, split into inputs u and pairs x:

    y = J_u v + J_x y          forward: how the kept slots move
    t = W [v; y]
    μ = t_x + J_xᵀ μ           backward: how the duals move (J_x is nilpotent, so both are triangular)
    H·v = t_u + J_uᵀ μ

It is compared with a Hessian-vector product of f itself before a new structure is trusted.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from gnewt.graph import Structure


def lifted_product(structure: Structure, sources: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Compute H·v from the sources of `linearize`. Host, float64; O(nonzeros of K)."""
    jacobian, hessian = _matrices(structure, np.asarray(sources, np.float64))
    n = structure.num_inputs
    if structure.num_pairs == 0:
        return hessian @ v
    j_u, j_x = jacobian[:, :n], jacobian[:, n:]
    # Slots are in topological order: I - J_x is unit lower triangular, and no fill can occur.
    triangle = scipy.sparse.linalg.splu(
        scipy.sparse.csc_matrix(scipy.sparse.identity(structure.num_pairs) - j_x),
        permc_spec="NATURAL",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    y = triangle.solve(j_u @ v)
    t = hessian @ np.concatenate([v, y])
    return t[:n] + j_u.T @ triangle.solve(t[n:], trans="T")


def _matrices(
    structure: Structure, sources: np.ndarray
) -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    """Assemble J [M, S] and the symmetric W [S, S]."""
    empty = np.zeros(0)
    j_val, j_row, j_col = [empty], [empty], [empty]
    w_val, w_row, w_col = [empty], [empty], [empty]
    at = 0
    for family in structure.families:
        if family.outs is not None:
            o, j = np.nonzero(family.jac_pattern)
            j_val.append(sources[at : at + family.n * len(o)])
            j_row.append(family.outs[:, o].ravel() - structure.num_inputs)
            j_col.append(family.args[:, j].ravel())
            at += family.n * len(o)
        i, j = np.nonzero(np.tril(family.hess_pattern))
        block = sources[at : at + family.n * len(i)]
        at += family.n * len(i)
        rows, cols = family.args[:, i].ravel(), family.args[:, j].ravel()
        # The strict lower triangle of each local Hessian stands for its mirror image too.
        mirror = np.tile(i != j, family.n)
        w_val += [block, block[mirror]]
        w_row += [rows, cols[mirror]]
        w_col += [cols, rows[mirror]]

    def sparse(val: list, row: list, col: list, shape: tuple[int, int]) -> scipy.sparse.csr_matrix:
        index = (np.concatenate(row).astype(np.int64), np.concatenate(col).astype(np.int64))
        return scipy.sparse.csr_matrix((np.concatenate(val), index), shape=shape)

    s, m = structure.num_slots, structure.num_pairs
    return sparse(j_val, j_row, j_col, (m, s)), sparse(w_val, w_row, w_col, (s, s))
