"""Greedy orders are given up when they cost more than the order of the program; the choice stays the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import _native
from gnewt.plan import choose, make_plan
from gnewt.plan.orderings import min_degree, min_fill
from gnewt.plan.sparsity import kkt_graph
from gnewt.plan.tree import NO_LIMIT, OverLimit


def pendulum(us):
    def stage(x, u):
        return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]))]), jnp.cos(x[0]) + u**2

    x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)
    return costs.sum() + x @ x


def reduction(x):
    while len(x) > 1:
        x = jnp.sin(x[::2]) * x[1::2] + 0.3 * x[::2]
    return x[0] ** 2


def surface(x):
    return jnp.sum(jnp.sqrt(1 + (x[1:, 1:] - x[:-1, :-1]) ** 2 + (x[1:, :-1] - x[:-1, 1:]) ** 2)) + jnp.sum(
        x**2
    )


PROBLEMS = {"chain": (pendulum, (40,)), "tree": (reduction, (32,)), "grid": (surface, (7, 7))}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_choice_is_that_of_all_orders(name, monkeypatch):
    f, shape = PROBLEMS[name]
    structure = gnewt.trace_graph(f, jnp.ones(shape))
    quick = make_plan(structure)
    monkeypatch.setattr(choose, "_NARROW", 0)  # nothing is known before the greedy orders ...
    monkeypatch.setattr(choose, "_affordable", lambda graph, best, name: NO_LIMIT)  # ... and none is given up
    slow = make_plan(structure)
    assert quick.order_name == slow.order_name and quick.certificate == slow.certificate
    assert {name for name, *_ in quick.considered} <= {name for name, *_ in slow.considered}


@pytest.mark.parametrize(
    "native",
    [False, pytest.param(True, marks=pytest.mark.skipif(_native.LIBRARY is None, reason="no library"))],
)
@pytest.mark.parametrize("order", [min_degree, min_fill])
def test_an_order_is_given_up_at_its_budget(order, native, monkeypatch):
    if not native:
        monkeypatch.setattr(_native, "LIBRARY", None)
    graph = kkt_graph(gnewt.trace_graph(surface, jnp.ones((6, 6))))
    full = order(graph.adjacency, graph.sizes, graph.reads)
    np.testing.assert_array_equal(
        order(graph.adjacency, graph.sizes, graph.reads, 10**9).vertices, full.vertices
    )
    with pytest.raises(OverLimit, match="flops"):
        order(graph.adjacency, graph.sizes, graph.reads, 10)
