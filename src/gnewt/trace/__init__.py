"""Trace: any JAX function of any pytree becomes a Structure."""

from gnewt.trace.function import Found, TracedFunction, trace_function, trace_graph

__all__ = ["Found", "TracedFunction", "trace_function", "trace_graph"]
