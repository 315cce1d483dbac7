"""Evaluate a Structure with JAX: slots s and objective Σ l(s). Runs once per iterate.

Plain differentiable JAX: gathers, scatter-adds, scans. The derivatives that JAX takes through this file
share nothing with `gnewt.kkt` but the local functions; residuals are computed from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from gnewt._errors import GraphError, explain_error
from gnewt.graph.family import Family
from gnewt.graph.schedule import Segment

if TYPE_CHECKING:
    from gnewt.graph.structure import Data, Structure


def index_maps(structure: Structure) -> Any:
    """Collect the integer arrays that evaluation needs: arguments and outputs, and the schedule's rows."""
    families = [(f.args, () if f.outs is None else f.outs) for f in structure.families]
    segments = [s.rows if isinstance(s, Segment) else (s.family, s.row) for s in structure.schedule.segments]
    return families, segments


def apply_family(family: Family, x: jax.Array, data: tuple[Any, ...]) -> jax.Array:
    """Evaluate ψ at a batch: x[b, k], data with a leading axis b where batched. Returns [b, m] or [b]."""
    y = jax.vmap(family.fn, in_axes=(0, *family.data_axes))(x, *data)
    expected = (x.shape[0],) if family.is_loss else (x.shape[0], family.m)
    if y.shape != expected:
        raise GraphError(
            explain_error(
                f"{family.name} returned {y.shape[1:]} scalars, but {expected[1:]} when it was added: "
                "its output shape changed between calls",
                family.where,
                "make the function depend on its arguments only, not on outside state",
            )
        )
    return y


def take_rows(family: Family, data: tuple[Any, ...], rows: jax.Array) -> tuple[Any, ...]:
    """Select the data of the given instances; shared data pass through."""
    return tuple(d if axis is None else d[rows] for axis, d in zip(family.data_axes, data, strict=True))


def forward(structure: Structure, maps: Any, data: Data, x: jax.Array) -> jax.Array:
    """Compute all slots s[num_slots] from the inputs x[num_inputs], batch by batch."""
    family_maps, segment_maps = maps
    s = jnp.concatenate([x, jnp.zeros((structure.num_pairs,), x.dtype)])

    def run(s: jax.Array, f: int, rows: jax.Array, columns: tuple[Any, ...]) -> jax.Array:
        family = structure.families[f]
        args, outs = family_maps[f]
        y = apply_family(family, s[args[rows]], columns)
        return s.at[outs[rows]].add(y.astype(s.dtype))

    for segment, rows in zip(structure.schedule.segments, segment_maps, strict=True):
        if isinstance(segment, Segment) and segment.repeats == 1:
            for f, r in zip(segment.families, rows, strict=True):
                s = run(s, f, r[0], take_rows(structure.families[f], data[f], r[0]))
        elif isinstance(segment, Segment):

            def round_(
                s: jax.Array, rows: Any, families: tuple[int, ...] = segment.families
            ) -> tuple[jax.Array, None]:
                for f, r in zip(families, rows, strict=True):
                    s = run(s, f, r, take_rows(structure.families[f], data[f], r))
                return s, None

            s, _ = jax.lax.scan(round_, s, rows)
        else:
            branches = [
                lambda s, r, f=f: run(s, f, r[None], take_rows(structure.families[f], data[f], r[None]))
                for f in segment.families
            ]
            s, _ = jax.lax.scan(lambda s, fr: (jax.lax.switch(fr[0], branches, s, fr[1]), None), s, rows)
    return s


def objective(structure: Structure, maps: Any, data: Data, s: jax.Array) -> jax.Array:
    """Sum all losses at given slots."""
    total = jnp.zeros((), s.dtype)
    for f in structure.losses:
        args, _ = maps[0][f]
        total = total + jnp.sum(apply_family(structure.families[f], s[args], data[f])).astype(s.dtype)
    return total


def evaluate(structure: Structure, maps: Any, data: Data, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (f(x), slots)."""
    s = forward(structure, maps, data, x)
    return objective(structure, maps, data, s), s
