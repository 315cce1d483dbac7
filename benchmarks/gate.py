"""The gate: what can be counted must not get worse. No clock is read, so it means the same on every machine.

    python benchmarks/gate.py               compare with baseline.json; exit 1 if something got worse
    python benchmarks/gate.py --structure   only what tracing and planning decide: seconds
    python benchmarks/gate.py --update      write what is measured now as the new baseline

Metrics, per problem: kept slots, families, width, fronts, flops, bytes (less is better; 2 % are tolerated) and the residual
of the Newton step (a factor of 10 over the baseline, or over 1e-14, is tolerated).
"""

from __future__ import annotations

import harness  # first: it fixes the threads

# isort: split

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lqr
import numpy as np
import ocp
from rich.console import Console
from rich.table import Table

from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of

BASELINE = harness.HERE / "baseline.json"
TOLERANCE = {"slots": 1.02, "families": 1.0, "width": 1.02, "fronts": 1.02, "flops": 1.02, "bytes": 1.02}
"""By which factor a metric may exceed its baseline."""
RESIDUAL_TOLERANCE, ROUNDING = 10.0, 1e-14


def problems() -> dict[str, tuple[Any, Any]]:
    """Name ↦ (objective, point)."""
    found: dict[str, tuple[Any, Any]] = {}
    for nx, nu in ((4, 1), (12, 6)):
        problem = lqr.random_lqr(100, nx, nu)
        found[f"chain ({nx}, {nu}), graph"] = _graph(lqr.chain_graph(problem))
        found[f"chain ({nx}, {nu}), function"] = (_chain(problem), np.zeros((100, nu)))
    found["tree"] = _graph(lqr.tree_graph(6, 4, 2))
    found["chain + shared"] = _graph(lqr.shared_graph(100, 4, 2, 3))
    found["grid"] = _graph(lqr.grid_graph(20, 2))
    found["cartpole"] = (ocp.jax_cost(ocp.CARTPOLE, 100), ocp.CARTPOLE.first_inputs(100))
    x = np.linspace(-1.0, 1.0, 500)
    found |= {"rosenbrock": (_rosenbrock, x), "power": (_power, 1 + x), "banded": (_banded, x)}
    found["surface"] = (_surface, x[:400].reshape(20, 20))
    return found


def _graph(graph: Any) -> tuple[Any, Any]:
    return graph, [np.zeros(handle.shape) for handle in graph.inputs]


def _chain(problem: lqr.LQR) -> Callable[[Any], Any]:
    return lambda us: lqr.plain_cost(us, (problem.x0, problem.F, problem.W, problem.w))


def _rosenbrock(x: Any) -> Any:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[1:]) ** 2)


def _power(x: Any) -> Any:
    """H is dense, the graph a star."""
    return jnp.sum(jnp.arange(1, 1 + x.size) * x**2) ** 2


def _banded(x: Any) -> Any:
    width = 5
    sums = sum(x[i : x.size - width + i] for i in range(width))
    return jnp.sum(jnp.cosh(sums)) + jnp.sum(x**2)


def _surface(z: Any) -> Any:
    a, b = z[1:, 1:] - z[:-1, :-1], z[1:, :-1] - z[:-1, 1:]
    return jnp.sum(jnp.sqrt(1 + 0.5 * (a**2 + b**2))) + 0.1 * jnp.sum(z**2)


def count(target: Any, values: Any) -> dict[str, float]:
    """Trace and plan: what the structure costs."""
    system = system_of(Objective(target).at((values,)))
    certificate = system.plan.certificate
    return {
        "slots": system.structure.num_slots,
        "families": len(system.structure.families),
        "width": certificate.width,
        "fronts": certificate.num_fronts,
        "flops": certificate.flops,
        "bytes": certificate.bytes,
    }


def solve(target: Any, values: Any) -> dict[str, float]:
    """Take the step: how exact it is."""
    point = Objective(target).at((values,))
    system = system_of(point)
    models = system.linearize(point)
    step, known = system.factor_solve(models, 0.0, -models.duals[: system.structure.num_inputs])
    assert int(known.status) == 0
    _, gradient, curved = system.derivatives(point, step)
    return {"residual": harness.relative(curved + gradient, gradient)}


def worse(metric: str, now: float, before: float) -> bool:
    """Whether a metric got worse beyond its tolerance."""
    if metric == "residual":
        return not now <= RESIDUAL_TOLERANCE * max(before, ROUNDING)
    return now > TOLERANCE[metric] * before


def compare(now: dict[str, dict[str, float]], before: dict[str, dict[str, float]]) -> list[tuple]:
    """Rows (problem, metric, baseline, now, verdict) of all that changed, or is in one of the two only."""
    rows: list[tuple] = [(name, "", "", "", "not measured") for name in before if name not in now]
    for name, metrics in now.items():
        if name not in before:
            rows.append((name, "", "", "", "not in the baseline"))
            continue
        for metric, value in metrics.items():
            old = before[name][metric]
            if worse(metric, value, old):
                rows.append((name, metric, f"{old:.4g}", f"{value:.4g}", "worse"))
            elif metric != "residual" and value < old:
                rows.append((name, metric, f"{old:.4g}", f"{value:.4g}", "better"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--structure", action="store_true", help="do not take the steps: no residuals")
    parser.add_argument("--baseline", type=pathlib.Path, default=BASELINE, help="another baseline file")
    given = parser.parse_args()
    now = {}
    for name, (target, values) in problems().items():
        now[name] = count(target, values)
        if not given.structure:
            now[name] |= solve(target, values)
            jax.clear_caches()
    if given.update:
        given.baseline.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    rows = compare(now, json.loads(given.baseline.read_text()))
    failed = sum(verdict != "better" for *_, verdict in rows)
    table = Table("problem", "metric", "baseline", "now", "verdict")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if rows:
        console.print(table)
    console.print(f"{len(now)} problems, {failed} regressions")
    if rows and not failed:
        console.print("better than the baseline: record it with `make bench-baseline`")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
