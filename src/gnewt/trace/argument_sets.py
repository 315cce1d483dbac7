"""Sets of arguments, interned: one number for every distinct set, unions of whole arrays of them at once.

Values made in lockstep read few distinct sets, so a union is computed once for every pair of sets and looked up elsewhere.
"""

from __future__ import annotations

import numpy as np

EMPTY, OVER = 0, -1
"""The set of no arguments, and what stands for all sets with too many."""
_PAD = np.iinfo(np.int32).max


class ArgumentSets:
    """A table of sets of ids. Sets with more than `limit` members are not told apart."""

    def __init__(self, size: int, limit: int) -> None:
        self.limit = limit
        self._single = np.full(size, -1, np.int32)
        self._ptr = np.zeros(2, np.int64)
        self._members = np.zeros(0, np.int32)
        self._weights = np.random.default_rng(0).integers(1, 2**63, size, dtype=np.uint64)
        self._hashes, self._owners = np.zeros(0, np.uint64), np.zeros(0, np.int32)
        self._codes, self._results = np.zeros(0, np.int64), np.zeros(0, np.int32)

    @property
    def total(self) -> int:
        """Members of all sets together."""
        return len(self._members)

    @property
    def number(self) -> int:
        """How many sets there are."""
        return len(self._ptr) - 1

    def singles(self, ids: np.ndarray) -> np.ndarray:
        """Return the sets {id}."""
        new = ids[self._single[ids] < 0]
        if new.size:
            new = distinct(new)
            self._single[new] = self._intern(new.astype(np.int32), np.ones(len(new), np.int64))
        return self._single[ids]

    def count(self, sets: np.ndarray) -> np.ndarray:
        """Return how many members each set has; one more than the limit for those with too many."""
        found = np.diff(self._ptr)[np.maximum(sets, 0)]
        return np.where(sets == OVER, self.limit + 1, found)

    def members(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the members of all given sets in a row, and for each the place of its set."""
        sets = np.maximum(sets, 0)
        counts = self._ptr[sets + 1] - self._ptr[sets]
        owner = np.repeat(np.arange(len(sets)), counts)
        first = np.repeat(self._ptr[sets] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        return self._members[first + np.arange(len(owner))], owner

    def union(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Unite sets elementwise."""
        out = np.where(a == EMPTY, b, a)
        out[(a == OVER) | (b == OVER)] = OVER
        rest = np.flatnonzero((out != OVER) & (a != b) & (a != EMPTY) & (b != EMPTY))
        if rest.size:
            low, high = np.minimum(a[rest], b[rest]), np.maximum(a[rest], b[rest])
            out[rest] = self._of_pairs(low.astype(np.int64) << 32 | high)
        return out

    def _of_pairs(self, codes: np.ndarray) -> np.ndarray:
        unique, inverse = np.unique(codes, return_inverse=True)
        at = np.searchsorted(self._codes, unique)
        known = np.zeros(len(unique), bool)
        inside = at < len(self._codes)
        known[inside] = self._codes[at[inside]] == unique[inside]
        if not known.all():
            new = unique[~known]
            results = self._unite(new >> 32, new & 0xFFFFFFFF)
            self._codes = np.insert(self._codes, at[~known], new)
            self._results = np.insert(self._results, at[~known], results)
            at = np.searchsorted(self._codes, unique)
        return self._results[at][inverse.ravel()]

    def _unite(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Compute unions and enter them into the table."""
        parts = [self.members(s) for s in (a, b)]
        owner = np.concatenate([parts[0][1], parts[1][1]])
        members = np.concatenate([parts[0][0], parts[1][0]])
        pairs = distinct(owner.astype(np.int64) << 32 | members)
        owner, members = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        counts = np.bincount(owner, minlength=len(a))
        out = np.full(len(a), OVER, np.int32)
        small = counts <= self.limit
        out[small] = self._intern(members[small[owner]], counts[small])
        return out

    def _intern(self, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the numbers of sets that are given in a row, sorted each; equal sets have one number."""
        if not len(counts):
            return np.zeros(0, np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)])
        hashes = np.add.reduceat(self._weights[members], starts[:-1])
        unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        at = np.searchsorted(self._hashes, unique)
        known = np.zeros(len(unique), bool)
        inside = at < len(self._hashes)
        known[inside] = self._hashes[at[inside]] == unique[inside]
        numbers = np.empty(len(unique), np.int32)
        numbers[known] = self._owners[at[known]]
        if not known.all():
            chosen = first[~known]
            numbers[~known] = len(self._ptr) - 1 + np.arange(len(chosen), dtype=np.int32)
            size = counts[chosen]
            places = np.repeat(starts[chosen] - np.concatenate([[0], np.cumsum(size)[:-1]]), size)
            self._ptr = np.concatenate([self._ptr, self._ptr[-1] + np.cumsum(size)])
            self._members = np.concatenate([self._members, members[places + np.arange(size.sum())]])
            self._hashes = np.insert(self._hashes, at[~known], unique[~known])
            self._owners = np.insert(self._owners, at[~known], numbers[~known])
        return numbers[inverse.ravel()]


def distinct(values: np.ndarray) -> np.ndarray:
    """Sort and leave out repetitions; `np.unique` hashes, which takes several times as long."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if values.size else values
