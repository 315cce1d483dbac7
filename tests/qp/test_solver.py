"""What a user sees: labels, sizes, omitted arguments, signs, the shape of the result."""

import numpy as np
import pytest

from gnewt.qp import Hyperedge, solve_qp


def test_sign_convention_is_the_printed_one():
    """[[Q, Gᵀ], [G, 0]] [x; λ] = [b; h]: min ½x² − x with x = 3 has λ = b − x = −2."""
    result = solve_qp([Hyperedge(["x"], Q=1.0, b=1.0, G=1.0, h=3.0)])
    assert result.x["x"] == pytest.approx([3.0])
    assert result.duals[0] == pytest.approx([-2.0])


def test_sizes_are_inferred_from_the_edges_that_tell_them():
    edges = [
        Hyperedge(["x", "u"], G=np.ones((1, 5)), h=1.0),
        Hyperedge(["u"], Q=np.eye(2)),
        Hyperedge(["x"], Q=np.eye(3)),
        Hyperedge([("s", 1), ("s", 2)], Q=np.eye(2)),
    ]
    result = solve_qp(edges)
    assert {v: len(a) for v, a in result.x.items()} == {"x": 3, "u": 2, ("s", 1): 1, ("s", 2): 1}
    np.testing.assert_allclose(result.x["x"], 0.2)
    assert [len(d) for d in result.duals] == [1, 0, 0, 0]


def test_vertex_order_inside_an_edge_is_that_of_the_matrices():
    Q = np.diag([1.0, 2.0, 4.0])
    one = solve_qp([Hyperedge(["a", "b"], Q, [1.0, 2.0, 8.0])], {"a": 1})
    two = solve_qp([Hyperedge(["b", "a"], Q[[1, 2, 0]][:, [1, 2, 0]], [2.0, 8.0, 1.0])], {"a": 1})
    for v in "ab":
        np.testing.assert_allclose(one.x[v], two.x[v])
    np.testing.assert_allclose(one.x["b"], [1.0, 2.0])


def test_several_components_and_edges_over_the_same_vertices_add_up():
    result = solve_qp(
        [Hyperedge(["x"], Q=1.0), Hyperedge(["x"], Q=1.0, b=4.0), Hyperedge(["y"], Q=2.0, b=2.0)]
    )
    assert result.num_bags == 2
    assert (result.x["x"][0], result.x["y"][0]) == pytest.approx((2.0, 1.0))
    assert result.inertia == (2, 0, 0)


def test_fully_determined_by_constraints_needs_no_cost():
    result = solve_qp([Hyperedge(["x", "y"], b=[1.0, 2.0], G=[[1, 1], [1, -1]], h=[3, 1])])
    assert (result.x["x"][0], result.x["y"][0]) == pytest.approx((2.0, 1.0))
    assert result.inertia == (2, 2, 0)
    np.testing.assert_allclose(np.array([[1, 1], [1, -1]]).T @ result.duals[0], [1.0, 2.0])


def test_many_redundant_rows_on_few_vertices():
    """Tall G: 3000 rows of rank 2; the cost stays linear in the rows."""
    rng = np.random.default_rng(1)
    G = rng.normal(size=(3000, 2)) @ rng.normal(size=(2, 4))
    result = solve_qp([Hyperedge(["x"], np.eye(4), np.ones(4), G, G @ np.ones(4), name="tall")])
    assert result.rank == 2
    assert len(result.redundant) == 2998
    np.testing.assert_allclose(result.x["x"], np.ones(4), atol=1e-12)


def test_a_small_coefficient_is_not_divided_by():
    """1e-8 x + y = 1 with x eliminated first: the naive pivot loses half of the digits of x."""
    edges = [Hyperedge(["x", "y"], Q=np.eye(2), G=[1e-8, 1.0], h=1.0), Hyperedge(["y", "z"], Q=np.eye(2))]
    result = solve_qp(edges, order=["x", "y", "z"])
    lam = -1.0 / (0.5 + 1e-16)
    assert result.x["x"][0] == pytest.approx(-1e-8 * lam, rel=1e-13)
    assert result.duals[0][0] == pytest.approx(lam, rel=1e-13)


def test_inputs_are_copied_and_not_written():
    Q, G = np.eye(2), np.ones((1, 2))
    edge = Hyperedge(["x"], Q, np.ones(2), G, [1.0])
    Q[:], G[:] = 7.0, 7.0
    np.testing.assert_allclose(solve_qp([edge]).x["x"], [0.5, 0.5])
    with pytest.raises(ValueError, match="read-only"):
        edge.G[0, 0] = 1.0
