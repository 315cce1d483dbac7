"""The programs of docs/constraints.md run and do what the text says."""

import pathlib
import re

import jax.numpy as jnp
import numpy as np

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "constraints.md"


def test_the_programs_of_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    space = {"__name__": "constraints"}
    exec(compile("\n".join(blocks), str(PAGE), "exec", dont_inherit=True), space)
    res, warm, lifted = space["res"], space["warm"], space["lifted"]
    assert res.success and warm.success and lifted.success
    assert res.multipliers["disc"] > 0 and bool(res.active["disc"])
    assert np.allclose(space["dx"][0] - space["dx"][1], 1, atol=1e-6)
    assert warm.num_steps <= 5 < res.num_steps
    assert np.allclose(jnp.sum(space["many"], 1), [0, 0.5, 1, 2], atol=1e-6)
    assert lifted.gap < 1e-8 and np.allclose(lifted.outputs["states"][-1], 0, atol=1e-6)
    assert np.max(np.abs(lifted.x)) <= 1


def test_all_statuses_are_on_the_page():
    from gnewt.newton import STATUSES

    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{status}`" in text for status in STATUSES if status != "running")
