"""The square-root form against exact rational arithmetic, on a chain whose weights differ by many orders."""

from __future__ import annotations

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control
from helpers.systems import cartpole


def exact_gains(a: np.ndarray, b: np.ndarray, weight: float, effort: float, horizon: int) -> np.ndarray:
    """Riccati's recursion for one control, in rational numbers."""
    n = len(a)
    fa, fb = [[Fraction(float(v)) for v in row] for row in a], [Fraction(float(v)) for v in b[:, 0]]
    vv = [[Fraction(weight) * (i == j) for j in range(n)] for i in range(n)]
    out = []
    for _ in range(horizon):
        vb = [sum(vv[i][j] * fb[j] for j in range(n)) for i in range(n)]
        quu = Fraction(effort) + sum(fb[i] * vb[i] for i in range(n))
        qux = [sum(vb[i] * fa[i][j] for i in range(n)) for j in range(n)]
        k = [-q / quu for q in qux]
        out.append([float(v) for v in k])
        va = [[sum(vv[i][m] * fa[m][j] for m in range(n)) for j in range(n)] for i in range(n)]
        vv = [
            [sum(fa[m][i] * va[m][j] for m in range(n)) + qux[i] * k[j] for j in range(n)] for i in range(n)
        ]
    return np.array(out[::-1])


def errors(weight: float, effort: float, horizon: int = 8) -> tuple[float, float]:
    """Relative errors of the gains: plain, square root."""
    a, b = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.005], [0.1]])
    problem = control.Problem(
        lambda x, u: jnp.asarray(a) @ x + jnp.asarray(b) @ u,
        lambda x, u: 0.5 * effort * jnp.sum(u**2),
        lambda x: 0.5 * weight * jnp.sum(x**2),
        jnp.array([1.0, 0.0]),
        horizon,
    )
    exact = exact_gains(a, b, weight, effort, horizon)
    out = []
    for square_root in (False, True):
        res = control.solve(problem, jnp.zeros((horizon, 1)), "ilqr", max_steps=0, square_root=square_root)
        out.append(float(np.max(np.abs(res.gains[:, 0] - exact) / np.abs(exact).max(1, keepdims=True))))
    return out[0], out[1]


def test_accuracy_on_an_ill_conditioned_chain() -> None:
    plain, root = errors(2.0**40, 2.0**-10)
    assert plain > 1e-6, "the chain is not hard enough to tell the two apart"
    assert root < 1e-13
    plain, root = errors(1.0, 1.0)
    assert max(plain, root) < 1e-13


@pytest.mark.slow
def test_both_forms_take_the_same_steps() -> None:
    problem = control.Problem(*cartpole(), 15)
    us = jnp.full((15, 1), 0.1)
    plain, root = (
        control.solve(problem, us, "ilqr", max_steps=4, square_root=form) for form in (False, True)
    )
    assert np.allclose(plain.us, root.us, atol=1e-8)
    assert np.allclose(plain.gains, root.gains, rtol=1e-6, atol=1e-8)
    assert np.allclose(plain.value_hessian, root.value_hessian, rtol=1e-6, atol=1e-6)


def test_other_methods_have_no_square_root() -> None:
    problem = control.Problem(*cartpole(), 4)
    with pytest.raises(gnewt.PlanError, match="semidefinite"):
        control.solve(problem, jnp.zeros((4, 1)), "ddp", square_root=True)
