"""Bad input gets a clear error: what, where in the user's code, what to do."""

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

HERE = "test_bad_input.py"


def small():
    g = gnewt.Graph()
    a, b = g.input((2,), name="a"), g.input(name="b")
    c = g.node(lambda a, b: a * b, a, b, name="c")
    g.loss(lambda c, b: jnp.sum(c**2) + b**2, c, b)
    return g, a, b, c


def test_a_node_of_another_graph():
    g, *_ = small()
    other = gnewt.Graph().input(name="stranger")
    with pytest.raises(gnewt.GraphError, match=f"stranger.*another graph[\\s\\S]*{HERE}"):
        g.node(lambda x: x, other)


def test_a_loss_that_is_not_a_scalar():
    g, a, *_ = small()
    with pytest.raises(gnewt.GraphError, match=f"\\(2,\\), not a scalar[\\s\\S]*{HERE}[\\s\\S]*sum it"):
        g.loss(lambda a: a**2, a)


@pytest.mark.parametrize("dtype", [np.int32, np.complex128, np.bool_])
def test_inputs_that_are_not_real(dtype):
    with pytest.raises(gnewt.GraphError, match="floating-point"):
        gnewt.Graph().input((2,), dtype=dtype)


def test_empty_inputs_and_outputs():
    with pytest.raises(gnewt.GraphError, match="empty"):
        gnewt.Graph().input((2, 0))
    g, a, *_ = small()
    with pytest.raises(gnewt.GraphError, match="empty"):
        g.node(lambda a: a[:0], a)
    with pytest.raises(gnewt.GraphError, match="sum over no items"):
        g.sum(lambda a: a, [])


def test_a_node_that_returns_no_single_real_array():
    g, a, *_ = small()
    with pytest.raises(gnewt.GraphError, match="returned 2 arrays"):
        g.node(lambda a: (a, a), a)
    with pytest.raises(gnewt.GraphError, match="int"):
        g.node(lambda a: jnp.argmax(a), a)
    with pytest.raises(gnewt.GraphError, match="complex"):
        g.node(lambda a: a * 1j, a)


def test_an_output_shape_that_changes_between_calls():
    state = {"n": 2}

    def moody(a):
        return jnp.ones(state["n"]) * a[0]

    g = gnewt.Graph()
    a = g.input((2,), name="a")
    b = g.node(moody, a)
    g.loss(lambda b: jnp.sum(b**2), b)
    state["n"] = 3
    with pytest.raises(gnewt.GraphError, match=f"moody[\\s\\S]*changed between calls[\\s\\S]*{HERE}"):
        g([np.ones(2)])


def test_a_graph_without_inputs_or_losses():
    with pytest.raises(gnewt.GraphError, match="no inputs"):
        gnewt.Graph()([])
    g = gnewt.Graph()
    g.input()
    with pytest.raises(gnewt.GraphError, match="no loss"):
        g([1.0])


def test_values_that_do_not_fit():
    g, *_ = small()
    with pytest.raises(gnewt.GraphError, match="input a has shape"):
        gnewt.newton_step(g)([np.ones(3), 1.0])
    with pytest.raises(gnewt.GraphError, match="structure"):
        gnewt.newton_step(g)([np.ones(2)])
    with pytest.raises(gnewt.GraphError, match="complex"):
        gnewt.newton_step(g)([np.ones(2) * 1j, 1.0])


def test_nan_is_named_by_node():
    g = gnewt.Graph()
    a = g.input(name="a")
    b = g.node(lambda a: jnp.log(a), a, name="logarithm")
    g.loss(lambda b: b**2, b)
    with pytest.raises(gnewt.StepError, match=f"logarithm is nan[\\s\\S]*{HERE}"):
        gnewt.newton_step(g)([-1.0])
    step, info = gnewt.newton_step(g, full_output=True)([-1.0])
    assert info.status == "nonfinite"
    assert not info.success
    assert np.isnan(step[0])
    assert gnewt.minimize(g, [-1.0]).status == "nonfinite"


def test_an_infinite_derivative_is_named_by_node():
    g = gnewt.Graph()
    a = g.input(name="a")
    b = g.node(lambda a: jnp.sqrt(a), a, name="root")
    g.loss(lambda b: b + b**2, b)
    with pytest.raises(gnewt.StepError, match=r"(Jacobian|Hessian) of root is not finite"):
        gnewt.newton_step(g)([0.0])


def test_an_input_that_is_nan_is_named():
    g, *_ = small()
    with pytest.raises(gnewt.StepError, match=r"value of a\[1\] is nan"):
        gnewt.newton_step(g)([np.array([0.0, np.nan]), 1.0])


def test_a_singular_hessian_names_its_vertices():
    g = gnewt.Graph()
    a, b, lonely = g.input(name="a"), g.input(name="b"), g.input(name="lonely")
    g.loss(lambda a, b: (a - 1) ** 2 + b**2, a, b)
    g.loss(lambda x: x, lonely)
    with pytest.raises(gnewt.StepError, match=r"singular[\s\S]*lonely[\s\S]*shift"):
        gnewt.newton_step(g)([0.0, 0.0, 0.0])
    _, info = gnewt.newton_step(g, full_output=True)([0.0, 0.0, 0.0])
    assert info.status == "singular"
    assert info.null_vertices == ("lonely",)
    assert info.inertia == (2, 0, 1)
    assert info.logdet == -np.inf
    with pytest.raises(gnewt.StepError, match="singular"):
        gnewt.factorize(g)([0.0, 0.0, 0.0]).solve([1.0, 1.0, 1.0])


def test_a_hessian_that_is_singular_only_as_a_whole():
    """No zero block: x - y is free along a chain of nodes, and rounding hides the zero."""
    g = gnewt.Graph()
    a, b = g.input((2,), name="a"), g.input((2,), name="b")
    c = g.node(lambda a, b: 0.7 * a + 0.7 * b, a, b)
    g.loss(lambda c: jnp.sum(jnp.cosh(c)), c)
    for order in ["causal", "min_degree", "hessian"]:
        _, info = gnewt.newton_step(g, order=order, full_output=True)([np.ones(2) / 3, np.ones(2) / 7])
        assert info.status == "singular"
        assert info.inertia == (2, 0, 2)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_dense_hessian_of_low_rank(rank):
    """LAPACK leaves NaN behind a zero pivot; what is left of the block must still be called null."""
    w = np.random.default_rng(rank).normal(size=(max(rank, 1), 12)) * (rank > 0)
    g = gnewt.Graph()
    a = g.input((12,), name="a")
    r = g.node(lambda w, a: w @ a, w, a)
    g.loss(lambda r: jnp.sum((r - 1.0) ** 2), r)
    for order in ["hessian", "causal", "min_degree"]:
        step, info = gnewt.newton_step(g, order=order, full_output=True)([np.arange(12.0)])
        assert info.status == "singular"
        assert info.inertia == (rank, 0, 12 - rank)
        assert np.all(np.isfinite(step[0]))


def test_orders_that_are_not_valid():
    g, a, b, c = small()
    with pytest.raises(gnewt.PlanError, match="not a permutation"):
        gnewt.newton_step(g, order=[a, b])([np.ones(2), 1.0])
    with pytest.raises(gnewt.PlanError, match="not a permutation"):
        gnewt.newton_step(g, order=[a, b, c, c])([np.ones(2), 1.0])
    with pytest.raises(gnewt.PlanError, match="unknown order"):
        gnewt.newton_step(g, order="fastest")([np.ones(2), 1.0])
    with pytest.raises(gnewt.PlanError, match=f"not causal[\\s\\S]*c.* reads[\\s\\S]*{HERE}"):
        gnewt.plan.make_plan(g.structure(), [g.slots(h) for h in (a, b, c)], causal=True)
    with pytest.raises(gnewt.PlanError, match="into one vertex"):
        d = g.node(lambda c: 2 * c, c)
        gnewt.plan.make_plan(
            g.structure(), [g.slots(a), g.slots(b), np.concatenate([g.slots(c), g.slots(d)])]
        )


def test_an_unknown_curvature():
    g, *_ = small()
    with pytest.raises(gnewt.PlanError, match="curvature"):
        gnewt.newton_step(g, curvature="magic")([np.ones(2), 1.0])


def test_too_wide_for_memory_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setenv("GNEWT_MAX_BYTES", "10")
    g, *_ = small()
    with pytest.raises(gnewt.PlanError, match=r"too wide for memory[\s\S]*width"):
        gnewt.newton_step(g)([np.ones(2), 1.0])
