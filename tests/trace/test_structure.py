"""What the structures look like: few families, few slots, and nothing that grows with the length of a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.jaxprs import flatten_jaxpr
from gnewt.jaxprs.liveness import dependents
from gnewt.trace import trace_graph
from gnewt.trace.unrolled_loops import roll_program
from helpers.trace_programs import PROGRAMS, cartpole, control, points, reduction, unrolled


def test_scan_control_keeps_the_states_only():
    for T in (10, 100):
        graph = trace_graph(control, points(T, 1))
        assert graph.num_pairs == 4 * T + 4  # and the constant initial state
        assert len(graph.families) == 4
        assert max(f.k for f in graph.families) == 5


@pytest.mark.parametrize("name", ["second_order", "delay"])
def test_shift_registers_cost_no_slots(name):
    f, (us,) = PROGRAMS[name]()
    graph = trace_graph(f, us)
    assert graph.num_pairs <= us.shape[0] + 4
    assert max(fam.k for fam in graph.families) == 3


def test_running_sums_are_no_states():
    f, (us,) = PROGRAMS["running_cost_as_carry"]()
    graph = trace_graph(f, us)
    assert graph.num_pairs == 4 * us.shape[0] + 4


def test_unrolled_loop_is_rolled_again():
    counts = []
    for T in (15, 60):
        graph = trace_graph(unrolled, points(T, 1))
        counts.append(len(graph.families))
        assert graph.num_pairs <= 4 * T + 4
    assert counts[0] == counts[1] <= 6


def test_a_path_through_a_tree_is_no_loop():
    def f(us):
        total = jnp.zeros(())

        def grow(x, node, depth):
            nonlocal total
            u = us[node]
            total = total + 0.5**depth * (x @ x + 0.1 * u**2)
            if depth == 7:
                total = total + 10 * (1 + jnp.cos(x[0])) * 0.5**depth
                return
            for branch, wind in enumerate((-0.1, 0.1)):
                new = jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]) + wind)])
                grow(new, 2 * node + 1 + branch, depth + 1)

        grow(jnp.array([0.5, 0.0]), 0, 0)
        return total

    program = flatten_jaxpr(jax.make_jaxpr(f)(jnp.zeros(255)), [])
    assert roll_program(program, dependents(program.instrs, program.ins), program.ins) is program


def test_unrolled_scalar_cartpole_has_few_families():
    def f(us):
        x, total = [0.1, 0.2, -0.1, 0.05], 0.0
        for t in range(us.shape[0]):
            x = list(cartpole(x, [us[t]]))
            total = total + sum(v * v for v in x) + 0.1 * us[t] ** 2
        return total

    counts = []
    for T in (20, 50):
        graph = trace_graph(f, points(T))
        counts.append(len(graph.families))
        assert graph.num_pairs <= 4 * T + 4
    assert counts[0] == counts[1] <= 8


def test_unrolled_loop_with_a_delay_and_references():
    counts = []
    for T in (20, 40):
        reference = np.linspace(0, 1, T)

        def f(us, T=T, reference=reference):
            x, old, older, total = 0.3, 0.1, 0.2, 0.0
            for t in range(T):
                new = 0.9 * jnp.sin(x) - 0.2 * older + us[t] * jnp.cos(old)
                total = total + (new - reference[t]) ** 2 + 0.1 * us[t] ** 2 + jnp.exp(0.1 * new)
                x, old, older = new, x, old
            return total

        us = points(T)
        graph = trace_graph(f, us)
        counts.append(len(graph.families))
        assert graph.num_pairs <= T + 6
        np.testing.assert_allclose(graph(us), f(us), rtol=1e-13)
    assert counts[0] == counts[1] <= 10


def test_squared_sum_is_one_slot():
    graph = trace_graph(lambda x: jnp.sum(x**2) ** 2, points(500))
    assert graph.num_pairs == 1
    assert all(not f.hess_pattern.any() or f.k == 1 for f in graph.families)


def test_reduction_tree_stays_narrow():
    graph = trace_graph(reduction, points(256))
    assert max(f.k for f in graph.families) <= 4


def test_affine_residuals_keep_one_slot_each():
    # SBRYBND: a band of quadratic terms in every residual.
    def f(x):
        terms = x * (1 + x)
        band = sum(jnp.pad(terms, (5, 1))[i : i + x.shape[0]] for i in range(7) if i != 5)
        return jnp.sum((x * (2 + 5 * x**2) + 1 - band) ** 2)

    x = points(200)
    graph = trace_graph(f, x)
    assert graph.num_pairs <= 200
    assert len(graph.families) <= 10
    np.testing.assert_allclose(graph(x), f(x), rtol=1e-13)


def test_linear_arguments_have_no_curvature():
    graph = trace_graph(lambda x: jnp.sum(x[1:] * jnp.sin(x[:-1])) + 3 * jnp.sum(x), points(10))
    (product,) = [f for f in graph.families if f.k == 2]
    assert product.hess_pattern.sum() == 3  # (sin arg, sin arg) and the cross pair
    (linear,) = [f for f in graph.families if f.k == 1]
    assert not linear.hess_pattern.any()


def test_matrix_zeros_are_structural():
    A = np.diag(np.arange(1.0, 9)) + np.diag(np.ones(7), 1)
    graph = trace_graph(lambda x: jnp.sum(jnp.exp(jnp.asarray(A) @ x)), points(8))
    assert graph.num_pairs == 0
    assert max(f.k for f in graph.families) == 2


def test_equal_code_with_other_numbers_is_one_family():
    def f(x):
        total = 0.0
        for i in range(30):
            total = total + (i + 1.5) * jnp.sin(0.1 * i * x[i]) ** 2
        return total

    graph = trace_graph(f, points(30))
    assert len([fam for fam in graph.families if fam.n > 1]) == 1
    assert len(graph.families) <= 2


def test_text_names_lines_and_opaque_causes():
    def f(x):
        y = jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), x)
        return y @ y + jnp.sum(x**4)

    text = str(trace_graph(f, points(3)))
    assert "test_structure.py" in text
    assert "opaque" in text and "solve" in text
    assert "kept slots" in text


def test_constant_terms_are_a_family_without_arguments():
    graph = trace_graph(lambda x: jnp.sum(x**2) + 5.0, points(3))
    assert any(f.k == 0 and f.is_loss for f in graph.families)
    np.testing.assert_allclose(graph(jnp.zeros(3)), 5.0)


def test_no_slot_for_what_is_only_moved():
    def f(x):
        y = x.reshape(4, 5).T[::-1][:, 1:]
        z = jnp.concatenate([y.ravel(), jnp.zeros(3), x[:2]])
        return jnp.sum(jnp.cos(z[jnp.array([0, 3, 5, 16])] * 2)) + jnp.sum(z**2)

    graph = trace_graph(f, points(20))
    assert graph.num_pairs == 0


def test_trace_time_is_linear_in_time():
    import time

    took = []
    for T in (10_000, 100_000):
        us = jnp.zeros((T, 1))
        trace_graph(control, jnp.zeros((5, 1)))
        start = time.perf_counter()
        trace_graph(lambda u: control(u) + 0.0, us)
        took.append(time.perf_counter() - start)
    assert took[1] <= max(2.0, 30 * took[0])


def test_scenarios_by_vmap_in_a_scan():
    def f(us):
        start = jnp.linspace(0.1, 0.4, 8)[:, None] * jnp.ones(4)

        def stage(x, u):
            return jax.vmap(lambda s: cartpole(s, u))(x), jnp.mean(jnp.sum(x**2, 1)) + u @ u

        x, costs = jax.lax.scan(stage, start, us)
        return costs.sum() + jnp.mean(x**2)

    for T in (6, 12):
        us = points(T, 1)
        graph = trace_graph(f, us)
        assert graph.num_pairs <= 8 * T * 8
        np.testing.assert_allclose(graph(us), f(us), rtol=1e-12)


@pytest.mark.parametrize(
    "take_apart",
    [
        lambda x: jnp.split(x, 3),
        lambda x: jnp.array_split(x, 5),
        lambda x: list(x.reshape(3, 4)),
        lambda x: [jnp.tile(x, 2)[5:], jnp.repeat(x, 2)[:9]],
        lambda x: [jnp.hstack([x[:5], x[7:]]), jnp.roll(x, 2)],
    ],
    ids=["split", "array_split", "unpacked", "tiled", "joined"],
)
def test_taking_arrays_apart_makes_no_node(take_apart):
    def f(x):
        return sum(jnp.sum(jnp.sin(i + part) ** 2) for i, part in enumerate(take_apart(x)))

    graph = trace_graph(f, points(12))
    assert graph.num_pairs == 0
    assert max(family.k for family in graph.families) == 1
    np.testing.assert_allclose(graph(points(12)), f(points(12)), rtol=1e-13)
    # The same on constants, which are folded.
    folded = trace_graph(lambda x: jnp.sum(x) * f(jnp.arange(12.0)), points(12))
    np.testing.assert_allclose(folded(points(12)), jnp.sum(points(12)) * f(jnp.arange(12.0)), rtol=1e-13)
