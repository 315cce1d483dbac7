"""Compare the Newton step of the graph with the dense one of a plain function: numbers and time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._demo.cartpole import plain_cost
from gnewt._typing import Array, PyTree
from gnewt.graph import Graph
from gnewt.newton import factorize, newton_step

_REPEATS = 7
"""Timed calls after the first; the minimum is shown, as the least disturbed by other work."""


@dataclasses.dataclass(frozen=True)
class Exactness:
    """The step of the graph beside −H⁻¹g with H from `jax.hessian` of the plain function."""

    difference: float
    """‖δ − δ_dense‖ / ‖δ_dense‖."""
    backward_error: float
    """‖Hδ + g‖ / (‖H‖‖δ‖ + ‖g‖), with the dense H."""
    dense_backward_error: float
    inertia: tuple[int, ...]
    dense_inertia: tuple[int, ...]
    logdet: float
    dense_logdet: float
    hessian: np.ndarray


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of a first call (planning, tracing, compiling) and of a later one."""

    first: float
    later: float


def split_inputs(us: Array) -> list[np.ndarray]:
    """Turn forces us[horizon] into the list of inputs that the graph takes."""
    us = np.asarray(us)
    return [us[t : t + 1] for t in range(len(us))]


@jax.jit
def dense_step(us: Array) -> tuple[Array, Array, Array]:
    """Return (−H⁻¹g, H, g) of the plain function; H by `jax.hessian`, the solve by LU."""
    H, grad = jax.hessian(plain_cost)(us), jax.grad(plain_cost)(us)
    return -jnp.linalg.solve(H, grad), H, grad


def compare_steps(graph: Graph, us: np.ndarray) -> Exactness:
    """Measure how far the two steps are apart, and how well each solves H δ = −g."""
    factor = factorize(graph)(split_inputs(us))
    step = np.concatenate([np.ravel(s) for s in newton_step(graph)(split_inputs(us))])
    dense, H, grad = (np.asarray(a) for a in dense_step(us))
    eigenvalues = np.linalg.eigvalsh(H)

    def backward_error(d: np.ndarray) -> float:
        norm = np.linalg.norm
        return float(norm(H @ d + grad) / (norm(H, 2) * norm(d) + norm(grad)))

    return Exactness(
        difference=float(np.linalg.norm(step - dense) / np.linalg.norm(dense)),
        backward_error=backward_error(step),
        dense_backward_error=backward_error(dense),
        inertia=tuple(int(n) for n in factor.inertia),
        dense_inertia=(
            int(np.sum(eigenvalues > 0)),
            int(np.sum(eigenvalues < 0)),
            int(np.sum(eigenvalues == 0)),
        ),
        logdet=float(factor.logdet()),
        dense_logdet=float(np.linalg.slogdet(H)[1]),
        hessian=H,
    )


def time_steps(us: np.ndarray) -> tuple[Timing, Timing]:
    """Time gnewt's step of the plain function and the dense one, both compiled as a whole."""
    at = jnp.asarray(us)
    return _time(jax.jit(newton_step(plain_cost)), at), _time(dense_step, at)


def _time(fn: Callable[[Array], PyTree], arg: Array) -> Timing:
    seconds = []
    for _ in range(1 + _REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(fn(arg))
        seconds.append(time.perf_counter() - begin)
    return Timing(first=seconds[0], later=min(seconds[1:]))
