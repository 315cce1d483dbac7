"""What a plan costs, before anything runs."""

from __future__ import annotations

import numpy as np

from gnewt.graph import Certificate, Structure
from gnewt.plan.sparsity import KKTGraph
from gnewt.plan.tree import TreeDecomposition, sum_rows

FRONT_OVERHEAD = 64.0
"""Flops that one more front is worth. Small on purpose: small fronts can be merged, wide ones cannot be split."""
DUAL_PENALTY = 3.3
"""Fronts that store duals were measured 3.3-5.5 times slower than substitution of pairs (engine notes)."""

MESSAGE_ENTRY = 32.0
"""Flops that one entry of a message from a front to the next is worth: 690 ps against 21 ps; where there are duals, 3 ns
against 37 ps (plan/merge.py)."""

LEVEL_OVERHEAD = 1e8
"""Flops that one more level of the tree is worth on a device that runs the fronts of a level side by side: a level costs
some 40 launches of 3-5 µs there, at about 10¹² flops per second."""


def certify(structure: Structure, graph: KKTGraph, tree: TreeDecomposition) -> Certificate:
    """Σ|ι||χ|² and friends over the bags of a tree whose items are x_v (2v) and λ_v (2v + 1)."""
    vertex, kept = tree.frontal_idx // 2, tree.separator_idx // 2
    frontal = sum_rows(tree.frontal_ptr, graph.sizes[vertex]).astype(np.float64)
    separator = sum_rows(tree.separator_ptr, graph.sizes[kept]).astype(np.float64)
    iota = sum_rows(tree.frontal_ptr, graph.sizes[vertex] * (tree.frontal_idx % 2 == 0))
    # A separator may hold both x_v and λ_v, one after the other: v counts once.
    again = np.zeros(len(kept), bool)
    again[1:] = kept[1:] == kept[:-1]
    again[tree.separator_ptr[:-1][np.diff(tree.separator_ptr) > 0]] = False
    chi = iota + sum_rows(tree.separator_ptr, graph.sizes[kept] * ~again)
    iota, chi = iota.astype(np.float64), chi.astype(np.float64)
    n = float(structure.num_inputs)
    return Certificate(
        width=int(chi.max(initial=1.0)) - 1,
        num_fronts=tree.num_bags,
        flops=float(np.sum(iota * chi**2)),
        bytes=8.0 * (float(np.sum(frontal * (frontal + separator))) + _peak_stack(tree.parent, separator)),
        dense_flops=n**3 / 3,
        dense_bytes=8 * n**2,
    )


def expected_cost(certificate: Certificate, causal: bool) -> float:
    """One number by which plans are compared: flops, weighted by how well they run, and front overhead."""
    return certificate.flops * (1.0 if causal else DUAL_PENALTY) + FRONT_OVERHEAD * certificate.num_fronts


def message_cost(graph: KKTGraph, tree: TreeDecomposition, causal: bool) -> float:
    """Return what the messages between the fronts of a merged tree cost, in flops. `expected_cost` does not know them:
    before merging there are many that vanish.
    """
    separator = sum_rows(tree.separator_ptr, graph.sizes[tree.separator_idx // 2])
    entries = float(np.sum(separator.astype(np.float64) ** 2))
    return MESSAGE_ENTRY * entries * (1.0 if causal else DUAL_PENALTY)


def parallel_cost(certificate: Certificate, tree: TreeDecomposition, causal: bool) -> float:
    """The same for a device that runs the fronts of a level side by side."""
    height = [1] * tree.num_bags
    for i, above in enumerate(tree.parent.tolist()):
        if above >= 0:
            height[above] = max(height[above], height[i] + 1)
    return expected_cost(certificate, causal) + LEVEL_OVERHEAD * max(height, default=0)


def _peak_stack(parent: np.ndarray, separator: np.ndarray) -> float:
    """Largest number of doubles held by Schur complements that wait for their parents (postorder)."""
    size = separator**2
    inner = parent >= 0
    read = np.bincount(parent[inner], weights=size[inner], minlength=len(parent))  # by the parent
    held = np.cumsum(np.where(inner, size, 0.0) - read)
    before = np.concatenate([[0.0], held[:-1]])
    return float((before + size).max(initial=0.0))
