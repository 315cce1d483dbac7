"""Every program: value, gradient and H·v of the lifted system equal those of f, and no pattern hides a nonzero."""

import numpy as np
import pytest

from gnewt.trace import trace_graph
from helpers.lifted_oracle import errors
from helpers.trace_programs import PROGRAMS
from helpers.unusual_programs import UNUSUAL


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program_is_exact(name):
    f, args, *rest = PROGRAMS[name]()
    argnums = rest[0] if rest else 0
    graph = trace_graph(f, *args, argnums=argnums)
    tolerance = 2e-4 if graph.dtype == np.float32 or name == "mixed_precision" else 1e-11
    value, grad, hvp = errors(graph, f, args, argnums, jit="unrolled" not in name)
    assert value <= tolerance
    assert grad <= tolerance
    assert hvp <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", list(UNUSUAL))
def test_unusual_program_is_exact(name):
    f, args = UNUSUAL[name]()
    graph = trace_graph(f, *args)
    assert max(errors(graph, f, args, jit=False)) <= 1e-11
