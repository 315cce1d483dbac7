"""The Newton step and the loop around it.

Public are the searches, what a callback sees, results and statuses. Other folders import the rest from its module.
"""

from gnewt.kkt import EliminationStatus
from gnewt.newton.batch import BatchProgress, minimize_batch
from gnewt.newton.constrained import between, equal
from gnewt.newton.factor import Factor
from gnewt.newton.laplace import Laplace, laplace
from gnewt.newton.line_search import LineSearch
from gnewt.newton.loop import Record
from gnewt.newton.minimize import minimize
from gnewt.newton.numbers import Inertia
from gnewt.newton.policy import Policy, Rule
from gnewt.newton.progress import Progress
from gnewt.newton.result import Result
from gnewt.newton.rollout import Rollout
from gnewt.newton.statuses import STATUSES, STEP_STATUSES, Status, StepStatus
from gnewt.newton.step import StepInfo, factorize, newton_step
from gnewt.newton.trust_region import TrustRegion

__all__ = [
    "STATUSES",
    "STEP_STATUSES",
    "BatchProgress",
    "EliminationStatus",
    "Factor",
    "Inertia",
    "Laplace",
    "LineSearch",
    "Policy",
    "Progress",
    "Record",
    "Result",
    "Rollout",
    "Rule",
    "Status",
    "StepInfo",
    "StepStatus",
    "TrustRegion",
    "between",
    "equal",
    "factorize",
    "laplace",
    "minimize",
    "minimize_batch",
    "newton_step",
]
