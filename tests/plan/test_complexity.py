"""The certificate: what an elimination costs, before anything runs."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import check_plan
from gnewt.plan import ORDERS, check_tree, kkt_graph, make_plan
from gnewt.plan.fronts import split_tree


def stage(x, u):
    return x + 0.1 * jnp.sin(x) * u


def cost(x, u):
    return jnp.sum(x**2) + jnp.sum(u**2)


def chain(T):
    g = gnewt.Graph()
    u = [g.input((1,)) for _ in range(T)]
    x = g.constant(np.ones(3))
    for t in range(T):
        g.loss(cost, x, u[t])
        x = g.node(stage, x, u[t])
    g.loss(lambda x: jnp.sum(x**2), x)
    return g


def multiply(a, b):
    return a * b


def reduction_tree(n):
    g = gnewt.Graph()
    level = [g.input() for _ in range(n)]
    for u in level:
        g.loss(lambda u: u**2, u)
    while len(level) > 1:
        level = [g.node(multiply, a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    g.loss(lambda s: s**2, level[0])
    return g


def star(n):
    g = gnewt.Graph()
    xs = [g.input() for _ in range(n)]
    s = g.sum(lambda x: x**2 + x, xs)
    g.loss(lambda s: s**2, s)
    return g


@pytest.mark.parametrize("order", ["causal", "min_degree", "auto"])
def test_flops_on_chains_grow_linearly(order):
    horizons = [2**p for p in range(4, 13, 2)]
    certificates = [make_plan(chain(T).structure(), order).certificate for T in horizons]
    assert len({c.width for c in certificates}) == 1
    per_stage = [c.flops / T for c, T in zip(certificates, horizons, strict=True)]
    assert max(per_stage) / min(per_stage) < 1.2
    assert certificates[-1].bytes / certificates[0].bytes < 1.2 * horizons[-1] / horizons[0]


def test_hessian_order_shows_the_cube():
    flops = [
        make_plan(chain(T).structure(), "hessian", merge=False).certificate.flops for T in (64, 128, 256)
    ]
    assert flops[1] / flops[0] == pytest.approx(8, rel=0.2)
    assert flops[2] / flops[1] == pytest.approx(8, rel=0.1)


def test_reduction_tree_is_narrow_with_a_free_order():
    structure = reduction_tree(1024).structure()
    assert make_plan(structure, "min_degree").certificate.width <= 4
    assert make_plan(structure).certificate.width <= 4
    assert make_plan(structure, "causal").certificate.width > 4


def test_star_of_a_sum_is_narrow():
    structure = star(1000).structure()
    assert make_plan(structure).certificate.width <= 2
    assert make_plan(structure, "min_degree").certificate.width <= 2


def test_causal_fronts_are_primal_only():
    plan = make_plan(chain(20).structure(), "causal")
    assert plan.causal
    assert plan.sep_idx.max() < plan.num_slots


def test_nested_dissection_is_balanced():
    plan = make_plan(chain(1024).structure(), "nested_dissection")
    height = np.zeros(plan.num_fronts, int)
    for i, p in enumerate(plan.parent):
        if p >= 0:
            height[p] = max(height[p], height[i] + 1)
    assert height.max() < 200
    assert plan.certificate.width <= 20


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("make", [lambda: chain(12), lambda: reduction_tree(32), lambda: star(30)])
def test_every_order_gives_a_valid_tree_and_plan(order, make):
    structure = make().structure()
    graph = kkt_graph(structure)
    chosen = ORDERS[order](graph)
    tree = split_tree(graph, chosen)
    reader = np.repeat(np.arange(graph.num_vertices), np.diff(graph.reads.ptr))
    primal = np.repeat(np.arange(graph.num_vertices), np.diff(graph.primal.ptr))
    edges = [
        *zip(2 * reader + 1, 2 * graph.reads.idx, strict=True),
        *zip(2 * primal, 2 * graph.primal.idx, strict=True),
    ]
    # Items that do not exist (duals of inputs) are in no bag: check the others, renumbered.
    exists = np.ones(2 * graph.num_vertices, bool)
    exists[1::2] = ~graph.is_input
    new = np.cumsum(exists) - 1
    renumbered = dataclasses.replace(
        tree, frontal_idx=new[tree.frontal_idx], separator_idx=new[tree.separator_idx]
    )
    check_tree(renumbered, int(exists.sum()), [(int(new[a]), int(new[b])) for a, b in edges])
    check_plan(make_plan(structure, order))


def test_plans_are_reproducible():
    first, second = make_plan(chain(50).structure()), make_plan(chain(50).structure())
    assert first.digest == second.digest
    assert first.digest != make_plan(chain(51).structure()).digest


def test_indistinguishable_scalars_are_one_vertex():
    graph = kkt_graph(chain(10).structure())
    assert graph.num_vertices == 20
    assert sorted(set(graph.sizes.tolist())) == [1, 3]
