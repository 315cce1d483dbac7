"""Affine recurrences y_r = A_r y_{r-1} + b_r, all rounds at once: composed by doubling, log₂ of their number times.

For devices that do much at once and little things slowly. A state that falls into parts which never mix has one small
matrix for each part.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Rounds

_SHORT = 96
"""Fewer rounds than this are run one by one ..."""
_WIDE = 64
"""... and so are states with larger parts ..."""
_LARGE = 2**28
"""... and those whose matrices have more numbers than this."""
_SMALL = 12
"""Products of matrices up to this size are written as sums: one kernel, where a batched product is a call of a library."""
_UNROLL = 4
"""Doublings that are compiled as one."""


def is_long(rounds: Rounds) -> bool:
    """Whether rounds are worth running at once: many of them, with a state in small parts."""
    if rounds.repeats < _SHORT or not rounds.num_state:
        return False
    parts, most = rounds.components.shape
    return most <= _WIDE and rounds.repeats * parts * most**2 <= _LARGE


class Parts(NamedTuple):
    """The parts of a state."""

    table: np.ndarray
    """int[parts, most]: places in the state, filled up with num_state."""
    place: np.ndarray
    """int[num_state]: where each number of the state stands in the table."""

    @classmethod
    def of(cls, rounds: Rounds) -> Parts:
        table = rounds.components
        place = np.empty(rounds.num_state + 1, np.int64)
        place[table.ravel()] = np.arange(table.size)
        return cls(table, place[:-1])

    @property
    def directions(self) -> np.ndarray:
        """[most, num_state]: one number of every part."""
        out = np.zeros((self.table.shape[1], len(self.place) + 1))
        for i, column in enumerate(self.table.T):
            out[i, column] = 1.0
        return out[:, :-1]

    def split(self, states: Float[Array, "rounds state"]) -> Float[Array, "rounds parts most"]:
        """Bring states into parts, with zeros where they are filled up."""
        return self._widen(states)[..., self.table]

    def join(self, states: Float[Array, "rounds parts most"]) -> Float[Array, "rounds state"]:
        return states.reshape(states.shape[0], -1)[:, self.place]

    def matrices(self, images: Float[Array, "rounds most state"]) -> Float[Array, "rounds parts most most"]:
        """Read A off what it makes of `directions`."""
        return jnp.moveaxis(self._widen(images)[..., self.table], 1, 3)

    def _widen(self, states: Array) -> Array:
        if self.table.size == len(self.place):
            return states
        return jnp.concatenate([states, jnp.zeros((*states.shape[:-1], 1), states.dtype)], axis=-1)


def compose(
    a: Float[Array, "rounds parts n n"], b: Float[Array, "rounds parts n"]
) -> Float[Array, "rounds parts n"]:
    """y of y_r = A_r y_{r-1} + b_r, with y_{-1} = 0.

    After k doublings round r holds what rounds r - 2ᵏ + 1 … r make of the state before them. All doublings are equal but
    for a distance, so that the program does not grow with the number of rounds.
    """
    rounds, _, n = b.shape
    at = jnp.arange(rounds)
    both = jnp.concatenate([a, b[..., None]], axis=3)

    def double(k: Array, both: Array) -> Array:
        before = at - jnp.left_shift(1, k)
        last = both.at[jnp.maximum(before, 0)].get(mode="promise_in_bounds")
        a = both[..., :n]
        product = times(a, last).at[..., n].add(both[..., n])
        return jnp.where((before >= 0)[:, None, None, None], product, both)

    doublings = max(1, int(rounds - 1).bit_length())
    return jax.lax.fori_loop(0, doublings, double, both, unroll=min(_UNROLL, doublings))[..., n]


def times(a: Float[Array, "... n n"], b: Float[Array, "... n k"]) -> Float[Array, "... n k"]:
    """A batch of products of small matrices."""
    if a.shape[-1] <= _SMALL:
        return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)
    return a @ b


def apply(
    a: Float[Array, "rounds parts n n"], y: Float[Array, "rounds parts n"]
) -> Float[Array, "rounds parts n"]:
    """A_r y_r of every round."""
    return times(a, y[..., None])[..., 0]
