"""Name redundant rows: the user's rows that may be left out without changing the feasible set."""

from __future__ import annotations

import numpy as np

from gnewt.plan.tree import TreeDecomposition
from gnewt.qp.gather import Factorization, assign_terms, stack_rows
from gnewt.qp.problem import NumberedQP

KEEP_EARLY = 0.1
"""A row whose independent part is at least this fraction of the largest may be chosen for coming first."""


def find_redundant(problem: NumberedQP, tree: TreeDecomposition, factor: Factorization) -> np.ndarray:
    """Return the numbers of M − rank(G) rows that depend on the other rows, which are independent.

    The orthogonal P of the gather mixes rows, so its zero rows have no names. This second pass repeats the
    compression with combinations that keep them: r of the stacked rows are *chosen* to go with the pivot;
    each other row j becomes row j minus a combination of chosen ones, and still stands for row j. What is
    left without a part in ξ is redundant. The ranks are those of the gather; nothing is decided twice.
    Among rows that depend on one another, later ones are named. Once per solve, and only if M > rank(G).
    """
    terms = assign_terms(problem, tree)
    inbox: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in range(tree.num_bags)]
    redundant: list[int] = []
    for i, front in enumerate(factor.fronts):
        pivot, k = front.pivot, len(front.interior)
        num_new = pivot.num_null + pivot.num_delayed
        ids = np.concatenate([front.interior, front.kept[num_new:]])
        parts = [(t.rows, t.scalars, t.G) for t in terms[i]] + inbox[i]
        G, names, _ = stack_rows(ids, parts)
        order = np.argsort(names)
        names, G = names[order], G[order]
        Gx = np.concatenate([G[:, :k] @ pivot.T, G[:, k:]], axis=1)
        y, up = Gx[:, : pivot.rank], Gx[:, pivot.num_pivots + pivot.num_null :]

        chosen = choose_rows(y, pivot.rank)
        others = np.setdiff1d(np.arange(len(names)), chosen)
        up = up[others] - y[others] @ np.linalg.solve(y[chosen], up[chosen])
        passed = choose_rows(up, len(front.rows_up))
        redundant.extend(names[np.delete(others, passed)].tolist())
        if tree.parent[i] >= 0:
            inbox[tree.parent[i]].append((names[others[passed]], front.kept[pivot.num_null :], up[passed]))
    return np.array(sorted(redundant), np.int64)


def choose_rows(A: np.ndarray, rank: int) -> np.ndarray:
    """Choose `rank` independent rows by pivoted Gram–Schmidt, in order; early rows where they will do."""
    A = A.copy()
    free = np.ones(len(A), bool)
    for _ in range(rank):
        size = np.where(free, np.linalg.norm(A, axis=1), -1.0)
        j = int(np.argmax(size >= KEEP_EARLY * size.max()))
        free[j] = False
        q = A[j] / size[j]
        A -= np.outer(A @ q, q)
    return np.flatnonzero(~free)
