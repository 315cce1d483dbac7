"""Samplers (blackjax, numpyro): where chains start, and the metric that they move in, from a Laplace approximation."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.flatten_util import ravel_pytree

from gnewt._typing import Array, PyTree
from gnewt.newton import Laplace


class SamplerStart(NamedTuple):
    """What a sampler of Hamiltonian kind is started with."""

    positions: PyTree
    """One draw of N(mode, H⁻¹) for each chain, along a leading axis; one draw without it where `chains` is 0."""
    inverse_mass_matrix: Array
    """[N]: the marginal variances, in the order of `ravel_pytree`."""

    @property
    def nuts(self) -> dict[str, object]:
        """Arguments of `blackjax.nuts` and `blackjax.hmc` beside the density; the step is 2.4·N^(-1/4) of a unit normal."""
        size = 1.2 * self.inverse_mass_matrix.shape[0] ** -0.25
        return {"step_size": size, "inverse_mass_matrix": self.inverse_mass_matrix}


def sampler_start(found: Laplace[PyTree], key: jax.Array, chains: int = 0) -> SamplerStart:
    """Draw starts from a Laplace approximation, with its marginal variances as the inverse of a mass matrix."""
    draws = found.sample(key, (chains,) if chains else ())
    return SamplerStart(draws, ravel_pytree(found.variances())[0])
