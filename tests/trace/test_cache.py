"""Caching, captured values, extra arguments, and tracers of the caller."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import evaluate
from gnewt.trace import TracedFunction, trace_function, trace_graph
from gnewt.trace.cache import StructureCache
from gnewt.trace.rules import RULES
from helpers.lifted_oracle import errors
from helpers.trace_programs import PROGRAMS, control, points


def value_of(structure, data, x):
    return jax.jit(lambda m, d, z: evaluate(structure, m, d, z)[0])(structure.maps, data, structure.ravel(x))


def maps_of(structure):
    return jax.tree_util.tree_map(jnp.asarray, structure.maps)


def test_same_function_and_shapes_give_the_same_structure():
    x = points(20, 1)
    first, _ = trace_function(control).structure_for((x,))
    second, _ = trace_function(control).structure_for((x + 1,))
    assert first is second
    other, _ = trace_function(control).structure_for((points(21, 1),))
    assert other is not first


def test_dtype_and_argnums_are_part_of_the_key():
    def f(a, b):
        return jnp.sum(a**2 * b)

    a, b = points(3), points(3, seed=1)
    s64, _ = trace_function(f).structure_for((a, b))
    s32, _ = trace_function(f).structure_for((a.astype(np.float32), b.astype(np.float32)))
    other, _ = trace_function(f, 1).structure_for((a, b))
    assert s64.dtype == np.float64
    assert s32.dtype == np.float32
    assert other is not s64


def test_new_captured_values_are_picked_up():
    box = {"a": np.arange(1.0, 5.0), "scale": 2.0}

    def f(x):
        return jnp.sum(jnp.sin(jnp.asarray(box["a"]) * x)) * box["scale"]

    x = points(4)
    traced = trace_function(f)
    first, data = traced.structure_for((x,))
    np.testing.assert_allclose(value_of(first, data, x), f(x), rtol=1e-13)
    box["a"] = np.arange(2.0, 6.0)
    second, data = traced.structure_for((x,))
    assert second is first
    np.testing.assert_allclose(value_of(second, data, x), f(x), rtol=1e-13)
    box["a"][2] = -7.0  # NumPy arrays can be written to
    second, data = traced.structure_for((x,))
    np.testing.assert_allclose(value_of(second, data, x), f(x), rtol=1e-13)
    box["scale"] = 3.0
    third, data = traced.structure_for((x,))
    np.testing.assert_allclose(value_of(third, data, x), f(x), rtol=1e-13)


def test_new_zeros_and_indices_change_the_structure():
    box = {"A": np.eye(4), "i": np.array([0, 1])}

    def f(x):
        return jnp.sum((jnp.asarray(box["A"]) @ x) ** 4) + jnp.prod(x[jnp.asarray(box["i"])])

    x = points(4)
    traced = trace_function(f)
    first, _ = traced.structure_for((x,))
    box["A"] = 2 * np.eye(4)
    second, data = traced.structure_for((x,))
    assert second is first
    box["A"] = np.ones((4, 4))
    third, data = traced.structure_for((x,))
    assert third is not first
    np.testing.assert_allclose(value_of(third, data, x), f(x), rtol=1e-12)
    box["i"] = np.array([2, 3])
    fourth, data = traced.structure_for((x,))
    assert fourth is not third
    np.testing.assert_allclose(value_of(fourth, data, x), f(x), rtol=1e-12)


def test_structures_are_bounded_and_the_least_recently_used_is_dropped():
    box = {"i": 0}

    def f(x):
        return jnp.sum(x**2) + jnp.sum(x[np.array([box["i"]])] ** 3)

    traced = TracedFunction(f)
    traced.cache = StructureCache(bound=4)
    x = points(12)
    kept = {}
    for i in [0, 1, 2, 3, 0, 4, 5]:
        box["i"] = i
        kept[i], _ = traced.structure_for((x,))
        assert len(traced.cache) <= 4
    for i, stays in [(5, True), (4, True), (0, True), (3, True), (1, False)]:
        box["i"] = i
        assert (traced.structure_for((x,))[0] is kept[i]) == stays


def test_f_is_traced_at_every_call_and_its_structure_found_again():
    count = [0]

    def f(x):
        count[0] += 1
        return jnp.sum(x**2)

    found = [trace_function(f).structure_for((points(3),))[0] for _ in range(4)]
    assert count[0] == 4
    assert all(structure is found[0] for structure in found)


def test_a_rule_of_its_own_does_not_make_a_new_structure():
    """JAX wraps the rules of relu and softplus anew at every trace: they are compared by content."""
    box = {"w": np.ones(3)}

    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, c: (2 * x * c,))
    constant = np.arange(1.0, 4.0)

    @jax.custom_jvp
    def tilted(x):
        return constant * x

    tilted.defjvp(lambda p, t: (tilted(p[0]), jnp.asarray(constant) * t[0]))

    def f(x):
        y = jax.nn.relu(box["w"] * x) + jax.nn.softplus(x)
        return jnp.sum(y**2) + jnp.sum(square(tilted(x))) + jax.scipy.special.logsumexp(x)

    x = points(3)
    first, _ = trace_function(f).structure_for((x,))
    box["w"] = np.arange(1.0, 4.0)
    second, data = trace_function(f).structure_for((x,))
    assert second is first
    np.testing.assert_allclose(value_of(second, data, x), f(x), rtol=1e-13)


def test_equal_functions_share_a_structure_unless_messages_would_be_wrong():
    def make(power):
        return lambda x: jnp.sum(jnp.sin(x) ** power)

    x = points(3)
    shared, _ = trace_function(make(2)).structure_for((x,))
    assert trace_function(make(2)).structure_for((x,))[0] is shared
    assert trace_function(make(3)).structure_for((x,))[0] is not shared
    other, _ = trace_function(lambda y: jnp.sum(jnp.sin(y) ** 2)).structure_for((x,))
    assert other.in_names == ("y",)
    here, _ = trace_function(lambda x: jnp.sum(jnp.sin(x) ** 2)).structure_for((x,))
    assert here.families[0].where != shared.families[0].where


def test_a_rule_that_captures_a_tracer_is_not_kept():
    def outer(x, w):
        @jax.custom_jvp
        def g(y):
            return jnp.sin(y)

        g.defjvp(lambda p, t: (g(p[0]), w * jnp.cos(p[0]) * t[0]))

        def f(z):
            return jnp.sum(g(z) ** 2)

        structure, data = trace_function(f).structure_for((x,))
        ours = jax.grad(lambda v: evaluate(structure, maps_of(structure), data, v)[0])(structure.ravel(x))
        return ours, jax.grad(f)(x)

    for w in (1.0, 2.0):
        ours, true = jax.jit(lambda x, w: outer(x, w))(points(3), w)
        np.testing.assert_allclose(ours, true, rtol=1e-13)


SCALE = np.ones(3)


class Model:
    rate = 2.0

    def __init__(self):
        self.weights = [jnp.ones(3), {"b": 1.0}]

    def __call__(self, x):
        return jnp.sum(self.rate * self.weights[0] * x**2) + self.weights[1]["b"] * _helper(x)


def _helper(x):
    return jnp.sum(SCALE * x)


def test_every_kind_of_capture_is_seen():
    model = Model()
    x = points(3)

    def check():
        structure, data = trace_function(model.__call__).structure_for((x,))
        np.testing.assert_allclose(value_of(structure, data, x), model(x), rtol=1e-13)
        other = functools.partial(lambda m, z: m(z) ** 2, model)
        structure, data = trace_function(other).structure_for((x,))
        np.testing.assert_allclose(value_of(structure, data, x), other(x), rtol=1e-13)
        structure, data = traced.structure_for((x,))
        np.testing.assert_allclose(value_of(structure, data, x), model(x) * 2, rtol=1e-13)

    traced = trace_function(lambda z: 2 * model(z))
    check()
    model.weights[0] = 3 * jnp.ones(3)
    check()
    model.weights[1]["b"] = -2.0
    check()
    SCALE[1] = 7.0  # a global array, written in place
    check()
    model.rate = 5.0
    check()
    model.weights = [jnp.zeros(3), {"b": 4.0}]
    check()


def test_what_leaves_the_cache_is_freed():
    """Structure, system and compiled functions: of a step, a run of minimize and a product, without emptying JAX's caches."""
    x = points(3)

    def f(x):
        return jnp.sum(jnp.cosh(x)) + jnp.sum(x**4)

    structure, _ = trace_function(f).structure_for((x,))
    gnewt.newton_step(f)(x)
    gnewt.minimize(f, x, max_steps=2)
    jax.jit(gnewt.newton_step(f))(x)
    held = [
        weakref.ref(v)
        for v in (structure, *structure._memo.values())
        if not isinstance(v, tuple | int | type(None))
    ]
    assert len(held) > 5
    del structure
    gnewt.clear_cache()
    gc.collect()
    assert [r() for r in held if r() is not None] == []


def test_captured_tracers_become_data():
    A = np.diag(np.arange(1.0, 5.0))

    def outer(x, A, c):
        def f(z):
            return jnp.sum(jnp.sin(A @ z) ** 2) + c * jnp.sum(z**4)

        structure, data = trace_function(f).structure_for((x,))
        return evaluate(structure, maps_of(structure), data, structure.ravel(x))[0], f(x)

    ours, true = jax.jit(outer)(points(4), A, 0.5)
    np.testing.assert_allclose(ours, true, rtol=1e-13)


def test_captured_tracers_as_indices_are_opaque_but_exact():
    def outer(x, index, mask):
        def f(z):
            return jnp.sum(jnp.sin(z[index]) * z) + jnp.sum(jnp.where(mask, z**2, z))

        structure, data = trace_function(f).structure_for((x,))
        return evaluate(structure, maps_of(structure), data, structure.ravel(x))[0], f(x)

    ours, true = jax.jit(outer)(points(4), jnp.array([2, 0, 1, 1]), jnp.array([True, False, True, False]))
    np.testing.assert_allclose(ours, true, rtol=1e-13)


def test_captured_tracers_inside_a_scan():
    def outer(us, x0, refs):
        def f(u):
            def stage(x, ur):
                u, r = ur
                return jnp.sin(x) + u, jnp.sum((x - r) ** 2)

            return jax.lax.scan(stage, x0, (u, refs))[1].sum()

        structure, data = trace_function(f).structure_for((us,))
        return evaluate(structure, maps_of(structure), data, structure.ravel(us))[0], f(us)

    ours, true = jax.jit(outer)(points(9, 2), points(2, seed=1), points(9, 2, seed=2))
    np.testing.assert_allclose(ours, true, rtol=1e-13)


def test_a_tracer_never_stays_in_the_cache():
    def f(x, w):
        return jnp.sum(jnp.sin(w * x))

    traced = trace_function(f)

    @jax.jit
    def outer(x, w):
        structure, data = traced.structure_for((x, w))
        return evaluate(structure, maps_of(structure), data, structure.ravel(x))[0]

    with jax.checking_leaks():
        np.testing.assert_allclose(outer(points(3), points(3, seed=1)), f(points(3), points(3, seed=1)))
    structure, data = traced.structure_for((points(3), points(3, seed=2)))
    np.testing.assert_allclose(value_of(structure, data, points(3)), f(points(3), points(3, seed=2)))


def test_works_under_vmap_of_the_data():
    def step(w):
        def f(x):
            return jnp.sum(jnp.cos(w * x) ** 2)

        x = jnp.arange(3.0)
        structure, data = trace_function(f).structure_for((x,))
        return evaluate(structure, maps_of(structure), data, structure.ravel(x))[0]

    ws = points(4, 3)
    expected = [float(jnp.sum(jnp.cos(w * jnp.arange(3.0)) ** 2)) for w in ws]
    np.testing.assert_allclose(jax.vmap(step)(ws), expected, rtol=1e-13)


def test_has_aux():
    graph = trace_graph(lambda x: (jnp.sum(x**2), {"twice": 2 * x}), points(3), has_aux=True)
    np.testing.assert_allclose(graph(points(3)), jnp.sum(points(3) ** 2))


def test_integer_and_boolean_extra_arguments():
    f, args, argnums = PROGRAMS["extra_arguments"]()
    traced = trace_function(f, argnums)
    structure, data = traced.structure_for(args)
    np.testing.assert_allclose(value_of(structure, data, args[1]), f(*args), rtol=1e-13)
    other = (3.0, args[1], args[2][::-1], ~args[3])
    structure, data = traced.structure_for(other)
    np.testing.assert_allclose(value_of(structure, data, args[1]), f(*other), rtol=1e-13)


def test_random_keys_as_extra_arguments():
    def f(x, key):
        return jnp.sum(jax.random.normal(key, (3,)) * x**2)

    key = jax.random.key(1)
    graph = trace_graph(f, points(3), key)
    np.testing.assert_allclose(graph(points(3)), f(points(3), key), rtol=1e-13)


@pytest.mark.parametrize("broken", ["mul", "sin"])
def test_a_broken_rule_shows(broken):
    """Rules are values in a table: a wrong one gives a wrong graph, which the oracle sees."""

    def f(x):
        return jnp.sum(jnp.sin(x) * jnp.cos(x))

    x = points(4)
    good = trace_graph(f, x)
    bad = trace_graph(f, x, rules={**RULES, broken: RULES["sub"] if broken == "mul" else _identity})
    assert max(errors(good, f, (x,))) < 1e-12
    assert max(errors(bad, f, (x,))) > 1e-3


def _identity(lift, instr, ins):
    return [ins[0]]
