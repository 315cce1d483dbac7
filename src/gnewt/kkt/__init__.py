"""Plan + x ↦ factor: linearisation (once per iterate) and elimination (once per shift)."""

from gnewt.kkt.linearize import CURVATURES, LocalModels, first_nonfinite, linearize
from gnewt.kkt.native import NativeFactor, factorize_native
from gnewt.kkt.product import lifted_product
from gnewt.kkt.reference import ReferenceFactor, factorize

__all__ = [
    "CURVATURES",
    "LocalModels",
    "NativeFactor",
    "ReferenceFactor",
    "factorize",
    "factorize_native",
    "first_nonfinite",
    "lifted_product",
    "linearize",
]
