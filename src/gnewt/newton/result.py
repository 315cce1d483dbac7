"""What minimize returns: a result with status, cause and remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from gnewt._typing import PyTree
from gnewt.newton.factor import Factor, show, status_name
from gnewt.newton.loop import CONVERGED, STALLED, STATUSES

MESSAGES = {
    "running": "the run was not finished",
    "converged": "the gradient is below the tolerance",
    "stalled": "no further decrease within rounding; the gradient is as small as this precision allows",
    "max_steps": "the limit on the number of steps was reached; raise max_steps or check the scaling",
    "unbounded": "the objective decreases without bound along the last direction; add a cost or a bound",
    "nonfinite": "the objective or its derivatives are not finite at the start; choose another start",
    "singular": "H + μI stayed indefinite or singular for every shift tried; check the derivatives and scaling",
    "no_decrease": "no step lowers the objective, however short, although its derivatives promise it: there is a kink "
    "(abs, max, a branch), a custom derivative is wrong, or values are noisy; smooth it, or check jax.grad against differences",
    "time_limit": "the time limit was reached; this is the best iterate so far",
    "stopped": "the callback asked to stop; this is the best iterate so far",
    "interrupted": "interrupted from the keyboard; this is the best iterate so far",
}
"""Cause (and remedy) of every status."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """Outcome of `gnewt.minimize`, with SciPy's names where SciPy has one. A pytree of numbers."""

    x: PyTree
    fun: Any
    grad_norm: Any
    """‖g‖∞."""
    code: Any
    """Position of the status in `gnewt.newton.STATUSES`: what compiled code can branch on."""
    num_steps: Any
    num_factorizations: Any
    num_evaluations: Any
    """Evaluations of the objective, those of the search included."""
    num_gradients: Any
    """Points at which derivatives were taken: the start, and every trial whose value was good enough."""
    history: Any
    """A `Record` for every step; inside jit one Record of arrays with max_steps rows, NaN behind the last."""
    memory: Any
    """What the search would have gone on with: its radius. `minimize(f, res)` uses it."""
    factor: Factor | None
    """H at `x`, eliminated (not inside jit): its inertia says whether `x` is a minimum."""
    detail: str = dataclasses.field(default="", metadata={"static": True})

    @property
    def success(self) -> Any:
        return (self.code == CONVERGED) | (self.code == STALLED)

    @property
    def status(self) -> str:
        """Name of the outcome. Inside jit use `code`."""
        return status_name(self.code, STATUSES, "gnewt.newton.STATUSES")

    @property
    def message(self) -> str:
        """Cause and remedy; and whether an end that counts as a success is none to be glad of."""
        text = MESSAGES[self.status] + (f": {self.detail}" if self.detail else "")
        if self.factor is None or not self.success or not self.factor.inertia.negative:
            return text
        return f"{text}, but H has negative eigenvalues ({self.factor.inertia.negative}): no minimum; start elsewhere"

    def __str__(self) -> str:
        work = f"({self.num_factorizations} factorizations, {self.num_evaluations} evaluations, {self.num_gradients} gradients)"
        rows: list[tuple[str, Any]] = [
            ("status", f"{self.status}: {self.message}"),
            ("fun", f"{float(self.fun):.12g}"),
            ("grad_norm", f"{float(self.grad_norm):.3e}"),
            ("steps", f"{self.num_steps} {work}"),
        ]
        return "\n".join(f"{name:>10}: {value}" for name, value in rows)

    def __repr__(self) -> str:
        return show("Result", self.code, self.__str__)
