"""First calls: how long a program takes to its first answer, everything included, against JAX's first gradient.

    python benchmarks/first_call.py               every tracing program of the tests; writes results/first_call.md
    python benchmarks/first_call.py NAME ...      some of them, printed only

For each program, with JAX's caches emptied and the function defined anew before every column: the first
`jit(value_and_grad(f))`, the first `jit(newton_step(f))` (trace, plan, compile, run) and the first eager `newton_step(f)`
(with its self-check). Wall and CPU seconds: the promised figures are wall seconds on two idle cores; CPU seconds tell of a
busy machine. A small program runs first, so that what a process does once is in no row.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt

HERE = pathlib.Path(__file__).parent
MEDIAN, WORST, CONSTANT, LOOPS = 3.0, 6.0, 0.5, 3.0
"""Targets: times the first gradient, at the median and for each, plus seconds; seconds for trees of Python loops."""
TREES = ("reduction_1024", "scenario_tree_8")


def reduction_1024() -> tuple[Any, ...]:
    """A binary reduction over 1,024 inputs, by Python loops."""

    def f(x: jax.Array) -> jax.Array:
        level = list(x)
        while len(level) > 1:
            level = [jnp.sin(a) * b + 0.3 * a for a, b in zip(level[::2], level[1::2], strict=True)]
        return level[0] ** 2 + 0.5 * jnp.sum(x**2)

    return f, (jnp.asarray(0.3 * np.random.default_rng(0).standard_normal(1024)),)


def scenario_tree_8() -> tuple[Any, ...]:
    """A scenario tree of depth 8, by recursion."""

    def f(us: jax.Array) -> jax.Array:
        total = jnp.zeros(())

        def grow(x: jax.Array, node: int, depth: int) -> None:
            nonlocal total
            u = us[node]
            total = total + 0.5**depth * (x @ x + 0.1 * u**2)
            if depth < 7:
                for branch in (0, 1):
                    wind = 0.1 if branch else -0.1
                    new = jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]) + wind)])
                    grow(new, 2 * node + 1 + branch, depth + 1)
            else:
                total = total + 10 * (1 + jnp.cos(x[0])) * 0.5**depth

        grow(jnp.array([0.5, 0.0]), 0, 0)
        return total

    return f, (jnp.zeros(255) + 0.01,)


def main() -> None:
    """Measure and write."""
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    sys.path.insert(0, str(HERE.parent / "tests"))
    known = importlib.import_module("helpers.trace_programs").PROGRAMS
    unusual = importlib.import_module("helpers.unusual_programs").UNUSUAL
    programs = {**known, **unusual, "reduction_1024": reduction_1024, "scenario_tree_8": scenario_tree_8}
    jax.block_until_ready(jax.jit(gnewt.newton_step(lambda x: jnp.sum(x**4 + x**2)))(jnp.ones(3)))
    rows = []
    for name in names or programs:
        rows.append(measure(name, programs[name]))
        print(_line(rows[-1]), flush=True)
    if not names:
        (HERE / "results" / "first_call.md").write_text(_report(rows), encoding="utf-8")


def measure(name: str, make: Callable[[], tuple[Any, ...]]) -> dict[str, Any]:
    """Time the three first calls of a program."""
    row: dict[str, Any] = {"program": name}
    columns = (
        ("gradient", lambda f, at: jax.jit(jax.value_and_grad(f, at))),
        ("jit", lambda f, at: jax.jit(gnewt.newton_step(f, at))),
        ("eager", lambda f, at: gnewt.newton_step(f, at, full_output=True)),
    )
    # XLA takes minutes for the gradient of a tree of Python loops.
    for column, build in columns[1:] if name in TREES else columns:
        f, args, *argnums = make()
        jax.block_until_ready(args)
        jax.clear_caches()
        begin = time.perf_counter(), time.process_time()
        try:
            jax.block_until_ready(jax.tree_util.tree_leaves(build(f, *argnums or [0])(*args)))
        except (ValueError, TypeError, NotImplementedError) as error:
            row["refused"] = f"{column}: {type(error).__name__}"
            break
        row[column] = time.perf_counter() - begin[0]
        row[f"{column} CPU"] = time.process_time() - begin[1]
    return row


def _ratio(row: dict[str, Any], clock: str = "") -> float:
    """(first step - 0.5 s) / first gradient."""
    return (row[f"jit{clock}"] - CONSTANT) / row[f"gradient{clock}"]


def _line(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"| {row['program']} | {row['refused']} | | | | | | | |"
    cells = [row.get(c + clock) for clock in ("", " CPU") for c in ("gradient", "jit", "eager")]
    ratios = [None, None] if row["program"] in TREES else [_ratio(row), _ratio(row, " CPU")]
    return (
        "| "
        + " | ".join([row["program"], *("–" if c is None else f"{c:.2f}" for c in (*cells, *ratios))])
        + " |"
    )


def _report(rows: list[dict[str, Any]]) -> str:
    done = [row for row in rows if "refused" not in row]
    programs = [row for row in done if row["program"] not in TREES]
    told = " ".join(str(__doc__).split("\n\n", 2)[2].split()).replace(". ", ".\n")
    machine = f"jax {jax.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the end."
    lines = ["# First calls", "", told, machine, ""]
    for clock in ("", " CPU"):
        ratios = sorted((_ratio(row, clock), row["program"]) for row in programs)
        worst = ", ".join(f"{ratio:.1f} {name}" for ratio, name in ratios[:-4:-1])
        lines.append(
            f"- (first step - {CONSTANT} s) / first gradient,{clock or ' wall'} seconds: median "
            f"{statistics.median(r for r, _ in ratios):.2f} (target {MEDIAN}), worst {worst} (target {WORST})."
        )
    for row in done:
        if row["program"] in TREES:
            lines.append(
                f"- {row['program']}: {row['jit']:.1f} s, CPU {row['jit CPU']:.1f} (target {LOOPS})."
            )
    head = ["program", "gradient", "jit step", "eager step", "gradient CPU", "jit CPU", "eager CPU", "ratio"]
    head = [*head, "ratio CPU"]
    lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *map(_line, rows), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
