"""newton_step and factorize: the exact step -H⁻¹g of an objective, at the cost of its graph."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from gnewt._errors import AccuracyWarning, StepError, explain_error
from gnewt._typing import PyTree
from gnewt.graph import Certificate, Graph, Structure
from gnewt.kkt import NONFINITE, OK, SINGULAR
from gnewt.newton.check import self_check
from gnewt.newton.factor import (
    Factor,
    Inertia,
    as_inertia,
    null_names,
    number,
    show,
    singular_message,
    status_name,
)
from gnewt.newton.objective import Objective
from gnewt.newton.system import System, system_of

STEP_STATUSES = ("ok", "singular", "nonfinite", "inaccurate")
"""`StepInfo.code` counts in this list."""
_INACCURATE = 3
_MOST_FRONTS = 10_000
"""Fronts of a plan (about 0.3 ms each) up to which the reference engine confirms that a Hessian is singular."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class StepInfo:
    """What is known about a Newton step. A pytree of numbers; names and messages are made when asked for."""

    code: Any
    """Position of the status in `STEP_STATUSES`: what compiled code can branch on."""
    residual: Any
    """‖(H + μI)·δ + g‖ / ‖g‖, from an independent Hessian-vector product."""
    counts: Any
    logdet: Any
    value: Any
    grad_norm: Any
    num_delayed: Any
    """Pivots that were moved to a parent front because they were too small in their own."""
    smallest_pivot: Any
    null: Any
    """1 for unknowns of the KKT system that found no pivot above rounding."""
    system: System = dataclasses.field(metadata={"static": True})
    place: tuple[str, str] | None = dataclasses.field(default=None, metadata={"static": True})
    """Where a number is not finite, if that was looked for: (what, where)."""

    @property
    def success(self) -> Any:
        return self.code == 0

    @property
    def inertia(self) -> Inertia:
        """Of H + μI: the step is a descent direction where negative = zero = 0."""
        return as_inertia(self.counts)

    @property
    def certificate(self) -> Certificate:
        return self.system.plan.certificate

    @property
    def null_vertices(self) -> tuple[str, ...]:
        """Names of the vertices without curvature."""
        return null_names(self.system, self.null)

    @property
    def status(self) -> str:
        """`ok`, `singular`, `nonfinite` or `inaccurate`. Inside jit use `code`."""
        return status_name(self.code, STEP_STATUSES, "gnewt.newton.STEP_STATUSES")

    @property
    def message(self) -> str:
        """Cause and remedy."""
        if self.status == "singular":
            return singular_message(self.system, self.null)
        if self.status == "nonfinite":
            what, where = self.place or ("a value or a derivative is not finite", "")
            return explain_error(
                what, where, "start from a point where the objective and its derivatives are finite"
            )
        if self.status == "inaccurate":
            return explain_error(
                f"the Newton step has a relative residual of {float(self.residual):.1e}: H is close to singular "
                f"(smallest pivot {float(self.smallest_pivot):.1e})",
                remedy="add a shift, rescale the inputs, or use float64",
            )
        return f"solved to a relative residual of {float(self.residual):.1e}"

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"

    def __repr__(self) -> str:
        return show("StepInfo", self.code, lambda: f"<StepInfo: {self}>")


def newton_step(
    target: Callable | Graph | Structure,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    order: str | Sequence[Any] = "auto",
    shift: Any = 0.0,
    curvature: str = "exact",
    engine: str = "auto",
    full_output: bool = False,
    check: bool = True,
) -> Callable[..., Any]:
    """Return a function that computes the Newton step δ = -(H + μI)⁻¹ g.

    Args:
        target: the objective: a JAX function of any pytrees that returns a scalar, or a `gnewt.Graph`.
        argnums: which arguments of the function are the variables, as in `jax.grad`.
        has_aux: the function returns `(value, aux)`; aux is then returned as the last result.
        order: elimination order: a name (`gnewt.plan.ORDERS`), `"auto"`, or a sequence of vertices.
        shift: μ, added on the input diagonals only: exactly H + μI.
        curvature: `"exact"`, or `"gauss_newton"`, which keeps the curvature of the losses only.
        engine: `"auto"`, or one of `gnewt.ENGINES`.
        full_output: also return a `StepInfo`, and report failures there instead of raising.
        check: compare each new structure with JAX's derivatives of the function, once.

    Returns:
        A function of the arguments that returns a step in the form of the variables (`step`, or `step, info`
        with `full_output`, and `aux` behind them with `has_aux`). Without `full_output` it raises `StepError`
        where there is no step, and warns where it is not accurate.

    Inside `jit` and `vmap` nothing can be raised: the step is NaN where H + μI is singular or a number is not
    finite, and `full_output` tells (`info.code`, `info.residual`). Steps are then not refined, and the
    structure is not checked.
    """
    objective = Objective(target, argnums, has_aux)

    def compute(*args: PyTree) -> Any:
        aux = (objective.aux(args),) if has_aux else ()
        factor = _factor(objective, args, order, shift, curvature, engine, check)
        structure = factor.system.structure
        if _is_traced(factor):
            # As the elimination gives it. The residual costs a Hessian-vector product only if somebody reads it.
            step = structure.unravel(factor.flat_traced_step)
            return (step, describe(factor), *aux) if full_output else ((step, *aux) if has_aux else step)
        info = describe(factor)
        if not full_output and info.status in ("singular", "nonfinite"):
            raise StepError(info.message)
        if not full_output and info.status == "inaccurate":
            warnings.warn(info.message, AccuracyWarning, stacklevel=2)
        step = structure.unravel(factor.flat_step[0])
        if full_output:
            return step, info, *aux
        return (step, *aux) if has_aux else step

    return compute


def factorize(
    target: Callable | Graph | Structure,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    order: str | Sequence[Any] = "auto",
    shift: Any = 0.0,
    curvature: str = "exact",
    engine: str = "auto",
    check: bool = True,
) -> Callable[..., Any]:
    """Return a function that eliminates H + μI at its arguments and returns a `Factor`.

    Arguments as in `newton_step`. A singular H gives a Factor that knows it (`is_singular`).
    """
    objective = Objective(target, argnums, has_aux)

    def compute(*args: PyTree) -> Any:
        factor = _factor(objective, args, order, shift, curvature, engine, check)
        if not _is_traced(factor) and factor.status == "nonfinite":
            raise StepError(describe(factor).message)
        return (factor, objective.aux(args)) if has_aux else factor

    return compute


def _factor(
    objective: Objective,
    args: Sequence[Any],
    order: Any,
    shift: Any,
    curvature: str,
    engine: str,
    check: bool,
) -> Factor:
    """Trace (or look up), plan (or look up), linearise, eliminate."""
    point = objective.at(args)
    system = system_of(point, objective.slots(order), curvature, engine)
    models = system.linearize(point)
    gradient = models.duals[: system.structure.num_inputs]
    step, numbers = system.factor_solve(models, shift, -gradient)
    factor = Factor(point, models, numbers, shift, step, system)
    if _doubtful(factor):
        # The fast engines judge noise by estimates, and rather say singular once too often: the oracle decides whether. Where it agrees, the
        # engine's own account stands: on large dense fronts it counts signs better.
        oracle = system_of(point, objective.slots(order), curvature, "reference")
        step, numbers = oracle.factor_solve(models, shift, -gradient)
        second = Factor(point, models, numbers, shift, step, oracle)
        factor = factor if second.status == "singular" else second
    if check and not _is_traced(factor) and factor.status != "nonfinite":
        system.structure.memo(("checked", curvature), lambda: self_check(system, point, models))
    return factor


def _doubtful(factor: Factor) -> bool:
    """Whether an engine says singular that is not the oracle, on a system that the oracle can take."""
    if _is_traced(factor) or factor.status != "singular" or factor.system.engine.name == "reference":
        return False
    return factor.plan.num_fronts <= _MOST_FRONTS


def _is_traced(factor: Factor) -> bool:
    return isinstance(factor.numbers.status, Tracer)


def describe(factor: Factor) -> StepInfo:
    """Judge the Newton step of a factor."""
    # Rounding of a backward-stable solve, with room for the condition of the local derivatives.
    tolerance = factor.system.structure.eps**0.5
    residual = factor.residual
    status = factor.numbers.status
    finite = (status < NONFINITE) & jnp.isfinite(factor.value)
    code = jnp.where(status == SINGULAR, SINGULAR, jnp.where(residual <= tolerance, OK, _INACCURATE))
    code = jnp.where(finite, code, NONFINITE)
    place = None
    if not _is_traced(factor) and int(code) == NONFINITE:
        place = factor.system.nonfinite(factor.point, factor.models)
    return StepInfo(
        code=number(code, int),
        residual=residual,
        counts=factor.numbers.inertia,
        logdet=factor.logdet(),
        value=number(factor.value, float),
        grad_norm=number(jnp.max(jnp.abs(factor.flat_gradient)), float),
        num_delayed=factor.num_delayed,
        smallest_pivot=factor.smallest_pivot,
        null=factor.numbers.null,
        system=factor.system,
        place=place,
    )
