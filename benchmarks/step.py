"""A whole Newton step of an optimal control problem, against JAX's own gradient and casadi's interior-point solvers.

    python benchmarks/step.py               → results/step-<isa>.{json,md}

Ours is one jitted call: values, duals, derivatives, factor and solve. `value_and_grad` is `jax.jit(jax.value_and_grad(f))` of
the same f. fatrop and IPOPT solve the same problem by multiple shooting from the same first point; a fixed number of iterations,
divided by their count. "expand" turns casadi's default virtual machine (MX) into its scalar one (SX).
"""

from __future__ import annotations

from harness import Figure, interleave, isa, ratio, report  # first: it fixes the threads

# isort: split

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import ocp
from jax.flatten_util import ravel_pytree
from solvers import Native, have

import gnewt

ITERATIONS = 5
"""Of the interior-point solvers, per call."""
GRADIENT_TARGET, CASADI_TARGET = 0.75, 2
PEERS = {
    "fatrop": ("fatrop", False),
    "fatrop, expand": ("fatrop", True),
    "IPOPT": ("ipopt", False),
    "IPOPT, expand": ("ipopt", True),
}
PROBLEMS = (
    (ocp.CARTPOLE, 200, "function", PEERS),
    (ocp.CARTPOLE, 200, "graph", []),
    (ocp.CARTPOLE, 2000, "function", []),
    (ocp.QUADROTOR, 200, "graph", ["fatrop, expand", "IPOPT, expand"]),
)
"""Problem, horizon, how gnewt gets it (the JAX function, or a graph by hand), solvers of casadi that solve it too."""


def measure(problem: ocp.Problem, T: int, given: str, peers: Iterable[str]) -> tuple[dict, list[Figure]]:
    f = ocp.jax_cost(problem, T)
    x = jnp.asarray(problem.first_inputs(T))
    target, point = (f, x) if given == "function" else (ocp.graph(problem, T), list(x))
    parts = Native(target, point)
    step = jax.jit(gnewt.newton_step(target))
    value_and_grad = jax.jit(jax.value_and_grad(f))
    value = jax.jit(f)
    calls = {
        "newton_step": lambda: step(point),
        "value_and_grad": lambda: value_and_grad(x),
        "value": lambda: value(x),
        "linearize": parts.linearize,
        "factor + solve": parts.run,
    }
    counts = {}
    if have("casadi"):
        for name in peers:
            plugin, expand = PEERS[name]
            calls[name] = run = ocp.casadi_solver(problem, T, plugin, ITERATIONS, expand)
            counts[name] = run()[1]["iter_count"]
    times = interleave(calls)
    for name, count in counts.items():
        times[name] /= count
    name = f"{problem.name} T={T} ({problem.nx}, {problem.nu})"
    row = {"problem": name, "given as": given}
    row |= {f"{label} µs": 1e6 * t for label, t in times.items()}
    row |= {"residual": parts.residual(ravel_pytree(step(point))[0]), "iterations": counts or None}
    row |= parts.describe()
    ours = times["newton_step"]
    row["newton_step / value_and_grad"] = ours / times["value_and_grad"]
    row |= {f"{label} / newton_step": times[label] / ours for label in counts}
    if (problem, T, given) != (ocp.CARTPOLE, 200, "function"):
        return row, []
    figures = [
        Figure(f"{name}: step / value_and_grad", ours / times["value_and_grad"], "<=", GRADIENT_TARGET)
    ]
    figures += [
        Figure(
            f"{name}: faster than an iteration of {label}", ratio(times.get(label), ours), ">=", CASADI_TARGET
        )
        for label in PEERS
    ]
    return row, figures


def main() -> None:
    rows, figures = [], []
    for problem, T, given, peers in PROBLEMS:
        row, promised = measure(problem, T, given, peers)
        rows.append(row)
        figures += promised
    report(
        f"step-{isa()}",
        f"Whole Newton steps ({isa()})",
        {"Optimal control": rows},
        figures,
        [
            "linearize, factor + solve: the parts of newton_step, as calls of their own.",
            "The interior-point solvers also do their line search, at most a few evaluations of the functions.",
        ],
    )


if __name__ == "__main__":
    main()
