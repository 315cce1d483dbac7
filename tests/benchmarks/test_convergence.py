"""The estimate of orders of convergence, on iterations whose order is known."""

import importlib.util
import pathlib

import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "convergence.py"
SPEC = importlib.util.spec_from_file_location("convergence", PATH)
convergence = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(convergence)


def power(order, noise=0.0, factor=3.0):
    """An iteration with distance ↦ factor·distance^order, turned a little at each step, and rounding."""
    rng = np.random.default_rng(1)
    best = rng.normal(size=6)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]

    def step(x):
        away = x - best
        size = np.linalg.norm(away)
        return best + factor * size ** (order - 1) * (turn @ away) + noise * rng.normal(size=6)

    return step, best


@pytest.mark.parametrize("order", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 1e-14, 1e-11])
def test_known_orders_are_found_above_any_rounding(order, noise):
    factor = 0.7 if order == 1 else 3.0
    found = convergence.local_convergence(*power(order, noise, factor))
    assert abs(found.order - order) < 0.02
    assert found.least <= found.order <= found.most < found.least + 0.1


def test_the_rate_of_a_linear_iteration_is_its_spectral_radius():
    rng = np.random.default_rng(2)
    vectors = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    matrix = vectors @ np.diag([0.9, 0.5, -0.4, 0.3, 0.2, 0.1, 0.0, 0.0]) @ vectors.T
    best = rng.normal(size=8)
    found = convergence.local_convergence(lambda x: best + matrix @ (x - best) + (x - best) ** 3, best)
    assert abs(found.order - 1) < 0.01
    assert abs(found.rate - 0.9) < 0.01


def test_a_linear_iteration_that_diverges_has_a_rate_above_one():
    best = np.array([1.0, -2.0, 0.5])
    matrix = np.array([[1.6, 0.2, 0.0], [0.0, 0.3, 0.1], [0.0, 0.0, -0.2]])
    found = convergence.local_convergence(lambda x: best + matrix @ (x - best) + (x - best) ** 2, best)
    assert abs(found.order - 1) < 0.01
    assert abs(found.rate - 1.6) < 0.02


def test_newtons_method_is_quadratic_and_gradient_descent_is_linear():
    best = np.log(np.array([1.5, 2.0, 0.7]))

    def gradient(x):
        return np.exp(x) - np.exp(best)

    newton = convergence.local_convergence(lambda x: x - gradient(x) / np.exp(x), best)
    descent = convergence.local_convergence(lambda x: x - 0.4 * gradient(x), best)
    assert abs(newton.order - 2) < 0.03 and np.isnan(newton.rate)
    assert abs(descent.order - 1) < 0.01
    assert abs(descent.rate - (1 - 0.4 * 0.7)) < 0.01


def test_a_step_lost_in_rounding_has_no_order():
    rng = np.random.default_rng(3)
    found = convergence.local_convergence(lambda x: np.ones(4) + 1e-2 * rng.normal(size=4), np.ones(4))
    assert np.isnan(found.order)
