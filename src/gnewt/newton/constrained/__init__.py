"""Minimisation under constraints: a filter line-search interior point on the augmented graph."""

from gnewt.newton.constrained.forms import Constraint, between, equal
from gnewt.newton.constrained.kkt import KKTFactor
from gnewt.newton.constrained.modes import Record as ConstrainedRecord
from gnewt.newton.constrained.run import MAX_STEPS
from gnewt.newton.constrained.solve import ConstrainedOptions, is_constrained, minimize_constrained
from gnewt.newton.constrained.warm import Warm

__all__ = [
    "MAX_STEPS",
    "ConstrainedOptions",
    "ConstrainedRecord",
    "Constraint",
    "KKTFactor",
    "Warm",
    "between",
    "equal",
    "is_constrained",
    "minimize_constrained",
]
