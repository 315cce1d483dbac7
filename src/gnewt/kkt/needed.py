"""What is computed only where some lane of a batch needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from gnewt._typing import PyTree, X
from gnewt.jaxprs import flatten_jaxpr, run_program
from gnewt.jaxprs.compat import Numeric


def where_needed(run: Callable[..., X], needed: Array, *operands: PyTree) -> X:
    """`run(*operands)` if `needed`, else zeros; under vmap it runs if any lane needs it, and then for all lanes.

    `lax.cond` alone would become a select under vmap, and always run. What `run` captures must be known (`hoist`).
    """

    @jax.custom_batching.custom_vmap
    def call(needed: Array, operands: tuple[PyTree, ...]) -> X:
        shapes = jax.eval_shape(run, *operands)
        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.cond(jnp.any(needed), run, lambda *_: nothing, *operands)

    @call.def_vmap
    def _(
        size: int, batched: Sequence[PyTree], needed: Array, operands: tuple[PyTree, ...]
    ) -> tuple[X, PyTree]:
        axes = jax.tree.map(lambda b: 0 if b else None, batched[1])
        lanes = jax.vmap(lambda *a: run(*a), in_axes=tuple(axes), axis_size=size)
        out = where_needed(lanes, needed, *operands)
        return out, jax.tree.map(lambda _: True, out)

    return call(needed, operands)


def hoist(run: Callable[..., X], *operands: PyTree) -> tuple[Callable[..., X], list[Numeric]]:
    """(run with what it captures as its first argument, what it captures): to JAX a captured tracer has no batch axis."""
    closed, shapes = jax.make_jaxpr(run, return_shape=True)(*operands)
    captured: list[Numeric] = []
    program = flatten_jaxpr(closed, captured)
    tree = jax.tree.structure(shapes)

    def hoisted(captured: Sequence[Numeric], *operands: PyTree) -> X:
        return jax.tree.unflatten(tree, run_program(program, jax.tree.leaves(operands), captured))

    return hoisted, captured
