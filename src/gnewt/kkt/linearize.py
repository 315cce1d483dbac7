"""Linearise: values, duals, and local derivatives of every family, batched. Once per iterate.

λ_v = ∂_v f by the reverse sweep over local Jacobians, in reverse topological order (E9):

    λ_v = Σ_s ∂_v l_s + Σ_{d ∈ ch(v)} (∂_v Φ_d)ᵀ λ_d

and the KKT system is taken in the δλ form (E10), whose right-hand side is -g on the inputs and zero
elsewhere. Hessians of λ·Φ are forward-over-reverse; no third-order tensor is ever formed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Data, Family, Segment, Structure, apply_family, evaluate

CURVATURES = ("exact", "gauss_newton")
"""`gauss_newton` drops λ·∂²Φ and keeps the exact Hessians of the losses (the generalised Gauss-Newton matrix)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LocalModels:
    """The numbers of one iterate: f, slots, total derivatives, and the structural nonzeros of K."""

    value: Float[Array, ""]
    slots: Float[Array, " S"]
    duals: Float[Array, " S"]
    """∂f/∂s for every slot: the gradient on the inputs, λ on the others."""
    sources: Float[Array, " nnz"]
    """Local Jacobians and Hessians at their structural nonzeros, in the order that plans expect."""


def linearize(
    structure: Structure, maps: Any, data: Data, x: Float[Array, " N"], curvature: str = "exact"
) -> LocalModels:
    """Compute the local models at x. Traceable; compile time does not depend on the number of instances."""
    value, s = evaluate(structure, maps, data, x)
    local = [s[args] for args, _ in maps[0]]
    jacobians = {f: _jacobian(structure.families[f], local[f], data[f]) for f in structure.nodes}
    duals = _sweep(structure, maps, data, jacobians, local, s)
    sources = []
    for f, family in enumerate(structure.families):
        if not family.is_loss:
            o, j = np.nonzero(family.jac_pattern)
            sources.append(jacobians[f][:, o, j].ravel())
        i, j = np.nonzero(np.tril(family.hess_pattern))
        if len(i) == 0:
            continue
        if not family.is_loss and curvature == "gauss_newton":
            sources.append(jnp.zeros(family.n * len(i), s.dtype))
            continue
        lam = None if family.is_loss else duals[maps[0][f][1]]
        sources.append(_hessian(family, local[f], lam, data[f])[:, i, j].ravel())
    flat = jnp.concatenate([jnp.asarray(v, s.dtype) for v in sources]) if sources else jnp.zeros(0, s.dtype)
    return LocalModels(value, s, duals, flat)


def _jacobian(family: Family, x: Array, data: tuple[Any, ...]) -> Float[Array, "n m k"]:
    """∂ψ at every instance, forward or reverse by shape."""
    mode = jax.jacfwd if family.k <= 2 * family.m else jax.jacrev
    return jax.vmap(mode(family.fn), in_axes=(0, *family.data_axes))(x, *data)


def _hessian(family: Family, x: Array, lam: Array | None, data: tuple[Any, ...]) -> Float[Array, "n k k"]:
    """∂²(λ·ψ), or ∂²l, at every instance: forward over reverse."""
    if lam is None:
        return jax.vmap(jax.jacfwd(jax.grad(family.fn)), in_axes=(0, *family.data_axes))(x, *data)

    def contracted(x: Array, lam: Array, *data: Any) -> Array:
        return jnp.vdot(lam, family.fn(x, *data).astype(lam.dtype))

    return jax.vmap(jax.jacfwd(jax.grad(contracted)), in_axes=(0, 0, *family.data_axes))(x, lam, *data)


def _sweep(
    structure: Structure, maps: Any, data: Data, jacobians: dict[int, Array], local: list[Array], s: Array
) -> Float[Array, " S"]:
    """Accumulate ∂f/∂s in reverse topological order, segment by segment of the schedule."""
    family_maps, segment_maps = maps
    duals = jnp.zeros_like(s)
    for f in structure.losses:
        family = structure.families[f]
        if family.k:
            gradient = jax.vmap(jax.grad(family.fn), in_axes=(0, *family.data_axes))(local[f], *data[f])
            duals = duals.at[family_maps[f][0]].add(gradient.astype(s.dtype))

    def pull(duals: Array, f: int, rows: Array) -> Array:
        args, outs = family_maps[f]
        back = jnp.einsum("nm,nmk->nk", duals[outs[rows]], jacobians[f][rows].astype(s.dtype))
        return duals.at[args[rows]].add(back)

    for segment, rows in zip(structure.schedule.segments[::-1], segment_maps[::-1], strict=True):
        if isinstance(segment, Segment):

            def round_(
                duals: Array, rows: Any, families: tuple[int, ...] = segment.families
            ) -> tuple[Array, None]:
                for f, r in zip(families[::-1], rows[::-1], strict=True):
                    duals = pull(duals, f, r)
                return duals, None

            if segment.repeats == 1:
                duals, _ = round_(duals, [r[0] for r in rows])
            else:
                duals, _ = jax.lax.scan(round_, duals, rows, reverse=True)
        else:
            branches = [lambda d, r, f=f: pull(d, f, r[None]) for f in segment.families]
            duals, _ = jax.lax.scan(
                lambda d, fr: (jax.lax.switch(fr[0], branches, d, fr[1]), None), duals, rows, reverse=True
            )
    return duals


def first_nonfinite(structure: Structure, data: Data, models: LocalModels) -> tuple[str, str] | None:
    """Name the first place where a value or a derivative is not finite: (what, where), or None."""
    if (
        np.all(np.isfinite(models.sources))
        and np.all(np.isfinite(models.slots))
        and np.isfinite(models.value)
    ):
        return None
    slots = np.asarray(models.slots)
    bad = np.flatnonzero(~np.isfinite(slots))
    if len(bad):
        s = int(bad[0])
        return f"the value of {structure.slot_name(s)} is {slots[s]}", structure.slot_where(s)
    for f in structure.losses:
        family = structure.families[f]
        values = np.asarray(apply_family(family, models.slots[family.args], data[f]))
        if not np.all(np.isfinite(values)):
            i = int(np.argmin(np.isfinite(values)))
            return f"the value of {family.label(i)} is {values[i]}", family.where
    at = 0
    for family in structure.families:
        blocks = [] if family.is_loss else [("Jacobian", int(family.jac_pattern.sum()))]
        blocks.append(("Hessian", int(np.tril(family.hess_pattern).sum())))
        for what, width in blocks:
            block = np.asarray(models.sources[at : at + family.n * width]).reshape(family.n, width)
            at += block.size
            rows = np.flatnonzero(~np.isfinite(block).all(1)) if width else []
            if len(rows):
                return f"the {what} of {family.label(int(rows[0]))} is not finite", family.where
    return "the objective is not finite", ""
