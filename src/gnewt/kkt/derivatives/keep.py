"""Keep values that XLA would compute again and again.

XLA fuses operations into loops and repeats in each of them whatever it needs: a sine that ten entries of a Hessian
use is computed ten times. Two things stop it: it does not copy a quotient into several loops, and it does not
merge two loops whose results are needed separately. A kept value is therefore divided by a number that XLA cannot
know to be 1 (exact, and far cheaper than the repetition), and its first entry is needed at the end as well.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


class Keeper:
    """Keeps values of one computation, whose inputs are x."""

    def __init__(self, x: Array) -> None:
        # A sum of floating point numbers: XLA sees through an integer 1 that is converted.
        self._one = 1.0 + _zero(x[0]).astype(x.dtype) if x.size else jnp.ones((), x.dtype)
        self._needed: list[Array] = []

    def keep(self, value: Array, costly: bool) -> Array:
        """Return the same value, to be computed once."""
        if value.size == 0 or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        kept = value / self._one.astype(value.dtype)
        if costly:
            self._needed.append(kept[(0,) * kept.ndim])
        return kept

    def seal(self, result: Array) -> Array:
        """Return the same result, made to need every costly value."""
        for value in self._needed:
            result = result / (1.0 + _zero(value).astype(result.dtype))
        return result


def _zero(value: Array) -> Array:
    """Return 0, computed from a number so that the compiler does not see it: b(b + 1) is even for any integer b."""
    bits = jax.lax.bitcast_convert_type(value, f"int{8 * value.dtype.itemsize}")
    return (bits * (bits + 1)) & 1
