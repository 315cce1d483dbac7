"""Solves of diffrax: whatever `jax.hessian` can differentiate has an exact step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

dfx = pytest.importorskip("diffrax")

pytestmark = pytest.mark.slow


def objective(adaptive):
    controller = dfx.PIDController(1e-6, 1e-6) if adaptive else dfx.ConstantStepSize()

    def f(u):
        sol = dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, a: -a[0] * y + jnp.sin(a[1] * t)),
            dfx.Heun(),
            0.0,
            1.0,
            0.125,
            u[:2],
            args=u[2:],
            adjoint=dfx.DirectAdjoint(),
            stepsize_controller=controller,
            max_steps=16,
        )
        return jnp.sum(sol.ys**2) + jnp.sum(u**2)

    return f


@pytest.mark.parametrize("adaptive", [False, True])
def test_direct_adjoint(adaptive):
    f, u = objective(adaptive), jnp.array([1.0, 2.0, 0.5, 0.3])
    g, h = jax.jit(lambda u: (jax.grad(f)(u), jax.hessian(f)(u)))(u)
    exact = -np.linalg.solve(h, g)
    assert np.allclose(gnewt.newton_step(f)(u), exact, rtol=1e-8)
