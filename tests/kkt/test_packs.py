"""Batches in the native engine: problems with one plan side by side in the lanes of vectors, judged one by one."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import Structure
from gnewt.kkt import EliminationStatus
from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.plan import make_plan
from helpers.kkt_judge import judge
from helpers.native_call import run, run_many
from helpers.random_kkt import (
    KINDS,
    dense,
    random_chain,
    random_line,
    random_sources,
    random_structure,
    random_tree,
)

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")


def check(number: int, make: Callable[[int], Structure]) -> tuple[list[str], int]:
    """Eight problems with one structure, of several kinds; what they were, and how many differ from a call alone by rounding."""
    structure = make(number)
    plan = make_plan(structure, ("causal_min_degree", "reverse_time")[number % 2], merge=number % 3 > 0)
    rng = np.random.default_rng(number)
    count = int(rng.integers(3, 9))
    sources = [random_sources(structure, KINDS[(number + i) % len(KINDS)], rng) for i in range(count)]
    shifts = [0.3 * (i % 2) for i in range(count)]
    layout = lay_out_native(plan, len(sources[0]))
    exact = [dense(structure, s, mu) for s, mu in zip(sources, shifts, strict=True)]
    sides = [rng.normal(size=(plan.num_inputs, 1)) / e.unit[:, None] for e in exact]
    found = run_many(layout, sources, shifts, sides)
    outcomes, differ = [], 0
    for i in range(count):
        outcomes.append(judge(f"graph {number}, problem {i}", exact[i], found[i], sides[i]))
        alone = run(layout, sources[i], shifts[i], sides[i])
        assert alone.status == found[i].status, (number, i)
        differ += not np.array_equal(alone.solution, found[i].solution)
    return outcomes, differ


@pytest.mark.parametrize("make", [random_structure, random_chain, random_line, random_tree])
def test_packs_of_random_problems(make):
    found = [check(number, make) for number in range(40)]
    outcomes = Counter(o for each, _ in found for o in each)
    total = sum(outcomes.values())
    assert outcomes["regular"] > total // 3, outcomes
    assert outcomes["singular"] > total // 10, outcomes  # which leave the pack
    assert outcomes["false alarm"] + outcomes["missed"] + outcomes["wrong rank"] <= total // 20, outcomes
    assert sum(differ for _, differ in found) > 20, "no problem was eliminated in a pack"


def test_single_precision():
    structure = random_line(4)
    plan = make_plan(structure, "causal_min_degree")
    rng = np.random.default_rng(0)
    sources = [random_sources(structure, "normal", rng) for _ in range(8)]
    layout = lay_out_native(plan, len(sources[0]))
    sides = [rng.normal(size=(plan.num_inputs, 1)) for _ in range(8)]
    found = run_many(layout, sources, [0.0] * 8, sides, np.float32)
    for s, b, got in zip(sources, sides, found, strict=True):
        alone = run(layout, s, 0.0, b, np.float32)
        assert alone.status == got.status
        assert alone.inertia == got.inertia
        np.testing.assert_allclose(
            got.solution, alone.solution, rtol=0, atol=1e-3 * np.abs(alone.solution).max()
        )


def swing(us, start=0.5, weight=0.1):
    def stage(x, u):
        return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]))]), weight * u**2 + jnp.cos(x[0])

    x, costs = jax.lax.scan(stage, jnp.array([1.0, 0.0]) * start, us)
    return costs.sum() + x[1] ** 2


def test_a_batch_of_steps_is_the_steps_of_its_elements():
    """Data that differ between lanes, and such that all share; indefinite lanes among others."""
    rng = np.random.default_rng(0)
    us, starts = jnp.asarray(rng.normal(size=(13, 20))), jnp.asarray(rng.normal(size=13))
    step = gnewt.newton_step(swing, full_output=True)
    found, info = jax.jit(jax.vmap(step, (0, 0)))(us, starts)
    alone = jax.jit(step)
    for i in range(13):
        one, about = alone(us[i], starts[i])
        np.testing.assert_allclose(found[i], one, rtol=0, atol=1e-11 * np.abs(one).max())
        np.testing.assert_array_equal(info.counts[i], about.counts)
        np.testing.assert_allclose(info.logdet[i], about.logdet, rtol=1e-12)
    assert len({tuple(c) for c in np.asarray(info.counts).tolist()}) > 1, "all of one inertia"


def test_a_shift_of_nan_asks_for_nothing():
    factor = gnewt.factorize(swing)(jnp.zeros(20))
    system, models = factor.system, factor.models

    def eliminate(shift):
        return system.factor_solve(models, shift, jnp.ones(20))

    shifts = jnp.array([1.0, jnp.nan, 2.0, 3.0, jnp.nan, 4.0])
    x, found = jax.jit(jax.vmap(eliminate))(shifts)
    left_out = np.isnan(shifts)
    assert np.isnan(x[left_out]).all()
    assert np.isfinite(x[~left_out]).all()
    assert (np.asarray(found.status)[left_out] == EliminationStatus.NONFINITE).all()
    again = jax.jit(jax.vmap(lambda e: system.solve(models, e, jnp.ones(20))))(found)
    np.testing.assert_allclose(again[~left_out], x[~left_out], rtol=1e-10)
    assert np.isnan(again[left_out]).all()


def test_python_threads():
    """Eight threads, equal and different functions, single problems and batches that share the pool."""
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(256, 20)))  # enough for threads
    functions = [lambda us, w=w: swing(us, 0.4, w) for w in (0.1, 0.2)] + [lambda us: jnp.sum(jnp.cosh(us))]
    steps = [jax.jit(jax.vmap(gnewt.newton_step(f))) for f in functions]
    wanted = [np.asarray(step(batch)) for step in steps]

    def work(number):
        which = number % len(functions)
        one = gnewt.newton_step(functions[which])(batch[number])  # traced, looked up and run by each thread
        return which, number, np.asarray(one), np.asarray(steps[which](batch))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(32)))
    for which, number, one, all_of_them in found:
        np.testing.assert_array_equal(all_of_them, wanted[which])
        np.testing.assert_allclose(one, wanted[which][number], rtol=0, atol=1e-10)
