"""Selected inversion and draws in JAX: walks from the roots down, over the gains that an elimination has kept.

    Z_ξξ lies in the parent,   Z_qξ = -X Z_ξξ,   Z_qq = K⁻¹ + X Z_ξξ Xᵀ,   Z_p· = F Z

for the pivots q of a front, its separator ξ and its bare pairs x_p = F z.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.kkt.engines.xla.assembly import XlaLayout
from gnewt.kkt.engines.xla.front import Gains
from gnewt.kkt.engines.xla.schedule import FrontBlock
from gnewt.kkt.engines.xla.tree import Operands, Tree


def clique_inverse(block: FrontBlock, kept: Gains, separator: Array) -> Array:
    """K⁻¹ on the clique of every front, in the coordinates of the front, from K⁻¹ on its separator."""
    p, q = block.shape.p, block.shape.q
    cross = -kept.x @ separator
    own = kept.inverse - cross @ jnp.swapaxes(kept.x, 1, 2)
    rest = jnp.concatenate(
        [
            jnp.concatenate([own, cross], axis=2),
            jnp.concatenate([jnp.swapaxes(cross, 1, 2), separator], axis=2),
        ],
        axis=1,
    )
    assert rest.shape[1] == q + block.shape.b
    if not p:
        return rest
    states = kept.f @ rest
    both = states @ jnp.swapaxes(kept.f, 1, 2)
    return jnp.concatenate(
        [
            jnp.concatenate([both, states], axis=2),
            jnp.concatenate([jnp.swapaxes(states, 1, 2), rest], axis=2),
        ],
        axis=1,
    )


def unknown_variances(
    layout: XlaLayout, arrays: Operands, gains: tuple[Gains, ...]
) -> Float[Array, " unknowns"]:
    """Return the diagonal of K⁻¹; of bare duals it is zero, since they are never computed."""
    dtype = gains[0].inverse.dtype if gains else jnp.float64
    pool = jnp.zeros(layout.pool_starts[-1], dtype)
    found = jnp.zeros(layout.num_unknowns, dtype)
    firsts = np.cumsum([0] + [len(s.blocks) for s in layout.segments]).tolist()
    for segment, first in reversed(list(zip(layout.segments, firsts, strict=False))):
        numbers = range(first, first + len(segment.blocks))
        parts = [{name: arrays[f"{name}{i}"] for name in ("ids", "row", "col")} for i in numbers]

        def body(
            carry: tuple[Array, Array],
            xs: tuple[Array, list[Operands], tuple[Gains, ...]],
            blocks: tuple[FrontBlock, ...] = segment.blocks,
            first: int = first,
        ) -> tuple[tuple[Array, Array], None]:
            pool, found = carry
            step, parts, kept = xs
            for i, (part, gain, block) in enumerate(zip(parts, kept, blocks, strict=True), first):
                shape = block.shape
                place = part["row"][:, :, None] + part["col"][:, None, :]
                separator = pool.at[place].get(mode="fill", fill_value=0)
                full = clique_inverse(block, gain, separator)
                here = part["ids"][:, : shape.p + shape.q]
                diagonal = jnp.diagonal(full, axis1=1, axis2=2)[:, : shape.p + shape.q]
                found = found.at[here].set(diagonal, mode="drop")
                begin = layout.pool_starts[i] + step * (block.width * shape.n**2)
                pool = jax.lax.dynamic_update_slice(pool, jnp.ravel(full), (begin,))
            return (pool, found), None

        steps = jnp.arange(segment.steps, dtype=jnp.int32)
        xs = (steps, parts, gains[first : first + len(segment.blocks)])
        (pool, found), _ = jax.lax.scan(body, (pool, found), xs, reverse=True)
    return found


def draw(
    tree: Tree, arrays: Operands, gains: tuple[Gains, ...], noise: Float[Array, "unknowns columns"]
) -> Float[Array, "unknowns columns"]:
    """Turn standard normal noise on the inputs into draws of covariance H⁻¹. Causal plans of a positive definite H."""

    def down(z: Array, part: Operands, kept: Gains, block: FrontBlock) -> Array:
        p, q = block.shape.p, block.shape.q
        r = z.at[part["ids"][:, p:]].get(mode="fill", fill_value=0)
        mine = jnp.linalg.cholesky(kept.inverse) @ r[:, :q] - kept.x @ r[:, q:]
        states = kept.f @ jnp.concatenate([mine, r[:, q:]], axis=1)
        return z.at[part["ids"][:, : p + q]].set(jnp.concatenate([states, mine], axis=1), mode="drop")

    return tree.walk(arrays, down, noise, gains, reverse=True)
