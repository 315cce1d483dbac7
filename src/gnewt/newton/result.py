"""What minimize returns: a result with status, cause and remedy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from gnewt._typing import PyTree
from gnewt.newton.loop import Record
from gnewt.newton.numbers import Count, Real, show
from gnewt.newton.statuses import Status, status_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnewt.newton.constrained.kkt import KKTFactor
    from gnewt.newton.factor import Factor

X = TypeVar("X")
"""The pytree of the inputs."""

MESSAGES = {
    Status.RUNNING: "the run was not finished",
    Status.CONVERGED: "the gradient is below the tolerance",
    Status.STALLED: "no further decrease within rounding; the gradient is as small as this precision allows",
    Status.MAX_STEPS: "the limit on the number of steps was reached; raise max_steps or check the scaling",
    Status.UNBOUNDED: "the objective decreases without bound along the last direction; add a cost or a bound",
    Status.NONFINITE: "the objective or its derivatives are not finite at the start; choose another start",
    Status.SINGULAR: "H + μI stayed indefinite or singular for every shift tried; check the derivatives and scaling",
    Status.NO_DECREASE: "no step lowers the objective, however short, although its derivatives promise it: there is a kink "
    "(abs, max, a branch), a custom derivative is wrong, or values are noisy; smooth it, or check jax.grad against differences",
    Status.TIME_LIMIT: "the time limit was reached; this is the best iterate so far",
    Status.STOPPED: "the callback asked to stop; this is the best iterate so far",
    Status.INTERRUPTED: "interrupted from the keyboard; this is the best iterate so far",
    Status.INFEASIBLE: "the violation of the constraints has a minimum above zero here: no point nearby is feasible; start "
    "elsewhere, or check that the constraints can be met together (`res.violation`, `res.multipliers` show which fight)",
    Status.RESTORATION_FAILED: "no step lowers the violation of the constraints, however short: a constraint has a kink or is "
    "badly scaled; check its derivatives, rescale it, or start closer to the feasible set",
}
"""Cause (and remedy) of every status."""
_CONSTRAINED = {
    Status.CONVERGED: "the error of the first-order conditions is below the tolerance",
    Status.STALLED: "no further progress within rounding; the error of the first-order conditions is below 1e-6",
    Status.UNBOUNDED: "the objective falls without bound within the constraints, or x runs to infinity; add a bound or a cost",
    Status.NONFINITE: "the objective, a constraint or a derivative is not finite at the start; choose another start",
    Status.SINGULAR: "the KKT matrix kept the wrong inertia for every shift tried; check derivatives, scaling, and whether "
    "constraints depend on each other",
    Status.NO_DECREASE: "no step is acceptable, however short, and the first-order conditions are not met: there is a kink, "
    "constraints that depend on each other, or values are noisy; check derivatives and scaling",
}
"""The same for runs with constraints, where it differs."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Result(Generic[X]):
    """Outcome of `gnewt.minimize`, with SciPy's names where SciPy has one. A pytree of numbers."""

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    x: X
    fun: Real
    grad_norm: Real
    """‖g‖∞."""
    code: Count
    """Number of a `gnewt.newton.Status`: what compiled code can branch on."""
    num_steps: Count
    num_factorizations: Count
    num_evaluations: Count
    """Evaluations of the objective, those of the search included."""
    num_gradients: Count
    """Points at which derivatives were taken: the start, and every trial whose value was good enough."""
    history: tuple[Record, ...] | Record
    """A `Record` for every step; inside jit one Record of arrays with max_steps rows, NaN behind the last."""
    memory: object
    """What the search would have gone on with: its radius. `minimize(f, res)` uses it."""
    factor: Factor | KKTFactor | None
    """H at `x`, eliminated (a `Factor`): its inertia says whether `x` is a minimum; with constraints the KKT matrix (a
    `KKTFactor`). None inside jit, and where the tree is too wide."""
    detail: str = dataclasses.field(default="", metadata={"static": True})
    tol: Real = 0.0
    """The tolerance that was asked for."""
    violation: Real = 0.0
    """‖·‖∞ by which constraints and bounds are violated, in the user's scale; 0 without any."""
    kkt_error: Real = float("nan")
    """Scaled error of the first-order conditions; NaN for a run without constraints and bounds."""
    multipliers: PyTree = None
    """y of L = f + yᵀc + zᵀx, in the form of the constraints: positive at an upper limit, negative at a lower one."""
    bound_multipliers: PyTree = None
    """z of L = f + yᵀc + zᵀx, in the form of x: positive at an upper bound, negative at a lower one."""
    active: PyTree = None
    """In the form of the constraints: whether a row holds with equality and has a multiplier."""
    gap: Real = 0.0
    """‖x_v - Φ_v‖∞ over the nodes of a lifted graph; 0 where the graph is not lifted."""
    outputs: PyTree = None
    """Auxiliary entries that were lifted, at the slots."""

    @property
    def success(self) -> Count:
        return (self.code == Status.CONVERGED) | (self.code == Status.STALLED)

    @property
    def status(self) -> str:
        """Name of the outcome. Inside jit use `code`."""
        return status_of(self.code, Status).text

    @property
    def message(self) -> str:
        """Cause and remedy; and whether an end that counts as a success is none to be glad of."""
        status = status_of(self.code, Status)
        text = MESSAGES[status] + (f": {self.detail}" if self.detail else "")
        if self.bound_multipliers is not None:
            return self._constrained_message(status)
        if status == Status.CONVERGED and self.grad_norm > self.tol:
            text += (
                f", which follows the first gradient: ‖g‖∞ = {float(self.grad_norm):.1e} is at most "
                f"tol·‖g(x0)‖∞/1000, and more than tol = {float(self.tol):.1e}; lower tol to go on"
            )
        inertia = None if self.factor is None else self.factor.inertia
        if inertia is not None and self.success and inertia.negative:
            return f"{text}, but H has negative eigenvalues ({inertia.negative}): no minimum; start elsewhere"
        if inertia is not None and status == Status.MAX_STEPS and inertia.negative + inertia.zero:
            return (
                f"{text}; H is not positive definite at the last iterate ({inertia.negative} negative, {inertia.zero} zero "
                "eigenvalues): the objective may have no minimum (unbounded below)"
            )
        return text

    def _constrained_message(self, status: Status) -> str:
        text = _CONSTRAINED.get(status, MESSAGES[status]) + (f": {self.detail}" if self.detail else "")
        if self.factor is None or not self.success:
            return text
        if self.factor.status != "ok":
            return f"{text}; the KKT matrix is singular: constraints depend on each other, or a direction has no curvature"
        if not getattr(self.factor, "is_minimum", True):
            found = tuple(self.factor.inertia)
            return f"{text}, but the KKT matrix has the inertia {found}: no minimum under these constraints; start elsewhere"
        return text

    @property
    def _is_batch(self) -> bool:
        return not isinstance(self.code, Tracer) and np.ndim(self.code) > 0

    def __str__(self) -> str:
        if self._is_batch:
            return repr(self)
        work = f"({self.num_factorizations} factorizations, {self.num_evaluations} evaluations, {self.num_gradients} gradients)"
        rows = [
            ("status", f"{self.status}: {self.message}"),
            ("fun", f"{float(self.fun):.12g}"),
            ("grad_norm", f"{float(self.grad_norm):.3e}"),
            *self._constrained_rows(),
            ("steps", f"{self.num_steps} {work}"),
        ]
        return "\n".join(f"{name:>10}: {value}" for name, value in rows)

    def _constrained_rows(self) -> list[tuple[str, str]]:
        if self.bound_multipliers is None:
            return []
        rows = [("violation", f"{float(self.violation):.3e}"), ("kkt_error", f"{float(self.kkt_error):.3e}")]
        return rows if not float(self.gap) else [*rows, ("gap", f"{float(self.gap):.3e}")]

    def plot(self) -> Figure:
        """Draw how the run converged: f, ‖g‖, inertia of H, radius and shift. Needs matplotlib (`gnewt[viz]`)."""
        from gnewt.newton.picture import draw_result  # drawing is optional

        return draw_result(self)

    def __repr__(self) -> str:
        if self._is_batch:
            codes, counts = np.unique(np.asarray(self.code), return_counts=True)
            kinds = ", ".join(f"{n} {Status(int(c)).text}" for c, n in zip(codes, counts, strict=True))
            return f"<Result of shape {np.shape(self.code)}: {kinds}>"
        return show("Result", self.code, self.__str__)
