"""A tree of fronts made small enough to be drawn: runs of equal fronts become one, and so do equal leaves."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np

from gnewt.graph import Plan

MOST_NODES = 1200


@dataclasses.dataclass
class DrawnFront:
    """One or many fronts, drawn as one."""

    front: int
    """The widest of them."""
    count: int
    parent: int
    """Position in the list of drawn fronts; -1 for a root."""
    last: int
    """The front of them that comes last."""


def condense_tree(plan: Plan, key: np.ndarray) -> list[DrawnFront]:
    """Return what is drawn of a tree, parents behind their children.

    Args:
        key: one number for each front, equal where fronts look alike.
    """
    drawn = _join(plan, key)
    if len(drawn) > MOST_NODES:
        drawn = _join(plan, np.zeros_like(key))
    return drawn if len(drawn) <= MOST_NODES else _cut(drawn)


def _join(plan: Plan, key: np.ndarray) -> list[DrawnFront]:
    """Join a front with the one below it if they look alike, leaves of the same kind left aside."""
    num, parent, keys = plan.num_fronts, plan.parent.tolist(), key.tolist()
    size = (np.diff(plan.elim_ptr) + np.diff(plan.sep_ptr)).tolist()
    children: list[list[int]] = [[] for _ in range(num)]
    for i, p in enumerate(parent):
        if p >= 0:
            children[p].append(i)
    node = [-1] * num
    drawn: list[DrawnFront] = []
    leaves: dict[tuple[int, int], int] = {}
    """(drawn parent, key) of leaves that were drawn."""
    looks: list[tuple[int, frozenset[int]]] = []
    for i in range(num):
        inner = [c for c in children[i] if children[c]]
        look = (keys[i], frozenset(keys[c] for c in children[i] if not children[c]))
        if len(inner) == 1 and looks[inner[0]] == look and node[inner[0]] >= 0:
            node[i] = node[inner[0]]
            own = drawn[node[i]]
            own.count, own.last = own.count + 1, i
            own.front = i if size[i] > size[own.front] else own.front
        elif children[i] or parent[i] < 0:
            node[i] = len(drawn)
            drawn.append(DrawnFront(i, 1, -1, i))
        looks.append(look)
    for own in list(drawn):
        own.parent = node[parent[own.last]] if parent[own.last] >= 0 else -1
    for i in range(num):
        if node[i] >= 0:
            continue
        above = (node[parent[i]], keys[i])
        if above in leaves:
            drawn[leaves[above]].count += 1
        else:
            leaves[above] = len(drawn)
            drawn.append(DrawnFront(i, 1, above[0], i))
    return drawn


def _cut(drawn: list[DrawnFront]) -> list[DrawnFront]:
    """Keep what is next to the roots; below it, one mark for all that was left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for i, own in enumerate(drawn):
        children[own.parent].append(i)
    queue, kept = list(children[-1]), dict[int, int]()
    for i in queue:
        if len(kept) >= MOST_NODES:
            break
        kept[i] = len(kept)
        queue.extend(children[i])
    result = [dataclasses.replace(drawn[i], parent=kept.get(drawn[i].parent, -1)) for i in kept]
    total = sum(own.count for own in drawn)
    result[-1].count += total - sum(own.count for own in result)
    return result
