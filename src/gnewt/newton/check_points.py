"""Points at which a new structure is compared with its function: the caller's own, then random ones.

Numbers that are not known (inside jit) are replaced by random ones of their shape and dtype. Draws differ in kind, since
logarithms want positive numbers, factorisations positive definite matrices, and tables increasing ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.objective import Point

MOST_POINTS = 8
"""Points that are tried."""
_LARGEST_INT = 3
"""Random integers are smaller: they may be indices or exponents."""


def check_points(point: Point) -> Iterator[Point]:
    """Iterate over at most eight points, known numbers first. The known numbers of the call are kept, but for x."""
    if not point.is_traced:
        yield point
    elif point.entry is not None and not point.entry.repeatable:
        return
    for k in range(MOST_POINTS - (not point.is_traced)):
        with jax.ensure_compile_time_eval():  # known numbers stay known inside jit
            drawn = _random_point(point, k)
        if drawn is not None:
            yield drawn


def _random_point(point: Point, k: int) -> Point | None:
    """The k-th draw; None where the structure would be another one there."""
    rng = np.random.default_rng(k)
    captured = jax.tree_util.tree_map(lambda v: _known(v, k, rng), point.captured)
    if point.entry is None:
        data = jax.tree_util.tree_map(lambda v: _known(v, k, rng), point.data)
    else:
        found = point.entry.find(captured)
        if found is None:
            return None
        captured, data = found.captured, found.data
    leaves = [_draw(k, rng, a.shape, a.dtype) for a in point.structure.in_avals]
    parts = [np.ravel(leaf).astype(point.structure.dtype) for leaf in leaves]
    return dataclasses.replace(point, x=np.concatenate(parts), data=data, captured=captured)


def _known(value: Any, k: int, rng: np.random.Generator) -> Any:
    return _draw(k, rng, value.shape, value.dtype) if isinstance(value, Tracer) else value


def _draw(k: int, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return jnp.broadcast_to(jax.random.key(k), shape)
    if jnp.issubdtype(dtype, jnp.bool_):
        return rng.random(shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(rng.integers(0, _LARGEST_INT, shape), dtype)
    values = _KINDS[k % len(_KINDS)](rng, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * _KINDS[k % len(_KINDS)](rng, shape)
    return np.asarray(values).astype(dtype)


def _definite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positive definite, where an array can be a matrix; else positive."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return rng.uniform(0.5, 1.5, shape)
    root = rng.normal(size=shape)
    return root @ np.swapaxes(root, -1, -2) / shape[-1] + np.eye(shape[-1])


def _increasing(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(rng.uniform(0.1, 2.0, shape))
    return np.sort(values, -1) if shape else values


_KINDS: tuple[Callable[[np.random.Generator, tuple[int, ...]], Any], ...] = (
    lambda rng, shape: rng.normal(size=shape),
    lambda rng, shape: rng.uniform(0.2, 1.5, shape),
    _definite,
    lambda rng, shape: 0.1 * rng.normal(size=shape),
    _increasing,
    lambda rng, shape: rng.uniform(0.05, 0.45, shape),
    lambda rng, shape: 3.0 * rng.normal(size=shape),
    lambda rng, shape: rng.uniform(1.5, 4.0, shape),
)
