"""Bad input and QPs without a unique solution: a QPError that says what, where, and what to do."""

import numpy as np
import pytest

from gnewt._errors import QPError
from gnewt.qp import Hyperedge, solve_qp

I2 = np.eye(2)


def cost(*vertices: str) -> list[Hyperedge]:
    return [Hyperedge([v], Q=1.0) for v in vertices]


BAD_EDGES = {
    "string": (lambda: Hyperedge("xy", Q=I2), "not a list of labels"),
    "no vertices": (lambda: Hyperedge([]), "without vertices"),
    "unhashable": (lambda: Hyperedge([["x"]], Q=1.0), "cannot be hashed"),
    "duplicate": (lambda: Hyperedge(["x", "y", "x"], Q=np.eye(3)), "duplicate vertices 'x'"),
    "rectangular Q": (lambda: Hyperedge(["x"], Q=np.ones((2, 3))), r"Q has shape \(2, 3\)"),
    "asymmetric Q": (lambda: Hyperedge(["x"], Q=[[1, 2], [0, 1]]), "not symmetric"),
    "three axes": (lambda: Hyperedge(["x"], Q=np.ones((1, 1, 1))), "too many axes"),
    "shapes disagree": (lambda: Hyperedge(["x"], Q=I2, b=np.ones(3)), r"Q \(2, 2\), b \(3,\)"),
    "h too short": (lambda: Hyperedge(["x"], G=np.ones((2, 1)), h=[1.0]), "2 rows but h has 1"),
    "h without G": (lambda: Hyperedge(["x"], Q=1.0, h=[1.0]), "h is given without G"),
    "NaN": (lambda: Hyperedge(["x"], Q=I2, b=[0, np.nan], name="stage"), r"b\[1\] is nan\n.*'stage'"),
    "infinite": (lambda: Hyperedge(["x"], G=[[1.0, np.inf]]), r"G\[0, 1\] is inf"),
    "complex": (lambda: Hyperedge(["x"], Q=1j), "complex128"),
    "text": (lambda: Hyperedge(["x"], Q="two"), "give real numbers"),
    "ragged": (lambda: Hyperedge(["x"], Q=[[1.0], [1.0, 2.0]]), "not an array"),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_bad_edges(case):
    make, message = BAD_EDGES[case]
    with pytest.raises(QPError, match=message) as caught:
        make()
    assert "where: " in str(caught.value)
    assert "what to do: " in str(caught.value)


BAD_CALLS = {
    "empty": (lambda: solve_qp([]), "without hyperedges"),
    "not an edge": (lambda: solve_qp([Hyperedge(["x"], Q=1.0), "x"]), "edge 1 is a str"),
    "unknown size": (lambda: solve_qp(cost("x"), {"y": 1}), "unknown vertex 'y'"),
    "size zero": (lambda: solve_qp(cost("x"), {"x": 0}), "size 0"),
    "size fraction": (lambda: solve_qp(cost("x"), {"x": 1.5}), "size 1.5"),
    "size mismatch": (
        lambda: solve_qp([Hyperedge(["x"], Q=I2, name="q")], {"x": 3}),
        "size mismatch.*\n.*'q'",
    ),
    "sizes disagree": (lambda: solve_qp([Hyperedge(["x"], Q=I2), Hyperedge(["x"], Q=1.0)]), "size mismatch"),
    "sizes open": (lambda: solve_qp([Hyperedge(["x", "y"], Q=np.eye(3))]), "sizes="),
    "order short": (lambda: solve_qp(cost("x", "y"), order=["x"]), r"not a permutation.*missing \['y'\]"),
    "order unknown": (lambda: solve_qp(cost("x"), order=["z"]), r"not a permutation.*unknown \['z'\]"),
    "order doubled": (lambda: solve_qp(cost("x", "y"), order=["x", "y", "x"]), "not a permutation.*repeated"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls(case):
    call, message = BAD_CALLS[case]
    with pytest.raises(QPError, match=message):
        call()


def chain(T: int) -> list[Hyperedge]:
    return [Hyperedge([t, t + 1], Q=[[2, -1], [-1, 2]], b=[1, 0], name=f"link{t}") for t in range(T)]


def test_inconsistent_rows_far_apart_are_named():
    """x_t = x_{t+1} for all t makes x_0 = 1 and x_6 = 2 contradict; the row on x_7 is innocent."""
    edges = chain(7)
    edges += [Hyperedge([t, t + 1], G=[1, -1], name=f"same{t}") for t in range(6)]
    edges += [Hyperedge([0], G=1, h=1, name="start"), Hyperedge([6], G=1, h=2, name="end")]
    edges += [Hyperedge([7], G=1, h=5, name="innocent")]
    for order in (None, range(8), range(7, -1, -1), [3, 0, 6, 1, 5, 2, 7, 4]):
        with pytest.raises(QPError, match="inconsistent") as caught:
            solve_qp(edges, order=order)
        text = str(caught.value)
        assert "8 rows reads 0 = 1\n" in text
        assert "same0[0]" in text
        assert "innocent" not in text
    consistent = [e for e in edges if e.name != "end"]
    result = solve_qp([*consistent, Hyperedge([6], G=1, h=1, name="end")])
    assert result.redundant == [("end", 0)]
    np.testing.assert_allclose([result.x[t][0] for t in range(8)], [1] * 7 + [5], atol=1e-13)


def test_a_zero_row_is_redundant_or_inconsistent():
    zero = Hyperedge(["x", "y"], G=np.zeros((1, 2)), h=0.0, name="nothing")
    assert solve_qp([*cost("x", "y"), zero]).redundant == [("nothing", 0)]
    with pytest.raises(QPError, match=r"inconsistent.*0 = 1\n.*nothing\[0\]"):
        solve_qp([*cost("x", "y"), Hyperedge(["x", "y"], G=np.zeros((1, 2)), h=1.0, name="nothing")])


def test_a_small_conflict_beside_large_numbers_is_found_and_rounding_is_not():
    big = Hyperedge(["z"], G=1.0, h=1e12)
    twice = [Hyperedge(["x"], G=1.0, h=0.1), Hyperedge(["x"], G=1.0, h=0.1 + 1e-6)]
    with pytest.raises(QPError, match="inconsistent"):
        solve_qp([*cost("x", "z"), big, *twice])
    third = [Hyperedge(["x"], G=3.0, h=0.3), Hyperedge(["x"], G=1.0, h=0.1), Hyperedge(["x"], G=7.0, h=0.7)]
    assert len(solve_qp([*cost("x", "z"), big, *third]).redundant) == 2


def test_negative_curvature_is_refused_by_vertex_and_returned_on_request():
    edges = [*chain(5), Hyperedge([2], Q=-9.0), Hyperedge([0, 1], G=[1, 1], h=1)]
    with pytest.raises(QPError, match=r"unbounded: .*negative curvature") as caught:
        solve_qp(edges)
    assert "2" in str(caught.value).splitlines()[1]
    result = solve_qp(edges, allow_indefinite=True)
    assert result.inertia == (5, 2, 0)  # n = 6, rank(G) = 1, one negative eigenvalue of the reduced Hessian
    assert result.dual_residual < 1e-14


def test_negative_curvature_only_where_constrained_is_bounded():
    result = solve_qp([Hyperedge(["x", "y"], Q=[[-5, 0], [0, 1]], b=[0, 2]), Hyperedge(["x"], G=1.0, h=3.0)])
    assert result.inertia == (2, 1, 0)
    np.testing.assert_allclose([result.x["x"][0], result.x["y"][0]], [3, 2])
    np.testing.assert_allclose(result.duals[1], [15.0])


def test_a_direction_without_curvature_is_named():
    """The differences are costed, the mean is not; z is determined and must not be blamed."""
    edges = [Hyperedge([t, t + 1], Q=[[1, -1], [-1, 1]]) for t in range(3)] + [Hyperedge(["z"], Q=1.0)]
    with pytest.raises(QPError, match="singular") as caught:
        solve_qp(edges)
    where = str(caught.value).splitlines()[1]
    assert all(str(t) in where for t in range(4))
    assert "z" not in where
    with pytest.raises(QPError, match="singular"):
        solve_qp(edges, allow_indefinite=True)
    with pytest.raises(QPError, match="unbounded: the objective is linear"):
        solve_qp([*edges, Hyperedge([0], b=1.0)])
    assert solve_qp([*edges, Hyperedge([0], G=1.0, h=4.0)]).x[3] == pytest.approx(4.0)


def test_inconsistent_comes_before_singular():
    with pytest.raises(QPError, match="inconsistent"):
        solve_qp([Hyperedge(["x", "y"], G=[[1, 1], [1, 1]], h=[0, 1])])
