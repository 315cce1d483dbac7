"""Plan + x ↦ factor: linearisation (once per iterate) and elimination (once per shift)."""

from gnewt.kkt.causal import CausalOrder, causal_order
from gnewt.kkt.causal_blocks import DUALS, Numbers, Swept, Values, hessian_blocks, jacobian_blocks
from gnewt.kkt.causal_path import PathWalk, path_walk
from gnewt.kkt.causal_root import eliminate_roots
from gnewt.kkt.causal_serial import SerialWalk
from gnewt.kkt.elimination import NONFINITE, OK, SINGULAR, STATUSES, Elimination
from gnewt.kkt.engine import ENGINES, Prepared, choose_engine, prepare
from gnewt.kkt.linearize import CURVATURES, LocalModels, first_nonfinite, linearize
from gnewt.kkt.native import NativeFactor, factorize_native
from gnewt.kkt.product import lifted_product
from gnewt.kkt.reference import ReferenceFactor, factorize

__all__ = [
    "CURVATURES",
    "DUALS",
    "ENGINES",
    "NONFINITE",
    "OK",
    "SINGULAR",
    "STATUSES",
    "CausalOrder",
    "Elimination",
    "LocalModels",
    "NativeFactor",
    "Numbers",
    "PathWalk",
    "Prepared",
    "ReferenceFactor",
    "SerialWalk",
    "Swept",
    "Values",
    "causal_order",
    "choose_engine",
    "eliminate_roots",
    "factorize",
    "factorize_native",
    "first_nonfinite",
    "hessian_blocks",
    "jacobian_blocks",
    "lifted_product",
    "linearize",
    "path_walk",
    "prepare",
]
