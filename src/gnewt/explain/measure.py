"""Milliseconds of one compiled step, by gnewt and by its rivals, at the arguments of a report."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gnewt._errors import OptionError
from gnewt.newton.objective import Point
from gnewt.newton.system import System, derivatives_at

_MOST_DENSE = 2000
"""Inputs up to which the dense Hessian is measured."""
_BUDGET = 0.4
"""Seconds that are spent on repeats of each."""


def measure_steps(system: System, point: Point) -> dict[str, float]:
    """Time one compiled step of each method: the least of some repeats, in milliseconds."""
    if point.is_traced:
        raise OptionError(
            "measure=True needs numbers",
            "explain",
            "call it outside jit, with arrays instead of jax.ShapeDtypeStruct",
        )
    maps = system.maps
    times = {"tree": _time(lambda: system.step(point, 0.0)[1])}

    def product(v: jax.Array) -> jax.Array:
        return derivatives_at(maps, point, v)[2]

    direction = jnp.ones_like(jnp.asarray(point.x))
    compiled = jax.jit(product)
    times["CG"] = _time(lambda: compiled(direction))
    x = jnp.asarray(point.x)

    def f(y: jax.Array) -> jax.Array:
        return point.original(maps, y)

    gradient = jax.jit(jax.value_and_grad(f))
    times["value and gradient"] = _time(lambda: gradient(x)[1])
    if system.structure.num_inputs <= _MOST_DENSE:

        @jax.jit
        def dense(x: jax.Array) -> jax.Array:
            return jnp.linalg.solve(jax.hessian(f)(x), -jax.grad(f)(x))

        times["dense Hessian"] = _time(lambda: dense(x))
    return times


def _time(run: Callable[[], jax.Array]) -> float:
    jax.block_until_ready(run())
    best, end = float("inf"), time.perf_counter() + _BUDGET
    while True:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            return 1e3 * best
