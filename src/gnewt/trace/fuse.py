"""Fuse: decide which values are kept as slots; everything else is substituted into its consumers.

Substituting a value is the elimination of its pair (x_v, λ_v), once for all instances. A value is a slot for
all its consumers or for none. Kept are: what loops carry, long sums used nonlinearly, and values whose
substitution would widen a consumer or repeat much work.
"""

from __future__ import annotations

import copy

import numpy as np

from gnewt.jaxprs import is_float
from gnewt.trace.constants import PLUS, Constants
from gnewt.trace.scalar_pool import CALL, INPUT, OP, ROW, Block, Pool
from gnewt.trace.tail import row_terms

MAX_ARGS = 8
"""Substitute while the consumer keeps this many arguments: 2 gives four times the slots on a PDE, 16 no gain."""
MAX_SECOND = 2
"""... and while at most one of parts that share no argument has more than this many: reduction trees stay narrow."""
MAX_APART = 4
"""A sum of many terms is substituted only if it has no more arguments than this."""
MAX_OPS = 64
"""Operations of a template, and duplicated work (consumers × operations) of a substituted value."""
MAX_TERMS = 4
"""Sums of more terms that are used nonlinearly are slots: s = Σ ψ couples no two of its terms (E7)."""
_PAD = np.iinfo(np.int32).max


class Fuser:
    """Walks over the pool in order of creation and fills `kept`."""

    def __init__(self, pool: Pool, constants: Constants, live: np.ndarray, carried: np.ndarray) -> None:
        self.pool = pool
        self.constants = constants
        self.starts = pool.starts()
        self.live = live
        self.todo = live
        """What is to be decided here: all that is live, but for the insides of joints."""
        self.kept = carried & live
        self.leaf = self.kept.copy()
        self.floating = np.zeros(pool.size, bool)
        for block in pool.blocks:
            if block.kind in (INPUT, CALL):
                self.leaf[block.start : block.stop] = True
            if block.kind == CALL:
                self.kept[block.start : block.stop] = live[block.start : block.stop]
            self.floating[block.start : block.stop] = block.kind == CALL or is_float(block.dtype)
        self.work = np.zeros(pool.size, np.int64)
        self.termwise = np.zeros(pool.size, bool)
        """Rows that, if kept, take one instance for every term."""
        self.sets: dict[int, np.ndarray] = {}
        """For each block int32[n, w]: the arguments of each value if substituted, padded."""
        self.rows: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        """For each row block (ptr, cols, coefs) of its entities, collapsed; empty rows elsewhere."""
        self.long = np.zeros(pool.size, bool)
        """Rows of so many terms that they are kept whatever the terms are."""

    def collapse(self, roots: np.ndarray) -> None:
        """Collapse affine chains to rows."""
        self.roots = roots
        self.fan_out, entity = self._collapse_plan()
        self._collapse(entity)
        self._mark_long()

    def run(self) -> None:
        """Decide what is kept."""
        for b in range(len(self.pool.blocks)):
            self._decide(b)

    def _decide(self, b: int) -> None:
        block = self.pool.blocks[b]
        mask = self.todo[block.start : block.stop]
        if block.kind == OP and mask.any():
            self._operation(b, block, mask)
        elif block.kind == ROW and b in self.rows:
            self._row(b, block, mask & (np.diff(self.rows[b][0]) > 0))
        elif block.kind == CALL:
            self._call(block)

    def try_out(
        self, ids: np.ndarray, leaves: np.ndarray, results: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Decide about `ids` alone, which are computed from `leaves`.

        Returns those that would be kept, and what each of them and of `results` reads.
        """
        trial = copy.copy(self)
        trial.kept, trial.leaf, trial.termwise = self.kept.copy(), self.leaf.copy(), self.termwise.copy()
        trial.leaf[leaves] = True
        trial.work, trial.sets = self.work.copy(), {}
        trial.todo = np.zeros_like(self.live)
        trial.todo[ids] = True
        for b in np.unique(np.searchsorted(self.starts, ids, side="right") - 1):
            trial._decide(int(b))
        kept = np.flatnonzero(trial.kept & ~self.kept)
        reads = []
        for i in [*kept.tolist(), *results.tolist()]:
            b = int(np.searchsorted(self.starts, i, side="right")) - 1
            found = trial.sets[b][i - self.pool.blocks[b].start]
            reads.append(found[found != _PAD])
        return kept, reads

    # Affine chains collapse to rows, before fusing

    def _collapse_plan(self) -> tuple[np.ndarray, np.ndarray]:
        """Count consumers; decide which rows are entities (referred to as one value) and which dissolve."""
        pool, live = self.pool, self.live
        fan_out = np.zeros(pool.size, np.int64)
        entity = self.kept.copy()
        row_use = np.zeros(pool.size, bool)
        for block in pool.blocks:
            mask = live[block.start : block.stop]
            if not mask.any():
                continue
            if block.kind == ROW:
                ptr, cols, _ = block.csr
                terms, _ = row_terms(ptr, np.flatnonzero(mask))
                used = cols[terms]
                used = used[used >= 0]
                row_use[used] = True
                fan_out += np.bincount(used, minlength=pool.size) if used.size > pool.size // 8 else 0
                if used.size <= pool.size // 8:
                    np.add.at(fan_out, used, 1)
                continue
            if block.kind == CALL:
                mask = mask.reshape(-1, block.call.m).any(1)
            for operand in block.operands:
                used = operand if mask.all() else operand[mask]
                used = used[used >= 0]
                np.add.at(fan_out, used, 1)
                entity[used] = True
        entity[self.roots] = True
        length = np.ones(pool.size, np.int64)
        self.dissolves = np.zeros(pool.size, bool)
        for block in pool.blocks:
            if block.kind != ROW:
                continue
            mask = live[block.start : block.stop]
            if not mask.any():
                continue
            rows = np.flatnonzero(mask)
            ptr, cols, _ = block.csr
            terms, owner = row_terms(ptr, rows)
            cols = cols[terms]
            var = cols >= 0
            size = np.ones(len(cols), np.int64)
            size[var] = np.where(self.dissolves[cols[var]], length[cols[var]], 1)
            ids = rows + block.start
            length[ids] = np.bincount(owner, size, len(rows)).astype(np.int64)
            self.dissolves[ids] = ~self.kept[ids] & ((length[ids] <= MAX_TERMS) | (fan_out[ids] <= 1))
        # A row inside rows that does not dissolve is an entity too.
        is_row = np.zeros(pool.size, bool)
        for block in pool.blocks:
            is_row[block.start : block.stop] = block.kind == ROW
        entity &= is_row
        entity |= is_row & live & row_use & ~self.dissolves
        return fan_out, entity

    def _collapse(self, entity: np.ndarray) -> None:
        """Replace dissolving rows inside entity rows by their terms; only the frontier is touched again."""
        for b, block in enumerate(self.pool.blocks):
            if block.kind != ROW:
                continue
            rows = np.flatnonzero(entity[block.start : block.stop])
            if not rows.size:
                continue
            ptr, cols, coefs = block.csr
            terms, owner = row_terms(ptr, rows)
            cols, coefs = cols[terms], coefs[terms]
            rank = np.arange(len(cols), dtype=np.float64)
            done: list[tuple[np.ndarray, ...]] = []
            while True:
                inner = (cols >= 0) & self.dissolves[np.maximum(cols, 0)]
                done.append((owner[~inner], cols[~inner], coefs[~inner], rank[~inner]))
                if not inner.any():
                    break
                owner, cols, coefs, rank = self._expand(owner[inner], cols[inner], coefs[inner], rank[inner])
            owner, cols, coefs, rank = (np.concatenate(part) for part in zip(*done, strict=True))
            order = np.lexsort((rank, owner))
            owner, cols, coefs = self._merge(owner[order], cols[order], coefs[order], block)
            owner, cols, coefs = self._fold_constants(owner, cols, coefs, block)
            counts = np.zeros(block.n, np.int64)
            counts[rows] = np.bincount(owner, minlength=len(rows))
            self.rows[b] = (np.concatenate([[0], np.cumsum(counts)]), cols, coefs)

    def _mark_long(self) -> None:
        for b, (ptr, _, _) in self.rows.items():
            count = np.diff(ptr)
            short = count <= 32
            if count[short].sum() > 2_000_000:
                short = count <= MAX_TERMS
            ids = np.flatnonzero(~short) + self.pool.blocks[b].start
            self.keep(ids)
            self.long[ids] = self.termwise[ids] = True

    def _expand(self, owner: np.ndarray, cols: np.ndarray, coefs: np.ndarray, rank: np.ndarray) -> tuple:
        where = np.searchsorted(self.starts, cols, side="right") - 1
        parts = []
        for b in np.unique(where):
            chosen = np.flatnonzero(where == b)
            block = self.pool.blocks[b]
            terms, place = row_terms(block.ptr, cols[chosen] - block.start)
            source = chosen[place]
            new = self.constants.times(coefs[source], block.coefs[terms])
            parts.append((owner[source], block.cols[terms], new, rank[source]))
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def _merge(self, owner: np.ndarray, cols: np.ndarray, coefs: np.ndarray, block: Block) -> tuple:
        """Add the coefficients of a value that occurs twice in a row."""
        pair = owner.astype(np.int64) << 32 | (cols.astype(np.int64) & 0xFFFFFFFF)
        unique, first, group = np.unique(pair, return_index=True, return_inverse=True)
        if len(unique) == len(pair):
            return owner, cols, coefs
        total = self.constants.sums(group.ravel(), coefs, len(unique), block.dtype)
        order = np.argsort(first)
        return owner[first[order]], cols[first[order]], total[order]

    def _fold_constants(self, owner: np.ndarray, cols: np.ndarray, coefs: np.ndarray, block: Block) -> tuple:
        """Add up the constant terms of each row; the one that remains comes last."""
        fixed = cols < 0
        if not fixed.any():
            return owner, cols, coefs
        values = self.constants.times(coefs[fixed], cols[fixed])
        rows, group = np.unique(owner[fixed], return_inverse=True)
        total = self.constants.sums(group.ravel(), values, len(rows), block.dtype)
        owner = np.concatenate([owner[~fixed], rows])
        cols = np.concatenate([cols[~fixed], self.constants.as_ids(total, block.dtype)])
        coefs = np.concatenate([coefs[~fixed], np.full(len(rows), PLUS, np.int32)])
        order = np.argsort(owner, kind="stable")
        return owner[order], cols[order], coefs[order]

    # Decisions

    def _arguments(self, ids: np.ndarray) -> np.ndarray:
        """int32[n, w]: argument sets, padded."""
        variable = ids >= 0
        safe = np.maximum(ids, 0)
        leaf = variable & self.leaf[safe]
        inner = np.flatnonzero(variable & ~leaf)
        where = np.searchsorted(self.starts, ids[inner], side="right") - 1
        blocks = np.unique(where)
        width = max([self.sets[b].shape[1] for b in blocks], default=1)
        out = np.full((len(ids), max(width, 1)), _PAD, np.int32)
        out[leaf, 0] = ids[leaf]
        for b in blocks:
            chosen = inner[where == b] if len(blocks) > 1 else inner
            table = self.sets[b]
            out[chosen, : table.shape[1]] = table[ids[chosen] - self.pool.blocks[b].start]
        return out

    def _work(self, ids: np.ndarray) -> np.ndarray:
        return np.where((ids >= 0) & ~self.leaf[np.maximum(ids, 0)], self.work[np.maximum(ids, 0)], 0)

    def keep(self, ids: np.ndarray) -> None:
        self.kept[ids] = True
        self.leaf[ids] = True

    def _settle(self, operands: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return argument sets and work of op(operands), keeping operands until both are small enough."""
        sets = [self._arguments(o) for o in operands]
        work = sum((self._work(o) for o in operands), np.ones(len(operands[0]), np.int64))
        union, count = _union(sets)
        if len(operands) == 1 and not (work > MAX_OPS).any():
            return union, work
        counts = np.stack([(s != _PAD).sum(1) for s in sets], 1)
        for _ in range(len(operands)):
            apart = _apart(counts, count)
            bad = (count > MAX_ARGS) | apart | (work > MAX_OPS)
            candidates = np.stack(
                [
                    (o >= 0)
                    & ~self.leaf[np.maximum(o, 0)]
                    & self.floating[np.maximum(o, 0)]
                    & (counts[:, j] > 1)
                    for j, o in enumerate(operands)
                ],
                1,
            )
            rows = np.flatnonzero(bad & candidates.any(1))
            if not rows.size:
                break
            load = np.stack([self._work(o[rows]) for o in operands], 1)
            heavy = (work[rows] > MAX_OPS) & (count[rows] <= MAX_ARGS)
            score = np.where(heavy[:, None], load, counts[rows] * 1000 + load)
            worst = np.argmax(np.where(candidates[rows], score, -1), 1)
            for j, operand in enumerate(operands):
                # Parts that share nothing are kept all: a reduction tree stays narrow.
                chosen = rows[((worst == j) | apart[rows]) & candidates[rows, j]]
                if chosen.size:
                    self.keep(operand[chosen])
            # The keeping shows in all places that read the value, so all sets are read anew.
            sets = [self._arguments(o) for o in operands]
            work = sum((self._work(o) for o in operands), np.ones(len(operands[0]), np.int64))
            union, count = _union(sets)
            counts = np.stack([(s != _PAD).sum(1) for s in sets], 1)
        return union, work

    def _store(self, b: int, block: Block, mask: np.ndarray, sets: np.ndarray, work: np.ndarray) -> None:
        ids = np.flatnonzero(mask) + block.start
        full = np.full((block.n, sets.shape[1]), _PAD, np.int32)
        full[mask] = sets
        self.sets[b] = full
        self.work[ids] = work
        if self.floating[block.start]:
            count = (sets != _PAD).sum(1)
            repeated = (count > 1) & (self.fan_out[ids] > 1) & (self.fan_out[ids] * work > MAX_OPS)
            self.keep(ids[repeated])

    def _operation(self, b: int, block: Block, mask: np.ndarray) -> None:
        operands = [o if mask.all() else o[mask] for o in block.operands]
        sets, work = self._settle(operands)
        self._store(b, block, mask, sets, work)

    def _row(self, b: int, block: Block, mask: np.ndarray) -> None:
        ptr, cols, _ = self.rows[b]
        rows = np.flatnonzero(mask & ~self.long[block.start : block.stop])
        count = ptr[rows + 1] - ptr[rows]
        if not rows.size:
            self.sets[b] = np.full((block.n, 1), _PAD, np.int32)
            return
        width = int(count.max())
        terms, owner = row_terms(ptr, rows)
        table = np.full((len(rows), width), -1, np.int32)
        position = np.arange(len(owner)) - np.concatenate([[0], np.cumsum(count)[:-1]])[owner]
        table[owner, position] = cols[terms]
        columns = [table[:, j] for j in range(width)]
        parts = [self._arguments(c) for c in columns]
        sets, size = _union(parts)
        counts = np.stack([(p != _PAD).sum(1) for p in parts], 1)
        work = sum((self._work(c) for c in columns), np.ones(len(rows), np.int64))
        ids = rows + block.start
        # A sum too wide to substitute is a slot itself, not its terms: s = Σ ψ couples no two of them.
        wide = (size > MAX_ARGS) | (work > MAX_OPS) | _apart(counts, size)
        wide |= (count > MAX_TERMS) & (size > MAX_APART)
        wide &= size > 1
        self.termwise[ids] = (count > MAX_TERMS) | (size > MAX_ARGS) | _apart(counts, size)
        chosen = np.zeros(block.n, bool)
        chosen[rows] = True
        self._store(b, block, chosen, sets, work)
        self.keep(ids[wide])

    def _call(self, block: Block) -> None:
        """Arguments of a call are slots, except expressions of one argument and what cannot be a slot."""
        mask = self.live[block.start : block.stop].reshape(-1, block.call.m).any(1)
        for operand in block.operands:
            ids = operand[mask] if not mask.all() else operand
            ids = ids[(ids >= 0)]
            ids = np.unique(ids[~self.leaf[ids] & self.floating[ids]])
            if ids.size:
                size = (self._arguments(ids) != _PAD).sum(1)
                self.keep(ids[(size > 1) | (self._work(ids) > MAX_OPS)])


def _apart(counts: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Whether at least two parts have many arguments and no two parts share any."""
    if counts.shape[1] < 2:
        return np.zeros(len(counts), bool)
    second = np.sort(counts, 1)[:, -2]
    return (second > MAX_SECOND) & (size == counts.sum(1))


def _union(sets: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Unite padded sets row by row; returns the sorted union and its size."""
    if len(sets) == 1:
        return sets[0], (sets[0] != _PAD).sum(1)
    both = np.concatenate(sets, 1)
    both.sort(1)
    both[:, 1:][both[:, 1:] == both[:, :-1]] = _PAD
    count = (both != _PAD).sum(1)
    both.sort(1)
    width = max(int(count.max(initial=0)), 1)
    return both[:, :width], count
