"""Random programs: every step is exact, or H is singular and rightly so, or the program is refused with a reason.

A finding prints its seed: `helpers.random_judge.judge(seed)` repeats it.
"""

import jax
import numpy as np
import pytest

import helpers.fatal_seeds
from helpers.random_judge import judge
from helpers.random_programs import STEPS, draft_program
from helpers.seed_pool import Work, run_seeds

QUICK = 12
"""Programs of the quick suite: about 3 s of one core each, nearly all of it compilation."""
ALL, BLOCK = 2000, 25


def run(seeds: range) -> None:
    verdicts = [judge(seed) for seed in seeds]
    jax.clear_caches()
    assert [v for v in verdicts if not v.is_right] == []
    assert sum(v.outcome == "exact" for v in verdicts) > 0.7 * len(verdicts)


def test_random_programs():
    run(range(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, ALL, BLOCK))
def test_many_random_programs(start):
    run(range(start, min(start + BLOCK, ALL)))


def test_programs_are_reproducible_and_varied():
    used = set()
    for seed in range(60):
        _, point, names, inside = draft_program(seed)
        again = draft_program(seed)
        assert (names, inside) == again[2:]
        used |= {*names, *inside}
        for a, b in zip(jax.tree.leaves(point(0)), jax.tree.leaves(again[1](0)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert a.dtype == (np.float32 if seed % 5 == 4 else np.float64)
    assert used >= set(STEPS)


def test_a_run_survives_programs_that_kill_their_process_or_hang():
    found = {
        r["seed"]: r["outcome"]
        for r in run_seeds(Work(helpers.fatal_seeds.judge), range(6), 1, each=1.0, limit=1e3)
    }
    assert found == {0: "exact", 1: "crashed", 2: "timed out", 3: "exact", 4: "exact", 5: "exact"}
