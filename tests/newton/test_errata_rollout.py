"""Errata to section 4, optimal control: nonlinear back-substitution (E18) and square roots (E22)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
import scipy.linalg

import gnewt
from helpers.control_chain import (
    WRONG,
    Backward,
    Chain,
    Combine,
    Quadratic,
    Stage,
    assert_newton,
    backward,
    combine,
    f,
    linear_forward,
    relative_error,
    riccati_step,
)
from helpers.oracle import flatten, inertia_of

# E18: nonlinear back-substitution


def nonlinear_forward(chain: Chain, b: Backward, eta: float) -> np.ndarray:
    """u = ū + η k + K(x_new - x_nom), with a rollout."""
    x, out = chain.x0, []
    for i in range(chain.n):
        out.append(chain.us[i] + eta * b.k[i] + b.gain[i] @ (x - chain.xs[i]))
        x = np.asarray(_advance(x, out[-1], chain.p))
    return np.array(out)


_advance = jax.jit(lambda x, u, p: f(x, u, *p))


def expected_change(b: Backward, eta: float) -> float:
    """E18: η Σ q_uᵀk + ½η² Σ kᵀQ_uu k."""
    first = sum(q.u @ k for q, k in zip(b.q, b.k, strict=True))
    second = sum(k @ q.uu @ k for q, k in zip(b.q, b.k, strict=True))
    return float(eta * first + 0.5 * eta**2 * second)


@pytest.mark.parametrize("eta", [0.1, 0.5, 1.0, 1.7])
def test_e18_expected_decrease_is_exact_for_a_linear_quadratic_problem(linear_quadratic, eta):
    """E18: the decrease is η Σ q_uᵀk + ½η² Σ kᵀQ_uu k, with k alone: not with δu = k + Kδx, not η Σ q_uᵀk."""
    c = linear_quadratic
    assert_newton(c)
    b = backward(c)
    actual = c.cost(nonlinear_forward(c, b, eta)) - c.cost(c.us)
    assert expected_change(b, eta) == pytest.approx(actual, rel=1e-10)
    # Dynamics are linear: the curve is the library's straight line.
    assert c.cost(c.us + eta * c.library_step) - c.cost(c.us) == pytest.approx(actual, rel=1e-10)
    du = linear_forward(c, b)
    with_feedback = sum(eta * q.u @ d + 0.5 * eta**2 * d @ q.uu @ d for q, d in zip(b.q, du, strict=True))
    assert abs(with_feedback / actual - 1) > WRONG
    first_order = eta * sum(q.u @ k for q, k in zip(b.q, b.k, strict=True))
    assert abs(first_order / actual - 1) > WRONG
    # Feedback on the step length too, δu = η(k + K(x_new - x_nom)), is another curve.
    x, us = c.x0, []
    for i in range(c.n):
        us.append(c.us[i] + eta * (b.k[i] + b.gain[i] @ (x - c.xs[i])))
        x = np.asarray(_advance(x, us[-1], c.p))
    assert eta == 1.0 or abs((c.cost(np.array(us)) - c.cost(c.us)) / actual - 1) > 1e-5


def test_e18_expected_decrease_along_the_curve_is_second_order_accurate(chain):
    """E18: the search path is a curve. Its expected decrease is right to O(η³); the one of the straight line
    u + ηδu, η gᵀδu + ½η² δuᵀHδu, describes the curve to O(η²) only."""
    b = backward(chain, duals=lambda i, v_x: v_x)
    du = linear_forward(chain, b).ravel()
    etas = np.array([0.02, 0.01, 0.005])
    actual = np.array([chain.cost(nonlinear_forward(chain, b, eta)) - chain.cost(chain.us) for eta in etas])
    curve = np.abs([expected_change(b, eta) for eta in etas] - actual)
    line = np.abs(etas * (chain.totals[0] @ du) + 0.5 * etas**2 * (du @ chain.hessian @ du) - actual)
    rate = lambda error: np.log2(error[:-1] / error[1:])  # noqa: E731
    assert np.all(rate(curve) > 2.8)
    assert np.all(rate(line) < 2.2)
    assert np.all(line > 5 * curve)


def later_unknowns(factor: gnewt.Factor, input_slots: np.ndarray) -> np.ndarray:
    """Unknowns in the bag of an input that are eliminated after it: what its policy depends on."""
    plan = factor.plan
    (front,) = {i for i in range(plan.num_fronts) if np.isin(plan.eliminated(i), input_slots).any()}
    position = np.argsort(plan.order)[plan.vertex_of_slot]
    mine = plan.eliminated(front)
    after = mine[position[plan.slot_of_unknown(mine)] > position[input_slots].max()]
    return np.concatenate([after, plan.separator(front)])


def test_e18_a_causal_order_keeps_descendants_out_of_the_separators(chain):
    """E18: nonlinear back-substitution needs separators of non-descendants. Causal orders have them, others not."""
    g = chain.graph
    num_slots = g.structure().num_slots

    def descends(order: object) -> list[bool]:
        factor = gnewt.factorize(g, order=order)(list(chain.us))
        out = []
        for i, u in enumerate(g.inputs):
            after = later_unknowns(factor, g.slots(u))
            descendants = np.concatenate([g.slots(x).ravel() for x in g.nodes[i:]])
            out.append(bool(np.isin(after, descendants).any() or np.any(after >= num_slots)))
        return out

    assert not any(descends("causal"))
    forward_in_time = [v for pair in zip(g.inputs, g.nodes, strict=True) for v in pair]
    assert any(descends(forward_in_time))


# E22: square roots


def test_e22_v_xx_may_be_indefinite_although_h_is_positive_definite(linear_quadratic):
    """E22: a Cholesky (square-root) form of the recursion fails on a problem with H ≻ 0; LDLᵀ does not."""
    chain = linear_quadratic
    b = backward(chain)
    indefinite = [v for v in b.v_xx if inertia_of(v)[0] > 0 and inertia_of(v)[1] > 0]
    assert indefinite and all(inertia_of(q.uu)[1:] == (0, 0) for q in b.q)
    for v_xx in indefinite:
        with pytest.raises(np.linalg.LinAlgError):
            np.linalg.cholesky(v_xx)

    def with_root(root: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Combine:
        """Form ∂fᵀ ∂²V ∂f from factors L D Lᵀ of ∂²V."""

        def combined(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
            lower, d = root(v_xx)
            return combine(s, hz, v_x, lower @ d @ lower.T)

        return combined

    square_root = with_root(lambda v: (np.linalg.cholesky(v), np.eye(len(v))))
    ldl = with_root(lambda v: scipy.linalg.ldl(v)[:2])
    with pytest.raises(np.linalg.LinAlgError):
        riccati_step(chain, combine=square_root)
    assert relative_error(riccati_step(chain, combine=ldl), chain.newton) < 1e-10
    step, info = gnewt.newton_step(chain.graph, order="causal", full_output=True)(list(chain.us))
    assert info.status == "ok" and info.inertia == (chain.us.size, 0, 0)
    assert relative_error(flatten(step), chain.newton.ravel()) < 1e-10


def test_e22_square_roots_suit_the_gauss_newton_variant(chain):
    """E22: with convex losses and λ = 0 in the Hessian every V_xx has a Cholesky factor."""
    for v_xx in backward(chain, duals=lambda i, v_x: np.zeros_like(v_x)).v_xx:
        root = np.linalg.cholesky(v_xx)
        assert relative_error(root @ root.T, v_xx) < 1e-12
