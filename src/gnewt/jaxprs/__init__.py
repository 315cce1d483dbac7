"""jaxprs: JAX's programs as plain data. The layer below `graph`, `trace` and `kkt`.

In: a closed jaxpr. Out: a flat `Program` (`flatten`), its key (`keys`), what its variables need (`liveness`), its
values (`replay`). What is known about each primitive stands in one table (`primitives`).
"""

from gnewt.jaxprs.flatten import (
    effectful,
    flatten_jaxpr,
    has_branches,
    primitives_of,
    trace_jaxpr,
)
from gnewt.jaxprs.keys import literal_key, program_key, same_operand, value_key
from gnewt.jaxprs.numpy_run import NumpyProgram, as_known, count_operations, count_trips, fold_program
from gnewt.jaxprs.plain import is_check, plain_jaxpr
from gnewt.jaxprs.program import (
    Instr,
    Lit,
    Operand,
    Program,
    is_float,
    shape_of,
    size_of,
    variables,
    where_of,
)
from gnewt.jaxprs.replay import bind_instr, bind_scalars, run_program
from gnewt.jaxprs.specs import ScanSpec, WhileSpec, scan_spec, while_spec
from gnewt.jaxprs.sweep import sweep_derivatives

__all__ = [
    "Instr",
    "Lit",
    "NumpyProgram",
    "Operand",
    "Program",
    "ScanSpec",
    "WhileSpec",
    "as_known",
    "bind_instr",
    "bind_scalars",
    "count_operations",
    "count_trips",
    "effectful",
    "flatten_jaxpr",
    "fold_program",
    "has_branches",
    "is_check",
    "is_float",
    "literal_key",
    "plain_jaxpr",
    "primitives_of",
    "program_key",
    "run_program",
    "same_operand",
    "scan_spec",
    "shape_of",
    "size_of",
    "sweep_derivatives",
    "trace_jaxpr",
    "value_key",
    "variables",
    "where_of",
    "while_spec",
]
