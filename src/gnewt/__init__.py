"""gnewt: exact Newton steps at the cost of the computational graph."""

from gnewt import control, newton, plan, qp
from gnewt._errors import (
    AccuracyWarning,
    ConstraintError,
    CurvatureWarning,
    DerivativeError,
    EffectNotice,
    GnewtError,
    GraphError,
    InternalError,
    OptionError,
    PerformanceNotice,
    PlanError,
    QPError,
    StartNotice,
    StepError,
    TraceError,
    UncheckedWarning,
)
from gnewt._version import __version__
from gnewt.explain import Report, explain
from gnewt.graph import Graph, Handle, Structure
from gnewt.kkt import ENGINES
from gnewt.kkt.engines.native.engine import isa as native_isa
from gnewt.newton import (
    Factor,
    Laplace,
    Result,
    StepInfo,
    between,
    equal,
    factorize,
    laplace,
    minimize,
    minimize_batch,
    newton_step,
)
from gnewt.trace import clear_cache, trace_graph

__all__ = [
    "ENGINES",
    "AccuracyWarning",
    "ConstraintError",
    "CurvatureWarning",
    "DerivativeError",
    "EffectNotice",
    "Factor",
    "GnewtError",
    "Graph",
    "GraphError",
    "Handle",
    "InternalError",
    "Laplace",
    "OptionError",
    "PerformanceNotice",
    "PlanError",
    "QPError",
    "Report",
    "Result",
    "StartNotice",
    "StepError",
    "StepInfo",
    "Structure",
    "TraceError",
    "UncheckedWarning",
    "__version__",
    "between",
    "clear_cache",
    "control",
    "equal",
    "explain",
    "factorize",
    "laplace",
    "minimize",
    "minimize_batch",
    "native_isa",
    "newton",
    "newton_step",
    "plan",
    "qp",
    "trace_graph",
]
