"""The subproblem from products: true to the exact solution, orthogonal where it says so, and not limited by memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.newton import krylov
from gnewt.newton.loop import Task
from gnewt.newton.objective import Objective
from gnewt.newton.products import ProductSystem
from gnewt.newton.subproblem import begin_spectrum


def rotated(eigenvalues, seed=0):
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues),) * 2))
    return (q * eigenvalues) @ q.T


def solver(matrix, vector):
    """(radius, reach) ↦ the minimiser of vᵀp + ½pᵀMp in the ball, without scaling."""
    at = jnp.zeros(len(vector))
    point = Objective(lambda x: 0.5 * x @ (matrix @ x) + vector @ x, 0, False).at((at,))
    problem = Task(ProductSystem(point.structure, "exact"), point)
    models = dataclasses.replace(problem.models(at), sources=jnp.ones(len(vector)))
    spectrum = begin_spectrum(problem, at)
    return jax.jit(
        lambda radius, reach: krylov.solve_with_products(problem, at, models, radius, reach, spectrum)
    )


def exact_decrease(matrix, vector, radius):
    """By eigenvalues and bisection."""
    values, vectors = np.linalg.eigh(matrix)
    g = vectors.T @ vector
    low, high = max(0.0, -values[0]), max(0.0, -values[0]) + np.linalg.norm(g) / radius
    if values[0] > 0 and np.linalg.norm(g / values) <= radius:
        high = low = 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.linalg.norm(g / (values + middle)) > radius else (low, middle)
    p = -g / (values + high)
    return -(g @ p + 0.5 * p @ (values * p))


@pytest.mark.parametrize("lowest", [-3.0, 0.5])
def test_the_step_is_nearly_as_good_as_the_exact_one(lowest):
    matrix = rotated(np.linspace(lowest, 40.0, 90))
    vector = 1e-3 * np.cos(np.arange(90.0))
    solve = solver(matrix, vector)
    for radius in (1e-4, 0.1, 2.0, 20.0):
        found = solve(radius, radius)
        step = np.asarray(found.step)
        true = -(vector @ step + 0.5 * step @ matrix @ step)
        assert np.linalg.norm(step) <= 1.001 * radius
        assert np.isclose(float(found.decrease), true, rtol=1e-6)
        assert true >= 0.8 * exact_decrease(matrix, vector, radius)


def test_the_vectors_stay_orthogonal_where_eigenvalues_are_found_early():
    """Lanczos without care loses orthogonality as soon as the isolated eigenvalues converge."""
    eigenvalues = np.concatenate([np.linspace(1e-3, 1.0, 290), 10.0 ** np.arange(1, 6)])
    matrix = jnp.asarray(rotated(eigenvalues))
    vector = jnp.cos(jnp.arange(len(eigenvalues)) * 1.0)
    tight = jnp.asarray(0.0)
    ball = krylov._Ball(vector, jnp.linalg.norm(vector), jnp.asarray(1e9), jnp.asarray(1e9), tight)
    end = krylov._lanczos(lambda v: matrix @ v, ball, krylov._begin(ball, 120))
    q = np.asarray(end.basis)[:120]
    assert bool(end.full)
    assert np.max(np.abs(q @ q.T - np.eye(120))) < 1e-6
    plain = [np.asarray(vector / np.linalg.norm(vector))]
    for j in range(119):  # the same without care
        w = matrix @ plain[j]
        w = w - (w @ plain[j]) * plain[j] - (w @ plain[j - 1] * plain[j - 1] if j else 0.0)
        plain.append(np.asarray(w / np.linalg.norm(w)))
    plain = np.stack(plain)
    assert np.max(np.abs(plain @ plain.T - np.eye(120))) > 0.5


@pytest.mark.slow
def test_conjugate_gradients_go_on_where_the_memory_is_full(monkeypatch):
    monkeypatch.setattr(krylov, "_FEW", 8)
    monkeypatch.setattr(krylov, "_MOST", 24)
    matrix = rotated(np.logspace(-4, 1, 150))
    vector = 1e-8 * np.cos(np.arange(150.0))
    solve = solver(matrix, vector)
    found = solve(1.0, np.inf)
    step = np.asarray(found.step)
    assert np.linalg.norm(matrix @ step + vector) <= 0.031 * np.linalg.norm(vector)
    assert float(found.shift) == 0.0
    assert np.isclose(float(found.decrease), -(vector @ step + 0.5 * step @ matrix @ step), rtol=1e-6)
    # In a ball that the Newton step leaves, the step ends at the boundary.
    short = solve(*[0.3 * np.linalg.norm(step)] * 2)
    assert np.isclose(float(short.length), 0.3 * np.linalg.norm(step), rtol=0.2)
    assert 0 < float(short.decrease) < float(found.decrease)
    monkeypatch.setattr(krylov, "_conjugate_gradients", lambda multiply, ball, s, p: (p, s.small.decrease))
    alone = np.asarray(solver(matrix, vector)(1.0, np.inf).step)
    assert np.linalg.norm(matrix @ alone + vector) > 0.1 * np.linalg.norm(vector)


def test_negative_curvature_behind_the_memory_leads_to_the_boundary(monkeypatch):
    monkeypatch.setattr(krylov, "_FEW", 4)
    monkeypatch.setattr(krylov, "_MOST", 6)
    eigenvalues = np.concatenate([[-1e-4], np.logspace(-2, 1, 119)])
    matrix = rotated(eigenvalues)
    vector = 1e-8 * np.cos(np.arange(120.0))
    found = solver(matrix, vector)(1.0, 1.0)
    step = np.asarray(found.step)
    assert np.isclose(np.linalg.norm(step), 1.0, rtol=1e-6)
    assert np.isclose(
        float(found.decrease), -(vector @ step + 0.5 * step @ matrix @ step), rtol=1e-6, atol=1e-12
    )
    assert float(found.decrease) > 1e-6  # of the ½·1e-4 that there is
