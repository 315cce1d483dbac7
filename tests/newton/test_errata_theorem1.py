"""Errata to Theorem 1, its proof: E8-E11, E19, E21.

Each test states the corrected formula and checks it, and the library, against derivatives that JAX takes of
the objective as a plain function. It then evaluates the printed formula and asserts that it is clearly wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.kkt.engines.reference.pivots import eliminate
from helpers.oracle import flatten, inertia_of
from helpers.small_dag import WRONG, Dag, Point, examine, library_kkt, make_dag, relative_error


@pytest.fixture(scope="module")
def dag() -> Dag:
    return make_dag((2, 1, 2, 3, 2), ((), (), (0, 1), (0, 2), (1, 2, 3)), seed=2, scale=0.9)


@pytest.fixture(scope="module")
def point(dag: Dag) -> Point:
    """Positive definite Hessian."""
    point = examine(dag, seed=8)
    assert inertia_of(point.hessian) == (3, 0, 0)
    return point


@pytest.fixture(scope="module")
def saddle(dag: Dag) -> Point:
    """Indefinite Hessian, at a point where the Newton direction ascends."""
    point = examine(dag, seed=14)
    assert inertia_of(point.hessian) == (2, 1, 0)
    return point


@pytest.fixture(scope="module")
def factor(point: Point) -> gnewt.Factor:
    return gnewt.factorize(point.dag.graph)(point.inputs)


# E8-E11: the proof


def hessian_vector(
    point: Point, direction: np.ndarray, scope: Callable[[int, int], set[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Equation (a_armad) with an inner sum over a ∈ scope(v, s): (δ[∂_V f] on the inputs, on the others)."""
    dag = point.dag
    dx = {v: direction[point.range_of(v)] for v in dag.vertices if not dag.parents[v]}
    for v in dag.nodes:
        dx[v] = sum(point.jacobian(v, a) @ dx[a] for a in dag.parents[v])
    out: dict[int, np.ndarray] = {}
    for v in reversed(dag.vertices):
        total = np.zeros(dag.sizes[v])
        for s in (v, *dag.children(v)):
            total += sum(point.loss_block(s, v, a) @ dx[a] for a in scope(v, s))
        for d in dag.children(v):
            total += point.jacobian(d, v).T @ out[d]
            total += sum(point.node_curvature(d, v, a) @ dx[a] for a in dag.parents[d])
        out[v] = total
    whole = np.concatenate([out[v] for v in dag.vertices])
    return whole[: point.n], whole[point.n :]


def test_e8_the_inner_sum_of_the_hessian_vector_product_runs_over_s_and_its_parents(point, factor):
    """E8: a ∈ {s} ∪ pa(s); with the printed a ∈ v ∪ pa(s) the terms ∂²_vs l_s δX_s are lost."""
    parents = point.dag.parents

    def corrected(v: int, s: int) -> set[int]:
        return {s, *parents[s]}

    def printed(v: int, s: int) -> set[int]:
        return {v, *parents[s]}

    for direction in np.random.default_rng(0).normal(size=(3, point.n)):
        exact = point.hessian @ direction
        assert relative_error(hessian_vector(point, direction, corrected)[0], exact) < 1e-10
        assert relative_error(hessian_vector(point, direction, printed)[0], exact) > WRONG
    # The Newton step inverts the corrected recursion: δ[∂_u f] = -∂_u f. It does not invert the printed one.
    step = flatten(factor.step())
    assert relative_error(hessian_vector(point, step, corrected)[0], -point.g) < 1e-10
    assert relative_error(hessian_vector(point, step, printed)[0], -point.g) > WRONG


def reverse_sweep(point: Point, order: Sequence[int]) -> dict[int, np.ndarray]:
    """Equation (a_rmad), vertex by vertex; a child that was not reached yet counts as zero."""
    dag = point.dag
    done = {v: np.zeros(dag.sizes[v]) for v in dag.vertices}
    for v in order:
        done[v] = point.explicit[point.range_of(v)] + sum(
            point.jacobian(d, v).T @ done[d] for d in dag.children(v)
        )
    return done


def breadth_first(dag: Dag) -> list[int]:
    """Backward from the childless vertices, level by level, each vertex once."""
    queue = [v for v in dag.vertices if not dag.children(v)]
    for v in queue:
        queue.extend(a for a in dag.parents[v] if a not in queue)
    return queue


@pytest.mark.parametrize("length", [2, 3])
def test_e9_the_reverse_sweep_needs_reverse_topological_order(length):
    """E9: v→a→b, v→b. Breadth-first from b reaches v before a is known.

    With one more vertex on the long path this does not hang on how the search breaks ties.
    """
    parents = [(), *[(i,) for i in range(length - 1)], (0, length - 1)]
    dag = make_dag((2,) * (length + 1), parents, seed=3)
    point = examine(dag, seed=3, second_order=False)
    factor = gnewt.factorize(dag.graph)(point.inputs)
    expected = np.concatenate([point.g, point.duals])
    topological = reverse_sweep(point, list(reversed(dag.vertices)))
    assert relative_error(np.concatenate([topological[v] for v in dag.vertices]), expected) < 1e-12
    assert relative_error(np.asarray(factor.models.duals), expected) < 1e-12
    assert relative_error(flatten(factor.gradient), point.g) < 1e-12
    order = breadth_first(dag)
    assert order.index(0) < order.index(1)
    assert relative_error(reverse_sweep(point, order)[0], point.g) > WRONG


def test_e10_two_right_hand_sides_give_the_same_step(point, factor):
    """E10: K[δX; λ⁺] = [-∂^expl Σl; -h] and K[δX; δλ] = [-g on inputs, 0; 0]; total ≠ explicit partial."""
    n, m, size = point.n, point.m, point.dag.num_slots
    k = library_kkt(factor)
    assert relative_error(k, point.kkt()) < 1e-12
    newton = -np.linalg.solve(point.hessian, point.g)
    assert relative_error(flatten(factor.step()), newton) < 1e-10

    plus_form = np.linalg.solve(k, np.concatenate([-point.explicit, np.zeros(m)]))
    delta_form = np.linalg.solve(k, np.concatenate([-point.g, np.zeros(2 * m)]))
    assert relative_error(plus_form[:n], newton) < 1e-10
    assert relative_error(delta_form[:n], newton) < 1e-10
    assert relative_error(plus_form[:size], delta_form[:size]) < 1e-10
    assert relative_error(plus_form[size:], point.duals + delta_form[size:]) < 1e-10

    # Printed: one symbol ∂f. Total derivatives on the right-hand side ...
    total = np.concatenate([point.g, point.duals])
    printed = np.linalg.solve(k, np.concatenate([-total, np.zeros(m)]))
    assert relative_error(printed[:n], newton) > WRONG
    # ... or explicit partials for the multipliers λ_v = ∂_v f ...
    k_explicit = point.kkt(point.explicit[n:])
    for rhs in (point.explicit, np.concatenate([point.g, np.zeros(m)])):
        printed = np.linalg.solve(k_explicit, np.concatenate([-rhs, np.zeros(m)]))
        assert relative_error(printed[:n], newton) > WRONG
    # ... or the solution of the first system taken for δλ: the true first-order change is that of ∂_V f.
    _, change = hessian_vector(point, newton, lambda v, s: {s, *point.dag.parents[s]})
    assert relative_error(delta_form[size:], change) < 1e-10
    assert relative_error(plus_form[size:], change) > WRONG


def test_e10_the_delta_form_is_the_better_conditioned_one(point):
    """E10: where g ≈ 0 but λ is not, the λ⁺ form loses the digits of the step, the δλ form keeps them."""
    m = point.m
    k, tiny = point.kkt(), 1e-12 * point.g
    # Move the losses so that g becomes tiny: l_u gets a linear term. This changes no other number in K.
    explicit = point.explicit.copy()
    explicit[: point.n] += tiny - point.g
    newton = -np.linalg.solve(point.hessian, tiny)
    plus_form = np.linalg.solve(k, np.concatenate([-explicit, np.zeros(m)]))[: point.n]
    delta_form = np.linalg.solve(k, np.concatenate([-tiny, np.zeros(2 * m)]))[: point.n]
    assert relative_error(delta_form, newton) < 1e-10
    assert relative_error(plus_form, newton) > 1e4 * relative_error(delta_form, newton)


def test_e11_the_second_row_is_the_linearised_constraint(point, factor):
    """E11: ∂_V h · δX_V = -h (= 0 on a rollout), not ∂_V Φ · δS_V = -Φ."""
    n, m, size, dag = point.n, point.m, point.dag.num_slots, point.dag
    step = flatten(factor.step())
    x = np.concatenate(point.inputs)
    roll = jax.jit(lambda x, v: jax.jvp(lambda x: dag.rollout(x, jnp.zeros(m)), (x,), (v,))[1])
    tangent = np.asarray(roll(x, step))
    jac_phi = point.jac_h + np.eye(size)[n:]
    assert np.linalg.norm(point.jac_h @ tangent) < 1e-12 * np.linalg.norm(tangent)
    assert relative_error(jac_phi @ tangent, -point.slots[n:]) > WRONG

    k, newton = library_kkt(factor), -np.linalg.solve(point.hessian, point.g)
    corrected = np.linalg.solve(k, np.concatenate([-point.explicit, np.zeros(m)]))
    assert relative_error(corrected[:n], newton) < 1e-10
    printed = np.linalg.solve(k, np.concatenate([-point.explicit, -point.slots[n:]]))
    assert relative_error(printed[:n], newton) > WRONG
    k_phi = np.block([[k[:size, :size], jac_phi.T], [jac_phi, np.zeros((m, m))]])
    printed = np.linalg.lstsq(k_phi, np.concatenate([-point.explicit, -point.slots[n:]]))[0]
    assert relative_error(printed[:n], newton) > WRONG

    # Off a rollout the row restores feasibility to second order; the printed one does not.
    off = point.slots + np.concatenate([np.zeros(n), 1e-4 * np.random.default_rng(0).normal(size=m)])
    constraint = jax.jit(lambda s: (dag.h(s), jax.jacfwd(dag.h)(s)))
    h, jac = (np.asarray(a) for a in constraint(off))
    phi_now = h + off[n:]
    repaired, not_repaired = off.copy(), off.copy()
    repaired[n:] += np.linalg.solve(jac[:, n:], -h)
    not_repaired[n:] += np.linalg.lstsq(jac[:, n:] + np.eye(m), -phi_now)[0]
    assert np.linalg.norm(constraint(repaired)[0]) < 1e-3 * np.linalg.norm(h)
    assert np.linalg.norm(constraint(not_repaired)[0]) > np.linalg.norm(h)


# E19: which direction it is


@pytest.mark.parametrize("which", ["point", "saddle"])
def test_e19_inertia_and_determinant_of_k_are_those_of_h(which, request):
    """E19: inertia(K) = inertia(H) + (M, M, 0) and log|det K| = log|det H|."""
    point: Point = request.getfixturevalue(which)
    factor = gnewt.factorize(point.dag.graph)(point.inputs)
    k, expected = library_kkt(factor), inertia_of(point.hessian)
    assert relative_error(k, point.kkt()) < 1e-12
    assert inertia_of(k) == (expected[0] + point.m, expected[1] + point.m, expected[2])
    assert inertia_of(k) != expected  # K itself is never definite: its raw inertia certifies nothing
    assert factor.inertia == expected
    assert np.linalg.slogdet(k)[1] == pytest.approx(np.linalg.slogdet(point.hessian)[1], abs=1e-10)
    assert factor.logdet() == pytest.approx(np.linalg.slogdet(point.hessian)[1], abs=1e-10)


def test_e19_the_newton_direction_of_an_indefinite_hessian_may_ascend(saddle):
    """E19: Algorithm 1 prints no regularisation: its line search has no step length that decreases f."""
    graph, x = saddle.dag.graph, np.concatenate(saddle.inputs)
    step, info = gnewt.newton_step(graph, full_output=True)(saddle.inputs)
    direction = flatten(step)
    assert info.inertia.negative > 0
    assert relative_error(direction, -np.linalg.solve(saddle.hessian, saddle.g)) < 1e-10
    assert saddle.g @ direction > 0
    trials = x + 2.0 ** -np.arange(6, 20)[:, None] * direction  # what Algorithm 1 as printed would try
    assert np.all(np.asarray(jax.jit(jax.vmap(saddle.dag.objective))(trials)) > saddle.f)
    # With the inertia-corrected shift every step descends, to a minimum.
    result = gnewt.minimize(graph, saddle.inputs)
    assert result.success and result.history[0].shift > 0 and result.history[0].inertia.negative > 0
    values = [record.value for record in result.history]
    assert values[0] == pytest.approx(saddle.f) and all(np.diff(values) < 0) and result.fun < saddle.f


def test_e19_a_singular_hessian_has_a_failure_branch():
    """E19: K is singular exactly where H is: Algorithm 1 prints no branch, the library says it."""
    g = gnewt.Graph()
    u = [g.input((1,), name=f"u{i}") for i in range(2)]
    s = g.node(lambda a, b: jnp.sin(a + b), u[0], u[1], name="s")
    g.loss(lambda s: jnp.sum((s - 1.0) ** 2), s)
    values = [np.array([0.3]), np.array([0.4])]
    factor = gnewt.factorize(g)(values)
    k = library_kkt(factor)
    assert abs(np.linalg.det(k)) < 1e-12
    assert factor.is_singular and factor.inertia.zero == 1
    with pytest.raises(gnewt.StepError, match="singular"):
        gnewt.newton_step(g)(values)


# E21: Hessian accumulation


def test_e21_pairs_first_leaves_the_hessian_on_the_inputs(point):
    """E21: with all pairs (x_v, λ_v) eliminated first, the Schur complement on the inputs is H.

    The paper names no order ("a particular pivot-ordering"). The two near misses are wrong: the input block
    of K as it stands, and the elimination of the x_v without their λ_v.
    """
    n, m, size = point.n, point.m, point.dag.num_slots
    factor = gnewt.factorize(point.dag.graph, order="hessian", engine="reference")(point.inputs)
    plan, k, numbers = factor.plan, library_kkt(factor), factor.numbers.factor
    is_input = np.zeros(plan.vertex_of_slot.max() + 1, bool)
    is_input[plan.vertex_of_slot[:n]] = True
    assert not np.any(np.diff(is_input[plan.order].astype(int)) < 0)  # pairs first, then inputs
    assert plan.certificate.width >= n - 1

    eps = float(np.finfo(float).eps)
    pairs_first = np.concatenate([np.arange(n, size + m), np.arange(n)])
    matrix = k[np.ix_(pairs_first, pairs_first)]
    partner = np.concatenate([m + np.arange(m), np.full(m, -1)])  # states first, then their duals
    done = eliminate(matrix, np.abs(matrix), 2 * m, eps, partner)
    assert done.delayed == 0
    assert relative_error(done.schur, point.hessian) < 1e-12
    inverse = np.column_stack([numbers.solve(e) for e in np.eye(n)])
    assert relative_error(np.linalg.inv(inverse), point.hessian) < 1e-10
    # The last front of the library's own elimination is that matrix: all the inputs, and nothing after them.
    last = numbers.fronts[-1]
    own = np.flatnonzero(last.interior < n)
    assert len(own) == n and len(last.separator) == 0
    block = last.block.solve(np.eye(len(last.interior)))[np.ix_(own, own)]
    order = last.interior[own]
    assert relative_error(np.linalg.inv(block), point.hessian[np.ix_(order, order)]) < 1e-10

    assert relative_error(k[:n, :n], point.hessian) > WRONG
    states = slice(n, size)
    without_duals = k[:n, :n] - k[:n, states] @ np.linalg.solve(k[states, states], k[states, :n])
    assert relative_error(without_duals, point.hessian) > WRONG
