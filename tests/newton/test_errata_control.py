"""Errata to section 4, optimal control: E12-E17.

The corrected recursions are written out in NumPy and compared with `gnewt.newton_step` and with derivatives
that JAX takes of the objective as a plain function. Each printed formula is then evaluated in the place of the
corrected one, and asserted to be clearly wrong.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from helpers.control_chain import (
    WRONG,
    Chain,
    Duals,
    Quadratic,
    Stage,
    assert_newton,
    backward,
    combine,
    eliminate,
    f,
    last,
    make_chain,
    relative_error,
    riccati_step,
    rollout,
    stage,
)
from helpers.oracle import flatten


@pytest.fixture(scope="module")
def square() -> Chain:
    """nx = nu, so that the printed products, which lack transposes, have fitting shapes."""
    return make_chain(nx=2, nu=2, n=3)


@pytest.fixture(scope="module")
def scalar() -> Chain:
    """nx = 1, so that ∂²V fits in the place of ∂V."""
    return make_chain(nx=1, nu=1, n=3)


# E12-E15: the matrices of the LQR order


def minor(
    v_xx: np.ndarray, hz: np.ndarray, f_x: np.ndarray, f_u: np.ndarray, column: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """The principal minor over (x_n, x_{n-1}, u_{n-1}, λ_{n-1}); `column`: rows 2 and 3 of column 4."""
    nx, nz = len(v_xx), len(hz)
    nu = nz - nx
    return np.block(
        [
            [v_xx, np.zeros((nx, nz)), -np.eye(nx)],
            [np.zeros((nx, nx)), hz[:nx, :nx], hz[:nx, nx:], column[0]],
            [np.zeros((nu, nx)), hz[nx:, :nx], hz[nx:, nx:], column[1]],
            [-np.eye(nx), f_x, f_u, np.zeros((nx, nx))],
        ]
    )


def schur(k: np.ndarray, nx: int, nz: int) -> np.ndarray:
    """Eliminate the pair (x_n, λ_{n-1}): what is left on (x_{n-1}, u_{n-1})."""
    pair = np.r_[:nx, nx + nz : 2 * nx + nz]
    rest = np.arange(nx, nx + nz)
    return k[np.ix_(rest, rest)] - k[np.ix_(rest, pair)] @ np.linalg.solve(
        k[np.ix_(pair, pair)], k[np.ix_(pair, rest)]
    )


def test_e12_column_four_holds_transposed_jacobians(chain, square):
    """E12: column 4 of rows 2-3 is ∂_x fᵀ, ∂_u fᵀ, not ∂_x f, ∂_u f."""
    assert_newton(chain)
    nx, nu = chain.nx, chain.us.shape[1]
    s, v_xx, lam = chain.stages[-1], chain.end[1], chain.dj_dx[-1]

    def lagrangian(y: jax.Array) -> jax.Array:
        x_n, x, u, dual = jnp.split(y, [nx, 2 * nx, 2 * nx + nu])
        return last(x_n, *chain.p) + stage(x, u, *chain.p) + dual @ (f(x, u, *chain.p) - x_n)

    y = np.concatenate([chain.xs[-1], chain.xs[-2], chain.us[-1], lam])
    exact = np.asarray(jax.jit(jax.hessian(lagrangian))(y))
    hz = s.l_zz + np.tensordot(lam, s.f_zz, 1)
    assert relative_error(minor(v_xx, hz, s.f_x, s.f_u, (s.f_x.T, s.f_u.T)), exact) < 1e-12
    # Printed: rows 2-3 of column 4 do not even fit unless nx = nu; row 2 alone is wrong as well.
    with pytest.raises(ValueError, match="dimension"):
        minor(v_xx, hz, s.f_x, s.f_u, (s.f_x, s.f_u))
    assert relative_error(minor(v_xx, hz, s.f_x, s.f_u, (s.f_x, s.f_u.T)), exact) > WRONG

    assert_newton(square, library=False)
    s, v_xx, q = square.stages[-1], square.end[1], backward(square).q[-1]
    hz = s.l_zz + np.tensordot(square.dj_dx[-1], s.f_zz, 1)
    expected = np.block([[q.xx, q.ux.T], [q.ux, q.uu]])
    corrected = minor(v_xx, hz, s.f_x, s.f_u, (s.f_x.T, s.f_u.T))
    printed = minor(v_xx, hz, s.f_x, s.f_u, (s.f_x, s.f_u))
    assert relative_error(schur(corrected, square.nx, len(hz)), expected) < 1e-12
    assert relative_error(schur(printed, square.nx, len(hz)), expected) > WRONG


def printed_q(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
    """Printed: Q_ab = ∂²_ab ℋ + ∂_a f ∂²V ∂_b fᵀ."""
    nx = len(s.f_x)
    return combine(s, hz, v_x, v_xx)._replace(
        xx=hz[:nx, :nx] + s.f_x @ v_xx @ s.f_x.T,
        ux=hz[nx:, :nx] + s.f_u @ v_xx @ s.f_x.T,
        uu=hz[nx:, nx:] + s.f_u @ v_xx @ s.f_u.T,
    )


def gradient_layout(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
    """The printed formulas with ∂_a f read as the transposed Jacobian: Q comes right, but then q_a does not."""
    t = s._replace(f_x=s.f_x.T, f_u=s.f_u.T)
    q = printed_q(t, hz, v_x, v_xx)
    return q._replace(x=s.l_x + t.f_x.T @ v_x, u=s.l_u + t.f_u.T @ v_x)


def test_e13_transposes_of_q(chain, square):
    """E13: Q_ab = ∂²_ab ℋ + ∂_a fᵀ ∂²V ∂_b f; no one layout of ∂f makes both printed formulas right."""
    for c in (chain, square):
        assert_newton(c, library=c is chain)
    # Q and q are the derivatives of l + λ·f at second order plus V's quadratic form of ∂f·δ.
    b = backward(chain)
    s, nx = chain.stages[2], chain.nx
    jac = np.hstack([s.f_x, s.f_u])
    whole = s.l_zz + np.tensordot(chain.dj_dx[3], s.f_zz, 1) + jac.T @ b.v_xx[3] @ jac
    assert relative_error(np.block([[b.q[2].xx, b.q[2].ux.T], [b.q[2].ux, b.q[2].uu]]), whole) < 1e-12
    for printed in (printed_q, gradient_layout):
        with pytest.raises(ValueError):
            riccati_step(chain, combine=printed)
        assert relative_error(riccati_step(square, combine=printed), square.newton) > WRONG
    # Where shapes allow it in the rectangular chain, Q_xx alone is wrong already.

    def only_xx(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
        return combine(s, hz, v_x, v_xx)._replace(xx=hz[:nx, :nx] + s.f_x @ v_xx @ s.f_x.T)

    assert relative_error(riccati_step(chain, combine=only_xx), chain.newton) > WRONG


@pytest.mark.parametrize("which", ["both", "second", "first"])
def test_e14_the_riccati_signs_are_minus(chain, which: Literal["both", "second", "first"]):
    """E14: ∂²V = Q_xx - Q_uxᵀ Q_uu⁻¹ Q_ux, ∂V = q_x - Q_uxᵀ Q_uu⁻¹ q_u; plus is printed in both."""
    assert_newton(chain)

    def printed(q: Quadratic) -> tuple[np.ndarray, np.ndarray]:
        first, second = eliminate(q)
        plus_first = q.x + q.ux.T @ np.linalg.solve(q.uu, q.u)
        plus_second = q.xx + q.ux.T @ np.linalg.solve(q.uu, q.ux)
        return (first if which == "second" else plus_first), (second if which == "first" else plus_second)

    assert relative_error(riccati_step(chain, eliminate=printed), chain.newton) > WRONG
    # Eliminating u is minimising over it: check one stage against the minimum over u of its quadratic model.
    q = backward(chain).q[3]
    v_x, v_xx = eliminate(q)
    bad_x, bad_xx = printed(q)

    def model(dx: np.ndarray) -> float:
        du = -np.linalg.solve(q.uu, q.u + q.ux @ dx)
        return q.x @ dx + q.u @ du + 0.5 * dx @ q.xx @ dx + du @ q.ux @ dx + 0.5 * du @ q.uu @ du

    dx = np.array([0.3, -0.7, 0.5])
    change = model(dx) - model(np.zeros(3))
    assert v_x @ dx + 0.5 * dx @ v_xx @ dx == pytest.approx(change, rel=1e-10)
    assert bad_x @ dx + 0.5 * dx @ bad_xx @ dx != pytest.approx(change, rel=WRONG)


def test_e15_the_right_column_is_the_gradient_of_v(scalar, chain):
    """E15: the right column is -∂_x V_{n-1}; the printed -∂²_x V_{n-1} fits for nx = 1 only, and is wrong."""
    assert_newton(scalar, library=False)
    assert_newton(chain)

    def printed(q: Quadratic) -> tuple[np.ndarray, np.ndarray]:
        _, second = eliminate(q)
        return second[:, 0], second

    assert relative_error(riccati_step(scalar, eliminate=printed), scalar.newton) > WRONG
    assert backward(chain).v_x[0].shape == (chain.nx,) != backward(chain).v_xx[0].shape
    # With duals of V the column is a derivative: that of the cost under the feedback u = ū + K(x - x̄).
    b = backward(chain, duals=lambda i, v_x: v_x)

    def cost_to_go(x: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for i in range(4, chain.n):
            u = chain.us[i] + b.gain[i] @ (x - chain.xs[i])
            total = total + stage(x, u, *chain.p)
            x = f(x, u, *chain.p)
        return total + last(x, *chain.p)

    g, h = jax.jit(lambda x: (jax.grad(cost_to_go)(x), jax.hessian(cost_to_go)(x)))(chain.xs[4])
    assert relative_error(b.v_x[4], np.asarray(g)) < 1e-10
    assert relative_error(b.v_xx[4], np.asarray(h)) < 1e-10


# E16: the table of methods


def test_e16_stagewise_newton_takes_the_multiplier_of_the_next_state(chain):
    """E16: λ_i = ∂_{x_{i+1}} J; the table prints ∂_{x_i} J."""
    assert_newton(chain)
    assert relative_error(riccati_step(chain, duals=lambda i, v_x: chain.dj_dx[i]), chain.newton) > WRONG
    factor = gnewt.factorize(chain.graph)(list(chain.us))
    library_duals = np.asarray(factor.models.duals)[chain.us.size :].reshape(chain.n, chain.nx)
    assert relative_error(library_duals, chain.dj_dx[1:]) < 1e-12
    assert relative_error(library_duals, chain.dj_dx[:-1]) > WRONG


def test_e16_ddp_takes_the_gradient_of_the_next_value_function(chain):
    """E16: λ_i = ∂_x V_{i+1}(x_{i+1}); the table prints ∂V_{i+1} · ∂_x f."""
    i = 2

    def q_function(z: jax.Array, v_x: jax.Array, v_xx: jax.Array) -> jax.Array:
        """l + V_{i+1} ∘ f, V to second order: what DDP expands."""
        x, u = z[: chain.nx], z[chain.nx :]
        dx = f(x, u, *chain.p) - chain.xs[i + 1]
        return stage(x, u, *chain.p) + v_x @ dx + 0.5 * dx @ v_xx @ dx

    hessian = jax.jit(jax.hessian(q_function))

    def error(duals: Duals) -> float:
        b = backward(chain, duals=duals)
        exact = hessian(np.concatenate([chain.xs[i], chain.us[i]]), b.v_x[i + 1], b.v_xx[i + 1])
        return relative_error(np.block([[b.q[i].xx, b.q[i].ux.T], [b.q[i].ux, b.q[i].uu]]), np.asarray(exact))

    assert error(lambda i, v_x: v_x) < 1e-10
    assert error(lambda i, v_x: v_x @ chain.stages[i].f_x) > WRONG


def test_e16_ilqr_drops_the_multiplier_in_the_hessian_only(chain):
    """E16: λ_i = 0 in ∂²ℋ, while q still carries ∂V. With λ = 0 everywhere it is no Gauss-Newton step."""
    step = gnewt.newton_step(chain.graph, curvature="gauss_newton")(list(chain.us))
    library = flatten(step).reshape(chain.us.shape)
    zero = lambda i, v_x: np.zeros_like(v_x)  # noqa: E731
    ilqr = riccati_step(chain, duals=zero)
    assert relative_error(ilqr, library) < 1e-10

    def without_gradient(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
        return combine(s, hz, 0 * v_x, v_xx)

    assert relative_error(riccati_step(chain, duals=zero, combine=without_gradient), library) > WRONG
    # Independently: -(Sᵀ ∂²(Σl) S)⁻¹ g with S = ∂(x, u)/∂u by JAX.
    nz = chain.nx + chain.us.shape[1]
    sens = jax.jit(jax.jacfwd(rollout, 1))(chain.x0, chain.us, chain.p, chain.no_eps)
    sens = np.asarray(sens).reshape(chain.n + 1, chain.nx, -1)
    unit = np.eye(chain.us.size).reshape(*chain.us.shape, -1)
    gn = sens[-1].T @ chain.end[1] @ sens[-1]
    for i, s in enumerate(chain.stages):
        z = np.concatenate([sens[i], unit[i]])
        assert len(z) == nz
        gn = gn + z.T @ s.l_zz @ z
    assert relative_error(library.ravel(), -np.linalg.solve(gn, chain.totals[0])) < 1e-10


# E17: pairs


def test_e17_pairs_are_eliminated_without_division(linear_quadratic):
    """E17: [[L, -I], [-I, 0]]⁻¹ = [[0, -I], [-I, -L]]; the printed way through (∂²V)⁻¹ fails for ∂²V = 0."""
    chain = linear_quadratic
    assert not np.any(chain.end[1]) and np.any(chain.end[0])
    step, info = gnewt.newton_step(chain.graph, order="causal", full_output=True)(list(chain.us))
    assert info.status == "ok" and info.num_delayed == 0
    assert relative_error(flatten(step), chain.newton.ravel()) < 1e-10

    def by_pair(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
        """Eliminate (x_n, λ): Schur complement with the pair's inverse written down."""
        nx, nz = len(v_x), len(hz)
        zero, one = np.zeros((nx, nx)), np.eye(nx)
        inverse = np.block([[zero, -one], [-one, -v_xx]])
        pair = np.block([[v_xx, -one], [-one, zero]])
        np.testing.assert_allclose(pair @ inverse, np.eye(2 * nx), atol=1e-15)
        coupling = np.block([np.zeros((nz, nx)), np.hstack([s.f_x, s.f_u]).T])
        q = hz - coupling @ inverse @ coupling.T
        rhs = -np.concatenate([s.l_x, s.l_u]) - coupling @ inverse @ np.concatenate([-v_x, np.zeros(nx)])
        return Quadratic(q[:nx, :nx], q[nx:, :nx], q[nx:, nx:], -rhs[:nx], -rhs[nx:])

    def by_inverse(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
        """Printed: δx_n = (∂²V)⁻¹(-∂V + λ⁺), then λ⁺ with the pivot -(∂²V)⁻¹."""
        inverse = np.linalg.inv(v_xx)
        jac = np.hstack([s.f_x, s.f_u])
        nx = len(v_x)
        pivot = np.linalg.inv(-inverse)
        q = hz - jac.T @ pivot @ jac
        rhs = -np.concatenate([s.l_x, s.l_u]) - jac.T @ pivot @ (-inverse @ v_x)
        return Quadratic(q[:nx, :nx], q[nx:, :nx], q[nx:, nx:], -rhs[:nx], -rhs[nx:])

    assert relative_error(riccati_step(chain, combine=by_pair), chain.newton) < 1e-10
    with pytest.raises(np.linalg.LinAlgError):
        riccati_step(chain, combine=by_inverse)
    # Where ∂²V is invertible the two are the same; where it nearly is not, the printed one loses digits.
    regular = make_chain(bend=0.0)
    assert relative_error(riccati_step(regular, combine=by_inverse), regular.newton) < 1e-10
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    nearly = make_chain(bend=0.0, final=turn @ np.diag([1.0, 1e-13, 1e-13]) @ turn.T)
    assert relative_error(riccati_step(nearly, combine=by_pair), nearly.newton) < 1e-10
    assert relative_error(riccati_step(nearly, combine=by_inverse), nearly.newton) > 1e-7
