"""Linear-quadratic problems on chains and trees, and the ways in which they are solved here.

    minimise  Σ_v ½ zᵥᵀ Wᵥ zᵥ + wᵥᵀ zᵥ   with  x_child = F_child z_v,   z_v = (x_v, u_v [, p])

Every solver gets the same F, W, w and the same first state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve

import gnewt


@dataclasses.dataclass(frozen=True)
class LQR:
    """The numbers of a chain of T stages."""

    x0: np.ndarray
    F: np.ndarray
    """[T, nx, nx + nu]: dynamics (A, B)."""
    W: np.ndarray
    """[T + 1, nx + nu, nx + nu]: weights; the last one counts for the state alone."""
    w: np.ndarray
    """[T + 1, nx + nu]: linear terms."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        T, nx, n = self.F.shape
        return T, nx, n - nx


def random_lqr(T: int, nx: int, nu: int, seed: int = 0) -> LQR:
    """Draw a chain with orthogonal dynamics, slightly damped, and positive definite weights."""
    rng = np.random.default_rng(seed)
    return LQR(
        rng.normal(size=nx),
        np.stack([random_dynamics(rng, nx, nu) for _ in range(T)]),
        np.stack([random_weight(rng, nx + nu) for _ in range(T + 1)]),
        rng.normal(size=(T + 1, nx + nu)),
    )


def random_dynamics(rng: np.random.Generator, nx: int, nu: int) -> np.ndarray:
    a = 0.95 * np.linalg.qr(rng.normal(size=(nx, nx)))[0]
    return np.concatenate([a, rng.normal(size=(nx, nu)) / nx**0.5], axis=1)


def random_weight(rng: np.random.Generator, n: int) -> np.ndarray:
    root = rng.normal(size=(n, n)) / n**0.5
    return root @ root.T + 0.1 * np.eye(n)


def dynamics(x: Any, u: Any, F: Any) -> Any:
    return F @ jnp.concatenate([x, u])


def stage_cost(x: Any, u: Any, W: Any, w: Any) -> Any:
    z = jnp.concatenate([x, u])
    return 0.5 * z @ W @ z + w @ z


def final_cost(x: Any, W: Any, w: Any) -> Any:
    return 0.5 * x @ W @ x + w @ x


def plain_cost(us: Any, data: tuple[Any, ...]) -> Any:
    """The objective as a plain JAX function of the inputs, given (x0, F, W, w)."""
    x0, F, W, w = data
    nx = len(x0)

    def stage(x: Any, now: Any) -> Any:
        u, F, W, w = now
        return dynamics(x, u, F), stage_cost(x, u, W, w)

    x, costs = jax.lax.scan(stage, x0, (us, F, W[:-1], w[:-1]))
    return costs.sum() + final_cost(x, W[-1, :nx, :nx], w[-1, :nx])


def chain_graph(lqr: LQR) -> gnewt.Graph:
    """The same objective as a graph by hand. Its families are dense, as those of any nonlinear dynamics are."""
    T, nx, nu = lqr.sizes
    g = gnewt.Graph()
    us = [g.input((nu,), name=f"u{t}") for t in range(T)]
    x = g.constant(lqr.x0)
    for t in range(T):
        g.loss(stage_cost, x, us[t], lqr.W[t], lqr.w[t])
        x = g.node(dynamics, x, us[t], lqr.F[t], name=f"x{t + 1}")
    g.loss(final_cost, x, lqr.W[T, :nx, :nx], lqr.w[T, :nx])
    return g


def shared_graph(T: int, nx: int, nu: int, num_shared: int, seed: int = 0) -> gnewt.Graph:
    """A chain whose dynamics and costs read a few parameters that all stages share."""
    rng = np.random.default_rng(seed)
    g = gnewt.Graph()
    us = [g.input((nu,), name=f"u{t}") for t in range(T)]
    shared = g.input((num_shared,), name="shared")

    def step(x: Any, u: Any, p: Any, F: Any) -> Any:
        return F @ jnp.concatenate([x, u, p])

    def cost(x: Any, u: Any, p: Any, W: Any, w: Any) -> Any:
        return stage_cost(x, jnp.concatenate([u, p]), W, w)

    x = g.constant(rng.normal(size=nx))
    for t in range(T):
        n = nx + nu + num_shared
        g.loss(cost, x, us[t], shared, random_weight(rng, n), rng.normal(size=n))
        x = g.node(step, x, us[t], shared, random_dynamics(rng, nx, nu + num_shared), name=f"x{t + 1}")
    g.loss(final_cost, x, random_weight(rng, nx), rng.normal(size=nx))
    return g


def tree_graph(depth: int, nx: int, nu: int, seed: int = 0) -> gnewt.Graph:
    """A scenario tree: one decision at each inner vertex, two outcomes of it, 2^depth leaves."""
    rng = np.random.default_rng(seed)
    g = gnewt.Graph()
    level = [g.constant(rng.normal(size=nx))]
    for d in range(depth):
        below = []
        for x in level:
            u = g.input((nu,))
            g.loss(stage_cost, x, u, random_weight(rng, nx + nu) / 2**d, rng.normal(size=nx + nu) / 2**d)
            below += [g.node(dynamics, x, u, random_dynamics(rng, nx, nu)) for _ in range(2)]
        level = below
    for x in level:
        g.loss(final_cost, x, random_weight(rng, nx) / 2**depth, rng.normal(size=nx) / 2**depth)
    return g


def grid_graph(side: int, block: int, seed: int = 0) -> gnewt.Graph:
    """A square grid of blocks, each coupled with its neighbours: like a Laplacian, shifted, positive definite."""
    rng = np.random.default_rng(seed)
    g = gnewt.Graph()
    x = [[g.input((block,)) for _ in range(side)] for _ in range(side)]

    def here(x: Any, w: Any) -> Any:
        return 0.05 * x @ x + w @ x

    def between(x: Any, y: Any, M: Any) -> Any:
        return 0.5 * jnp.sum((M @ (x - y)) ** 2)

    for i in range(side):
        for j in range(side):
            g.loss(here, x[i][j], rng.normal(size=block))
            for k, m in ((i + 1, j), (i, j + 1)):
                if k < side and m < side:
                    coupling = np.eye(block) + 0.3 * rng.normal(size=(block, block))
                    g.loss(between, x[i][j], x[k][m], coupling)
    return g


@jax.jit
def riccati_scan(x: Any, us: Any, gradient: Any, F: Any, W: Any) -> Any:
    """The Newton step of the chain in JAX: backward Riccati recursion and forward sweep, each a `lax.scan`.

    `x` is not read: the recursion works on differences. `gradient` are the derivatives of the stage costs.
    """
    nx = F.shape[1]

    def backward(carry: Any, now: Any) -> Any:
        V, v = carry
        F, W, w = now
        Q = W + F.T @ (V @ F)
        q = w + F.T @ v
        factor = cho_factor(Q[nx:, nx:], lower=True)
        gains = cho_solve(factor, jnp.concatenate([Q[nx:, :nx], q[nx:, None]], axis=1))
        K, k = gains[:, :nx], gains[:, nx]
        return (Q[:nx, :nx] - Q[:nx, nx:] @ K, q[:nx] - Q[:nx, nx:] @ k), (K, k)

    def forward(dx: Any, now: Any) -> Any:
        F, K, k = now
        du = -k - K @ dx
        return F @ jnp.concatenate([dx, du]), du

    last = (W[-1, :nx, :nx], gradient[-1, :nx])
    _, (K, k) = jax.lax.scan(backward, last, (F, W[:-1], gradient[:-1]), reverse=True)
    return jax.lax.scan(forward, jnp.zeros_like(x), (F, K, k))[1]


def stage_gradients(lqr: LQR) -> np.ndarray:
    """Derivatives W z + w of all stage costs on the path of zero inputs: what a Riccati recursion starts from."""
    T, nx, nu = lqr.sizes
    x, out = lqr.x0, []
    for t in range(T + 1):
        z = np.concatenate([x, np.zeros(nu)])
        W = lqr.W[t] if t < T else np.pad(lqr.W[t, :nx, :nx], (0, nu))
        out.append(W @ z + lqr.w[t])
        x = lqr.F[t] @ z if t < T else x
    return np.stack(out)


class Crocoddyl:
    """crocoddyl's DDP on the chain: its derivatives are computed here, once, outside of the measured passes."""

    def __init__(self, lqr: LQR) -> None:
        import crocoddyl

        T, nx, nu = lqr.sizes
        self.lqr = lqr
        running = [self._model(crocoddyl, lqr.F[t], lqr.W[t], lqr.w[t], nx) for t in range(T)]
        idle = np.zeros((nx, nx + nu))
        final = self._model(crocoddyl, idle, np.pad(lqr.W[T, :nx, :nx], (0, nu)) + 0.0, lqr.w[T], nx)
        self.problem = crocoddyl.ShootingProblem(lqr.x0, running, final)
        self.us = [np.zeros(nu)] * T
        self.xs = self.problem.rollout(self.us)
        self.solver = crocoddyl.SolverDDP(self.problem)
        self.solver.setCandidate(self.xs, self.us, True)
        self.problem.calc(self.xs, self.us)
        self.problem.calcDiff(self.xs, self.us)

    @staticmethod
    def _model(crocoddyl: Any, F: np.ndarray, W: np.ndarray, w: np.ndarray, nx: int) -> Any:
        drift = np.zeros(nx)
        return crocoddyl.ActionModelLQR(
            F[:, :nx], F[:, nx:], W[:nx, :nx], W[nx:, nx:], W[:nx, nx:], drift, w[:nx], w[nx:]
        )

    def run(self) -> None:
        """Factor and solve: the backward and the forward pass."""
        self.solver.backwardPass()
        self.solver.forwardPass(1.0)

    def evaluate(self) -> None:
        """Evaluate dynamics and costs of all stages: the forward pass does this too, besides the linear algebra."""
        self.problem.calc(self.xs, self.us)

    def step(self) -> np.ndarray:
        """The step of the passes, from the gains: du = -k - K dx."""
        dx, out = np.zeros(len(self.lqr.x0)), []
        for F, K, k in zip(self.lqr.F, self.solver.K, self.solver.k, strict=True):
            out.append(-k - K @ dx)
            dx = F @ np.concatenate([dx, out[-1]])
        return np.stack(out)


def hessian_product(lqr: LQR) -> Callable[[Any], tuple[Any, Any]]:
    """v ↦ (g, H·v) at zero inputs, by JAX from the plain objective."""
    T, _, nu = lqr.sizes
    data = (lqr.x0, lqr.F, lqr.W, lqr.w)
    gradient = jax.grad(lambda us: plain_cost(us, data))
    return jax.jit(lambda v: jax.jvp(gradient, (jnp.zeros((T, nu)),), (v,)))
