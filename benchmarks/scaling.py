"""How time, memory, planning and compiling grow with the length of a chain with (nx, nu) = (4, 1).

    python benchmarks/scaling.py            → results/scaling-<isa>.{json,md}

Each length runs in processes of its own, so that its peak memory is its own. The chain is a `lax.scan` that gnewt traces.
"""

from __future__ import annotations

from harness import Figure, interleave, isa, report  # first: it fixes the threads

# isort: split

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from solvers import Native

import gnewt
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of

NX, NU = 4, 1
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)


def cost(us: Any) -> Any:
    """A mildly nonlinear chain of masses and springs."""

    def stage(x: Any, u: Any) -> Any:
        p, v = x[:2], x[2:]
        spring = jnp.stack(
            [u[0] - jnp.sin(p[0]) + 0.2 * (p[1] - p[0]), 0.2 * (p[0] - p[1]) - 0.5 * p[1] ** 3]
        )
        new = jnp.concatenate([p + 0.05 * v, 0.98 * v + 0.05 * spring])
        return new, 0.5 * jnp.sum(x**2) + 0.1 * u[0] ** 2

    x, costs = jax.lax.scan(stage, jnp.ones(NX), us)
    return costs.sum() + jnp.sum(x**2)


def whole(T: int) -> dict[str, Any]:
    """Measure newton_step alone in this process: its time, its compilation, all the memory that it ever needs."""
    us = _inputs(T)
    before = _peak()
    lowered = jax.jit(gnewt.newton_step(cost)).lower(us)
    lowering = time.perf_counter()
    step = lowered.compile()
    compiled = time.perf_counter()
    best = interleave({"newton_step": lambda: step(us)})["newton_step"]
    return {
        "T": T,
        "newton_step ns/stage": 1e9 * best / T,
        "compile s": compiled - lowering,
        "peak GB": _peak() / 1e9,
        "bytes/stage": (_peak() - before) / T,
    }


def parts(T: int) -> dict[str, Any]:
    """Measure the parts in this process: tracing, planning, factor and solve."""
    us = _inputs(T)
    system_of(Objective(cost).at((us[:10],)))  # so that what JAX does once is not counted
    begin = time.perf_counter()
    point = Objective(cost).at((us,))
    traced = time.perf_counter()
    system_of(point)
    planned = time.perf_counter()
    del point
    solver = Native(cost, us)
    best = interleave({"factor + solve": solver.run})["factor + solve"]
    return {
        "factor + solve ns/stage": 1e9 * best / T,
        "trace s": traced - begin,
        "plan s": planned - traced,
        "residual": solver.residual(solver.step()),
    } | solver.describe()


PARTS = {"whole": whole, "parts": parts}


def _inputs(T: int) -> np.ndarray:
    return 0.1 * np.sin(0.01 * np.arange(T))[:, None]


def _peak() -> int:
    """Most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--one", nargs=2, metavar=("PART", "T"), help="measure this here and print it as JSON"
    )
    one = parser.parse_args().one
    if one is not None:
        print(json.dumps(PARTS[one[0]](int(one[1]))))
        return
    rows = []
    for T in LENGTHS:
        row = {}
        for part in PARTS:
            command = [sys.executable, __file__, "--one", part, str(T)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            row |= json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        print(row, flush=True)
    of = {row["T"]: row for row in rows}
    long, middle, short = of[1_000_000], of[100_000], of[10_000]
    key = "factor + solve ns/stage"
    report(
        f"scaling-{isa()}",
        f"A chain of ({NX}, {NU}) as it grows ({isa()})",
        {"Lengths": rows},
        [
            Figure("factor + solve, time per stage at T=10⁶ / at 10⁴", long[key] / short[key], "<=", 2),
            Figure(
                "newton_step, time per stage at T=10⁶ / at 10⁴",
                long["newton_step ns/stage"] / short["newton_step ns/stage"],
                "<=",
                2,
            ),
            Figure("peak memory at T=10⁶", long["peak GB"], "<=", 4, "GB"),
            Figure("trace + plan at T=10⁵", middle["trace s"] + middle["plan s"], "<=", 3, "s"),
        ],
        [
            "trace, plan: of a new objective in a warm process; compile: XLA, of newton_step; peak: of a process that traces, plans, compiles "
            "and runs newton_step, with Python and JAX."
        ],
    )


if __name__ == "__main__":
    main()
