"""Trace: any JAX function of any pytree becomes a Structure."""

from gnewt.trace.cache import clear_cache
from gnewt.trace.entry import Entry, Found, Replay
from gnewt.trace.function import TracedFunction, trace_function, trace_graph
from gnewt.trace.lift import LOOPS, Distrust

__all__ = [
    "LOOPS",
    "Distrust",
    "Entry",
    "Found",
    "Replay",
    "TracedFunction",
    "clear_cache",
    "trace_function",
    "trace_graph",
]
