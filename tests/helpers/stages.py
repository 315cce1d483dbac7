"""Textbook recursions of optimal control, stage by stage in NumPy: nothing here knows of graphs or of gnewt's elimination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Local(NamedTuple):
    """Derivatives at every stage over z = (x, u), and of the final cost."""

    f_z: np.ndarray
    f_zz: np.ndarray
    l_z: np.ndarray
    l_zz: np.ndarray
    end: tuple[np.ndarray, np.ndarray]
    nx: int


class Backward(NamedTuple):
    k: np.ndarray
    gains: np.ndarray
    v: np.ndarray
    """∂V_t, t = 0 … T."""
    vv: np.ndarray


def differentiate(f: Callable, l: Callable, last: Callable, x0: Any, us: Any) -> Local:  # noqa: E741
    """Derivatives along the trajectory of us, by JAX."""
    nx = len(x0)

    def step(x: Any, u: Any) -> Any:
        return f(x, u), x

    end, xs = jax.lax.scan(step, x0, us)
    zs = jnp.concatenate([xs, us], axis=1)
    dynamics, cost = (lambda z: f(z[:nx], z[nx:])), (lambda z: l(z[:nx], z[nx:]))
    parts = [
        jax.jit(jax.vmap(g))(zs)
        for g in (jax.jacfwd(dynamics), jax.jacfwd(jax.jacfwd(dynamics)), jax.grad(cost), jax.hessian(cost))
    ]
    f_z, f_zz, l_z, l_zz = map(np.asarray, parts)
    return Local(
        f_z, f_zz, l_z, l_zz, (np.asarray(jax.grad(last)(end)), np.asarray(jax.hessian(last)(end))), nx
    )


def recursion(local: Local, method: str, sign: float = 1.0, late: int = 0) -> Backward:
    """Riccati (`newton`: adjoint multipliers), Jacobson and Mayne (`ddp`), Gauss-Newton (`ilqr`).

    `sign=-1` prints the wrong sign of E14, `late=1` the dual table of E16 that is off by one.
    """
    nx, horizon = local.nx, len(local.f_z)
    adjoint = [local.end[0]]
    for t in range(horizon - 1, -1, -1):
        adjoint.append(local.l_z[t][:nx] + local.f_z[t][:, :nx].T @ adjoint[-1])
    adjoint = adjoint[::-1]
    v, vv = local.end
    k, gains, vs, vvs = [], [], [v], [vv]
    for t in range(horizon - 1, -1, -1):
        lam = {"newton": adjoint[t + 1 - late], "ddp": v, "ilqr": np.zeros(nx)}[method]
        q = local.l_z[t] + local.f_z[t].T @ v
        qq = local.l_zz[t] + np.einsum("i,ijk->jk", lam, local.f_zz[t]) + local.f_z[t].T @ vv @ local.f_z[t]
        q_uu, q_ux = qq[nx:, nx:], qq[nx:, :nx]
        k.append(-np.linalg.solve(q_uu, q[nx:]))
        gains.append(-np.linalg.solve(q_uu, q_ux))
        v = q[:nx] + sign * q_ux.T @ k[-1]
        vv = qq[:nx, :nx] + sign * q_ux.T @ gains[-1]
        vs.append(v)
        vvs.append(vv)
    return Backward(np.array(k[::-1]), np.array(gains[::-1]), np.array(vs[::-1]), np.array(vvs[::-1]))


def linear_step(local: Local, found: Backward) -> np.ndarray:
    """δu of linear back-substitution."""
    dx, out = np.zeros(local.nx), []
    for t in range(len(local.f_z)):
        du = found.k[t] + found.gains[t] @ dx
        out.append(du)
        dx = local.f_z[t] @ np.concatenate([dx, du])
    return np.array(out)


def nonlinear_step(f: Callable, x0: Any, us: np.ndarray, found: Backward, length: float) -> np.ndarray:
    """New controls by u = ū + ηk + K(x - x̄), rolled out."""
    x = nominal = np.asarray(x0)
    out = []
    for t in range(len(us)):
        u = us[t] + length * found.k[t] + found.gains[t] @ (x - nominal)
        out.append(u)
        x, nominal = np.asarray(f(x, u)), np.asarray(f(nominal, us[t]))
    return np.array(out)
