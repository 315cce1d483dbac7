"""A Newton step as one compiled call, and its parts: local models (values, duals, derivatives), factor and solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import gnewt
from gnewt.kkt import linearize, native
from gnewt.newton import Objective, system_of


class Stages:
    """The stages of a step of f at x, each compiled, with the integers of structure and plan as operands."""

    def __init__(self, f: Any, x: Any, order: Any = "auto") -> None:
        point = Objective(f).at((x,))
        self.point, self.system = point, system_of(point, order)
        structure = self.structure = self.system.structure
        models = self.system.linearize(point)
        layout = native.layout(self.system.plan, len(models.sources))
        self.plan = jax.device_put(layout.array)
        self.sources, self.gradient = models.sources, models.duals[: structure.num_inputs]

        def solve(plan: Any, sources: Any, gradient: Any) -> Any:
            solved = native.factor_solve(layout, sources, 0.0, -gradient[:, None], plan)
            return solved.solution[:, 0], solved.status

        def whole(plan: Any, maps: Any, data: Any, x: Any) -> Any:
            models = linearize(structure, maps, data, x)
            return models.value, solve(plan, models.sources, models.duals[: structure.num_inputs])

        self._solve, self._whole = jax.jit(solve), jax.jit(whole)

    def linearize(self) -> Any:
        return self.system.linearize(self.point)

    def solve(self) -> Any:
        return self._solve(self.plan, self.sources, self.gradient)

    def whole(self) -> Any:
        return self._whole(self.plan, self.structure.maps, self.point.data, self.point.x)


def newton_step_in_jit(f: Any, x: Any, stages: Stages) -> tuple[Callable[[], Any], str]:
    """`jax.jit(gnewt.newton_step(f))` at x; where newton_step does not trace, its stages in one jit (a flat step). Says which."""
    step = jax.jit(gnewt.newton_step(f))
    try:
        jax.block_until_ready(step(x))
    except gnewt.StepError:
        return lambda: stages.whole()[1][0], "stages"
    return lambda: step(x), "newton_step"


def residual(f: Any, x: Any, step: Any) -> float:
    """‖Hδ + g‖/‖g‖ by JAX from f itself, at x and step of any pytree."""
    product = jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,)))
    gradient, curved = (ravel_pytree(tree)[0] for tree in product(x, step))
    return float(jnp.linalg.norm(curved + gradient) / jnp.maximum(jnp.linalg.norm(gradient), 1e-300))
