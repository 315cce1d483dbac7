"""gnewt: exact Newton steps at the cost of the computational graph."""

from gnewt import newton, plan, qp, trace
from gnewt._errors import (
    AccuracyWarning,
    GnewtError,
    GraphError,
    InternalError,
    PlanError,
    QPError,
    StepError,
    TraceError,
)
from gnewt._version import __version__
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
    "PlanError",
    "QPError",
    "Result",
    "StepError",
    "StepInfo",
    "TraceError",
    "__version__",
    "factorize",
    "minimize",
    "newton",
    "newton_step",
    "plan",
    "qp",
    "trace",
    "trace_graph",
]
