"""Trace: any JAX function of any pytree becomes a Structure."""

from gnewt.trace.cache import clear_cache
from gnewt.trace.entry import Found
from gnewt.trace.function import TracedFunction, trace_function, trace_graph

__all__ = ["Found", "TracedFunction", "clear_cache", "trace_function", "trace_graph"]
