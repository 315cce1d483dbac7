"""Variances and draws by the reference engine, called back on the host: where an engine's own factor does not do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Plan
from gnewt.kkt.engines.reference.engine import factorize
from gnewt.kkt.needed import where_needed


class HostInverse:
    """(needed, sources, shift) ↦ the diagonal of K⁻¹, and draws; exact for any numbers, about 0.2 ms for each front."""

    def __init__(self, plan: Plan, eps: float | None) -> None:
        self._plan, self._eps = plan, eps

    def variances(self, needed: Array, sources: Array, shift: Array) -> Float[Array, " slots"]:
        """The diagonal of K⁻¹ on all slots, where it is needed; else zero."""
        shape = jax.ShapeDtypeStruct((self._plan.num_slots,), sources.dtype)

        def on_host(needed: Array, sources: Array, shift: Array) -> np.ndarray:
            if not needed:
                return np.zeros(shape.shape, shape.dtype)
            with np.errstate(all="ignore"):
                factor = factorize(self._plan, np.asarray(sources), float(shift), self._eps)
                return factor.slot_variances().astype(shape.dtype)

        def call(needed: Array, sources: Array, shift: Array) -> Array:
            return jax.pure_callback(on_host, shape, needed, sources, shift, vmap_method="sequential")

        return where_needed(call, needed, needed, sources, jnp.asarray(shift))

    def draw(self, needed: Array, sources: Array, shift: Array, noise: Array) -> Float[Array, "N columns"]:
        """Draws of covariance H⁻¹ from standard normal noise, where they are needed; else zero."""
        shape = jax.ShapeDtypeStruct(noise.shape, noise.dtype)

        def on_host(needed: Array, sources: Array, shift: Array, noise: Array) -> np.ndarray:
            if not needed:
                return np.zeros(shape.shape, shape.dtype)
            with np.errstate(all="ignore"):
                factor = factorize(self._plan, np.asarray(sources), float(shift), self._eps)
                return factor.correlate(np.asarray(noise, np.float64)).astype(shape.dtype)

        def call(needed: Array, sources: Array, shift: Array, noise: Array) -> Array:
            return jax.pure_callback(on_host, shape, needed, sources, shift, noise, vmap_method="sequential")

        return where_needed(call, needed, needed, sources, jnp.asarray(shift), noise)
