"""The xla engine against the reference engine and dense linear algebra: any order, any numbers, any batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph.plan import check_plan
from gnewt.kkt import factorize, linearize
from gnewt.kkt.engines.elimination import NONFINITE, OK, SINGULAR
from gnewt.kkt.engines.xla.engine import CLEAN, HOST, REFINED, XlaEngine
from gnewt.kkt.engines.xla.merge import merge_fronts
from gnewt.kkt.engines.xla.schedule import MAX_BLOCKS, FrontShape, make_schedule
from gnewt.newton.objective import Objective
from gnewt.plan import ORDERS, make_plan
from helpers.oracle import inertia_of
from helpers.random_graphs import random_graph, random_order
from helpers.trace_programs import PROGRAMS

NAMES = ["causal", "min_degree", "cyclic_reduction", "random", "nested_dissection", "hessian"]


def random_sources(plan, seed, zeros=0.0):
    rng = np.random.default_rng(seed)
    num = int(plan.source.max(initial=-1)) + 1
    return rng.normal(size=num) * (rng.random(num) >= zeros)


def dense_kkt(plan, sources, shift=0.0):
    """K from the entries of a plan, without its tree."""
    values = np.bincount(plan.target, sources[plan.source], minlength=plan.num_entries)
    values[plan.pair_entry] -= 1.0
    values[plan.input_entry] += shift
    k = np.zeros((plan.num_unknowns,) * 2)
    for i in range(plan.num_fronts):
        names = np.concatenate([plan.eliminated(i), plan.separator(i)])
        mine = slice(plan.entry_ptr[i], plan.entry_ptr[i + 1])
        row, col = names[plan.entry_row[mine]], names[plan.entry_col[mine]]
        k[row, col] = k[col, row] = values[mine]
    return k


def dense_hessian(plan, sources, shift=0.0):
    k, n = dense_kkt(plan, sources, shift), plan.num_inputs
    return k[:n, :n] - k[:n, n:] @ np.linalg.solve(k[n:, n:], k[n:, :n])


def run(plan, sources, shift=0.0, rhs=None, eps=None):
    engine = XlaEngine(plan, len(sources), eps)
    if rhs is None:
        rhs = np.random.default_rng(0).normal(size=(plan.num_inputs, 2)).astype(sources.dtype)
    x, known = jax.jit(engine.factor_solve)(engine.arrays, sources, shift, rhs)
    return engine, rhs, np.asarray(x), known


def check_against_dense(plan, sources, shift=0.0, tol=1e-12):
    h = dense_hessian(plan, sources, shift)
    _, b, x, known = run(plan, sources, shift)
    size = np.linalg.norm(h, 2) * np.linalg.norm(x) + np.linalg.norm(b)
    assert int(known.status) == OK
    assert np.linalg.norm(h @ x - b) <= tol * size
    assert tuple(np.asarray(known.inertia).tolist()) == inertia_of(h)
    assert float(known.logdet) == pytest.approx(np.linalg.slogdet(h)[1], abs=1e-6)
    assert not np.any(known.null)
    return known


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_along_all_orders(seed):
    problem = random_graph(seed)
    order = NAMES[seed % len(NAMES)]
    given = [problem.graph.slots(h) for h in random_order(problem, seed)] if order == "random" else order
    plan = make_plan(problem.graph.structure(), given)
    check_against_dense(plan, random_sources(plan, seed), shift=0.3)


@pytest.mark.parametrize("seed", range(2))
def test_numbers_with_many_zeros_are_never_silently_wrong(seed):
    plan = make_plan(random_graph(seed + 20).graph.structure(), "causal" if seed % 2 else "min_degree")
    batch = np.stack([random_sources(plan, numbers, zeros=0.6) for numbers in range(12)])
    engine = XlaEngine(plan, batch.shape[1])
    b = np.random.default_rng(0).normal(size=(plan.num_inputs, 1))
    x, known = jax.jit(jax.vmap(engine.factor_solve, (None, 0, None, None)))(engine.arrays, batch, 0.0, b)
    for i, sources in enumerate(batch):
        h = dense_hessian(plan, sources)
        w = np.abs(np.linalg.eigvalsh(h))
        assert int(known.inertia[i].sum()) == plan.num_inputs
        if w.min() > 1e-8 * w.max():
            assert int(known.status[i]) == OK
            assert np.linalg.norm(h @ x[i] - b) <= 1e-11 * (
                w.max() * np.linalg.norm(x[i]) + np.linalg.norm(b)
            )
            assert tuple(known.inertia[i].tolist()) == inertia_of(h)
        elif len(factorize(plan, sources).null):
            assert int(known.status[i]) == SINGULAR


def chain(horizon, nx=3, nu=2, seed=0):
    """A control problem with indefinite curvature, written as a scan."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(nx, nx)) / np.sqrt(nx), rng.normal(size=(nx, nu))

    def f(us):
        def stage(x, u):
            return a @ jnp.sin(x) + b @ u, x @ x + 0.3 * u @ u + 0.2 * jnp.sum(jnp.cos(2 * x)) * jnp.sum(u)

        x, costs = jax.lax.scan(stage, jnp.ones(nx), us)
        return costs.sum() + x @ x

    return f, jnp.asarray(0.3 * rng.normal(size=(horizon, nu)))


def structure_of(f, *args):
    return Objective(f).at(args).structure


def system(f, *args, order="auto", argnums=0):
    """(plan, sources, structure) of a function."""
    point = Objective(f, argnums).at(args)
    structure = point.structure
    run = jax.jit(lambda maps, data, x: linearize(structure, maps, data, x).sources)
    return make_plan(structure, order), np.asarray(run(structure.maps, point.data, point.x)), structure


QUICK = {"delay", "shared_parameters", "scenario_tree", "input_rate", "dicts_and_scalars"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_traced_programs_agree_with_the_reference_engine(name):
    f, args, *rest = PROGRAMS[name]()
    plan, sources, structure = system(f, *args, argnums=rest[0] if rest else 0)
    reference = factorize(plan, sources, 0.0, structure.eps)
    b = np.random.default_rng(0).normal(size=(plan.num_inputs, 1)).astype(sources.dtype)
    _, _, x, known = run(plan, sources, rhs=b, eps=structure.eps)
    assert tuple(known.inertia.tolist()) == reference.inertia
    if not len(reference.null):
        tol = 1e-10 if sources.dtype == np.float64 else 1e-4
        assert np.abs(x - reference.solve(b)).max() <= tol * np.abs(reference.solve(b)).max()


@pytest.mark.parametrize("order", ["causal", "cyclic_reduction"])
def test_a_chain_with_several_right_hand_sides(order):
    f, us = chain(40)
    plan, sources, _ = system(f, us, order=order)
    h = np.asarray(jax.hessian(lambda u: f(u.reshape(us.shape)))(us.ravel()))
    engine, b, x, known = run(plan, sources)
    size = np.linalg.norm(h, 2) * np.linalg.norm(x) + np.linalg.norm(b)
    assert np.linalg.norm(h @ x - b) <= 1e-12 * size
    assert tuple(known.inertia.tolist()) == inertia_of(h)
    more = np.random.default_rng(5).normal(size=(plan.num_inputs, 5))
    again = jax.jit(engine.solve)(engine.arrays, sources, known, more)
    assert np.linalg.norm(h @ again - more) <= 1e-11 * (np.linalg.norm(h, 2) * np.linalg.norm(again))


def test_cyclic_reduction_has_logarithmic_height_and_parallel_takes_it():
    steps = {}
    for horizon in (64, 512):
        f, us = chain(horizon, nx=4, nu=1)
        plan = make_plan(structure_of(f, us), "parallel")
        assert plan.order_name == "cyclic_reduction"
        engine = XlaEngine(plan, int(plan.source.max()) + 1)
        steps[horizon] = sum(segment.steps for segment in engine.layout.segments)
    assert steps[512] <= steps[64] + 6
    assert steps[512] < 30


def test_a_tree_stays_causal_where_that_is_as_parallel():
    g = gnewt.Graph()
    level = [g.constant(np.ones(2))]
    for _ in range(6):
        grown = []
        for x in level:
            u = g.input((1,))
            g.loss(lambda x, u: jnp.sum(x**2) + jnp.sum(u**2) + jnp.sum(x) * jnp.sum(u), x, u)
            grown += [g.node(lambda x, u, w=w: w * jnp.sin(x) + u, x, u) for w in (0.5, 1.0)]
        level = grown
    plan = make_plan(g.structure(), "parallel")
    assert plan.causal
    check_against_dense(plan, random_sources(plan, 0), shift=4.0)


@pytest.mark.parametrize("order", ["causal", "cyclic_reduction"])
def test_the_program_does_not_grow_with_the_horizon(order):
    lengths = []
    for horizon in (200, 400) if order == "causal" else (256, 1024):
        f, us = chain(horizon, nx=4, nu=1)
        plan = make_plan(structure_of(f, us), order)
        num = int(plan.source.max()) + 1
        engine = XlaEngine(plan, num)
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), engine.arrays)
        args = (
            shapes,
            jax.ShapeDtypeStruct((num,), float),
            0.0,
            jax.ShapeDtypeStruct((plan.num_inputs, 1), float),
        )
        lengths.append(str(jax.make_jaxpr(engine.factor_solve)(*args)).count(" = "))
    if order == "causal":
        assert lengths[1] == lengths[0]
    else:
        assert lengths[1] <= 2 * lengths[0]


# Numbers for which static pivots do not do


def loss_graph(num, losses):
    g = gnewt.Graph()
    u = [g.input(name=f"u{i}") for i in range(num)]
    for args in losses:
        g.loss(lambda *xs: jnp.sum(jnp.stack(xs)) ** 2 * jnp.prod(jnp.stack(xs)), *[u[i] for i in args])
    return g.structure()


def entry_sources(plan, matrix):
    """Sources that put `matrix` over the inputs of a plan without nodes."""
    sources = np.zeros(int(plan.source.max()) + 1)
    front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    seen = set()
    for s, t in zip(plan.source, plan.target, strict=True):
        names = np.concatenate([plan.eliminated(int(front[t])), plan.separator(int(front[t]))])
        if t not in seen:
            sources[s] = matrix[names[plan.entry_row[t]], names[plan.entry_col[t]]]
        seen.add(t)
    return sources


def test_product_and_square_at_any_scale():
    plan = make_plan(loss_graph(2, [(0, 1)]), "causal")
    scales = np.array([1e-9, 1.0, 1e9])
    product = entry_sources(plan, np.array([[0.0, 1.0], [1.0, 0.0]]))
    square = entry_sources(plan, np.array([[0.7, 0.7], [0.7, 0.7]]))
    engine = XlaEngine(plan, len(product))
    b = np.array([[3.0], [5.0]])
    call = jax.jit(jax.vmap(engine.factor_solve, (None, 0, None, None)))
    x, known = call(engine.arrays, scales[:, None] * product, 0.0, b)
    assert known.status.tolist() == [OK] * 3
    assert known.inertia.tolist() == [[1, 1, 0]] * 3
    assert np.allclose(x[:, :, 0] * scales[:, None], [5.0, 3.0], rtol=1e-12, atol=0)
    _, known = call(engine.arrays, scales[:, None] * square, 0.0, b)
    assert known.status.tolist() == [SINGULAR] * 3
    assert known.inertia.tolist() == [[1, 0, 1]] * 3
    assert known.null.sum(1).tolist() == [1] * 3


def test_a_chain_of_products_is_refined_on_the_device():
    """Every other pivot is exactly zero, and no front is clean: refinement gives the solution and the inertia."""
    structure = loss_graph(30, [(i, i + 1) for i in range(29)])
    matrix = np.diag(np.ones(29), 1) + np.diag(np.ones(29), -1)
    for order in ["causal", "nested_dissection"]:
        plan = make_plan(structure, order, merge=False)
        known = check_against_dense(plan, entry_sources(plan, matrix))
        assert known.inertia.tolist() == [15, 15, 0]
        assert int(known.factor.tier) in (CLEAN, REFINED)


def test_lanes_of_a_batch_take_their_own_way():
    """A clean lane, one with a zero pivot, a singular one, and one that is not finite; and other right-hand sides."""
    num = 60
    structure = loss_graph(num, [(i, i + 1) for i in range(num - 1)])
    plan = make_plan(structure, "causal")
    off = np.diag(np.ones(num - 1), 1) + np.diag(np.ones(num - 1), -1)
    regular, singular = 4 * np.eye(num) + off, 4 * np.eye(num) + off
    singular[5:7, 5:7] = 0
    singular[4, 5] = singular[5, 4] = singular[6, 7] = singular[7, 6] = 0
    lanes = [regular, off, singular, np.full((num, num), np.nan)]
    sources = np.stack([entry_sources(plan, m) for m in lanes])
    engine = XlaEngine(plan, sources.shape[1])
    b = np.random.default_rng(0).normal(size=(num, 2))

    def both(sources, b):
        x, known = engine.factor_solve(engine.arrays, sources, 0.0, b)
        return x, engine.solve(engine.arrays, sources, known, 2 * b), known

    x, twice, known = jax.jit(jax.vmap(both, (0, None)))(sources, b)
    assert known.status.tolist() == [OK, OK, SINGULAR, NONFINITE]
    assert known.factor.tier.tolist()[0] == CLEAN
    assert known.factor.tier.tolist()[2] == HOST
    assert known.inertia.tolist()[:3] == [[60, 0, 0], [30, 30, 0], [58, 0, 2]]
    for lane in (0, 1):
        assert np.allclose(lanes[lane] @ x[lane], b, atol=1e-11)
        assert np.allclose(twice[lane], 2 * x[lane], rtol=1e-9, atol=1e-12)
    assert np.all(np.isfinite(x[2]))
    assert np.all(np.isnan(x[3])) and np.all(np.isnan(twice[3]))


def test_zero_input_curvature_at_one_stage():
    """An unchecked pivot would return garbage here, silently: Q_uu = 0, but H is well conditioned."""
    for order in ["causal", "cyclic_reduction"]:
        plan = make_plan(structure_of(*chain(6, nx=1, nu=1)), order, merge=False)
        n, s = plan.num_inputs, plan.num_slots
        sources = random_sources(plan, 0) * 0
        front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
        for src, t in zip(plan.source, plan.target, strict=True):
            names = np.concatenate([plan.eliminated(int(front[t])), plan.separator(int(front[t]))])
            a, b = sorted([names[plan.entry_row[t]], names[plan.entry_col[t]]])
            same = np.flatnonzero(plan.target == t)
            if a == b:  # unit costs but for u_3 and the state it drives
                sources[src] = (0.0 if a in (3, n + 3) else 1.0) / len(same)
            else:
                sources[src] = (2.0 if b < s and a == 3 else 0.5) / len(same)
        h = dense_hessian(plan, sources)
        assert np.linalg.cond(h) < 1e3
        check_against_dense(plan, sources)


def test_float32_and_float64_of_one_plan():
    f, us = chain(20)
    plan, sources, _ = system(f, us, order="causal")
    h = dense_hessian(plan, sources, 1.0)
    for dtype in (np.float32, np.float64):
        _, b, x, known = run(plan, sources.astype(dtype), dtype(1.0))
        assert x.dtype == dtype
        size = np.linalg.norm(h, 2) * np.linalg.norm(x)
        assert np.linalg.norm(h @ x - b) <= 200 * np.finfo(dtype).eps * size
        assert tuple(known.inertia.tolist()) == inertia_of(h)


# The layout


def test_merged_plans_are_plans():
    for seed in range(12):
        structure = random_graph(seed).graph.structure()
        for order in ORDERS:
            plan = make_plan(structure, order, merge=False)
            merged = merge_fronts(plan)
            check_plan(merged)
            assert merged.num_fronts <= plan.num_fronts
            sources = random_sources(plan, seed)
            assert np.array_equal(dense_kkt(plan, sources), dense_kkt(merged, sources))


def test_irregular_trees_have_short_programs():
    """A deep tree in which no two levels look alike: few blocks, and every front has a place of its own."""
    rng = np.random.default_rng(0)
    num = 4000
    parent = np.minimum(np.arange(num) + 1 + rng.geometric(0.2, num), num - 1)
    parent[-1] = -1
    shapes = [
        FrontShape(1, 0, 1, 3),
        FrontShape(0, 4, 2, 9),
        FrontShape(12, 0, 6, 12),
        FrontShape(30, 0, 9, 20),
    ]
    class_of = rng.integers(0, 4, num)
    schedule = make_schedule(parent, shapes, class_of)
    blocks = schedule.blocks
    assert len(blocks) <= MAX_BLOCKS
    places = set(zip(schedule.block_of_front.tolist(), schedule.lane_of_front.tolist(), strict=True))
    assert len(places) == num
    begin = np.concatenate([[0], np.cumsum([s.steps for s in schedule.segments])])
    segment_of = np.repeat(np.arange(len(schedule.segments)), [len(s.blocks) for s in schedule.segments])
    width = np.array([b.width for _, b in blocks])
    step = (
        begin[segment_of[schedule.block_of_front]] + schedule.lane_of_front // width[schedule.block_of_front]
    )
    inner = parent >= 0
    assert np.all(step[inner] < step[parent[inner]])
    assert begin[-1] <= 3 * num
