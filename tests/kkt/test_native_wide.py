"""Wide fronts of the native engine: many leaves before one dense front, pivots by search in it, noise judged by probes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.engine import factor_solve
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of
from helpers.native_factor import factorize_native
from helpers.oracle import inertia_of

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")


def system(f, x):
    """The plan of an objective and its numbers at a point."""
    point = Objective(f).at((x,))
    known = system_of(point, "auto", engine="native")
    return known.plan, np.asarray(known.linearize(point).sources)


def square_root(n, seed=0):
    """‖X² - A‖², far from a minimum: n² nodes that read 2n - 1 inputs each, and a Hessian without zeros, indefinite."""
    rng = np.random.default_rng(seed)
    a = jnp.asarray(rng.normal(size=(n, n)))
    return lambda x: jnp.sum((x.reshape(n, n) @ x.reshape(n, n) - a) ** 2), jnp.asarray(
        rng.normal(size=n * n)
    )


def quadratic(n, rank=None, seed=0):
    """½ xᵀAx with an indefinite A."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(rank or n, n))
    a = jnp.asarray(v.T @ (np.where(np.arange(len(v)) % 3, 1.0, -1.0)[:, None] * v) / n)
    return lambda x: 0.5 * x @ (a @ x) + jnp.sum(x), jnp.ones(n)


def multipliers(n, num, seed=0):
    """Inputs u that appear linearly: each has a leaf of its own, finds no pivot there, and is delayed to the front of the other inputs."""
    rng = np.random.default_rng(seed)
    c = jnp.asarray(rng.normal(size=(num, n)) / np.sqrt(n))

    def f(z):
        u, y = z[:num], z[num:]
        return (
            jnp.sum(u * jnp.sin(c @ y))
            + jnp.sum((c @ y) ** 3)
            + jnp.sum(y**2 * jnp.where(jnp.arange(n) % 2, 1.0, -2.0))
        )

    return f, jnp.asarray(rng.normal(size=n + num))


def check(f, x, kept=True):
    """Solutions, inertia and determinant against the dense Hessian by JAX; another right-hand side by the factor, which may be kept."""
    plan, sources = system(f, x)
    h = np.asarray(jax.hessian(f)(x))
    factor = factorize_native(plan, sources)
    b = np.random.default_rng(1).normal(size=(len(x), 3))
    solved = factor_solve(lay_out_native(plan, len(sources)), jnp.asarray(sources), 0.0, jnp.asarray(b))
    for got in (np.asarray(solved.solution), factor.solve(b)):
        assert np.linalg.norm(h @ got - b) <= 1e-12 * (
            np.linalg.norm(h, 2) * np.linalg.norm(got) + np.linalg.norm(b)
        )
    assert factor.status == "ok"
    assert factor.inertia == inertia_of(h)
    assert factor.logdet == pytest.approx(np.linalg.slogdet(h)[1], abs=1e-6)
    assert bool(solved.kept) == kept
    return factor


@pytest.mark.parametrize("n", [12, 15])
def test_many_leaves_of_one_pair(n):
    factor = check(*square_root(n))
    assert min(factor.inertia[:2]) > n * n // 8


@pytest.mark.parametrize("n", [130, 330])
def test_leaves_of_many_pairs(n):
    check(*quadratic(n))


def test_delayed_leaves():
    assert check(*multipliers(150, 120), kept=False).num_delayed >= 100


def test_definite():
    rng = np.random.default_rng(0)
    c = jnp.asarray(rng.normal(size=(400, 200)))
    assert check(
        lambda x: jnp.sum(jnp.log(jnp.cosh(c @ x))), jnp.asarray(0.01 * rng.normal(size=200))
    ).inertia == (200, 0, 0)


def test_zero_eigenvalues_are_found():
    n, rank = 200, 188
    plan, sources = system(*quadratic(n, rank))
    factor = factorize_native(plan, sources)
    assert factor.status == "singular"
    assert factor.inertia == (rank - (rank + 2) // 3, (rank + 2) // 3, n - rank)
    assert len(factor.null) == n - rank


def test_not_finite():
    plan, sources = system(*square_root(12))
    sources = sources.copy()
    sources[len(sources) // 2] = np.nan
    assert factorize_native(plan, sources).status == "nonfinite"


def test_single_precision():
    f, x = square_root(12)
    plan, sources = system(f, x)
    h = np.asarray(jax.hessian(f)(x))
    b = np.random.default_rng(1).normal(size=len(x))
    factor = factorize_native(plan, np.asarray(sources, np.float32))
    got = factor.solve(b)
    assert np.linalg.norm(h @ got - b) <= 1e-4 * (
        np.linalg.norm(h, 2) * np.linalg.norm(got) + np.linalg.norm(b)
    )
    assert factor.inertia == inertia_of(h)
