"""Going on from a result: multipliers, barrier parameter and lifted nodes of an earlier run, in the user's scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array
from gnewt.newton.constrained.barrier import Barrier, Dual
from gnewt.newton.constrained.modes import State

LEAST_MU = 1e-6
"""μ of a run that goes on from a solution: of 1e-2 it takes three times the steps, of 1e-8 it sticks to the old limits."""
PUSH_SHARE = 0.1
"""How far inside of its limits such a run begins, in units of its μ."""


class Warm(NamedTuple):
    """What a run leaves to the next one."""

    y: Array
    """Multipliers of all rows, equalities first; then those of lifted nodes."""
    lower: Array
    """Bound multipliers of inputs, inequalities and nodes."""
    upper: Array
    mu: Array
    nodes: Array
    """Values of lifted nodes."""


def leave(b: Barrier, st: State) -> Warm:
    """What the next run needs to know of this one."""
    n, _, k = b.sizes
    unit = _units(b)
    sigma = b.scale.f
    return Warm(
        st.dual.y * b.scale.rows / sigma,
        st.dual.lower * unit / sigma,
        st.dual.upper * unit / sigma,
        st.schedule.mu / sigma,
        st.at.w[n + k :],
    )


def fits(warm: Any, num_rows: int, num_variables: int) -> bool:
    """Whether a memory is that of a problem with as many rows and variables."""
    if not isinstance(warm, Warm):
        return False
    return np.shape(warm.y) == (num_rows,) and np.shape(warm.lower) == (num_variables,)


def first_mu(b: Barrier, warm: Warm) -> Array:
    """μ of the first step, in the scale of this run."""
    return _space(warm.mu, b.scale.f).maximum(LEAST_MU, warm.mu * b.scale.f)


def first_dual(b: Barrier, warm: Warm) -> Dual:
    """The old multipliers, in the scale of this run; those of limits are positive."""
    xp = _space(warm.y, b.scale.f)
    unit, least = _units(b), first_mu(b, warm) * 1e-4

    def bound(z: Array, has: Array) -> Array:
        return xp.where(has, xp.maximum(z * b.scale.f / unit, least), 0.0)

    y = warm.y * b.scale.f / b.scale.rows
    return Dual(y, bound(warm.lower, b.box.has_lower), bound(warm.upper, b.box.has_upper))


def _units(b: Barrier) -> Array:
    """Scales of (x, s, nodes)."""
    xp = _space(b.scale.rows)
    n, m, k = b.sizes
    rows = b.scale.rows
    ones = np.ones(n, rows.dtype), np.ones(len(rows) - m - k, rows.dtype)
    return xp.concatenate([ones[0], rows[m : m + k], ones[1]])


def _space(*arrays: Any) -> Any:
    return jnp if any(isinstance(a, Tracer) for a in arrays) else np
