"""Factor and solve, against crocoddyl and a `lax.scan` Riccati recursion on chains, PARDISO and CHOLMOD elsewhere.

    python benchmarks/engines.py            → results/engines-<isa>.{json,md}
    GNEWT_ISA=avx2 python benchmarks/engines.py

Numbers (local Jacobians and Hessians) are ready for all solvers; only the linear algebra of a Newton step is measured.
"""

from __future__ import annotations

from harness import Figure, interleave, isa, ratio, relative, report  # first: it fixes the threads

# isort: split

import jax
import jax.numpy as jnp
import lqr
import numpy as np
from solvers import Cholmod, Native, Pardiso, have, kkt_matrix

HORIZON = 1000
CHAINS = {(4, 1): (4, 12), (12, 6): (5, 10), (24, 8): (3.5, 4), (37, 12): (2.5, 2.5)}
"""(nx, nu) and how many times faster than crocoddyl and than the scan we want to be."""
SPARSE_TARGET, GRID_TARGET = 12, 1


def chain(nx: int, nu: int) -> tuple[dict, list[Figure]]:
    """One chain: the graph by hand, the same function traced, the two peers."""
    problem = lqr.random_lqr(HORIZON, nx, nu)
    data = (problem.x0, problem.F, problem.W, problem.w)
    zeros = np.zeros((HORIZON, nu))
    ours = Native(lqr.chain_graph(problem), list(zeros))
    traced = Native(lambda us: lqr.plain_cost(us, data), zeros)
    operands = jax.device_put(
        (problem.x0, jnp.asarray(zeros), lqr.stage_gradients(problem), problem.F, problem.W)
    )
    calls = {"gnewt": ours.run, "traced": traced.run, "scan": lambda: lqr.riccati_scan(*operands)}
    steps = {
        "gnewt": ours.step(),
        "traced": traced.step(),
        "scan": np.asarray(lqr.riccati_scan(*operands)),
    }
    if have("crocoddyl"):
        peer = lqr.Crocoddyl(problem)
        calls |= {"crocoddyl": peer.run, "crocoddyl calc": peer.evaluate}
        peer.run()
        steps["crocoddyl"] = peer.step()
    times = interleave(calls)
    product = lqr.hessian_product(problem)

    def residual(step: np.ndarray) -> float:
        gradient, curved = product(step.reshape(zeros.shape))
        return relative(curved + gradient, gradient)

    difference = max(relative(s.reshape(-1) - steps["gnewt"], steps["gnewt"]) for s in steps.values())
    row = {"problem": f"chain T={HORIZON} ({nx}, {nu})"}
    row |= {f"{name} µs/stage": 1e6 * t / HORIZON for name, t in times.items()}
    row |= {f"{name} residual": residual(step) for name, step in steps.items()}
    row |= (
        {"largest difference": difference} | ours.describe() | {"traced fronts": traced.describe()["fronts"]}
    )
    best = times["gnewt"]
    croc, calc = times.get("crocoddyl"), times.get("crocoddyl calc", 0.0)
    than_croc, than_scan = CHAINS[nx, nu]
    if croc is not None:
        row["crocoddyl / gnewt"] = croc / best
        row["crocoddyl less calc / gnewt"] = (croc - calc) / best
    row["scan / gnewt"] = times["scan"] / best
    row["traced / gnewt"] = times["traced"] / best
    return row, [
        Figure(f"({nx}, {nu}): faster than crocoddyl", ratio(croc, best), ">=", than_croc),
        Figure(f"({nx}, {nu}): faster than lax.scan", times["scan"] / best, ">=", than_scan),
    ]


def sparse(name: str, graph, target: float, cholmod: bool) -> tuple[dict, list[Figure]]:
    """A graph that is no chain: the same KKT matrix for everyone."""
    values = [np.zeros(handle.shape) for handle in graph.inputs]
    ours = Native(graph, values)
    matrix = kkt_matrix(ours.structure, ours.sources)
    n = ours.structure.num_inputs
    rhs = np.zeros(matrix.shape[0])
    rhs[:n] = -np.asarray(ours.gradient)
    calls = {"gnewt": ours.run}
    steps = {"gnewt": ours.step()}
    if have("pypardiso"):
        kinds = {"PARDISO": (-2, "METIS"), "PARDISO, minimum degree": (-2, "minimum degree")}
        if cholmod:
            kinds["PARDISO, definite, minimum degree"] = (2, "minimum degree")
        for label, (mtype, ordering) in kinds.items():
            peer = Pardiso(matrix, rhs, mtype, ordering)
            calls[label] = peer.run
            steps[label] = peer.run()[:n].copy()
    if cholmod and have("sksparse.cholmod"):
        definite = Cholmod(matrix, rhs)
        calls["CHOLMOD"] = definite.run
        steps["CHOLMOD"] = definite.run()[:n]
    times = interleave(calls)
    row = {"problem": name, "unknowns": matrix.shape[0]}
    row |= {f"{label} ms": 1e3 * t for label, t in times.items()}
    row |= {f"{label} residual": ours.residual(step) for label, step in steps.items()}
    row |= ours.describe()
    row |= {f"{label} / gnewt": t / times["gnewt"] for label, t in times.items() if label != "gnewt"}
    figures = [
        Figure(f"{name}: faster than {label}", ratio(times.get(label), times["gnewt"]), ">=", target)
        for label in (["PARDISO", "CHOLMOD"] if cholmod else ["PARDISO"])
    ]
    return row, figures


def main() -> None:
    rows, figures = [], []
    for nx, nu in CHAINS:
        row, promised = chain(nx, nu)
        rows.append(row)
        figures += promised
    problems = {
        "tree of depth 10 (12, 6)": (lqr.tree_graph(10, 12, 6), SPARSE_TARGET, False),
        "chain T=1000 (12, 6) + 5 shared": (lqr.shared_graph(1000, 12, 6, 5), SPARSE_TARGET, False),
        "grid 40 × 40, blocks of 4": (lqr.grid_graph(40, 4), GRID_TARGET, True),
        "grid 100 × 100, blocks of 2": (lqr.grid_graph(100, 2), GRID_TARGET, True),
    }
    others = []
    for name, (graph, target, cholmod) in problems.items():
        row, promised = sparse(name, graph, target, cholmod)
        others.append(row)
        figures += promised
        jax.clear_caches()
    report(
        f"engines-{isa()}",
        f"Factor and solve ({isa()})",
        {"Chains": rows, "Trees, shared parameters, grids": others},
        figures,
        [
            "gnewt: the graph by hand, whose node families have (zero) Hessians too; traced: the same objective as a JAX function.",
            "crocoddyl: backwardPass + forwardPass(1.0), derivatives not counted; its forward pass evaluates dynamics and costs, "
            "which `calc` measures apart.",
            "PARDISO: phases 22 and 33, analysis before; METIS is its default ordering; residuals are ‖Hδ + g‖/‖g‖ by JAX.",
        ],
    )


if __name__ == "__main__":
    main()
