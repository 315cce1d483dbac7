"""First solves: seconds to the first answer of `minimize` and of `gnewt.control`, of every example, and of the import.

    python benchmarks/first_solve.py               every row; writes results/first_solve.md
    python benchmarks/first_solve.py NAME ...      some of them, printed only

Every row is a fresh process. Imports are not counted, but in the rows of the import and of the examples. Wall and CPU seconds: the
promised figures are wall seconds on two idle cores; CPU seconds tell of a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
IMPORT, SOLVE, EXAMPLE, BEYOND = 0.4, 5.0, 12.0, 1.0
"""Seconds: the import beyond jax, a first call of `gnewt.control`, an example, `minimize` beyond `newton_step`."""

_HEAD = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import gnewt
from gnewt import control
sys.path.insert(0, {examples!r})
def report(f):
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(f())
    print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""
_CARTPOLE = """
import cartpole as c
problem = control.Problem(c.dynamics, c.stage_cost, c.final_cost, jnp.zeros(4), 200, final_time=c.SECONDS)
us = 5 * np.sin((c.GRAVITY / c.LENGTH) ** 0.5 * np.linspace(0, c.SECONDS, 200, endpoint=False))[:, None]
"""
_QUADROTOR = """
import quadrotor as q
problem = control.Problem(q.dynamics, q.stage_cost, q.final_cost, jnp.zeros(12).at[2].set(1.0), 100, final_time=q.SECONDS)
us = np.full((100, 4), q.HOVER)
"""
PROGRAMS = {
    "newton_step": (_CARTPOLE + "report(lambda: gnewt.newton_step(problem, shift=10.0)(us))", None),
    "minimize": (_CARTPOLE + "report(lambda: gnewt.minimize(problem, us, max_steps=1).x)", None),
    "solve cartpole": (_CARTPOLE + "report(lambda: control.solve(problem, us).us)", SOLVE),
    "solve quadrotor": (
        _QUADROTOR + "report(lambda: control.solve(problem, us, 'ilqr', max_steps=500).us)",
        SOLVE,
    ),
    "mpc_step": (_CARTPOLE + "report(lambda: control.mpc_step(problem, problem.x0, us))", SOLVE),
    "simulate": (
        _CARTPOLE + "found = control.solve(problem, us)\nreport(lambda: problem.simulate(found.policy))",
        SOLVE,
    ),
}
"""Name ↦ (program, promised seconds)."""
_IMPORT = """
import json, time
import jax, jax.numpy
wall, cpu = time.perf_counter(), time.process_time()
import gnewt
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    rows = []
    for name, (program, promised) in {"import": (_IMPORT, IMPORT), **PROGRAMS}.items():
        if names and name not in names:
            continue
        code = program if name == "import" else _HEAD.format(examples=str(EXAMPLES)) + program
        _run("import gnewt")  # writes the bytecode, which an installed package has
        wall, cpu = json.loads(_run(code).splitlines()[-1])
        rows.append(_row(name, wall, cpu, promised))
    for path in sorted(EXAMPLES.glob("*.py")):
        if not names or path.stem in names:
            rows.append(_row(path.name, *_time_example(path), EXAMPLE))
    by_name = {row["first call"]: row for row in rows}
    if {"newton_step", "minimize"} <= by_name.keys():
        by_name["minimize"]["promised, s"] = by_name["newton_step"]["wall, s"] + BEYOND
    if not names:
        from harness import report

        report("first_solve", "First solves", {"First call in a fresh process": rows})


def _row(name: str, wall: float, cpu: float, promised: float | None) -> dict[str, object]:
    row = {"first call": name, "wall, s": wall, "CPU, s": cpu, "promised, s": promised}
    print(f"{name:>20} {wall:7.2f} s wall {cpu:7.2f} s CPU  {promised or ''}", flush=True)
    return row


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def _time_example(path: pathlib.Path) -> tuple[float, float]:
    """Wall and CPU seconds of a whole script, imports included; its pictures go to a folder that is thrown away."""
    code = (
        "import os, runpy, sys, time\nbegin = time.perf_counter()\n"
        f"sys.argv = [{str(path)!r}]\nrunpy.run_path({str(path)!r}, run_name='__main__')\n"
        "print(time.perf_counter() - begin, time.process_time())\n"
    )
    source = os.environ.get("PYTHONPATH", "")
    where = os.pathsep.join(os.path.abspath(p) for p in source.split(os.pathsep) if p)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": where},
        )
    wall, cpu = map(float, done.stdout.splitlines()[-1].split())
    return wall, cpu


if __name__ == "__main__":
    main()
