"""Where the policies of an elimination stand in tables over stages: K [T, nu, nx]. Integers, once per structure and order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._typing import Array, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """For every entry of the tables its place among the numbers of all groups, laid end to end; the last stands for 0."""

    gains: np.ndarray
    """int[T, nu, nx]"""
    feedforward: np.ndarray
    """int[T, nu]"""
    gradient: np.ndarray
    """int[T, nx]"""
    hessian: np.ndarray
    """int[T, nx, nx]"""

    def read(self, name: str, parts: Sequence[Array]) -> Array:
        """One table, from the numbers of all groups."""
        xp = jnp if any(isinstance(p, Tracer) for p in parts) else np
        flat = [*(xp.ravel(p) for p in parts), xp.zeros(1, parts[0].dtype)]
        return xp.concatenate(flat)[getattr(self, name)]


def find_places(
    groups: Sequence[tuple[np.ndarray, np.ndarray]], controls: np.ndarray, states: np.ndarray
) -> Places:
    """Find the controls [T, nu] and states [T, nx] among the groups of input steps: (inputs [R, e], listens [R, b])."""
    (horizon, nu), nx = controls.shape, states.shape[1]
    last = max(int(a.max(initial=0)) for pair in groups for a in pair)
    stage = np.full(max(last, int(controls.max())) + 1, -1)
    number = np.zeros_like(stage)
    stage[controls], number[controls] = np.arange(horizon)[:, None], np.arange(nu)
    places = Places(
        *(np.full(s, -1) for s in ((horizon, nu, nx), (horizon, nu), (horizon, nx), (horizon, nx, nx)))
    )
    begin = {"k": 0, "gain": 0, "gradient": 0, "hessian": 0}
    for inputs, listens in groups:
        rounds, e, b = *inputs.shape, listens.shape[1]
        for i in range(e):
            rows = np.flatnonzero(stage[inputs[:, i]] >= 0)
            t, u = stage[inputs[rows, i]], number[inputs[rows, i]]
            places.feedforward[t, u] = begin["k"] + rows * e + i
            if not b:
                continue
            same = listens[rows][:, None, :] == states[t][:, :, None]
            at, known = same.argmax(2), same.any(2) & (states[t] >= 0)
            row = rows[:, None]
            places.gains[t, u] = np.where(known, begin["gain"] + (row * e + i) * b + at, -1)
            places.gradient[t] = np.where(known, begin["gradient"] + row * b + at, -1)
            pair = begin["hessian"] + (row * b + at)[:, :, None] * b + at[:, None, :]
            places.hessian[t] = np.where(known[:, :, None] & known[:, None, :], pair, -1)
        for name, size in (("k", e), ("gain", e * b), ("gradient", b), ("hessian", b * b)):
            begin[name] += rounds * size
    return places


def rows_of(tree: PyTree) -> Array:
    """Leaves [T, ...] side by side, as `ravel_pytree` lays out each row."""
    leaves = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)]
    return (jnp if any(isinstance(leaf, Tracer) for leaf in leaves) else np).concatenate(leaves, axis=1)


def joined(rows: Array, last: Array) -> Array:
    """A table with one more row."""
    xp = jnp if isinstance(rows, Tracer) or isinstance(last, Tracer) else np
    return xp.concatenate([rows, last[None]])
