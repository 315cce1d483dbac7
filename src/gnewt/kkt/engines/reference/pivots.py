"""Pivots inside one front: a block at once if that is stable, else one or two at a time, else delayed.

A pair (x_v, λ_v) that no one else's dual has touched is eliminated by substitution (E17): [[L, -I], [-I, 0]] has
an inverse without division, so it needs no test however large L is. All other pivots must not make entries grow,
measured in units in which the magnitudes on the diagonal are one, so that the answer does not depend on the user's.

Every entry a_ij carries s_ij, the sum of the magnitudes that were added into it: an entry below c·eps·s_ij is
rounding noise and never a pivot. This is what makes a zero pivot visible at any scaling of the problem.
"""

from __future__ import annotations

import dataclasses

import numpy as np

THRESHOLD = 0.01
"""A pivot may make entries grow by at most 1/THRESHOLD (Duff & Reid 1983)."""
NOISE = 32.0
"""An entry below NOISE·eps·(what was added into it) counts as zero."""
_SMALLEST = 1e-290
"""Nothing smaller is a pivot: its inverse would overflow."""


@dataclasses.dataclass(frozen=True, eq=False)
class BlockPivot:
    """A = L D Lᵀ for the eliminated block of a front: L unit lower triangular up to a row permutation."""

    lower: np.ndarray
    """[q, q], unit lower triangular: rows and columns in the order of the pivots."""
    perm: np.ndarray
    """int[q]: row of A, not of the front, of each pivot, so that A[perm][:, perm] = L D Lᵀ."""
    diag: np.ndarray
    """[q]: diagonal of D."""
    off: np.ndarray
    """[q]: off[i] couples i and i + 1 in D; a nonzero one makes a 2×2 pivot."""

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A⁻¹ b."""
        if not b.size:
            return b.copy()
        # Loaded here: SciPy takes a third of a second, and most runs never come to this engine.
        from scipy.linalg.blas import dtrsm  # type: ignore[attr-defined]

        # dtrsm itself: LAPACK's triangular solve starts threads even for the smallest fronts.
        columns = b[self.perm].reshape(len(b), -1)
        y = self._divide(dtrsm(1.0, self.lower, columns, lower=1, diag=1))
        x = np.empty_like(columns)
        x[self.perm] = dtrsm(1.0, self.lower, y, lower=1, diag=1, trans_a=1)
        return x.reshape(b.shape)

    def _divide(self, y: np.ndarray) -> np.ndarray:
        first = np.flatnonzero(self.off)
        if not len(first):
            return y / self.diag[:, None]
        single = self.single
        out = np.empty_like(y)
        out[single] = y[single] / self.diag[single, None]
        a, b, c = self.diag[first, None], self.off[first, None], self.diag[first + 1, None]
        det = a * c - b * b
        out[first] = (c * y[first] - b * y[first + 1]) / det
        out[first + 1] = (a * y[first + 1] - b * y[first]) / det
        return out

    @property
    def single(self) -> np.ndarray:
        """bool[q]: which pivots are 1×1."""
        pair = self.off != 0
        return ~(pair | np.roll(pair, 1)) if len(pair) else np.zeros(0, bool)

    def without(self, dropped: np.ndarray) -> BlockPivot:
        """Return the factor of the block that is left when decoupled pivots are dropped."""
        left = np.flatnonzero(~dropped)
        lower = np.asfortranarray(self.lower[np.ix_(left, left)])
        return BlockPivot(lower, np.arange(len(left)), self.diag[left], self.off[left])

    def eigenvalues(self) -> np.ndarray:
        """Eigenvalues of D: their signs are the inertia of A, their product its determinant."""
        first = np.flatnonzero(self.off)
        a, b, c = self.diag[first], self.off[first], self.diag[first + 1]
        mean, radius = (a + c) / 2, np.hypot((a - c) / 2, b)
        big = mean + np.where(mean >= 0, radius, -radius)
        small = (a * c - b * b) / np.where(big == 0, 1.0, big)
        return np.concatenate([self.diag[self.single], big, small])


@dataclasses.dataclass(frozen=True, eq=False)
class PivotedFront:
    """What became of a front of which `p` unknowns could be eliminated."""

    pivots: np.ndarray
    """Local coordinates that were eliminated, in the order of A's rows; pivots[block.perm] is the order of the pivots."""
    block: BlockPivot
    gain: np.ndarray
    """X = A⁻¹ B for the eliminated block A and its coupling B to `kept`."""
    kept: np.ndarray
    """Local coordinates that were not: delayed ones first, then the separator."""
    delayed: int
    schur: np.ndarray
    bound: np.ndarray
    """Sums of magnitudes belonging to `schur`."""


def eliminate(a: np.ndarray, s: np.ndarray, p: int, eps: float, partner: np.ndarray) -> PivotedFront:
    """Eliminate as many of the first p unknowns of the symmetric front `a` as is stable.

    Args:
        a: the assembled front.
        s: for each entry, the sum of the magnitudes added into it.
        p: how many unknowns are fully assembled; the others belong to the separator.
        eps: relative rounding of the entries.
        partner: int[p]: local coordinate of the dual of each state if it is among the first p, else -1.
    """
    whole = _try_block(a, s, p, eps, partner)
    return whole if whole is not None else _one_by_one(a, s, p, eps, partner)


def _substitutable(s: np.ndarray, partner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the pairs (states, duals) whose dual has no diagonal entry: nothing was added into it."""
    states = np.flatnonzero(partner >= 0)
    duals = partner[states]
    bare = s[duals, duals] == 0
    return states[bare], duals[bare]


def _units(s: np.ndarray) -> np.ndarray:
    """Scale of every unknown: the root of its diagonal magnitude, or of its largest coupling if it has none.

    In these units a positive semidefinite front has no entry above one, whatever the units of the user.
    """
    diagonal = np.diagonal(s)
    if np.all(diagonal > 0):
        return np.sqrt(diagonal)
    largest = np.max(s, axis=1, initial=0.0)
    return np.sqrt(np.where(diagonal > 0, diagonal, np.where(largest > 0, largest, 1.0)))


def _finish(a: np.ndarray, s: np.ndarray, p: int, pivots: np.ndarray, block: BlockPivot) -> PivotedFront:
    """Form the Schur complement on everything that was not eliminated."""
    if np.array_equal(pivots, np.arange(p)):
        kept = np.arange(p, len(a))
        b, rest, held = a[:p, p:], a[p:, p:], s[p:, p:]
    else:
        taken = np.zeros(len(a), bool)
        taken[pivots] = True
        kept = np.flatnonzero(~taken)
        b, rest, held = a[np.ix_(pivots, kept)], a[np.ix_(kept, kept)], s[np.ix_(kept, kept)]
    gain = block.solve(b)
    schur = rest - b.T @ gain
    bound = held + np.abs(b).T @ np.abs(gain)
    return PivotedFront(
        pivots, block, gain, kept, p - len(pivots), (schur + schur.T) / 2, (bound + bound.T) / 2
    )


def _try_block(a: np.ndarray, s: np.ndarray, p: int, eps: float, partner: np.ndarray) -> PivotedFront | None:
    """Take all p unknowns as one block pivot K, as in the corrected Algorithm 2, if K is a safe one.

    Unknowns whose pivots are rounding noise are left out of the block: their columns in it are noise too.
    """
    pivots = np.arange(p)
    if p == 0:
        return _finish(a, s, p, pivots, BlockPivot(np.zeros((0, 0)), pivots, np.zeros(0), np.zeros(0)))
    block = _single(a) if p == 1 else _dense_block(a[:p, :p], s[:p, :p], eps)
    if block is None:
        return None
    noisy = _noisy(block, np.diagonal(s)[:p], eps)
    if noisy.any():
        pivots, block = block.perm[~noisy], block.without(noisy)
    done = _finish(a, s, p, pivots, block)
    if done.gain.size:
        if not np.all(np.isfinite(done.gain)):
            return None
        units = _units(s)
        growth = np.abs(done.gain) * units[done.pivots, None] / units[None, done.kept]
        if growth.max() > 1 / THRESHOLD:
            states, duals = _substitutable(s, partner)
            growth[np.isin(done.pivots, np.concatenate([states, duals]))] = 0.0
            if growth.max() > 1 / THRESHOLD:
                return None
    return done


def _noisy(block: BlockPivot, assembled: np.ndarray, eps: float) -> np.ndarray:
    """Mark the pivots that are no larger than the rounding of what went into them (NaN included)."""
    magnitude, off = np.abs(block.lower), block.off
    added = assembled[block.perm] + (np.abs(block.diag) * magnitude**2).sum(1)
    size = np.abs(block.diag)
    if off.any():
        first = np.flatnonzero(off)
        added += 2 * (np.abs(off[first]) * magnitude[:, first] * magnitude[:, first + 1]).sum(1)
        a, b, c = block.diag[first], off[first], block.diag[first + 1]
        smaller = np.abs(a * c - b * b) / np.maximum(np.maximum(np.abs(a), np.abs(c)), np.abs(b))
        size[first] = size[first + 1] = smaller
        added[first] = added[first + 1] = np.maximum(added[first], added[first + 1])
    return ~(size > np.maximum(NOISE * eps * added, _SMALLEST))


def _single(a: np.ndarray) -> BlockPivot:
    return BlockPivot(np.ones((1, 1)), np.zeros(1, np.int64), a[0, :1].copy(), np.zeros(1))


def _dense_block(a: np.ndarray, s: np.ndarray, eps: float) -> BlockPivot | None:
    """Factorise by Bunch and Kaufman's method, and verify.

    LAPACK's blocked code leaves a wrong factor behind a column that is exactly zero. Such a column is made
    noise, below the rounding of what was added into it, and the factorisation repeated.
    """
    from scipy.linalg import ldl  # see BlockPivot.solve

    for attempt in range(2):
        matrix = a if attempt == 0 else a + np.diag(eps * np.diagonal(s) + 2 * np.finfo(np.float64).tiny)
        lower, d, perm = ldl(matrix, lower=True, check_finite=False)
        off = np.append(np.diagonal(d, -1), 0.0)
        block = BlockPivot(np.asfortranarray(lower[perm]), perm, np.diagonal(d).copy(), off)
        probe = np.cos(np.arange(len(a)))  # no structure in common with any matrix
        error = np.abs(lower @ (d @ (lower.T @ probe)) - matrix @ probe)
        if np.all(error <= 1e-8 * (np.abs(matrix) @ np.abs(probe)).max() + _SMALLEST):
            return block
    return None


def _one_by_one(a: np.ndarray, s: np.ndarray, p: int, eps: float, partner: np.ndarray) -> PivotedFront:
    """Substitute pairs, then choose 1×1 and 2×2 pivots that pass the threshold test; the rest is delayed."""
    units = _units(s)
    work, bound = a / np.outer(units, units), s / np.outer(units, units)
    free = list(range(p))
    taken: list[int] = []
    diag: list[float] = []
    off: list[float] = []
    rest = np.ones(len(a), bool)
    columns: list[np.ndarray] = []
    substitutable = [tuple(pair) for pair in np.stack(_substitutable(s, partner), 1).tolist()]
    while free:
        choice = substitutable.pop() if substitutable else _choose(work, bound, np.array(free), rest, eps)
        if choice is None:
            break
        pivot = work[np.ix_(choice, choice)]
        rest[list(choice)] = False
        left = np.linalg.solve(pivot, work[list(choice)]).T * rest[:, None]
        for n, c in enumerate(choice):
            column = left[:, n] * units / units[c]
            column[c] = 1.0
            columns.append(column)
            taken.append(c)
            free.remove(c)
            diag.append(pivot[n, n] * units[c] ** 2)
            pair = len(choice) == 2 and n == 0
            off.append(pivot[0, 1] * units[choice[0]] * units[choice[1]] if pair else 0.0)
        work = work - left @ pivot @ left.T
        bound = bound + np.abs(left) @ np.abs(pivot) @ np.abs(left).T
    pivots = np.array(taken, np.int64)
    lower = np.asfortranarray(np.array(columns).T[pivots]) if taken else np.zeros((0, 0))
    return _finish(a, s, p, pivots, BlockPivot(lower, np.arange(len(taken)), np.array(diag), np.array(off)))


def _choose(
    a: np.ndarray, s: np.ndarray, free: np.ndarray, rest: np.ndarray, eps: float
) -> tuple[int, ...] | None:
    """Find the pivot that makes entries grow least, among single unknowns first, then among pairs."""
    column = np.where(rest[:, None], np.abs(a[:, free]), 0.0)
    noise = np.where(rest[:, None], NOISE * eps * s[:, free], np.inf)
    column[column <= noise] = 0.0
    here = np.arange(len(free))
    diagonal = column[free, here]
    others = column.copy()
    others[free, here] = 0.0
    largest = others.max(0)
    ratio = np.where(diagonal > 0, diagonal / np.maximum(largest, 1e-300), 0.0)
    best = int(np.argmax(ratio))
    if ratio[best] >= THRESHOLD:
        return (int(free[best]),)
    if len(free) < 2:
        return None
    partner = np.argmax(others[free], 0)  # partner[j]: where in `free` the column j is largest
    # Duff and Reid's test for 2×2: |P⁻¹| times the largest entries outside P.
    j, k = here, partner
    a_jj, a_kk, a_jk = a[free[j], free[j]], a[free[k], free[k]], a[free[j], free[k]]
    det = a_jj * a_kk - a_jk**2
    outside = others.copy()
    outside[free[k], here] = 0.0
    over_j = outside.max(0)
    other_side = others[:, k].copy()
    other_side[free[j], here] = 0.0
    over_k = other_side.max(0)
    usable = (others[free[k], here] > 0) & (j != k) & (det != 0)
    det = np.where(usable, np.abs(det), 1.0)
    growth = np.maximum(
        (np.abs(a_kk) * over_j + np.abs(a_jk) * over_k) / det,
        (np.abs(a_jk) * over_j + np.abs(a_jj) * over_k) / det,
    )
    # A pair must not be singular to rounding either.
    size = det / np.maximum(np.maximum(np.abs(a_jj), np.abs(a_kk)), np.abs(a_jk)).clip(1e-300)
    pair_noise = NOISE * eps * np.maximum(s[free[j], free[j]], s[free[k], free[k]])
    growth = np.where(usable & (size > pair_noise), growth, np.inf)
    best = int(np.argmin(growth))
    return (int(free[j[best]]), int(free[k[best]])) if growth[best] <= 1 / THRESHOLD else None
