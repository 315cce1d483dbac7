"""Solves of diffrax: fixed steps are scans of steps, adaptive ones opaque; whatever the adjoint, the step is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

dfx = pytest.importorskip("diffrax")

pytestmark = pytest.mark.slow

U = jnp.array([1.0, 2.0, 0.5, 0.3])
TIMES = jnp.linspace(0.0, 1.0, 5)


def objective(solver=None, adjoint=None, saveat=None, controller=None, max_steps=16):
    def f(u):
        sol = dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, a: -a[0] * y * jnp.abs(y) + jnp.sin(a[1] * t)),
            dfx.Heun() if solver is None else solver,
            0.0,
            1.0,
            None if isinstance(controller, dfx.StepTo) else 0.125,
            u[:2],
            args=u[2:],
            adjoint=dfx.DirectAdjoint() if adjoint is None else adjoint,
            saveat=dfx.SaveAt(t1=True) if saveat is None else saveat,
            stepsize_controller=dfx.ConstantStepSize() if controller is None else controller,
            max_steps=max_steps,
        )
        ys = jnp.where(jnp.isfinite(sol.ys), sol.ys, 0.0)
        return jnp.sum(ys**2) + jnp.sum(u**2)

    return f


def exact_step(f):
    g, h = jax.jit(lambda u: (jax.grad(f)(u), jax.hessian(f)(u)))(U)
    return -np.linalg.solve(h, g)


FIXED = {
    "euler": {"solver": "Euler"},
    "heun": {},
    "tsit5": {"solver": "Tsit5"},
    "default bound": {"max_steps": 4096},
    "times": {"saveat": {"ts": TIMES}},
    "steps": {"saveat": {"steps": True}},
    "step to": {"controller": TIMES},
    "checkpoints": {"adjoint": "RecursiveCheckpointAdjoint"},
    "checkpoints, times": {"adjoint": "RecursiveCheckpointAdjoint", "saveat": {"ts": TIMES}},
}


@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_steps_are_a_scan(name):
    options = dict(FIXED[name])
    adjoint = options.pop("adjoint", None)
    for key in ("solver",):
        if key in options:
            options[key] = getattr(dfx, options[key])()
    if "saveat" in options:
        options["saveat"] = dfx.SaveAt(**options["saveat"])
    if "controller" in options:
        options["controller"] = dfx.StepTo(options["controller"])
    f = objective(adjoint=None if adjoint is None else getattr(dfx, adjoint)(), **options)
    graph = gnewt.trace_graph(f, U)
    assert not any(family.note for family in graph.families)
    assert max(family.n for family in graph.families) < 40
    exact = exact_step(objective(**options))  # JAX differentiates twice with DirectAdjoint alone
    step = gnewt.newton_step(f)
    for found in (step(U), jax.jit(step)(U)):
        assert np.allclose(found, exact, rtol=1e-8)


def test_adaptive_steps_are_opaque():
    f = objective(controller=dfx.PIDController(1e-3, 1e-3), max_steps=64)
    assert any("opaque" in family.note for family in gnewt.trace_graph(f, U).families)
    assert np.allclose(gnewt.newton_step(f)(U), exact_step(f), rtol=1e-8)


def test_many_solves():
    """A solve for every row, by vmap."""
    f = objective(solver=dfx.Euler())
    rows = jnp.stack([U, 0.5 * U, U + 0.1])

    def total(v):
        return jnp.sum(jax.vmap(f)(v)) + jnp.sum(v[0] * v[1])

    graph = gnewt.trace_graph(total, rows)
    assert not any(family.note for family in graph.families)
    flat = rows.ravel()
    g, h = jax.jit(lambda v: [d(lambda w: total(w.reshape(3, 4)))(v) for d in (jax.grad, jax.hessian)])(flat)
    assert np.allclose(gnewt.newton_step(total)(rows).ravel(), -np.linalg.solve(h, g), rtol=1e-8)
