"""Lifted graphs: steps with gaps, unstable systems, agreement with the plain form, and what a user may get wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton.constrained.barrier import Barrier, Dual, Weights
from gnewt.newton.constrained.joint import make_joint
from gnewt.newton.constrained.lifted import read_start
from gnewt.newton.constrained.run import make_model, prepare
from helpers.random_graphs import random_graph
from helpers.small_dag import Dag, cross_loss, make_dag, phi


def rollout(horizon: int, growth: float, cubic: float = 0.0):
    """x⁺ = growth·x + cubic·x³ + u from x = 1; the states are kept."""

    def f(u):
        def body(x, u):
            after = growth * x + cubic * x**3 + u
            return after, (after, 0.5 * after**2)

        first = jnp.ones((), u.dtype)
        _, (states, costs) = jax.lax.scan(body, first, u)
        return jnp.sum(costs) + 0.05 * jnp.sum(u**2), {"x": jnp.concatenate([first[None], states])}

    return f, np.zeros(horizon), np.linspace(1.0, 0.0, horizon + 1)


# Steps


def dense_step(barrier: Barrier, at, y, gradient, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """[[W + δ, Jᵀ], [J, 0]] [dw; dy] = -[∇L; r] over all slots, by JAX from the local functions."""
    model = barrier.model
    a, structure = model.augmented, model.augmented.structure
    n, m = model.size, a.num_equalities
    data = model.point(at.w[:n]).data
    keep = np.r_[np.arange(n), np.arange(n + m, structure.num_slots)]

    def rows_and_loss(v):
        s = jnp.zeros(structure.num_slots).at[keep].set(v)
        found, loss = jnp.zeros(structure.num_slots), 0.0
        for family, columns in zip(structure.families, data, strict=True):
            for i, args in enumerate(family.args):
                own = [
                    jnp.asarray(c if axis is None else c[i])
                    for axis, c in zip(family.data_axes, columns, strict=True)
                ]
                value = family.fn(s[args], *own)
                if family.is_loss:
                    loss = loss + value
                else:
                    found = found.at[family.outs[i]].add(value)
        gaps = found[n + m :] - s[n + m :]
        return jnp.concatenate([s[a.equalities] - barrier.box.target, gaps]), loss

    v = at.values.slots[keep]
    rows = np.asarray(rows_and_loss(v)[0])
    jacobian = np.asarray(jax.jacobian(lambda v: rows_and_loss(v)[0])(v))

    def lagrangian(v):
        rows, loss = rows_and_loss(v)
        return loss + rows @ y

    w = np.asarray(jax.hessian(lagrangian)(v)) + delta * np.eye(len(v))
    none = np.zeros((len(y), len(y)))
    k = np.block([[w, jacobian.T], [jacobian, none]])
    z = np.linalg.solve(k, -np.concatenate([np.asarray(jax.grad(lagrangian)(v)), rows]))
    return z[: len(v)], z[len(v) :]


def check_step(seed: int, graph: gnewt.Graph, values: list[np.ndarray], constrained: bool) -> None:
    rng = np.random.default_rng(seed)
    if constrained:
        handle = graph.nodes[-1]
        graph.equal(handle, rng.normal(size=handle.shape))
    joint = make_joint(graph, values, (), {}, None, None, False)
    joint = joint.__class__(**(joint.__dict__ | {"lifted": read_start(True, joint.point.structure, {})}))
    model = make_model(joint, "auto", "exact", "auto")
    barrier, w, dual = prepare(joint, model, np.asarray(joint.point.x))
    barrier = Barrier(model, barrier.box, barrier.scale._replace(f=np.float64(1), rows=np.ones_like(dual.y)))
    at = barrier.at(rng.normal(size=len(w)))
    y = rng.normal(size=len(dual.y))
    models, gradient = barrier.linearize(at, y, np.float64(1))
    none = np.zeros_like(w)
    delta = 50.0
    step, _ = barrier.steps(
        at,
        models,
        Dual(y, none, none),
        Weights(np.float64(1), np.zeros_like(y), none),
        gradient[:, None],
        barrier.residual(at)[:, None],
        np.float64(delta),
    )
    dw, dy = dense_step(barrier, at, y, gradient, delta)
    assert np.max(np.abs(step.w[:, 0] - dw)) <= 1e-9 * max(1.0, np.max(np.abs(dw))), seed
    assert np.max(np.abs(step.y[:, 0] - dy)) <= 1e-9 * max(1.0, np.max(np.abs(dy))), seed


def test_steps_equal_dense_steps_with_gaps() -> None:
    for seed in range(2):
        case = random_graph(seed)
        check_step(seed, case.graph, case.values, seed % 2 == 0)


@pytest.mark.slow
def test_steps_of_200_graphs_equal_dense_steps_with_gaps() -> None:
    for seed in range(200):
        case = random_graph(seed)
        check_step(seed, case.graph, case.values, seed % 2 == 0)


# Solutions


def test_unstable_system_from_a_line() -> None:
    """The rollout of the start overflows; the slots on a line do not."""
    for growth, cubic in ((1.1, 1.0), (36.0, 0.0)):
        f, u, line = rollout(200, growth, cubic)
        assert not np.isfinite(f(u)[0])
        res = gnewt.minimize(f, u, has_aux=True, lifted={"x": line})
        assert res.status == "converged" and res.gap <= 1e-9
        assert res.outputs["x"][0] == 1.0
        np.testing.assert_allclose(res.outputs["x"][1], growth + cubic + res.x[0], atol=1e-9)


@pytest.mark.slow
def test_unstable_system_with_limits() -> None:
    f, u, line = rollout(200, 10.0)
    res = gnewt.minimize(
        f, u, has_aux=True, lifted={"x": line}, bounds=(-12.0, 12.0), constraints={"x": (-2.0, 3.0)}
    )
    assert res.status == "converged" and res.gap <= 1e-9 and res.violation <= 1e-8


@pytest.mark.slow
def test_stable_system_agrees_with_the_plain_form() -> None:
    f, u, line = rollout(30, 0.9, -0.05)
    plain = gnewt.minimize(lambda u: f(u)[0], u)
    for lifted in (True, {"x": line}):
        res = gnewt.minimize(f, u, has_aux=True, lifted=lifted)
        assert res.success and res.gap <= 1e-8
        np.testing.assert_allclose(res.x, plain.x, atol=1e-8)
        np.testing.assert_allclose(res.fun, plain.fun, atol=1e-8)
    limits = {"bounds": (-0.3, 0.3), "constraints": {"x": (0.1, None)}, "has_aux": True}
    one = gnewt.minimize(f, u, **limits)
    two = gnewt.minimize(f, u, lifted={"x": line}, **limits)
    assert one.success and two.success
    np.testing.assert_allclose(two.x, one.x, atol=1e-6)
    np.testing.assert_allclose(two.multipliers["x"], one.multipliers["x"], atol=1e-5)


def test_some_nodes_are_lifted_and_others_computed() -> None:
    """Every tenth state holds a value; the nine between follow from it."""
    horizon = 40

    def f(u):
        x, kept, cost = jnp.ones(()), [], 0.0
        for t in range(horizon):
            x = 1.2 * x + 0.1 * jnp.sin(x) * x + u[t]
            cost = cost + x**2 + 0.1 * u[t] ** 2
            if t % 10 == 9:
                kept.append(x)
        return cost, {"kept": jnp.stack(kept)}

    res = gnewt.minimize(f, np.zeros(horizon), has_aux=True, lifted={"kept": np.zeros(4)})
    assert res.success and res.gap <= 1e-8
    assert np.max(np.abs(jax.grad(lambda u: f(u)[0])(res.x))) < 1e-5
    np.testing.assert_allclose(res.outputs["kept"], f(res.x)[1]["kept"], atol=1e-7)


@pytest.mark.slow
def test_jit_and_vmap_agree_with_the_host() -> None:
    f, u, line = rollout(8, 1.5, 0.1)

    def solve(line):
        res = gnewt.minimize(
            f, u, has_aux=True, lifted={"x": line}, constraints={"x": (-1.0, 2.0)}, max_steps=40
        )
        return res.code, res.num_steps, res.x, res.gap

    lines = jnp.asarray(line) * jnp.asarray([[0.4], [1.0]])
    codes, steps, xs, gaps = jax.jit(jax.vmap(solve))(lines)
    for i in range(2):
        code, step, x, gap = solve(lines[i])
        assert code == codes[i] and step == steps[i] and max(gap, gaps[i]) <= 1e-8
        np.testing.assert_allclose(xs[i], x, atol=1e-8)


# Graphs


def chain(horizon: int) -> tuple[gnewt.Graph, list]:
    g = gnewt.Graph()
    handles, x = [], g.input(name="x0")
    g.loss(lambda x: 10 * (x - 1) ** 2, x)
    for t in range(horizon):
        u = g.input(name=f"u{t}")
        x = g.node(lambda x, u: 1.1 * x + x**3 + u, x, u)
        g.loss(lambda x, u: x**2 + 0.1 * u**2, x, u)
        handles.append(x)
    return g, handles


@pytest.mark.slow
def test_explicit_graphs() -> None:
    g, handles = chain(20)
    start = [np.ones(())] + [np.zeros(())] * 20
    one = gnewt.minimize(g, start, lifted={h: 0.1 for h in handles})
    two = gnewt.minimize(g, start, lifted={h: 0.1 for h in handles[::2]})
    assert one.success and two.success and max(one.gap, two.gap) <= 1e-8
    np.testing.assert_allclose(np.array(one.x), np.array(two.x), atol=1e-7)
    assert set(two.outputs) == {h.name for h in handles[::2]}


def test_a_dag_without_bounds_or_constraints() -> None:
    dag: Dag = make_dag((2, 2, 2, 2), ((), (), (0, 1), (0, 2)), 3)
    assert dag.graph.structure().num_pairs == 4 and callable(phi) and callable(cross_loss)
    start = [np.full(2, 0.3), np.full(2, -0.2)]
    res = gnewt.minimize(dag.graph, start, lifted=True)
    assert res.success and res.gap <= 1e-8
    x = jnp.concatenate([jnp.asarray(v) for v in res.x])
    assert np.max(np.abs(jax.grad(dag.objective)(x))) < 1e-6


# Mistakes


@pytest.mark.parametrize(
    ("lifted", "words"),
    [
        ({"y": np.zeros(9)}, "no entry 'y'"),
        ({"x": np.zeros(3)}, "shape"),
        ({"x": np.full(9, np.nan)}, "not finite"),
        ({"x": {"a": np.zeros(9)}}, "structure"),
        ({}, "no value"),
        ("x", "is a str"),
    ],
)
def test_mistakes(lifted: object, words: str) -> None:
    f, u, _ = rollout(8, 1.0)
    with pytest.raises(gnewt.ConstraintError, match=words):
        gnewt.minimize(f, u, has_aux=True, lifted=lifted)


def test_names_need_auxiliary_data() -> None:
    f, u, line = rollout(8, 1.0)
    with pytest.raises(gnewt.ConstraintError, match="has_aux"):
        gnewt.minimize(lambda u: f(u)[0], u, lifted={"x": line})
