"""A chain with its dense derivatives, and the recursion of section 4 with a place for every erratum."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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


def make_linear_quadratic() -> Chain:
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
