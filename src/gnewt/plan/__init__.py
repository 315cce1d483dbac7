"""Structure ↦ Plan: orderings, tree decompositions, cost. NumPy, integers; once per structure."""

from gnewt.graph import Certificate, Plan
from gnewt.plan.adjacency import Adjacency
from gnewt.plan.approximate import approximate_degree
from gnewt.plan.choose import ORDERS, make_plan
from gnewt.plan.dissection import nested_dissection
from gnewt.plan.orderings import Order, min_degree, min_fill
from gnewt.plan.sparsity import KKTGraph, kkt_graph
from gnewt.plan.tree import TreeDecomposition, check_tree, decompose

__all__ = [
    "ORDERS",
    "Adjacency",
    "Certificate",
    "KKTGraph",
    "Order",
    "Plan",
    "TreeDecomposition",
    "approximate_degree",
    "check_tree",
    "decompose",
    "kkt_graph",
    "make_plan",
    "min_degree",
    "min_fill",
    "nested_dissection",
]
