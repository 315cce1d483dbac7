"""The programs of docs/batches.md run; what they say is asserted there."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "batches.md"


@pytest.mark.slow
def test_the_programs_of_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    space = {"__name__": "batches"}
    exec(compile("\n".join(blocks), str(PAGE), "exec", dont_inherit=True), space)
    assert space["res"].success.all()
