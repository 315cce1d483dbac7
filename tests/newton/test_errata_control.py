"""Errata to section 4, optimal control: E12-E18 and E22.

The corrected recursions are written out in NumPy and compared with `gnewt.newton_step` and with derivatives
that JAX takes of the objective as a plain function. Each printed formula is then evaluated in the place of the
corrected one, and asserted to be clearly wrong.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import gnewt
from helpers.oracle import flatten, inertia_of

WRONG = 1e-3
"""Relative error from which a formula counts as clearly wrong; the corrected ones reach 1e-10."""


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# A chain x_{i+1} ← f(x_i, u_i), losses l_i(x_i, u_i) and l_n(x_n)


class Params(NamedTuple):
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    bend: np.ndarray
    """Scale of the nonlinear terms; 0 makes the problem linear-quadratic."""
    cross: np.ndarray
    weight: np.ndarray
    """Of each state in l_i."""
    final: np.ndarray
    """Hessian of l_n where bend = 0."""
    slope: np.ndarray
    """Gradient of l_n at 0."""


def f(x: jax.Array, u: jax.Array, *p: jax.Array) -> jax.Array:
    q = Params(*p)
    z = q.a @ x + q.b @ u
    return 0.6 * x + 0.4 * z + q.bend * (0.5 * jnp.sin(z) + 0.3 * x * jnp.roll(x, 1) + x * (q.c @ u))


def stage(x: jax.Array, u: jax.Array, *p: jax.Array) -> jax.Array:
    q = Params(*p)
    return 0.5 * x @ (q.weight * x) + u @ u + x @ q.cross @ u + 0.1 * q.bend * (jnp.sum(x**4) + jnp.sum(u**4))


def last(x: jax.Array, *p: jax.Array) -> jax.Array:
    q = Params(*p)
    return 0.5 * x @ q.final @ x + q.slope @ x + 0.1 * q.bend * jnp.sum(x**4)


class Stage(NamedTuple):
    """Local derivatives of one stage; ∂_a f is the Jacobian, [nx, na]."""

    f_x: np.ndarray
    f_u: np.ndarray
    l_x: np.ndarray
    l_u: np.ndarray
    l_zz: np.ndarray
    """∂² l over (x, u)."""
    f_zz: np.ndarray
    """∂² f over (x, u), [nx, nx + nu, nx + nu]."""


def rollout(x0: jax.Array, us: jax.Array, p: Params, eps: jax.Array) -> jax.Array:
    """States x_0 … x_n; eps_i perturbs x_{i+1}."""

    def step(x: jax.Array, ue: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y = f(x, ue[0], *p) + ue[1]
        return y, y

    return jnp.concatenate([x0[None], jax.lax.scan(step, x0, (us, eps))[1]])


def objective(x0: jax.Array, us: jax.Array, p: Params, eps: jax.Array) -> jax.Array:
    xs = rollout(x0, us, p, eps)
    return jnp.sum(jax.vmap(lambda x, u: stage(x, u, *p))(xs[:-1], us)) + last(xs[-1], *p)


evaluate = jax.jit(objective)


@jax.jit
def examine(x0: jax.Array, us: jax.Array, p: Params) -> dict[str, Any]:
    """All that JAX has to say about a chain, without gnewt."""
    nx, eps = len(x0), jnp.zeros((len(us), len(x0)))
    xs = rollout(x0, us, p, eps)

    def local(x: jax.Array, u: jax.Array) -> Stage:
        def both(z: jax.Array) -> jax.Array:
            return jnp.append(f(z[:nx], z[nx:], *p), stage(z[:nx], z[nx:], *p))

        z = jnp.concatenate([x, u])
        first, second = jax.jacfwd(both)(z), jax.jacfwd(jax.jacfwd(both))(z)
        return Stage(
            first[:-1, :nx], first[:-1, nx:], first[-1, :nx], first[-1, nx:], second[-1], second[:-1]
        )

    return {
        "xs": xs,
        "stages": jax.vmap(local)(xs[:-1], us),
        "end": (jax.grad(last)(xs[-1], *p), jax.hessian(last)(xs[-1], *p)),
        "totals": jax.grad(objective, (1, 3))(x0, us, p, eps),
        "hessian": jax.hessian(objective, 1)(x0, us, p, eps),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """A problem and its iterate."""

    x0: np.ndarray
    us: np.ndarray
    p: Params

    @property
    def n(self) -> int:
        return len(self.us)

    @property
    def nx(self) -> int:
        return len(self.x0)

    @property
    def no_eps(self) -> np.ndarray:
        return np.zeros((self.n, self.nx))

    def cost(self, us: np.ndarray) -> float:
        return float(evaluate(self.x0, us, self.p, self.no_eps))

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        return jax.tree_util.tree_map(np.asarray, examine(self.x0, self.us, self.p))

    @property
    def xs(self) -> np.ndarray:
        return self._known["xs"]

    @functools.cached_property
    def stages(self) -> list[Stage]:
        return [Stage(*[a[i] for a in self._known["stages"]]) for i in range(self.n)]

    @property
    def end(self) -> tuple[np.ndarray, np.ndarray]:
        """∂l_n and ∂²l_n."""
        return self._known["end"]

    @property
    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """∂_u J, and ∂_{x_i} J for i = 1 … n."""
        g, lam = self._known["totals"]
        return g.ravel(), lam

    @functools.cached_property
    def dj_dx(self) -> np.ndarray:
        """∂_{x_i} J for i = 0 … n."""
        s, lam = self.stages[0], self.totals[1]
        return np.concatenate([[s.l_x + s.f_x.T @ lam[0]], lam])

    @property
    def hessian(self) -> np.ndarray:
        return self._known["hessian"].reshape(self.us.size, self.us.size)

    @functools.cached_property
    def newton(self) -> np.ndarray:
        """-H⁻¹g from the dense Hessian, [n, nu]."""
        return -np.linalg.solve(self.hessian, self.totals[0]).reshape(self.us.shape)

    @functools.cached_property
    def graph(self) -> gnewt.Graph:
        g = gnewt.Graph()
        u = [g.input(self.us[i].shape, name=f"u{i}") for i in range(self.n)]
        p = [g.constant(q) for q in self.p]
        x = g.constant(self.x0)
        for i in range(self.n):
            g.loss(stage, x, u[i], *p)
            x = g.node(f, x, u[i], *p, name=f"x{i + 1}")
        g.loss(last, x, *p)
        return g

    @functools.cached_property
    def library_step(self) -> np.ndarray:
        return flatten(gnewt.newton_step(self.graph)(list(self.us))).reshape(self.us.shape)


def make_chain(nx: int = 3, nu: int = 2, n: int = 6, seed: int = 0, **changes: object) -> Chain:
    rng = np.random.default_rng(seed)
    p = Params(
        a=rng.normal(size=(nx, nx)),
        b=rng.normal(size=(nx, nu)),
        c=0.5 * rng.normal(size=(nx, nu)),
        bend=np.array(1.0),
        cross=0.3 * rng.normal(size=(nx, nu)),
        weight=np.ones(nx),
        final=np.eye(nx),
        slope=rng.normal(size=nx),
    )
    p = p._replace(**{k: np.asarray(v, float) for k, v in changes.items()})
    return Chain(0.5 * rng.normal(size=nx), 0.3 * rng.normal(size=(n, nu)), p)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return make_chain()


@pytest.fixture(scope="module")
def square() -> Chain:
    """nx = nu, so that the printed products, which lack transposes, have fitting shapes."""
    return make_chain(nx=2, nu=2, n=3)


@pytest.fixture(scope="module")
def scalar() -> Chain:
    """nx = 1, so that ∂²V fits in the place of ∂V."""
    return make_chain(nx=1, nu=1, n=3)


@pytest.fixture(scope="module")
def linear_quadratic() -> Chain:
    """Linear-quadratic, H ≻ 0, without curvature at the end (E17) and with some that is negative before it (E22)."""
    chain = make_chain(bend=0.0, weight=np.array([0.4, -0.2, 0.4]), final=np.zeros((3, 3)))
    assert inertia_of(chain.hessian) == (chain.us.size, 0, 0)
    return chain


# The recursion, with a place for every erratum


class Quadratic(NamedTuple):
    """Q and q of one stage."""

    xx: np.ndarray
    ux: np.ndarray
    uu: np.ndarray
    x: np.ndarray
    u: np.ndarray


class Backward(NamedTuple):
    q: list[Quadratic]
    k: list[np.ndarray]
    gain: list[np.ndarray]
    v_x: list[np.ndarray]
    """∂V_0 … ∂V_n."""
    v_xx: list[np.ndarray]


Duals = Callable[[int, np.ndarray], np.ndarray]
"""(i, ∂V_{i+1}) ↦ λ_i."""
Combine = Callable[[Stage, np.ndarray, np.ndarray, np.ndarray], Quadratic]
Eliminate = Callable[[Quadratic], tuple[np.ndarray, np.ndarray]]


def combine(s: Stage, hz: np.ndarray, v_x: np.ndarray, v_xx: np.ndarray) -> Quadratic:
    """E13: Q_ab = ∂²_ab ℋ + ∂_a fᵀ ∂²V ∂_b f and q_a = ∂_a l + ∂_a fᵀ ∂V."""
    nx = len(s.f_x)
    return Quadratic(
        xx=hz[:nx, :nx] + s.f_x.T @ v_xx @ s.f_x,
        ux=hz[nx:, :nx] + s.f_u.T @ v_xx @ s.f_x,
        uu=hz[nx:, nx:] + s.f_u.T @ v_xx @ s.f_u,
        x=s.l_x + s.f_x.T @ v_x,
        u=s.l_u + s.f_u.T @ v_x,
    )


def eliminate(q: Quadratic) -> tuple[np.ndarray, np.ndarray]:
    """E14: ∂V = q_x - Q_uxᵀ Q_uu⁻¹ q_u and ∂²V = Q_xx - Q_uxᵀ Q_uu⁻¹ Q_ux."""
    return q.x - q.ux.T @ np.linalg.solve(q.uu, q.u), q.xx - q.ux.T @ np.linalg.solve(q.uu, q.ux)


def backward(
    chain: Chain, duals: Duals | None = None, combine: Combine = combine, eliminate: Eliminate = eliminate
) -> Backward:
    """The backward pass; by default that of stagewise Newton, λ_i = ∂_{x_{i+1}} J (E16)."""
    duals = duals or (lambda i, v_x: chain.dj_dx[i + 1])
    v_x, v_xx = [chain.end[0]], [chain.end[1]]
    qs: list[Quadratic] = []
    for i in reversed(range(chain.n)):
        s = chain.stages[i]
        hz = s.l_zz + np.tensordot(duals(i, v_x[0]), s.f_zz, 1)
        q = combine(s, hz, v_x[0], v_xx[0])
        qs.insert(0, q)
        first, second = eliminate(q)
        v_x.insert(0, first)
        v_xx.insert(0, second)
    k = [-np.linalg.solve(q.uu, q.u) for q in qs]
    gain = [-np.linalg.solve(q.uu, q.ux) for q in qs]
    return Backward(qs, k, gain, v_x, v_xx)


def linear_forward(chain: Chain, b: Backward) -> np.ndarray:
    """δu = k + K δx with δx_{i+1} = ∂_x f δx + ∂_u f δu."""
    dx, out = np.zeros(chain.nx), []
    for s, k, gain in zip(chain.stages, b.k, b.gain, strict=True):
        out.append(k + gain @ dx)
        dx = s.f_x @ dx + s.f_u @ out[-1]
    return np.array(out)


def riccati_step(chain: Chain, **parts: Callable) -> np.ndarray:
    return linear_forward(chain, backward(chain, **parts))


def assert_newton(chain: Chain, library: bool = True) -> None:
    """The corrected recursion, the library and the dense Hessian agree."""
    assert relative_error(riccati_step(chain), chain.newton) < 1e-10
    if library:
        assert relative_error(chain.library_step, chain.newton) < 1e-10


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
