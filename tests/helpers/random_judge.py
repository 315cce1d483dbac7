"""The judge of random programs: gnewt's steps, eager and inside jit, against JAX's dense derivatives."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import numpy as np

import gnewt
import helpers.random_calls
import helpers.random_steps  # noqa: F401
from helpers.random_programs import RandomProgram, draft_program, make_program


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program."""

    seed: int
    outcome: str
    """exact, singular, refused or skipped; anything else is a finding."""
    detail: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome in ("exact", "singular", "refused", "skipped")


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
