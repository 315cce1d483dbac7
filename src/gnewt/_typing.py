"""Array aliases. Shapes are jaxtyping annotations; the tests execute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

Array: TypeAlias = jax.Array | np.ndarray
PyTree: TypeAlias = Any
LocalFn: TypeAlias = Callable[..., Any]
"""A local function ψ(x[k], *data) → y[m] (or → scalar for a loss), traceable by JAX."""

__all__ = ["Array", "Bool", "Callable", "Float", "Int", "LocalFn", "PyTree"]
