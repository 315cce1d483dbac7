"""The reverse sweep: duals λ_v = ∂l/∂x_v + Σ_{w ∈ ch(v)} ∂Φ_w/∂x_vᵀ λ_w, from given local Jacobians.

Runs once per iterate, segment by segment of the layout, in reverse. It is the transpose of `graph.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import UNROLL, Batch, Family, Irregular, Maps, Rounds, Structure
from gnewt.kkt.derivatives import Jacobian

_MANY = 256
"""A Jacobian with more nonzeros than this is multiplied as a dense matrix."""


def sweep_duals(
    structure: Structure, maps: Maps, jacobians: dict[int, Jacobian], duals: Float[Array, " S"]
) -> Float[Array, " S"]:
    """Complete the duals, given the gradient of the losses at every slot."""
    for segment in structure.layout.segments[::-1]:
        if isinstance(segment, Batch):
            family, jacobian = structure.families[segment.family], jacobians[segment.family]
            if family.k == 0:
                continue
            rows = jacobian.rows if segment.rows is None else segment.rows.read(jacobian.rows, maps)
            back = pull_back(family, rows, jacobian.shared, segment.outs.read(duals, maps))
            duals = segment.args.add(duals, back, maps)
        elif isinstance(segment, Rounds):
            duals = _sweep_rounds(structure, segment, maps, jacobians, duals)
        else:
            duals = _sweep_irregular(structure, segment, maps, jacobians, duals)
    return duals


def pull_back(
    family: Family, rows: Array, shared: dict[int, Any], lam: Array | Sequence[Array]
) -> list[Array | None] | Array:
    """Return Jᵀλ for a batch: rows[b, nonzeros], λ[m, b]; one vector for each argument, None where J vanishes."""
    outs, args = np.nonzero(family.jac_pattern)
    if len(outs) > _MANY:
        dense = jnp.zeros((rows.shape[0], family.m, family.k), rows.dtype).at[:, outs, args].set(rows)
        return jnp.einsum("mb,bmk->kb", jnp.asarray(lam), dense)
    back: list[Array | None] = [None] * family.k
    for e, (o, j) in enumerate(zip(outs.tolist(), args.tolist(), strict=True)):
        term = lam[o] * shared.get(e, rows[:, e])
        so_far = back[j]
        back[j] = term if so_far is None else so_far + term
    return back


def _sweep_rounds(
    structure: Structure, rounds: Rounds, maps: Maps, jacobians: dict[int, Jacobian], duals: Array
) -> Array:
    """A scan in reverse that carries the duals of the state."""
    given = rounds.slots.read_rows(duals, maps)
    rows = []
    for step in rounds.steps:
        chosen = step.rows.read(jacobians[step.family].rows, maps)
        rows.append(chosen.reshape(rounds.repeats, step.count, chosen.shape[-1]))
    num_fixed, num_moving = rounds.fixed.size, rounds.moving.shape[1]
    ends = np.cumsum([rounds.num_state, rounds.num_slots, num_fixed])
    zero = duals.dtype.type(0)
    pull = _pull_scalars if rounds.is_small else _pull_vectors

    def round_(carry: tuple[Array, Array], xs: Any) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        state, fixed = carry
        pool = pull(structure, rounds, maps, jacobians, state, *xs)
        before, local, shared, moving = jnp.split(pool, ends)
        return (before, fixed + shared), (local, moving)

    start = (jnp.full(rounds.num_state, zero), jnp.full(num_fixed, zero))
    (state, fixed), (local, moving) = jax.lax.scan(
        round_, start, (given, rows), rounds.repeats, reverse=True, unroll=UNROLL
    )
    duals = rounds.slots.add(duals, local.T, maps)
    duals = rounds.moving.add(duals, moving.T, maps)
    duals = rounds.fixed.add(duals, fixed, maps)
    return rounds.first_state.add(duals, state, maps)


def _pull_vectors(
    structure: Structure,
    rounds: Rounds,
    maps: Maps,
    jacobians: dict[int, Jacobian],
    state: Array,
    given: Array,
    rows: list[Array],
) -> Array:
    """Go through one round in reverse: what its steps add to the duals of the pool."""
    first, last = rounds.num_state, rounds.num_state + rounds.num_slots
    # What the next round passes back to (state, slots of this round).
    pool = rounds.shift.add(jnp.zeros(last, given.dtype), state, maps)
    pool = jnp.concatenate([pool, jnp.zeros(rounds.fixed.size + rounds.moving.shape[1], given.dtype)])
    for step, jacobian in zip(rounds.steps[::-1], rows[::-1], strict=True):
        family = structure.families[step.family]
        if family.k:
            lam = step.put.read(given + jax.lax.slice_in_dim(pool, first, last), maps)
            back = pull_back(family, jacobian, jacobians[step.family].shared, lam)
            pool = step.take.add(pool, back, maps)
    return pool


def _pull_scalars(
    structure: Structure,
    rounds: Rounds,
    maps: Maps,
    jacobians: dict[int, Jacobian],
    state: Array,
    given: Array,
    rows: list[Array],
) -> Array:
    """Do the same with every scalar as a value of its own: nothing but products and sums is left."""
    size = rounds.num_state + rounds.num_slots + rounds.fixed.size + rounds.moving.shape[1]
    pool: list[Array | None] = [None] * size

    def add(place: int, term: Array) -> None:
        so_far = pool[place]
        pool[place] = term if so_far is None else so_far + term

    for i, place in enumerate(rounds.following.tolist()):
        add(place, state[i])
    for step, jacobian in zip(rounds.steps[::-1], rows[::-1], strict=True):
        family = structure.families[step.family]
        lam = []
        for q in step.targets[0].tolist():
            own = pool[rounds.num_state + q]
            lam.append((given[q] if own is None else given[q] + own)[None])
        back = pull_back(family, jacobian, jacobians[step.family].shared, lam)
        for place, term in zip(step.places[0].tolist(), back, strict=True):
            if term is not None:
                add(place, term[0])
    zero = jnp.zeros((), given.dtype)
    return jnp.stack([zero if value is None else value for value in pool])


def _sweep_irregular(
    structure: Structure, loop: Irregular, maps: Maps, jacobians: dict[int, Jacobian], duals: Array
) -> Array:
    """A scan in reverse that carries all duals, with gathers and scatters."""

    def pull(duals: Array, f: int, rows: Array) -> Array:
        family = structure.families[f]
        if family.k == 0:
            return duals
        args, outs = (maps[at] for at in structure.layout.whole[f])
        jacobian = jacobians[f]
        back = pull_back(family, jacobian.rows[rows], jacobian.shared, duals[outs[rows]].T)
        zero = jnp.zeros(rows.shape[0], duals.dtype)
        full = back if isinstance(back, jax.Array) else jnp.stack([zero if b is None else b for b in back])
        return duals.at[args[rows]].add(full.T)

    def round_(duals: Array, rows: Any) -> tuple[Array, None]:
        for f, r in zip(loop.families[::-1], rows[::-1], strict=True):
            duals = pull(duals, f, r)
        return duals, None

    rows = tuple(maps[at] for at in loop.rows)
    if not loop.serial:
        return jax.lax.scan(round_, duals, rows, reverse=True)[0]
    branches = [lambda d, r, f=f: pull(d, f, r[None]) for f in loop.families]
    return jax.lax.scan(
        lambda d, fr: (jax.lax.switch(fr[0], branches, d, fr[1]), None), duals, rows, reverse=True
    )[0]
