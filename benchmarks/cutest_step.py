"""Whole Newton steps on unconstrained CUTEst problems, against a coloured sparse Hessian and a dense one.

    python benchmarks/cutest_step.py                  the choice below → results/cutest_step-<isa>.{json,md}
    python benchmarks/cutest_step.py --all            every unconstrained problem of sif2jax
    python benchmarks/cutest_step.py ROSENBR CURLY10  those only, printed

- gnewt: `jax.jit(gnewt.newton_step(f))`.
- asdex: gradient and sparse Hessian by colouring, jitted; then CHOLMOD on the host, its analysis done before. Where H is not
  positive definite at the start point, CHOLMOD gets H + βI: the same work.
- dense: `jax.hessian` and `jnp.linalg.solve`, jitted.
"""

from __future__ import annotations

from harness import SLOW, Figure, interleave, isa, relative, report  # first: it fixes the threads

# isort: split

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import sif2jax
from solvers import have

import gnewt

SMALL, LARGE, MOST_DENSE, MOST_COLOURED = 20, 500, 2100, 12_000
"""Inputs: up to where H counts as small, from where as large, and how many the peers get."""
SPARSE = 0.1
"""Share of nonzeros below which H counts as sparse."""
DENSE_BUT_NARROW = {"POWER": {"n": 1000}, "INTEQNELS": {}, "MSQRTALS": {}}
"""H is dense and the graph is not; POWER at a size at which the dense H fits into memory."""
CHOICE = [
    "ROSENBR",
    "BEALE",
    "BARD",
    "HELIX",
    "BROWNDEN",
    "KOWOSB",
    "OSBORNEA",
    "BIGGS6",
    "PALMER1C",
    "VIBRBEAM",
    "HILBERTB",
    "OSBORNEB",
    "CHNROSNB",
    "LUKSAN11LS",
    "LUKSAN17LS",
    "GENROSE",
    "EG2",
    "FLETCHCR",
    "EDENSCH",
    "DIXMAANB",
    "DIXMAANI1",
    "DIXMAANP",
    "CHAINWOO",
    "WOODS",
    "ARWHEAD",
    "BDQRTIC",
    "BROYDN3DLS",
    "BROYDN7D",
    "DQDRTIC",
    "ENGVAL1",
    "FREUROTH",
    "LIARWHD",
    "NONDQUAR",
    "SBRYBND",
    "TOINTGSS",
    "COSINE",
    "CURLY10",
    "DIXON3DQ",
    "POWER",
    "INTEQNELS",
    "MSQRTALS",
]


def problems(names: list[str]) -> list[Any]:
    found = {p.name: p for p in sif2jax.unconstrained_minimisation_problems}
    for name, sizes in DENSE_BUT_NARROW.items():
        if sizes:
            found[name] = type(found[name])(**sizes)
    return [found[name] for name in (names or found)]


def coloured(f: Callable, x: Any) -> tuple[Callable[[], Any], float, float]:
    """A step by asdex and CHOLMOD, the shift β that it needs, and the share of nonzeros of H."""
    import asdex
    from sksparse.cholmod import CholmodNotPositiveDefiniteError, analyze

    warnings.filterwarnings("ignore", category=asdex.DenseColoringWarning)
    colouring = asdex.hessian_coloring(f, x)
    hessian = asdex.hessian_from_coloring(f, colouring)
    evaluate = jax.jit(lambda x: (jax.grad(f)(x), hessian(x)))
    found = evaluate(x)[1]
    index, n = np.asarray(found.indices), len(x)
    order = np.lexsort((index[:, 0], index[:, 1]))
    columns = np.concatenate([[0], np.cumsum(np.bincount(index[:, 1], minlength=n))])
    matrix = sp.csc_matrix((np.asarray(found.data)[order], index[order, 0], columns), shape=(n, n))
    factor = analyze(matrix)
    shift = 0.0
    try:
        factor.cholesky_inplace(matrix)
    except CholmodNotPositiveDefiniteError:
        shift = 1.0 + float(abs(matrix).sum(axis=0).max())

    def run() -> np.ndarray:
        gradient, found = evaluate(x)
        matrix.data[:] = np.asarray(found.data)[order]
        factor.cholesky_inplace(matrix, beta=shift)
        return factor(-np.asarray(gradient))

    return run, shift, matrix.nnz / n**2


def dense(f: Callable, x: Any) -> Callable[[], Any]:
    step = jax.jit(lambda x: -jnp.linalg.solve(jax.hessian(f)(x), jax.grad(f)(x)))
    return lambda: step(x)


def measure(problem: Any) -> dict[str, Any]:
    def f(y: Any) -> Any:
        return problem.objective(y, problem.args)

    x = jnp.asarray(problem.y0)
    row: dict[str, Any] = {"problem": problem.name, "N": x.size}
    step = jax.jit(gnewt.newton_step(f))
    begin = time.perf_counter()
    taken = jax.block_until_ready(step(x))
    row["first call s"] = time.perf_counter() - begin
    calls: dict[str, Callable[[], Any]] = {"gnewt": lambda: step(x)}
    shifts = {}
    if x.ndim == 1 and x.size <= MOST_COLOURED and have("asdex") and have("sksparse.cholmod"):
        calls["asdex"], shifts["asdex"], row["nonzeros"] = coloured(f, x)
    if x.ndim == 1 and x.size <= MOST_DENSE:
        calls["dense"] = dense(f, x)
    times = interleave(calls)
    row |= {f"{name} µs": 1e6 * t for name, t in times.items()}
    row |= {f"gnewt / {name}": times["gnewt"] / t for name, t in times.items() if name != "gnewt"}
    product = jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,)))
    for name, call in calls.items():
        v = taken if name == "gnewt" else jnp.asarray(call())
        gradient, curved = product(x, v)
        left = curved + shifts.get(name, 0.0) * v + gradient
        row[f"{name} residual"] = relative(left, gradient) if np.any(gradient) else 0.0
    return row


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    def median(name: str, peer: str, target: float, chosen: Callable[[dict], bool]) -> Figure:
        ratios = [row[f"gnewt / {peer}"] for row in rows if f"gnewt / {peer}" in row and chosen(row)]
        measured = statistics.median(ratios) if ratios else None
        return Figure(f"{name} (median of {len(ratios)})", measured, "<=", target)

    def sparse(row: dict) -> bool:
        return row["N"] > SMALL and row["nonzeros"] < SPARSE

    found = [median("H sparse: step / asdex + CHOLMOD", "asdex", 1.5, sparse)]
    found += [
        median(f"{name}: step / asdex + CHOLMOD", "asdex", 0.1, lambda row: row["problem"] == name)
        for name in DENSE_BUT_NARROW
    ]
    return [
        *found,
        median(f"N <= {SMALL}: step / jax.hessian + solve", "dense", 1.5, lambda row: row["N"] <= SMALL),
        median(f"N >= {LARGE}: step / jax.hessian + solve", "dense", 0.1, lambda row: row["N"] >= LARGE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="*", help="names; a choice of about forty if none is given")
    parser.add_argument("--all", action="store_true", help="all unconstrained problems")
    given = parser.parse_args()
    rows = []
    for problem in problems([] if given.all else given.problems or CHOICE):
        try:
            rows.append(measure(problem))
        except Exception as error:  # one problem that fails must not lose the others; its figure is not met
            failed = {f"gnewt / {peer}": float("inf") for peer in ("asdex", "dense")}
            failed |= {"nonzeros": float("nan"), "failed": type(error).__name__}
            rows.append({"problem": problem.name, "N": np.size(problem.y0)} | failed)
        print({k: v if isinstance(v, str) else float(f"{v:.3g}") for k, v in rows[-1].items()}, flush=True)
        jax.clear_caches()  # compiled code of many problems would fill the memory
    if given.problems:
        return
    report(
        f"cutest_step-{isa()}",
        f"Newton steps on CUTEst ({isa()})",
        {"Problems": rows},
        figures_of(rows),
        [
            f"Calls beyond {SLOW} s are timed a few times only.\nN of POWER is {DENSE_BUT_NARROW['POWER']['n']}, so that its H fits.",
            "first call: trace, plan, compile and run.\nA residual of nan means that H is singular there.",
            "MSQRTALS has a sparse graph that is not narrow: residual (i, j) reads row i and column j of X, so any two unknowns meet "
            "in one, and every elimination ends with a dense front of all N = 1024: 358 Mflop, however it is ordered.",
        ],
    )


if __name__ == "__main__":
    main()
