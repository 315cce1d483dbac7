"""Theorems 2 and 3: exact on hypertrees, constraints of any rank, linear in the number of bags."""

import numpy as np
import pytest

from gnewt.plan.tree import check_tree
from gnewt.qp import Hyperedge, solve_qp
from gnewt.qp.gather import gather
from gnewt.qp.problem import build_problem, equilibrate
from gnewt.qp.solver import build_tree
from qp.qps import random_qp, to_dense


@pytest.mark.parametrize("block", range(12))
def test_random_hypertree_qps(block):
    """240 QPs: residuals ≤ 1e-10, the dense x, the dense inertia, every redundancy found."""
    for seed in range(20 * block, 20 * block + 20):
        edges, sizes, planted = random_qp(seed)
        result, dense = solve_qp(edges, sizes), to_dense(edges, sizes)
        assert max(dense.residuals(result)) <= 1e-10, seed
        assert max(result.primal_residual, result.dual_residual) <= 1e-13, seed
        x, _ = dense.flat(result)
        np.testing.assert_allclose(x, dense.solve(), rtol=1e-8, atol=1e-8, err_msg=str(seed))
        assert result.rank == dense.rank, seed
        assert result.inertia == (len(x), dense.rank, 0), seed
        assert len(result.redundant) == len(dense.G) - dense.rank >= planted, seed


@pytest.mark.parametrize("seed", range(0, 200, 8))
def test_without_the_redundant_rows_the_rest_is_independent_and_the_solution_the_same(seed):
    edges, sizes, _ = random_qp(seed)
    result = solve_qp(edges, sizes)
    dropped = set(result.redundant)
    kept = []
    for e in edges:
        rows = [i for i in range(len(e.h)) if (e.name, i) not in dropped]
        kept.append(Hyperedge(e.vertices, e.Q, e.b, e.G[rows], e.h[rows], e.name))
    dense, again = to_dense(kept, sizes), solve_qp(kept, sizes)
    assert dense.rank == len(dense.G)
    assert again.redundant == []
    for v in result.x:
        np.testing.assert_allclose(result.x[v], again.x[v], atol=1e-9)


@pytest.mark.parametrize("seed", range(0, 200, 8))
def test_any_order_given_by_the_user(seed):
    edges, sizes, _ = random_qp(seed)
    dense, rng = to_dense(edges, sizes), np.random.default_rng(seed)
    for _ in range(3):
        order = [dense.labels[i] for i in rng.permutation(len(dense.labels))]
        result = solve_qp(edges, sizes, order=order)
        assert max(dense.residuals(result)) <= 1e-10
        assert result.inertia == (len(dense.b), dense.rank, 0)
        assert len(result.redundant) == len(dense.G) - dense.rank


@pytest.mark.parametrize("seed", range(0, 240, 4))
def test_at_most_xi_rows_are_passed_up(seed):
    """E5; a delayed direction brings at most its own row along."""
    edges, sizes, _ = random_qp(seed)
    problem = build_problem(edges, sizes)
    tree = build_tree(problem, None)
    check_tree(tree, len(problem.labels), [t.vertices.tolist() for t in problem.terms])
    factor = gather(problem.scaled(*equilibrate(problem)), tree)
    assert len(factor.fronts) == tree.num_bags
    for i, front in enumerate(factor.fronts):
        assert len(front.rows_up) <= problem.sizes[tree.separator(i)].sum() + front.pivot.num_delayed
        assert front.pivot.num_null == 0


def test_indefinite_qps_have_the_dense_stationary_point_and_inertia():
    """E6: Q with a zero diagonal, so that first pivots are zero; they are delayed, not divided by."""
    tried, delayed = 0, 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        edges, sizes, _ = random_qp(seed)
        hollow = []
        for e in edges:
            S = rng.normal(size=(e.G.shape[1],) * 2)
            Q = S + S.T - (np.diag(np.diag(S + S.T)) if len(S) > 1 else 0.0)
            hollow.append(Hyperedge(e.vertices, Q, e.b, e.G, e.h, e.name))
        dense = to_dense(hollow, sizes)
        w = np.linalg.eigvalsh(dense.reduced)
        if np.abs(w).min(initial=1.0) < 1e-3:
            continue  # nearly singular by chance: x itself is then ill-conditioned
        order = [dense.labels[i] for i in rng.permutation(len(dense.labels))]
        result = solve_qp(hollow, sizes, order=order, allow_indefinite=True)
        tried, delayed = tried + 1, delayed + result.num_delayed
        assert max(result.primal_residual, result.dual_residual) <= 1e-13, seed
        np.testing.assert_allclose(
            dense.flat(result)[0], dense.solve(), rtol=1e-7, atol=1e-7, err_msg=str(seed)
        )
        assert result.inertia == (dense.rank + (w > 0).sum(), dense.rank + (w < 0).sum(), 0), seed
    assert tried >= 60
    assert delayed >= 10


def chain(T: int, nx: int = 2, nu: int = 1):
    """Linear-quadratic control over T stages, x_0 fixed, the end state fixed too."""
    rng = np.random.default_rng(0)
    A, B = np.eye(nx) + 0.1 * rng.normal(size=(nx, nx)), rng.normal(size=(nx, nu))
    edges = [Hyperedge([("x", 0)], G=np.eye(nx), h=np.ones(nx))]
    for t in range(T):
        edges.append(Hyperedge([("x", t)], Q=np.eye(nx)))
        edges.append(Hyperedge([("u", t)], Q=0.1 * np.eye(nu)))
        G = np.concatenate([A, B, -np.eye(nx)], axis=1)
        edges.append(Hyperedge([("x", t), ("u", t), ("x", t + 1)], G=G))
    return [*edges, Hyperedge([("x", T)], G=np.eye(nx), h=np.zeros(nx))]


def test_chains_cost_linearly():
    """Width is constant, bags and Σ|ι||χ|² grow linearly, T = 2⁴…2⁹; nothing is delayed."""
    flops, bags = [], []
    for T in (16, 32, 64, 128, 256, 512):
        problem = build_problem(chain(T), None)
        tree = build_tree(problem, None)
        sizes = problem.sizes
        flops.append(
            sum(
                int(sizes[tree.frontal(i)].sum()) * int(sizes[tree.bag(i)].sum()) ** 2
                for i in range(tree.num_bags)
            )
        )
        bags.append(tree.num_bags)
        assert tree.width(sizes) == 4
    assert np.all(np.diff(np.diff(bags) / [16, 32, 64, 128, 256]) == 0)
    assert np.allclose(np.diff(flops)[1:] / np.diff(flops)[:-1], 2.0, rtol=0.1)
    for T in (16, 256):
        result = solve_qp(chain(T))
        assert max(result.primal_residual, result.dual_residual) <= 1e-13
        assert result.num_delayed == 0
        assert result.width == 4


def test_units_do_not_matter():
    """Variables and rows measured in units eleven orders apart give the same solution and redundancy."""
    edges, sizes, _ = random_qp(5)
    rng = np.random.default_rng(5)
    unit = {v: 10.0 ** rng.uniform(-5, 6, size=n) for v, n in sizes.items()}
    scaled = []
    for e in edges:
        d = np.concatenate([unit[v] for v in e.vertices])
        s = 10.0 ** rng.uniform(-5, 6, size=len(e.h))
        Q = None if e.Q is None else d[:, None] * e.Q * d
        b = None if e.b is None else d * e.b
        scaled.append(Hyperedge(e.vertices, Q, b, s[:, None] * e.G * d, s * e.h, e.name))
    plain, result = solve_qp(edges, sizes), solve_qp(scaled, sizes)
    assert len(plain.redundant) == len(result.redundant) > 0
    for v, u in unit.items():
        np.testing.assert_allclose(u * result.x[v], plain.x[v], rtol=1e-8, atol=1e-9)
