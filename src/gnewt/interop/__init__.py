"""gnewt in other people's libraries: thin entries, each of which imports its library when it is first asked for.

scipy.optimize.minimize(f, x0, method=gnewt.interop.scipy_newton)
optimistix.minimise(f, gnewt.interop.OptimistixNewton(), y0, args)
lineax.linear_solve(gnewt.interop.lineax_operator(F), b, gnewt.interop.LineaxFactor(F))
blackjax.nuts(log_density, **gnewt.interop.sampler_start(laplace, key).nuts)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnewt.interop.samplers import SamplerStart, sampler_start
from gnewt.interop.scipy import scipy_newton

if TYPE_CHECKING:
    from gnewt.interop.lineax import LineaxFactor, lineax_operator
    from gnewt.interop.optimistix import OptimistixNewton

__all__ = [
    "LineaxFactor",
    "OptimistixNewton",
    "SamplerStart",
    "lineax_operator",
    "sampler_start",
    "scipy_newton",
]
_HOMES = {
    "LineaxFactor": "gnewt.interop.lineax",
    "OptimistixNewton": "gnewt.interop.optimistix",
    "lineax_operator": "gnewt.interop.lineax",
}
"""Classes that are made of classes of other libraries, which need not be there."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
