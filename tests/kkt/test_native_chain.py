"""Chains of many sizes through the native engine: as runs of stages, with sizes that were compiled and with others, and with shared inputs."""

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.kkt import factorize
from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.plan import make_plan
from helpers.native_call import run

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

SIZES = [
    (1, 1),
    (2, 3),
    (3, 20),
    (4, 1),
    (4, 2),
    (5, 3),
    (6, 3),
    (9, 17),
    (12, 4),
    (12, 6),
    (13, 7),
    (24, 8),
    (37, 12),
]


def chain_plan(T: int, nx: int, nu: int, shared: int = 0, losses: int = 1):
    """A chain whose families are dense: dynamics and costs read all of x and u, and of the shared inputs."""
    g = gnewt.Graph()
    us = [g.input((nu,), name=f"u{t}") for t in range(T)]
    common = [g.input((shared,), name="shared")] if shared else []

    def total(*z):
        return jnp.sum(jnp.concatenate(z))

    x = g.constant(np.ones(nx))
    for u in us:
        for k in range(losses):
            g.loss([lambda *z: total(*z) ** 2, lambda *z: total(*z) ** 4][k], x, u, *common)
        x = g.node(lambda *z: total(*z) ** 2 * jnp.ones(nx), x, u, *common)
    g.loss(lambda x: jnp.sum(x) ** 4, x)
    return g.structure(), make_plan(g.structure(), "reverse_time")


def numbers(structure, rng, definite: bool) -> np.ndarray:
    """Stable dynamics; Hessians that are positive definite, or of any sign but with a diagonal."""
    parts = []
    for family in structure.families:
        if family.outs is not None:
            jac = family.jac_pattern
            parts.append(rng.normal(size=(family.n, jac.sum())) / np.sqrt(jac.shape[1]))
        i, j = np.nonzero(np.tril(family.hess_pattern))
        size = len(family.hess_pattern)
        root = rng.normal(size=(family.n, size, size)) / np.sqrt(size)
        if family.outs is not None:
            whole = np.zeros_like(root)
        elif definite:
            whole = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(size)
        else:
            whole = 0.05 * (root + root.transpose(0, 2, 1)) + np.diag(rng.choice([-1.0, 1.0, 2.0], size=size))
        parts.append(whole[:, i, j])
    return np.concatenate([part.ravel() for part in parts])


def compare(structure, plan, sources, shift, dtype=np.float64):
    rhs = np.random.default_rng(1).normal(size=(plan.num_inputs, 1))
    got = run(lay_out_native(plan, len(sources)), sources, shift, rhs, dtype)
    sources = sources.astype(dtype).astype(np.float64)
    known = factorize(plan, sources, shift)
    x = known.solve(rhs)
    tol = 1e4 * float(np.finfo(dtype).eps)
    assert got.status == "ok"
    assert np.abs(got.solution - x).max() <= tol * np.abs(x).max()
    assert np.abs(got.again - x).max() <= tol * np.abs(x).max()
    assert got.inertia == known.inertia
    assert got.logdet == pytest.approx(known.logdet, rel=tol, abs=100 * tol)
    return got


@pytest.mark.parametrize(("nx", "nu"), SIZES)
def test_chains_of_many_sizes(nx, nu):
    structure, plan = chain_plan(5, nx, nu)
    rng = np.random.default_rng(nx + nu)
    assert compare(structure, plan, numbers(structure, rng, True), 0.0).mode == 1
    assert compare(structure, plan, numbers(structure, rng, True), 0.3, np.float32).mode == 1
    compare(structure, plan, numbers(structure, rng, False), 0.3)


@pytest.mark.parametrize(
    ("nx", "nu", "shared", "losses"), [(12, 6, 0, 2), (5, 3, 0, 2), (12, 6, 5, 1), (5, 3, 1, 2)]
)
def test_several_losses_and_shared_inputs(nx, nu, shared, losses):
    structure, plan = chain_plan(6, nx, nu, shared, losses)
    rng = np.random.default_rng(nx)
    assert compare(structure, plan, numbers(structure, rng, True), 0.0).mode == 1
    assert compare(structure, plan, numbers(structure, rng, True), 0.1, np.float32).mode == 1
