"""A problem that cannot be solved says so in its own words: states, stages, controls."""

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control

T = 6
X0 = jnp.array([1.0, 0.0])
US = 0.1 * jnp.ones((T, 1))


def push(x, u):
    return x + 0.1 * jnp.stack([x[1], u[0]])


def problem(dynamics=push, stage=lambda x, u: jnp.sum(u**2), final=lambda x: jnp.sum(x**2), x0=X0, **more):
    return control.Problem(dynamics, stage, final, x0, T, **more)


def refused(match, call):
    with pytest.raises(gnewt.GraphError, match=match) as caught:
        call()
    text = str(caught.value)
    assert "test_diagnose.py" in text.split("where: ")[1]
    return text.split("what to do: ")[1]


def test_scalar_controls_where_vectors_are_expected():
    remedy = refused(
        r"dynamics fails at x of shape \(2,\), u of shape \(\)",
        lambda: control.solve(problem(), jnp.zeros(T)),
    )
    assert "(horizon, 1)" in remedy
    refused(
        r"stage_cost fails",
        lambda: control.solve(problem(lambda x, u: x + u, lambda x, u: u[0] ** 2), jnp.zeros(T)),
    )
    remedy = refused(
        "dynamics fails at x", lambda: control.solve(problem(lambda x, u: x + jnp.ones(3) * u), US)
    )
    assert "horizon" not in remedy


def test_a_state_that_is_not_finite_is_named_with_its_stage():
    def decay(x, u):
        return jnp.stack([x[0] - 0.3, x[1] + jnp.log(x[0]) * u[0]])

    sol = control.solve(problem(decay), US)
    assert sol.status == "nonfinite"
    assert "x[1] = nan at stage 5" in sol.message and "test_diagnose.py" in sol.message
    nested = problem(
        lambda x, u: {"p": x["p"] - 0.5 + 0 * u[0], "q": jnp.sqrt(x["p"])},
        final=lambda x: x["p"] ** 2 + x["q"],
        x0={"p": 1.2, "q": 0.0},
    )
    assert "x['q'] = nan at stage 4" in control.solve(nested, US, check=False).message


def test_a_cost_that_is_not_finite_is_named():
    sol = control.solve(problem(stage=lambda x, u: jnp.sum(u**2) / (u[0] - 0.3)), US.at[3].set(0.3))
    assert "stage_cost is inf at stage 3" in sol.message
    sol = control.solve(problem(final=lambda x: jnp.log(x[1] - 5.0)), US)
    assert "final_cost is nan" in sol.message


def test_no_control_to_choose():
    for p in (
        problem(lambda x, u: 0.9 * x, lambda x, u: jnp.sum(x**2)),
        problem(stage=lambda x, u: 0.0, final=lambda x: 0.0),
    ):
        refused("cost does not depend on the controls", lambda p=p: control.solve(p, US))


@pytest.mark.parametrize("method", ["newton", "nonlinear-newton"])
def test_an_unbounded_problem_says_so(method):
    concave = problem(stage=lambda x, u: -jnp.sum(x**2) - jnp.sum(u**2), final=lambda x: -jnp.sum(x**2))
    sol = control.solve(concave, US, method)
    assert sol.status == "unbounded" and "without bound" in sol.message


def test_a_linear_problem_may_be_unbounded():
    sol = control.solve(problem(stage=lambda x, u: u[0], final=lambda x: x[0]), US, max_steps=20)
    assert not sol.success
    assert "unbounded" in sol.message


def test_options_are_checked():
    with pytest.raises(gnewt.OptionError, match="tol is nan"):
        control.solve(problem(), US, tol=np.nan)
    refused("expected a control.Problem", lambda: control.solve(US, problem()))
    refused("iterations is -1", lambda: control.mpc_step(problem(), X0, US, iterations=-1))
