"""Types that several folders share. Shapes are jaxtyping annotations; the tests execute them.

Ruff and pyright read a shape of one axis as a name unless it begins with a space: `Float[Array, " n"]`.
Aliases are written with `jax.Array`: to `pyright --verifytypes` an alias made of `from jax import Array` is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

Array: TypeAlias = jax.Array | np.ndarray
ArrayLike: TypeAlias = npt.ArrayLike | float | int
"""Whatever NumPy makes an array of. Its own alias means float and int by `complex`, which beartype does not."""
PyTree: TypeAlias = object
"""A pytree of any kind: read and rebuilt by `jax.tree` alone. What has the same structure as an argument is generic over X."""
X = TypeVar("X")
"""A pytree whose structure a function keeps."""
Columns: TypeAlias = tuple[Array, ...]
"""The data arguments of a family: one row per instance, or shared by all."""
LocalFn: TypeAlias = Callable[..., jax.Array]
"""A local function ψ(x[k], *data) → y[m] (or → scalar for a loss), traceable by JAX."""

if TYPE_CHECKING:
    Argument = Annotated[X, "checked by gnewt"]
else:

    class Argument:
        """`Argument[T]` is T to a type checker. The tests do not check it: gnewt does, with an error in three parts."""

        def __class_getitem__(cls, item: object) -> object:
            return object


__all__ = [
    "Argument",
    "Array",
    "ArrayLike",
    "Bool",
    "Callable",
    "Columns",
    "Float",
    "Int",
    "LocalFn",
    "PyTree",
    "X",
]
