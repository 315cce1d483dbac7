"""Factorize of Algorithm 2: eliminate the interior of one bag. Once per bag and matrix.

    [ Q̃_ξξ   Q̃_ξι   G¹_ξᵀ  G²_ξᵀ ]        E1: ι = χ(l) \\ χ(p) is eliminated, ξ = χ(l) ∩ χ(p) is kept.
    [ Q̃_ιξ   Q̃_ιι   G¹_ιᵀ  0     ]        E2: r = rank(G̃_:,ι), not rank(Q̃_ιι).
    [ G¹_ξ   G¹_ι   0      0     ]        E3: the (1, 4) block is G²_ξᵀ, and G²_ι = 0.
    [ G²_ξ   0      0      0     ]        E5: pivot K = [[Q̃_ιι, G¹_ιᵀ], [G¹_ι, 0]].

K is nonsingular exactly when the front's reduced Hessian ZᵀQ̃_ιιZ is, with Z a basis of null(G¹_ι); this
holds at every front if the reduced Hessian of the whole QP is positive definite. Otherwise (E6) single
directions of ι whose pivot is zero or small are *delayed*: they become extra coordinates of the parent's
interior. The orthogonal change of basis x_ι = T [a; d] makes this possible direction by direction: a is
eliminated here, d is kept. Without delays T only rotates ι and drops out of the message.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

RANK_TOL = 1e-11
"""Singular values of equilibrated constraint rows below this count as zero."""
PIVOT_TOL = 64 * np.finfo(np.float64).eps
"""Curvature below this, times the front's size and largest entry, counts as zero."""
MAX_GROWTH = 1e6
"""A pivot that would enlarge the message by more than this is delayed. One step of iterative refinement
gains log10(1 / (MAX_GROWTH · eps)) ≈ 10 digits, so two reach rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class InteriorPivot:
    """K⁻¹ at work on one front. Local coordinates: interior [k], then separator; kept = [null, d, ξ]."""

    T: Float[np.ndarray, "k k"]
    """x_ι = T [a; null; d]."""
    U1: Float[np.ndarray, "m r"]
    """Rows of P that go with the pivot: G¹ = U1ᵀ G̃."""
    U2: Float[np.ndarray, "m r2"]
    """Rows of P whose constraints are passed up: G² = U2ᵀ G̃. The remaining rows of P give 0 = h."""
    K: Float[np.ndarray, "ar ar"]
    B: Float[np.ndarray, "kept ar"]
    W: Float[np.ndarray, "ar kept"]
    """K⁻¹ Bᵀ."""
    curvature: Float[np.ndarray, " z"]
    """Pivots of the reduced Hessian, that of the last columns of the a-part of T."""
    num_null: int
    """Directions without curvature and without anything above that could determine them."""
    num_delayed: int
    scale: float
    """Largest entry met in this front or below: the unit of rounding errors."""

    @property
    def rank(self) -> int:
        return self.U1.shape[1]

    @property
    def num_pivots(self) -> int:
        """Length of a."""
        return self.T.shape[0] - self.num_null - self.num_delayed

    @property
    def inertia(self) -> tuple[int, int, int]:
        """Of K, with null directions counted as zeros: each constraint gives one +1 and one −1."""
        neg = int((self.curvature < 0).sum())
        return self.rank + len(self.curvature) - neg, self.rank + neg, self.num_null


def eliminate(
    Q: Float[np.ndarray, "n n"], G: Float[np.ndarray, "m n"], k: int, scale: float
) -> tuple[InteriorPivot, Float[np.ndarray, "c c"], Float[np.ndarray, "r2 c"]]:
    """Eliminate the first k coordinates and return the message (Q_{l→p}, G_{l→p}) over [d, ξ].

        P G̃_ι = [R; 0], r = rank(G̃_ι)                 E2, E5
        Q_{l→p} = Q̃_ξξ − B K⁻¹ Bᵀ,   G_{l→p} = G²_ξ

    Args:
        Q, G: Q̃ and G̃ of the front, the interior first.
        k: number of interior coordinates.
        scale: largest entry met below this front.

    Cost O((m + n) n k).
    """
    n = Q.shape[0]
    T, U1, curvature, num_null, num_delayed = _choose_pivots(Q, G, k, scale)
    na = k - num_null - num_delayed
    Q = _rotate(Q, T)
    Gx = np.concatenate([G[:, :k] @ T, G[:, k:]], axis=1)
    G1 = U1.T @ Gx
    r = U1.shape[1]

    K = np.block([[Q[:na, :na], G1[:, :na].T], [G1[:, :na], np.zeros((r, r))]])
    B = np.concatenate([Q[na:, :na], G1[:, na:].T], axis=1)
    W = np.linalg.solve(K, B.T)
    change = B @ W
    Q_up = Q[na:, na:] - 0.5 * (change + change.T)

    up = slice(na + num_null, n)
    U2 = _complement_rows(Gx[:, up] - U1 @ G1[:, up], U1)
    scale = max(scale, _largest(Q), _largest(change))
    pivot = InteriorPivot(T, U1, U2, K, B, W, curvature, num_null, num_delayed, scale)
    return pivot, Q_up[num_null:, num_null:], U2.T @ Gx[:, up]


def _choose_pivots(
    Q: np.ndarray, G: np.ndarray, k: int, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Choose the directions of ι to eliminate: T, U1, curvature, and the numbers of null and delayed ones.

    x_ι = Y y + Z z, with y seen by the constraints (G̃_ι Y = U Σ) and z not (G̃_ι Z = 0). A direction y_i
    and its row are delayed together where σ_i is small beside the row's part in ξ; a z_i where its
    curvature is small beside its coupling to ξ. A root has no ξ, and delays nothing.
    """
    n = Q.shape[0]
    U, sigma, Vt = _svd(G[:, :k])
    r = int((sigma > RANK_TOL * max(1.0, sigma.max(initial=0.0))).sum())
    U, sigma, Y, Z = U[:, :r], sigma[:r], Vt[:r].T, Vt[r:].T
    Gxi = U.T @ G[:, k:]
    take_y = sigma * np.sqrt(MAX_GROWTH) >= np.linalg.norm(Gxi, axis=1)
    U1, Y1, Y0 = U[:, take_y], Y[:, take_y], Y[:, ~take_y]

    # With y = Σ⁻¹(h¹ − G¹_ξ x_ξ) put in, the kept coordinates [y0, x_ξ] move along N.
    N = np.zeros((n, Y0.shape[1] + n - k))
    N[:k, : Y0.shape[1]] = Y0
    N[:k, Y0.shape[1] :] = -Y1 @ (Gxi[take_y] / sigma[take_y, None])
    N[k:, Y0.shape[1] :] = np.eye(n - k)
    curvature, V = np.linalg.eigh(Z.T @ Q[:k, :k] @ Z)
    Z = Z @ V
    coupling = np.linalg.norm(Z.T @ (Q[:k] @ N), axis=1)
    local = max(1.0, _largest(Q), _largest(N.T @ Q @ N))
    zero = PIVOT_TOL * n * max(scale, local)
    flat = np.abs(curvature) <= zero
    null = flat & (coupling <= zero)
    take_z = ~flat & (coupling**2 <= MAX_GROWTH * local * np.abs(curvature))
    late = ~null & ~take_z

    T = np.concatenate([Y1, Z[:, take_z], Z[:, null], Y0, Z[:, late]], axis=1)
    return T, U1, curvature[take_z], int(null.sum()), Y0.shape[1] + int(late.sum())


def _complement_rows(rest: np.ndarray, U1: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis U2 ⟂ U1 of the row combinations that still constrain the kept coordinates."""
    U, sigma, _ = _svd(rest)
    U2 = U[:, : int((sigma > RANK_TOL * max(1.0, sigma.max(initial=0.0))).sum())]
    if U2.shape[1] == 0:
        return U2
    # `rest` is orthogonal to U1 up to rounding, U2 only up to rounding / σ: project once more.
    return np.linalg.qr(U2 - U1 @ (U1.T @ U2))[0]


def _svd(A: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A = U Σ Vᵀ with U thin and V square; empty matrices too."""
    m, n = A.shape
    if m == 0 or n == 0:
        return np.zeros((m, 0)), np.zeros(0), np.eye(n)
    if m > n:  # never form the m × m factor of a tall stack
        return np.linalg.svd(A, full_matrices=False)
    return np.linalg.svd(A, full_matrices=True)


def _rotate(Q: np.ndarray, T: np.ndarray) -> np.ndarray:
    k = T.shape[0]
    Q = Q.copy()
    Q[:k] = T.T @ Q[:k]
    Q[:, :k] = Q[:, :k] @ T
    return Q


def _largest(A: np.ndarray) -> float:
    return float(np.abs(A).max(initial=0.0))
