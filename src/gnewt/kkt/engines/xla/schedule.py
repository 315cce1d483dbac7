"""Which fronts run side by side: classes of padded shapes, levels of the tree, segments of levels.

A program has one scan per segment, so there must be few segments however deep the tree. Levels join a segment as
long as padding their widths to the widest costs little; trees that are too irregular for that are cut by width
alone, and a level then takes as many steps as its fronts need at the segment's width.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import overload

import numpy as np

MAX_CLASSES = 4
MAX_BLOCKS = 12
"""A program is as long as its list of blocks: the fronts of one class in one segment."""
STEP_OVERHEAD = 2e4
"""Flops that one more step is worth, and ..."""
FRONT_OVERHEAD = 500.0
"""... one more front beside others."""
_MOST_KINDS = 64
"""Sizes that classes are formed from; more are rounded first."""
_PADDING, _CHEAP = 0.25, 1e6
"""A shorter program is worth this much padding: a share of all flops, or so many."""


@dataclasses.dataclass(frozen=True)
class FrontShape:
    """Sizes of the fronts of a class: bare pairs, other pairs, inputs, separator."""

    p: int
    m: int
    k: int
    b: int

    @property
    def q(self) -> int:
        """Unknowns that are pivots."""
        return 2 * self.m + self.k

    @property
    def rest(self) -> int:
        return self.q + self.b

    @property
    def n(self) -> int:
        return self.p + self.rest

    @property
    def cost(self) -> float:
        return front_cost(self.p, self.m, self.k, self.b)


@dataclasses.dataclass(frozen=True, eq=False)
class FrontBlock:
    """The fronts of one class in one segment: `width` of them in each step."""

    shape: FrontShape
    width: int
    always: bool
    """Whether every step has fronts of this class."""


@dataclasses.dataclass(frozen=True, eq=False)
class FrontSegment:
    """Steps that are one scan."""

    steps: int
    blocks: tuple[FrontBlock, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class FrontSchedule:
    """Segments, and the place of every front in them."""

    segments: tuple[FrontSegment, ...]
    block_of_front: np.ndarray
    """int[F]: number of the block, counted over all segments."""
    lane_of_front: np.ndarray
    """int[F]: step · width + position in the step."""

    @property
    def blocks(self) -> list[tuple[int, FrontBlock]]:
        """(steps, block), in the order of their numbers."""
        return [(segment.steps, block) for segment in self.segments for block in segment.blocks]

    def offsets(self, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(where each front begins, where each block begins) if a front of block i takes sizes[i] numbers."""
        lengths = [
            steps * block.width * size for (steps, block), size in zip(self.blocks, sizes, strict=True)
        ]
        begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        size = np.array(sizes, np.int64)
        return begin[self.block_of_front] + self.lane_of_front * size[self.block_of_front], begin


def classify(sizes: np.ndarray) -> tuple[list[FrontShape], np.ndarray]:
    """Group fronts [F, 4] of similar sizes: (shape of every class, class of every front).

    Starting from all sizes there are, the two classes are merged whose padding costs least, until a merger costs more
    than a shorter program is worth.
    """
    for coarseness in (0.0, 0.5, 1.0, 2.0, 4.0):
        rounded = sizes if coarseness == 0 else _round_up(sizes, coarseness)
        kinds, class_of = np.unique(rounded, axis=0, return_inverse=True)
        if len(kinds) <= _MOST_KINDS:
            break
    class_of = np.ravel(class_of)
    largest = np.zeros((len(kinds), 4), np.int64)
    np.maximum.at(largest, class_of, sizes)
    count = np.bincount(class_of, minlength=len(kinds)).astype(np.float64)
    allowed = _PADDING * float(front_cost(*sizes.T).sum()) + _CHEAP
    alive = list(range(len(kinds)))
    name = np.arange(len(kinds))
    while len(alive) > 1:
        i, j = np.triu_indices(len(alive), 1)
        i, j = np.array(alive)[i], np.array(alive)[j]
        joined = np.maximum(largest[i], largest[j])
        alone = count * front_cost(*largest.T)
        extra = (count[i] + count[j]) * front_cost(*joined.T) - alone[i] - alone[j]
        best = int(np.argmin(extra))
        if extra[best] > allowed and len(alive) <= MAX_CLASSES:
            break
        allowed -= max(float(extra[best]), 0.0)
        keep, gone = int(i[best]), int(j[best])
        largest[keep], count[keep] = joined[best], count[keep] + count[gone]
        name[name == gone] = keep
        alive.remove(gone)
    number = np.zeros(len(kinds), np.int64)
    number[alive] = np.arange(len(alive))
    return [FrontShape(*map(int, largest[c])) for c in alive], number[name][class_of]


@overload
def front_cost(p: int, m: int, k: int, b: int) -> float: ...
@overload
def front_cost(p: np.ndarray, m: np.ndarray, k: np.ndarray, b: np.ndarray) -> np.ndarray: ...
def front_cost(
    p: int | np.ndarray, m: int | np.ndarray, k: int | np.ndarray, b: int | np.ndarray
) -> float | np.ndarray:
    """Flops of a front, or of fronts, of these sizes."""
    q = 2 * m + k
    return (q + b) ** 2 * (p + q) + p**2 * (q + b) + FRONT_OVERHEAD


def _round_up(sizes: np.ndarray, step: float) -> np.ndarray:
    """Round up to a grid in which neighbours differ by a factor 2^step; zero stays zero."""
    return np.where(sizes > 0, 1 + np.ceil(np.log2(np.maximum(sizes, 1)) / step), 0).astype(np.int64)


def heights(parent: np.ndarray) -> np.ndarray:
    """Level of every front: one more than its highest child."""
    height, up = [0] * len(parent), parent.tolist()
    for i, above in enumerate(up):
        if above >= 0 and height[above] <= height[i]:
            height[above] = height[i] + 1
    return np.array(height, np.int64)


def make_schedule(parent: np.ndarray, shapes: list[FrontShape], class_of: np.ndarray) -> FrontSchedule:
    """Cut the levels of a tree into segments and give every front its place."""
    level = heights(parent)
    num_levels = int(level.max(initial=-1)) + 1
    counts = np.zeros((num_levels, len(shapes)), np.int64)
    np.add.at(counts, (level, class_of), 1)
    cost = np.array([shape.cost for shape in shapes])
    for waste, mixed in ((1.5, False), (1.5, True), (3.0, True), (6.0, True)):
        cuts = _cut_by_waste(counts, cost, waste, mixed)
        widths = [counts[a:b].max(0) for a, b in itertools.pairwise(cuts)]
        if sum(np.count_nonzero(w) for w in widths) <= MAX_BLOCKS:
            break
    else:
        cuts = _cut_by_width(counts)
        widths = [_mean_width(counts[a:b]) for a, b in itertools.pairwise(cuts)]

    # Rank of every front among those of its level and class.
    order = np.lexsort((np.arange(len(parent)), class_of, level))
    key = level[order] * len(shapes) + class_of[order]
    first = np.searchsorted(key, key)
    rank = np.empty(len(parent), np.int64)
    rank[order] = np.arange(len(parent)) - first

    segments: list[FrontSegment] = []
    block_of = np.zeros(len(parent), np.int64)
    lane_of = np.zeros(len(parent), np.int64)
    num_blocks = 0
    for (a, b), width in zip(itertools.pairwise(cuts), widths, strict=True):
        per_level = -(-counts[a:b] // np.maximum(width, 1))
        steps_of_level = per_level.max(1)
        begin = np.concatenate([[0], np.cumsum(steps_of_level)])
        mine = np.flatnonzero((level >= a) & (level < b))
        step = begin[level[mine] - a] + rank[mine] // width[class_of[mine]]
        lane_of[mine] = step * width[class_of[mine]] + rank[mine] % width[class_of[mine]]
        blocks = []
        for c in np.flatnonzero(width).tolist():
            block_of[mine[class_of[mine] == c]] = num_blocks
            always = bool(np.all(per_level[:, c] == steps_of_level))
            blocks.append(FrontBlock(shapes[c], int(width[c]), always))
            num_blocks += 1
        segments.append(FrontSegment(int(begin[-1]), tuple(blocks)))
    return FrontSchedule(tuple(segments), block_of, lane_of)


def _cut_by_waste(counts: np.ndarray, cost: np.ndarray, waste: float, mixed: bool) -> list[int]:
    """Extend each segment while padding to its widest level costs less than `waste` times the work.

    Unless `mixed`, all levels of a segment have the same classes.
    """
    present = counts > 0
    work = counts @ cost + STEP_OVERHEAD
    cuts = [0]
    width, levels, true = np.zeros(len(cost), np.int64), np.zeros(len(cost), np.int64), 0.0
    for i in range(len(counts)):
        wider, more = np.maximum(width, counts[i]), levels + present[i]
        padded = float((wider * more) @ cost) + STEP_OVERHEAD * (i + 1 - cuts[-1])
        differs = not mixed and i > 0 and not np.array_equal(present[i], present[i - 1])
        if i > cuts[-1] and (differs or padded > waste * (true + work[i]) + _CHEAP):
            cuts.append(i)
            wider, more, true = counts[i], present[i].astype(np.int64), 0.0
        width, levels, true = wider, more, true + work[i]
    return [*cuts, len(counts)]


def _cut_by_width(counts: np.ndarray) -> list[int]:
    """Cut where the number of fronts in a level passes a power of 16; it never grows towards the root."""
    power = np.ceil(np.log2(counts.sum(1)) / 4)
    return [0, *(np.flatnonzero(np.diff(power)) + 1).tolist(), len(counts)]


def _mean_width(counts: np.ndarray) -> np.ndarray:
    """Mean number of fronts of each class over the levels that have any."""
    return -(-counts.sum(0) // np.maximum((counts > 0).sum(0), 1))
