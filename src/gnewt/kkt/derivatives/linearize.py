"""Linearise: values, duals, and local derivatives of every family, batched. Once per iterate.

λ_v = ∂_v f by the reverse sweep over local Jacobians, in reverse topological order (E9):

    λ_v = Σ_s ∂_v l_s + Σ_{d ∈ ch(v)} (∂_v Φ_d)ᵀ λ_d

and the KKT system is taken in the δλ form (E10), whose right-hand side is -g on the inputs and zero
elsewhere. Hessians of λ·Φ are forward-over-reverse; no third-order tensor is ever formed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Data, Maps, Structure, apply_family, forward
from gnewt.jaxprs.compat import DType
from gnewt.kkt.derivatives.adjoints import backwards, pull_back, sweep_duals
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import Jacobian, local_derivatives
from gnewt.kkt.derivatives.machine import TARGETS, available
from gnewt.kkt.derivatives.native import native_models
from gnewt.kkt.derivatives.paths import backwards_at_once, rounds_at_once

if TYPE_CHECKING:
    Numbers: TypeAlias = Array
else:
    Numbers = Array | np.ndarray
"""On the host, loops hold numbers of NumPy. To type checkers they are JAX's."""

CURVATURES = ("exact", "gauss_newton")
"""`gauss_newton` drops λ·∂²Φ and keeps the exact Hessians of the losses (the generalised Gauss-Newton matrix)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LocalModels:
    """The numbers of one iterate: f, slots, total derivatives, and the structural nonzeros of K."""

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    value: Float[Numbers, "*batch"]
    slots: Float[Numbers, "*batch S"]
    duals: Float[Numbers, "*batch S"]
    """∂f/∂s for every slot: the gradient on the inputs, λ on the others."""
    sources: Float[Numbers, "*batch nnz"]
    """Local Jacobians and Hessians at their structural nonzeros, in the order that plans expect."""


def linearize(
    structure: Structure,
    maps: Maps,
    data: Data,
    x: Float[Array, " N"],
    curvature: str = "exact",
    slots: Float[Array, " S"] | None = None,
    native: bool = False,
    lam: Float[Array, " S"] | None = None,
    at_once: bool = False,
    near: Float[Array, " S"] | None = None,
) -> LocalModels:
    """Compute the local models at x, or at slots that belong to x.

    Traceable; compile time does not depend on the number of instances.

    Args:
        native: whether the native library may be used, whose numbers JAX cannot differentiate further.
        lam: multipliers of the nodes, for slots that need not satisfy their equations; NaN for nodes that do, whose
            multipliers are swept. Hessians are taken with these, and `duals` is ∂l + Jᵀλ at every slot, the gradient
            of l + λᵀΦ.
        at_once: whether long recurrences are solved for all rounds at once (`paths.py`), for devices that do much at once.
        near: slots of a point nearby, which they then start from.
    """
    if slots is not None:
        s = slots
    elif at_once:
        s = forward(structure, maps, data, x, rounds_at_once(near))
    else:
        s = forward(structure, maps, data, x)
    if native and s.dtype.name in TARGETS and available():
        value, duals, sources = native_models(structure, maps, data, s, curvature, lam)
        return LocalModels(value, s, duals, sources)
    keeper = Keeper(s)
    local = [
        local_derivatives(structure, f, structure.layout.args[f].read(s, maps), data[f], keeper)
        for f in range(len(structure.families))
    ]
    value = jnp.zeros((), s.dtype)
    duals = jnp.zeros_like(s)
    jacobians: dict[int, Jacobian] = {}
    for f, family in enumerate(structure.families):
        if not family.is_loss:
            jacobians[f] = _in_precision(local[f].jacobian(), s.dtype)
            continue
        value = value + jnp.sum(local[f].values()).astype(s.dtype)
        if family.k and family.n:
            gradient = _in_precision(local[f].jacobian(), s.dtype)
            back = pull_back(family, gradient.rows, gradient.shared, jnp.ones((1, family.n), s.dtype))
            duals = structure.layout.args[f].add(duals, back, maps)
    if lam is None:
        duals = sweep_duals(structure, maps, jacobians, duals, backwards_at_once if at_once else backwards)
        used = duals
    else:
        duals, used = _pull_all(structure, maps, jacobians, duals, lam)
    sources = []
    for f, family in enumerate(structure.families):
        if not family.is_loss:
            sources.append(jacobians[f].rows.reshape(-1))
        count = int(np.tril(family.hess_pattern).sum())
        if count == 0:
            continue
        outs = structure.layout.outs[f]
        if outs is None:
            sources.append(local[f].hessian(None).T.reshape(-1))
        elif curvature == "gauss_newton":
            sources.append(jnp.zeros(family.n * count, s.dtype))
        else:
            sources.append(local[f].hessian(outs.read(used, maps)).T.reshape(-1))
    flat = jnp.concatenate([jnp.asarray(v, s.dtype) for v in sources]) if sources else jnp.zeros(0, s.dtype)
    return LocalModels(keeper.seal(value), s, duals, flat)


def _pull_all(
    structure: Structure, maps: Maps, jacobians: dict[int, Jacobian], duals: Array, lam: Array
) -> tuple[Array, Array]:
    """(duals + Jᵀλ for all nodes at once, λ), in as many rounds as nodes without a multiplier of their own depend on others."""

    def pull(lam: Array) -> Array:
        total = duals
        for f in structure.nodes:
            family, outs = structure.families[f], structure.layout.outs[f]
            if not family.k or not family.n or outs is None:
                continue
            back = pull_back(family, jacobians[f].rows, jacobians[f].shared, outs.read(lam, maps))
            total = structure.layout.args[f].add(total, back, maps)
        return total

    unknown = jnp.isnan(lam)

    def once(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total = pull(carry[0])
        new = jnp.where(unknown, total, carry[0])
        # NaN never settles: it is left to whoever looks at the numbers.
        return new, total, jnp.any((new != carry[0]) & ~jnp.isnan(new))

    begin = jnp.where(unknown, 0.0, lam)
    known, total, _ = jax.lax.while_loop(lambda c: c[2], once, once((begin, duals, jnp.asarray(True))))
    return total, known


def _in_precision(jacobian: Jacobian, dtype: DType) -> Jacobian:
    """Round to the precision of the slots: a function may compute in a higher one."""
    shared = {e: jnp.asarray(v, dtype) for e, v in jacobian.shared.items()}
    return Jacobian(jnp.asarray(jacobian.rows, dtype), shared)


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
        values = np.asarray(apply_family(family, models.slots[family.args].T, data[f]))
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
