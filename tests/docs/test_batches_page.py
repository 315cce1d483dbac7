"""The programs of docs/batches.md run; what they say is asserted there."""

import pathlib
import re

import numpy as np
import pytest

import gnewt

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "batches.md"


@pytest.mark.slow
def test_the_programs_of_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    space = {"__name__": "batches"}
    exec(compile("\n".join(blocks), str(PAGE), "exec", dont_inherit=True), space)
    problem, plan = space["problem"], space["plan"]
    alone = gnewt.control.solve(
        problem.replace(x0=space["starts"][5], params=space["lengths"][5]), np.zeros((20, 1))
    )
    assert np.allclose(space["controls"][5], alone.us[0], atol=1e-3)
    assert np.allclose(plan(space["starts"][5], space["lengths"][5]), space["controls"][5], atol=1e-9)
