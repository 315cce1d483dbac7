"""Fewer, larger fronts: paths of the tree whose fronts are small become one front each.

A plan eliminates each vertex in a front of its own unless fronts coincide. That is best for an engine that walks front
by front; here every level of the tree costs a round of operations, so that some flops are a fair price for fewer levels.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt.graph import Plan
from gnewt.kkt.engines.xla.schedule import front_cost

LEVEL_SAVED = 1e3
"""Flops that one level less is worth."""


def merge_fronts(plan: Plan) -> Plan:
    """Return the same elimination with only children merged into their parents where that is cheap."""
    group = _groups(plan)
    if group[-1:].tolist() == [plan.num_fronts - 1] or plan.num_fronts == 0:
        return plan
    num = int(group.max()) + 1
    top = np.zeros(num, np.int64)
    top[group] = np.arange(plan.num_fronts)  # the last member, because fronts are in postorder

    of_elim = group[np.repeat(np.arange(plan.num_fronts), np.diff(plan.elim_ptr))]
    order = np.argsort(of_elim, kind="stable")
    elim_idx, elim_ptr = plan.elim_idx[order], _pointers(of_elim, num)
    sep_size = np.diff(plan.sep_ptr)[top]
    sep_ptr = np.concatenate([[0], np.cumsum(sep_size)])
    of_sep = np.repeat(np.arange(num), sep_size)
    sep_idx = plan.sep_idx[np.arange(len(of_sep)) - sep_ptr[of_sep] + plan.sep_ptr[top][of_sep]]
    parent = np.where(plan.parent[top] >= 0, group[plan.parent[top]], -1)

    home, place = np.empty(plan.num_unknowns, np.int64), np.empty(plan.num_unknowns, np.int64)
    home[elim_idx] = of_elim[order]
    place[elim_idx] = np.arange(len(elim_idx)) - elim_ptr[of_elim[order]]
    key = of_sep * plan.num_unknowns + sep_idx
    sorted_at = np.argsort(key, kind="stable")
    size = np.diff(elim_ptr)

    def locate(front: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Local coordinates of unknowns in merged fronts that hold them."""
        out = place[unknown].copy()
        beyond = home[unknown] != front
        found = np.searchsorted(key, front[beyond] * plan.num_unknowns + unknown[beyond], sorter=sorted_at)
        out[beyond] = size[front[beyond]] + sorted_at[found] - sep_ptr[front[beyond]]
        return out

    old = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    row, col = (locate(group[old], _unknowns(plan, old, at)) for at in (plan.entry_row, plan.entry_col))
    entry_order = np.argsort(group[old], kind="stable")
    moved = np.empty(plan.num_entries, np.int64)
    moved[entry_order] = np.arange(plan.num_entries)
    return dataclasses.replace(
        plan,
        parent=parent,
        elim_ptr=elim_ptr,
        elim_idx=elim_idx,
        sep_ptr=sep_ptr,
        sep_idx=sep_idx,
        sep_pos=locate(parent[of_sep], sep_idx),
        entry_ptr=_pointers(group[old], num),
        entry_row=np.maximum(row, col)[entry_order],
        entry_col=np.minimum(row, col)[entry_order],
        target=moved[plan.target],
        pair_entry=moved[plan.pair_entry],
        input_entry=moved[plan.input_entry],
    )


def _groups(plan: Plan) -> np.ndarray:
    """Number of the merged front of every front, in postorder of the tops."""
    num = plan.num_fronts
    front = np.repeat(np.arange(num), np.diff(plan.elim_ptr))
    inputs = np.bincount(front[plan.elim_idx < plan.num_inputs], minlength=num)
    duals = np.bincount(front[plan.elim_idx >= plan.num_slots], minlength=num)
    touched = np.zeros(plan.num_unknowns, bool)
    touched[plan.sep_idx] = True
    others = np.bincount(front[(plan.elim_idx >= plan.num_slots) & touched[plan.elim_idx]], minlength=num)
    sizes = np.stack([duals - others, others, inputs, np.diff(plan.sep_ptr)], axis=1)
    cost = front_cost(*sizes.T).tolist()
    rows = sizes.tolist()
    parent = plan.parent.tolist()
    children = np.bincount(plan.parent[plan.parent >= 0], minlength=num).tolist()
    last = list(range(num))  # the top of every front's group
    for i, up in enumerate(parent):
        if up < 0 or children[up] != 1:
            continue
        joined = [a + b for a, b in zip(rows[i][:3], rows[up][:3], strict=True)] + [rows[up][3]]
        price = front_cost(*joined)
        if price <= cost[i] + cost[up] + LEVEL_SAVED:
            rows[up], cost[up] = joined, price
            last[i] = up
    for i in range(num - 1, -1, -1):
        last[i] = last[last[i]]
    return np.ravel(np.unique(np.array(last, np.int64), return_inverse=True)[1])


def _unknowns(plan: Plan, front: np.ndarray, local: np.ndarray) -> np.ndarray:
    """Unknowns at local coordinates of fronts."""
    count = np.diff(plan.elim_ptr)[front]
    eliminated = local < count
    out = np.empty(len(front), np.int64)
    out[eliminated] = plan.elim_idx[(plan.elim_ptr[front] + local)[eliminated]]
    out[~eliminated] = plan.sep_idx[(plan.sep_ptr[front] + local - count)[~eliminated]]
    return out


def _pointers(front: np.ndarray, num: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(front, minlength=num))]).astype(np.int64)
