"""Selected inversion and draws by the C++ library, from a factor that `engine.factor_solve` has made."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt import _native
from gnewt.kkt.engines.native.packing import NativeLayout

_SUFFIX = {"float64": "f64", "float32": "f32"}
_TARGETS = tuple(
    f"gnewt_{what}_{dtype}" for what in ("variances", "sensitivities", "draw") for dtype in _SUFFIX.values()
)


@cache
def _register() -> None:
    for name in _TARGETS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(_native.LIBRARY, name)), platform="cpu")


def variances(
    layout: NativeLayout,
    arrays: Array | np.ndarray,
    sources: Float[Array, " nnz"],
    factor: tuple[Array, Array, Array, Array],
) -> Float[Array, " slots"]:
    """Return the diagonal of K⁻¹ on all slots; NaN where the factor did not fit its buffers. Works under vmap."""
    _register()
    numbers, places, info, _ = factor
    num_slots = (layout.num_unknowns + layout.num_inputs) // 2
    call = jax.ffi.ffi_call(
        f"gnewt_variances_{_SUFFIX[sources.dtype.name]}",
        jax.ShapeDtypeStruct((num_slots,), sources.dtype),
        vmap_method="expand_dims",
    )
    return call(jnp.asarray(arrays), sources, numbers, places, info)


def sensitivities(
    array: Array | np.ndarray, sources: Float[Array, " nnz"], factor: tuple[Array, Array, Array, Array]
) -> Float[Array, " nnz"]:
    """Return ∂log|det K| / ∂sources, for plans whose fronts hold duals. Works under vmap."""
    _register()
    numbers, places, info, _ = factor
    call = jax.ffi.ffi_call(
        f"gnewt_sensitivities_{_SUFFIX[sources.dtype.name]}",
        jax.ShapeDtypeStruct(sources.shape, sources.dtype),
        vmap_method="expand_dims",
    )
    return call(jnp.asarray(array), sources, numbers, places, info)


def draw(
    arrays: Array | np.ndarray,
    sources: Float[Array, " nnz"],
    factor: tuple[Array, Array, Array, Array],
    noise: Float[Array, "N columns"],
) -> Float[Array, "N columns"]:
    """Turn standard normal noise into draws of covariance H⁻¹; NaN where the factor did not fit its buffers."""
    _register()
    numbers, places, info, _ = factor
    call = jax.ffi.ffi_call(
        f"gnewt_draw_{_SUFFIX[sources.dtype.name]}",
        jax.ShapeDtypeStruct(noise.shape, sources.dtype),
        vmap_method="expand_dims",
    )
    return call(jnp.asarray(arrays), sources, numbers, places, info, jnp.asarray(noise, sources.dtype))
