"""The xla engine on a GPU: factor + solve of linear-quadratic chains, against a sequential Riccati recursion.

    python benchmarks/gpu.py                        all sizes, one JSON object on standard output
    python benchmarks/gpu.py --sizes 12,6 --horizons 1000 --chunks 2,4,8 --repeats 20

Stages x' = A x + B u, costs ½xᵀQx + uᵀSx + ½uᵀRu, all random and different; the system is H x = b for a random b. The answer
is compared with a Riccati recursion in NumPy on the host. Times are the smallest of several, with results awaited.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.kkt import linearize
from gnewt.kkt.engines.xla.engine import XlaEngine
from gnewt.newton.objective import Objective
from gnewt.plan import choose, make_plan
from gnewt.plan.orderings import cyclic_reduction

jax.config.update("jax_enable_x64", True)

Stages = tuple[Any, Any, Any, Any, Any]


def random_stages(horizon: int, nx: int, nu: int) -> Stages:
    """A, B, Q, S, R with R and the joint Hessian positive definite."""
    rng = np.random.default_rng(0)
    a = 0.9 * np.eye(nx) + 0.3 * rng.normal(size=(horizon, nx, nx)) / np.sqrt(nx)
    b = rng.normal(size=(horizon, nx, nu)) / np.sqrt(nu)
    root = rng.normal(size=(horizon, nx + nu, nx + nu)) / np.sqrt(nx + nu)
    h = root @ np.swapaxes(root, 1, 2) + 0.1 * np.eye(nx + nu)
    return a, b, h[:, :nx, :nx], h[:, nx:, :nx], h[:, nx:, nx:]


def objective(stages: Stages) -> Callable[[Any], Any]:
    """½UᵀHU as a JAX function of the inputs."""

    def f(us: Any) -> Any:
        def stage(x: Any, data: Any) -> Any:
            u, a, b, q, s, r = data
            return a @ x + b @ u, 0.5 * x @ q @ x + u @ s @ x + 0.5 * u @ r @ u

        nx = stages[0].shape[1]
        x, costs = jax.lax.scan(stage, jnp.zeros(nx), (us, *map(jnp.asarray, stages)))
        return costs.sum() + 0.5 * x @ x

    return f


def riccati_numpy(stages: Stages, rhs: np.ndarray) -> np.ndarray:
    """H⁻¹ rhs on the host."""
    a, b, q, s, r = stages
    horizon, nx, nu = b.shape
    p, v = np.eye(nx), np.zeros(nx)
    gains, offsets = np.empty((horizon, nu, nx)), np.empty((horizon, nu))
    for t in range(horizon - 1, -1, -1):
        pa, pb = p @ a[t], p @ b[t]
        quu, qux = r[t] + b[t].T @ pb, s[t] + b[t].T @ pa
        qu = b[t].T @ v - rhs[t]
        solved = -np.linalg.solve(quu, np.column_stack([qux, qu]))
        gains[t], offsets[t] = solved[:, :nx], solved[:, nx]
        v = a[t].T @ v + qux.T @ offsets[t]
        p = q[t] + a[t].T @ pa + qux.T @ gains[t]
        p = 0.5 * (p + p.T)
    x, out = np.zeros(nx), np.empty((horizon, nu))
    for t in range(horizon):
        out[t] = gains[t] @ x + offsets[t]
        x = a[t] @ x + b[t] @ out[t]
    return out


def riccati_scan(stages: Stages, rhs: Any) -> Any:
    """The same as two sequential scans in JAX."""
    nx = stages[0].shape[1]

    def backward(carry: Any, data: Any) -> Any:
        p, v = carry
        a, b, q, s, r, g = data
        pa = p @ a
        quu, qux = r + b.T @ p @ b, s + b.T @ pa
        factor = jax.scipy.linalg.cho_factor(quu)
        solved = -jax.scipy.linalg.cho_solve(factor, jnp.column_stack([qux, b.T @ v - g]))
        gain, offset = solved[:, :nx], solved[:, nx]
        p = q + a.T @ pa + qux.T @ gain
        return (0.5 * (p + p.T), a.T @ v + qux.T @ offset), (gain, offset)

    def forward(x: Any, data: Any) -> Any:
        a, b, gain, offset = data
        u = gain @ x + offset
        return a @ x + b @ u, u

    start = (jnp.eye(nx), jnp.zeros(nx))
    _, (gains, offsets) = jax.lax.scan(backward, start, (*stages, rhs), reverse=True)
    return jax.lax.scan(forward, jnp.zeros(nx), (stages[0], stages[1], gains, offsets))[1]


def fastest(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
    return min(times)


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    return run(), time.perf_counter() - begin


def measure(horizon: int, nx: int, nu: int, chunk: int, repeats: int, sequential: bool) -> dict[str, Any]:
    """One row: times in ms, errors relative to the largest component."""
    stages = random_stages(horizon, nx, nu)
    rhs = np.random.default_rng(1).normal(size=(horizon, nu))
    expected = riccati_numpy(stages, rhs)
    point = Objective(objective(stages)).at((jnp.zeros((horizon, nu)),))
    structure = point.structure
    choose.ORDERS["cyclic_reduction"] = functools.partial(cyclic_reduction, chunk=chunk)
    plan, planning = timed(lambda: make_plan(structure, "cyclic_reduction"))
    sources = jax.jit(lambda m, d, x: linearize(structure, m, d, x).sources)(
        structure.maps, point.data, point.x
    )
    engine, preparing = timed(lambda: XlaEngine(plan, len(sources)))
    arrays = jax.device_put(engine.arrays)
    column = jnp.asarray(rhs.reshape(-1, 1))
    call = jax.jit(engine.factor_solve)
    compiled, compiling = timed(lambda: call.lower(arrays, sources, 0.0, column).compile())
    solution, elimination = jax.block_until_ready(compiled(arrays, sources, 0.0, column))
    again = jax.jit(engine.solve)
    jax.block_until_ready(again(arrays, sources, elimination, column))
    row = {
        "horizon": horizon,
        "nx": nx,
        "nu": nu,
        "chunk": chunk,
        "steps": sum(segment.steps for segment in engine.layout.segments),
        "blocks": sum(len(segment.blocks) for segment in engine.layout.segments),
        "tier": int(elimination.factor.tier),
        "inertia": elimination.inertia.tolist(),
        "error": float(
            np.abs(np.asarray(solution).reshape(rhs.shape) - expected).max() / np.abs(expected).max()
        ),
        "factor_solve_ms": 1e3 * fastest(lambda: compiled(arrays, sources, 0.0, column), repeats),
        "solve_ms": 1e3 * fastest(lambda: again(arrays, sources, elimination, column), repeats),
        "plan_s": planning,
        "prepare_s": preparing,
        "compile_s": compiling,
    }
    if sequential:
        on_device = jax.device_put(stages)
        scan = jax.jit(riccati_scan)
        answer = np.asarray(scan(on_device, jnp.asarray(rhs)))
        row["scan_error"] = float(np.abs(answer - expected).max() / np.abs(expected).max())
        row["scan_ms"] = 1e3 * fastest(lambda: scan(on_device, jnp.asarray(rhs)), max(2, repeats // 5))
        row["speedup"] = row["scan_ms"] / row["factor_solve_ms"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["4,1", "12,6", "24,8"], help="nx,nu")
    parser.add_argument("--horizons", nargs="+", type=int, default=[1000, 10000])
    parser.add_argument(
        "--chunks", default="4", help="stages that are eliminated one after the other, comma-separated"
    )
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for horizon in options.horizons:
        for size in options.sizes:
            nx, nu = map(int, size.split(","))
            for i, chunk in enumerate(map(int, options.chunks.split(","))):
                rows.append(measure(horizon, nx, nu, chunk, options.repeats, sequential=i == 0))
    device = jax.devices()[0]
    print(json.dumps({"device": device.device_kind, "jax": jax.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
