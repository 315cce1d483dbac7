"""The sparsity of the accumulated Hessian, and what it would cost to factorise it."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from gnewt.explain.flops import Cost, count_product, ldl_flops
from gnewt.graph import Structure
from gnewt.plan import Adjacency, approximate_degree, decompose

_MOST_SUPPORT = 2_000_000
"""Entries of ∂slots/∂inputs beyond which a Hessian is taken to be dense: nobody would accumulate it."""
_MOST_PRODUCTS = 20_000_000
"""Pairs of inputs, counted as often as a local Hessian couples them, up to which the pattern is computed."""
_NO_LIMIT = 2**62


@dataclasses.dataclass(frozen=True, eq=False)
class HessianPattern:
    """Where H may be nonzero, and an order in which its factor stays sparse."""

    pattern: sp.csr_matrix
    """bool[N, N], with the whole diagonal."""
    order: np.ndarray
    """Inputs in the order of their elimination."""
    flops: float
    """Of the factorisation in this order."""
    num_factor: float
    """Entries of the factor."""

    @property
    def density(self) -> float:
        return self.pattern.nnz / max(len(self.order) ** 2, 1)


def hessian_pattern(structure: Structure) -> HessianPattern | None:
    """Find the pattern of H and order it by approximate minimum degree; None where it is far too full to be looked at."""
    reach = _reach(structure)
    if reach is None:
        return None
    coupled = _coupled(structure)
    degree = np.diff(reach.indptr).astype(np.float64)
    row = np.repeat(np.arange(structure.num_slots), np.diff(coupled.indptr))
    if float(np.sum(degree[row] * degree[coupled.indices])) > _MOST_PRODUCTS:
        return None
    n = structure.num_inputs
    pattern = sp.csr_matrix(reach.T @ coupled @ reach + sp.identity(n, format="csr"))
    pattern.sort_indices()
    pattern.data = np.ones(pattern.nnz, np.int8)
    rows = np.repeat(np.arange(n), np.diff(pattern.indptr))
    adjacency = Adjacency.from_pairs(n, rows, pattern.indices)
    order = approximate_degree(adjacency, np.ones(n, np.int64), None, _NO_LIMIT)
    tree = decompose(adjacency, order.vertices, order.tail)
    own, kept = (np.diff(ptr).astype(np.float64) for ptr in (tree.frontal_ptr, tree.separator_ptr))
    flops = float(np.sum(ldl_flops(own + kept, own) + kept * (kept + 1) / 2))
    size = float(np.sum(own * (own + 1) / 2 + own * kept))
    return HessianPattern(pattern, order.vertices, flops, size)


def sparse_cost(structure: Structure, found: HessianPattern | None) -> Cost:
    """H by as many products as its fullest row has entries (no colouring takes fewer), then a sparse factorisation."""
    if found is None:
        return Cost(
            "sparse Hessian",
            float("nan"),
            float("nan"),
            "H is too full for its pattern to be worth computing",
        )
    colours = int(np.diff(found.pattern.indptr).max(initial=0))
    flops = colours * count_product(structure) + found.flops + 4 * found.num_factor
    size = 12.0 * found.pattern.nnz + 12.0 * found.num_factor
    note = f"{100 * found.density:.3g} % of H is nonzero; at least {colours} products, then LDLᵀ of a sparse matrix"
    return Cost("sparse Hessian", flops, size, note)


def _reach(structure: Structure) -> sp.csr_matrix | None:
    """bool[S, N]: which inputs a slot depends on; None if that is very many."""
    n = structure.num_inputs
    nothing: frozenset[int] = frozenset()
    sets: dict[int, set[int] | frozenset[int]] = {}  # of nodes; an input depends on itself alone
    first, which, instance = [], [], []
    for f in structure.nodes:
        family = structure.families[f]
        assert family.outs is not None
        first.append(family.outs.min(1))
        which.append(np.full(family.n, f))
        instance.append(np.arange(family.n))
    if first:
        held = n
        joined = [np.concatenate(parts) for parts in (first, which, instance)]
        in_order = np.argsort(joined[0], kind="stable")
        for f, i in zip(joined[1][in_order].tolist(), joined[2][in_order].tolist(), strict=True):
            family = structure.families[f]
            args, outs = family.args[i].tolist(), family.outs[i].tolist()  # type: ignore[index]
            for row, out in zip(family.jac_pattern, outs, strict=True):
                read = [a for a, used in zip(args, row, strict=True) if used]
                below = [sets.get(a, nothing) if a >= n else (a,) for a in read]
                sets[out] = sets.get(out, nothing).union(*below)
                held += len(sets[out])
            if held > _MOST_SUPPORT:
                return None
    rows = [sorted(sets.get(slot, nothing)) for slot in range(n, structure.num_slots)]
    ptr = np.concatenate([np.arange(n + 1), n + np.cumsum([len(row) for row in rows], dtype=np.int64)])
    inner = np.fromiter((i for row in rows for i in row), np.int64, int(ptr[-1]) - n)
    idx = np.concatenate([np.arange(n), inner])
    return sp.csr_matrix((np.ones(len(idx), np.float32), idx, ptr), (structure.num_slots, n))


def _coupled(structure: Structure) -> sp.csr_matrix:
    """bool[S, S]: slots that a local Hessian couples."""
    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for family in structure.families:
        i, j = np.nonzero(family.hess_pattern)
        rows.append(family.args[:, i].ravel())
        columns.append(family.args[:, j].ravel())
    a, b = np.concatenate(rows), np.concatenate(columns)
    size = structure.num_slots
    return sp.csr_matrix((np.ones(len(a), np.float32), (a, b)), (size, size))
