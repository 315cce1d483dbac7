"""Batches on a CPU: steps, eliminations and whole solutions of many problems, on one core and on several.

python benchmarks/batches.py                 one core and two, results/batches.md
python benchmarks/batches.py --cores 1,16 --size 1024
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

HORIZON = 50
MANY = 0.1
"""Share of the problems that are solved one by one, to measure the rate."""


def child(size: int) -> dict[str, list[dict[str, Any]]]:
    """Measure with the cores that `GNEWT_BENCH_CORES` gives this process."""
    import harness  # before JAX: it sets the threads

    return {
        "steps": [step_row(harness, name, size) for name in ("Euler", "Runge-Kutta")],
        "eliminations": [riccati_row(harness, size)],
        "solutions": [solution_row(size)] if os.environ.get("GNEWT_BENCH_CORES") == "1" else [],
    }


def cost(kind: str) -> Any:
    """The cost of a cartpole's swing-up in 50 steps, from a start of its own."""
    import jax
    import jax.numpy as jnp
    from light_programs import pole

    h = 0.05

    def euler(x: Any, u: Any) -> Any:
        return x + h * pole(x, u)

    def runge_kutta(x: Any, u: Any) -> Any:
        a = pole(x, u)
        b = pole(x + h / 2 * a, u)
        c = pole(x + h / 2 * b, u)
        d = pole(x + h * c, u)
        return x + h / 6 * (a + 2 * b + 2 * c + d)

    advance = euler if kind == "Euler" else runge_kutta

    def total(us: Any, start: Any) -> Any:
        def stage(x: Any, u: Any) -> tuple[Any, Any]:
            return advance(x, u), 0.1 * u**2 + 0.05 * (1 - jnp.cos(x[1])) + 0.01 * x[0] ** 2

        x, costs = jax.lax.scan(stage, start, us)
        return costs.sum() + 10 * (1 - jnp.cos(x[1])) + x[2] ** 2 + x[3] ** 2 + x[0] ** 2

    return total


def starts_of(size: int) -> tuple[Any, Any]:
    """Inputs and first states."""
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    starts = np.array([0.0, np.pi, 0.0, 0.0]) + 0.3 * rng.normal(size=(size, 4))
    return jnp.asarray(rng.normal(size=(size, HORIZON))), jnp.asarray(starts)


def step_row(harness: Any, kind: str, size: int) -> dict[str, Any]:
    """Steps of a batch against values and gradients of the same batch."""
    import jax
    import numpy as np

    import gnewt

    f, (us, starts) = cost(kind), starts_of(size)
    both = jax.jit(jax.vmap(jax.value_and_grad(f)))
    step = jax.jit(jax.vmap(gnewt.newton_step(f)))
    info = jax.jit(jax.vmap(lambda u, x: gnewt.newton_step(f, full_output=True)(u, x)[1].residual))
    found = harness.interleave({"grad": lambda: both(us, starts), "step": lambda: step(us, starts)})
    return {
        "dynamics": kind,
        "problems": size,
        "value_and_grad ms": 1e3 * found["grad"],
        "step ms": 1e3 * found["step"],
        "step / value_and_grad": found["step"] / found["grad"],
        "largest residual": float(np.max(np.asarray(info(us[:64], starts[:64])))),
    }


def riccati_row(harness: Any, size: int) -> dict[str, Any]:
    """Factor and solve of linear-quadratic chains against `vmap` of a Riccati recursion, and crocoddyl one by one."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from lqr import Crocoddyl, plain_cost, random_lqr, riccati_scan, stage_gradients

    import gnewt

    T, nx, nu = HORIZON, 4, 1
    problems = [random_lqr(T, nx, nu, seed) for seed in range(size)]
    data = tuple(
        jnp.asarray(np.stack([getattr(p, name) for p in problems])) for name in ("x0", "F", "W", "w")
    )
    gradients = jnp.asarray(np.stack([stage_gradients(p) for p in problems]))
    us = jnp.zeros((size, T, nu))
    factor = gnewt.factorize(plain_cost)
    system = factor(us[0], tuple(d[0] for d in data)).system
    models = jax.jit(jax.vmap(lambda u, d: factor(u, d).models))(us, data)
    sides = -models.duals[:, : T * nu, None]

    def eliminate(sources: Any, side: Any) -> Any:
        return system.engine.factor_solve(system.arrays, sources, jnp.zeros(()), side)[0]

    ours, theirs = jax.jit(jax.vmap(eliminate)), jax.jit(jax.vmap(riccati_scan))
    calls = {
        "gnewt": lambda: ours(models.sources, sides),
        "scan": lambda: theirs(data[0], us, gradients, data[1], data[2]),
    }
    try:
        many = [Crocoddyl(p) for p in problems[:64]]
        calls["crocoddyl"] = lambda: [c.run() for c in many]
    except ImportError:
        pass
    found = harness.interleave(calls)
    apart = jax.tree.leaves(calls["scan"]())[0].reshape(size, -1) - calls["gnewt"]().reshape(size, -1)
    return {
        "sizes": f"({nx}, {nu}), T = {T}",
        "problems": size,
        "gnewt ms": 1e3 * found["gnewt"],
        "vmap of a Riccati scan ms": 1e3 * found["scan"],
        "crocoddyl ms, one by one": 1e3 * found["crocoddyl"] * size / 64 if "crocoddyl" in found else None,
        "scan / gnewt": found["scan"] / found["gnewt"],
        "largest difference": float(jnp.max(jnp.abs(apart))),
    }


def solution_row(size: int) -> dict[str, Any]:
    """`minimize_batch` against calls of the compiled `minimize`, one after the other."""
    import jax
    import numpy as np

    import gnewt

    f, (us, starts) = cost("Runge-Kutta"), starts_of(size)
    single = jax.jit(lambda u, x: (lambda res: (res.x, res.code))(gnewt.minimize(f, u, (x,))))
    some = range(int(MANY * size))
    jax.block_until_ready(single(us[0], starts[0]))
    batch = gnewt.minimize_batch(f, us, (starts,))  # which compiles
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        batch = gnewt.minimize_batch(f, us, (starts,))
        times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    alone = [jax.block_until_ready(single(us[i], starts[i])) for i in some]
    each = (time.perf_counter() - begin) / len(some)
    same = [int(code) == int(batch.code[i]) for i, (_, code) in enumerate(alone)]
    apart = [float(np.max(np.abs(x - batch.x[i]))) for i, (x, _) in enumerate(alone)]
    return {
        "problems": size,
        "minimize_batch s": min(times),
        "minimize, one by one, s": each * size,
        "ratio": each * size / min(times),
        "steps of a problem": float(np.mean(batch.num_steps)),
        "solved": int(np.sum(batch.success)),
        "same status": f"{sum(same)} of {len(same)}",
        "x within 1e-8": f"{sum(a <= 1e-8 for a in apart)} of {len(apart)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one run for each")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.size)))
        return
    counts = [int(c) for c in options.cores.split(",")]
    found = {}
    for cores in counts:
        command = [sys.executable, __file__, "--child", "--size", str(options.size)]
        env = {**os.environ, "GNEWT_BENCH_CORES": str(cores)}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
        found[cores] = json.loads(done.stdout.splitlines()[-1])
    write(counts, found)


def write(counts: list[int], found: dict[int, dict[str, list[dict[str, Any]]]]) -> None:
    """The report: ratios on one core, and what more cores gain."""
    import harness

    one, figures = found[counts[0]], []
    for row in one["steps"]:
        ratio = row["step / value_and_grad"]
        figures.append(
            harness.Figure(f"batch of steps, {row['dynamics']}, {counts[0]} core", ratio, "<=", 1.5)
        )
    for cores in counts[1:]:
        for before, row in zip(one["steps"], found[cores]["steps"], strict=True):
            gain = before["step ms"] / row["step ms"]
            name = f"batch of steps, {row['dynamics']}, {cores} cores against {counts[0]}"
            figures.append(harness.Figure(name, gain, ">=", 0.7 * cores / counts[0]))
    figures += [
        harness.Figure("minimize_batch against minimize, one by one", row["ratio"], ">=", 3.0)
        for row in one["solutions"]
    ]
    tables = {
        title: [{"cores": cores, **row} for cores in counts for row in found[cores][key]]
        for key, title in (
            ("steps", "Steps"),
            ("eliminations", "Factor and solve"),
            ("solutions", "Whole solutions"),
        )
    }
    notes = (
        "Problems are swing-ups of a cartpole in 50 steps, each from a start of its own; linear-quadratic chains are random.",
        "crocoddyl's wheel solves one problem at a time, so that its 64 problems stand for the batch.",
    )
    report_cores = f"Batches on a CPU ({harness.isa()})"
    harness.report(f"batches-{harness.isa()}", report_cores, tables, figures, notes)


if __name__ == "__main__":
    main()
