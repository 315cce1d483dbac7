"""Output: where one leaf of the auxiliary data of a traced function stands in its graph."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np
from jaxtyping import Int


class Kind(enum.IntEnum):
    """What became of one scalar of the auxiliary data."""

    SLOT = 0
    """A slot holds it."""
    CONSTANT = 1
    """It does not depend on the variables."""
    SUBSTITUTED = 2
    """No slot holds it: fusion wrote its expression into whatever reads it, or the objective does not need it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Output:
    """One leaf of the auxiliary data: for each of its scalars the slot that holds it, if there is one.

    Two scalars share a slot only where they are the same computation; values are never compared.
    """

    slots: Int[np.ndarray, "..."]
    """In the shape of the leaf; -1 where no slot holds the scalar."""
    kinds: Int[np.ndarray, "..."]
    """In the shape of the leaf: a `Kind` for each scalar."""
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.slots.shape

    @property
    def is_slot(self) -> np.ndarray:
        """bool, in the shape of the leaf."""
        return np.asarray(self.slots >= 0)

    def __repr__(self) -> str:
        counts = [(kind, int(np.sum(self.kinds == kind))) for kind in Kind]
        parts = [f"{count} {kind.name.lower()}" for kind, count in counts if count]
        return f"<Output {self.dtype}{list(self.shape)}: {', '.join(parts) or 'empty'}>"


def constant_output(shape: tuple[int, ...], dtype: np.dtype) -> Output:
    """Describe a leaf that was known before the function was traced."""
    return Output(np.full(shape, -1, np.int32), np.full(shape, Kind.CONSTANT, np.int8), dtype)
