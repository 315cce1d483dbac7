"""The reverse sweep: duals λ_v = ∂l/∂x_v + Σ_{w ∈ ch(v)} ∂Φ_w/∂x_vᵀ λ_w, from given local Jacobians.

Runs once per iterate, segment by segment of the layout, in reverse. It is the transpose of `graph.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import UNROLL, Batch, Family, Irregular, Maps, Rounds, RoundStep, Structure, take_places
from gnewt.jaxprs.compat import Numeric
from gnewt.kkt.derivatives.local import Jacobian

_MANY = 256
"""A Jacobian with more nonzeros than this is multiplied as a dense matrix ..."""
_FEW = 32
"""... and one of a single instance with more than this."""
_MAX_RUNS = 64
"""Values that lie in more runs than this are put in place by a gather."""


ReverseGiven: TypeAlias = tuple[Array, list[Array]]
"""The gradient of the losses at the slots of a round, and the Jacobians of its steps."""


class ReverseRounds(NamedTuple):
    """The reverse sweep of rounds, as a linear function of the duals that a round passes back."""

    pull: Callable[[Array, ReverseGiven], tuple[Array, Array, Array, Array]]
    """(duals of the state after a round, what is given to it) ↦ what it adds to the duals of the state before it, of its
    slots, of the fixed slots and of the moving ones."""
    given: ReverseGiven
    """Leading axis: rounds."""


RunReverse: TypeAlias = Callable[[Rounds, ReverseRounds, Array], tuple[Array, Array, Array, Array]]
"""(rounds, their sweep, zero duals of the state) ↦ as `pull`, of the first round, all rounds, their sum, all rounds."""


def backwards(
    rounds: Rounds, sweep: ReverseRounds, zero: Float[Array, " state"]
) -> tuple[Array, Array, Array, Array]:
    """Sweep the rounds in a scan that carries the duals of the state."""

    def round_(
        carry: tuple[Array, Array], given: ReverseGiven
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        state, fixed = carry
        before, local, shared, moving = sweep.pull(state, given)
        return (before, fixed + shared), (local, moving)

    start = (zero, jnp.zeros(rounds.fixed.size, zero.dtype))
    (state, fixed), (local, moving) = jax.lax.scan(
        round_, start, sweep.given, rounds.repeats, reverse=True, unroll=UNROLL
    )
    return state, local, fixed, moving


def sweep_duals(
    structure: Structure,
    maps: Maps,
    jacobians: dict[int, Jacobian],
    duals: Float[Array, " S"],
    run_reverse: RunReverse = backwards,
) -> Float[Array, " S"]:
    """Complete the duals, given the gradient of the losses at every slot.

    Args:
        run_reverse: what sweeps recurrences.
    """
    for segment in structure.layout.segments[::-1]:
        if isinstance(segment, Batch):
            family, jacobian = structure.families[segment.family], jacobians[segment.family]
            if family.k == 0:
                continue
            rows = jacobian.rows if segment.rows is None else segment.rows.read(jacobian.rows, maps)
            back = pull_back(family, rows, jacobian.shared, segment.outs.read(duals, maps))
            duals = segment.args.add(duals, back, maps)
        elif isinstance(segment, Rounds):
            duals = _sweep_rounds(structure, segment, maps, jacobians, duals, run_reverse)
        else:
            duals = _sweep_irregular(structure, segment, maps, jacobians, duals)
    return duals


def pull_back(
    family: Family, rows: Array, shared: Mapping[int, Numeric], lam: Array | Sequence[Array]
) -> list[Array | None] | Array:
    """Return Jᵀλ for a batch: rows[b, nonzeros], λ[m, b]; one vector for each argument, None where J vanishes."""
    outs, args = np.nonzero(family.jac_pattern)
    if len(outs) > _MANY:
        dense = _dense(family, rows).reshape(rows.shape[0], family.m, family.k)
        return jnp.einsum("mb,bmk->kb", jnp.asarray(lam), dense)
    back: list[Array | None] = [None] * family.k
    for e, (o, j) in enumerate(zip(outs.tolist(), args.tolist(), strict=True)):
        term = lam[o] * shared.get(e, rows[:, e])
        so_far = back[j]
        back[j] = term if so_far is None else so_far + term
    return back


def _sweep_rounds(
    structure: Structure,
    rounds: Rounds,
    maps: Maps,
    jacobians: dict[int, Jacobian],
    duals: Array,
    run_reverse: RunReverse,
) -> Array:
    sweep = _reverse_rounds(structure, rounds, maps, jacobians, duals)
    state, local, fixed, moving = run_reverse(rounds, sweep, jnp.zeros(rounds.num_state, duals.dtype))
    duals = rounds.slots.add(duals, local.T, maps)
    duals = rounds.moving.add(duals, moving.T, maps)
    duals = rounds.fixed.add(duals, fixed, maps)
    return rounds.first_state.add(duals, state, maps)


def _reverse_rounds(
    structure: Structure, rounds: Rounds, maps: Maps, jacobians: dict[int, Jacobian], duals: Array
) -> ReverseRounds:
    given = rounds.slots.read_rows(duals, maps)
    pulls, rows = [], []
    for step in rounds.steps:
        family, jacobian = structure.families[step.family], jacobians[step.family]
        chosen = step.rows.read(jacobian.rows, maps)
        if step.count == 1 and chosen.shape[1] > _FEW:
            pulls.append(_pull_matrix(family, step))
            rows.append(_dense(family, chosen))
        else:
            pull = _pull_scalars if step.count == 1 else _pull_vectors
            pulls.append(pull(family, step, jacobian.shared, maps))
            rows.append(chosen.reshape(rounds.repeats, step.count, chosen.shape[1]))
    num_state = rounds.num_state
    ends = np.cumsum([num_state, rounds.num_slots, rounds.fixed.size])
    size = int(ends[-1]) + rounds.moving.shape[1]

    def pull_round(state: Array, xs: ReverseGiven) -> tuple[Array, Array, Array, Array]:
        given, rows = xs
        # Duals of the pool: at first what the next round passes back to the state and the slots of this round.
        pool = _spread(state, rounds.following, size)
        for pull, jacobian in zip(pulls[::-1], rows[::-1], strict=True):
            pool = pool + pull(jacobian, given + pool[num_state : num_state + rounds.num_slots], size)
        before, local, shared, moving = jnp.split(pool, ends)
        return before, local, shared, moving

    return ReverseRounds(pull_round, (given, rows))


Pull = Callable[[Array, Array, int], Array]
"""(Jacobian of a step, λ of the slots of the round, size of the pool) ↦ what it adds to the duals of the pool."""


def _pull_vectors(family: Family, step: RoundStep, shared: Mapping[int, Numeric], maps: Maps) -> Pull:
    def pull(rows: Array, lam: Array, size: int) -> Array:
        empty = jnp.zeros(size, lam.dtype)
        if family.k == 0:
            return empty
        back = pull_back(family, rows, shared, step.put.read(lam, maps))
        if _is_injective(step.places):
            zero = jnp.zeros(step.count, lam.dtype)
            columns = jnp.stack([zero if b is None else b for b in back], axis=1)
            return _spread(columns.reshape(-1), step.places, size)
        return step.take.add(empty, back, maps)

    return pull


def _pull_scalars(family: Family, step: RoundStep, shared: Mapping[int, Numeric], maps: Maps) -> Pull:
    """One instance with few entries: products and sums of scalars are all that is left."""

    def pull(rows: Array, lam: Array, size: int) -> Array:
        back = pull_back(family, rows, shared, [lam[q][None] for q in step.targets[0].tolist()])
        pool: list[Array | None] = [None] * size
        for place, term in zip(step.places[0].tolist(), back, strict=True):
            so_far = pool[place]
            pool[place] = term if so_far is None or term is None else so_far + term
        zero = jnp.zeros(1, lam.dtype)
        return jnp.concatenate([zero if value is None else value for value in pool])

    return pull


def _pull_matrix(family: Family, step: RoundStep) -> Pull:
    """One instance with many entries: a product with a small dense matrix, as a sum of rows."""

    def pull(matrix: Array, lam: Array, size: int) -> Array:
        own = take_places(lam, step.targets[0])
        back = jnp.sum(own[:, None] * matrix.reshape(family.m, family.k), axis=0)
        if _is_injective(step.places):
            return _spread(back, step.places, size)
        return jnp.zeros(size, lam.dtype).at[step.places[0]].add(back)

    return pull


def _dense(family: Family, rows: Array) -> Array:
    """Fill the zeros of the pattern in: [b, m·k]."""
    if family.jac_pattern.all():
        return rows
    return _spread(rows.T, np.flatnonzero(family.jac_pattern), family.m * family.k).T


def _is_injective(places: np.ndarray) -> bool:
    return len(np.unique(places)) == places.size


def _spread(values: Array, places: np.ndarray, size: int) -> Array:
    """Return an array of the given length that holds values[i] at places[i], all different, and zero elsewhere."""
    where = np.full(size, -2)
    where[places.ravel()] = np.arange(places.size)
    filler = jnp.zeros((1, *values.shape[1:]), values.dtype)
    cuts = np.flatnonzero(np.diff(where) != np.where(where[:-1] == -2, 0, 1)) + 1
    if len(cuts) > _MAX_RUNS:
        return jnp.concatenate([values, filler])[np.where(where == -2, places.size, where)]
    parts = []
    for run in np.split(where, cuts):
        if len(run) and run[0] >= 0:
            parts.append(jax.lax.slice_in_dim(values, int(run[0]), int(run[0]) + len(run)))
        else:
            parts.append(jnp.broadcast_to(filler, (len(run), *values.shape[1:])))
    return jnp.concatenate(parts)


def _sweep_irregular(
    structure: Structure, loop: Irregular, maps: Maps, jacobians: dict[int, Jacobian], duals: Array
) -> Array:
    """A scan in reverse that carries all duals, with gathers and scatters."""

    def pull(duals: Array, f: int, rows: Array | np.ndarray) -> Array:
        family = structure.families[f]
        if family.k == 0:
            return duals
        args, outs = (maps[at] for at in structure.layout.whole[f])
        jacobian = jacobians[f]
        back = pull_back(family, jacobian.rows[rows], jacobian.shared, duals[outs[rows]].T)
        zero = jnp.zeros(rows.shape[0], duals.dtype)
        full = back if isinstance(back, jax.Array) else jnp.stack([zero if b is None else b for b in back])
        return duals.at[args[rows]].add(full.T)

    def round_(duals: Array, rows: tuple[Array | np.ndarray, ...]) -> tuple[Array, None]:
        for f, r in zip(loop.families[::-1], rows[::-1], strict=True):
            duals = pull(duals, f, r)
        return duals, None

    rows = tuple(jnp.asarray(maps[at]) for at in loop.rows)
    if not loop.serial:
        return jax.lax.scan(round_, duals, rows, reverse=True)[0]
    branches = [lambda d, r, f=f: pull(d, f, r[None]) for f in loop.families]
    return jax.lax.scan(
        lambda d, fr: (jax.lax.switch(fr[0], branches, d, fr[1]), None), duals, rows, reverse=True
    )[0]
