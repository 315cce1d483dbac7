"""Bounds and constraints that mean nothing: what, which one, where it was written, what to do."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

HERE = "test_errors.py"
X0 = jnp.zeros(3)


def cost(x: Any) -> Any:
    return jnp.sum((x - 1) ** 2)


def refused(match: str, **options: Any) -> None:
    with pytest.raises(gnewt.ConstraintError, match=f"{match}[\\s\\S]*{HERE}[\\s\\S]*what to do"):
        gnewt.minimize(cost, X0, **options)


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ([(0, 1), (0, 1), (0, 1)], "list of 3 pairs.*SciPy"),
        ((1.0, 0.0), r"the bounds of x\[0\] cross: 1 > 0"),
        (([0, 0, 2], 1.0), r"the bounds of x\[2\] cross: 2 > 1"),
        ((np.nan, 1.0), "the lower bound is NaN"),
        ((None, [0.0, 1.0]), r"the upper bound has shape \(2,\).*\(3,\)"),
        (("a", None), "the lower bound is 'a', not a number"),
        (({"a": 0.0}, None), "the lower bound"),
        (3.0, "bounds is a float"),
        ((np.inf, None), "cross|leave nothing"),
    ],
)
def test_bounds(bounds: Any, match: str) -> None:
    refused(match, bounds=bounds)


def test_two_pairs_of_a_vector_of_two() -> None:
    with pytest.raises(gnewt.ConstraintError, match="SciPy"):
        gnewt.minimize(cost, jnp.zeros(2), bounds=[(0, 1), (0, 1)])


def test_all_variables_are_fixed() -> None:
    refused("fix every variable", bounds=(1.0, 1.0))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: [gnewt.between(lambda x: x, 1.0, [2.0, 0.0, 2.0])], "constraint 0 cross: 1 > 0 at entry 1"),
        (lambda: {"ring": gnewt.between(lambda x: x @ x, np.nan, 1.0)}, "lower limit of 'ring' is NaN"),
        (lambda: {"ring": gnewt.equal(lambda x: x @ x, np.inf)}, "target of 'ring' is not finite"),
        (lambda: {"ring": gnewt.equal(lambda x: x[:2], jnp.zeros(3))}, r"'ring' has shape \(3,\)"),
        (lambda: {"flag": gnewt.equal(lambda x: x > 0)}, "'flag' returns bool"),
        (lambda: {"none": gnewt.equal(lambda x: ())}, "'none' returns nothing"),
        (
            lambda: {"one": gnewt.between(lambda x: jnp.ones(2), [0.0, 3.0], 4.0)},
            "entry 1 of 'one' does not depend on x",
        ),
        (lambda: gnewt.between(lambda x: x), "without a limit"),
        (lambda: gnewt.equal(3.0), "given a float, not a function"),
        (lambda: [lambda x: x], "constraint 0 is a function"),
        (lambda: lambda x: x, "constraints is a function"),
        (lambda: {"a": 3.0}, "constraint 'a' is a float"),
        (lambda: {"a": (None, None)}, "'a' has no limit"),
    ],
)
def test_constraints(make: Any, match: str) -> None:
    with pytest.raises(gnewt.ConstraintError, match=f"{match}[\\s\\S]*{HERE}"):
        gnewt.minimize(cost, X0, constraints=make())


def test_the_line_is_that_of_the_constraint() -> None:
    rows = gnewt.between(lambda x: x, 2.0, 1.0)  # this line
    line = test_the_line_is_that_of_the_constraint.__code__.co_firstlineno + 1
    with pytest.raises(gnewt.ConstraintError, match=f"{HERE}:{line}"):
        gnewt.minimize(cost, X0, constraints=[rows])


def test_auxiliary_entries() -> None:
    f = lambda x: (cost(x), {"sum": jnp.sum(x)})  # noqa: E731
    with pytest.raises(gnewt.ConstraintError, match=r"no entry 'total'[\s\S]*'sum'"):
        gnewt.minimize(f, X0, has_aux=True, constraints={"total": (0, 1)})
    with pytest.raises(gnewt.ConstraintError, match=r"'sum'.*has_aux=True"):
        gnewt.minimize(cost, X0, constraints={"sum": (0, 1)})
    with pytest.raises(gnewt.ConstraintError, match="is a tuple, and 'sum' names an entry"):
        gnewt.minimize(lambda x: (cost(x), (1.0,)), X0, has_aux=True, constraints={"sum": (0, 1)})


def test_graphs_have_constraints_of_their_own() -> None:
    g = gnewt.Graph()
    a = g.input(name="a")
    g.loss(lambda a: a**2, a)
    with pytest.raises(gnewt.ConstraintError, match="a graph has its own"):
        gnewt.minimize(g, [jnp.ones(())], constraints=[gnewt.equal(lambda x: x[0])])
    with pytest.raises(gnewt.GraphError, match="constant"):
        g.equal(g.constant(1.0))
    with pytest.raises(gnewt.GraphError, match="without a limit"):
        g.between(a)
    g.between(a, 2.0, 1.0)
    with pytest.raises(gnewt.ConstraintError, match=f"'a' cross[\\s\\S]*{HERE}"):
        gnewt.minimize(g, [jnp.ones(())])


def test_nothing_depends_on_x() -> None:
    with pytest.raises(gnewt.ConstraintError, match="neither the objective nor a constraint"):
        gnewt.minimize(lambda x: 1.0, X0, constraints=[gnewt.equal(lambda x: 1.0, 1.0)])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"search": gnewt.newton.LineSearch()}, "LineSearch.*filter"),
        ({"duals": "value"}, "duals='value'"),
        ({"back_substitution": "nonlinear"}, "back_substitution"),
        ({"engine": "products"}, "engine='products'.*inertia"),
    ],
)
def test_options_that_make_no_sense(options: Any, match: str) -> None:
    with pytest.raises(gnewt.OptionError, match=match):
        gnewt.minimize(cost, X0, bounds=(0, 1), **options)


def test_a_start_outside_of_its_bounds_is_moved_with_a_notice() -> None:
    with pytest.warns(gnewt.StartNotice, match="1 of 3 entries"):
        res = gnewt.minimize(cost, jnp.array([9.0, 0.5, 0.5]), bounds=(0, 2))
    assert res.success


def test_a_tree_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNEWT_MAX_BYTES", "100")
    with pytest.raises(gnewt.PlanError, match="too wide"):
        gnewt.minimize(lambda x: jnp.sum(x @ x) ** 2, jnp.ones(7), bounds=(0, 2))
