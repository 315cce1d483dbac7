"""A plan as the xla engine reads it: integer arrays that say where every number goes. Once per plan.

A front has p *bare* pairs (their duals stand in no separator: they are substituted, not divided by), m other pairs
(x_v, λ_v), k inputs, and a separator of b unknowns. Its coordinates are

    [ x of bare pairs (p) | x of pairs (m) | λ of pairs (m) | inputs (k) | separator (b) ]

and its numbers are M [n, n] over these, and F [p, n - p] and G [p, p], the rows of the bare duals: x_p = G x_p + F z.
In a causal plan all pairs are bare, so that fronts are primal-only. Fronts of one class are padded to one shape:
pivots by one, everything else by zero.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from gnewt._errors import PlanError
from gnewt.graph import Plan
from gnewt.kkt.engines.xla.merge import merge_fronts
from gnewt.kkt.engines.xla.schedule import FrontSchedule, FrontSegment, FrontShape, classify, make_schedule

ZERO, ONE, MINUS, FIRST = 0, 1, 2, 3
"""Constants at the head of the vector that fronts are gathered from; sources come next, then sums of sources."""
FEW = 8
"""Numbers that are added into one entry by a gather; more are added by a scatter."""
OUTSIDE = 2**30
"""An index beyond any array: what is written there is dropped."""


@dataclasses.dataclass(frozen=True, eq=False)
class XlaLayout:
    """What the xla engine needs of a plan: static sizes, and integer arrays to be passed as operands."""

    num_inputs: int
    num_unknowns: int
    num_pairs: int
    """Pairs that are not bare: each brings one positive and one negative pivot that are not H's."""
    num_sources: int
    segments: tuple[FrontSegment, ...]
    pool_starts: tuple[int, ...]
    """Where in the pool of all M each block begins."""
    nesting: tuple[int, ...]
    """For each block, the longest chain of bare pairs that read one another; 0 where there is no G."""
    arrays: dict[str, np.ndarray]
    """`few`, `many`, `many_of`: sums of sources. `diagonal` and `bare`: of every unknown. `pool`: M of all fronts. For block i,
    [steps, width, ...]: `ids{i}` unknowns, `f{i}`, `g{i}`; `row{i}` and `col{i}` add up to the place of a separator's
    entry in the pool; `has{i}` whether a step has any front of the class."""


def lay_out_xla(plan: Plan, num_sources: int) -> XlaLayout:
    """Turn a plan into the arrays of the xla engine. Vectorised over fronts."""
    plan = merge_fronts(plan)
    pairs = _Pairs(plan)
    shapes, class_of = classify(pairs.sizes)
    schedule = make_schedule(plan.parent, shapes, class_of)
    local = _Coordinates(
        plan, pairs, np.array([dataclasses.astuple(s) for s in shapes]).reshape(-1, 4)[class_of]
    )
    entries, sums = _add_up(plan, pairs, num_sources)
    blocks = schedule.blocks
    pool_at, pool_starts = schedule.offsets([b.shape.n**2 for _, b in blocks])
    if max(pool_starts[-1], num_sources + FIRST) >= OUTSIDE:
        raise PlanError("the plan is too large for the xla engine: its fronts exceed 2³⁰ numbers")

    flat = {"pool": np.zeros(pool_starts[-1], np.int32)}
    _pad_pivots(flat["pool"], schedule, pool_starts, pairs.sizes)
    _place(plan, local, entries, pool_at, schedule, flat)
    ids_at, ids_starts = schedule.offsets([b.shape.n for _, b in blocks])
    ids = np.full(ids_starts[-1], plan.num_unknowns, np.int32)
    ids[(ids_at[local.front] + local.coordinate)[~local.is_row]] = local.unknown[~local.is_row]
    _extend(plan, local, pool_at, schedule, flat)

    on = np.flatnonzero(plan.entry_row == plan.entry_col)
    diagonal = np.full(plan.num_unknowns, ZERO, np.int32)
    diagonal[local.unknown[local.row_at[on]]] = entries[on]
    arrays = {**sums, "pool": flat["pool"], "diagonal": diagonal, "bare": pairs.bare}
    tables = {"ids": (ids, ids_starts)} | {
        name: (flat[name], schedule.offsets([_size(name, b.shape) for _, b in blocks])[1])
        for name in ("f", "g", "row", "col")
    }
    for i, (steps, block) in enumerate(blocks):
        for name, (values, begin) in tables.items():
            piece = values[begin[i] : begin[i + 1]]
            arrays[f"{name}{i}"] = piece.reshape(steps, block.width, *_dims(name, block.shape))
        has = np.zeros(steps, bool)
        has[schedule.lane_of_front[schedule.block_of_front == i] // block.width] = True
        arrays[f"has{i}"] = has
    depth = np.zeros(len(blocks), np.int64)
    np.maximum.at(depth, schedule.block_of_front, local.nesting)
    return XlaLayout(
        plan.num_inputs,
        plan.num_unknowns,
        int(pairs.sizes[:, 1].sum()),
        num_sources,
        schedule.segments,
        tuple(pool_starts.tolist()),
        tuple(depth.tolist()),
        arrays,
    )


def _dims(name: str, shape: FrontShape) -> tuple[int, ...]:
    return {"ids": (shape.n,), "f": (shape.p, shape.rest), "g": (shape.p, shape.p)}.get(name, (shape.b,))


def _size(name: str, shape: FrontShape) -> int:
    return int(np.prod(_dims(name, shape)))


class _Pairs:
    """Which pairs are bare, and how many unknowns of each kind every front eliminates."""

    def __init__(self, plan: Plan) -> None:
        n, s = plan.num_inputs, plan.num_slots
        touched = np.zeros(plan.num_unknowns, bool)
        touched[plan.sep_idx] = True
        self.bare = np.zeros(plan.num_unknowns, bool)
        """Of states and duals alike: whether no front has the dual in its separator."""
        self.bare[n:s] = self.bare[s:] = ~touched[s:]
        self.front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.elim_ptr))
        """Of every element of plan.elim_idx."""
        elim = plan.elim_idx
        state = (elim >= n) & (elim < s)
        self.kinds = [state & self.bare[elim], state & ~self.bare[elim], elim < n]
        counts = [np.bincount(self.front[kind], minlength=plan.num_fronts) for kind in self.kinds]
        self.sizes = np.stack([*counts, np.diff(plan.sep_ptr)], axis=1).astype(np.int64)
        """[F, 4]: p, m, k, b."""


class _Coordinates:
    """Engine coordinates for the local coordinates of a plan, all fronts after one another."""

    def __init__(self, plan: Plan, pairs: _Pairs, padded: np.ndarray) -> None:
        """padded: [F, 4], the sizes of each front's class."""
        n, s = plan.num_inputs, plan.num_slots
        p, m, k, _ = padded.T
        self.p, self.rest = p, 2 * m + k + padded[:, 3]
        self.ptr = np.asarray(plan.elim_ptr, np.int64) + plan.sep_ptr
        of_sep = np.repeat(np.arange(plan.num_fronts), np.diff(plan.sep_ptr))
        elim_at = np.arange(len(plan.elim_idx)) + plan.sep_ptr[pairs.front]
        sep_at = np.arange(len(plan.sep_idx)) + plan.elim_ptr[of_sep + 1]
        total = int(self.ptr[-1])
        self.unknown, self.coordinate = np.empty(total, np.int64), np.empty(total, np.int64)
        self.front = np.repeat(np.arange(plan.num_fronts), np.diff(self.ptr))
        self.unknown[elim_at], self.unknown[sep_at] = plan.elim_idx, plan.sep_idx
        where = np.zeros(plan.num_unknowns, np.int64)
        for kind, begin in zip(pairs.kinds, (np.zeros_like(p), p, p + 2 * m), strict=True):
            front = pairs.front[kind]
            where[plan.elim_idx[kind]] = begin[front] + np.arange(len(front)) - np.searchsorted(front, front)
        home = np.zeros(plan.num_unknowns, np.int64)
        home[plan.elim_idx] = pairs.front
        where[s:] = where[n:s] + np.where(pairs.bare[s:], 0, m[home[s:]])
        self.coordinate[elim_at] = where[plan.elim_idx]
        self.coordinate[sep_at] = (p + 2 * m + k)[of_sep] + np.arange(len(of_sep)) - plan.sep_ptr[of_sep]
        self.is_row = pairs.bare[self.unknown] & (self.unknown >= s)
        """Bare duals: their coordinate is a row of F and G."""
        entry_front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
        self.row_at = self.ptr[entry_front] + plan.entry_row
        self.col_at = self.ptr[entry_front] + plan.entry_col
        self.entry_front = entry_front

    @cached_property
    def kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of every entry: whether it lies in F or G, its row and column there, and whether that is G."""
        in_row = self.is_row[self.row_at] | self.is_row[self.col_at]
        swap = self.is_row[self.col_at]
        dual = self.coordinate[np.where(swap, self.col_at, self.row_at)]
        other = self.coordinate[np.where(swap, self.row_at, self.col_at)]
        return in_row, dual, other, in_row & (other < self.p[self.entry_front])

    @cached_property
    def nesting(self) -> np.ndarray:
        """Longest chain of bare pairs in each front that read one another."""
        _, row, col, nested = self.kinds
        nested = nested & (row != col)
        if not nested.any():
            return np.zeros(len(self.p), np.int64)
        begin = np.concatenate([[0], np.cumsum(self.p)])
        front = self.entry_front[nested]
        reader, read = begin[front] + row[nested], begin[front] + col[nested]
        depth = np.zeros(int(begin[-1]), np.int64)
        while True:
            deeper = depth.copy()
            np.maximum.at(deeper, reader, depth[read] + 1)
            if np.array_equal(deeper, depth):
                break
            depth = deeper
        longest = np.zeros(len(self.p), np.int64)
        np.maximum.at(longest, front, depth[reader])
        return longest


def _add_up(plan: Plan, pairs: _Pairs, num_sources: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where the number of every entry stands, and the sums that have to be formed first."""
    kept = ~pairs.bare[plan.num_slots :]
    target = np.concatenate([plan.target, plan.pair_entry[kept]])
    index = np.concatenate([plan.source + FIRST, np.full(int(kept.sum()), MINUS)])
    order = np.argsort(target, kind="stable")
    target, index = target[order], index[order]
    count = np.bincount(target, minlength=plan.num_entries)
    first = np.concatenate([[0], np.cumsum(count)])[:-1]
    entries = np.full(plan.num_entries, ZERO, np.int64)
    entries[count == 1] = index[first[count == 1]]
    few, many = np.flatnonzero((count > 1) & (count <= FEW)), np.flatnonzero(count > FEW)
    entries[few] = FIRST + num_sources + np.arange(len(few))
    entries[many] = FIRST + num_sources + len(few) + np.arange(len(many))
    depth = int(count[few].max(initial=0))
    table = np.full((depth, len(few)), ZERO, np.int32)
    for i in range(depth):
        has = count[few] > i
        table[i, has] = index[first[few[has]] + i]
    in_many = count[target] > FEW
    return entries.astype(np.int32), {
        "few": table,
        "many": index[in_many].astype(np.int32),
        "many_of": np.searchsorted(many, target[in_many]).astype(np.int32),
        "num_many": np.zeros(len(many), np.int8),
    }


def _pad_pivots(
    pool: np.ndarray, schedule: FrontSchedule, pool_starts: np.ndarray, sizes: np.ndarray
) -> None:
    """Put one on the diagonal of pivots that do not exist."""
    for i, (steps, block) in enumerate(schedule.blocks):
        shape = block.shape
        mine = np.flatnonzero(schedule.block_of_front == i)
        real = np.zeros((steps * block.width, 4), np.int64)
        real[schedule.lane_of_front[mine]] = sizes[mine]
        view = pool[pool_starts[i] : pool_starts[i + 1]].reshape(len(real), shape.n**2)
        begin = shape.p
        for size, column in ((shape.m, 1), (shape.m, 1), (shape.k, 2)):
            lane, rank = np.nonzero(np.arange(size) >= real[:, column, None])
            view[lane, (begin + rank) * (shape.n + 1)] = ONE
            begin += size


def _place(
    plan: Plan,
    local: _Coordinates,
    entries: np.ndarray,
    pool_at: np.ndarray,
    schedule: FrontSchedule,
    flat: dict[str, np.ndarray],
) -> None:
    """Say for every number of M, F and G where it is gathered from."""
    blocks = schedule.blocks
    f_at, f_starts = schedule.offsets([_size("f", b.shape) for _, b in blocks])
    g_at, g_starts = schedule.offsets([_size("g", b.shape) for _, b in blocks])
    flat["f"], flat["g"] = np.zeros(f_starts[-1], np.int32), np.zeros(g_starts[-1], np.int32)
    front = local.entry_front
    in_row, dual, other, nested = local.kinds
    own = nested & (dual == other)  # the -1 of a bare pair, which is implied
    row, col, n = (
        local.coordinate[local.row_at],
        local.coordinate[local.col_at],
        (local.p + local.rest)[front],
    )
    square = ~in_row
    flat["pool"][(pool_at[front] + row * n + col)[square]] = entries[square]
    flat["pool"][(pool_at[front] + col * n + row)[square]] = entries[square]
    f = in_row & ~nested
    flat["f"][(f_at[front] + dual * local.rest[front] + other - local.p[front])[f]] = entries[f]
    g = nested & ~own
    flat["g"][(g_at[front] + dual * local.p[front] + other)[g]] = entries[g]


def _extend(
    plan: Plan, local: _Coordinates, pool_at: np.ndarray, schedule: FrontSchedule, flat: dict[str, np.ndarray]
) -> None:
    """Say where in its parent's M each separator goes: entry (i, j) to row[i] + col[j]."""
    at, begin = schedule.offsets([b.shape.b for _, b in schedule.blocks])
    flat["row"] = np.full(begin[-1], OUTSIDE, np.int32)
    flat["col"] = np.full(begin[-1], OUTSIDE - 1, np.int32)
    child = np.repeat(np.arange(plan.num_fronts), np.diff(plan.sep_ptr))
    parent = plan.parent[child]
    here = at[child] + np.arange(len(child)) - plan.sep_ptr[child]
    there = local.coordinate[local.ptr[parent] + plan.sep_pos]
    flat["row"][here] = pool_at[parent] + there * (local.p + local.rest)[parent]
    flat["col"][here] = there
