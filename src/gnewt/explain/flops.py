"""What one elimination computes, counted from the fronts of a plan, and what its rivals compute for the same step.

Additions, multiplications and divisions count one each. Local derivatives are given to all of them, so that they count
for none. A front of a causal plan with p pairs, q inputs and a separator of b slots (n = q + b) costs

    unfolding      2 n    for each pair that reads another pair of the front
    substitution   2 p² n + p n (n + 1) + 3 p n      W = PP·F, R += FᵀW by the upper half, magnitudes for the tests
    cross terms    p m + p m (m + 1)                 m columns in which a Hessian couples pairs with the rest
    LDLᵀ           Σ m (m + 2), m = n - 1, …, n - q  the upper half of what is left
    message        b (b + 1) / 2                     added in the parent

and 4 p n + 4 q n for one right-hand side. In a free plan all unknowns of a front are eliminated by LDLᵀ.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt.graph import Plan, Structure


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one way of computing the Newton step takes."""

    method: str
    flops: float
    """Additions, multiplications and divisions of one step; NaN where they were not counted."""
    bytes: float
    note: str
    ms: float | None = None
    """Measured milliseconds of one compiled step, where they were asked for."""


def count_fronts(plan: Plan) -> np.ndarray:
    """Count the flops of every front: elimination, message and one right-hand side."""
    num = plan.num_fronts
    elim = np.diff(plan.elim_ptr).astype(np.float64)
    b = np.diff(plan.sep_ptr).astype(np.float64)
    message = b * (b + 1) / 2
    if not plan.causal:
        n = elim + b
        return ldl_flops(n, elim) + message + 4 * elim * n
    front = np.repeat(np.arange(num), np.diff(plan.elim_ptr))
    is_pair = (plan.elim_idx >= plan.num_inputs) & (plan.elim_idx < plan.num_slots)
    p = np.bincount(front, is_pair, num)
    q = elim - 2 * p
    n = q + b
    m = np.maximum(n - _first_cross_column(plan, p, elim), 0.0)
    substitution = 2 * p**2 * n + p * n * (n + 1) + 3 * p * n + p * m * (m + 2)
    unfolding = 2 * n * _nested_reads(plan)
    return substitution + unfolding + ldl_flops(n, q) + message + 4 * (p + q) * n


def count_flops(plan: Plan) -> float:
    """Count the flops of one elimination along the plan, with one right-hand side."""
    return float(count_fronts(plan).sum())


def ldl_flops(n: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Σ m (m + 2) over m = n - 1, …, n - q: q rows of an upper half of n rows."""

    def upto(k: np.ndarray) -> np.ndarray:  # Σ m (m + 2), m = 1 … k
        return k * (k + 1) * (2 * k + 1) / 6 + k * (k + 1)

    return upto(n - 1) - upto(n - q - 1)


def _nested_reads(plan: Plan) -> np.ndarray:
    """For each front, the Jacobian entries by which one of its pairs reads another."""
    row, col = plan.entry_unknowns
    dual, slot = np.maximum(row, col), np.minimum(row, col)
    front = plan.front_of_entry
    of_unknown = np.empty(plan.num_unknowns, np.int64)
    of_unknown[plan.elim_idx] = np.repeat(np.arange(plan.num_fronts), np.diff(plan.elim_ptr))
    inside = (dual >= plan.num_slots) & (slot >= plan.num_inputs) & (of_unknown[slot] == front)
    own = plan.slot_of_unknown(dual) == slot
    return np.bincount(front[inside & (of_unknown[dual] == front) & ~own], minlength=plan.num_fronts).astype(
        float
    )


def _first_cross_column(plan: Plan, p: np.ndarray, elim: np.ndarray) -> np.ndarray:
    """For each front, the first column of [inputs | separator] that a Hessian or a message couples with a pair."""
    first = np.full(plan.num_fronts, np.inf)
    front = plan.front_of_entry
    column = plan.entry_row - 2 * p[front]
    row, col = plan.entry_unknowns
    # Rows of pairs come first, so that a coupling with another unknown has it as its row.
    coupled = (column >= 0) & (col >= plan.num_inputs) & (col < plan.num_slots) & (row < plan.num_slots)
    coupled &= plan.entry_col < p[front]
    np.minimum.at(first, front[coupled], column[coupled])
    # A message couples all its unknowns: one that holds both kinds fills the columns from its first other unknown on.
    child = np.repeat(np.arange(plan.num_fronts), np.diff(plan.sep_ptr))
    parent = plan.parent[child]
    on_pair = plan.sep_pos < p[parent]
    holds_pairs = np.bincount(child, on_pair, plan.num_fronts) > 0
    other = ~on_pair & holds_pairs[child]
    np.minimum.at(first, parent[other], plan.sep_pos[other] - 2 * p[parent[other]])
    return np.where(np.isinf(first), elim + np.diff(plan.sep_ptr), first)


def count_product(structure: Structure) -> float:
    """Flops of one product H·v along the graph: forward by J, local Hessians, back by Jᵀ."""
    total = 0.0
    for family in structure.families:
        jacobian = 0 if family.is_loss else int(family.jac_pattern.sum())
        total += family.n * (4.0 * jacobian + 2.0 * int(family.hess_pattern.sum()))
    return total


def dense_cost(structure: Structure) -> Cost:
    """H by N products with unit vectors, its Cholesky factorisation, one solve."""
    n = float(structure.num_inputs)
    flops = n * count_product(structure) + n**3 / 3 + 2 * n**2
    return Cost("dense Hessian", flops, 8 * n**2, "N products with H, then N³/3")


def krylov_cost(structure: Structure, tree_flops: float) -> Cost:
    """One iteration of conjugate gradients: a product with H, and five vectors."""
    flops = count_product(structure) + 10.0 * structure.num_inputs
    worth = tree_flops / max(flops, 1.0)
    note = (
        f"one iteration; a step along the tree costs {worth:.3g} of them. Needs H positive definite, "
        "and its number of iterations is not known beforehand"
    )
    return Cost("CG", flops, 8.0 * (5 * structure.num_inputs + structure.num_slots), note)
