"""Every way in which a constrained run ends has a status of its own."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt


def square(x):
    return jnp.sum((x - 2.0) ** 2)


def solve(f, x0, constraints=None, bounds=None, **more):
    return gnewt.minimize(f, jnp.asarray(x0, float), bounds=bounds, constraints=constraints, **more)


def test_infeasible():
    apart = [gnewt.equal(lambda x: x[0] + x[1], 1.0), gnewt.equal(lambda x: x[0] + x[1], 3.0)]
    res = solve(square, [0.5, 0.3], apart)
    assert res.status == "infeasible" and not res.success
    # The point with the least violation lies between the two.
    assert abs(float(res.x[0] + res.x[1]) - 2.0) < 1e-3
    assert float(res.violation) > 0.5


def test_nonlinear_rows_without_a_common_point():
    res = solve(square, [1.0, 1.0], gnewt.between(lambda x: jnp.sum(x**2) + 1.0, None, 0.5))
    assert res.status == "infeasible"


@pytest.mark.parametrize("limited", [False, True])
def test_unbounded(limited):
    bounds = (0.0, None) if limited else None
    rows = gnewt.between(lambda x: x[0] - x[1], -1.0, 1.0)
    res = solve(lambda x: -jnp.sum(x), [1.0, 1.0], rows, bounds)
    assert res.status == "unbounded" and not res.success


def test_redundant_equalities():
    rows = [gnewt.equal(lambda x: x[0] + x[1], 1.0), gnewt.equal(lambda x: 2 * x[0] + 2 * x[1], 2.0)]
    res = solve(square, [0.3, 0.4], rows)
    assert res.success
    np.testing.assert_allclose(res.x, [0.5, 0.5], atol=1e-7)
    first, second = (float(v) for v in res.multipliers)
    assert abs(first + 2 * second - 3.0) < 1e-6


def test_rows_that_contradict_each_other_at_the_start():
    # At 0 both rows have the slope (1, 0, 0), and ask for different steps along it: no shift gives K the right inertia.
    rows = gnewt.equal(lambda x: jnp.stack([3 * x[0] - 2 * x[1] ** 2 - 7, 4 * x[0] - x[2] ** 2 - 11]))
    res = gnewt.minimize(
        lambda x: 4 * x[0] ** 2 + 2 * x[1] ** 2 + 2 * x[2] ** 2 - 30 * x[0] + 16 * x[1] - 24 * x[2],
        jnp.zeros(3),
        constraints=rows,
    )
    assert res.success and res.num_steps < 20 and res.violation < 1e-8


def test_licq_fails():
    """Two limits with opposite gradients meet in a cusp: no multipliers exist, and the run ends close to the point."""
    rows = gnewt.between(lambda x: (1 - x[0]) ** 3 - x[1], 0.0, None)
    with pytest.warns(gnewt.StartNotice):
        res = solve(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [-2.0, 2.0], rows, (0.0, None), max_steps=500)
    assert res.status not in ("infeasible", "unbounded", "max_steps")
    np.testing.assert_allclose(res.x, [1.0, 0.0], atol=2e-2)
    assert float(res.violation) <= 1e-5


def test_no_interior():
    rows = [gnewt.between(lambda x: x[0] + x[1], 1.0, None), gnewt.between(lambda x: x[0] + x[1], None, 1.0)]
    res = solve(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [0.0, 0.0], rows)
    assert res.success
    np.testing.assert_allclose(res.x, [1.5, -0.5], atol=1e-6)


def test_equal_limits_are_an_equality():
    res = solve(square, [0.0, 0.0], gnewt.between(lambda x: x[0] * x[1], 1.5, 1.5))
    assert res.success
    assert abs(float(res.x[0] * res.x[1]) - 1.5) < 1e-8


def test_fixed_variables():
    res = solve(square, [0.0, 0.0, 0.0], None, (np.array([1.0, 3.0, -1.0]), np.array([1.0, 3.0, 1.0])))
    assert res.success
    np.testing.assert_allclose(res.x, [1.0, 3.0, 1.0], atol=1e-7)


def test_constant_objective():
    res = solve(lambda x: 3.0 + 0 * x[0], [2.0, 0.1], gnewt.equal(lambda x: jnp.sum(x**2), 1.0))
    assert res.success and float(res.fun) == 3.0
    assert abs(float(jnp.sum(res.x**2)) - 1.0) < 1e-8


def test_nan_at_the_start():
    res = solve(square, [-1.0, 1.0], gnewt.between(lambda x: jnp.log(x[0]), 0.0, None))
    assert res.status == "nonfinite" and not res.success


def test_nan_on_the_way():
    """Full steps leave the domain of the constraint; shorter ones do not."""
    res = solve(
        lambda x: x[0] ** 2 + x[1] ** 2, [40.0, 3.0], gnewt.between(lambda x: jnp.log(x[0]), 0.0, None)
    )
    assert res.success
    np.testing.assert_allclose(res.x, [1.0, 0.0], atol=1e-6)


def test_start_outside():
    with pytest.warns(gnewt.StartNotice):
        res = solve(square, [9.0, -9.0], None, (0.0, 1.0))
    assert res.success
    np.testing.assert_allclose(res.x, [1.0, 1.0], atol=1e-7)
    assert np.all(np.asarray(res.x) <= 1.0)


def test_limits_of_a_run():
    rows = gnewt.equal(lambda x: jnp.sum(x**2), 1.0)
    assert solve(square, [3.0, 5.0], rows, max_steps=2).status == "max_steps"
    assert solve(square, [3.0, 5.0], rows, time_limit=1e-9).status == "time_limit"
    assert solve(square, [3.0, 5.0], rows, callback=lambda _: True).status == "stopped"


def test_violation_is_that_of_the_point_returned():
    """x is within its bounds exactly, and the violation is that of this x."""
    rows = gnewt.equal(lambda x: 1e3 * (x[0] + x[1] - 2.0))
    res = solve(lambda x: -x[0] + x[1] ** 2, [0.2, 0.3], rows, (0.0, 1.0))
    x = np.asarray(res.x)
    assert np.all(x <= 1.0)
    assert float(res.violation) == pytest.approx(1e3 * abs(x.sum() - 2.0), abs=1e-12)
