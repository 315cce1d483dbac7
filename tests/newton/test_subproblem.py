"""The trust-region subproblem against its solution by eigenvalues: convex, indefinite, hard case."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.newton import TrustRegion
from gnewt.newton.loop import Task
from gnewt.newton.objective import Objective
from gnewt.newton.subproblem import begin_spectrum, solve_subproblem
from gnewt.newton.system import system_of

N = 7


def quadratic(x, h, g):
    return 0.5 * x @ h @ x + g @ x


@functools.cache
def solver():
    objective = Objective(quadratic)

    @jax.jit
    def run(h, g, radius):
        point = objective.at((jnp.zeros(N), h, g))
        problem = Task(system_of(point), point)
        models = problem.models(jnp.zeros(N))
        spectrum = begin_spectrum(problem, jnp.zeros(N))
        zero = jnp.zeros(())
        return solve_subproblem(problem, models, radius, spectrum, zero, zero, 0.01, 30)

    return run


def exact(h, g, radius):
    """The least value of the model in the ball, by the secular equation over the eigenvalues."""
    values, vectors = np.linalg.eigh(h)
    c = vectors.T @ g

    def length(mu):
        with np.errstate(all="ignore"):
            terms = np.where(c == 0, 0.0, c / (values + mu))
        return np.linalg.norm(terms)

    if values[0] > 0 and length(0.0) <= radius:
        p = -vectors @ (c / values)
        return p @ (g + 0.5 * h @ p)
    low = max(0.0, -values[0])
    if length(low + 1e-13 * max(1, low)) < radius:  # hard case
        inner = np.where(
            np.abs(c) < 1e-13, 0.0, -c / np.where(np.abs(values + low) < 1e-12, np.inf, values + low)
        )
        p = vectors @ inner
        p = p + np.sqrt(max(radius**2 - p @ p, 0)) * vectors[:, 0]
        return p @ (g + 0.5 * h @ p)
    high = low + 1.0
    while length(high) > radius:
        high *= 2
    for _ in range(200):
        mu = 0.5 * (low + high)
        low, high = (mu, high) if length(mu) > radius else (low, mu)
    p = -vectors @ (c / (values + high))
    return p @ (g + 0.5 * h @ p)


def random_symmetric(rng, values):
    q, _ = np.linalg.qr(rng.normal(size=(N, N)))
    return q @ np.diag(values) @ q.T, q


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("radius", [1e-3, 0.5, 30.0])
def test_the_model_is_minimised_in_the_ball(seed, radius):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=N) * 10.0 ** rng.uniform(-2, 2) + (3.0 if seed % 3 == 0 else 0.0)
    h, _ = random_symmetric(rng, values)
    g = rng.normal(size=N)
    found = solver()(h, g, radius)
    best = -exact(h, g, radius)
    p = np.asarray(found.step)
    assert np.linalg.norm(p) <= 1.011 * radius
    assert found.decrease == pytest.approx(-(p @ (g + 0.5 * h @ p)), rel=1e-8)
    assert found.decrease >= 0.97 * best
    assert np.linalg.eigvalsh(h)[0] + found.shift >= -1e-9
    assert found.factorizations <= 16


@pytest.mark.parametrize("seed", range(4))
def test_the_hard_case_goes_along_the_lowest_eigenvector(seed):
    rng = np.random.default_rng(100 + seed)
    h, q = random_symmetric(rng, np.array([-2.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]))
    g = q[:, 1:] @ rng.normal(size=N - 1)  # nothing along the lowest eigenvector
    radius = 10.0
    found = solver()(h, g, radius)
    assert found.decrease >= 0.95 * -exact(h, g, radius)
    assert abs(q[:, 0] @ np.asarray(found.step)) > 5.0


def test_a_saddle_with_zero_gradient_has_a_way_down():
    h = np.diag([1.0, 2.0, -3.0, 1.0, 1.0, 1.0, 1.0])
    found = solver()(h, 1e-14 * np.ones(N), 2.0)
    assert found.decrease >= 0.95 * 0.5 * 3.0 * 4.0


def test_searches_are_values():
    assert TrustRegion() == TrustRegion()
    assert hash(TrustRegion(radius=2.0)) != hash(TrustRegion())
