"""What one step of a causal elimination does with its inputs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.kkt.causal.front import minimise_over


@pytest.mark.parametrize("e", [1, 2, 4, 6, 7, 9])
def test_policies_solve_the_block(e: int) -> None:
    """Whether written out (few inputs) or by LAPACK (many)."""
    rng = np.random.default_rng(e)
    root = rng.normal(size=(e, e)) * 10.0 ** rng.uniform(-3, 3, size=(e, 1))
    quu, qus, qu = root @ root.T, rng.normal(size=(e, 3)), rng.normal(size=e)
    swept = minimise_over(
        jnp.asarray(quu), jnp.asarray(qus), jnp.asarray(qu), jnp.asarray(0.3), definite=True
    )
    matrix = quu + 0.3 * np.eye(e)
    assert np.allclose(matrix @ swept.k, -qu, atol=1e-8 * np.abs(matrix).max() * np.abs(swept.k).max())
    assert np.allclose(swept.gain, -np.linalg.solve(matrix, qus), rtol=1e-6, atol=1e-9)
    assert float(swept.pivot) > 0
    assert np.isclose(swept.slope, qu @ swept.k) and np.isclose(swept.curve, swept.k @ quu @ swept.k)


@pytest.mark.parametrize("e", [1, 3, 8])
def test_an_indefinite_block_is_told(e: int) -> None:
    rng = np.random.default_rng(e)
    vectors = np.linalg.qr(rng.normal(size=(e, e)))[0]
    values = np.linspace(1.0, 2.0, e)
    values[-1] = -0.5
    quu = vectors @ np.diag(values) @ vectors.T

    def pivot(shift: float) -> float:
        blocks = (jnp.asarray(quu), jnp.ones((e, 2)), jnp.ones(e), jnp.asarray(shift))
        return float(minimise_over(*blocks, definite=True).pivot)

    assert not pivot(0.4) > 0
    assert pivot(0.6) > 0
