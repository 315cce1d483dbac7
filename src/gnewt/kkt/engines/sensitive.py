"""Engines for ∂log|det K| / ∂K: eliminations that keep the duals, and selected inversion over all entries of K."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import OK, SINGULAR
from gnewt.kkt.engines.native.engine import Info, factor_solve
from gnewt.kkt.engines.native.inverse import sensitivities, variances
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.kkt.engines.reference.engine import factorize
from gnewt.kkt.needed import where_needed


@runtime_checkable
class Sensitive(Protocol):
    """An engine with a plan whose fronts hold duals."""

    def sensitivities(
        self, sources: Float[Array, " nnz"], shift: Float[Array, ""]
    ) -> tuple[Float[Array, " nnz"], Float[Array, " slots"], Int[Array, ""]]:
        """(∂log|det K| / ∂sources, the diagonal of K⁻¹ on all slots, status). Traceable; works under vmap."""
        ...


class HostSensitive:
    """By the reference engine, called back on the host."""

    def __init__(self, plan: Plan, eps: float) -> None:
        self._plan, self._eps = plan, eps

    def sensitivities(self, sources: Array, shift: Array) -> tuple[Array, Array, Array]:
        """See `Sensitive`."""
        return self.where(jnp.asarray(True), sources, shift)

    def where(self, needed: Array, sources: Array, shift: Array) -> tuple[Array, Array, Array]:
        """The same where it is needed, else zeros."""
        return where_needed(self._call, needed, needed, sources, jnp.asarray(shift, sources.dtype))

    def _call(self, needed: Array, sources: Array, shift: Array) -> tuple[Array, Array, Array]:
        shapes = (
            jax.ShapeDtypeStruct(sources.shape, sources.dtype),
            jax.ShapeDtypeStruct((self._plan.num_slots,), sources.dtype),
            jax.ShapeDtypeStruct((), jnp.int32),
        )

        def run(needed: Array, sources: Array, shift: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            found = [np.zeros(s.shape, s.dtype) for s in shapes]
            if needed:
                with np.errstate(all="ignore"):
                    found = self._run(np.asarray(sources), float(shift))
            first, second, status = (np.asarray(v, s.dtype) for v, s in zip(found, shapes, strict=True))
            return first, second, status

        return jax.pure_callback(run, shapes, needed, sources, shift, vmap_method="sequential")

    def _run(self, sources: np.ndarray, shift: float) -> list[np.ndarray]:
        plan = self._plan
        factor = factorize(plan, sources, shift, self._eps)
        position = np.empty(plan.num_unknowns, np.int64)
        entries = np.empty(plan.num_entries)
        variance = np.empty(plan.num_slots)
        rows, cols = plan.entry_unknowns
        units = np.where(np.arange(plan.num_unknowns) < plan.num_slots, factor.scale, 1 / factor.scale)
        for front, clique, inverse in factor.inverse_blocks():
            position[clique] = np.arange(len(clique))
            mine = slice(plan.entry_ptr[front], plan.entry_ptr[front + 1])
            row, col = rows[mine], cols[mine]
            entries[mine] = inverse[position[row], position[col]] * units[row] * units[col]
            slots = clique[clique < plan.num_slots]
            variance[slots] = np.diagonal(inverse)[position[slots]] * units[slots] ** 2
        weight = np.where(rows == cols, 1.0, 2.0)
        found = np.zeros(len(sources))
        np.add.at(found, plan.source, (weight * entries)[plan.target])
        return [found, variance, np.asarray(SINGULAR if len(factor.null) else OK)]


class NativeSensitive:
    """By the C++ library; by the reference engine where a factor outgrows its buffers."""

    def __init__(self, plan: Plan, num_sources: int, eps: float) -> None:
        self._layout = lay_out_native(plan, num_sources)
        self._host = HostSensitive(plan, eps)

    def sensitivities(self, sources: Array, shift: Array) -> tuple[Array, Array, Array]:
        """See `Sensitive`."""
        none = jnp.zeros((self._layout.num_inputs, 0), sources.dtype)
        done = factor_solve(self._layout, sources, shift, none)
        factor = (done.factor, done.places, done.info, done.real)
        found = sensitivities(self._layout.array, sources, factor)
        slots = variances(self._layout, self._layout.array, sources, factor)
        lost = (done.info[..., Info.KEPT] == 0) & (done.status == OK)
        told = self._host.where(lost, sources, shift)
        return jnp.where(lost, told[0], found), jnp.where(lost, told[1], slots), done.status


def prepare_sensitive(name: str, plan: Plan, num_sources: int, eps: float) -> Sensitive:
    """Prepare a plan whose fronts hold duals for an engine. Once per plan."""
    return NativeSensitive(plan, num_sources, eps) if name == "native" else HostSensitive(plan, eps)
