"""Elimination: what an engine says of H + μI."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from jax import Array
from jaxtyping import Float, Int


class EliminationStatus(IntEnum):
    """What an elimination says of itself; `Elimination.status` holds the number.

    The native engine has the same numbers (cpp/engine/call.hpp; tests/kkt/test_native_codes.py compares the two).
    Numbers may have been stored by users: a new status gets the next number, and none is given another number.
    """

    OK = 0
    SINGULAR = 1
    """No pivot above rounding was found for some unknowns; the unknowns without a pivot are set to zero."""
    NONFINITE = 2
    """A number was not finite; the solution is NaN."""
    OUT_OF_MEMORY = 3
    """Fronts outgrew the memory; the solution is NaN. Native engine only."""
    BAD_PLAN = 4
    """The plan does not fit the other operands. Native engine only."""

    @property
    def text(self) -> str:
        """The status in words, as messages and results show it."""
        return self.name.lower().replace("_", " ")


STATUSES = tuple(status.text for status in EliminationStatus)
"""The words of all statuses, by their numbers."""
OK, SINGULAR, NONFINITE = EliminationStatus.OK, EliminationStatus.SINGULAR, EliminationStatus.NONFINITE


class Elimination(NamedTuple):
    """What is known of H + μI after its elimination. Leaves have leading axes under vmap."""

    status: Int[Array, ""]
    inertia: Int[Array, "3"]
    """(n₊, n₋, n₀) of H + μI, by Sylvester's law from the pivots of K (E19)."""
    num_delayed: Int[Array, ""]
    """Unknowns that were passed to a parent front for want of a pivot; each counts for every front that passed it on."""
    logdet: Float[Array, ""]
    """log|det(H + μI)|; -inf if singular."""
    smallest_pivot: Float[Array, ""]
    """Least magnitude of an eigenvalue of a pivot; 0 if singular."""
    null: Int[Array, " unknowns"]
    """1 for unknowns that found no pivot above rounding."""
    factor: Any
    """What the engine needs to solve again."""
