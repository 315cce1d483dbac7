"""Elimination: what an engine says of H + μI."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array
from jaxtyping import Float, Int

STATUSES = ("ok", "singular", "nonfinite", "out of memory", "bad plan")
"""What an elimination can say of itself; `Elimination.status` counts in this list."""
OK, SINGULAR, NONFINITE = 0, 1, 2


class Elimination(NamedTuple):
    """What is known of H + μI after its elimination. Leaves have leading axes under vmap."""

    status: Int[Array, ""]
    inertia: Int[Array, "3"]
    """(n₊, n₋, n₀) of H + μI, by Sylvester's law from the pivots of K (E19)."""
    num_delayed: Int[Array, ""]
    logdet: Float[Array, ""]
    """log|det(H + μI)|; -inf if singular."""
    smallest_pivot: Float[Array, ""]
    null: Int[Array, " unknowns"]
    """1 for unknowns that found no pivot above rounding."""
    factor: Any
    """What the engine needs to solve again."""
