"""E1–E6: each printed formula, implemented as printed, fails where the corrected one is exact."""

import numpy as np
import pytest

from gnewt._errors import QPError
from gnewt.qp import Hyperedge, solve_qp
from qp.qps import to_dense


def spd(rng: np.random.Generator, k: int) -> np.ndarray:
    A = rng.normal(size=(k, k))
    return A @ A.T + np.eye(k)


def pair() -> tuple[list[Hyperedge], np.ndarray]:
    """Two bags {a, b} and {b, c}; the leaf is the first, ι = {a}, ξ = {b}."""
    rng = np.random.default_rng(7)
    edges = [
        Hyperedge(["a", "b"], spd(rng, 2), rng.normal(size=2)),
        Hyperedge(["b", "c"], spd(rng, 2), rng.normal(size=2)),
    ]
    return edges, to_dense(edges).solve()


def schur(Q: np.ndarray, b: np.ndarray, out: list[int], keep: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Eliminate `out` from a dense quadratic."""
    gain = np.linalg.solve(Q[np.ix_(out, out)], Q[np.ix_(out, keep)])
    return Q[np.ix_(keep, keep)] - Q[np.ix_(keep, out)] @ gain, b[keep] - gain.T @ b[out]


def close(result, x: np.ndarray, labels: str) -> bool:
    return bool(np.allclose(np.concatenate([result.x[v] for v in labels]), x, atol=1e-11))


def test_e1_printed_interior_is_the_separator():
    """Printed: ι = χ(l) ∩ χ(p) is eliminated and the message is over χ(l) \\ χ(p), which p does not know."""
    edges, x = pair()
    leaf, root = edges
    corrected_Q, corrected_b = schur(leaf.Q, leaf.b, out=[0], keep=[1])
    printed_Q, printed_b = schur(leaf.Q, leaf.b, out=[1], keep=[0])

    def finish(Q_message, b_message):
        Q, b = root.Q.copy(), root.b.copy()
        Q[0, 0] += Q_message[0, 0]
        b[0] += b_message[0]
        return np.linalg.solve(Q, b)

    assert np.allclose(finish(corrected_Q, corrected_b), x[1:], atol=1e-12)
    assert not {"a"} <= set(root.vertices)  # the printed message is over a vertex that is not in p ...
    assert np.abs(finish(printed_Q, printed_b) - x[1:]).max() > 1e-2  # ... and wrong if put where it fits
    assert close(solve_qp(edges, order="abc"), x, "abc")


def free_end() -> list[Hyperedge]:
    """u costs, x1 = x0 + u, and the terminal state x1 has a constraint but no cost."""
    return [
        Hyperedge(["x0"], Q=1.0, G=1.0, h=3.0),
        Hyperedge(["u"], Q=2.0, b=1.0),
        Hyperedge(["x0", "u", "x1"], G=[1.0, 1.0, -1.0]),
    ]


def test_e2_rank_of_q_gives_a_singular_pivot():
    """Printed: r = rank(Q̃_ιι) = 0 at ι = {x1}, so the pivot is the 1 × 1 zero matrix; corrected r = 1."""
    edges = free_end()
    Q_ii, G_i = np.zeros((1, 1)), np.array([[-1.0]])

    def pivot(r: int) -> np.ndarray:
        return np.block([[Q_ii, G_i[:r].T], [G_i[:r], np.zeros((r, r))]])

    assert np.linalg.matrix_rank(Q_ii) == 0
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.inv(pivot(int(np.linalg.matrix_rank(Q_ii))))
    assert abs(np.linalg.det(pivot(int(np.linalg.matrix_rank(G_i))))) == 1.0
    result = solve_qp(edges, order=["x1", "u", "x0"])
    assert close(result, np.array([3.0, 0.5, 3.5]), ["x0", "u", "x1"])
    assert result.inertia == (3, 2, 0)


def test_e2_too_small_a_rank_fills_the_zero_block():
    """With r < rank(G̃_ι) the message has −G²_ι Q̃_ιι⁻¹ G²_ιᵀ ≠ 0 where the form (Q, G, b, h) has a zero."""
    Q_ii, G_i = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]])
    r = 1
    K = np.block([[Q_ii, G_i[:r].T], [G_i[:r], np.zeros((r, r))]])
    coupling = np.concatenate([G_i[r:], np.zeros((1, r))], axis=1)
    assert np.abs(coupling @ np.linalg.solve(K, coupling.T)).max() > 0.5


def test_e3_printed_block_14_is_not_symmetric_and_solves_another_system():
    """Printed: the (1, 4) block is G̃_{r:,ι}ᵀ. One scalar each in ξ and ι, two rows, r = 1."""
    rng = np.random.default_rng(8)
    Q, b = spd(rng, 2), rng.normal(size=2)  # ordered [ξ, ι]
    G, h = np.array([[0.5, 1.0], [2.0, 0.0]]), np.array([1.0, -1.0])  # row 1 has no part in ι

    def system(block14: float) -> np.ndarray:
        K = np.block([[Q, G.T], [G, np.zeros((2, 2))]])
        K[0, 3] = block14
        return K

    rhs = np.concatenate([b, h])
    printed = system(G[1, 1])  # G̃_{r:,ι}
    corrected = system(G[1, 0])  # G̃_{r:,ξ}
    assert np.linalg.matrix_rank(printed) < 4  # λ_{r:} has dropped out of the equations
    truth = np.linalg.solve(corrected, rhs)
    edges = [Hyperedge(["xi", "iota"], Q, b, G, h)]
    result = solve_qp(edges, order=["iota", "xi"])
    assert close(result, truth[:2], ["xi", "iota"])
    np.testing.assert_allclose(result.duals[0], truth[2:], atol=1e-12)


def test_e4_printed_recursion_passes_the_grandparent():
    """Printed: GatherMessage(c, p) inside GatherMessage(l, p). On a chain of three bags ι of the leaf is then
    χ(c) \\ χ(p) = {a, b}: b goes before the cost that l adds to it. And without a scatter only p is solved."""
    rng = np.random.default_rng(9)
    edges = [Hyperedge([u, v], spd(rng, 2), rng.normal(size=2)) for u, v in ("ab", "bc", "cd")]
    x = to_dense(edges).solve()
    leaf, middle, root = edges

    def root_solution(leaf_out: list[int], leaf_keep: list[int]) -> np.ndarray:
        Q_l, b_l = middle.Q.copy(), middle.b.copy()
        if leaf_keep:
            Q_m, b_m = schur(leaf.Q, leaf.b, leaf_out, leaf_keep)
            Q_l[0, 0] += Q_m[0, 0]
            b_l[0] += b_m[0]
        Q_m, b_m = schur(Q_l, b_l, [0], [1])
        Q_p, b_p = root.Q.copy(), root.b.copy()
        Q_p[0, 0] += Q_m[0, 0]
        b_p[0] += b_m[0]
        return np.linalg.solve(Q_p, b_p)

    assert np.allclose(root_solution([0], [1]), x[2:], atol=1e-12)
    assert np.abs(root_solution([0, 1], []) - x[2:]).max() > 1e-3  # printed: the message is empty
    assert close(solve_qp(edges, order="abcd"), x, "abcd")  # a and b come from the scatter


def test_e5_the_first_r_rows_without_compression_are_a_singular_pivot():
    """Printed: G̃_{:r}, the first r rows as they come. Here the first two coincide on ι."""
    Q, b = np.diag([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])  # ι = {a (2 scalars)}, ξ = {c}
    G, h = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 1.0], [1.0, -1.0, 0.0]]), np.array([1.0, 2.5, 0.2])
    G_i, r = G[:, :2], 2
    assert np.linalg.matrix_rank(G_i) == r
    printed = np.block([[Q[:2, :2], G_i[:r].T], [G_i[:r], np.zeros((r, r))]])
    assert np.linalg.matrix_rank(printed) < 4
    P = np.linalg.svd(G_i)[0].T  # orthogonal row compression: P G̃_ι = [R; 0]
    R = (P @ G_i)[:r]
    assert np.abs((P @ G_i)[r:]).max() < 1e-15
    corrected = np.block([[Q[:2, :2], R.T], [R, np.zeros((r, r))]])
    assert np.linalg.cond(corrected) < 1e2
    edges = [Hyperedge(["a", "c"], Q, b, G, h)]
    dense, result = to_dense(edges, {"a": 2}), solve_qp(edges, {"a": 2}, order=["a", "c"])
    assert max(dense.residuals(result)) < 1e-14
    assert close(result, dense.solve(), ["a", "c"])


@pytest.mark.parametrize("eps", [0.0, 1e-14, 1e-9])
def test_e6_not_every_pivot_is_invertible(eps):
    """Printed: the matrices "are however invertible". f = u₁u₂ (+ u₂u₃) has a zero, or tiny, first pivot."""
    Q = np.array([[eps, 1.0], [1.0, 0.0]])
    edges = [
        Hyperedge(["u1", "u2"], Q, [1.0, 2.0]),
        Hyperedge(["u2", "u3"], [[0, 1.0], [1.0, 1.0]], [0.0, 1.0]),
    ]
    dense = to_dense(edges)
    if eps == 0.0:
        with pytest.raises(np.linalg.LinAlgError):
            schur(dense.Q, dense.b, [0], [1, 2])
    else:
        Q_kept, b_kept = schur(dense.Q, dense.b, [0], [1, 2])
        kept = np.linalg.solve(Q_kept, b_kept)
        u1 = (dense.b[0] - kept[0]) / eps
        printed = np.abs(dense.Q @ np.concatenate([[u1], kept]) - dense.b).max()
        assert printed > 1e-9
    result = solve_qp(edges, order=["u1", "u2", "u3"], allow_indefinite=True)
    assert max(dense.residuals(result)) < 1e-14
    assert result.num_delayed >= 1
    assert result.inertia == (2, 1, 0)
    with pytest.raises(QPError, match="unbounded"):
        solve_qp(edges, order=["u1", "u2", "u3"])
