"""What minimize returns: a result with status, cause and remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

from gnewt._typing import PyTree
from gnewt.newton.factor import Factor, Inertia

MESSAGES = {
    "converged": "the gradient is below the tolerance",
    "stalled": "no further decrease within rounding; the gradient is as small as this precision allows",
    "max_steps": "the limit on the number of steps was reached; raise max_steps or check the scaling",
    "unbounded": "the objective decreases without bound along the last direction; add a cost or a bound",
    "nonfinite": "the objective or its derivatives are not finite at the start; choose another start",
    "singular": "H + μI stayed indefinite or singular for every shift tried; check the derivatives and scaling",
}
"""Cause (and remedy) of every status."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One step of the history."""

    step: int
    value: float
    grad_norm: float
    """‖g‖∞."""
    shift: float
    """μ that made H + μI positive definite."""
    inertia: Inertia
    """Of H itself."""
    step_length: float
    """η of the line search."""
    residual: float
    """Achieved relative residual of the Newton system."""


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """Outcome of `gnewt.minimize`, with SciPy's names where SciPy has one."""

    x: PyTree
    fun: float
    grad_norm: float
    status: str
    message: str
    num_steps: int
    num_factorizations: int
    num_evaluations: int
    """Evaluations of the objective, those of the line search included."""
    history: tuple[Record, ...]
    factor: Factor | None
    """The last factor, at `x` if the run converged."""

    @property
    def success(self) -> bool:
        return self.status in ("converged", "stalled")

    def __str__(self) -> str:
        rows: list[tuple[str, Any]] = [
            ("status", f"{self.status}: {self.message}"),
            ("fun", f"{self.fun:.12g}"),
            ("grad_norm", f"{self.grad_norm:.3e}"),
            (
                "steps",
                f"{self.num_steps} ({self.num_factorizations} factorizations, {self.num_evaluations} evaluations)",
            ),
        ]
        return "\n".join(f"{name:>10}: {value}" for name, value in rows)
