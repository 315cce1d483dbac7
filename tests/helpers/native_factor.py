"""An elimination by the native engine on the host, with the interface of `ReferenceFactor`."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Plan
from gnewt.kkt import EliminationStatus
from gnewt.kkt.engines.native.engine import Info, Mode, Solved, factor_solve, solve
from gnewt.kkt.engines.native.packing import NativeLayout, lay_out_native


@dataclasses.dataclass(frozen=True, eq=False)
class NativeFactor:
    """The numbers of an elimination of K."""

    sources: Array
    layout: NativeLayout
    solved: Solved

    @property
    def status(self) -> str:
        return EliminationStatus(int(self.solved.status)).text

    @property
    def mode(self) -> Mode:
        return Mode(int(self.solved.info[Info.MODE]))

    @property
    def inertia(self) -> tuple[int, ...]:
        """(n₊, n₋, n₀) of H + μI."""
        return tuple(np.asarray(self.solved.inertia).tolist())

    @property
    def num_delayed(self) -> int:
        return int(self.solved.num_delayed)

    @property
    def null(self) -> np.ndarray:
        """Unknowns for which no pivot above rounding was found."""
        return np.flatnonzero(np.asarray(self.solved.null))

    @property
    def logdet(self) -> float:
        """log|det(H + μI)|; -inf if singular."""
        return float(self.solved.logdet)

    @property
    def smallest_pivot(self) -> float:
        """Smallest |pivot|: of the inputs alone where the mode is causal, of all unknowns otherwise."""
        return float(self.solved.smallest_pivot)

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return H⁻¹ b for b[N] or b[N, columns]; null unknowns are set to zero."""
        columns = jnp.asarray(np.reshape(b, (len(b), -1)), self.sources.dtype)
        z = solve(self.layout, self.sources, self.solved, columns)
        return np.asarray(z, np.float64).reshape(b.shape)


def factorize_native(plan: Plan, sources: np.ndarray | Array, shift: float = 0.0) -> NativeFactor:
    """Eliminate K + diag(μ on inputs) with the native engine."""
    sources = jnp.asarray(sources)
    layout = lay_out_native(plan, len(sources))
    zero = jnp.zeros((plan.num_inputs, 1), sources.dtype)
    return NativeFactor(sources, layout, factor_solve(layout, sources, shift, zero))
