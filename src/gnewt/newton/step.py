"""newton_step and factorize: the exact step -H⁻¹g of an objective, at the cost of its graph."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Concatenate, Literal, ParamSpec, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import AccuracyWarning, StepError, explain_error
from gnewt._typing import Argument, PyTree, X
from gnewt.graph import Certificate, Graph, Structure
from gnewt.kkt import EliminationStatus
from gnewt.newton.check import checked
from gnewt.newton.factor import Factor, null_names, singular_message
from gnewt.newton.numbers import Count, Inertia, Real, RealLike, as_count, as_inertia, as_real, show
from gnewt.newton.objective import Objective, Point
from gnewt.newton.options import check_shift
from gnewt.newton.rules import still
from gnewt.newton.statuses import StepStatus, status_of, step_status
from gnewt.newton.system import OrderLike, SlotOrder, System, system_of

P = ParamSpec("P")
_DROPPED = ("the objective is not finite, through a part that is multiplied by zero or not selected", "")
"""What to say where every number of the graph is finite, and f is not."""
_MOST_FRONTS = 10_000
"""Fronts of a plan (about 0.3 ms each) up to which the reference engine confirms that a Hessian is singular."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class StepInfo:
    """What is known about a Newton step. A pytree of numbers; names and messages are made when asked for."""

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    code: Count
    """Number of a `gnewt.newton.StepStatus`: what compiled code can branch on."""
    residual: Real
    """‖(H + μI)·δ + g‖ / ‖g‖, from an independent Hessian-vector product."""
    counts: jax.Array
    """[3]: positive, negative and zero eigenvalues of H + μI."""
    logdet: Real
    value: Real
    grad_norm: Real
    num_delayed: Count
    """Pivots that were moved to a parent front because they were too small in their own."""
    smallest_pivot: Real
    null: jax.Array
    """1 for unknowns of the KKT system that found no pivot above rounding."""
    system: System = dataclasses.field(metadata={"static": True})
    place: tuple[str, str] | None = dataclasses.field(default=None, metadata={"static": True})
    """Where a number is not finite, if that was looked for: (what, where)."""

    @property
    def success(self) -> Count:
        return self.code == StepStatus.OK

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
        return status_of(self.code, StepStatus).text

    @property
    def message(self) -> str:
        """Cause and remedy."""
        status = status_of(self.code, StepStatus)
        if status == StepStatus.SINGULAR:
            return singular_message(self.system, self.null)
        if status == StepStatus.NONFINITE:
            what, where = self.place or ("a value or a derivative is not finite", "")
            return explain_error(
                what, where, "start from a point where the objective and its derivatives are finite"
            )
        if status == StepStatus.INACCURATE:
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


class StepOptions(TypedDict, total=False):
    """Further options of `newton_step` and `factorize`."""

    order: Argument[OrderLike]
    shift: Argument[RealLike]
    curvature: str
    engine: str
    check: bool


@overload
def newton_step(
    target: Callable[Concatenate[X, P], PyTree],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    full_output: Literal[False] = False,
    **options: Unpack[StepOptions],
) -> Callable[Concatenate[X, P], X]: ...
@overload
def newton_step(
    target: Callable[Concatenate[X, P], PyTree],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    full_output: Literal[True],
    **options: Unpack[StepOptions],
) -> Callable[Concatenate[X, P], tuple[X, StepInfo]]: ...
@overload
def newton_step(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    argnums: Argument[int | Sequence[int]] = 0,
    *,
    has_aux: bool = False,
    full_output: bool = False,
    **options: Unpack[StepOptions],
) -> Callable[..., PyTree]: ...
def newton_step(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    argnums: Argument[int | Sequence[int]] = 0,
    *,
    has_aux: bool = False,
    full_output: bool = False,
    order: Argument[OrderLike] = "auto",
    shift: Argument[RealLike] = 0.0,
    curvature: str = "exact",
    engine: str = "auto",
    check: bool = True,
) -> Callable[..., PyTree]:
    """Return a function that computes the Newton step δ = -(H + μI)⁻¹ g.

    Args:
        target: the objective: a JAX function of any pytrees that returns a scalar, or a `gnewt.Graph`.
        argnums: which arguments of the function are the variables, as in `jax.grad`.
        has_aux: the function returns `(value, aux)`; aux is then returned as the last result.
        full_output: also return a `StepInfo`, and report failures there instead of raising.
        order: elimination order: a name (`gnewt.plan.ORDERS`), `"auto"`, or a sequence of vertices.
        shift: μ, added on the input diagonals only: exactly H + μI.
        curvature: `"exact"`, or `"gauss_newton"`, which keeps the curvature of the losses only.
        engine: `"auto"`, or one of `gnewt.ENGINES`.
        check: compare each new structure with JAX's derivatives of the function, once; inside jit at random numbers, while
            the function around it is traced.

    Returns:
        A function of the arguments (positional and by name, as for `jax.grad`) that returns a step in the form of the variables (`step`, or `step, info`
        with `full_output`, and `aux` behind them with `has_aux`). Without `full_output` it raises `StepError`
        where there is no step, and warns where it is not accurate.

    Inside `jit` and `vmap` nothing can be raised: the step is NaN where H + μI is singular or a number is not
    finite, and `full_output` tells (`info.code`, `info.residual`). Steps are then not refined.
    """
    objective, shift = Objective(target, argnums, has_aux), check_shift(shift)

    def compute(*args: PyTree, **kwargs: PyTree) -> PyTree:
        factor = _factor(objective, args, kwargs, order, shift, curvature, engine, check)
        # Inside jit the step is as the elimination gives it: a residual would cost a Hessian-vector product.
        info = describe(factor) if full_output or not factor.is_traced else None
        if info is not None and not full_output:
            if info.code in (StepStatus.SINGULAR, StepStatus.NONFINITE):
                raise StepError(info.message)
            if info.code == StepStatus.INACCURATE:
                warnings.warn(info.message, AccuracyWarning, stacklevel=2)
        flat = factor.flat_traced_step if factor.is_traced else factor.flat_step[0]
        aux = (objective.aux(args, kwargs),) if has_aux else ()
        found = (factor.system.structure.unravel(flat), *((info,) if full_output else ()), *aux)
        return found if len(found) > 1 else found[0]

    return compute


@overload
def factorize(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    argnums: Argument[int | Sequence[int]] = 0,
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[StepOptions],
) -> Callable[..., Factor]: ...
@overload
def factorize(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    argnums: Argument[int | Sequence[int]] = 0,
    *,
    has_aux: bool,
    keep: bool | str | Sequence[str] = (),
    **options: Unpack[StepOptions],
) -> Callable[..., tuple[Factor, PyTree]]: ...
def factorize(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    argnums: Argument[int | Sequence[int]] = 0,
    *,
    has_aux: bool = False,
    check: bool = True,
    order: Argument[OrderLike] = "auto",
    shift: Argument[RealLike] = 0.0,
    curvature: str = "exact",
    engine: str = "auto",
    keep: bool | str | Sequence[str] = (),
) -> Callable[..., Factor | tuple[Factor, PyTree]]:
    """Return a function that eliminates H + μI at its arguments and returns a `Factor`.

    Arguments as in `newton_step`. A singular H gives a Factor that knows it (`is_singular`).

    Args:
        keep: which entries of the auxiliary data have variances (`Factor.output_variances`): names, or True for all.
    """
    objective, shift = Objective(target, argnums, has_aux, keep), check_shift(shift)

    def compute(*args: PyTree, **kwargs: PyTree) -> Factor | tuple[Factor, PyTree]:
        factor = _factor(objective, args, kwargs, order, shift, curvature, engine, check)
        if not factor.is_traced and int(factor.numbers.status) == EliminationStatus.NONFINITE:
            raise StepError(describe(factor).message)
        return (factor, objective.aux(args, kwargs)) if has_aux else factor

    return compute


def _factor(
    objective: Objective,
    args: Sequence[PyTree],
    kwargs: Mapping[str, PyTree],
    order: Argument[OrderLike],
    shift: RealLike,
    curvature: str,
    engine: str,
    check: bool,
) -> Factor:
    """Trace (or look up), plan (or look up), linearise, eliminate; check a new structure."""
    point, slots = objective.at(args, kwargs), objective.slots(order)
    factor = _factor_at(point, slots, shift, curvature, engine)
    known = not isinstance(factor.numbers.status, Tracer)
    if not check or (known and int(factor.numbers.status) == EliminationStatus.NONFINITE):
        return factor
    quiet = point.still
    better = checked(factor.system, quiet, None if quiet.is_traced else factor.models)
    if better is quiet:
        return factor
    better = objective.at(args, kwargs)  # which finds the better structure, and has derivatives
    return _factor_at(better, slots if isinstance(slots, str) else "auto", shift, curvature, engine)


def _factor_at(point: Point, slots: SlotOrder, shift: RealLike, curvature: str, engine: str) -> Factor:
    system = system_of(point, slots, curvature, engine)
    models, step, numbers = system.step(point.still, still(shift))
    factor = Factor(point, models, numbers, shift, step, system)
    if factor.is_traced:
        return factor
    status = int(factor.numbers.status)
    if status == EliminationStatus.SINGULAR and _can_confirm(system):
        # The fast engines judge noise by estimates, and rather say singular once too often: the oracle decides
        # whether. Where it agrees, the engine's own account stands: on large dense fronts it counts signs better.
        oracle = system_of(point, slots, curvature, "reference")
        step, numbers = oracle.factor_solve(models, shift, -models.duals[: system.structure.num_inputs])
        second = Factor(point, models, numbers, shift, step, oracle)
        factor = factor if int(second.numbers.status) == EliminationStatus.SINGULAR else second
    return factor


def _can_confirm(system: System) -> bool:
    """Whether the engine is not the oracle, on a system that the oracle can take."""
    return system.engine.name != "reference" and system.plan.num_fronts <= _MOST_FRONTS


def describe(factor: Factor) -> StepInfo:
    """Judge the Newton step of a factor."""
    # Rounding of a backward-stable solve, with room for the condition of the local derivatives.
    tolerance = factor.system.structure.eps**0.5
    residual = factor.residual
    xp = jnp if factor.is_traced else np
    # Products with H are NaN where f is, although the graph may drop what is not finite: 0·∞, or a masked NaN.
    solved = xp.asarray(factor.numbers.status) == EliminationStatus.OK
    finite = xp.isfinite(factor.value) & ~(solved & xp.isnan(residual))
    code = step_status(factor.numbers.status, finite, residual <= tolerance)
    place = None
    if not factor.is_traced and int(code) == StepStatus.NONFINITE:
        place = factor.system.nonfinite(factor.point, factor.models) or _DROPPED
    return StepInfo(
        code=as_count(code),
        residual=residual,
        counts=factor.numbers.inertia,
        logdet=factor.logdet(),
        value=as_real(factor.value),
        grad_norm=as_real(xp.max(xp.abs(factor.flat_gradient))),
        num_delayed=factor.num_delayed,
        smallest_pivot=factor.smallest_pivot,
        null=factor.numbers.null,
        system=factor.system,
        place=place,
    )
