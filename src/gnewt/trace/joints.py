"""Joints: write groups of results as instances of local functions with nothing kept inside.

In: the scalar graph, and the loss terms of f. Out: `Joint` functions with their instances; what remains is for `fuse` to
decide and for `groups` to write.
"""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np

from gnewt.trace.argument_sets import OVER, distinct
from gnewt.trace.constants import Constants
from gnewt.trace.extract import Extract, Extractor
from gnewt.trace.fuse import Fuser
from gnewt.trace.groups import unique_rows
from gnewt.trace.instances import FEW_ARGS, MOST_ARGS, Grouping
from gnewt.trace.scalar_pool import CALL, OP, ROW
from gnewt.trace.tail import row_terms
from gnewt.trace.template import patterns

MAX_REPEATED = 128
"""Operations that are done again in other instances, for each slot that this saves."""
MIN_COUPLED = 0.5
"""Fraction of pairs of many arguments that must be coupled."""


@dataclasses.dataclass(eq=False)
class Results:
    """Results of one kind, each in a group."""

    kind: str
    """"loss", "term" (of a long sum) or "node"."""
    ids: np.ndarray
    coefs: np.ndarray
    outs: np.ndarray
    """The slot that a result is or is added to; -1 for a loss."""
    where: np.ndarray
    """Place in what the results were taken from."""
    group: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


@dataclasses.dataclass(eq=False)
class Joint:
    """One local function at many places."""

    kind: str
    extract: Extract
    coefs: np.ndarray
    """int32[n, r]: with which its results are added up; of nodes nothing is."""
    outs: np.ndarray
    """int32[n, r]."""
    where: np.ndarray
    """int64[n, r]: places of the results in what they were taken from."""
    group: np.ndarray
    """int64[n]."""

    def chosen(self, rows: np.ndarray) -> Joint:
        """Leave instances out."""
        e = self.extract
        part = Extract(
            e.rows[rows], e.nodes, e.outs, e.args[rows], e.consts[rows], [i[rows] for i in e.inner]
        )
        return Joint(self.kind, part, self.coefs[rows], self.outs[rows], self.where[rows], self.group[rows])


class Joiner:
    """Finds joints and tells the fuser what is left to do."""

    def __init__(self, fuser: Fuser, constants: Constants) -> None:
        self.fuser, self.constants, self.pool = fuser, constants, fuser.pool

    def run(self, ids: np.ndarray, weights: np.ndarray) -> list[Joint]:
        """Return the joints of the loss terms and of everything they need."""
        kinds, accepted = self._group(ids, weights)
        if not accepted.any():
            return []
        waists = self.grouping.waists(accepted)
        if waists.size:
            self.fuser.keep(waists)
            kinds, accepted = self._group(ids, weights)
        joints: list[Joint] = []
        extractor = Extractor(self.fuser, self.constants, self.grouping.leaf)
        for kind in kinds:
            joints += self._join(kind, accepted, extractor)
        return [j.chosen(np.flatnonzero(accepted[j.group])) for j in joints if accepted[j.group].any()]

    def _group(self, ids: np.ndarray, weights: np.ndarray) -> tuple[list[Results], np.ndarray]:
        """Group the results; also returns which groups are worth joining."""
        kinds = [self._losses(ids, weights), self._terms(), self._nodes()]
        results = distinct(np.concatenate([k.ids for k in kinds]))
        self.grouping = Grouping(self.fuser)
        self.grouping.read_arguments()
        self.grouping.read_results(results)
        if not self.grouping.strained[results].any() and not self.grouping.meetings:
            return kinds, np.zeros(0, bool)
        group, self.count = self.grouping.group(results)
        for kind in kinds:
            kind.group = group[np.searchsorted(results, kind.ids)]
        return kinds, self._worthwhile(kinds)

    # Results

    def _losses(self, ids: np.ndarray, weights: np.ndarray) -> Results:
        where = np.flatnonzero(~self.fuser.leaf[ids])
        return Results("loss", ids[where], weights[where], np.full(len(where), -1, np.int32), where)

    def _terms(self) -> Results:
        """Terms of long sums."""
        ids, coefs, outs, where = [], [], [], []
        for b, block in enumerate(self.pool.blocks):
            if block.kind != ROW or b not in self.fuser.rows:
                continue
            ptr, cols, factors = self.fuser.rows[b]
            rows = np.flatnonzero(self.fuser.long[block.start : block.stop])
            terms, owner = row_terms(ptr, rows)
            inner = (cols[terms] >= 0) & ~self.fuser.leaf[np.maximum(cols[terms], 0)]
            ids.append(cols[terms[inner]])
            coefs.append(factors[terms[inner]])
            outs.append((rows[owner[inner]] + block.start).astype(np.int32))
            where.append(b << 40 | terms[inner])
        none = np.zeros(0, np.int32)
        found = [np.concatenate([none, *part]) for part in (ids, coefs, outs)]
        return Results("term", found[0], found[1], found[2], np.concatenate([np.zeros(0, np.int64), *where]))

    def _nodes(self) -> Results:
        """What loops carry and the caller wants to keep."""
        found = [np.zeros(0, np.int32)]
        for b, block in enumerate(self.pool.blocks):
            if block.kind == OP or (block.kind == ROW and b in self.fuser.rows):
                span = slice(block.start, block.stop)
                mask = self.fuser.kept[span] & self.fuser.live[span] & ~self.fuser.long[span]
                found.append((np.flatnonzero(mask) + block.start).astype(np.int32))
        ids = np.concatenate(found)
        return Results("node", ids, np.zeros(len(ids), np.int32), ids, ids.astype(np.int64))

    def _worthwhile(self, kinds: list[Results]) -> np.ndarray:
        """Say which groups are worth joining: some value in them would be kept, or results share work."""
        number = len(self.count)
        worth = np.zeros(number, bool)
        for kind in kinds:
            inside = kind.group >= 0
            group = kind.group[inside]
            worth[group[self.grouping.strained[kind.ids[inside]]]] = True
            pairs = group.astype(np.int64) << 32 | (kind.outs[inside] if kind.kind == "term" else 0)
            _, first, several = np.unique(pairs, return_index=True, return_counts=True)
            worth[group[first[several > 1]]] = True
        return worth & (self.count > 0) & (self.count <= MOST_ARGS)

    # Joining

    def _join(self, kind: Results, accepted: np.ndarray, extractor: Extractor) -> list[Joint]:
        """Extract the results of accepted groups; take back those that do not fit."""
        chosen = np.flatnonzero((kind.group >= 0) & accepted[kind.group])
        if not chosen.size:
            return []
        outs = kind.outs[chosen] if kind.kind == "term" else np.zeros(len(chosen), np.int32)
        order = chosen[np.lexsort((kind.ids[chosen], outs, kind.group[chosen]))]
        outs = kind.outs[order] if kind.kind == "term" else np.zeros(len(order), np.int32)
        new = np.ones(len(order), bool)
        new[1:] = (kind.group[order][1:] != kind.group[order][:-1]) | (outs[1:] != outs[:-1])
        starts = np.flatnonzero(new)
        sizes = np.diff(starts, append=len(order))
        joints = []
        for size in np.unique(sizes):
            table = order[starts[sizes == size][:, None] + np.arange(size)]
            for rows in self._alike(kind, table):
                joints += self._extract(kind, table[rows], accepted, extractor)
        return joints

    def _alike(self, kind: Results, table: np.ndarray) -> list[np.ndarray]:
        """Split instances by where their results are made, and by the signs of their coefficients."""
        blocks = np.searchsorted(self.fuser.starts, kind.ids[table], side="right")
        signs = np.where(kind.coefs[table] < 0, 2, kind.coefs[table])
        patterns, which = unique_rows(np.concatenate([blocks, signs], 1))
        return [np.flatnonzero(which == p) for p in range(len(patterns))]

    def _extract(
        self, kind: Results, table: np.ndarray, accepted: np.ndarray, extractor: Extractor
    ) -> list[Joint]:
        group = kind.group[table[:, 0]]
        found, rest = extractor.run(kind.ids[table])
        refused = [group[rest]]
        joints = []
        for extract in found:
            rows = table[extract.rows]
            joint = Joint(
                kind.kind,
                extract,
                kind.coefs[rows],
                kind.outs[rows],
                kind.where[rows],
                kind.group[rows[:, 0]],
            )
            bad = ~self._in_order(joint) if kind.kind == "node" else np.zeros(len(rows), bool)
            if self._is_sparse(joint) or self._repeats(joint):
                bad[:] = True
            refused.append(joint.group[bad])
            joints.append(joint)
        # What differs at the ends of an array only goes the way of the rest.
        lost = np.concatenate(refused)
        accepted[group if 2 * len(lost) > len(group) else lost] = False
        return joints

    def _in_order(self, joint: Joint) -> np.ndarray:
        """Whether all arguments are made before all results, so that no cycle can arise."""
        if not hasattr(self, "when"):
            self.when = np.concatenate([block.keys() for block in self.pool.blocks])
        first = self.when[joint.outs].min(1)
        return (self.when[joint.extract.args] < first[:, None]).all(1)

    def _is_sparse(self, joint: Joint) -> bool:
        """Whether there are many arguments, and few of them coupled, or slots inside would make less of it.

        Less is: fewer slots than arguments, or fewer operations to eliminate slots and arguments one after the other than
        the arguments alone, which are all coupled then.
        """
        k = joint.extract.args.shape[1]
        if k <= FEW_ARGS:
            return False
        inner = np.array([column[0] for column in joint.extract.inner], np.int64)
        args, results = (
            joint.extract.args[0],
            distinct(inner[[i for tag, i in joint.extract.outs if tag == "n"]]),
        )
        kept, reads = self.fuser.try_out(inner, args, results)
        if len(kept) < k or _eliminate(kept, reads, k**3 // 3) < k**3 // 3:
            return True
        jac, coupled = patterns(joint.extract.nodes, joint.extract.outs, k)
        if joint.kind == "node":
            coupled = coupled | (jac.T.astype(np.int64) @ jac.astype(np.int64) > 0)
        return bool(coupled.mean() <= MIN_COUPLED)

    def _repeats(self, joint: Joint) -> bool:
        """Whether too much work is done again in other instances, for the slots that this saves."""
        g, e = self.grouping, joint.extract
        first = np.array([column[0] for column in e.inner], np.int64)
        if not first.size:
            return False
        shared = (g.above[first] == OVER) & (g.sets.count(g.own[first]) > 1)
        crossing = np.zeros(len(first), bool)
        for i, (_, refs) in enumerate(e.nodes):
            if not shared[i]:
                crossing[[r for tag, r in refs if tag == "n"]] = True
        again = saved = 0
        for i in np.flatnonzero(shared):
            values = len(distinct(e.inner[i]))
            again += len(e.inner[i]) - values
            saved += values if crossing[i] else 0
        return again > MAX_REPEATED * saved

    # What is left

    def settle(self, joints: list[Joint], ids: np.ndarray) -> np.ndarray:
        """Tell the fuser what is left to do; returns for each loss term whether it is."""
        fuser = self.fuser
        left = np.ones(len(ids), bool)
        defined = np.zeros(self.pool.size, bool)
        gone: dict[int, list[np.ndarray]] = {}
        for joint in joints:
            args = distinct(joint.extract.args.ravel())
            fuser.keep(args[~fuser.leaf[args]])
            where = joint.where.ravel()
            if joint.kind == "loss":
                left[where] = False
            elif joint.kind == "node":
                defined[joint.outs.ravel()] = True
            else:
                for b in np.unique(where >> 40):
                    gone.setdefault(int(b), []).append(where[where >> 40 == b] & (1 << 40) - 1)
        for b, terms in gone.items():
            ptr, cols, coefs = fuser.rows[b]
            stays = np.ones(len(cols), bool)
            stays[np.concatenate(terms)] = False
            counts = np.add.reduceat(np.append(stays, False), ptr[:-1]) * (np.diff(ptr) > 0)
            fuser.rows[b] = (np.concatenate([[0], np.cumsum(counts)]), cols[stays], coefs[stays])
        fuser.todo = self._needed(ids[left], defined)
        return left

    def _needed(self, losses: np.ndarray, defined: np.ndarray) -> np.ndarray:
        """Return what the loss terms, slots and calls that are left need, down to slots."""
        fuser = self.fuser
        need = fuser.kept & fuser.live & ~defined
        need[losses] = True
        for b in range(len(self.pool.blocks) - 1, -1, -1):
            block = self.pool.blocks[b]
            if block.kind == ROW:
                if b not in fuser.rows:
                    continue
                ptr, cols, _ = fuser.rows[b]
                operands = [cols[row_terms(ptr, np.flatnonzero(need[block.start : block.stop]))[0]]]
            elif block.kind == CALL:
                mask = fuser.live[block.start : block.stop].reshape(-1, block.call.m).any(1)
                operands = [o[mask] for o in block.operands]
            else:
                operands = [o[need[block.start : block.stop]] for o in block.operands]
            for ids in operands:
                ids = ids[ids >= 0]
                need[ids[~fuser.leaf[ids]]] = True
        return need


def _eliminate(slots: np.ndarray, reads: list[np.ndarray], most: int) -> int:
    """Estimate the operations that eliminate slots and what they read, by least degree; at most `most`.

    `reads` names what each slot reads, and then what results read.
    """
    sets = [{int(slot), *read.tolist()} for slot, read in zip(slots, reads, strict=False)]
    sets += [set(read.tolist()) for read in reads[len(slots) :]]
    near: dict[int, set[int]] = {}
    for members in sets:
        for i in members:
            near.setdefault(i, set()).update(members)
    pairs = set(slots.tolist())
    done = 0
    queue = [(len(others), i) for i, others in near.items()]
    heapq.heapify(queue)
    while queue and done < most:
        size, i = heapq.heappop(queue)
        if i not in near or size != len(near[i]):
            continue
        others = near.pop(i) - {i}
        done += size**2 * (2 if i in pairs else 1)
        for j in others:
            near[j] |= others
            near[j].discard(i)
            heapq.heappush(queue, (len(near[j]), j))
    return min(done, most)
