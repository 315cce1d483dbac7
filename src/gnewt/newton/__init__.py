"""The Newton step and the loop around it."""

from gnewt.newton.causal import causal_elimination
from gnewt.newton.check import self_check
from gnewt.newton.factor import Factor, Inertia
from gnewt.newton.line_search import LineSearch
from gnewt.newton.loop import STATUSES, Record, run
from gnewt.newton.loop import Problem as Task
from gnewt.newton.minimize import minimize
from gnewt.newton.objective import Objective, Point
from gnewt.newton.policy import Policy, Rule, RuleGroup, make_policy
from gnewt.newton.progress import Progress
from gnewt.newton.result import Result
from gnewt.newton.rollout import Rollout, choose_search
from gnewt.newton.step import STEP_STATUSES, StepInfo, describe, factorize, newton_step
from gnewt.newton.system import System, on_device, system_of
from gnewt.newton.trust_region import TrustRegion

__all__ = [
    "STATUSES",
    "STEP_STATUSES",
    "Factor",
    "Inertia",
    "LineSearch",
    "Objective",
    "Point",
    "Policy",
    "Progress",
    "Record",
    "Result",
    "Rollout",
    "Rule",
    "RuleGroup",
    "StepInfo",
    "System",
    "Task",
    "TrustRegion",
    "causal_elimination",
    "choose_search",
    "describe",
    "factorize",
    "make_policy",
    "minimize",
    "newton_step",
    "on_device",
    "run",
    "self_check",
    "system_of",
]
