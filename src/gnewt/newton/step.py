"""newton_step and factorize: the exact step -H⁻¹g of an objective, at the cost of its graph."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

from gnewt._errors import AccuracyWarning, StepError, explain_error
from gnewt._typing import PyTree
from gnewt.graph import Certificate, Graph, Structure
from gnewt.newton.check import self_check
from gnewt.newton.factor import Factor, Inertia, singular_message
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of


@dataclasses.dataclass(frozen=True)
class StepInfo:
    """What is known about a Newton step."""

    status: str
    """`ok`, `inaccurate`, `singular` or `nonfinite`."""
    message: str
    residual: float
    """‖(H + μI)·δ + g‖ / ‖g‖, from an independent Hessian-vector product."""
    inertia: Inertia
    """Of H + μI: the step is a descent direction where negative = zero = 0."""
    logdet: float
    value: float
    grad_norm: float
    num_delayed: int
    """Pivots that were moved to a parent front because they were too small in their own."""
    null_vertices: tuple[str, ...]
    certificate: Certificate

    @property
    def success(self) -> bool:
        return self.status == "ok"


def newton_step(
    target: Callable | Graph | Structure,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    order: str | Sequence[Any] = "auto",
    shift: float = 0.0,
    curvature: str = "exact",
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
        full_output: also return a `StepInfo`, and report failures there instead of raising.
        check: compare each new structure with JAX's derivatives of the function, once.

    Returns:
        A function of the arguments that returns a step in the form of the variables (`step`, or `step, info`
        with `full_output`, and `aux` behind them with `has_aux`). Without `full_output` it raises `StepError`
        where there is no step, and warns where it is not accurate.
    """
    objective = Objective(target, argnums, has_aux)

    def compute(*args: PyTree) -> Any:
        aux = (objective.aux(args),) if has_aux else ()
        try:
            factor = _factor(objective, args, order, shift, curvature, check)
        except _NonFinite as error:
            if not full_output:
                raise
            return error.step, error.info, *aux
        info = describe(factor)
        step = factor.system.structure.unravel(factor.flat_step[0])
        if full_output:
            return step, info, *aux
        if info.status == "singular":
            raise StepError(info.message)
        if info.status == "inaccurate":
            warnings.warn(info.message, AccuracyWarning, stacklevel=2)
        return (step, *aux) if has_aux else step

    return compute


def factorize(
    target: Callable | Graph | Structure,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    order: str | Sequence[Any] = "auto",
    shift: float = 0.0,
    curvature: str = "exact",
    check: bool = True,
) -> Callable[..., Any]:
    """Return a function that eliminates H + μI at its arguments and returns a `Factor`.

    Arguments as in `newton_step`. A singular H gives a Factor that knows it (`is_singular`).
    """
    objective = Objective(target, argnums, has_aux)

    def compute(*args: PyTree) -> Any:
        factor = _factor(objective, args, order, shift, curvature, check)
        return (factor, objective.aux(args)) if has_aux else factor

    return compute


def _factor(
    objective: Objective, args: Sequence[Any], order: Any, shift: float, curvature: str, check: bool
) -> Factor:
    """Trace (or look up), plan (or look up), linearise, eliminate."""
    point = objective.at(args)
    if isinstance(point.x, Tracer):
        raise StepError(
            explain_error(
                "a Newton step was asked for inside jit, vmap or grad, but the reference engine runs on the host",
                remedy="call it outside of the transformation",
            )
        )
    system = system_of(point, objective.slots(order), curvature)
    models = system.linearize(point)
    bad = system.nonfinite(point, models)
    if bad is not None:
        raise _NonFinite(system, models, bad)
    if check:
        system.structure.memo(("checked", curvature), lambda: self_check(system, point, models))
    return Factor(system, point, models, system.factorize(models, shift), float(shift))


def describe(factor: Factor) -> StepInfo:
    """Judge the Newton step of a factor."""
    # Rounding of a backward-stable solve, with room for the condition of the local derivatives.
    tolerance = factor.system.structure.eps**0.5
    residual = factor.residual
    if factor.is_singular:
        status, message = "singular", singular_message(factor)
    elif not residual <= tolerance:
        status = "inaccurate"
        message = explain_error(
            f"the Newton step has a relative residual of {residual:.1e}: H is close to singular "
            f"(smallest pivot {factor.numbers.smallest_pivot:.1e})",
            remedy="add a shift, rescale the inputs, or use float64",
        )
    else:
        status, message = "ok", f"solved to a relative residual of {residual:.1e}"
    return StepInfo(
        status=status,
        message=message,
        residual=residual,
        inertia=factor.inertia,
        logdet=factor.logdet(),
        value=float(factor.value),
        grad_norm=float(abs(factor.flat_gradient).max(initial=0.0)),
        num_delayed=factor.numbers.num_delayed,
        null_vertices=factor.null_vertices(),
        certificate=factor.certificate,
    )


class _NonFinite(StepError):
    """A value or derivative that is not finite; carries what `full_output` returns."""

    def __init__(self, system: Any, models: Any, bad: tuple[str, str]) -> None:
        super().__init__(
            explain_error(
                bad[0], bad[1], "start from a point where the objective and its derivatives are finite"
            )
        )
        nan = float("nan")
        structure = system.structure
        self.step = structure.unravel(jnp.full(structure.num_inputs, nan, structure.dtype))
        self.info = StepInfo(
            "nonfinite",
            str(self),
            nan,
            Inertia(0, 0, 0),
            nan,
            float(models.value),
            nan,
            0,
            (),
            system.plan.certificate,
        )
