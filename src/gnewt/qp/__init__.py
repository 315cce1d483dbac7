"""Graphical QP (Algorithm 2, corrected by E1–E6): quadratic programs on hypergraphs, solved along a tree.

    min Σ_e ½ x_eᵀ Q_e x_e − b_eᵀ x_e   subject to   G_e x_e = h_e

problem → (plan: tree) → gather (front by front) → scatter → refine. Reads from `hyperedge` (what the user
writes) over `problem`, `front` (the mathematics of one bag), `gather` (the sweeps) to `solver`.

With lower_e ≤ C_e x_e ≤ upper_e and bounds, and inside jit: problem → `saddle` (K on the engines) → `interior` → `limited`.
"""

from gnewt.qp.hyperedge import Hyperedge
from gnewt.qp.solver import QPResult, solve_qp

__all__ = ["Hyperedge", "QPResult", "solve_qp"]
