"""Right-hand sides of a Newton system: one in the form of the inputs, or many, along a leading axis of every leaf."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import GraphError, user_line
from gnewt._typing import Array, PyTree
from gnewt.graph import Structure


def ravel_sides(structure: Structure, b: PyTree) -> Array:
    """Flatten right-hand sides: [N] for one like the inputs, [N, k] where every leaf has a leading axis of length k."""
    leaves, tree = jax.tree_util.tree_flatten(b)
    if tree != structure.in_tree:
        raise GraphError(
            f"the right-hand side has the structure {tree}, the inputs have {structure.in_tree}",
            user_line(),
            "give it in the form of the inputs",
        )
    arrays = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
    expected = [aval.shape for aval in structure.in_avals]
    one = [a.shape for a in arrays] == expected
    counts = {a.shape[0] for a in arrays if a.ndim}
    many = len(counts) == 1 and all(
        a.shape[1:] == s and a.ndim for a, s in zip(arrays, expected, strict=True)
    )
    if not one and not many:
        pairs = zip(structure.in_names, arrays, expected, strict=True)
        shapes = ", ".join(f"{a.shape} for {name} of shape {s}" for name, a, s in pairs)
        raise GraphError(
            f"the right-hand side does not fit the inputs: {shapes}",
            user_line(),
            "give every leaf the shape of its input; for many right-hand sides, one more leading axis of one length",
        )
    for name, a in zip(structure.in_names, arrays, strict=True):
        if not jnp.issubdtype(a.dtype, jnp.number) or jnp.issubdtype(a.dtype, jnp.complexfloating):
            raise GraphError(
                f"the right-hand side for {name} has dtype {a.dtype}", user_line(), "give real numbers"
            )
    # Concrete leaves are joined by NumPy: eager JAX would dispatch an operation for each of them.
    xp = jnp if any(isinstance(a, Tracer) for a in arrays) else np
    if one:
        return xp.concatenate([xp.ravel(xp.asarray(a, structure.dtype)) for a in arrays])
    rows = [xp.reshape(xp.asarray(a, structure.dtype), (a.shape[0], -1)) for a in arrays if a.shape[0]]
    return xp.concatenate(rows, 1).T if rows else np.zeros((structure.num_inputs, 0), structure.dtype)


def unravel_sides(structure: Structure, x: Array) -> PyTree:
    """Give solutions [N] or [N, k] the form of the inputs, those of many along a leading axis."""
    if x.ndim == 1:
        return structure.unravel(x)
    xp = jnp if isinstance(x, Tracer) else np
    sizes = [int(np.prod(aval.shape, dtype=np.int64)) for aval in structure.in_avals]
    ends = np.cumsum(sizes)
    leaves = [
        jnp.asarray(xp.reshape(x[end - size : end].T, (x.shape[1], *aval.shape)), aval.dtype)
        for size, end, aval in zip(sizes, ends.tolist(), structure.in_avals, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure.in_tree, leaves)
