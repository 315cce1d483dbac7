"""The Newton step and the loop around it."""

from gnewt.newton.factor import Factor, Inertia
from gnewt.newton.minimize import minimize
from gnewt.newton.objective import Objective, Point
from gnewt.newton.result import Record, Result
from gnewt.newton.step import StepInfo, describe, factorize, newton_step
from gnewt.newton.system import System, system_of

__all__ = [
    "Factor",
    "Inertia",
    "Objective",
    "Point",
    "Record",
    "Result",
    "StepInfo",
    "System",
    "describe",
    "factorize",
    "minimize",
    "newton_step",
    "system_of",
]
