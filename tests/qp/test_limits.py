"""QPs with limits: against Clarabel, by optimality conditions, inside jit and vmap, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt._errors import QPError
from gnewt.newton import Status
from gnewt.qp import Hyperedge, QPResult, solve_qp
from qp.limited_qps import KINDS, Dense, Numbers, Shape, random_numbers, random_shape, to_dense
from qp.qps import random_qp

SOLVED = (Status.CONVERGED, Status.STALLED)


def by_clarabel(dense: Dense) -> tuple[str, float]:
    """(status, objective) of an independent solver."""
    clarabel = pytest.importorskip("clarabel")
    import scipy.sparse

    equal = dense.lower == dense.upper
    up, low = np.isfinite(dense.upper) & ~equal, np.isfinite(dense.lower) & ~equal
    A = np.concatenate([dense.A[equal], dense.A[up], -dense.A[low]])
    b = np.concatenate([dense.lower[equal], dense.upper[up], -dense.lower[low]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(int(up.sum() + low.sum()))]
    upper = scipy.sparse.csc_matrix(np.triu(dense.Q))
    found = clarabel.DefaultSolver(upper, -dense.b, scipy.sparse.csc_matrix(A), b, cones, settings).solve()
    return str(found.status), found.obj_val


def solve_all(shape: Shape, numbers: list[Numbers]) -> QPResult:
    """All of one shape by one compiled function."""

    def solve(n: Numbers) -> QPResult:
        edges, bounds = shape.edges(n)
        return solve_qp(edges, shape.sizes, bounds=bounds)

    batch = jax.tree.map(lambda *parts: np.stack(parts), *numbers)
    return jax.device_get(jax.jit(jax.vmap(solve))(batch))


def judge(shape: Shape, n: Numbers, result: QPResult, status: str, objective: float) -> str:
    """What is wrong with a result; empty if nothing is."""
    code = Status(int(result.code))
    if "PrimalInfeasible" in status:
        return "" if code == Status.INFEASIBLE else f"{code.name} where Clarabel says {status}"
    if "DualInfeasible" in status:
        return "" if code == Status.UNBOUNDED else f"{code.name} where Clarabel says {status}"
    if code not in SOLVED:
        return f"{code.name} where Clarabel says {status}"
    if abs(result.fun - objective) > 1e-7 * max(1.0, abs(objective)):
        return f"objective {result.fun!r}, Clarabel {objective!r}"
    dense = to_dense(shape, n)
    x = np.concatenate([result.x[v] for v in shape.sizes])
    y = np.concatenate([*result.duals, *result.limit_duals, *(result.bound_duals[v] for v in shape.sizes)])
    size = 1.0 + np.abs(dense.Q) @ np.abs(x) + np.abs(dense.b) + np.abs(dense.A.T) @ np.abs(y)
    if np.abs((dense.Q @ x - dense.b + dense.A.T @ y) / size).max() > 1e-7:
        return "Qx - b + Aᵀy is not zero"
    # A multiplier that is positive belongs to an upper limit that is met, a negative one to a lower limit.
    value = dense.A @ x
    gap = np.where(y > 0, dense.upper - value, value - dense.lower)
    gap = np.where(np.isfinite(gap), gap, 1e300)
    products = np.abs(y * gap) / (1.0 + abs(objective))
    return f"multiplier {products.argmax()} has the wrong sign" if products.max() > 1e-6 else ""


def compare(seed: int, per: int) -> list[str]:
    shape = random_shape(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(per)]
    numbers = [random_numbers(shape, 1000 * seed + i, kind) for i, kind in enumerate(kinds)]
    results = solve_all(shape, numbers)
    bad = []
    for i, (kind, n) in enumerate(zip(kinds, numbers, strict=True)):
        status, objective = by_clarabel(to_dense(shape, n))
        if status not in ("Solved", "PrimalInfeasible", "DualInfeasible"):
            continue
        wrong = judge(shape, n, jax.tree.map(lambda a, i=i: a[i], results), status, objective)
        bad += [f"seed {seed}, {i} ({kind}): {wrong}"] if wrong else []
    return bad


@pytest.mark.parametrize("seed", [1, 3])
def test_random_qps_against_clarabel(seed: int) -> None:
    assert compare(seed, 24) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_random_qps_against_clarabel(seed: int) -> None:
    assert compare(seed, 50) == []


@pytest.mark.parametrize("kind", KINDS)
def test_host_and_jit_agree(kind: str) -> None:
    shape = random_shape(5)
    n = random_numbers(shape, 7, kind)
    inside = jax.tree.map(lambda a: a[0], solve_all(shape, [n]))
    edges, bounds = shape.edges(n)
    if Status(int(inside.code)) not in SOLVED:
        with pytest.raises(QPError, match=r"infeasible|unbounded"):
            solve_qp(edges, shape.sizes, bounds=bounds)
        return
    host = solve_qp(edges, shape.sizes, bounds=bounds)
    assert host.status in ("converged", "stalled") and host.success
    assert host.fun == pytest.approx(float(inside.fun), rel=1e-8, abs=1e-8)
    assert host.primal_residual < 1e-8
    assert host.dual_residual < 1e-8


def test_signs_are_those_of_the_lagrangian() -> None:
    """min ½x² - 3x with x ≤ 1 has y = 2 at the upper limit; with x ≥ 5 it has y = -2 at the lower one."""
    upper = solve_qp([Hyperedge(["x"], Q=1.0, b=3.0, C=1.0, upper=1.0)])
    assert upper.limit_duals[0] == pytest.approx([2.0], abs=1e-7)
    lower = solve_qp([Hyperedge(["x"], Q=1.0, b=3.0)], bounds={"x": (5.0, None)})
    assert lower.x["x"] == pytest.approx([5.0])
    assert lower.bound_duals["x"] == pytest.approx([-2.0], abs=1e-7)


@pytest.mark.parametrize("seed", [0, 4])
def test_limits_that_do_not_bind_change_nothing(seed: int) -> None:
    edges, sizes, _ = random_qp(seed)
    # Only where constrained these have negative curvature: with limits Q itself must be convex.
    edges = [
        Hyperedge(e.vertices, e.Q + 3 * e.G.T @ e.G, e.b, e.G, e.h, name=e.name) if e.Q is not None else e
        for e in edges
    ]
    plain = solve_qp(edges, sizes)
    limited = solve_qp(edges, sizes, bounds={v: (-1e4, 1e4) for v in sizes})
    assert limited.fun == pytest.approx(plain.fun, rel=1e-8, abs=1e-8)
    assert limited.rank == plain.rank
    assert limited.redundant == plain.redundant
    for v in sizes:
        np.testing.assert_allclose(limited.x[v], plain.x[v], atol=1e-5)


def test_equality_constraints_alone_work_inside_jit() -> None:
    edges, sizes, _ = random_qp(2)
    edges = [
        Hyperedge(e.vertices, e.Q + 3 * e.G.T @ e.G, e.b, e.G, e.h) if e.Q is not None else e for e in edges
    ]
    plain = solve_qp(edges, sizes)

    @jax.jit
    def solve(scale: Any) -> QPResult:
        return solve_qp(
            [Hyperedge(e.vertices, e.Q, None if e.b is None else scale * e.b, e.G, e.h) for e in edges], sizes
        )

    inside = solve(1.0)
    assert int(inside.code) == Status.CONVERGED
    assert inside.rank is None and inside.inertia is None
    assert float(inside.fun) == pytest.approx(plain.fun, rel=1e-8)


def test_single_precision() -> None:
    @jax.jit
    def solve(b: Any) -> QPResult:
        Q = jnp.eye(3, dtype=jnp.float32)
        return solve_qp(
            [Hyperedge(["x"], Q, b, C=np.ones((1, 3), np.float32), upper=1.0)], bounds={"x": (0.0, None)}
        )

    found = solve(jnp.array([2.0, 0.5, -1.0], jnp.float32))
    assert found.x["x"].dtype == jnp.float32 and bool(found.success)
    np.testing.assert_allclose(found.x["x"], [1.0, 0.0, 0.0], atol=1e-3)


I2 = np.eye(2)
REFUSED = {
    "infeasible rows": (
        lambda: solve_qp(
            [Hyperedge(["x", "y"], I2, C=[[1, 1], [1, 1]], lower=[1, -np.inf], upper=[np.inf, 0], name="sum")]
        ),
        r"infeasible(.|\n)*sum\[0\], sum\[1\]",
    ),
    "infeasible bounds": (
        lambda: solve_qp([Hyperedge(["x"], 1.0, C=1.0, lower=1.0, name="row")], bounds={"x": (None, 0.0)}),
        r"infeasible(.|\n)*row\[0\]; bounds of vertices 'x'",
    ),
    "unbounded": (
        lambda: solve_qp([Hyperedge(["x", "y"], b=[1, 0], C=[0, 1], upper=1.0)]),
        r"unbounded(.|\n)*'x'",
    ),
    "inconsistent rows": (
        lambda: solve_qp([Hyperedge(["x"], 1.0, G=[[1], [1]], h=[0, 1], C=1.0, upper=5.0)]),
        "inconsistent",
    ),
    "negative curvature": (
        lambda: solve_qp([Hyperedge(["x", "y"], -I2, C=I2, lower=-1.0, upper=1.0)]),
        "negative curvature",
    ),
    "indefinite": (
        lambda: solve_qp([Hyperedge(["x"], 1.0, C=1.0, upper=1.0)], allow_indefinite=True),
        "allow_indefinite with limits",
    ),
    "crossed rows": (lambda: Hyperedge(["x"], 1.0, C=1.0, lower=1.0, upper=0.0), "limits cross: 1 > 0"),
    "crossed bounds": (
        lambda: solve_qp([Hyperedge(["x"], 1.0)], bounds={"x": (1.0, 0.0)}),
        r"cross(.|\n)*bounds of vertex 'x'",
    ),
    "unknown vertex": (lambda: solve_qp([Hyperedge(["x"], 1.0)], bounds={"y": (0, 1)}), "unknown vertex 'y'"),
    "no pair": (lambda: solve_qp([Hyperedge(["x"], 1.0)], bounds={"x": 1.0}), "no pair"),
    "NaN": (lambda: Hyperedge(["x"], 1.0, C=1.0, upper=np.nan), "upper holds NaN"),
    "text": (lambda: Hyperedge(["x"], 1.0, C=1.0, upper="two"), "give real numbers"),
    "limits alone": (lambda: Hyperedge(["x"], 1.0, upper=1.0), "without C"),
    "C alone": (lambda: Hyperedge(["x"], 1.0, C=1.0), "without a limit"),
    "wrong length": (lambda: Hyperedge(["x"], I2, C=I2, upper=[1, 2, 3]), "for 2 rows"),
    "wrong bounds": (lambda: solve_qp([Hyperedge(["x"], I2)], bounds={"x": ([0, 0, 0], None)}), "for 2 rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(QPError, match=message) as caught:
        call()
    assert "where: " in str(caught.value)
    assert "what to do: " in str(caught.value)


def test_a_result_is_a_pytree_with_any_labels() -> None:
    result = solve_qp([Hyperedge(["x", 3, ("s", 1)], np.eye(3), np.ones(3), C=np.ones((1, 3)), upper=1.0)])
    again = jax.tree.map(lambda a: a, result)
    assert set(again.x) == {"x", 3, ("s", 1)}
    assert again.redundant == []
