"""What one step of a causal elimination does with its inputs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.kkt.causal.front import Algebra, HessianAlgebra, RootAlgebra, minimise_over


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


ALGEBRAS = [HessianAlgebra(jnp.asarray(0.2), keep_shift=False, definite=True), RootAlgebra(jnp.asarray(0.2))]


def front_of(algebra: Algebra, size: int) -> tuple[np.ndarray, jnp.ndarray]:
    """∂²V of three losses, as it is and as the algebra writes it; the last slot is in none of them."""
    rng = np.random.default_rng(size)
    whole, losses = np.zeros((size, size)), []
    for _ in range(3):
        places, root = rng.choice(size - 1, 3, replace=False), rng.normal(size=(3, 3))
        whole[np.ix_(places, places)] += root.T @ root
        losses.append((algebra.losses(jnp.asarray(root.T @ root)[None]), places))
    joined = algebra.join(losses, size)
    assert joined is not None
    return whole, algebra.widen(jnp.zeros((size - 2, size - 2)), 2, joined[0])


@pytest.mark.parametrize("algebra", ALGEBRAS, ids=["hessian", "root"])
def test_front_steps_are_those_of_dense_matrices(algebra: Algebra) -> None:
    """Minimisation leaves the value of the policy, substitution V(J s, s); both in either algebra."""
    size, mine = 7, np.array([1, 4])
    rest = np.setdiff1d(np.arange(size), mine)
    whole, matrix = front_of(algebra, size)
    rng = np.random.default_rng(1)
    qu, jacobian = rng.normal(size=2), rng.normal(size=(2, 5))
    quu, qus, qss = whole[np.ix_(mine, mine)], whole[np.ix_(mine, rest)], whole[np.ix_(rest, rest)]

    policy, left, push = algebra.minimise(matrix, (mine, rest), jnp.asarray(qu))
    gain, k = -np.linalg.solve(quu + 0.2 * np.eye(2), qus), -np.linalg.solve(quu + 0.2 * np.eye(2), qu)
    value = qss + gain.T @ quu @ gain + gain.T @ qus + qus.T @ gain
    assert np.allclose(policy.gain, gain) and np.allclose(policy.k, k)
    assert np.isclose(policy.slope, qu @ k) and np.isclose(policy.curve, k @ quu @ k)
    assert np.allclose(algebra.hessian(left), value)
    assert np.allclose(push, gain.T @ (quu @ k + qu) + qus.T @ k)

    left = algebra.substitute(matrix, (mine, rest), jnp.asarray(jacobian), coupled=True)
    both = np.zeros((size, 5))
    both[mine], both[rest] = jacobian, np.eye(5)
    assert np.allclose(algebra.hessian(left), both.T @ whole @ both)
