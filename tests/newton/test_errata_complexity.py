"""Errata to Theorem 1: its complexity (E7)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt.plan import ORDERS, Adjacency, decompose, make_plan, min_degree
from helpers.oracle import flatten
from helpers.small_dag import relative_error

# E7: complexity


def star(num: int, make: Callable[[gnewt.Graph, list], None], size: int = 1) -> gnewt.Graph:
    g = gnewt.Graph()
    make(g, [g.input((size,), name=f"x{i}") for i in range(num)])
    return g


def psi(x: jax.Array) -> jax.Array:
    return jnp.sin(x) + 0.5 * x**2


def own(x: jax.Array) -> jax.Array:
    return jnp.sum(x**2 + 0.1 * x**4)


def square(s: jax.Array) -> jax.Array:
    return jnp.sum((s - 1.0) ** 2)


def product_of_all(*xs: jax.Array) -> jax.Array:
    return jnp.prod(1.0 + 0.1 * jnp.stack(xs), axis=0)


def sum_star(g: gnewt.Graph, xs: list) -> None:
    """s = Σ ψ(x_i)."""
    for x in xs:
        g.loss(own, x)
    g.loss(square, g.sum(psi, xs, name="s"))


def product_star(g: gnewt.Graph, xs: list) -> None:
    """s = Π (1 + x_i/10): every pair of arguments is coupled."""
    for x in xs:
        g.loss(own, x)
    g.loss(square, g.node(product_of_all, *xs, name="s"))


def graph_width(num_vertices: int, edges: list[tuple[int, int]], sizes: np.ndarray) -> int:
    """Width of an undirected graph, by min-degree (exact for trees and cliques)."""
    a, b = np.array(edges).T
    adjacency = Adjacency.from_pairs(num_vertices, a, b)
    return decompose(adjacency, min_degree(adjacency, sizes).vertices).width(sizes)


def best_width(g: gnewt.Graph) -> int:
    return min(make_plan(g.structure(), name).certificate.width for name in ORDERS)


def test_e7_the_width_is_that_of_the_moralised_graph_not_of_the_computational_graph():
    """E7: O(m·tw(G)³) is printed. A node that multiplies N inputs has tw(G) = 1 and a dense Hessian."""
    num, ones = 8, np.ones(9, int)
    printed = graph_width(num + 1, [(i, num) for i in range(num)], ones)
    moral = graph_width(num + 1, [(i, j) for i in range(num + 1) for j in range(i)], ones)
    assert (printed, moral) == (1, num)
    g = star(num, product_star)
    x = np.random.default_rng(0).normal(size=num)
    h = np.asarray(jax.jit(jax.hessian(lambda x: jnp.sum(x**2) + square(product_of_all(*x))))(x))
    assert np.all(h != 0)  # no elimination of a dense N × N matrix has a bag with fewer than N scalars
    assert num - 1 <= best_width(g) <= moral
    # Doubling N: the honest certificate Σ|ι||χ|² grows eightfold, the printed bound only twofold.
    flops = [make_plan(star(n, product_star).structure()).certificate.flops for n in (num, 2 * num)]
    assert flops[1] / flops[0] > 6 > (2 * num + 1) * printed**3 / ((num + 1) * printed**3)


def test_e7_kkt_sparsity_is_finer_than_the_moral_graph_for_a_sum():
    """E7: s = Σψ(x_i) couples no two x_i; a star of N inputs has width 1 if the x_i go first, not N."""
    num = 30
    moral = graph_width(num + 1, [(i, j) for i in range(num + 1) for j in range(i)], np.ones(num + 1, int))
    g = star(num, sum_star)
    values = list(np.random.default_rng(0).normal(size=(num, 1)))
    step, info = gnewt.newton_step(g, order=[*g.inputs, *g.nodes], full_output=True)(values)
    assert info.certificate.width == 1 < moral == num
    assert best_width(g) == 1
    # The width is not bought with the answer: the Hessian of the objective is dense, and the step is exact.
    x = np.asarray(values)
    objective = lambda x: jnp.sum(x**2 + 0.1 * x**4) + jnp.sum((jnp.sum(psi(x), 0) - 1.0) ** 2)  # noqa: E731
    h, grad = jax.jit(lambda x: (jax.hessian(objective)(x), jax.grad(objective)(x)))(x)
    h, grad = np.asarray(h).reshape(num, num), np.ravel(grad)
    assert np.all(h != 0)
    assert relative_error(flatten(step), -np.linalg.solve(h, grad)) < 1e-10
    # The order that follows the moral graph (s first) joins all x_i.
    assert make_plan(g.structure(), "hessian").certificate.width >= num - 1


def test_e7_widths_count_scalars_not_vertices():
    """E7: |χ| is Σ n_v over a bag. The printed width, in vertices, does not see n_v at all."""
    for size in (1, 4):
        g = star(10, sum_star, size)
        # Scalars of one vertex are coupled with each other only through Φ: ψ acts by component, so tell
        # the plan to keep each vertex whole.
        plan = make_plan(g.structure(), [g.slots(v) for v in (*g.inputs, *g.nodes)], merge=False)
        assert plan.certificate.width == 2 * size - 1
        printed = graph_width(11, [(i, 10) for i in range(10)], np.ones(11, int))
        assert printed == 1
        bags = [len(plan.bag(i)) for i in range(plan.num_fronts)]
        iota = [int(np.sum(plan.eliminated(i) < plan.num_slots)) for i in range(plan.num_fronts)]
        assert plan.certificate.flops == sum(i * c**2 for i, c in zip(iota, bags, strict=True))
        assert plan.certificate.flops <= 11 * (2 * size) ** 3
