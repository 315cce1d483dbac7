"""Whole Newton steps on a GPU: long graphs, lifted steps, batches. One line for each row on standard output.

    python benchmarks/batches_gpu.py                       everything, in about four minutes
    python benchmarks/batches_gpu.py --only steps lifted --horizons 1000
    python benchmarks/batches_gpu.py --only trace          which kernels take how long

The problem is a cartpole (state 4, input 1) with Runge–Kutta steps, whose inputs rock it gently: the recurrence contracts.
Times are the smallest of several, with results awaited. Residuals are ‖Hδ + g‖/‖g‖, with H·δ by JAX from the objective,
on the host.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gzip
import itertools
import json
import os
import pathlib
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import gpu
import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt._demo import cartpole
from gnewt.kkt.derivatives import affine
from gnewt.kkt.engines.xla import front
from gnewt.newton.objective import Objective
from gnewt.newton.system import System, system_of

jax.config.update("jax_enable_x64", True)

START = time.perf_counter()
OPTIONS: dict[str, str] = {}
"""Of the steps: what a GPU takes by itself."""
PHASES: dict[str, float] = collections.defaultdict(float)
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: PHASES.__setitem__(name, PHASES[name] + seconds)
)


def fastest(run: Callable[[], Any], repeats: int = 15) -> float:
    """Milliseconds of the fastest call, after a first one."""
    begin = time.perf_counter()
    jax.block_until_ready(run())
    if time.perf_counter() - begin > 5:
        return 1e3 * (time.perf_counter() - begin)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
        if sum(times) > 1:
            break
    return 1e3 * min(times)


def gentle(horizon: int) -> Any:
    return jnp.asarray(0.01 * cartpole.first_guess(horizon))


def residuals(f: Callable[[Any], Any], xs: Any, steps: Any) -> np.ndarray:
    """‖Hδ + g‖/‖g‖ of each row, by JAX on the host."""
    with jax.default_device(jax.devices("cpu")[0]):
        xs, steps = np.asarray(xs, np.float64), np.asarray(steps, np.float64)
        product = jax.jit(jax.vmap(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))))
        gradient, curved = map(np.asarray, product(xs, steps))
        return np.linalg.norm(curved + gradient, axis=1) / np.linalg.norm(gradient, axis=1)


def first_call(make: Callable[[], Callable[..., Any]], *args: Any) -> tuple[Callable[..., Any], str, Any]:
    """(the compiled function, seconds of the first call and of its phases, what it returned)."""
    PHASES.clear()
    begin = time.perf_counter()
    run = make()
    out = jax.block_until_ready(run(*args))
    total = time.perf_counter() - begin
    names = {"backend_compile": "XLA", "jaxpr_trace": "trace", "jaxpr_to_mlir": "lower"}
    parts = [
        f"{short} {sum(s for name, s in PHASES.items() if key in name):.1f}" for key, short in names.items()
    ]
    return run, f"{total:.1f} s ({', '.join(parts)})", out


def steps(horizons: list[int]) -> None:
    for horizon in horizons:
        x = gentle(horizon)
        run, first, step = first_call(lambda: jax.jit(gnewt.newton_step(cartpole.plain_cost, **OPTIONS)), x)
        print(
            f"step T={horizon}: {fastest(lambda: run(x)):.2f} ms, first {first}, residual "
            f"{residuals(cartpole.plain_cost, x[None], step[None])[0]:.1e}",
            flush=True,
        )
        point = Objective(cartpole.plain_cost).at((x,))
        parts(system_of(point, **OPTIONS), point)
    both = jax.jit(jax.value_and_grad(cartpole.plain_cost))
    x = gentle(horizons[0])
    print(f"value_and_grad T={horizons[0]}: {fastest(lambda: both(x), 3):.2f} ms", flush=True)


def parts(system: System, point: Any) -> None:
    """The parts of a step."""
    models = system.linearize(point)
    slots = system.slots(point)
    right = -models.duals[: system.structure.num_inputs]
    shift = jnp.zeros(())
    _, found = system.factor_solve(models, shift, right)
    whole = jnp.ones((system.plan.num_unknowns, 1))
    solve_whole = jax.jit(system.engine.solve_whole)
    times = {
        "values": lambda: system.slots(point),
        "models": lambda: system.linearize(point),
        "models of slots": lambda: system.linearize(point, slots),
        "lifted models": lambda: system.linearize(point, slots, models.duals),
        "factor + solve": lambda: system.factor_solve(models, shift, right),
        "solve": lambda: system.solve(models, found, right),
        "solve whole": lambda: solve_whole(system.arrays, models.sources, found, whole),
    }
    line = ", ".join(f"{name} {fastest(run):.2f}" for name, run in times.items())
    tier = int(found.factor.tier) if hasattr(found.factor, "tier") else "?"
    print(f"  {line} ms; tier {tier}; {system.evaluation}, {system.plan.order_name}", flush=True)


def lifted(horizons: list[int]) -> None:
    """Gaps, local models at given slots and multipliers, elimination, all rows solved for: one compiled function."""
    for horizon in horizons:
        x = gentle(horizon)
        point = Objective(cartpole.plain_cost).at((x,))
        system = system_of(point, **OPTIONS)
        maps, arrays, structure = system.maps, system.arrays, system.structure
        models = system.linearize(point)
        rng = np.random.default_rng(0)
        slots = models.slots + 1e-2 * jnp.asarray(rng.normal(size=models.slots.shape))
        n = structure.num_inputs

        def step(operands: Any, point: Any, slots: Any, lam: Any, system: System = system) -> Any:
            bound = system.bind(operands)
            models = bound.linearize(point, slots, lam)
            gaps = slots - jumped(system, operands[0], point, slots)
            right = jnp.concatenate([-models.duals[:n], -models.duals[n:], gaps[n:]])[:, None]
            engine = system.engine
            _, found = engine.factor_solve(operands[1], models.sources, jnp.zeros(()), right[:n])
            return engine.solve_whole(operands[1], models.sources, found, right), models.sources, right

        run, first, (z, sources, right) = first_call(
            lambda step=step: jax.jit(step), (maps, arrays), point, slots, models.duals
        )
        took = fastest(lambda: run((maps, arrays), point, slots, models.duals)[0])
        error = whole_residual(system, sources, z, right) if horizon <= 1000 else float("nan")
        print(f"lifted step T={horizon}: {took:.2f} ms, first {first}, residual {error:.1e}", flush=True)


def jumped(system: System, maps: Any, point: Any, slots: Any) -> Any:
    """Φ of the slots that are given, for all nodes at once."""
    from gnewt.graph import apply_family

    structure, out = system.structure, jnp.zeros_like(slots)
    for f in structure.nodes:
        family, outs = structure.families[f], structure.layout.outs[f]
        y = apply_family(family, structure.layout.args[f].read(slots, maps), point.data[f])
        out = outs.add(out, y, maps)
    return out.at[: structure.num_inputs].set(slots[: structure.num_inputs])


def whole_residual(system: System, sources: Any, z: Any, right: Any) -> float:
    """Of K z = right, by a sparse K on the host."""
    from scipy.sparse import coo_matrix

    plan = system.plan
    front = np.repeat(np.arange(plan.num_fronts), np.diff(plan.entry_ptr))
    values = np.zeros(plan.num_entries)
    np.add.at(values, plan.target, np.asarray(sources)[plan.source])
    np.add.at(values, plan.pair_entry, -1.0)
    elim, sep = np.diff(plan.elim_ptr), plan.sep_ptr

    def unknown(at: np.ndarray) -> np.ndarray:
        inside = at < elim[front]
        e = plan.elim_idx[np.minimum(plan.elim_ptr[front] + at, len(plan.elim_idx) - 1)]
        s = plan.sep_idx[np.clip(sep[front] + at - elim[front], 0, len(plan.sep_idx) - 1)]
        return np.where(inside, e, s)

    row, col = unknown(np.asarray(plan.entry_row)), unknown(np.asarray(plan.entry_col))
    lower = coo_matrix((values, (row, col)), shape=(plan.num_unknowns,) * 2).tocsr()
    off = coo_matrix((np.where(row != col, values, 0), (col, row)), shape=lower.shape).tocsr()
    z, right = np.asarray(z), np.asarray(right)
    return float(np.abs(lower @ z + off @ z - right).max() / np.abs(right).max())


def doublings() -> None:
    """How many doublings of a composition are compiled as one."""
    horizon = 10_000
    a = 0.5 * jnp.asarray(np.random.default_rng(0).normal(size=(horizon, 1, 4, 4)))
    b = jnp.ones((horizon, 1, 4))
    told = []
    for unroll in (1, 4, 14):
        affine._UNROLL = unroll
        run = jax.jit(lambda a, b: affine.compose(a, b))
        begin = time.perf_counter()
        jax.block_until_ready(run(a, b))
        told.append(
            f"{unroll} {fastest(lambda: run(a, b)):.3f} ms (first {time.perf_counter() - begin:.1f} s)"
        )
    affine._UNROLL = 4
    print("compose T=10000, unrolled by " + ", by ".join(told), flush=True)


def fronts(sizes: list[tuple[int, int]]) -> None:
    """Factor + solve of linear-quadratic chains, with products as sums and by the library."""
    for (nx, nu), sums in itertools.product(sizes, (16, 0)):
        front.SMALL_SUMS = sums
        row = gpu.measure(10_000, nx, nu, 4, 15, sequential=False)
        keys = (
            "factor_solve_ms",
            "solve_ms",
            "error",
            "compile_s",
            "plan_s",
            "prepare_s",
            "steps",
            "blocks",
            "tier",
        )
        told = ", ".join(f"{key} {row[key]:.3g}" for key in keys)
        print(f"fronts T=10000 ({nx}, {nu}), sums up to {sums}: {told}", flush=True)
    front.SMALL_SUMS = 16


def batches(counts: list[int], dtype: Any = jnp.float64) -> None:
    for count in counts:
        horizon = 50
        rng = np.random.default_rng(0)
        xs = jnp.asarray(cartpole.first_guess(horizon) * rng.uniform(0.1, 0.5, (count, 1)), dtype)
        f = cartpole.plain_cost
        both = jax.jit(jax.vmap(jax.value_and_grad(f)))
        base = fastest(lambda: both(xs))
        run, first, found = first_call(lambda: jax.jit(jax.vmap(gnewt.newton_step(f, **OPTIONS))), xs)
        took = fastest(lambda: run(xs))
        worst = residuals(f, xs, found).max()
        print(
            f"batch {count} x T={horizon} {jnp.dtype(dtype).name}: {took:.2f} ms, value_and_grad {base:.2f} "
            f"({took / base:.2f}x), first {first}, largest residual {worst:.1e}",
            flush=True,
        )


def batch_parts(count: int) -> None:
    """Parts of a batch, and the shapes of its fronts."""
    xs = jnp.asarray(cartpole.first_guess(50) * np.random.default_rng(0).uniform(0.1, 0.5, (count, 1)))
    point = Objective(cartpole.plain_cost).at((xs[0],))
    system = system_of(point, **OPTIONS)
    import dataclasses

    def models_of(x: Any) -> Any:
        return system.linearize(dataclasses.replace(point, x=x))

    linear = jax.jit(jax.vmap(models_of))
    models = linear(xs)
    slots = jax.jit(jax.vmap(lambda x: system.slots(dataclasses.replace(point, x=x))))
    took = []
    for front.SMALL_SUMS in (0, 16):

        def one(m: Any) -> Any:
            return system.engine.factor_solve(system.arrays, m.sources, jnp.zeros(()), -m.duals[:50, None])

        eliminate = jax.jit(jax.vmap(one))
        _, found = eliminate(models)
        took.append(fastest(lambda eliminate=eliminate: eliminate(models)))
    told = [
        (s.steps, [(b.width, b.shape.p, b.shape.m, b.shape.k, b.shape.b) for b in s.blocks])
        for s in system.engine.layout.segments
    ]
    print(
        f"  of {count}: values {fastest(lambda: slots(xs)):.2f}, models {fastest(lambda: linear(xs)):.2f}, "
        f"factor + solve {took[1]:.2f} ms (products by the library: {took[0]:.2f}); tiers "
        f"{np.bincount(np.asarray(found.factor.tier), minlength=3).tolist()}; {system.plan.order_name} {told}",
        flush=True,
    )


def kernels(name: str, run: Callable[[], Any], lines: int = 8) -> None:
    """Which kernels one call launches, from a trace."""
    jax.block_until_ready(run())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        files = list(pathlib.Path(folder).rglob("*.trace.json.gz"))
        if not files:
            print(f"trace of {name}: none was written")
            return
        events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    devices = {e["pid"] for e in events if e.get("name") == "process_name" and "GPU" in e["args"]["name"]}
    streams = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and e["pid"] in devices and "Stream" in str(e["args"]["name"])
    }
    mine = [e for e in events if e.get("ph") == "X" and (e["pid"], e["tid"]) in streams]
    total: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for e in mine:
        key = e["name"].rstrip("0123456789_")[:40]
        total[key][0] += e["dur"]
        total[key][1] += 1
    span = max((e["ts"] + e["dur"] for e in mine), default=0) - min((e["ts"] for e in mine), default=0)
    print(
        f"trace of {name}: {len(mine)} launches, busy {sum(t for t, _ in total.values()) / 1e3:.2f} of {span / 1e3:.2f} ms"
    )
    best = sorted(total.items(), key=lambda item: -item[1][0])[:lines]
    print("   " + "; ".join(f"{key} {t:.0f} us/{int(n)}" for key, (t, n) in best), flush=True)


def traces() -> None:
    x = gentle(10_000)
    point = Objective(cartpole.plain_cost).at((x,))
    system = system_of(point, **OPTIONS)
    models = system.linearize(point)
    right = -models.duals[: system.structure.num_inputs]
    kernels("models T=10000", lambda: system.linearize(point))
    kernels("factor + solve T=10000", lambda: system.factor_solve(models, jnp.zeros(()), right), 14)
    told = [
        (s.steps, [(b.width, b.shape.p, b.shape.m, b.shape.k, b.shape.b) for b in s.blocks])
        for s in system.engine.layout.segments
    ]
    print(f"   segments (steps, [(width, p, m, k, b)]): {told}", flush=True)
    xs = jnp.asarray(cartpole.first_guess(50) * np.linspace(0.1, 0.5, 4096)[:, None])
    run = jax.jit(jax.vmap(gnewt.newton_step(cartpole.plain_cost, **OPTIONS)))
    kernels("batch 4096 x T=50", lambda: run(xs), 14)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--horizons", nargs="+", type=int, default=[1000, 10_000])
    parser.add_argument("--counts", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seconds", type=float, default=220, help="begin nothing new after so many")
    parser.add_argument("--as-gpu", action="store_true", help="run what a GPU would run, on a CPU")
    options = parser.parse_args()
    if options.as_gpu:
        os.environ["GNEWT_EVALUATION"] = "parallel"
        OPTIONS.update(engine="xla", order="parallel")
    device = jax.devices()[0]
    print(f"{device.device_kind}, jax {jax.__version__}", flush=True)
    work = {
        "batches": functools.partial(batches, options.counts),
        "parts": functools.partial(batch_parts, options.counts[-1]),
        "steps": functools.partial(steps, options.horizons),
        "trace": traces,
        "lifted": functools.partial(lifted, options.horizons),
        "fronts": functools.partial(fronts, [(4, 1), (12, 6)]),
        "doublings": doublings,
        "float32": functools.partial(batches, options.counts[-1:], jnp.float32),
    }
    for name, run in work.items():
        if options.only and name not in options.only:
            continue
        if time.perf_counter() - START > options.seconds:
            print(f"{name}: no time left")
            continue
        try:
            run()
        except Exception:
            print(f"{name} failed: " + " | ".join(traceback.format_exc().strip().splitlines()[-4:])[:600])
        print(f"# {name} until {time.perf_counter() - START:.0f} s", flush=True)


if __name__ == "__main__":
    main()
