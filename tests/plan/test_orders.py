"""Approximate minimum degree and nested dissection: permutations, the same everywhere, and good."""

import numpy as np
import pytest

from gnewt import _native
from gnewt.plan import Adjacency, approximate_degree, decompose, min_degree, nested_dissection
from gnewt.plan.approximate import find_hubs
from gnewt.plan.orderings import is_causal
from gnewt.plan.tree import OverLimit, sum_rows
from plan.graphs import GRAPHS, chain, grid, kkt, random_kkt

needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="the native library was not built")
LIBRARIES = [pytest.param(True, marks=needs_library, id="native"), pytest.param(False, id="python")]
ORDERS = {
    "free": lambda g: approximate_degree(g.adjacency, g.sizes),
    "causal": lambda g: approximate_degree(g.adjacency, g.sizes, g.reads),
    "dissection": lambda g: nested_dissection(g.adjacency, g.sizes),
}


@pytest.fixture
def library(request, monkeypatch):
    """Turn the library on or off."""
    if not request.param:
        monkeypatch.setattr(_native, "LIBRARY", None)


def flops(adjacency, sizes, order):
    """Σ over the scalars of (what is below them)², as a Cholesky factorisation counts."""
    tree = decompose(adjacency, order.vertices, order.tail)
    own = sum_rows(tree.frontal_ptr, sizes[tree.frontal_idx])
    bag = own + sum_rows(tree.separator_ptr, sizes[tree.separator_idx])

    def squares(n):
        return n * (n + 1) * (2 * n + 1) // 6

    return int(np.sum(squares(bag) - squares(bag - own)))


def torus(n):
    at = np.arange(n * n).reshape(n, n)
    around = [np.roll(at, 1, axis).ravel() for axis in (0, 1)]
    return Adjacency.from_pairs(n * n, np.tile(at.ravel(), 2), np.concatenate(around))


def cube(n):
    at = np.arange(n**3).reshape(n, n, n)
    pairs = [(at[1:], at[:-1]), (at[:, 1:], at[:, :-1]), (at[:, :, 1:], at[:, :, :-1])]
    a, b = (np.concatenate([p[i].ravel() for p in pairs]) for i in (0, 1))
    return Adjacency.from_pairs(n**3, a, b)


def ones(adjacency):
    return np.ones(adjacency.num_vertices, np.int64)


@needs_library
@pytest.mark.parametrize("name", ORDERS)
def test_the_library_gives_the_integers_of_its_twin(name, monkeypatch):
    # The smallest graphs that are cut; types are checked at every call here, which takes most of the time.
    small = [grid(13), chain(70), kkt(130, 130, [], np.random.default_rng(0).integers(0, 130, (160, 2)))]
    graphs = (
        small if name == "dissection" else [random_kkt(seed) for seed in range(60)] + [grid(16), chain(30)]
    )
    native = [ORDERS[name](graph) for graph in graphs]
    again = [ORDERS[name](graph) for graph in graphs]
    monkeypatch.setattr(_native, "LIBRARY", None)
    for graph, first, second in zip(graphs, native, again, strict=True):
        python = ORDERS[name](graph)
        assert first.tail == second.tail == python.tail
        assert first.vertices.dtype == python.vertices.dtype == np.int32
        np.testing.assert_array_equal(first.vertices, second.vertices)
        np.testing.assert_array_equal(first.vertices, python.vertices)


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
@pytest.mark.parametrize("name", ORDERS)
def test_orders_are_permutations_and_causal_where_they_are_said_to_be(name, library):
    graphs = (
        [make() for make in GRAPHS.values()] if _native.LIBRARY else [GRAPHS["empty"](), GRAPHS["alone"]()]
    )
    for graph in [*graphs, *(random_kkt(seed) for seed in range(40))]:
        order = ORDERS[name](graph)
        np.testing.assert_array_equal(np.sort(order.vertices), np.arange(graph.num_vertices))
        assert 0 <= order.tail <= graph.num_vertices
        if name == "causal":
            assert is_causal(graph, order.vertices)


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_no_fill_where_there_need_be_none(library):
    """Trees, stars and chains have orders without fill; approximate degrees find them."""
    for graph in (GRAPHS["tree"](), GRAPHS["star"](), chain(100)):
        order = approximate_degree(graph.adjacency, graph.sizes)
        exact = min_degree(graph.adjacency, graph.sizes)
        assert flops(graph.adjacency, graph.sizes, order) <= flops(graph.adjacency, graph.sizes, exact)


def test_indistinguishable_vertices_go_together():
    """Copies of a grid's vertices, all coupled with each other, are ordered as heavy vertices would be."""
    small = grid(12).adjacency
    row = np.repeat(np.arange(144), np.diff(small.ptr))
    copies = [(row + 144 * i, small.idx + 144 * j) for i in range(3) for j in range(3)]
    twins = [(np.arange(144) + 144 * i, np.arange(144) + 144 * j) for i in range(3) for j in range(i)]
    a, b = (np.concatenate([p[i] for p in copies + twins]) for i in (0, 1))
    large = Adjacency.from_pairs(432, a, b)
    heavy = flops(small, 3 * ones(small), approximate_degree(small, 3 * ones(small)))
    assert flops(large, ones(large), approximate_degree(large, ones(large))) <= 1.1 * heavy


@needs_library
@pytest.mark.parametrize(
    ("adjacency", "bound"),
    # The fewest flops of METIS 5.2, AMD and SuperLU (minimum degree) on these graphs.
    [(torus(40), 1_342_244), (cube(10), 1_698_645), (grid(60).adjacency, 1_824_893)],
    ids=["torus", "cube", "grid"],
)
def test_dissections_are_as_good_as_those_of_others(adjacency, bound):
    assert flops(adjacency, ones(adjacency), nested_dissection(adjacency, ones(adjacency))) <= 1.1 * bound


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_parts_that_are_not_connected(library):
    """Each part costs what it costs alone; vertices without neighbours cost nothing more than themselves."""
    part = grid(8).adjacency
    row = np.repeat(np.arange(64), np.diff(part.ptr))
    a = np.concatenate([row + 70 * i for i in range(3)])
    b = np.concatenate([part.idx + 70 * i for i in range(3)])
    apart = Adjacency.from_pairs(210, a, b)
    for order in (approximate_degree, nested_dissection):
        alone = flops(part, ones(part), order(part, ones(part)))
        assert flops(apart, ones(apart), order(apart, ones(apart))) <= 3.3 * alone + 18
    lonely = Adjacency(np.zeros(201, np.int64), np.zeros(0, np.int32))
    assert flops(lonely, ones(lonely), nested_dissection(lonely, ones(lonely))) == 200


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_dense_rows_go_last(library):
    """A path and three vertices that are coupled with all of it."""
    path = np.arange(299)
    a = np.concatenate([path, *(np.full(300, 300 + i) for i in range(3))])
    b = np.concatenate([path + 1, *(np.arange(300) for _ in range(3))])
    graph = Adjacency.from_pairs(303, a, b)
    np.testing.assert_array_equal(np.flatnonzero(find_hubs(graph, None)), [300, 301, 302])
    for order in (approximate_degree, nested_dissection):
        assert set(order(graph, ones(graph)).vertices[-3:].tolist()) == {300, 301, 302}


def test_in_a_complete_graph_nobody_is_a_hub():
    a, b = np.triu_indices(120, 1)
    graph = Adjacency.from_pairs(120, a, b)
    assert not find_hubs(graph, None).any()
    order = approximate_degree(graph, ones(graph))
    assert order.tail == 0  # one front


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
@pytest.mark.parametrize("order", [approximate_degree, nested_dissection])
def test_an_order_is_given_up_at_its_budget(order, library):
    adjacency = grid(12).adjacency
    full = order(adjacency, ones(adjacency))
    np.testing.assert_array_equal(order(adjacency, ones(adjacency), most=10**9).vertices, full.vertices)
    with pytest.raises(OverLimit, match="flops"):
        order(adjacency, ones(adjacency), most=1000)


@needs_library
def test_wrong_arrays_are_refused():
    ptr, idx, sizes = np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([1, 1])
    stage = np.zeros(2, np.int32)
    assert _native.approximate_order(ptr, idx, sizes, None, stage, 99, 99)[0].tolist() == [1, 0]
    for bad in ([1, 7], [1, -1]):
        with pytest.raises(ValueError, match="contradict"):
            _native.approximate_order(ptr, np.array(bad, np.int32), sizes, None, stage, 99, 99)
        with pytest.raises(ValueError, match="contradict"):
            _native.dissect(ptr, np.array(bad, np.int32), sizes, stage, 99)
    with pytest.raises(ValueError, match="length"):
        _native.dissect(ptr, idx, sizes, np.zeros(3, np.int32), 99)
