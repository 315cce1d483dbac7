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
    graph, step = namespace["g"], np.concatenate(namespace["step"])

    def flat(z):
        return graph(list(z[:, None]))

    grad, product = jax.jit(lambda d: jax.jvp(jax.grad(flat), (jnp.zeros_like(d),), (d,)))(jnp.asarray(step))
    assert jnp.linalg.norm(product + grad) <= 1e-10 * jnp.linalg.norm(grad)
    assert namespace["res"].success


def test_links_lead_somewhere():
    for page in (*_ROOT.glob("*.md"), *(_ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
