"""Count structures that outlive their functions. Run in a process of its own: emptying JAX's caches costs every later test."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp

from gnewt.trace import trace_function
from helpers.program_table import points


def structures_alive() -> int:
    """Trace five functions that are defined in a loop; how many structures are left."""
    refs = []
    for i in range(5):
        scale = jnp.full(3, float(i + 1))

        def f(x: jax.Array, scale: jax.Array = scale) -> jax.Array:
            return jnp.sum((scale * x) ** 2)

        structure, _ = trace_function(f).structure_for((points(3), scale))
        refs.append(weakref.ref(structure))
        del structure, f
    gc.collect()
    jax.clear_caches()
    gc.collect()
    return sum(r() is not None for r in refs)
