"""∂log|det K| / ∂K at the entries that K has: entries of K⁻¹, duals included, by selected inversion.

In a causal plan duals are substituted and never computed. Here the same tree is read as a free plan, whose fronts hold
them. The derivative of this derivative is taken through a dense factorisation of K: second derivatives of an evidence are
for small problems.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gnewt._errors import DerivativeError
from gnewt.graph import Plan
from gnewt.kkt import EliminationStatus, Sensitive, prepare_sensitive
from gnewt.newton.system import System, num_sources

_MOST_DENSE = 4000
"""Unknowns of K up to which it is written out: 128 MB in float64."""


class Sensitivity(NamedTuple):
    """Derivatives of log|det(H + μI)|."""

    sources: Array
    """With respect to the local derivatives."""
    shift: Array
    """With respect to μ: the trace of the inverse."""


def log_determinant_sensitivity(system: System, sources: Array, shift: Array) -> Sensitivity:
    """Compute ∂log|det(H + μI)| / ∂(sources, μ): one elimination and one selected inversion."""
    return Sensitivity(*_sensitivity(system, sources, shift))


def _sensitive(system: System) -> Sensitive:
    plan, structure = system.plan, system.structure
    free = dataclasses.replace(plan, causal=False)
    make = partial(prepare_sensitive, system.engine.name, free, num_sources(structure), structure.eps)
    return structure.memo(("sensitive", system.engine.name, plan.digest), make)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sensitivity(system: System, sources: Array, shift: Array) -> tuple[Array, Array]:
    engine = _sensitive(system)
    found, slots, status = engine.sensitivities(sources, shift)
    factor = jnp.where(status == EliminationStatus.OK, 1.0, jnp.nan).astype(found.dtype)
    return found * factor, jnp.sum(slots[: system.structure.num_inputs]) * factor


@_sensitivity.defjvp
def _(
    system: System, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    plan = system.plan
    if plan.num_unknowns > _MOST_DENSE:
        raise DerivativeError(
            f"a second derivative of log|det H| needs the dense inverse of K, which has {plan.num_unknowns} unknowns here",
            remedy=f"take it where there are at most {_MOST_DENSE}, or take differences of the first derivative",
        )
    dense = jax.grad(partial(_dense_log_determinant, plan), argnums=(0, 1))
    return _sensitivity(system, *primals), jax.jvp(dense, primals, tangents)[1]


def _dense_log_determinant(plan: Plan, sources: Array, shift: Array) -> Array:
    row, col = plan.entry_unknowns
    entries = jnp.zeros(plan.num_entries, sources.dtype).at[plan.target].add(sources[plan.source])
    entries = entries.at[plan.pair_entry].add(-1.0).at[plan.input_entry].add(shift)
    lower = jnp.zeros((plan.num_unknowns, plan.num_unknowns), sources.dtype).at[row, col].add(entries)
    return jnp.linalg.slogdet(lower + lower.T - jnp.diag(jnp.diagonal(lower)))[1]
