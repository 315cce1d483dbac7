"""The judge of random programs: gnewt's steps, eager and inside jit, against JAX's dense derivatives.

    PYTHONPATH=src:tests python -m helpers.random_judge 0 2000 --workers 16 --out verdicts.jsonl --seconds 520

judges many in several processes. One line of JSON for each seed is written as it ends, and a summary is printed; the exit
code is 1 if there are findings. A program that kills its process or takes too long is a finding, and the others go on.
`--resume` leaves out what the file has already.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import gnewt
import helpers.random_calls
import helpers.random_steps  # noqa: F401
from helpers.quick_compilation import CACHE, ENVIRONMENT
from helpers.random_programs import RandomProgram, draft_program, make_program
from helpers.seed_pool import Work, run_seeds

RIGHT = ("exact", "singular", "refused", "skipped")
"""Outcomes that are no findings."""
NOT_RUN = "cut off"
"""Neither: the time of all programs was over."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program."""

    seed: int
    outcome: str
    """exact, singular, refused or skipped; anything else is a finding."""
    detail: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome in RIGHT


def judge(seed: int) -> Verdict:
    """Draft a program and judge gnewt's steps on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = make_program(seed)
        except (TypeError, NotImplementedError, ValueError) as problem:
            return _judge_refusal(seed, f"JAX: {str(problem).splitlines()[0]}")
        if program is None:
            return Verdict(seed, "skipped", "no finite point")
        try:
            return _judge(program)
        except Exception as problem:
            return Verdict(
                seed,
                type(problem).__name__,
                f"{str(problem).splitlines()[0]} {program.names} {program.inside}",
            )


def _judge_refusal(seed: int, reason: str) -> Verdict:
    """A program that JAX cannot differentiate twice: gnewt says so too."""
    f, point, names, inside = draft_program(seed)
    try:
        gnewt.newton_step(f, full_output=True)(point(0))
    except gnewt.TraceError as problem:
        return Verdict(seed, "refused", str(problem))
    except Exception as problem:
        return Verdict(seed, type(problem).__name__, f"{reason}; {problem} {names} {inside}")
    return Verdict(seed, "not refused", f"{reason} {names} {inside}")


def _judge(program: RandomProgram) -> Verdict:
    seed, H, g = program.seed, program.hessian, program.gradient
    single = np.dtype(jax.tree_util.tree_leaves(program.x)[0].dtype) == np.float32
    single |= "other_precision" in (*program.names, *program.inside)
    eps = 1.2e-7 if single else 2.2e-16
    size = np.linalg.norm(H, 2)
    smallest = np.abs(np.linalg.eigvalsh(H)).min()
    singular = smallest <= 1e4 * eps * size
    step, info = gnewt.newton_step(program.f, full_output=True)(program.x)
    inside = jax.jit(gnewt.newton_step(program.f))(program.x)
    bound = 1e7 * eps if not single else 2e4 * eps

    def error(step: object) -> float:
        s = np.concatenate([np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(step)]).astype(np.float64)
        return float(np.linalg.norm(H @ s + g) / (size * np.linalg.norm(s) + np.linalg.norm(g) + 1e-300))

    condition = size / max(smallest, 1e-300)
    detail = f"host {info.status} {error(step):.1e}, jit {error(inside):.1e}, condition {condition:.1e}, "
    detail += f"{program.names} {program.inside}"
    if singular:
        said = info.status in ("singular", "inaccurate") or error(step) <= bound
        return Verdict(seed, "singular" if said else "missed singular", detail)
    # The residual of a program with float32 inside is that of float32, whatever its inputs are.
    if info.status != "ok" and not (single and info.status == "inaccurate"):
        return Verdict(seed, f"false {info.status}", detail)
    if not error(step) <= bound:
        return Verdict(seed, "wrong", detail)
    if not error(inside) <= bound:
        return Verdict(seed, "wrong in jit", detail)
    return Verdict(seed, "exact", detail)


def _judge_record(seed: int) -> dict[str, Any]:
    """Judge a program; returns plain data."""
    verdict = judge(seed)
    return {"outcome": verdict.outcome, "detail": verdict.detail}


def _enter(folder: str) -> None:
    """Set JAX up as the tests do."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", folder)
    for name, value in CACHE.items():
        jax.config.update(name, value)


def _forget() -> None:
    gnewt.clear_cache()
    jax.clear_caches()


WORK = Work(_judge_record, _enter, _forget)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a range of seeds in several processes; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("start", type=int)
    parser.add_argument("stop", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="file of JSON lines")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="limit of the whole run")
    parser.add_argument("--each", type=float, default=180.0, help="limit of one program, in seconds")
    parser.add_argument("--resume", action="store_true", help="go on with the file, else it is begun anew")
    options = parser.parse_args(arguments)
    for name, value in ENVIRONMENT.items():  # of the processes to come
        os.environ.setdefault(name, value)
    known: dict[int, dict[str, Any]] = {}
    if options.resume and options.out.exists():
        lines = options.out.read_text(encoding="utf-8").splitlines()
        known = {record["seed"]: record for record in map(json.loads, lines) if record["outcome"] != NOT_RUN}
    seeds = [seed for seed in range(options.start, options.stop) if seed not in known]
    began = time.monotonic()
    with options.out.open("a" if options.resume else "w", encoding="utf-8") as out:
        for record in run_seeds(WORK, seeds, options.workers, options.each, options.seconds):
            known[record["seed"]] = record
            print(json.dumps(record), file=out, flush=True)
    records = [known[seed] for seed in range(options.start, options.stop) if seed in known]
    print(_summary(records, options.stop - options.start, time.monotonic() - began))
    return 0 if all(r["outcome"] in (*RIGHT, NOT_RUN) for r in records) else 1


def _summary(records: list[dict[str, Any]], wanted: int, seconds: float) -> str:
    """Count outcomes and list findings."""
    counts = collections.Counter(r["outcome"] for r in records)
    lines = [f"jax {jax.__version__}, {wanted} programs, {wanted - len(records)} not begun, {seconds:.0f} s"]
    lines += [f"{count:6d}  {outcome}" for outcome, count in counts.most_common()]
    findings = [r for r in records if r["outcome"] not in (*RIGHT, NOT_RUN)]
    lines += [f"seed {r['seed']}: {r['outcome']}; {r.get('detail', '')}" for r in findings]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
