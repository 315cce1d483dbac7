"""The native engine against the reference engine and against dense linear algebra, on numbers of any kind."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnewt
from gnewt.kkt import EliminationStatus, factorize
from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.engine import Mode, factor_solve, solve
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.plan import make_plan
from helpers.native_factor import factorize_native
from helpers.oracle import inertia_of
from helpers.random_graphs import random_graph, random_order

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

ORDERS = ["causal", "causal_min_fill", "min_degree", "nested_dissection", "hessian", "random"]


def plan_of(problem, order, seed=0):
    structure = problem.graph.structure()
    given = [problem.graph.slots(h) for h in random_order(problem, seed)] if order == "random" else order
    return make_plan(structure, given)


def random_sources(plan, seed, zeros=0.0):
    rng = np.random.default_rng(seed)
    num = int(plan.source.max(initial=-1)) + 1
    return rng.normal(size=num) * (rng.random(num) >= zeros)


def dense_hessian(plan, sources, shift=0.0):
    """H of the numbers in a plan: K assembled from its entries, without any elimination tree."""
    num = plan.num_unknowns
    values = np.bincount(plan.target, sources[plan.source], minlength=plan.num_entries)
    values[plan.pair_entry] -= 1.0
    values[plan.input_entry] += shift
    k = np.zeros((num, num))
    for i in range(plan.num_fronts):
        names = np.concatenate([plan.eliminated(i), plan.separator(i)])
        mine = slice(plan.entry_ptr[i], plan.entry_ptr[i + 1])
        row, col = names[plan.entry_row[mine]], names[plan.entry_col[mine]]
        k[row, col] = k[col, row] = values[mine]
    n = plan.num_inputs
    return k[:n, :n] - k[:n, n:] @ np.linalg.solve(k[n:, n:], k[n:, :n])


def check_against_dense(plan, sources, shift=0.0, tol=1e-10):
    h = dense_hessian(plan, sources, shift)
    factor = factorize_native(plan, sources, shift)
    b = np.random.default_rng(0).normal(size=(plan.num_inputs, 2))
    x = factor.solve(b)
    size = np.linalg.norm(h, 2) * np.linalg.norm(x) + np.linalg.norm(b)
    assert np.linalg.norm(h @ x - b) <= tol * size
    assert np.allclose(factor.solve(b[:, 0]), x[:, 0], rtol=1e-9, atol=1e-9 * np.abs(x).max())
    assert factor.inertia == inertia_of(h)
    assert factor.logdet == pytest.approx(np.linalg.slogdet(h)[1], abs=1e-8)
    assert factor.status == "ok"
    assert len(factor.null) == 0
    assert 0 < factor.smallest_pivot < np.inf
    return factor


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_along_all_orders(seed):
    problem = random_graph(seed)
    for order in ORDERS:
        plan = plan_of(problem, order, seed)
        factor = check_against_dense(plan, random_sources(plan, seed), shift=0.3)
        reference = factorize(plan, random_sources(plan, seed), 0.3)
        b = np.random.default_rng(1).normal(size=plan.num_inputs)
        x = reference.solve(b)
        assert np.abs(factor.solve(b) - x).max() <= 1e-10 * np.abs(x).max(), order
        assert factor.inertia == reference.inertia
        assert plan.causal or factor.mode == Mode.GENERAL


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 400),
    numbers=st.integers(0, 2**32 - 1),
    order=st.sampled_from(ORDERS),
    zeros=st.sampled_from([0.0, 0.3, 0.7, 0.95]),
    scale=st.sampled_from([1e-15, 1.0, 1e15]),
)
def test_no_wrong_answer_is_silent(seed, numbers, order, zeros, scale):
    """Whatever the numbers: a solution to rounding, or a status that says there is none."""
    plan = plan_of(random_graph(seed), order, seed)
    sources = random_sources(plan, numbers, zeros)
    factor = factorize_native(plan, sources, 0.0)
    h = dense_hessian(plan, sources)
    positive, negative, zero = factor.inertia
    assert positive + negative + zero == plan.num_inputs
    assert len(factor.null) == zero
    w = np.abs(np.linalg.eigvalsh(h))
    condition = w.max() / w.min() if w.min() > 0 else np.inf
    if condition < 1e8:
        assert factor.status == "ok"
        assert factor.inertia == inertia_of(h)
        b = np.random.default_rng(0).normal(size=plan.num_inputs)
        x = factor.solve(b)
        assert np.linalg.norm(h @ x - b) <= 1e-8 * (
            np.linalg.norm(h, 2) * np.linalg.norm(x) + np.linalg.norm(b)
        )
    elif np.linalg.matrix_rank(h, tol=1e-13 * max(w.max(), 1e-300)) < plan.num_inputs and zeros > 0.5:
        assert factor.status == "singular" or factor.smallest_pivot <= 1e-12 * w.max()
        assert np.all(np.isfinite(factor.solve(np.ones(plan.num_inputs))))
    # The scale of the objective changes neither status nor inertia: only Hessian entries carry it.
    scaled = sources * np.where(_is_hessian(plan), scale, 1.0)
    if condition < 1e8:
        assert factorize_native(plan, scaled, 0.0).inertia == factor.inertia


def _is_hessian(plan):
    """Which sources stand between two slots, not between a dual and a slot."""
    front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    names = [np.concatenate([plan.eliminated(i), plan.separator(i)]) for i in range(plan.num_fronts)]
    dual = np.array(
        [
            names[f][r] >= plan.num_slots or names[f][c] >= plan.num_slots
            for f, r, c in zip(front, plan.entry_row, plan.entry_col, strict=True)
        ]
    )
    out = np.ones(int(plan.source.max(initial=-1)) + 1, bool)
    out[plan.source] = ~dual[plan.target]
    return out


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


@pytest.mark.parametrize("scale", [1e-20, 1e-9, 1.0, 1e9, 1e20])
def test_product_and_square_at_any_scale(scale):
    plan = make_plan(loss_graph(2, [(0, 1)]), "causal")
    product = factorize_native(plan, entry_sources(plan, scale * np.array([[0.0, 1.0], [1.0, 0.0]])))
    assert product.inertia == (1, 1, 0)
    assert np.allclose(product.solve(np.array([3.0, 5.0])) * scale, [5.0, 3.0])
    square = factorize_native(plan, entry_sources(plan, scale * 0.7 * np.ones((2, 2))))
    assert square.status == "singular"
    assert square.inertia == (1, 0, 1)
    assert len(square.null) == 1


def test_chain_of_products_delays_pivots():
    structure = loss_graph(30, itertools.pairwise(range(30)))
    matrix = np.diag(np.ones(29), 1) + np.diag(np.ones(29), -1)
    for order in ["causal", "nested_dissection"]:
        plan = make_plan(structure, order)
        factor = check_against_dense(plan, entry_sources(plan, matrix))
        assert factor.inertia == (15, 15, 0)
        assert factor.mode == Mode.GENERAL


def chain(T=8, nx=3, nu=2):
    g = gnewt.Graph()
    u = [g.input((nu,), name=f"u{t}") for t in range(T)]
    x = g.constant(np.ones(nx))
    for t in range(T):
        g.loss(lambda x, u: jnp.sum(x) ** 2 * jnp.sum(u) ** 2, x, u[t])
        x = g.node(lambda x, u: jnp.sum(x) ** 2 * jnp.sum(u) * jnp.ones(nx), x, u[t])
    g.loss(lambda x: jnp.sum(x) ** 4, x)
    return g.structure()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_chain_goes_the_fast_way(dtype):
    plan = make_plan(chain(), "causal")
    sources = random_sources(plan, 3).astype(dtype)
    factor = factorize_native(plan, sources, 5.0)
    assert factor.mode == Mode.CAUSAL
    h = dense_hessian(plan, sources.astype(np.float64), 5.0)
    b = np.random.default_rng(0).normal(size=(plan.num_inputs, 3))
    size = np.linalg.norm(h, 2) * np.linalg.norm(factor.solve(b))
    assert np.linalg.norm(h @ factor.solve(b) - b) <= 100 * np.finfo(dtype).eps * size
    assert factor.inertia == inertia_of(h)


def test_zero_input_curvature_at_one_stage():
    """An unchecked pivot would return garbage here, silently: Q_uu = 0, but H is well conditioned."""
    for order in ["causal", "nested_dissection", "hessian"]:
        plan = make_plan(chain(T=6, nx=1, nu=1), order)
        matrix_like = np.where(_is_hessian(plan), 0.0, 0.5)
        front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
        for s, t in zip(plan.source, plan.target, strict=True):
            f = int(front[t])
            names = np.concatenate([plan.eliminated(f), plan.separator(f)])
            a, b = sorted([names[plan.entry_row[t]], names[plan.entry_col[t]]])
            if a == b:
                matrix_like[s] = 1.0 if a < plan.num_inputs else 0.0
                if a in (3, plan.num_inputs + 3):  # u_3, and the state that it drives, have no curvature
                    matrix_like[s] = 0.0
            elif b < plan.num_slots and a == 3:
                matrix_like[s] = 2.0  # its coupling with the state makes H regular
        h = dense_hessian(plan, matrix_like)
        assert abs(h[3, 3]) < 1.0
        assert np.linalg.cond(h) < 1e3
        check_against_dense(plan, matrix_like)


def test_float32_on_a_free_plan():
    problem = random_graph(1)
    plan = plan_of(problem, "random", 1)
    sources = random_sources(plan, 1).astype(np.float32)
    h = dense_hessian(plan, sources.astype(np.float64), 2.0)
    factor = factorize_native(plan, sources, 2.0)
    b = np.ones(plan.num_inputs)
    x = factor.solve(b)
    size = np.linalg.norm(h, 2) * np.linalg.norm(x) + np.linalg.norm(b)
    assert np.linalg.norm(h @ x - b) <= 1e-4 * size
    assert factor.inertia == inertia_of(h)


def test_not_finite_numbers_have_a_status():
    for order in ["causal", "nested_dissection", "hessian"]:
        plan = make_plan(chain(), order)
        for bad in [np.nan, np.inf]:
            sources = random_sources(plan, 0)
            sources[len(sources) // 2] = bad
            factor = factorize_native(plan, sources)
            assert factor.status == "nonfinite"
            assert np.all(np.isnan(factor.solve(np.ones(plan.num_inputs))))


def test_jit_and_vmap_over_any_operand():
    plan = make_plan(chain(T=4), "causal")
    layout = lay_out_native(plan, int(plan.source.max()) + 1)
    batch = np.stack([random_sources(plan, s) for s in range(6)]).reshape(2, 3, -1)
    b = np.random.default_rng(0).normal(size=(plan.num_inputs, 1))
    shifts = np.linspace(1.0, 3.0, 3)

    def run(sources, shift):
        solved = factor_solve(layout, sources, shift, jnp.asarray(b))
        return solved.solution, solve(layout, sources, solved, 2 * jnp.asarray(b)), solved.status

    nested = jax.jit(jax.vmap(jax.vmap(run), in_axes=(0, None)))
    x, twice, status = nested(jnp.asarray(batch), jnp.asarray(shifts))
    assert np.all(status == 0)
    for i, j in itertools.product(range(2), range(3)):
        expected = factorize_native(plan, batch[i, j], float(shifts[j])).solve(b)
        assert np.allclose(x[i, j], expected, rtol=1e-12)
        assert np.allclose(twice[i, j], 2 * expected, rtol=1e-12)
    only_shift = jax.vmap(lambda s: run(jnp.asarray(batch[0, 0]), s)[0])(jnp.asarray(shifts))
    assert np.allclose(only_shift[2], factorize_native(plan, batch[0, 0], 3.0).solve(b), rtol=1e-12)


@pytest.mark.parametrize("order", ["causal", "nested_dissection"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mapped", [m for m in itertools.product([False, True], repeat=3) if any(m)])
def test_vmap_over_any_subset_of_operands(order, dtype, mapped):
    plan = make_plan(chain(T=4), order)
    layout = lay_out_native(plan, int(plan.source.max()) + 1)
    rng = np.random.default_rng(0)
    sources = np.stack([random_sources(plan, s) for s in range(3)]).astype(dtype)
    shifts, rhs = np.array([2.0, 3.0, 4.0], dtype), rng.normal(size=(3, plan.num_inputs, 2)).astype(dtype)
    operands = [o if m else o[0] for o, m in zip((sources, shifts, rhs), mapped, strict=True)]

    @jax.jit
    def run(array, *operands):
        def one(sources, shift, rhs):
            solved = factor_solve(layout, sources, shift, rhs, array)
            return solved.solution, solve(layout, sources, solved, rhs, array), solved.inertia, solved.null

        return jax.vmap(one, in_axes=tuple(0 if m else None for m in mapped))(*operands)

    x, again, inertia, null = run(jnp.asarray(layout.array), *operands)
    assert x.dtype == dtype
    assert null.shape == (3, plan.num_unknowns)
    for i in range(3):
        numbers, shift, b = (o[i] if m else o for o, m in zip(operands, mapped, strict=True))
        h = dense_hessian(plan, numbers.astype(np.float64), float(shift))
        size = np.linalg.norm(h, 2) * np.linalg.norm(x[i]) + np.linalg.norm(b)
        assert np.linalg.norm(h @ x[i] - b) <= 200 * np.finfo(dtype).eps * size
        assert np.linalg.norm(x[i] - again[i]) <= 1e4 * np.finfo(dtype).eps * np.linalg.norm(x[i])
        assert tuple(np.asarray(inertia[i])) == inertia_of(h)


@pytest.mark.parametrize("order", ["causal", "min_degree"])
def test_any_number_of_columns(order):
    plan = make_plan(chain(T=5), order)
    sources = random_sources(plan, 1)
    factor = factorize_native(plan, sources, 3.0)
    b = np.random.default_rng(0).normal(size=(plan.num_inputs, 8))
    h = dense_hessian(plan, sources, 3.0)
    expected = np.linalg.solve(h, b)
    layout = lay_out_native(plan, len(sources))
    for columns in range(1, 9):
        both = (
            factor_solve(layout, jnp.asarray(sources), 3.0, jnp.asarray(b[:, :columns])).solution,
            factor.solve(b[:, :columns]),
        )
        for x in both:
            assert np.allclose(x, expected[:, :columns], rtol=1e-9, atol=1e-11)


def test_two_threads_at_once():
    """No state is shared between calls: two compiled functions run side by side, and each gets its own answer."""
    jobs = []
    for order, seed in [("causal", 0), ("nested_dissection", 1)]:
        plan = make_plan(chain(T=30), order)
        layout = lay_out_native(plan, int(plan.source.max()) + 1)
        run = jax.jit(lambda a, s, b, layout=layout: factor_solve(layout, s, 4.0, b, a).solution)
        operands = (
            jnp.asarray(layout.array),
            jnp.asarray(random_sources(plan, seed)),
            jnp.ones((plan.num_inputs, 1)),
        )
        jobs.append((run, operands, np.asarray(run(*operands))))

    def repeat(job):
        run, operands, expected = job
        return all(np.array_equal(np.asarray(run(*operands)), expected) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, jobs * 2))


def test_a_factor_that_outgrew_its_buffers_is_made_again():
    structure = loss_graph(30, itertools.pairwise(range(30)))
    plan = make_plan(structure, "causal", merge=False)  # merged fronts need no delays here
    sources = entry_sources(plan, np.diag(np.ones(29), 1) + np.diag(np.ones(29), -1))
    small = dataclasses.replace(lay_out_native(plan, len(sources)), index_size=-200)
    b = jnp.asarray(np.random.default_rng(0).normal(size=(30, 1)))
    solved = factor_solve(small, jnp.asarray(sources), 0.0, b)
    assert not solved.kept
    assert np.array_equal(solve(small, jnp.asarray(sources), solved, b), solved.solution)


@pytest.mark.parametrize("order", ["causal", "reverse_time", "min_degree", "nested_dissection"])
def test_terminal_cost_only(order):
    """H has the rank of the terminal cost; rounding in what the last stages leave of it is nobody's pivot."""
    T, nx, nu = 40, 4, 1
    plan = make_plan(chain(T=T, nx=nx, nu=nu), order)
    rng = np.random.default_rng(0)
    hessian = _is_hessian(plan)
    sources = np.where(hessian, 0.0, rng.normal(size=len(hessian)) / 2)
    front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    last = range(plan.num_slots - nx, plan.num_slots)
    for s, t in zip(plan.source, plan.target, strict=True):
        names = np.concatenate([plan.eliminated(int(front[t])), plan.separator(int(front[t]))])
        if (
            hessian[s]
            and names[plan.entry_row[t]] == names[plan.entry_col[t]]
            and names[plan.entry_row[t]] in last
        ):
            sources[s] = 1.0
    factor = factorize_native(plan, sources)
    assert factor.status == "singular"
    assert factor.inertia == (nx, 0, T * nu - nx)
    assert np.all(np.isfinite(factor.solve(np.ones(T * nu))))


def test_one_failed_pivot_leaves_the_other_fronts_alone():
    """Q_uu = 0 at one stage in the middle of a chain: a few unknowns are delayed, not all."""
    T = 50
    g = gnewt.Graph()
    u = [g.input((2,), name=f"u{t}") for t in range(T)]
    x = g.constant(np.ones(3))
    for t in range(T):
        g.loss(lambda x, u: jnp.sum(x) ** 2 * jnp.sum(u) ** 2, x, u[t])
        x = g.node(lambda x, u: jnp.sum(x) ** 2 * jnp.sum(u) * jnp.ones(3), x, u[t])
    g.loss(lambda x: jnp.sum(x) ** 4, x)
    plan = make_plan(g.structure(), "causal")
    rng = np.random.default_rng(0)
    hessian = _is_hessian(plan)
    sources = np.where(hessian, 0.0, rng.normal(size=len(hessian)) / 2)
    front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    for s, t in zip(plan.source, plan.target, strict=True):
        names = np.concatenate([plan.eliminated(int(front[t])), plan.separator(int(front[t]))])
        a, b = sorted([names[plan.entry_row[t]], names[plan.entry_col[t]]])
        if a == b and a < plan.num_inputs:
            sources[s] = 0.0 if a in (50, 51) else 1.0
        elif a in (50, 51) and plan.num_inputs <= b < plan.num_slots:
            sources[s] = rng.normal()
    factor = check_against_dense(plan, sources)
    assert 0 < factor.num_delayed <= 8


def test_a_layout_stores_every_source_once_where_it_belongs():
    """The blocks of a layout, expanded again, are the entries of the plan."""
    for seed, order in itertools.product(range(4), ORDERS):
        plan = plan_of(random_graph(seed), order, seed)
        num = int(plan.source.max(initial=-1)) + 1
        array = lay_out_native(plan, num).array.astype(np.int64)
        assert array[1] == plan.num_fronts
        seen = []
        for f in range(plan.num_fronts):
            shape_at, _, source_at, _ = array[array[5] + 4 * f : array[5] + 4 * f + 4]
            shape = array[array[6] + shape_at :]
            for k in range(shape[4]):
                _, _, rows, length, dlen, step, dstep, _, _ = shape[11 + 9 * k : 20 + 9 * k]
                start = array[array[8] + source_at + k]
                for i in range(rows):
                    at = start + i * step + dstep * i * (i - 1) // 2
                    seen += range(at, at + length + i * dlen)
        assert sorted(seen) == sorted(plan.source.tolist())


def test_a_plan_that_does_not_fit_is_refused():
    plan = make_plan(chain(T=2), "causal")
    num = int(plan.source.max()) + 1
    layout = lay_out_native(plan, num)
    solved = factor_solve(layout, jnp.ones(num - 1), 0.0, jnp.ones((plan.num_inputs, 1)))
    assert solved.status == EliminationStatus.BAD_PLAN
    assert np.all(np.isnan(solved.solution))
