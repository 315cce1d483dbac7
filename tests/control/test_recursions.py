"""The family against textbook recursions that know nothing of graphs; and the printed formulas, which fail."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control
from gnewt.newton.causal import causal_elimination
from gnewt.newton.objective import Objective
from gnewt.newton.policy import make_policy
from gnewt.newton.system import system_of
from helpers.stages import differentiate, linear_step, nonlinear_step, recursion
from helpers.systems import SYSTEMS, linear_quadratic

DUALS = {"newton": "adjoint", "ddp": "value", "ilqr": "zero"}


class Case:
    """A problem at controls that are not optimal."""

    def __init__(self, parts: tuple[Any, Any, Any, Any], nu: int, horizon: int = 12) -> None:
        self.parts = parts
        self.problem = control.Problem(*parts, horizon)
        self.us = jnp.asarray(0.3 * np.random.default_rng(1).normal(size=(horizon, nu)))
        self.local = differentiate(*parts, self.us)
        self.point = Objective(self.problem.stages.objective).at((self.us, self.problem.given))

    def solution(self, method: str) -> control.Solution:
        """What `solve` makes of these controls without moving them."""
        return control.solve(self.problem, self.us, "newton" if method == "newton" else method, max_steps=0)


@pytest.fixture(scope="module", params=["unicycle", pytest.param("pendulum", marks=pytest.mark.slow)])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(SYSTEMS[request.param](), 1 if request.param == "pendulum" else 2)


def test_stagewise_newton_is_the_newton_step(case: Case) -> None:
    dense = jax.hessian(case.problem)(case.us)
    size = case.us.size
    newton = -np.linalg.solve(dense.reshape(size, size), jax.grad(case.problem)(case.us).ravel())
    ours = gnewt.newton_step(case.problem, order="causal")(case.us)
    riccati = linear_step(case.local, recursion(case.local, "newton"))
    scale = np.abs(newton).max()
    assert np.abs(np.ravel(ours) - newton).max() <= 1e-10 * scale
    assert np.abs(np.ravel(ours) - riccati.ravel()).max() <= 1e-10 * scale


@pytest.mark.parametrize("method", ["newton", "ddp", "ilqr"])
def test_policies_and_value_functions(case: Case, method: str) -> None:
    theirs, ours = recursion(case.local, method), case.solution(method)
    for mine, other in (
        (ours.feedforward, theirs.k),
        (ours.gains, theirs.gains),
        (ours.value_gradient, theirs.v),
        (ours.value_hessian, theirs.vv),
    ):
        assert mine.shape == other.shape
        assert np.abs(mine - other).max() <= 1e-10 * np.abs(other).max()


@pytest.mark.parametrize("method", ["newton", "ddp", "ilqr"])
@pytest.mark.parametrize("length", [0.3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_nonlinear_back_substitution(case: Case, method: str, length: float) -> None:
    system = system_of(case.point, "causal", "exact" if method == "newton" else "gauss_newton")
    models, sweep = system.linearize(case.point), causal_elimination(system)
    found = sweep.eliminate(case.point.data, models, 0.0, DUALS[method], definite=False)
    slots = sweep.roll_out(case.point.data, models, found, length)
    theirs = nonlinear_step(
        case.parts[0], case.parts[3], np.asarray(case.us), recursion(case.local, method), length
    )
    assert np.abs(slots[: theirs.size] - theirs.ravel()).max() <= 1e-9 * np.abs(theirs).max()


@pytest.mark.parametrize(("method", "order"), [("ddp", 3), ("newton", 2), ("ilqr", 2)])
def test_expected_decrease_along_the_curve(case: Case, method: str, order: int) -> None:
    """E18: η Σ q_uᵀk + ½η² Σ kᵀQ_uu k is f's change along the curve; up to third order with the duals of the value function,
    which see the bend of the curve, up to second order otherwise."""
    system = system_of(case.point, "causal", "exact" if method == "newton" else "gauss_newton")
    models, sweep = system.linearize(case.point), causal_elimination(system)
    found = sweep.eliminate(case.point.data, models, 0.0, DUALS[method], definite=False)
    slope = sum(float(jnp.sum(swept.slope)) for swept, _ in found)
    curve = sum(float(jnp.sum(swept.curve)) for swept, _ in found)
    errors = []
    for length in (2e-2, 1e-2, 5e-3):
        slots = sweep.roll_out(case.point.data, models, found, length)
        change = float(case.problem(slots[: case.us.size].reshape(case.us.shape)) - models.value)
        errors.append(abs(change - length * slope - 0.5 * length**2 * curve))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - order) < 0.4), orders


@pytest.mark.parametrize(
    ("method", "printed"), [("newton", {"sign": -1.0}), ("newton", {"late": 1}), ("ilqr", {"sign": -1.0})]
)
def test_the_printed_formulas_fail(case: Case, method: str, printed: dict[str, Any]) -> None:
    """E14: plus signs in the recursion; E16: duals off by one."""
    wrong, ours = recursion(case.local, method, **printed), case.solution(method)
    assert np.abs(ours.gains - wrong.gains).max() > 1e-3 * np.abs(ours.gains).max()


def test_linear_quadratic_problems_need_one_step() -> None:
    parts = linear_quadratic()
    problem = control.Problem(*parts, 8)
    us = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)))
    solved = {m: control.solve(problem, us, m, tol=1e-9, search=_wide(m)) for m in control.METHODS}
    for method, res in solved.items():
        assert res.status == "converged", method
        assert res.num_steps == 1, method
        assert np.abs(res.us - solved["newton"].us).max() <= 1e-10
        assert np.abs(res.gains - solved["newton"].gains).max() <= 1e-10


def _wide(method: str) -> Any:
    """A trust region that does not bind: the first ball need not hold the solution."""
    return gnewt.newton.TrustRegion(radius=1e6) if method == "newton" else None


def test_linear_and_nonlinear_differ_at_second_order(case: Case) -> None:
    """Along η·g-scaled policies, the difference of the two shrinks with η²."""
    system = system_of(case.point, "causal")
    models, sweep = system.linearize(case.point), causal_elimination(system)
    found = sweep.eliminate(case.point.data, models, 0.0, "adjoint", definite=False)
    newton = np.ravel(gnewt.newton_step(case.problem, order="causal")(case.us))
    errors = []
    for length in (1e-2, 5e-3, 2.5e-3):
        moved = np.asarray(sweep.roll_out(case.point.data, models, found, length))[: newton.size]
        errors.append(np.abs(moved - np.ravel(case.us) - length * newton).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 2) < 0.3), orders


def test_a_shift_is_exactly_that_of_the_hessian(case: Case) -> None:
    system = system_of(case.point, "causal")
    models, sweep = system.linearize(case.point), causal_elimination(system)
    found = sweep.eliminate(case.point.data, models, 0.7, "adjoint", definite=False)
    step = np.ravel(gnewt.newton_step(case.problem, order="causal", shift=0.7)(case.us))
    length = 1e-6
    moved = np.asarray(sweep.roll_out(case.point.data, models, found, length))[: step.size]
    assert np.abs((moved - np.ravel(case.us)) / length - step).max() <= 1e-4 * np.abs(step).max()


def test_policy_of_a_factor_names_what_inputs_listen_to(case: Case) -> None:
    factor = gnewt.factorize(case.problem, order="causal")(case.us)
    policy = factor.policy()
    assert len(policy) == case.problem.horizon
    gains = case.solution("newton").gains
    system = system_of(case.point, "causal")
    again = make_policy(system, case.point.data, system.linearize(case.point), 0.0)
    last = next(iter(again))
    nx = gains.shape[2]
    assert len(last.listens) == nx and len(last.names) == nx
    rule = policy.rule_of(0)
    assert "[0, 0]" in rule.input_names[0]
    assert str(rule).count("<-") == 1
