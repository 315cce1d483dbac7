"""What bounds and constraints may look like, and that all forms of one problem have one solution."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds

import gnewt

GOAL = jnp.array([1.0, 2.0, 3.0])


def cost(x: Any) -> Any:
    return jnp.sum((x - GOAL) ** 2) + 0.1 * x[0] * x[1]


@pytest.mark.parametrize(
    "bounds",
    [
        (-np.inf, 1.5),
        (None, [1.5, 1.5, 1.5]),
        ([None, -9.0, None], jnp.full(3, 1.5)),
        (jnp.array([-jnp.inf, -9.0, -9.0]), np.array([1.5, 1.5, 1.5])),
        Bounds(-9.0, 1.5),
        Bounds([-9.0] * 3, [1.5] * 3),
    ],
)
def test_forms_of_bounds_of_an_array(bounds: Any) -> None:
    res = gnewt.minimize(cost, jnp.zeros(3), bounds=bounds)
    assert res.success and res.violation == 0
    assert np.allclose(res.x, [0.925, 1.5, 1.5], atol=1e-6)
    assert np.all(np.asarray(res.x) <= 1.5)


def test_bounds_of_a_pytree_with_parts_left_out() -> None:
    x0 = {"a": jnp.zeros(2), "b": (jnp.zeros(()), jnp.zeros(2))}

    def f(x: Any) -> Any:
        return jnp.sum((x["a"] - 2) ** 2) + (x["b"][0] - 2) ** 2 + jnp.sum((x["b"][1] + 2) ** 2)

    res = gnewt.minimize(f, x0, bounds=({"a": None, "b": -1.0}, {"a": [1.0, None], "b": (np.inf, None)}))
    assert np.allclose(res.x["a"], [1, 2], atol=1e-6)
    assert np.allclose(res.x["b"][0], 2, atol=1e-6) and np.allclose(res.x["b"][1], -1, atol=1e-6)
    assert np.allclose(res.bound_multipliers["a"], [2, 0], atol=1e-6)
    assert np.allclose(res.bound_multipliers["b"][1], [-2, -2], atol=1e-6)


def test_one_a_list_a_dict_and_auxiliary_entries_are_one_problem() -> None:
    line, disc = gnewt.equal(lambda x: x[0] + x[1], 1.0), gnewt.between(lambda x: x @ x, None, 4.0)

    def with_aux(x: Any) -> Any:
        return cost(x), {"line": x[0] + x[1], "disc": x @ x, "other": jnp.arange(3)}

    x0 = jnp.zeros(3)
    found = [
        gnewt.minimize(cost, x0, constraints=[line, disc]),
        gnewt.minimize(cost, x0, constraints={"line": line, "disc": disc}),
        gnewt.minimize(with_aux, x0, has_aux=True, constraints={"line": (1.0, 1.0), "disc": (None, 4.0)}),
        gnewt.minimize(with_aux, x0, has_aux=True, constraints={"line": line, "disc": (-np.inf, 4.0)}),
    ]
    for res in found:
        assert res.success
        assert np.allclose(res.x, found[0].x, atol=1e-7)
    y = found[0].multipliers
    assert isinstance(y, list) and len(y) == 2
    for res in found[1:]:
        assert np.allclose(res.multipliers["line"], y[0], atol=1e-6)
        assert np.allclose(res.multipliers["disc"], y[1], atol=1e-6)
        assert bool(res.active["line"]) and bool(res.active["disc"])
    alone = gnewt.minimize(cost, x0, constraints=line)
    assert np.ndim(alone.multipliers) == 0 and alone.success


def test_constraints_return_pytrees_and_take_all_arguments() -> None:
    def f(x: Any, shift: Any, scale: Any = 1.0) -> Any:
        return scale * jnp.sum((x - shift) ** 2)

    def both(x: Any, shift: Any, scale: Any = 1.0) -> Any:
        return {"sum": jnp.sum(x) * scale, "parts": (x[:2] - shift[:2], x[2])}

    limits = gnewt.between(
        both, {"sum": -1.0, "parts": (None, 0.5)}, {"sum": 1.0, "parts": ([0.0, np.inf], 0.5)}
    )
    res = gnewt.minimize(f, jnp.zeros(3), (GOAL,), kwargs={"scale": 2.0}, constraints=limits)
    assert res.success
    assert np.allclose(2 * jnp.sum(res.x), 1.0, atol=1e-6) and np.allclose(res.x[2], 0.5, atol=1e-6)
    assert res.multipliers["parts"][0].shape == (2,)
    assert bool(res.active["parts"][1])  # equal limits are an equality


def test_rows_that_do_not_depend_on_x_play_no_part() -> None:
    def rows(x: Any) -> Any:
        return jnp.concatenate([jnp.ones(2), x[:1]])

    res = gnewt.minimize(cost, jnp.zeros(3), constraints=gnewt.between(rows, 0.0, 1.0))
    free = gnewt.minimize(cost, jnp.zeros(3), constraints=gnewt.between(lambda x: x[0], 0.0, 1.0))
    assert res.success and np.allclose(res.x, free.x, atol=1e-7)
    assert np.array_equal(res.multipliers[:2], [0, 0]) and not np.any(res.active[:2])


def test_fixed_variables_are_exact_and_have_multipliers() -> None:
    bounds = ([0.3, -np.inf, -np.inf], [0.3, np.inf, 1.0])
    res = gnewt.minimize(cost, jnp.zeros(3), bounds=bounds)
    assert res.success and res.x[0] == 0.3
    z = np.asarray(res.bound_multipliers)
    assert np.allclose(z, [1.4 - 0.1 * res.x[1], 0, 4.0], atol=1e-6)


def test_a_constant_objective_finds_a_feasible_point() -> None:
    circle = gnewt.equal(lambda x: x @ x, 2.0)
    res = gnewt.minimize(lambda x: 7.0, jnp.array([2.0, 0.5]), constraints=[circle], bounds=(0, None))
    assert res.success and res.fun == 7.0 and np.allclose(res.x @ res.x, 2.0, atol=1e-7)


def test_a_graph_by_hand() -> None:
    g = gnewt.Graph()
    a, b = g.input((2,), name="a"), g.input(name="b")
    c = g.node(lambda a, b: a * b, a, b, name="c")
    g.loss(lambda c, b: jnp.sum((c - 3) ** 2) + b**2, c, b)
    g.equal(c, jnp.array([1.0, 2.0]))
    g.between(a, None, 1.5)
    g.between(b, 0.5, np.inf)
    res = gnewt.minimize(g, [jnp.ones(2), jnp.ones(())], bounds=(None, [None, 5.0]))

    def f(x: Any) -> Any:
        return jnp.sum((x[:2] * x[2] - 3) ** 2) + x[2] ** 2

    plain = gnewt.minimize(
        f,
        jnp.ones(3),
        constraints=[gnewt.equal(lambda x: x[:2] * x[2], jnp.array([1.0, 2.0]))],
        bounds=([None, None, 0.5], [1.5, 1.5, 5.0]),
    )
    assert res.success and plain.success
    assert np.allclose([*res.x[0], res.x[1]], plain.x, atol=1e-6)
    assert len(res.multipliers) == 3
    assert np.allclose(res.multipliers[0], plain.multipliers[0], atol=1e-5)


@pytest.mark.parametrize("engine", ["native", "xla", "reference"])
@pytest.mark.parametrize("order", ["auto", "causal"])
def test_engines_and_orders(engine: str, order: Any) -> None:
    f = lambda x: jnp.sum(jnp.sin(x) ** 2) + jnp.sum(x)  # noqa: E731
    rows = [gnewt.equal(lambda x: x[0] * x[1], 1.0), gnewt.between(lambda x: x[1] * x[2], None, 2.0)]
    start = jnp.array([1.0, 2.0, 0.5])
    try:
        res = gnewt.minimize(f, start, constraints=rows, bounds=(0.1, 5), engine=engine, order=order)
    except gnewt.PlanError:
        pytest.skip("the native library is not built")
    reference = gnewt.minimize(f, start, constraints=rows, bounds=(0.1, 5))
    assert res.success and np.allclose(res.x, reference.x, atol=1e-6)


def test_gauss_newton_is_supported() -> None:
    def f(x: Any) -> Any:
        r = jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])
        return 0.5 * jnp.sum(r**2)

    disc = gnewt.between(lambda x: x @ x, None, 1.0)
    exact = gnewt.minimize(f, jnp.array([-0.5, 0.5]), constraints=[disc])
    res = gnewt.minimize(f, jnp.array([-0.5, 0.5]), constraints=[disc], curvature="gauss_newton")
    assert res.success and np.allclose(res.x, exact.x, atol=1e-5)


def test_an_order_of_slots() -> None:
    g = gnewt.Graph()
    u = [g.input(name=f"u{t}") for t in range(4)]
    x = g.constant(1.0)
    nodes = []
    for t in range(4):
        x = g.node(lambda x, u: 0.9 * x + jnp.sin(u), x, u[t], name=f"x{t}")
        nodes.append(x)
        g.loss(lambda x, u: x**2 + u**2, x, u[t])
    g.equal(x, 0.25)
    start = [jnp.zeros(())] * 4
    order = [h for t in reversed(range(4)) for h in (nodes[t], u[t])]
    res = gnewt.minimize(g, start, order=order)
    assert res.success and np.allclose(res.x, gnewt.minimize(g, start).x, atol=1e-8)
