"""Solutions with right-hand sides on all rows of K, bare duals among them: three walks over the tree.

Down, for states that leave the gaps which are asked for, inputs answering by their policies; a solution of what is left
of the other rows; up, for the multipliers of bare pairs. No sweep is in open loop, so that no error grows with the
length of an unstable path.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gnewt.kkt.engines.xla.front import Gains, multiply, substitute
from gnewt.kkt.engines.xla.schedule import FrontBlock
from gnewt.kkt.engines.xla.tree import Operands, Tree, extend


def solve_all_rows(
    tree: Tree,
    arrays: Operands,
    sources: Float[Array, " nnz"],
    shift: Float[Array, ""],
    gains: tuple[Gains, ...],
    rhs: Float[Array, "unknowns columns"],
) -> Float[Array, "unknowns columns"]:
    """Solve K z = rhs from the gains of an elimination without replaced pivots."""
    layout = tree.layout
    num_slots = (layout.num_unknowns + layout.num_inputs) // 2
    behind = num_slots - layout.num_inputs
    numbers, _ = extend(arrays, sources)
    is_state = jnp.arange(layout.num_unknowns) < num_slots
    bare = arrays["bare"]
    bare_dual = (bare & ~is_state)[:, None]

    def down(z: Array, part: Operands, kept: Gains, block: FrontBlock) -> Array:
        p, q = block.shape.p, block.shape.q
        r = z.at[part["ids"][:, p:]].get(mode="fill", fill_value=0)
        mine = -multiply(kept.x, r[:, q:])
        gaps = rhs.at[part["ids"][:, :p] + behind].get(mode="fill", fill_value=0)
        offset = substitute(-gaps, numbers[part["g"]], max(layout.nesting))
        states = multiply(kept.f, jnp.concatenate([mine, r[:, q:]], axis=1)) + offset
        here = part["ids"][:, : p + q]
        return z.at[here].set(jnp.concatenate([states, mine], axis=1), mode="drop")

    def up(z: Array, part: Operands, kept: Gains, block: FrontBlock) -> Array:
        p = block.shape.p
        own = z.at[part["ids"][:, :p]].get(mode="fill", fill_value=0)
        transposed = jnp.swapaxes(numbers[part["g"]], 1, 2)
        z = z.at[part["ids"][:, p:]].add(multiply(jnp.swapaxes(kept.f, 1, 2), own), mode="drop")
        duals = substitute(own, transposed, max(layout.nesting))
        return z.at[part["ids"][:, :p] + behind].set(duals, mode="drop")

    z = tree.walk(arrays, down, jnp.zeros_like(rhs), gains, reverse=True)
    z = jnp.where(bare_dual, 0, z)
    left = jnp.where(bare_dual, 0, rhs - tree.product(arrays, sources, shift, z))
    z = z + jnp.where(bare_dual, 0, tree.solve(arrays, gains, left))
    missing = jnp.where(bare_dual, 0, tree.product(arrays, sources, shift, z) - rhs)
    return jnp.where(bare_dual, tree.walk(arrays, up, missing, gains), z)
