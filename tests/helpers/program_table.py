"""Where programs are entered: name → a function that returns (f, args, argnums). And the cartpole that several steer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {}


def program(fn: Callable) -> Callable:
    PROGRAMS[fn.__name__] = fn
    return fn


def points(*shape: int, seed: int = 0, scale: float = 0.3) -> jax.Array:
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape))


def cartpole(x: Any, u: Any, dt: Any = 0.05) -> Any:
    p, th, v, w = x
    s, c = jnp.sin(th), jnp.cos(th)
    temp = (u[0] + 0.05 * w**2 * s) / 1.1
    acc = (-9.8 * s - 0.5 * w - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c**2 / 1.1))
    return jnp.stack([p + dt * v, th + dt * w, v + dt * (temp - 0.05 * acc * c / 1.1), w + dt * acc])


X0 = np.array([0.1, 0.2, -0.1, 0.05])


def control(us: Any, x0: Any = X0) -> Any:
    def stage(x: Any, u: Any) -> Any:
        return cartpole(x, u), jnp.sum(x**2) + 0.1 * jnp.sum(u**2)

    x, costs = jax.lax.scan(stage, jnp.asarray(x0, us.dtype), us)
    return costs.sum() + 10 * jnp.sum(x**2)
