"""gnewt: exact Newton steps at the cost of the computational graph."""

from gnewt import control, newton, plan, qp, trace
from gnewt._errors import (
    AccuracyWarning,
    GnewtError,
    GraphError,
    InternalError,
    PerformanceNotice,
    PlanError,
    QPError,
    StepError,
    TraceError,
)
from gnewt._version import __version__
from gnewt.explain import Report, explain
from gnewt.graph import Graph
from gnewt.newton import Factor, Result, StepInfo, factorize, minimize, newton_step
from gnewt.trace import trace_graph

__all__ = [
    "AccuracyWarning",
    "Factor",
    "GnewtError",
    "Graph",
    "GraphError",
    "InternalError",
    "PerformanceNotice",
    "PlanError",
    "QPError",
    "Report",
    "Result",
    "StepError",
    "StepInfo",
    "TraceError",
    "__version__",
    "control",
    "explain",
    "factorize",
    "minimize",
    "newton",
    "newton_step",
    "plan",
    "qp",
    "trace",
    "trace_graph",
]
