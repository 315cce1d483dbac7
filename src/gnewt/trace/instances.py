"""Instances: find the local functions of f again, however their instances were batched.

In: the scalar graph with its affine chains collapsed, before it is decided what else is kept. Out: groups of results (loss
terms, terms of long sums, carried values) that share work and read few arguments between them. Each group is one instance
of a local function with nothing kept inside it, as if the user had written the function and a `lax.map` over it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnewt.trace.argument_sets import EMPTY, OVER, ArgumentSets, distinct
from gnewt.trace.fuse import MAX_APART, MAX_ARGS, MAX_OPS, MAX_SECOND, MAX_TERMS, Fuser
from gnewt.trace.scalar_pool import CALL, INPUT, OP, ROW, Block
from gnewt.trace.tail import row_terms

FEW_ARGS = 16
"""Arguments of an instance, as of a loop body, up to which nothing inside it is kept."""
MOST_ARGS = 96
"""... and up to which nothing is kept where most arguments are coupled."""
_MOST_MEMBERS = 20_000_000
"""Arguments of all sets together, from which only sets of few arguments are followed."""
_ROUNDS = 8


class Grouping:
    """Sets of arguments from below, sets of the arguments of all readers from above, and groups of results."""

    def __init__(self, fuser: Fuser) -> None:
        self.fuser, self.pool = fuser, fuser.pool
        size = self.pool.size
        self.sets = ArgumentSets(size, MOST_ARGS)
        self.own = np.zeros(size, np.int32)
        """What a definition reads."""
        self.seen = np.zeros(size, np.int32)
        """What a reader of the value reads: the value itself where it is a leaf."""
        self.work = np.zeros(size)
        self.strained = np.zeros(size, bool)
        """Values in whose expression the rules of `fuse` would keep something."""
        self.leaf = fuser.leaf.copy()
        self.above = np.zeros(size, np.int32)
        """Arguments of all results that read a value."""
        self.label = np.full(size, -1, np.int32)
        self.good = fuser.live.copy()
        """Values all of whose readers are in instances."""
        self.meetings: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        """(value, result, other result): both read the value."""

    # From below

    def read_arguments(self) -> None:
        """Walk in order of creation."""
        live = np.flatnonzero(self.leaf & self.fuser.live)
        self.seen[live] = self.sets.singles(live)
        for ids, operands, is_row in self._definitions():
            if self.sets.total > _MOST_MEMBERS:
                self.sets.limit = FEW_ARGS
            self._define(ids, operands, is_row)

    def _definitions(self) -> Iterator[tuple[np.ndarray, list[np.ndarray], bool]]:
        """Go through all definitions but long sums, many places at once: ids, operands, and whether they are sums."""
        for b, block in enumerate(self.pool.blocks):
            if block.kind == OP:
                mask = self.fuser.live[block.start : block.stop]
                if mask.any():
                    operands = [o if mask.all() else o[mask] for o in block.operands]
                    yield np.flatnonzero(mask) + block.start, operands, False
            elif block.kind == ROW and b in self.fuser.rows:
                ptr, cols, _ = self.fuser.rows[b]
                counts = np.diff(ptr)
                rows = np.flatnonzero((counts > 0) & ~self.fuser.long[block.start : block.stop])
                for count in np.unique(counts[rows]):
                    chosen = rows[counts[rows] == count]
                    table = cols[ptr[chosen][:, None] + np.arange(count)]
                    yield chosen + block.start, list(table.T), True

    def _define(self, ids: np.ndarray, operands: list[np.ndarray], is_row: bool) -> None:
        total = np.zeros(len(ids), np.int32)
        work, counts = np.ones(len(ids)), []
        strained = np.zeros(len(ids), bool)
        for operand in operands:
            variable, safe = operand >= 0, np.maximum(operand, 0)
            seen = np.where(variable, self.seen[safe], EMPTY)
            counts.append(self.sets.count(seen))
            inner = variable & ~self.leaf[safe]
            work += np.where(inner, self.work[safe], 0)
            strained |= inner & self.strained[safe]
            total = self.sets.union(total, seen)
        size = self.sets.count(total)
        strained |= (size > MAX_ARGS) | (work > MAX_OPS) | _apart(counts, size)
        if is_row and len(operands) > MAX_TERMS:
            strained |= size > MAX_APART
        fan_out = self.fuser.fan_out[ids]
        strained |= (size > 1) & (fan_out > 1) & (fan_out * work > MAX_OPS)
        self.own[ids], self.work[ids], self.strained[ids] = total, work, strained & (size > 1)
        if is_row:
            # A sum of too many arguments is a slot of its own.
            wide = ids[(total == OVER) & ~self.leaf[ids]]
            self.leaf[wide] = True
            self.seen[wide] = self.sets.singles(wide)
        self.seen[ids] = np.where(self.leaf[ids], self.seen[ids], total)

    # From above

    def read_results(self, results: np.ndarray) -> None:
        """Walk against the order of creation, from the given results."""
        self.above[results] = self.own[results]
        self.label[results] = results
        self.good &= self.own != OVER
        for b in range(len(self.pool.blocks) - 1, -1, -1):
            block = self.pool.blocks[b]
            if block.kind == INPUT:
                continue
            if block.kind == ROW:
                if b in self.fuser.rows:
                    self._pass_rows(b, block)
                continue
            mask = self.fuser.live[block.start : block.stop]
            if block.kind == CALL:
                mask = mask.reshape(-1, block.call.m).any(1)
            if not mask.any():
                continue
            places = np.flatnonzero(mask)
            for operand in block.operands:
                self._pass(None if block.kind == CALL else places + block.start, operand[places])

    def _pass_rows(self, b: int, block: Block) -> None:
        ptr, cols, _ = self.fuser.rows[b]
        rows = np.flatnonzero((np.diff(ptr) > 0) & ~self.fuser.long[block.start : block.stop])
        terms, owner = row_terms(ptr, rows)
        self._pass(rows[owner] + block.start, cols[terms])

    def _pass(self, readers: np.ndarray | None, operands: np.ndarray) -> None:
        """Tell operands who reads them."""
        inner = (operands >= 0) & ~self.leaf[np.maximum(operands, 0)]
        operands = operands[inner]
        if readers is None:
            self.good[operands] = False
            return
        readers = readers[inner]
        good = self.good[readers]
        if not good.all():
            self.good[operands[~good]] = False
            readers, operands = readers[good], operands[good]
        self._unite_above(operands, self.above[readers])
        label = self.label[readers]
        fresh = self.label[operands] < 0
        self.label[operands[fresh]] = label[fresh]
        met = np.flatnonzero(self.label[operands] != label)
        if met.size:
            self.meetings.append((operands[met], self.label[operands[met]], label[met]))

    def _unite_above(self, ids: np.ndarray, sets: np.ndarray) -> None:
        for _ in range(_ROUNDS):
            fresh = self.above[ids] == EMPTY
            self.above[ids[fresh]] = sets[fresh]
            now = self.above[ids]
            total = self.sets.union(now, sets)
            more = total != now
            if not more.any():
                return
            ids, sets = ids[more], sets[more]
            self.above[ids] = total[more]
        self.above[ids] = OVER

    # Groups

    def group(self, results: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Number the groups: for each result its group, or -1, and for each group how many arguments it has."""
        first, second = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for value, a, b in self.meetings:
            linked = self.good[value] & (self.above[value] != OVER)
            first.append(a[linked])
            second.append(b[linked])
        place = np.full(self.pool.size, -1, np.int64)
        place[results] = np.arange(len(results))
        first.append(results)
        second.append(self._alike(results))
        a, b = place[np.concatenate(first)], place[np.concatenate(second)]
        number, group = _components(len(results), a, b)
        good = self.good[results]
        members, owner = self.sets.members(self.own[results])
        pairs = distinct(group[owner].astype(np.int64) << 32 | members)
        count = np.bincount(pairs >> 32, minlength=number)
        self.private = np.bincount(pairs & 0xFFFFFFFF, minlength=self.pool.size) == 1
        self.group_of = np.full(self.pool.size, -1, np.int64)
        self.group_of[results[good]] = group[good]
        kinds = np.stack([self.sets.count(self.own[results]), self.work[results]])
        _, which, alike = np.unique(kinds, axis=1, return_inverse=True, return_counts=True)
        self.alone = np.zeros(self.pool.size, bool)
        """Results like no other: there are no instances to find again."""
        self.alone[results] = alike[which.ravel()] == 1
        return self.group_of[results], count

    def _alike(self, results: np.ndarray) -> np.ndarray:
        """Return for each result the first one with the same arguments, where there are as many such results as arguments.

        The terms of a quadratic form are a function of one vector; they differ in which of its entries comes first.
        """
        own = self.own[results]
        _, first, which, several = np.unique(own, return_index=True, return_inverse=True, return_counts=True)
        square = self.strained[results] & self.good[results] & (several[which] == self.sets.count(own))
        return np.where(square, results[first[which]], results)

    # Waists

    def waists(self, accepted: np.ndarray) -> np.ndarray:
        """Return values that separate arguments, which no other instance reads, from the rest by few slots.

        Looked for in accepted groups. These are sums of many parts, and parts of operations, that share no arguments. Kept they
        leave a tree narrow. Sums in a result like no other are kept, whoever reads their arguments.
        """
        crossing = np.zeros(self.pool.size, bool)
        for ids, operands, _ in self._definitions():
            for operand in operands:
                inner = (operand >= 0) & ~self.leaf[np.maximum(operand, 0)]
                operand = operand[inner]
                crossing[operand[self.own[operand] != self.own[ids[inner]]]] = True
        across = np.bincount(np.maximum(self.own[crossing], 0), minlength=self.sets.number)
        rows, found = [], [np.zeros(0, np.int64)]
        for ids, operands, is_row in self._definitions():
            counts = [self.sets.count(np.where(o >= 0, self.seen[np.maximum(o, 0)], EMPTY)) for o in operands]
            apart = _apart(counts, self.sets.count(self.own[ids]))
            if is_row:
                apart |= _scattered(counts, self.sets.count(self.own[ids]))
                rows.append(ids[apart])
                continue
            for operand in operands if apart.any() else []:
                part = operand[apart]
                part = part[(part >= 0) & ~self.leaf[np.maximum(part, 0)]]
                size = self.sets.count(self.own[part])
                found.append(part[(size > MAX_SECOND) & (across[np.maximum(self.own[part], 0)] < size)])
        sums = np.concatenate([np.zeros(0, np.int64), *rows])
        several = np.bincount(np.maximum(self.own[sums], 0), minlength=self.sets.number)
        found.append(sums[2 * several[np.maximum(self.own[sums], 0)] <= self.sets.count(self.own[sums])])
        ids = distinct(np.concatenate(found))
        ids = ids[self.good[ids] & ~self.leaf[ids]]
        ids = ids[accepted[self.group_of[self.label[ids]]]]
        members, owner = self.sets.members(self.own[ids])
        private = np.bincount(owner, self.private[members], len(ids))
        lonely = np.isin(ids, sums) & self.alone[self.label[ids]]
        return ids[lonely | (2 * private >= self.sets.count(self.own[ids]))]


def _scattered(counts: list[np.ndarray], size: np.ndarray) -> np.ndarray:
    """Whether there are many parts with many arguments, no two of which share any."""
    if len(counts) <= MAX_TERMS:
        return np.zeros(len(size), bool)
    return (size > MAX_APART) & (size == np.sum(counts, axis=0))


def _apart(counts: list[np.ndarray], size: np.ndarray) -> np.ndarray:
    """Whether at least two parts have many arguments and no two parts share any."""
    if len(counts) < 2:
        return np.zeros(len(size), bool)
    table = np.stack(counts, 1)
    return (np.sort(table, 1)[:, -2] > MAX_SECOND) & (size == table.sum(1))


def _components(size: int, a: np.ndarray, b: np.ndarray) -> tuple[int, np.ndarray]:
    """Number the connected components of a graph with edges (a, b): how many, and that of each vertex."""
    label = np.arange(size)
    while True:
        first, second = label[a], label[b]
        low = np.minimum(first, second)
        if (first == second).all():
            break
        np.minimum.at(label, first, low)
        np.minimum.at(label, second, low)
        while (label[label] != label).any():
            label = label[label]
    roots, group = np.unique(label, return_inverse=True)
    return len(roots), group.ravel()
