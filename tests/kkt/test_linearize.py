"""Linearisation equals dense local derivatives on every program, and its cost does not follow the graph's length."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import Family, Irregular, Rounds, Structure
from gnewt.kkt import linearize
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import Differentiated, Written, local_derivatives
from gnewt.kkt.derivatives.machine import available
from gnewt.trace import trace_graph
from helpers.dense_models import dense_models, slots_of
from helpers.random_graphs import random_graph
from helpers.trace_programs import PROGRAMS, cartpole
from helpers.unusual_programs import UNUSUAL


def models_of(structure: Structure, x, curvature="exact", native=False):
    run = jax.jit(lambda maps, data, x: linearize(structure, maps, data, x, curvature, native=native))
    models = run(structure.maps, structure.data, jnp.asarray(x))
    return SimpleNamespace(**{name: np.asarray(value) for name, value in vars(models).items()})


def check(structure: Structure, x, tolerance=1e-11, curvature="exact"):
    models = models_of(structure, x, curvature)
    slots = slots_of(structure, np.asarray(x))
    assert close(models.slots, slots, 1e3 * tolerance)
    expected = dense_models(structure, models.slots, curvature)
    agrees(models, expected, tolerance)
    if available():
        agrees(models_of(structure, x, curvature, native=True), expected, tolerance)
    return models


def agrees(models, expected, tolerance):
    value, duals, sources = expected
    assert abs(models.value - value) <= tolerance * max(1.0, abs(value))
    assert close(models.duals, duals, tolerance)
    assert close(models.sources, sources, tolerance)


def close(a, b, tolerance):
    assert a.shape == b.shape
    assert np.array_equal(np.isfinite(a), np.isfinite(b))
    ok = np.isfinite(b)
    return np.max(np.abs(a - b)[ok], initial=0.0) <= tolerance * max(1.0, np.max(np.abs(b[ok]), initial=0.0))


def flat(structure: Structure, args, argnums=0):
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    return np.concatenate([np.ravel(leaf) for i in numbers for leaf in jax.tree.leaves(args[i])]).astype(
        structure.dtype
    )


QUICK = {"scan_control", "rnn", "deep_network", "stencil_pde", "mixed_precision", "scatters", "nested_scans"}
"""The others are linearised by the tests of exactness and of steps as well."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_programs(name):
    f, args, *rest = PROGRAMS[name]()
    argnums = rest[0] if rest else 0
    structure = trace_graph(f, *args, argnums=argnums)
    coarse = structure.dtype == np.float32 or name == "mixed_precision"
    check(structure, flat(structure, args, argnums), 2e-4 if coarse else 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(UNUSUAL))
def test_unusual_programs(name):
    f, args = UNUSUAL[name]()
    structure = trace_graph(f, *args)
    check(structure, flat(structure, args))


@pytest.mark.parametrize(
    "seed", [*range(3), *[pytest.param(s, marks=pytest.mark.slow) for s in range(3, 80)]]
)
def test_random_graphs(seed):
    problem = random_graph(seed)
    structure = problem.graph.structure()
    check(structure, problem.flat, curvature=("exact", "gauss_newton")[seed % 2])


def chain(horizon, dtype=np.float64):
    def f(us):
        def stage(x, u):
            return cartpole(x, u), jnp.sum(x**2) + 0.1 * jnp.sum(u**2)

        x, costs = jax.lax.scan(stage, jnp.zeros(4, us.dtype), us)
        return costs.sum() + 10 * jnp.sum(x**2)

    return f, jnp.asarray(0.1 * np.random.default_rng(0).standard_normal((horizon, 1)), dtype)


def test_a_scan_is_rounds_without_index_arrays():
    f, us = chain(30)
    structure = trace_graph(f, us)
    assert [type(s).__name__ for s in structure.layout.segments].count("Rounds") == 1
    assert structure.layout.arrays == ()


def test_program_size_does_not_follow_the_horizon():
    sizes = []
    for horizon in (20, 200):
        f, us = chain(horizon)
        structure = trace_graph(f, us)
        lowered = jax.jit(lambda m, d, x, s=structure: linearize(s, m, d, x, "exact")).lower(
            structure.maps, structure.data, us.ravel()
        )
        sizes.append(lowered.as_text().count("\n"))
    assert sizes[0] == sizes[1]


def test_nothing_is_gathered_or_scattered_along_a_chain():
    f, us = chain(30)
    structure = trace_graph(f, us)
    text = (
        jax.jit(lambda m, d, x: linearize(structure, m, d, x, "exact"))
        .lower(structure.maps, structure.data, us.ravel())
        .as_text()
    )
    assert "stablehlo.gather" not in text
    assert "stablehlo.scatter" not in text


def test_float32_stays_float32():
    f, us = chain(30, np.float32)
    structure = trace_graph(f, us)
    models = check(structure, us.ravel(), 2e-5)
    assert {a.dtype for a in vars(models).values()} == {np.dtype(np.float32)}


def graph_with_lags():
    """x_t reads x_{t-1} and x_{t-3}; every x_t adds to one total, which is used nonlinearly."""
    g = gnewt.Graph()
    u = [g.input(name=f"u{t}") for t in range(12)]
    x = [g.constant(0.1), g.constant(0.2), g.constant(0.3)]
    for t in range(12):
        x.append(g.node(lambda a, c, u: jnp.sin(a) * c + u, x[-1], x[-3], u[t]))
    total = g.sum(lambda x, u: x * u**2, list(zip(x[3:], u, strict=True)))
    g.loss(lambda s: (s - 1.0) ** 2, total)
    for v in u:
        g.loss(lambda v: v**2 + v**4, v)
    return g.structure()


def test_long_memory():
    structure = graph_with_lags()
    rounds = [s for s in structure.layout.segments if isinstance(s, Rounds)]
    assert rounds and max(r.num_state for r in rounds) == 3
    check(structure, np.linspace(-0.5, 0.5, 12))


def test_rounds_that_read_places_without_a_pattern():
    """A chain whose nodes also read any earlier node: no recurrence, and still right."""
    rng = np.random.default_rng(3)
    g = gnewt.Graph()
    u = [g.input(name=f"u{t}") for t in range(20)]
    x = [g.constant(0.3)]
    for t in range(20):
        x.append(g.node(lambda a, b, u: jnp.cos(a) * b + u, x[-1], x[int(rng.integers(len(x)))], u[t]))
        g.loss(lambda x, u: x**2 * u + u**2, x[-1], u[t])
    structure = g.structure()
    assert any(isinstance(s, Irregular) for s in structure.layout.segments)
    check(structure, rng.standard_normal(20))


def test_repeated_arguments_and_outputs_add_up():
    """One instance reads a slot twice; several instances define one slot."""
    g = gnewt.Graph()
    a, b = g.input((2,), name="a"), g.input((2,), name="b")
    n = g.node(lambda x, y: x * y + jnp.sin(x), a, a)
    s = g.sum(lambda x, y: x**2 * y, [(n, a), (a, b), (b, b)])
    g.loss(lambda s, n: jnp.sum(s**2) + jnp.sum(jnp.exp(n)), s, n)
    check(g.structure(), np.array([0.3, -0.4, 0.5, 0.8]))


def families(*given, num_inputs, num_slots, data=None):
    aval = jax.ShapeDtypeStruct((num_inputs,), jnp.float64)
    tree = jax.tree.structure(0)
    data = data or tuple(() for _ in given)
    return Structure(tuple(given), num_inputs, num_slots, tree, (aval,), ("x",), data)


def test_families_without_arguments_or_instances():
    constant = Family(lambda x, c: c, np.zeros((2, 0), np.int32), np.array([[3], [4]], np.int32), (0,))
    node = Family(
        lambda x: jnp.stack([x[0] * x[1]]),
        np.array([[0, 3], [1, 4]], np.int32),
        np.array([[5], [6]], np.int32),
    )
    empty = Family(lambda x: jnp.sum(x**2), np.zeros((0, 3), np.int32))
    free = Family(lambda x: 3.0, np.zeros((1, 0), np.int32))
    loss = Family(lambda x: jnp.sum(x**3), np.array([[0, 2, 5, 6]], np.int32))
    data = ((np.array([[2.0], [3.0]]),), (), (), (), ())
    structure = families(constant, node, empty, free, loss, num_inputs=3, num_slots=7, data=data)
    check(structure, np.array([0.5, -0.3, 0.7]))


def test_integer_data():
    power = Family(
        lambda x, p, table: jnp.stack([x[0] ** p * table[p]]),
        np.array([[0], [1], [2]], np.int32),
        np.array([[3], [4], [5]], np.int32),
        (0, None),
    )
    loss = Family(lambda x: jnp.sum(x**2), np.array([[3, 4, 5]], np.int32))
    data = ((np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5, 3.5])), ())
    structure = families(power, loss, num_inputs=3, num_slots=6, data=data)
    check(structure, np.array([0.5, -0.3, 0.7]))


def large(x):
    """Too many operations to write out one by one."""
    w = jnp.asarray(np.random.default_rng(0).standard_normal((12, 30)) / 6)
    return jnp.tanh(w @ x) * jnp.roll(jnp.sin(w) @ x, 1) + x[:12]


def test_both_routes():
    n, k = 5, 30
    args = np.arange(n * k, dtype=np.int32).reshape(n, k)
    outs = n * k + np.arange(n * 12, dtype=np.int32).reshape(n, 12)
    extra = n * k + n * 12 + np.arange(n, dtype=np.int32)[:, None]
    node = Family(large, args, outs)
    small = Family(lambda x: jnp.stack([x[0] * jnp.sin(x[1])]), args[:, :2], extra)
    loss = Family(lambda x: jnp.sum(jnp.cos(x) ** 2), np.concatenate([outs, extra], axis=1))
    structure = families(node, small, loss, num_inputs=n * k, num_slots=n * k + 13 * n)
    x = np.random.default_rng(1).standard_normal(n * k)
    kinds = [
        type(local_derivatives(structure, f, jnp.zeros((family.k, n)), (), Keeper(jnp.zeros(1))))
        for f, family in enumerate(structure.families)
    ]
    assert kinds[:2] == [Differentiated, Written]
    check(structure, x)


def test_linear_arguments_of_a_large_function():
    """Columns that do not depend on x are computed once, with data of their own or shared."""

    def psi(x, c):
        return large(x[5:]) * c + jnp.concatenate([x[:5], x[:5], x[:2]])

    n, k = 4, 35
    args = np.arange(n * k, dtype=np.int32).reshape(n, k)
    outs = n * k + np.arange(n * 12, dtype=np.int32).reshape(n, 12)
    hess = np.zeros((k, k), bool)
    hess[5:, 5:] = True
    for axis, c in ((0, np.array([1.0, 2.0, 3.0, 4.0])), (None, np.array(2.0))):
        node = Family(psi, args, outs, (axis,), hess_pattern=hess)
        loss = Family(lambda x: jnp.sum(x**4), outs)
        structure = families(node, loss, num_inputs=n * k, num_slots=n * k + 12 * n, data=((c,), ()))
        check(structure, np.random.default_rng(2).standard_normal(n * k))


def test_kept_zeros_are_exact_where_the_function_is_not_finite():
    """A branch that is not taken leaves no NaN behind, and neither does a product with a structural zero."""

    def f(x):
        safe = jnp.where(x[:3] > 0, x[:3], 1.0)
        return jnp.sum(jnp.where(x[:3] > 0, jnp.sqrt(safe), 0.0)) + jnp.sum(x**2)

    x = jnp.array([1.0, -1.0, 0.0, 2.0])
    structure = trace_graph(f, x)
    models = models_of(structure, x)
    assert np.isfinite(models.sources).all()
    assert close(models.duals[:4], np.asarray(jax.grad(f)(x)), 1e-13)


def test_under_vmap():
    f, us = chain(15)
    structure = trace_graph(f, us)
    batch = jnp.stack([us.ravel(), 2 * us.ravel(), -us.ravel()])

    def run(x):
        models = linearize(structure, structure.maps, structure.data, x, "exact")
        return models.sources, models.duals

    sources, duals = jax.jit(jax.vmap(run))(batch)
    for i, x in enumerate(batch):
        one = models_of(structure, x)
        assert close(np.asarray(sources[i]), one.sources, 1e-12)
        assert close(np.asarray(duals[i]), one.duals, 1e-12)


def substeps(flow, count, horizon=24, data=False, dtype=np.float64):
    """A scan whose body calls a flow of ten states again and again."""
    rng = np.random.default_rng(3)
    weights = jnp.asarray(rng.standard_normal((horizon, 2)), dtype)

    def f(us):
        def stage(x, at):
            u, w = at
            for _ in range(count):
                x = x + 0.1 * flow(x, u, w if data else jnp.ones(2, us.dtype))
            return x, jnp.sum(x**2) + jnp.sum(u**2)

        x, costs = jax.lax.scan(stage, jnp.full(10, 0.3, us.dtype), (us, weights))
        return costs.sum() + jnp.sum(x**4)

    return f, jnp.asarray(0.3 * rng.standard_normal((horizon, 2)), dtype)


def swirl(x, u, w):
    turned = jnp.sin(x[:5]) * jnp.cos(x[5:]) / (1.5 + jnp.tanh(x[1] * x[7])) + w[0] * jnp.cos(x[3]) * u[0]
    return jnp.concatenate([x[5:], turned * u[1] + w[1] * jnp.exp(-(x[0] ** 2))]) - x


def kinked(x, u, w):
    return swirl(jnp.where(x[0] > 0.3, x, jnp.maximum(x, 0.1) ** 2), u, w)


@pytest.mark.parametrize("data", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_long_functions_are_taken_apart(data):
    f, us = substeps(swirl, 4, horizon=40, data=data)
    structure = trace_graph(f, us)
    assert "InParts" in {type(route).__name__ for route in routes_of(structure, us)}
    check(structure, us.ravel())


@pytest.mark.slow
def test_long_functions_with_conditions():
    f, us = substeps(kinked, 2, data=True)
    check(trace_graph(f, us), us.ravel())


@pytest.mark.slow
def test_a_long_function_in_float32():
    f, us = substeps(swirl, 4, horizon=40, dtype=np.float32)
    structure = trace_graph(f, us)
    models = check(structure, us.ravel(), 2e-4)
    assert {a.dtype for a in vars(models).values()} == {np.dtype(np.float32)}


def test_a_function_with_a_derivative_of_its_own_is_left_whole():
    @jax.custom_jvp
    def half(x):
        return 0.5 * x**2

    half.defjvp(lambda x, t: (half(x[0]), 3.0 * x[0] * t[0]))
    f, us = substeps(lambda x, u, w: swirl(half(x), u, w), 2)
    structure = trace_graph(f, us)
    assert "InParts" not in {type(route).__name__ for route in routes_of(structure, us)}
    check(structure, us.ravel())


def routes_of(structure, us):
    slots = jnp.asarray(slots_of(structure, np.asarray(us).ravel()))
    keeper = Keeper(slots)
    return [
        local_derivatives(
            structure, f, structure.layout.args[f].read(slots, structure.maps), structure.data[f], keeper
        )
        for f in range(len(structure.families))
    ]
