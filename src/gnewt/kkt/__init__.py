"""Plan + x ↦ factor: linearisation (once per iterate) and elimination (once per shift)."""

from gnewt.kkt.causal.blocks import DUALS, CausalModels, local_blocks
from gnewt.kkt.causal.front import FoundPolicies, HessianAlgebra, RootAlgebra
from gnewt.kkt.causal.order import CausalOrder, causal_order
from gnewt.kkt.causal.path import PathWalk, path_walk
from gnewt.kkt.causal.serial import SerialWalk
from gnewt.kkt.derivatives.linearize import CURVATURES, LocalModels, first_nonfinite, linearize
from gnewt.kkt.derivatives.paths import rounds_at_once
from gnewt.kkt.derivatives.product import lifted_product
from gnewt.kkt.engines.choose import ENGINES, Prepared, choose_engine, prepare, unknown_engine
from gnewt.kkt.engines.elimination import NONFINITE, OK, SINGULAR, STATUSES, Elimination, EliminationStatus
from gnewt.kkt.engines.reference.engine import ReferenceFactor, factorize
from gnewt.kkt.engines.sensitive import Sensitive, prepare_sensitive

__all__ = [
    "CURVATURES",
    "DUALS",
    "ENGINES",
    "NONFINITE",
    "OK",
    "SINGULAR",
    "STATUSES",
    "CausalModels",
    "CausalOrder",
    "Elimination",
    "EliminationStatus",
    "FoundPolicies",
    "HessianAlgebra",
    "LocalModels",
    "PathWalk",
    "Prepared",
    "ReferenceFactor",
    "RootAlgebra",
    "Sensitive",
    "SerialWalk",
    "causal_order",
    "choose_engine",
    "factorize",
    "first_nonfinite",
    "lifted_product",
    "linearize",
    "local_blocks",
    "path_walk",
    "prepare",
    "prepare_sensitive",
    "rounds_at_once",
    "unknown_engine",
]
