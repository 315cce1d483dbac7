"""The native planner gives the integers of the Python planner, which is its specification."""

import ctypes
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from gnewt import _native
from gnewt.graph import Family, Structure, check_plan
from gnewt.graph.schedule import instance_levels
from gnewt.plan import Adjacency, Order, make_plan, min_degree, min_fill, orderings
from gnewt.plan.fronts import split_tree
from gnewt.plan.tree import OverLimit
from helpers.random_graphs import random_graph
from plan.graphs import GRAPHS, hopeless, kkt, random_kkt

needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="the native library was not built")


@pytest.fixture
def compare(monkeypatch):
    """Call a function with the library and without it."""

    def call(function, *args):
        native = function(*args)
        with monkeypatch.context() as m:
            m.setattr(_native, "LIBRARY", None)
            return native, function(*args)

    return call


RULES = {"min_degree": min_degree, "min_fill": min_fill}


def assert_same_order(a, b):
    assert a.tail == b.tail
    assert a.vertices.dtype == b.vertices.dtype == np.int32
    np.testing.assert_array_equal(a.vertices, b.vertices)


def assert_same_tree(a, b):
    for name in ("parent", "frontal_ptr", "frontal_idx", "separator_ptr", "separator_idx"):
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype, name
        np.testing.assert_array_equal(x, y, err_msg=name)


# The same integers


@needs_library
def test_rows_from_pairs(compare):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        num, count = int(rng.integers(1, 30)), int(rng.integers(0, 90))
        a, b = rng.integers(0, num, (2, count))
        for symmetric in (True, False):
            native, python = compare(Adjacency.from_pairs, num, a, b, symmetric)
            assert native.ptr.dtype == python.ptr.dtype
            assert native.idx.dtype == python.idx.dtype
            np.testing.assert_array_equal(native.ptr, python.ptr)
            np.testing.assert_array_equal(native.idx, python.idx)
    with pytest.raises(ValueError, match="contradict"):
        Adjacency.from_pairs(3, np.array([0, 3]), np.array([1, 1]))


@needs_library
@pytest.mark.parametrize("rule", RULES)
def test_orders_and_trees_of_random_graphs(compare, rule):
    for seed in range(240):
        graph = random_kkt(seed)
        for reads in (None, graph.reads):
            native, python = compare(RULES[rule], graph.adjacency, graph.sizes, reads)
            assert_same_order(native, python)
            assert_same_tree(*compare(split_tree, graph, native))


@needs_library
def test_trees_of_random_orders_with_random_tails(compare):
    for seed in range(240):
        graph, rng = random_kkt(seed), np.random.default_rng(seed)
        vertices = rng.permutation(graph.num_vertices).astype(np.int32)
        order = Order(vertices, int(rng.integers(0, graph.num_vertices + 1)))
        assert_same_tree(*compare(split_tree, graph, order))


@needs_library
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", GRAPHS)
def test_orders_and_trees_of_known_graphs(compare, name, rule):
    graph = GRAPHS[name]()
    for reads in (None, graph.reads):
        native, python = compare(RULES[rule], graph.adjacency, graph.sizes, reads)
        assert_same_order(native, python)
        assert_same_tree(*compare(split_tree, graph, native))


@needs_library
@pytest.mark.parametrize("wide", [0, 3, 20, 60])
def test_the_rule_that_stops_refining(compare, monkeypatch, wide):
    monkeypatch.setattr(orderings, "WIDE", wide)
    graph = hopeless(400)
    for rule in RULES.values():
        native, python = compare(rule, graph.adjacency, graph.sizes, graph.reads)
        assert_same_order(native, python)
        assert native.tail < graph.num_vertices - wide
        assert_same_tree(*compare(split_tree, graph, native))


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_library), False])
def test_a_limit_on_separators_is_exact(monkeypatch, native):
    if not native:
        monkeypatch.setattr(_native, "LIBRARY", None)
    # A path of 10 inputs from one end: nine separators of one element each.
    graph = kkt(10, 10, [], np.stack([np.arange(9), np.arange(1, 10)], 1))
    order = Order(np.arange(10, dtype=np.int32), 10)
    assert split_tree(graph, order, 9).num_bags == 9
    with pytest.raises(OverLimit):
        split_tree(graph, order, 8)


def reference_order(graph, reads, score):
    """The definition: look at every vertex, at every step."""
    num, weight = graph.num_vertices, graph.sizes
    near = [set(ns) for ns in graph.adjacency.lists()]
    readers = [set() for _ in range(num)]
    for v, ws in enumerate([] if reads is None else reads.lists()):
        for w in ws:
            readers[w].add(v)
    left, order = set(range(num)), []
    while True:
        free = [v for v in left if not readers[v] & left]
        if not free:
            break
        v = min(free, key=lambda v: (score(v, near, weight), v))
        if len(near[v]) == len(left) - 1 or len(near[v]) > orderings.WIDE:
            break
        for u in near[v]:
            near[u] = (near[u] | near[v]) - {u, v}
        left.remove(v)
        order.append(v)
    return order + sorted(left, reverse=True), len(order)


def degree(v, near, weight):
    return sum(int(weight[w]) for w in near[v])


def fill(v, near, weight):
    return sum(int(weight[a] * weight[b]) for a in near[v] for b in near[v] if a < b and b not in near[a])


@pytest.mark.parametrize(("rule", "score"), [(min_degree, degree), (min_fill, fill)])
@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_library), False])
def test_scores_kept_by_differences_give_the_order_of_the_definition(monkeypatch, rule, score, native):
    if not native:
        monkeypatch.setattr(_native, "LIBRARY", None)
    for seed in range(0, 240, 4):
        graph = random_kkt(seed)
        for reads in (None, graph.reads):
            vertices, tail = reference_order(graph, reads, score)
            assert_same_order(
                rule(graph.adjacency, graph.sizes, reads), Order(np.array(vertices, np.int32), tail)
            )


def random_structure(seed):
    """Families with several instances, repeated arguments and slots defined by several instances."""
    rng = np.random.default_rng(seed)
    num_inputs = slots = int(rng.integers(2, 10))
    families = []
    for _ in range(int(rng.integers(1, 8))):
        n, k, m = (int(i) for i in rng.integers(1, 4, 3))
        args = rng.integers(0, slots, (n, k)).astype(np.int32)
        if rng.random() < 0.5:
            families.append(Family(len, args, hess_pattern=np.eye(k, dtype=bool)))
            continue
        outs = slots + (rng.integers(0, 1, (n, m)) if rng.random() < 0.3 else np.arange(n * m).reshape(n, m))
        families.append(Family(len, args, outs.astype(np.int32)))
        slots = int(outs.max()) + 1
    families.append(Family(len, np.arange(slots, dtype=np.int32)[:, None]))
    return Structure(tuple(families), num_inputs, slots, None, (), (), tuple(() for _ in families))


@needs_library
def test_plans_have_equal_digests(compare):
    for seed in range(60):
        structure = random_structure(seed)
        for order in ("auto", "causal", "min_degree", "nested_dissection", "hessian"):
            native, python = compare(make_plan, structure, order)
            check_plan(native)
            assert native.digest == python.digest
            assert native.certificate == python.certificate
            assert native.entry_ptr.dtype == python.entry_ptr.dtype == np.int64
            assert native.entry_row.dtype == python.entry_row.dtype == np.int32


@needs_library
def test_plans_of_graphs_have_equal_digests(compare):
    for seed in range(0, 40, 5):
        native, python = compare(make_plan, random_graph(seed).graph.structure())
        assert native.digest == python.digest


@needs_library
def test_levels(compare):
    for seed in range(120):
        structure = random_structure(seed)
        native, python = compare(instance_levels, structure.families, structure.num_slots)
        assert native.keys() == python.keys()
        for f in native:
            np.testing.assert_array_equal(native[f], python[f])


# The border


def test_the_environment_turns_the_library_off():
    """A process without the library plans, and plans the same."""
    code = (
        "from gnewt import _native; from helpers.random_graphs import random_graph; from gnewt.plan import make_plan;"
        "assert _native.LIBRARY is None; print(make_plan(random_graph(7).graph.structure()).digest)"
    )
    env = {**os.environ, "GNEWT_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == make_plan(random_graph(7).graph.structure()).digest


FIND_LIBRARY = """
import sys
class Finder:  # what an editable install of scikit-build-core leaves on sys.meta_path
    submodule_search_locations = {recorded}
    def find_spec(self, *args): return None
sys.meta_path.insert(0, Finder())
from gnewt import _native
print(_native.LIBRARY and _native.LIBRARY._name)
"""


@needs_library
@pytest.mark.parametrize("install", ["plain", "editable", "editable elsewhere"])
def test_the_library_comes_from_the_package_or_its_editable_install_alone(install, tmp_path):
    """A library in a folder `gnewt` anywhere on `sys.path`, as in `decoy`, is not loaded."""
    for name in ("package", "decoy", "site", "other"):
        (tmp_path / name / "gnewt").mkdir(parents=True)
        if name != "package":
            library = tmp_path / name / "gnewt" / os.path.basename(_native.LIBRARY._name)
            library.symlink_to(os.path.abspath(_native.LIBRARY._name))
    package = tmp_path / "package" / "gnewt"
    (package / "__init__.py").touch()
    shutil.copy(_native.__file__, package)
    site = str(tmp_path / "site" / "gnewt")
    recorded = {
        "plain": {},
        "editable": {"gnewt": [str(package), site]},
        "editable elsewhere": {"gnewt": [str(tmp_path / "other" / "gnewt"), site]},
    }[install]
    path = [str(tmp_path / "package"), str(tmp_path / "decoy"), *filter(None, sys.path)]
    env = {**os.environ, "GNEWT_NATIVE": "1", "PYTHONPATH": os.pathsep.join(path)}
    run = subprocess.run(
        # -S: the import hook of a real editable install must not find the real package first.
        [sys.executable, "-S", "-c", FIND_LIBRARY.format(recorded=recorded)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path / "decoy",
    )
    loaded = run.stdout.strip()
    assert loaded.startswith(site) if install == "editable" else loaded == "None"


@needs_library
def test_statuses_are_those_of_the_library():
    names = [_native.LIBRARY.gnewt_planner_status_name(i) for i in range(-1, len(_native.PlannerStatus) + 1)]
    assert names[0] is names[-1] is None
    expected = [status.name.lower().replace("_", " ") for status in _native.PlannerStatus]
    assert [name.decode() for name in names[1:-1]] == expected


@needs_library
def test_wrong_arrays_are_refused_before_the_call():
    ptr, idx, sizes = np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([1, 1])
    assert _native.greedy_order(False, ptr, idx, sizes, None, 512)[0].tolist() == [1, 0]
    with pytest.raises(ctypes.ArgumentError):
        _native.greedy_order(False, ptr, idx.astype(np.int64), sizes, None, 512)
    with pytest.raises(ctypes.ArgumentError):
        _native.greedy_order(False, ptr, np.zeros(4, np.int32)[::2], sizes, None, 512)
    with pytest.raises(ValueError, match="row pointers"):
        _native.greedy_order(False, np.array([0, 1, 9]), idx, sizes, None, 512)
    with pytest.raises(ValueError, match="length"):
        _native.greedy_order(False, ptr, idx, np.array([1]), None, 512)


@needs_library
@pytest.mark.parametrize("bad", [[1, 7], [1, -1]])
def test_indices_out_of_range_are_refused_by_the_library(bad):
    ptr, order, of_item = np.array([0, 1, 2]), np.array([0, 1], np.int32), np.array([0, 1], np.int32)
    idx = np.array(bad, np.int32)
    with pytest.raises(ValueError, match="contradict"):
        _native.greedy_order(True, ptr, idx, np.array([1, 1]), None, 512)
    with pytest.raises(ValueError, match="contradict"):
        _native.decompose(ptr, idx, order, 2, of_item, 99)
    with pytest.raises(ValueError, match="contradict"):
        _native.decompose(ptr, np.array([1, 0], np.int32), np.zeros(2, np.int32), 2, of_item, 99)


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")
@pytest.mark.skipif(os.environ.get("GNEWT_NATIVE") == "0", reason="not wanted")
def test_where_there_is_a_compiler_the_library_was_built():
    """All tests of the library are skipped where it is absent: this one says so."""
    assert _native.LIBRARY is not None, "the build failed, or this is a source tree: run `make native`"
