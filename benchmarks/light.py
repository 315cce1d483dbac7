"""Whole Newton steps of programs as users write them, against `jax.value_and_grad` and a dense `jax.hessian`.

    python benchmarks/light.py                  every program of `light_programs`; writes results/light-<isa>.{json,md}
    python benchmarks/light.py NAME ...         those whose name contains one of the words, printed only
    python benchmarks/light.py --tracing        the tracing programs of the tests as well

Columns are microseconds of compiled calls: `value_and_grad`; the whole step; its parts (evaluate the graph, linearise,
factor + solve), each a call of its own, so that their sum exceeds the whole; `jax.hessian` and a dense solve where N is
at most 1,500. flops/ns are those of the plan per nanosecond of `value_and_grad`: a step cannot be cheaper than its flops.
A stage of a hand-written linear-quadratic chain (4, 1) is timed in the same run: it says how fast the core is.
"""

from __future__ import annotations

from harness import Figure, interleave, isa, report, table  # first: it fixes the threads

# isort: split

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lqr
import numpy as np
from harness import HERE
from jax.flatten_util import ravel_pytree
from light_programs import PROGRAMS
from solvers import Native

import gnewt

DENSE = 1500
"""Inputs up to which the dense Hessian is timed."""
HEAVY = 20.0
"""flops of the plan per nanosecond of `value_and_grad` beyond which the flops decide."""
MEDIAN, TAIL = 2.5, 8.0
STAGES = 1000


def measure(name: str, f: Callable[..., Any], x: Any) -> dict[str, Any]:
    """Time a program and its parts."""
    parts = Native(f, x)
    step, gradient = jax.jit(gnewt.newton_step(f)), jax.jit(jax.value_and_grad(f))
    point, system = parts.point, parts.system
    calls = {
        "value_and_grad": lambda: gradient(x),
        "step": lambda: step(x),
        "evaluate": lambda: system.slots(point),
        "linearize": parts.linearize,
        "factor + solve": parts.run,
    }
    flat, form = ravel_pytree(x)
    if flat.size <= DENSE:
        dense = jax.jit(
            lambda z: jnp.linalg.solve(
                jax.hessian(lambda y: f(form(y)))(z), jax.grad(lambda y: f(form(y)))(z)
            )
        )
        calls["dense"] = lambda: dense(flat)
    times = interleave(calls)
    row = {"program": name, "N": flat.size} | {f"{label} µs": 1e6 * t for label, t in times.items()}
    about = parts.describe()
    row["step / value_and_grad"] = times["step"] / times["value_and_grad"]
    row["flops/ns"] = about["flops"] / (1e9 * times["value_and_grad"])
    row["step / dense"] = times["step"] / times["dense"] if "dense" in times else None
    row["inertia"] = "/".join(str(int(n)) for n in np.asarray(parts.known().inertia))
    row["residual"] = parts.residual(ravel_pytree(step(x))[0])
    return row | about


def stage_ns() -> float:
    """A stage of the hand-written chain (4, 1), in nanoseconds."""
    problem = lqr.random_lqr(STAGES, 4, 1)
    ours = Native(lqr.chain_graph(problem), list(jnp.zeros((STAGES, 1))))
    return 1e9 * interleave({"chain": ours.run})["chain"] / STAGES


def tracing() -> dict[str, Callable[[], Any]]:
    """The programs that the tests of tracing run over, with one differentiated argument."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    known = importlib.import_module("helpers.trace_programs").PROGRAMS
    unusual = importlib.import_module("helpers.unusual_programs").UNUSUAL
    return {**known, **unusual}


def of_one_argument(make: Callable[[], Any]) -> tuple[Callable[..., Any], Any] | None:
    """The objective as a function of its differentiated argument; None where there are several."""
    f, args, *argnums = make()
    at = argnums[0] if argnums else 0
    if not isinstance(at, int):
        return None
    return (lambda x: f(*args[:at], x, *args[at + 1 :])), args[at]


def figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """The promised figures."""
    ratios = [row["step / value_and_grad"] for row in rows]
    light = sorted(row["step / value_and_grad"] for row in rows if row["flops/ns"] <= HEAVY)
    return [
        Figure("step / value_and_grad, median", statistics.median(ratios), "<=", MEDIAN),
        Figure(
            f"step / value_and_grad, 90th percentile of those with at most {HEAVY:g} flops/ns",
            float(np.quantile(light, 0.9)),
            "<=",
            TAIL,
        ),
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tracing", action="store_true")
    given = parser.parse_args()
    rows, refused = [], []
    wanted = {n: make for n, make in PROGRAMS.items() if not given.names or any(w in n for w in given.names)}
    for name, make in wanted.items():
        rows.append(measure(name, *make()))
        print(rows[-1], flush=True)
    more = []
    for name, make in tracing().items() if given.tracing else ():
        try:
            pair = of_one_argument(make)
            if pair is not None:
                more.append(measure(name, *pair))
                print(more[-1], flush=True)
        except (ValueError, TypeError, NotImplementedError, AssertionError) as error:
            refused.append(f"{name}: {type(error).__name__}")
        jax.clear_caches()
    if given.names:
        print(table(rows))
        return
    tables = {"Programs": rows} | ({"Tracing programs": more} if more else {})
    notes = [f"A stage of the hand-written chain (4, 1) takes {stage_ns():.0f} ns in this run."]
    notes += [f"Left out: {', '.join(refused)}."] if refused else []
    report(
        f"light-{isa()}",
        f"Steps of programs as users write them ({isa()})",
        tables,
        figures(rows + more),
        notes,
    )


if __name__ == "__main__":
    main()
