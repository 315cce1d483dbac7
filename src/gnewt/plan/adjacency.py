"""Adjacency: a sparse relation between vertices, in CSR form."""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt import _native


@dataclasses.dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbours of every vertex, sorted, without self loops. Symmetric unless said otherwise."""

    ptr: np.ndarray
    """int64[V + 1]."""
    idx: np.ndarray
    """int32[nnz]: neighbours of v are idx[ptr[v]:ptr[v + 1]]."""

    @property
    def num_vertices(self) -> int:
        return len(self.ptr) - 1

    def neighbours(self, v: int) -> np.ndarray:
        return self.idx[self.ptr[v] : self.ptr[v + 1]]

    def lists(self) -> list[list[int]]:
        """Neighbours as Python lists, for algorithms that walk vertex by vertex."""
        flat, ptr = self.idx.tolist(), self.ptr.tolist()
        return [flat[ptr[v] : ptr[v + 1]] for v in range(self.num_vertices)]

    @classmethod
    def from_pairs(cls, num_vertices: int, a: np.ndarray, b: np.ndarray, symmetric: bool = True) -> Adjacency:
        """Build from edges (a[i], b[i]); duplicates and self loops are dropped."""
        a, b = np.ascontiguousarray(a, np.int64), np.ascontiguousarray(b, np.int64)
        if _native.LIBRARY is not None:
            return cls(*_native.join_pairs(num_vertices, a, b, symmetric))
        if symmetric:
            a, b = np.concatenate([a, b]), np.concatenate([b, a])
        key = np.sort((a * num_vertices + b)[a != b])  # np.unique would hash first, then sort
        key = key[np.diff(key, prepend=-1) != 0]
        row, idx = key // max(num_vertices, 1), key % max(num_vertices, 1)
        ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=num_vertices))])
        return cls(ptr.astype(np.int64), idx.astype(np.int32))
