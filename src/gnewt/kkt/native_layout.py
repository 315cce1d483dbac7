"""A plan as the native engine reads it: one flat int32 array, made once per plan (cpp/engine/plan_view.hpp).

A causal front has p pairs, q inputs and a separator of b slots, in the coordinates [p | q | b]. Its numbers go to five
parts, each a matrix of its own:

    F   [p, q + b]      how the pairs depend on the rest: rows of Jacobians
    G   [p, p]          pairs of this front that read each other
    PP  [p, p]          Hessian entries between pairs
    C   [p, q + b]      ... between a pair and the rest
    R   [q + b, q + b]  ... between the rest

A front of a free plan is all R. Sources are moved in *blocks*: rectangles and packed triangles of the source vector that
are rectangles and triangles in the front. Fronts that look alike up to where their blocks begin share one *shape*, so
that a chain of a million stages has a handful of shapes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt._errors import PlanError
from gnewt.graph import Plan
from gnewt.kkt.ragged import gather, interleave, listed, postorder, share, starts

_VERSION = 1
_F, _G, _PP, _C, _R = range(5)
_CHILD_IS_PAIRS, _CROSS, _NESTED, _DENSE_JACOBIAN, _INPUT_BELOW = 1, 2, 4, 8, 16
_SHAPE_HEADER, _HEADER = 9, 13
SLACK = 1.5
"""How much larger than planned the factor of a free plan may grow by delayed pivots and still be kept."""


@dataclasses.dataclass(frozen=True, eq=False)
class NativeLayout:
    """What the native engine needs of a plan."""

    array: np.ndarray
    """int32: header, fronts, shapes, slots, positions of sources."""
    num_inputs: int
    num_unknowns: int
    num_sources: int
    factor_size: int
    index_size: int
    causal: bool


def lay_out_native(plan: Plan, num_sources: int) -> NativeLayout:
    """Turn a plan into the arrays of the native engine. Vectorised over fronts; once per plan."""
    tables = _Coordinates(plan)
    order, rank, num_children = postorder(plan.parent)
    front, kind, row, col, src = _contributions(plan, tables, rank)
    blocks = _merge_blocks(_find_runs(front, kind, row, col, src))
    sections, flags = _sections(plan, tables, order, rank, num_children, blocks, (front, kind, row, col, src))
    p, q, b = tables.p[order], tables.q[order], tables.b[order]
    on_diagonal = (kind == _R) & (row == col) & (plan.causal)
    num_fronts = plan.num_fronts
    counts = np.stack(
        [p, q, b, flags, *(np.bincount(s[0], minlength=num_fronts) // w for s, w in sections)], axis=1
    )
    header = (np.repeat(np.arange(num_fronts), _SHAPE_HEADER), counts.ravel())
    pool, length = interleave([header, *(s for s, _ in sections)], num_fronts)
    shape_start, shapes = share(pool, length)

    sources, source_len = interleave(
        [(blocks.front, blocks.src), listed(front[on_diagonal], src[on_diagonal, None])], num_fronts
    )
    slots, slot_len = tables.slots_of_fronts(order)
    records = np.stack([shape_start, starts(slot_len), starts(source_len), num_children[order]], axis=1)
    parts = [records.ravel(), shapes, slots, sources]
    at = _HEADER + starts(np.array([len(part) for part in parts]))
    sizes = [max(int(p.max(initial=0)), 1), max(int((q + b).max(initial=0)), 1)]
    head = [
        _VERSION,
        num_fronts,
        plan.num_inputs,
        plan.num_slots,
        int(plan.causal),
        *at,
        num_sources,
        *sizes,
        0,
    ]
    array = np.concatenate([np.array(head, np.int64), *parts])
    if array.max(initial=0) > np.iinfo(np.int32).max:
        raise PlanError("the plan is too large for the native engine: its indices exceed 31 bits")
    total = (q + b).astype(np.int64)
    if plan.causal:
        factor_size, index_size = int(np.sum(q * total)), 4
    else:
        factor_size = int(SLACK * np.sum(q * (total + 2))) + 64
        index_size = int(SLACK * np.sum(total + 4)) + 68
    return NativeLayout(
        np.ascontiguousarray(array, np.int32),
        plan.num_inputs,
        plan.num_unknowns,
        num_sources,
        max(factor_size, 1),
        index_size,
        plan.causal,
    )


class _Coordinates:
    """Local coordinates of the engine for the local coordinates of a plan."""

    def __init__(self, plan: Plan) -> None:
        num = plan.num_fronts
        self.num_eliminated = np.diff(plan.elim_ptr).astype(np.int64)
        self.b = np.diff(plan.sep_ptr).astype(np.int64)
        self.ptr = np.asarray(plan.elim_ptr, np.int64) + plan.sep_ptr
        """Where the list [eliminated, separator] of each front begins."""
        of_elim = np.repeat(np.arange(num), self.num_eliminated)
        of_sep = np.repeat(np.arange(num), self.b)
        elim_at = np.arange(len(plan.elim_idx)) + plan.sep_ptr[of_elim]
        sep_at = np.arange(len(plan.sep_idx)) + plan.elim_ptr[of_sep + 1]
        self.unknown = np.empty(int(self.ptr[-1]), np.int64)
        self.unknown[elim_at], self.unknown[sep_at] = plan.elim_idx, plan.sep_idx
        self.dual = self.unknown >= plan.num_slots
        sep_rank = np.arange(len(plan.sep_idx)) - plan.sep_ptr[of_sep]
        self.coordinate = np.empty(int(self.ptr[-1]), np.int64)
        if not plan.causal:
            self.p, self.q = np.zeros(num, np.int64), self.num_eliminated
            self.coordinate[elim_at] = np.arange(len(plan.elim_idx)) - plan.elim_ptr[of_elim]
            self.coordinate[sep_at] = self.q[of_sep] + sep_rank
            return
        is_input = plan.elim_idx < plan.num_inputs
        is_pair = (plan.elim_idx < plan.num_slots) & ~is_input
        self.p = np.bincount(of_elim, is_pair, num).astype(np.int64)
        self.q = np.bincount(of_elim, is_input, num).astype(np.int64)
        pair_rank = np.cumsum(is_pair) - 1 - starts(self.p)[of_elim]
        input_rank = np.cumsum(is_input) - 1 - starts(self.q)[of_elim] + self.p[of_elim]
        of_slot = np.empty(plan.num_slots, np.int64)
        of_slot[plan.elim_idx[is_pair]] = pair_rank[is_pair]
        of_slot[plan.elim_idx[is_input]] = input_rank[is_input]
        self.coordinate[elim_at] = of_slot[plan.slot_of_unknown(plan.elim_idx)]
        self.coordinate[sep_at] = (self.p + self.q)[of_sep] + sep_rank

    def slots_of_fronts(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slots (free plans: unknowns) of all fronts, each in its coordinates; and how many each front has."""
        front = np.repeat(np.arange(len(self.p)), np.diff(self.ptr))
        length = self.p + self.q + self.b
        # A causal plan lists each pair twice, as x and as λ: the slot counts once.
        twice = self.dual if np.any(self.p) else np.zeros(len(self.dual), bool)
        by_front = np.empty(int(length.sum()), np.int64)
        by_front[(starts(length)[front] + self.coordinate)[~twice]] = self.unknown[~twice]
        return by_front[gather(starts(length)[order], length[order])], length[order]


def _contributions(
    plan: Plan, tables: _Coordinates, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(front, part, row, column, position in the sources) of every number that is added somewhere."""
    entry_front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    f = entry_front[plan.target]
    at_row, at_col = (tables.ptr[f] + c[plan.target] for c in (plan.entry_row, plan.entry_col))
    row, col, p = tables.coordinate[at_row], tables.coordinate[at_col], tables.p[f]
    low, high = np.minimum(row, col), np.maximum(row, col)
    if not plan.causal:
        return rank[f], np.full(len(f), _R), low, high, np.asarray(plan.source)
    dual_row, dual_col = tables.dual[at_row], tables.dual[at_col]
    jacobian = dual_row | dual_col
    of_dual, of_primal = np.where(dual_row, row, col), np.where(dual_row, col, row)
    kind = np.where(
        jacobian,
        np.where(of_primal < p, _G, _F),
        np.where(high < p, _PP, np.where(low < p, _C, _R)),
    )
    row = np.where(jacobian, of_dual, np.where(kind == _R, low - p, low))
    col = np.where(jacobian, of_primal, high) - np.where((kind == _PP) | (kind == _G), 0, p)
    return rank[f], kind, row, col, np.asarray(plan.source)


@dataclasses.dataclass(frozen=True, eq=False)
class _Runs:
    """Consecutive sources that are consecutive in a row (or, transposed, in a column) of a part."""

    front: np.ndarray
    kind: np.ndarray
    transposed: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    length: np.ndarray
    src: np.ndarray


def _find_runs(
    front: np.ndarray, kind: np.ndarray, row: np.ndarray, col: np.ndarray, src: np.ndarray
) -> _Runs:
    # One key, and a sort that profits from the long ascending stretches there are.
    order = np.argsort((front * 8 + kind) * (int(src.max(initial=0)) + 1) + src, kind="stable")
    front, kind, row, col, src = (v[order] for v in (front, kind, row, col, src))
    near = (np.diff(front) == 0) & (np.diff(kind) == 0) & (np.diff(src) == 1)
    dr, dc = np.diff(row), np.diff(col)
    step = np.where(near & (dr == 0) & (dc == 1), 1, np.where(near & (dc == 0) & (dr == 1), 2, 0))
    step = np.concatenate([[0], step, [0]])
    # (0, 0), (0, 1), (1, 1): the second belongs to the third, to the next row of a packed triangle.
    lone = (step[1:-1] == 1) & (step[2:] == 2) & (step[:-2] == 0)
    step[1:-1][lone] = 0
    step = step[: len(src)]
    before = np.concatenate([[0], step[:-1]])
    begins = (step == 0) | ((before != 0) & (step != before))
    first = np.flatnonzero(begins)
    length = np.diff(np.concatenate([first, [len(src)]]))
    second = np.minimum(first + 1, max(len(src) - 1, 0))
    transposed = np.where(length > 1, step[second] == 2, (kind[first] == _PP) | (kind[first] == _R))
    return _Runs(
        front[first],
        kind[first],
        transposed.astype(np.int64),
        np.where(transposed, col[first], row[first]),
        np.where(transposed, row[first], col[first]),
        length,
        src[first],
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Blocks:
    """Rectangles and triangles: runs below each other whose lengths and starts follow a rule."""

    front: np.ndarray
    src: np.ndarray
    table: np.ndarray
    """[blocks, 9]: kind, transposed, rows, len, dlen, step, dstep, row, col."""


def _merge_blocks(runs: _Runs) -> _Blocks:
    order = np.lexsort((runs.src, runs.inner, runs.transposed, runs.kind, runs.front))
    front, kind, transposed, outer, inner, length, src = (
        v[order]
        for v in (runs.front, runs.kind, runs.transposed, runs.outer, runs.inner, runs.length, runs.src)
    )

    def change(v: np.ndarray, start: int = 0) -> np.ndarray:
        return np.concatenate([np.full(min(start + 1, len(v)), 0), np.diff(v[start:])])

    same = np.ones(len(src), bool)
    same[:1] = False
    for v in (front, kind, transposed, inner):
        same &= change(v) == 0
    joined = same & (change(outer) == 1)
    before = np.concatenate([[False], joined[:-1]])
    before2 = np.concatenate([[False], before[:-1]])
    dlen, dsrc = change(length), change(src)
    dlen2, dsrc2 = change(dlen), change(dsrc)
    dsrc3 = change(dsrc2)
    begins = ~joined | (before & (dlen2 != 0)) | (before & before2 & (dsrc3 != 0))
    first = np.flatnonzero(begins)
    rows = np.diff(np.concatenate([first, [len(src)]]))
    last = max(len(src) - 1, 0)
    second, third = np.minimum(first + 1, last), np.minimum(first + 2, last)
    table = np.stack(
        [
            kind[first],
            transposed[first],
            rows,
            length[first],
            np.where(rows > 1, dlen[second], 0),
            np.where(rows > 1, dsrc[second], 0),
            np.where(rows > 2, dsrc2[third], 0),
            np.where(transposed[first] == 1, inner[first], outer[first]),
            np.where(transposed[first] == 1, outer[first], inner[first]),
        ],
        axis=1,
    )
    return _Blocks(front[first], src[first], table)


def _sections(
    plan: Plan,
    tables: _Coordinates,
    order: np.ndarray,
    rank: np.ndarray,
    num_children: np.ndarray,
    blocks: _Blocks,
    contributions: tuple[np.ndarray, ...],
) -> tuple[list[tuple[tuple[np.ndarray, np.ndarray], int]], np.ndarray]:
    """The lists of a shape as ((front, values), values per item), fronts ascending; and the flags of every front."""
    front, kind, row, col, _ = contributions
    num = plan.num_fronts
    runs_front, runs, identity, straddles = _extend_runs(plan, tables, num_children)
    again = np.argsort(rank[runs_front], kind="stable")
    diagonal = (kind == _R) & (row == col) & plan.causal
    empty = np.zeros(0, np.int64)
    pairs, inputs = (empty, empty), (empty, empty)
    if not plan.causal:
        entry_front = np.repeat(np.arange(num), np.diff(plan.entry_ptr))
        # As (λ, x): an entry itself does not say which of its coordinates is the dual.
        ends = np.stack([plan.entry_row[plan.pair_entry], plan.entry_col[plan.pair_entry]], axis=1)
        home = entry_front[plan.pair_entry]
        first_is_dual = tables.dual[tables.ptr[home] + ends[:, 0]]
        pairs = listed(rank[home], np.where(first_is_dual[:, None], ends, ends[:, ::-1]))
        inputs = listed(rank[entry_front[plan.input_entry]], plan.entry_row[plan.input_entry][:, None])
    flags = np.zeros(num, np.int64)
    if plan.causal:
        flags[rank[plan.parent[identity]]] |= _CHILD_IS_PAIRS
        flags[rank[plan.parent[straddles]]] |= _CROSS
        flags[front[kind == _C]] |= _CROSS
        flags[front[kind == _G]] |= _NESTED
        flags[_dense(front[kind == _F], row[kind == _F], col[kind == _F], tables, order)] |= _DENSE_JACOBIAN
        below = np.add.reduceat(np.append(plan.sep_idx < plan.num_inputs, 0), plan.sep_ptr[:-1])
        flags[rank[np.flatnonzero((below > 0) & (tables.b > 0))]] |= _INPUT_BELOW
    return [
        (listed(blocks.front, blocks.table), 9),
        (listed(front[diagonal], row[diagonal, None]), 1),
        (pairs, 2),
        (inputs, 1),
        (listed(rank[runs_front][again], runs[again]), 3),
    ], flags


def _extend_runs(
    plan: Plan, tables: _Coordinates, num_children: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where separators lie in their parents: (front, [start, coordinate, length]) of the runs, and which fronts
    are the only child whose separator is exactly the pairs, or have a separator on both sides of the pairs' end."""
    num = plan.num_fronts
    child = np.repeat(np.arange(num), tables.b)
    parent = plan.parent[child]
    place = tables.coordinate[tables.ptr[parent] + plan.sep_pos]
    start = np.arange(len(child)) - plan.sep_ptr[child]
    p = tables.p[parent]
    new = np.ones(len(child), bool)
    new[1:] = (np.diff(child) != 0) | (np.diff(place) != 1) | (place[1:] == p[1:])
    first = np.flatnonzero(new)
    length = np.diff(np.concatenate([first, [len(child)]]))
    runs = np.stack([start[first], place[first], length], axis=1)
    wrong = np.bincount(child, place != start, num) > 0
    has_parent = plan.parent >= 0
    of_parent = np.where(has_parent, plan.parent, 0)
    identity = has_parent & ~wrong & (tables.b == tables.p[of_parent]) & (num_children[of_parent] == 1)
    low = np.bincount(child, place < p, num) > 0
    high = np.bincount(child, place >= p, num) > 0
    return child[first], runs, np.flatnonzero(identity), np.flatnonzero(low & high)


def _dense(
    front: np.ndarray, row: np.ndarray, col: np.ndarray, tables: _Coordinates, order: np.ndarray
) -> np.ndarray:
    """Fronts whose F is covered by its sources, each entry once."""
    p, n = tables.p[order], (tables.q + tables.b)[order]
    key = starts(p * n)[front] + row * n[front] + col
    hits = np.bincount(key, minlength=int(np.sum(p * n)))
    once = np.concatenate([[0], np.cumsum(hits == 1)])
    ends = np.cumsum(p * n)
    return np.flatnonzero((once[ends] - once[ends - p * n] == p * n) & (p > 0))
