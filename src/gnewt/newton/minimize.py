"""Algorithm 1, with what the printed one lacks: an inertia-corrected shift and failure branches (E19)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnewt._typing import PyTree
from gnewt.graph import Graph, Structure
from gnewt.kkt import LocalModels
from gnewt.newton.check import self_check
from gnewt.newton.factor import Factor, Inertia
from gnewt.newton.objective import Objective, Point
from gnewt.newton.result import MESSAGES, Record, Result
from gnewt.newton.system import System, system_of

ARMIJO = 1e-4
"""Share of the predicted decrease that a step must achieve."""
MAX_HALVINGS = 60


@dataclasses.dataclass
class _Run:
    """Counters and history of one run."""

    factorizations: int = 0
    evaluations: int = 0
    history: list[Record] = dataclasses.field(default_factory=list)


def minimize(
    target: Callable | Graph | Structure,
    x0: PyTree,
    args: tuple[Any, ...] = (),
    *,
    has_aux: bool = False,
    tol: float = 1e-8,
    max_steps: int = 200,
    order: str | Sequence[Any] = "auto",
    curvature: str = "exact",
    verbose: bool = False,
    check: bool = True,
) -> Result:
    """Minimise the objective by Newton's method with a line search on the inputs only (Algorithm 1).

    Each step factorises H + μI with the smallest μ (from a growing sequence) whose inertia certifies positive
    definiteness, so that the step is a descent direction, and backtracks until the objective decreases.

    Args:
        target: the objective: a JAX function `f(x, *args)` of any pytree x, or a `gnewt.Graph`.
        x0: start, in the form of the inputs.
        args: further arguments of the function, held fixed.
        has_aux: the function returns `(value, aux)`; aux is ignored.
        tol: stop when ‖g‖∞ ≤ tol·max(1, ‖g(x0)‖∞·1e-3) (the second part is for badly scaled objectives).
        max_steps: limit on the number of steps.
        verbose: print a line per step to standard error.
        check: compare a new structure with JAX's derivatives of the function, once.
    """
    objective = Objective(target, 0, has_aux)
    point = objective.at((x0, *args))
    system = system_of(point, objective.slots(order), curvature)
    models = system.linearize(point)
    run = _Run(evaluations=1)
    bad = system.nonfinite(point, models)
    if bad is not None:
        return _result(system, point, models, "nonfinite", run, None, f"{bad[0]} ({bad[1]})")
    if check:
        system.structure.memo(("checked", curvature), lambda: self_check(system, point, models))
    threshold = tol * max(1.0, 1e-3 * _grad_norm(system, models))
    shift, factor, status = 0.0, None, "max_steps"
    for step in range(max_steps + 1):
        if _grad_norm(system, models) <= threshold:
            status = "converged"
            break
        if step == max_steps:
            break
        factor, shift, inertia = _certified_factor(system, point, models, shift, run)
        if factor is None:
            status = "singular"
            break
        direction, residual = factor.flat_step
        found = _line_search(system, point, models, direction, run)
        if isinstance(found, str):
            status = found
            break
        length, point, models = found
        run.history.append(
            Record(
                step,
                float(factor.value),
                _max_abs(factor.flat_gradient),
                factor.shift,
                inertia,
                length,
                residual,
            )
        )
        if verbose:
            print(_line(run.history[-1]), file=sys.stderr)
    return _result(system, point, models, status, run, factor)


def _certified_factor(
    system: System, point: Point, models: LocalModels, last: float, run: _Run
) -> tuple[Factor | None, float, Inertia]:
    """Factorise H + μI with increasing μ until its inertia says positive definite.

    Returns the factor, the shift to start from next time, and the inertia of H itself.
    """

    def attempt(shift: float) -> Factor:
        run.factorizations += 1
        return Factor(system, point, models, system.factorize(models, shift), shift)

    factor = attempt(0.0)
    inertia = factor.inertia
    if factor.is_positive_definite:
        return factor, 0.0, inertia
    scale = max(_max_abs(models.sources), 1e-300)
    shift = max(last / 4, 1e-8 * scale)
    while shift < 1e12 * scale:
        factor = attempt(shift)
        if factor.is_positive_definite:
            return factor, shift, inertia
        shift *= 8.0
    return None, shift, inertia


def _line_search(
    system: System, point: Point, models: LocalModels, direction: np.ndarray, run: _Run
) -> tuple[float, Point, LocalModels] | str:
    """Backtrack from a full step until the objective decreases enough; a status if it cannot.

    Near the solution the decrease drowns in the rounding of f. There a step counts if f does not rise above
    its noise and the gradient shrinks.
    """
    dtype = system.structure.dtype
    value, gradient = float(models.value), np.asarray(models.duals[: system.structure.num_inputs], np.float64)
    slope = float(gradient @ direction)
    noise = 16 * float(jnp.finfo(dtype).eps) * max(abs(value), 1e-300)
    length = 1.0
    for _ in range(MAX_HALVINGS):
        x = jnp.asarray(np.asarray(point.x, np.float64) + length * direction, dtype)
        trial = dataclasses.replace(point, x=x)
        new = float(system.value(trial))
        run.evaluations += 1
        if new == -np.inf:
            return "unbounded"
        close = -length * slope <= noise
        if np.isfinite(new) and (new <= value + ARMIJO * length * slope or (close and new <= value + noise)):
            after = system.linearize(trial)
            finite = system.nonfinite(trial, after) is None
            if finite and (not close or _grad_norm(system, after) < _grad_norm(system, models)):
                return length, trial, after
            if close:
                return "stalled"
        length /= 2
    return "stalled"


def _result(
    system: System,
    point: Point,
    models: LocalModels,
    status: str,
    run: _Run,
    factor: Factor | None,
    detail: str = "",
) -> Result:
    return Result(
        x=system.structure.unravel(point.x),
        fun=float(models.value),
        grad_norm=_grad_norm(system, models),
        status=status,
        message=f"{MESSAGES[status]}" + (f": {detail}" if detail else ""),
        num_steps=len(run.history),
        num_factorizations=run.factorizations,
        num_evaluations=run.evaluations,
        history=tuple(run.history),
        factor=factor,
    )


def _grad_norm(system: System, models: LocalModels) -> float:
    return _max_abs(models.duals[: system.structure.num_inputs])


def _max_abs(x: Any) -> float:
    return float(np.max(np.abs(np.asarray(x)), initial=0.0))


def _line(record: Record) -> str:
    return (
        f"{record.step:4d}  f = {record.value: .10e}  |g| = {record.grad_norm:.2e}  "
        f"shift = {record.shift:.1e}  step length = {record.step_length:.1e}  inertia {tuple(record.inertia)}"
    )
