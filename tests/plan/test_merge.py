"""Merged fronts: still a tree decomposition, still causal, the same answer, and less time by the model."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import _native
from gnewt.graph import check_plan
from gnewt.kkt import factorize
from gnewt.plan import KKTGraph, Order, check_tree, kkt_graph, make_plan, merge, min_degree
from gnewt.plan.dissection import nested_dissection
from gnewt.plan.fronts import split_tree
from gnewt.plan.merge import MODEL, Merger, TimeModel, describe_bags, merge_fronts
from gnewt.plan.orderings import is_causal, reverse_time
from helpers.random_graphs import random_graph
from plan.graphs import GRAPHS, random_kkt

needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="the native library was not built")


def orders(graph: KKTGraph, seed: int = 0) -> list[Order]:
    shuffled = np.random.default_rng(seed).permutation(graph.num_vertices).astype(np.int32)
    return [
        min_degree(graph.adjacency, graph.sizes, graph.reads),
        min_degree(graph.adjacency, graph.sizes),
        reverse_time(graph),
        nested_dissection(graph.adjacency, graph.sizes),
        Order(shuffled, graph.num_vertices),
    ]


def trees(graph: KKTGraph, seed: int = 0):
    """(tree, whether its order is causal) along several orders."""
    return [(split_tree(graph, order), is_causal(graph, order.vertices)) for order in orders(graph, seed)]


def assert_valid(graph: KKTGraph, tree) -> None:
    """Every item in a bag, every coupling in a bag, bags of an item connected."""
    exists = graph.vertex_of_item >= 0
    new = np.cumsum(exists) - 1
    items = graph.items
    row = np.repeat(np.arange(items.num_vertices), np.diff(items.ptr))
    renumbered = dataclasses.replace(
        tree, frontal_idx=new[tree.frontal_idx], separator_idx=new[tree.separator_idx]
    )
    check_tree(renumbered, int(exists.sum()), zip(new[row].tolist(), new[items.idx].tolist(), strict=True))


def modelled_time(graph: KKTGraph, tree, causal: bool) -> int:
    merger = Merger(describe_bags(graph, tree, causal))
    return sum(merger.time([i], merger.children[i]) for i in range(tree.num_bags))


def test_random_graphs():
    fewer = 0
    for seed in range(80):
        graph = random_kkt(seed)
        for tree, causal in trees(graph, seed):
            merged = merge_fronts(graph, tree, causal)
            assert_valid(graph, merged)
            assert merged.num_bags <= tree.num_bags
            assert modelled_time(graph, merged, causal) <= modelled_time(graph, tree, causal)
            assert not causal or np.all(merged.separator_idx % 2 == 0)
            fewer += merged.num_bags < tree.num_bags
    assert fewer > 100


@pytest.mark.parametrize("name", GRAPHS)
def test_known_graphs(name):
    graph = GRAPHS[name]()
    for tree, causal in trees(graph):
        merged = merge_fronts(graph, tree, causal)
        assert_valid(graph, merged)
        if np.diff(np.sort(tree.parent)).size and np.bincount(tree.parent + 1).max() <= 16:
            assert modelled_time(graph, merged, causal) <= modelled_time(graph, tree, causal)


@needs_library
@pytest.mark.parametrize("change", [1, 2, 3])
def test_the_library_uses_the_constants_of_python(monkeypatch, change):
    """With other constants both merge otherwise, and still alike; also where fronts have one child more than few."""
    numbers = [5 + k if (k + change) % 3 else 4000 * k for k in range(len(MODEL))]
    monkeypatch.setattr(merge, "MODEL", TimeModel(*numbers)._replace(large=30))
    test_the_library_merges_the_same(monkeypatch)


@needs_library
def test_the_library_merges_the_same(monkeypatch):
    known = [(GRAPHS[name](), 3) for name in ("chain", "tree", "star", "empty", "alone")]
    for seed, (graph, num) in enumerate([(random_kkt(seed), 5) for seed in range(60)] + known):
        for tree, causal in trees(graph, seed)[:num]:
            native = merge_fronts(graph, tree, causal)
            with monkeypatch.context() as m:
                m.setattr(_native, "LIBRARY", None)
                python = merge_fronts(graph, tree, causal)
            for field in dataclasses.fields(tree):
                a, b = getattr(native, field.name), getattr(python, field.name)
                assert a.dtype == b.dtype, field.name
                np.testing.assert_array_equal(a, b, err_msg=field.name)


@needs_library
def test_wrong_arrays_are_refused():
    graph = GRAPHS["chain"]()
    bags = describe_bags(graph, *trees(graph)[0])
    sizes, links = (bags.p, bags.q, bags.b, bags.reads), (bags.link_ptr, bags.link_bag, bags.link_reads)
    separators, items = (bags.sep_ptr, bags.sep_item), (bags.bag_of_item, bags.pairs_of_item)
    model = np.array(MODEL, np.int64)
    with pytest.raises(ValueError, match="length"):
        _native.merge_fronts(True, bags.parent, (bags.p[1:], *sizes[1:]), links, separators, items, model)
    with pytest.raises(ValueError, match="contradict"):
        _native.merge_fronts(True, np.zeros_like(bags.parent), sizes, links, separators, items, model)
    with pytest.raises(ValueError, match="contradict"):
        _native.merge_fronts(
            True, bags.parent, sizes, links, separators, (np.full_like(items[0], -1), items[1]), model
        )
    with pytest.raises(ValueError, match="contradict"):
        _native.merge_fronts(True, bags.parent, sizes, links, separators, items, model[1:])


def test_plans_are_valid_causal_and_give_the_same_answer():
    for seed, order in itertools.product(range(0, 12, 2), ["causal", "min_degree", "hessian", "auto"]):
        structure = random_graph(seed).graph.structure()
        merged, apart = make_plan(structure, order), make_plan(structure, order, merge=False)
        check_plan(merged)
        assert merged.causal == apart.causal
        assert merged.certificate.width == apart.certificate.width
        assert merged.num_fronts == merged.certificate.num_fronts <= apart.num_fronts
        if merged.causal:
            assert np.all(merged.sep_idx < merged.num_slots)
            assert is_causal(kkt_graph(structure), merged.order)
        sources = np.random.default_rng(seed).normal(size=int(merged.source.max()) + 1)
        b = np.ones(structure.num_inputs)
        x = factorize(apart, sources, 0.5).solve(b)
        assert np.abs(factorize(merged, sources, 0.5).solve(b) - x).max() <= 1e-9 * np.abs(x).max()


def test_the_certificate_describes_the_merged_fronts():
    structure = random_graph(4).graph.structure()
    plan = make_plan(structure, "causal")
    sizes = [len(plan.bag(i)) for i in range(plan.num_fronts)]
    eliminated = [int(np.sum(plan.eliminated(i) < plan.num_slots)) for i in range(plan.num_fronts)]
    assert plan.certificate.flops == sum(i * c**2 for i, c in zip(eliminated, sizes, strict=True))


def bicycle(x, u):
    """Components that couple differently: every one is a vertex of its own."""
    _, _, heading, speed = x
    return x + 0.1 * jnp.stack([speed * jnp.cos(heading), speed * jnp.sin(heading), speed * u[0], u[1]])


def test_a_traced_chain_has_one_front_per_stage():
    def cost(us):
        def stage(x, u):
            return bicycle(x, u), 0.1 * jnp.sum(u**2) + x[0] ** 2 * x[1] ** 2

        x, costs = jax.lax.scan(stage, jnp.ones(4), us)
        return costs.sum() + jnp.sum(x**2)

    horizon = 60
    structure = gnewt.trace_graph(cost, np.zeros((horizon, 2)))
    apart, merged = make_plan(structure, merge=False), make_plan(structure)
    assert apart.num_fronts >= 2 * horizon
    assert merged.num_fronts <= horizon + 5  # the components of the last state are leaves apart
    middle = [plan_sizes(merged, i) for i in range(10, merged.num_fronts - 10)]
    assert set(middle) == {(4, 2, 4)}
    # Slots ascend in every front: what a family writes is contiguous there.
    for i in range(10, merged.num_fronts - 10):
        assert np.all(np.diff(merged.eliminated(i)[:4]) == 1)
        assert np.all(np.diff(merged.separator(i)) == 1)


def plan_sizes(plan, i):
    mine = plan.eliminated(i)
    pairs = int(np.sum((mine >= plan.num_inputs) & (mine < plan.num_slots)))
    return pairs, int(np.sum(mine < plan.num_inputs)), len(plan.separator(i))


def test_readers_stay_before_what_they_read():
    """Merged stages of a scalar chain: pairs of one front that read each other."""
    g = gnewt.Graph()
    x = g.constant(1.0)
    for _ in range(40):
        u = g.input()
        g.loss(lambda u: u**2, u)
        x = g.node(lambda x: jnp.sin(x), g.node(lambda x, u: x * u, x, u))
    g.loss(lambda x: x**2, x)
    structure = g.structure()
    plan = make_plan(structure, "causal")
    assert plan.num_fronts < make_plan(structure, "causal", merge=False).num_fronts
    graph = kkt_graph(structure)
    place = np.empty(plan.num_unknowns, np.int64)
    place[plan.elim_idx] = np.arange(plan.num_unknowns)
    slot = {int(v): s for s, v in enumerate(graph.vertex_of_slot)}
    for v, w in zip(
        np.repeat(np.arange(graph.num_vertices), np.diff(graph.reads.ptr)), graph.reads.idx, strict=True
    ):
        assert place[slot[int(v)]] < place[slot[int(w)]]
