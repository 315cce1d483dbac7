"""The native engine on thousands of random problems, judged by dense linear algebra: never a wrong answer without a word."""

import numpy as np
import pytest

from gnewt.kkt import factorize, native
from gnewt.kkt.native_layout import lay_out_native
from gnewt.plan import make_plan
from helpers.native_call import run
from helpers.random_kkt import KINDS, Dense, dense, random_sources, random_structure

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

ORDERS = ["causal_min_degree", "reverse_time", "min_degree", "nested_dissection", "hessian"]
REGULAR, SINGULAR = 1e-9, 1e-16
"""Pivots in natural units (1 = no cancellation): above the one a problem is regular, below the other singular."""


def check(number: int) -> str:
    """Check graph `number` with two sorts of numbers; return what kind of problem the last one was."""
    structure = random_structure(number)
    order = ORDERS[number % len(ORDERS)]
    plan = make_plan(structure, order)
    layout = None
    outcome = ""
    for kind in (KINDS[number // 5 % len(KINDS)], KINDS[(number // 5 + 4) % len(KINDS)]):
        rng = np.random.default_rng(number)
        sources = random_sources(structure, kind, rng)
        shift = float(rng.choice([0.0, 0.0, 0.3]) if kind in ("normal", "bilinear") else 0.0)
        layout = layout or lay_out_native(plan, len(sources))
        columns = int(rng.integers(1, 9))
        b = rng.normal(size=(plan.num_inputs, columns))
        exact = dense(structure, sources, shift)
        b = b / exact.unit[:, None]
        where = f"graph {number}, {order}, {kind}, shift {shift}"
        outcome = judge(where, exact, run(layout, sources, shift, b), b)
        if number % 8 == 0 and len(sources) and outcome == "regular" and kind not in ("objective", "units"):
            reference = factorize(plan, sources, shift)
            assert reference.inertia == run(layout, sources, shift, b).inertia, (where, reference.inertia)
            error = exact.backward_error(reference.solve(b), b)
            assert error <= 1e-8, (where, error)
    return outcome


def judge(where: str, exact: Dense, got, b: np.ndarray) -> str:
    """Compare an outcome with the dense Hessian."""
    w, size = exact.spectrum()
    positive, negative, zero = got.inertia
    assert positive + negative + zero == len(w) == len(b), where
    assert (got.status == "singular") == (zero > 0) == (len(got.null) > 0), (where, got.status, got.inertia)
    assert got.status in ("ok", "singular"), (where, got.status)
    assert np.all(np.isfinite(got.solution)), where
    pivots = exact.pivots()
    clear, nothing = pivots > REGULAR * size, pivots <= SINGULAR * size
    if np.all(clear):
        expected = int(np.sum(w > 0)), int(np.sum(w < 0)), 0
        assert got.inertia == expected, (where, got.inertia, expected, w)
        error = exact.backward_error(got.solution, b)
        assert error <= 1e-9, (where, error)
        assert exact.backward_error(got.again, b) <= 1e-9, where
        u = exact.unit
        logdet = np.sum(np.log(np.abs(w))) - 2 * np.sum(np.log(u))
        assert abs(got.logdet - logdet) <= 1e-6, (where, got.logdet, logdet)
        assert 0 < got.smallest_pivot < np.inf, where
        return "regular"
    if np.any(nothing):
        assert got.status == "singular", (where, got.inertia, pivots, size)
        assert got.logdet == -np.inf, where
        assert got.smallest_pivot == 0, where
        if np.all(clear | nothing):
            rank = int(np.sum(clear))
            large = w[np.argsort(-np.abs(w))[:rank]]
            expected = int(np.sum(large > 0)), int(np.sum(large < 0)), len(w) - rank
            assert got.inertia == expected, (where, got.inertia, expected, pivots)
        return "singular"
    # Between the two, an answer is good or is said to be none.
    assert got.status == "singular" or exact.backward_error(got.solution, b) <= 1e-6, where
    return "between"


def check_all(numbers: range) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number in numbers:
        outcome = check(number)
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


@pytest.mark.parametrize("block", range(3))
def test_random_problems(block):
    counts = check_all(range(100 * block, 100 * (block + 1)))
    assert counts["regular"] > 20
    assert counts["singular"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3, 100))
def test_ten_thousand_random_problems(block):
    counts = check_all(range(100 * block, 100 * (block + 1)))
    assert counts["regular"] > 20
    assert counts["singular"] > 5
