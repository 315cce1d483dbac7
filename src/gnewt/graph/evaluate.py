"""Evaluate a Structure with JAX: slots s and objective Σ l(s). Runs once per iterate.

Plain differentiable JAX: slices, scans, gathers where the index maps have no pattern. The derivatives that JAX
takes through this file share nothing with `gnewt.kkt` but the local functions; residuals are computed from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float

from gnewt._errors import GraphError
from gnewt._typing import Array, Columns
from gnewt.graph.affine import Index, Maps
from gnewt.graph.family import Family
from gnewt.graph.layout import Batch, Irregular
from gnewt.graph.rounds import Rounds, RoundStep

if TYPE_CHECKING:
    from gnewt.graph.structure import Data, Structure

UNROLL = 1
"""Rounds per iteration of a compiled loop: the states stay in registers, the loop's own cost is shared."""


def apply_family(family: Family, x: jax.Array, data: Columns) -> jax.Array:
    """Evaluate ψ at a batch: x[k, b], data with a leading axis b where batched. Returns [m, b] or [b]."""
    if x.shape[1] == 1:
        one = [d if axis is None else d[0] for axis, d in zip(family.data_axes, data, strict=True)]
        y = jnp.expand_dims(family.fn(x[:, 0], *one), -1)
    else:
        y = jax.vmap(family.fn, in_axes=(1, *family.data_axes), out_axes=-1)(x, *data)
    expected = (x.shape[1],) if family.is_loss else (family.m, x.shape[1])
    if y.shape != expected:
        raise GraphError(
            f"{family.name} returned {y.shape[:-1]} scalars, but {expected[:-1]} when it was added: "
            "its output shape changed between calls",
            family.where,
            "make the function depend on its arguments only, not on outside state",
        )
    return y


def take_rows(family: Family, data: Columns, rows: Index | Array, maps: Maps) -> Columns:
    """Select the data of the given instances; shared data pass through."""

    def select(d: Array) -> Array:
        return rows.read(jnp.asarray(d), maps) if isinstance(rows, Index) else d[rows]

    return tuple(d if axis is None else select(d) for axis, d in zip(family.data_axes, data, strict=True))


RoundGiven: TypeAlias = tuple[jax.Array, jax.Array | None, list[list[jax.Array]]]
"""What a round reads besides its state: moving slots, what its own slots held before, data."""


class Recurrence(NamedTuple):
    """Rounds as a function of their state."""

    advance: Callable[[jax.Array, RoundGiven], tuple[jax.Array, jax.Array]]
    """(state, what is given to a round) ↦ (the next state, what the round adds to its slots)."""
    start: Float[jax.Array, " state"]
    given: RoundGiven
    """Leading axis: rounds."""


RunRounds: TypeAlias = Callable[[Rounds, Recurrence, Maps], jax.Array]
"""(rounds, their recurrence, index maps) ↦ what all rounds add to their slots, [repeats, slots of a round]."""


def one_by_one(rounds: Rounds, loop: Recurrence, maps: Maps) -> Float[jax.Array, "rounds slots"]:
    """Run the rounds in a scan that carries the state."""
    del maps
    return jax.lax.scan(loop.advance, loop.start, loop.given, rounds.repeats, unroll=UNROLL)[1]


def forward(
    structure: Structure, maps: Maps, data: Data, x: jax.Array, run_rounds: RunRounds = one_by_one
) -> jax.Array:
    """Compute all slots s[num_slots] from the inputs x[num_inputs], batch by batch.

    Args:
        run_rounds: what runs recurrences.
    """
    s = jnp.concatenate([x, jnp.zeros((structure.num_pairs,), x.dtype)])
    for segment in structure.layout.segments:
        if isinstance(segment, Batch):
            family = structure.families[segment.family]
            columns = data[segment.family]
            if segment.rows is not None:
                columns = take_rows(family, columns, segment.rows, maps)
            y = apply_family(family, segment.args.read(s, maps), columns)
            s = segment.outs.add(s, y, maps)
        elif isinstance(segment, Rounds):
            local = run_rounds(segment, _recurrence(structure, segment, maps, data, s), maps)
            s = segment.slots.add(s, local.T, maps)
        else:
            s = _run_irregular(structure, segment, maps, data, s)
    return s


def _recurrence(structure: Structure, rounds: Rounds, maps: Maps, data: Data, s: jax.Array) -> Recurrence:
    fixed = rounds.fixed.read(s, maps)
    moving = rounds.moving.read_rows(s, maps)
    base = rounds.slots.read_rows(s, maps) if rounds.base else None
    columns = [
        rows_of_rounds(rounds, step, structure.families[step.family], data[step.family], maps)
        for step in rounds.steps
    ]

    def advance(state: jax.Array, given: RoundGiven) -> tuple[jax.Array, jax.Array]:
        moving, base, batched = given
        # New contributions to the slots of the round; `base` holds what they were before.
        local = jnp.zeros((0,), s.dtype)
        for step, rows in zip(rounds.steps, batched, strict=True):
            family = structure.families[step.family]
            known = local if base is None else local + base[: len(local)]
            filler = jnp.zeros((rounds.num_slots - len(local),), s.dtype)
            pool = jnp.concatenate([state, known, filler, fixed, moving])
            own = iter(rows)  # shared data are not inputs of the loop
            shared = zip(family.data_axes, data[step.family], strict=True)
            columns = tuple(next(own) if axis == 0 else d for axis, d in shared)
            y = apply_family(family, step.take.read(pool, maps), columns).astype(s.dtype)
            if step.is_new:
                local = jnp.concatenate([local, y.T.reshape(-1)])
            else:
                local = jnp.concatenate([local, jnp.zeros((step.num_after - step.num_before,), s.dtype)])
                local = step.put.add(local, y, maps)
        known = local if base is None else local + base
        return rounds.shift.read(jnp.concatenate([state, known]), maps), local

    return Recurrence(advance, rounds.first_state.read(s, maps), (moving, base, columns))


def rows_of_rounds(
    rounds: Rounds, step: RoundStep, family: Family, data: Columns, maps: Maps
) -> list[jax.Array]:
    """Return the batched data of a step as [repeats, count, ...]."""
    return [
        step.rows.read(jnp.asarray(d), maps).reshape(rounds.repeats, step.count, *d.shape[1:])
        for axis, d in zip(family.data_axes, data, strict=True)
        if axis == 0
    ]


def _run_irregular(structure: Structure, loop: Irregular, maps: Maps, data: Data, s: jax.Array) -> jax.Array:
    """A scan that carries all slots, with gathers and scatters."""

    def run(s: jax.Array, f: int, rows: Array) -> jax.Array:
        family = structure.families[f]
        args, outs = (maps[at] for at in structure.layout.whole[f])
        y = apply_family(family, s[args[rows]].T, take_rows(family, data[f], rows, maps))
        return s.at[outs[rows]].add(y.T.astype(s.dtype))

    def round_(s: jax.Array, rows: Columns) -> tuple[jax.Array, None]:
        for f, r in zip(loop.families, rows, strict=True):
            s = run(s, f, r)
        return s, None

    rows = tuple(maps[at] for at in loop.rows)
    if not loop.serial:
        return jax.lax.scan(round_, s, rows)[0]
    branches = [lambda s, r, f=f: run(s, f, r[None]) for f in loop.families]
    return jax.lax.scan(lambda s, fr: (jax.lax.switch(fr[0], branches, s, fr[1]), None), s, rows)[0]


def objective(structure: Structure, maps: Maps, data: Data, s: jax.Array) -> jax.Array:
    """Sum all losses at given slots."""
    total = jnp.zeros((), s.dtype)
    for f in structure.losses:
        x = structure.layout.args[f].read(s, maps)
        total = total + jnp.sum(apply_family(structure.families[f], x, data[f])).astype(s.dtype)
    return total


def evaluate(structure: Structure, maps: Maps, data: Data, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (f(x), slots)."""
    s = forward(structure, maps, data, x)
    return objective(structure, maps, data, s), s


def node_values(structure: Structure, maps: Maps, data: Data, slots: jax.Array) -> jax.Array:
    """Φ_v(x_pa) for all nodes at once, at given slots."""
    found = jnp.zeros_like(slots)
    for f in structure.nodes:
        family, outs = structure.families[f], structure.layout.outs[f]
        assert outs is not None
        values = apply_family(family, structure.layout.args[f].read(slots, maps), data[f])
        found = outs.add(found, values.astype(slots.dtype), maps)
    return found[structure.num_inputs :]
