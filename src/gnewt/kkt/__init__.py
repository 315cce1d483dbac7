"""Plan + x ↦ factor: linearisation (once per iterate) and elimination (once per shift)."""

from gnewt.kkt.engine import (
    ENGINES,
    NONFINITE,
    OK,
    SINGULAR,
    STATUSES,
    Elimination,
    Prepared,
    choose_engine,
    prepare,
)
from gnewt.kkt.linearize import CURVATURES, LocalModels, first_nonfinite, linearize
from gnewt.kkt.native import NativeFactor, factorize_native
from gnewt.kkt.product import lifted_product
from gnewt.kkt.reference import ReferenceFactor, factorize

__all__ = [
    "CURVATURES",
    "ENGINES",
    "NONFINITE",
    "OK",
    "SINGULAR",
    "STATUSES",
    "Elimination",
    "LocalModels",
    "NativeFactor",
    "Prepared",
    "ReferenceFactor",
    "choose_engine",
    "factorize",
    "factorize_native",
    "first_nonfinite",
    "lifted_product",
    "linearize",
    "prepare",
]
