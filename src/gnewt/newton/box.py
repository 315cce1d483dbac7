"""Bounds of the inputs for rollouts: distances, barrier, and how far a step may go. Traceable."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from gnewt.newton.arithmetic import Array

_SLACK = 0.5
"""Share of that which a curve may miss: the first length comes from a straight line."""
START_PUSH = 1e-2
"""The start is moved inside its bounds: by this much, or by this share of the interval."""
WARM_PUSH = 1e-7
"""The same for the end of an earlier run."""
_LEAST_GAP = 8.0
"""Roundings of a bound that an input keeps away from it."""


class Box(NamedTuple):
    """Bounds of the inputs; ±inf for none."""

    lower: Array
    upper: Array

    @property
    def is_pinned(self) -> Array:
        return self.lower >= self.upper

    @property
    def has_lower(self) -> Array:
        return jnp.isfinite(self.lower) & ~self.is_pinned

    @property
    def has_upper(self) -> Array:
        return jnp.isfinite(self.upper) & ~self.is_pinned

    def gaps(self, u: Array) -> tuple[Array, Array]:
        """Distances to the bounds; 1 where there is none."""
        return jnp.where(self.has_lower, u - self.lower, 1.0), jnp.where(self.has_upper, self.upper - u, 1.0)

    def inside(self, u: Array, push: Array | float = START_PUSH, share: Array | float = START_PUSH) -> Array:
        """Move inputs inside."""
        width = jnp.where(self.has_lower & self.has_upper, self.upper - self.lower, jnp.inf)
        low = jnp.minimum(push * jnp.maximum(1.0, jnp.abs(self.lower)), share * width)
        up = jnp.minimum(push * jnp.maximum(1.0, jnp.abs(self.upper)), share * width)
        u = jnp.where(self.has_lower, jnp.maximum(u, self.lower + low), u)
        u = jnp.where(self.has_upper, jnp.minimum(u, self.upper - up), u)
        return jnp.where(self.is_pinned, self.lower, u)

    def centred(self, u: Array, dual: BoxDual, mu: Array) -> tuple[Array, BoxDual]:
        """Move inputs and multipliers, as little as it takes, to where no distance times its multiplier is below μ.

        Where an earlier run ended closer to its bounds than μ allows, a step could not leave them: the barrier pushes with
        μ/gap, and Σ = z/gap is too weak an answer. Distances grow to μ/z, or to √μ where z is small, and then z to μ/gap.
        """
        low, up = self.gaps(u)
        wanted = [jnp.minimum(jnp.sqrt(mu), mu / jnp.maximum(z, mu)) for z in dual]
        half = jnp.where(self.has_lower & self.has_upper, (self.upper - self.lower) / 2, jnp.inf)
        u = u + jnp.where(self.has_lower, jnp.maximum(jnp.minimum(wanted[0], half) - low, 0.0), 0.0)
        u = u - jnp.where(self.has_upper, jnp.maximum(jnp.minimum(wanted[1], half) - up, 0.0), 0.0)
        low, up = self.gaps(u)
        down = jnp.where(self.has_lower, jnp.maximum(dual.lower, mu / low), 0.0)
        over = jnp.where(self.has_upper, jnp.maximum(dual.upper, mu / up), 0.0)
        return u, BoxDual(down, over)

    def barrier(self, u: Array) -> Array:
        """-Σ log of the distances; inf outside."""
        low, up = self.gaps(u)
        eps = _LEAST_GAP * jnp.finfo(u.dtype).eps
        close = self.has_lower & (low <= eps * jnp.maximum(1.0, jnp.abs(self.lower)))
        close = close | (self.has_upper & (up <= eps * jnp.maximum(1.0, jnp.abs(self.upper))))
        logs = jnp.log(jnp.where(low > 0, low, 1.0)) + jnp.log(jnp.where(up > 0, up, 1.0))
        return jnp.where(jnp.any(close), jnp.inf, -jnp.sum(logs))

    def push(self, u: Array) -> Array:
        """Gradient of the barrier."""
        low, up = self.gaps(u)
        return jnp.where(self.has_upper, 1 / up, 0.0) - jnp.where(self.has_lower, 1 / low, 0.0)

    def stays(self, before: Array, after: Array, tau: Array) -> Array:
        """Whether a step leaves enough of the distances."""
        least = _SLACK * (1 - tau)
        (low, up), (new_low, new_up) = self.gaps(before), self.gaps(after)
        return jnp.all((new_low >= least * low) & (new_up >= least * up))

    def longest(self, u: Array, step: Array, tau: Array) -> Array:
        """The fraction of a straight step that keeps 1 - τ of the distances."""
        low, up = self.gaps(u)
        down = jnp.where(self.has_lower & (step < 0), tau * low / -jnp.where(step < 0, step, -1.0), jnp.inf)
        over = jnp.where(self.has_upper & (step > 0), tau * up / jnp.where(step > 0, step, 1.0), jnp.inf)
        return jnp.minimum(1.0, jnp.min(jnp.minimum(down, over), initial=jnp.inf))


class BoxDual(NamedTuple):
    """Multipliers of the bounds, both at least zero."""

    lower: Array
    upper: Array
