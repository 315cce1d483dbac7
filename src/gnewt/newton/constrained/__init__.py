"""Minimisation under constraints: a filter line-search interior point on the augmented graph."""

from gnewt.newton.constrained.forms import Constraint, between, equal
from gnewt.newton.constrained.solve import ConstrainedOptions, is_constrained, minimize_constrained

__all__ = ["ConstrainedOptions", "Constraint", "between", "equal", "is_constrained", "minimize_constrained"]
