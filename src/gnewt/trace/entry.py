"""Entry: one structure in the cache, and how its data columns follow from captured values.

An entry is found by the content of a program. At every call the prelude is replayed where captured values are new.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from gnewt._errors import TraceError
from gnewt._typing import Array
from gnewt.graph import Data, Structure
from gnewt.jaxprs import value_key
from gnewt.jaxprs.compat import put
from gnewt.trace.condense import Condensed
from gnewt.trace.lift import Distrust


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A structure with its data at one call, and the function it was read from."""

    structure: Structure
    data: Data
    replay: Replay
    """One object per structure, so that compiled code is reused."""
    captured: list[ArrayLike]
    num_equations: int
    """Equations that a replay runs one after the other: what it costs to compile."""
    entry: Entry


@dataclasses.dataclass(eq=False)
class Entry:
    """One structure, and how to fill its data columns."""

    structure: Structure
    fill: Callable[[Sequence[ArrayLike]], Data | None]
    """Computes the data columns from captured values; None if a value that shaped the structure differs."""
    replay: Replay
    num_equations: int
    has_branches: bool
    """Whether the function chooses between values: one point does not show all of it."""
    remake: Callable[[Sequence[ArrayLike], Distrust], Entry] | None
    """Makes another structure of the same program, with parts made opaque; None where the structure has been checked."""
    repeatable: bool = True
    """False where the program itself holds a tracer: it can run inside the caller's trace alone."""
    last: tuple[tuple[ArrayLike, ...], Data] | None = None
    """Captured values and data of the last concrete call."""

    def find(self, captured: list[ArrayLike]) -> Found | None:
        """Compute the data columns from current values; None if a value that shaped the structure differs."""
        data = self._data(captured)
        return (
            None
            if data is None
            else Found(self.structure, data, self.replay, captured, self.num_equations, self)
        )

    def remade(self, captured: Sequence[ArrayLike], distrust: Distrust) -> Entry | None:
        """Make another structure of the same program, with some parts opaque; None where that is not possible."""
        try:
            return None if self.remake is None else self.remake(captured, distrust)
        except TraceError:  # too wide for one opaque node, or JAX cannot differentiate a part by itself
            return None

    def become(self, other: Entry) -> None:
        """Stand for another structure of the same program from now on."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(other, field.name))

    def _data(self, captured: Sequence[ArrayLike]) -> Data | None:
        if self.last is not None and _all_same(self.last[0], captured):
            return self.last[1]
        if any(isinstance(v, Tracer) for v in captured):
            return self.fill(captured)
        with jax.ensure_compile_time_eval():  # known values stay known inside jit
            data = self.fill(captured)
        if data is not None:
            self.last = (tuple(captured), data)
        return data


def fill_columns(condensed: Condensed, captured: Sequence[ArrayLike]) -> Data | None:
    """Compute the data columns from captured values; None if a value that shaped the structure differs."""
    values, same = condensed.constants.run(captured)
    if not same:
        return None
    return tuple(
        tuple(put(values[c.index][0] if d else values[c.index]) for c, d in zip(columns, drop, strict=True))
        for columns, drop in zip(condensed.columns, condensed.drops, strict=True)
    )


class Replay(Protocol):
    """f itself, without the structure's families: `gnewt.trace.replays`."""

    def __call__(self, captured: Sequence[ArrayLike], x: Array) -> Array:
        """(captured values, flat inputs) ↦ value."""
        ...

    def derivatives(
        self, captured: Sequence[ArrayLike], x: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(f, g, H·v) on known numbers, operation by operation: nothing is traced as a whole, nothing compiled."""
        ...


def _all_same(old: Sequence[ArrayLike], new: Sequence[ArrayLike]) -> bool:
    """Whether captured values are the same: by identity, or NumPy's by their bits (they are copies of this module's own)."""
    return len(old) == len(new) and all(a is b or _same_bits(a, b) for a, b in zip(old, new, strict=True))


def _same_bits(a: ArrayLike, b: ArrayLike) -> bool:
    if isinstance(a, jax.Array) or isinstance(b, jax.Array):
        return False
    return type(a) is type(b) and value_key(a) == value_key(b)
