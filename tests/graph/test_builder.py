"""The hand-written graph: handles, families, evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import check_structure


def step(x, u):
    return x + 0.1 * u * jnp.cos(x)


def plain(us, x0):
    x, total = x0, 0.0
    for u in us:
        total = total + jnp.sum(x**2) + u**2
        x = step(x, u)
    return total + jnp.sum(x**4)


def build(T, x0):
    g = gnewt.Graph()
    us = [g.input(name=f"u{t}") for t in range(T)]
    x = g.constant(x0)
    for u in us:
        g.loss(lambda x, u: jnp.sum(x**2) + u**2, x, u)
        x = g.node(step, x, u)
    g.loss(lambda x: jnp.sum(x**4), x)
    return g


@pytest.mark.parametrize("T", [1, 2, 3, 17])
def test_value_and_derivatives_agree_with_the_plain_program(T):
    x0 = np.array([1.0, -2.0])
    g = build(T, x0)
    us = [np.array(0.1 * t - 0.3) for t in range(T)]
    check_structure(g.structure())
    assert float(g(us)) == pytest.approx(float(plain(us, x0)), rel=1e-14)
    ours, theirs = jax.grad(g)(us), jax.grad(lambda us: plain(us, x0))(us)
    assert np.allclose(ours, theirs, rtol=1e-13)


def test_equal_calls_are_one_family_even_for_lambdas_made_in_a_loop():
    structure = build(50, np.ones(2)).structure()
    # With x0 constant: the first stage (no state argument) is apart from the other 49.
    assert len(structure.families) == 5
    assert sorted(f.n for f in structure.families) == [1, 1, 1, 49, 49]


def test_closures_over_different_numbers_are_different_families():
    g = gnewt.Graph()
    a = g.input(name="a")
    for c in (1.0, 2.0):
        g.loss(lambda a, c=c: c * a**2, a)
    scale = 3.0
    g.loss(lambda a: scale * a**2, a)
    assert len(g.structure().families) == 3
    assert float(g([2.0])) == pytest.approx(24.0)


def test_a_closure_that_changes_is_not_confused():
    g = gnewt.Graph()
    a = g.input(name="a")
    for t in range(3):
        g.loss(lambda a: t * a, a)
    assert float(g([1.0])) == pytest.approx(3.0)


def test_compile_time_structure_does_not_grow_with_the_horizon():
    small, large = build(20, np.ones(2)).structure(), build(400, np.ones(2)).structure()
    assert len(small.schedule.segments) == len(large.schedule.segments)
    assert large.schedule.depth == 400


def test_handles_know_shape_dtype_and_name():
    g = gnewt.Graph()
    a = g.input((2, 3), name="a")
    b = g.node(lambda a: a.sum(0), a, name="b")
    c = g.constant(np.arange(3))
    assert (a.shape, a.name, b.shape, b.name, c.shape) == ((2, 3), "a", (3,), "b", (3,))
    assert a.dtype == np.float64
    assert np.issubdtype(c.dtype, np.integer)
    assert "b" in repr(b)


def test_a_node_of_constants_is_a_constant():
    g = gnewt.Graph()
    a = g.input(name="a")
    c = g.node(lambda x, y: x + y, g.constant(1.0), 2.0)
    assert c.kind == "constant"
    g.loss(lambda a, c: (a - c) ** 2, a, c)
    assert float(g([1.0])) == pytest.approx(4.0)


def test_sum_adds_terms_and_constant_terms():
    g = gnewt.Graph()
    a, b = g.input(name="a"), g.input(name="b")
    s = g.sum(lambda x, w: w * x**2, [(a, 1.0), (b, 2.0), (g.constant(3.0), 1.0)])
    g.loss(lambda s: s**2, s)
    assert float(g([1.0, 2.0])) == pytest.approx((1 + 8 + 9) ** 2)
    _, info = gnewt.newton_step(g, full_output=True)([1.0, 2.0])
    assert info.residual < 1e-13


@pytest.mark.parametrize("traced", [False, True])
def test_sum_over_constants_is_a_constant(traced):
    def value(a):
        g = gnewt.Graph()
        x = g.input(name="x")
        total = g.sum(lambda c, w: w * c**2, [(g.constant(3.0), 1.0), (2.0, 5.0)])
        assert total.kind == "constant" and float(total.value) == 29.0
        g.loss(lambda x, s: s * x**2, x, total)
        return g([a])

    assert float((jax.jit(value) if traced else value)(2.0)) == pytest.approx(116.0)


def test_sum_of_different_shapes_is_refused():
    g = gnewt.Graph()
    a, b = g.input((2,)), g.input((3,))
    with pytest.raises(gnewt.GraphError, match="different shapes"):
        g.sum(lambda x: x**2, [a, b])


def test_inputs_may_be_added_after_nodes():
    g = gnewt.Graph()
    a = g.input(name="a")
    n = g.node(lambda a: a**2, a)
    b = g.input(name="b")
    g.loss(lambda n, b: (n - b) ** 2 + b**2, n, b)
    assert float(g([2.0, 1.0])) == pytest.approx(10.0)
    g.loss(lambda b: b, b)
    assert float(g([2.0, 1.0])) == pytest.approx(11.0)


def test_an_irregular_graph_falls_back_to_one_loop():
    """More distinct levels than can be compiled one by one: the schedule stays small."""
    rng = np.random.default_rng(0)
    g = gnewt.Graph()
    known = [g.input(name=f"u{i}") for i in range(4)]
    for _ in range(150):
        fan = int(rng.integers(1, 4))
        args = [
            known[i] for i in rng.choice(np.arange(max(0, len(known) - 5), len(known)), fan, replace=False)
        ]
        known.append(g.node({1: one, 2: two, 3: three}[fan], *args))
    for k in known:
        g.loss(lambda x: x**2, k)
    structure = g.structure()
    assert len(structure.schedule.segments) == 1
    values = [0.3, -0.2, 0.5, 0.9]
    _, info = gnewt.newton_step(g, full_output=True)(values)
    assert info.residual < 1e-10
    assert jax.grad(g)(values)[0] == pytest.approx(float(gnewt.factorize(g)(values).gradient[0]), rel=1e-12)


def one(a):
    return jnp.sin(a)


def two(a, b):
    return 0.5 * a * b + 0.1 * a


def three(a, b, c):
    return jnp.tanh(a + b) * c


def test_str_lists_families_and_source_lines():
    text = str(build(5, np.ones(2)))
    assert "test_builder.py" in text
    assert "step" in text


def test_mixed_precision_inputs_keep_their_dtypes():
    g = gnewt.Graph()
    a, b = g.input((2,), dtype=np.float32), g.input()
    g.loss(lambda a, b: jnp.sum(a**2) + b**2 + b * a[0], a, b)
    step = gnewt.newton_step(g)([np.ones(2, np.float32), 1.0])
    assert (step[0].dtype, step[1].dtype) == (np.float32, np.float64)
    assert np.allclose(step[0], -1.0)


def test_a_graph_built_while_jax_traces_can_be_used_afterwards():
    g = build(4, np.ones(2))
    g.node(lambda c: c + 1, g.constant(1.0))
    us = [0.1, 0.2, 0.3, 0.4]
    assert float(jax.jit(g)(us)) == pytest.approx(float(plain(us, np.ones(2))), rel=1e-14)
    _, info = gnewt.newton_step(g, full_output=True)(us)
    assert info.status == "ok"


def test_linear_nodes_have_no_hessian():
    matrix = np.arange(6.0).reshape(2, 3)
    g = gnewt.Graph()
    x, a = g.input((3,), name="x"), g.constant(2.0)
    straight = g.node(lambda a, x: a * (matrix @ x) + 1.0, a, x)
    bent = g.node(lambda y: y * jnp.sin(y), straight)
    g.loss(lambda y: jnp.sum(y), bent)
    pattern = {f.k: f.hess_pattern for f in g.structure().families if not f.is_loss}
    assert not pattern[3].any()
    assert pattern[2].all()
