"""How time, memory, planning and compiling grow with the length of a chain with (nx, nu) = (4, 1).

    python benchmarks/scaling.py            → results/scaling-<isa>.{json,md}

Each length runs in a process of its own, so that its peak memory is its own. The chain is a `lax.scan` that gnewt traces.
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


def measure(T: int) -> dict[str, Any]:
    """Measure one length in this process."""
    us = 0.1 * np.sin(0.01 * np.arange(T))[:, None]
    baseline = _peak()
    begin = time.perf_counter()
    parts = Native(cost, us)
    ready = time.perf_counter()
    # Trace and plan again, now that JAX is warm: nothing is cached between two objectives.
    again = gnewt.newton.Objective(lambda us: cost(us)).at((us,))
    traced = time.perf_counter()
    gnewt.newton.system_of(again)
    planned = time.perf_counter()
    del again
    lowered = jax.jit(gnewt.newton_step(cost)).lower(us)
    compiling = time.perf_counter()
    step = lowered.compile()
    compiled = time.perf_counter()
    times = interleave({"newton_step": lambda: step(us), "factor + solve": parts.run})
    return {
        "T": T,
        "newton_step ns/stage": 1e9 * times["newton_step"] / T,
        "factor + solve ns/stage": 1e9 * times["factor + solve"] / T,
        "trace s": traced - ready,
        "plan s": planned - traced,
        "compile s": compiled - compiling,
        "first use s": ready - begin,
        "peak GB": _peak() / 1e9,
        "bytes/stage": (_peak() - baseline) / T,
        "residual": parts.residual(np.asarray(step(us)).ravel()),
    } | parts.describe()


def _peak() -> int:
    """Most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", type=int, help="measure this length here and print it as JSON")
    one = parser.parse_args().one
    if one is not None:
        print(json.dumps(measure(one)))
        return
    rows = []
    for T in LENGTHS:
        command = [sys.executable, __file__, "--one", str(T)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
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
            "trace, plan: of a new objective in a warm process; compile: XLA, of the whole newton_step; peak: with everything, also Python."
        ],
    )


if __name__ == "__main__":
    main()
