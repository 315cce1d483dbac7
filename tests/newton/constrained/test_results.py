"""What a result says: multipliers and their signs, errors, the factor, statuses; and going on from one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton import Status

GOAL = jnp.array([1.0, 2.0, 3.0, -1.0])


def cost(x: Any, p: Any = 0.0) -> Any:
    return jnp.sum((x - GOAL) ** 2) + jnp.sin(x[0] * x[1]) + p * x[2]


def equality(x: Any, p: Any = 0.0) -> Any:
    return x[0] * x[3] + x[1]


def inequality(x: Any, p: Any = 0.0) -> Any:
    return jnp.stack([x[1] + x[2], x[0] ** 2 + x[1] ** 2, x[3]])


ROWS = {
    "e": gnewt.equal(equality, 0.5),
    "i": gnewt.between(inequality, [-np.inf, -np.inf, -0.5], [2.0, 9.0, np.inf]),
}
BOUNDS = (None, [0.2, None, None, None])
START = jnp.array([0.1, 0.2, 0.3, 0.0])


@pytest.fixture(scope="module")
def solved() -> Any:
    return gnewt.minimize(cost, START, bounds=BOUNDS, constraints=ROWS)


def lagrangian(x: Any, y: Any, z: Any) -> Any:
    return cost(x) + y["e"] * equality(x) + y["i"] @ inequality(x) + z @ x


def test_multipliers_are_those_of_the_documented_lagrangian(solved: Any) -> None:
    y, z = solved.multipliers, solved.bound_multipliers
    gradient = jax.grad(lagrangian)(solved.x, y, z)
    assert np.allclose(gradient, 0, atol=1e-7)
    assert solved.success and float(jnp.max(jnp.abs(gradient))) <= solved.grad_norm + 1e-10
    i = np.asarray(y["i"])
    assert i[0] > 1e-3 and i[2] < -1e-3 and abs(i[1]) < 1e-6  # an upper limit, a lower one, none
    assert z[0] > 1e-3 and np.allclose(z[1:], 0)
    assert list(np.asarray(solved.active["i"])) == [True, False, True] and bool(solved.active["e"])


def test_errors_are_measured_where_x_is(solved: Any) -> None:
    c = np.concatenate([[abs(equality(solved.x) - 0.5)], inequality(solved.x) - np.array([2.0, 9.0, np.inf])])
    assert np.isclose(solved.violation, max(c.max(), -0.5 - float(solved.x[3]), 0), atol=1e-12)
    assert solved.violation <= 1e-7 and solved.kkt_error <= 1e-8
    assert solved.fun == pytest.approx(float(cost(solved.x)), abs=1e-12)
    assert solved.x[0] <= 0.2


def test_the_factor_solves_with_the_dense_kkt_matrix(solved: Any) -> None:
    y, z = solved.multipliers, solved.bound_multipliers
    factor = solved.factor
    assert factor.status == "ok" and factor.is_minimum and tuple(factor.inertia) == (4, 1, 0)
    w = np.asarray(jax.hessian(lagrangian)(solved.x, y, z))
    j = np.vstack([jax.grad(equality)(solved.x), jax.jacobian(inequality)(solved.x)])
    a, b = np.array([0.3, -1.0, 0.5, 0.2]), {"e": 0.7, "i": jnp.array([0.4, 0.0, -0.3])}
    dx, dy = factor.solve(a, b)
    # Active rows and bounds hold; inactive ones have no multiplier.
    held = np.vstack([j[[0, 1, 3]], np.eye(4)[:1]])
    k = np.block([[w, held.T], [held, np.zeros((4, 4))]])
    wanted = np.linalg.solve(k, np.concatenate([a, [0.7, 0.4, -0.3, 0.0]]))
    assert np.allclose(dx, wanted[:4], atol=1e-6)
    assert np.allclose([dy["e"], dy["i"][0], dy["i"][2]], wanted[4:7], atol=1e-6)
    assert np.allclose(dy["i"][1], 0, atol=1e-6)


def test_the_factor_gives_derivatives_of_the_solution(solved: Any) -> None:
    moved = gnewt.minimize(cost, solved, (1e-4,), bounds=BOUNDS, constraints=ROWS)
    mixed = jax.jacobian(jax.grad(cost), 1)(solved.x, 0.0)
    dx, dy = solved.factor.solve(-mixed)
    assert np.allclose((moved.x - solved.x) / 1e-4, dx, atol=1e-3)
    assert np.allclose((moved.multipliers["e"] - solved.multipliers["e"]) / 1e-4, dy["e"], atol=1e-3)


def test_going_on_from_a_result(solved: Any) -> None:
    again = gnewt.minimize(cost, solved, bounds=BOUNDS, constraints=ROWS)
    assert again.success and again.num_steps <= 2
    shifted = gnewt.minimize(cost, solved, (0.05,), bounds=BOUNDS, constraints=ROWS)
    assert shifted.success and shifted.num_steps <= 5
    cold = gnewt.minimize(cost, START, (0.05,), bounds=BOUNDS, constraints=ROWS)
    assert np.allclose(shifted.x, cold.x, atol=1e-6) and shifted.num_steps < cold.num_steps
    inside = jax.jit(lambda res, p: gnewt.minimize(cost, res, (p,), bounds=BOUNDS, constraints=ROWS))
    compiled = inside(solved, 0.05)
    assert compiled.num_steps == shifted.num_steps and np.allclose(compiled.x, shifted.x, atol=1e-10)


def test_results_of_other_problems_are_starts_and_no_more(solved: Any) -> None:
    fewer = gnewt.minimize(cost, solved, bounds=BOUNDS)
    assert fewer.success
    free = gnewt.minimize(cost, fewer)
    assert free.success and np.isnan(free.kkt_error)
    assert gnewt.minimize(cost, free, bounds=BOUNDS, constraints=ROWS).success


def status(res: Any) -> Status:
    assert str(res.status) in str(res) and res.message
    return Status(res.code)


def test_infeasible_names_the_row() -> None:
    res = gnewt.minimize(
        lambda x: x @ x, jnp.ones(2), constraints={"no": gnewt.equal(lambda x: x[0] ** 2 + 1)}
    )
    assert status(res) == Status.INFEASIBLE and not res.success
    assert "'no'" in res.message and "test_results.py" in res.message
    assert res.violation == pytest.approx(1.0, abs=1e-3)


def test_not_finite_names_the_row() -> None:
    res = gnewt.minimize(
        lambda x: x @ x, jnp.zeros(2), constraints={"log": gnewt.equal(lambda x: jnp.log(x[0] - 1))}
    )
    assert status(res) == Status.NONFINITE and "'log'" in res.message
    res = gnewt.minimize(lambda x: jnp.log(x[0] - 1), jnp.zeros(2), bounds=(-1, 1))
    assert status(res) == Status.NONFINITE and "objective" in res.message


def test_unbounded() -> None:
    res = gnewt.minimize(lambda x: x[0] + x[1], jnp.ones(2), constraints=[gnewt.equal(lambda x: x[0] - x[1])])
    assert status(res) == Status.UNBOUNDED and not res.success


def test_redundant_rows_have_a_solution_and_a_singular_factor() -> None:
    rows = [gnewt.equal(lambda x: x[0] + x[1], 1.0), gnewt.equal(lambda x: 2 * x[0] + 2 * x[1], 2.0)]
    res = gnewt.minimize(lambda x: x @ x, jnp.array([0.3, 0.1]), constraints=rows)
    assert res.success and np.allclose(res.x, 0.5, atol=1e-6)


def test_a_maximum_is_no_minimum() -> None:
    circle = gnewt.equal(lambda x: x @ x, 1.0)
    res = gnewt.minimize(lambda x: x[0] ** 2 + 4 * x[1] ** 2, jnp.array([0.0, 1.0]), constraints=[circle])
    if res.success and res.fun > 3.9:
        assert "no minimum" in res.message and not res.factor.is_minimum


def test_limits_of_a_run() -> None:
    seen = []
    options: dict[str, Any] = {"bounds": BOUNDS, "constraints": ROWS}
    res = gnewt.minimize(cost, START, max_steps=2, **options)
    assert status(res) == Status.MAX_STEPS and res.num_steps == 2 and len(res.history) == 2
    res = gnewt.minimize(cost, START, callback=lambda p: seen.append(p) or len(seen) == 2, **options)
    assert status(res) == Status.STOPPED and [p.step for p in seen] == [1, 2]
    assert seen[0].x.shape == (4,) and seen[0].record.mu > 0
    assert status(gnewt.minimize(cost, START, time_limit=0, **options)) == Status.TIME_LIMIT


def test_verbose_shows_what_an_interior_point_does(capsys: pytest.CaptureFixture[str]) -> None:
    res = gnewt.minimize(cost, START, bounds=BOUNDS, constraints=ROWS, verbose=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == res.num_steps + 1
    for word in ("violation", "dual", "mu", "shift", "alpha", "mode"):
        assert word in lines[0]


def test_a_result_is_a_pytree(solved: Any) -> None:
    again = jax.tree.map(lambda v: v, solved)
    assert np.array_equal(again.x, solved.x)
    assert np.allclose(again.factor.solve(GOAL)[0], solved.factor.solve(GOAL)[0])
    assert "kkt_error" in repr(solved) and "violation" in str(solved)
