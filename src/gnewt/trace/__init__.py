"""Trace: any JAX function of any pytree becomes a Structure."""

from gnewt.trace.entry import Found, Replay
from gnewt.trace.function import TracedFunction, trace_function, trace_graph

__all__ = ["Found", "Replay", "TracedFunction", "trace_function", "trace_graph"]
