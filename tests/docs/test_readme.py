"""The example of the README runs and does what the text says."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

_ROOT = pathlib.Path(__file__).parents[2]


def test_example():
    blocks = re.findall(
        r"^```python\n(.*?)^```", (_ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S
    )
    namespace = {"__name__": "readme"}
    exec(compile("\n".join(blocks), "README.md", "exec", dont_inherit=True), namespace)
    cost, step = namespace["cost"], jnp.asarray(namespace["step"])
    grad, product = jax.jit(lambda d: jax.jvp(jax.grad(cost), (jnp.zeros_like(d),), (d,)))(step)
    assert jnp.linalg.norm(product + grad) <= 1e-10 * jnp.linalg.norm(grad)
    assert namespace["res"].success
    # The same objective, written twice: as a function and as a graph.
    assert np.allclose(np.concatenate(namespace["by_hand"]), step, rtol=1e-9, atol=1e-12)


def test_links_lead_somewhere():
    for page in (*_ROOT.glob("*.md"), *(_ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
