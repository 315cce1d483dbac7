"""Draw docs/picture.png: the dense Hessian of the README's example, the sparse system behind it, and times of a step.

Run: PYTHONPATH=src:benchmarks python website/picture.py
"""

from __future__ import annotations

import pathlib
import time

import one_thread  # noqa: F401  (before JAX loads)

# isort: split
import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

import gnewt

jax.config.update("jax_enable_x64", True)
AT = pathlib.Path(__file__).parents[1] / "docs" / "picture.png"
OURS, DENSE = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000), (10, 30, 100, 300, 1000, 2000)


def cost(us):
    """The example of the README."""

    def stage(x, u):
        return x + 0.1 * jnp.stack([x[1], u - jnp.sin(x[0])]), 0.01 * u**2

    x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)
    return costs.sum() + 10 * (1 + jnp.cos(x[0])) + x[1] ** 2


def milliseconds(call, us):
    """The least of several calls, compilation apart."""
    jax.block_until_ready(call(us))
    best, begin = np.inf, time.perf_counter()
    while time.perf_counter() - begin < 1.0:
        start = time.perf_counter()
        jax.block_until_ready(call(us))
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def main():
    dense = jax.jit(lambda us: jnp.linalg.solve(jax.hessian(cost)(us), -jax.grad(cost)(us)))
    ours = jax.jit(gnewt.newton_step(cost))
    gradient = jax.jit(jax.grad(cost))
    times = {
        "jax.hessian + solve": (DENSE, [milliseconds(dense, jnp.zeros(n)) for n in DENSE], "C3"),
        "gnewt": (OURS, [milliseconds(ours, jnp.zeros(n)) for n in OURS], "C0"),
        "gradient": (OURS, [milliseconds(gradient, jnp.zeros(n)) for n in OURS], "0.6"),
    }
    us = jnp.zeros(40)
    fig, (left, middle, right) = plt.subplots(
        1, 3, figsize=(10, 3.1), layout="constrained", width_ratios=(1, 1, 1.5)
    )
    hessian = np.abs(np.asarray(jax.hessian(cost)(us)))
    left.imshow(np.log10(hessian + 1e-12), cmap="Reds", vmin=-4)
    left.set(title="H of 40 stages: dense", xticks=[], yticks=[])
    structure = gnewt.trace_graph(cost, us)
    plan = gnewt.plan.make_plan(structure, "reverse_time")
    middle.spy(_kkt(structure), markersize=1.2, color="C0")
    middle.set(title=f"its KKT system: width {plan.certificate.width}", xticks=[], yticks=[])
    for name, (sizes, took, color) in times.items():
        right.loglog(sizes, took, "o-", ms=3, color=color, label=name)
    right.set(xlabel="stages T", ylabel="ms", title="one exact Newton step, one core")
    right.legend()
    fig.savefig(AT, dpi=110)
    Image.open(AT).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(AT, optimize=True)
    print({name: [f"{n}: {t:.4g}" for n, t in zip(*rows[:2], strict=True)] for name, rows in times.items()})


def _kkt(structure):
    """Which vertices of the KKT system meet, in an order that shows the band."""
    graph = gnewt.plan.kkt_graph(structure)
    shown = np.eye(graph.num_vertices, dtype=bool)
    for v in range(graph.num_vertices):
        shown[v, graph.adjacency.neighbours(v)] = True
    order = reverse_cuthill_mckee(csr_array(shown), symmetric_mode=True)
    return shown[np.ix_(order, order)]


if __name__ == "__main__":
    main()
