"""Arguments mean what they mean to `jax.grad`: positional or by name, numbers or not, known or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt._errors import TraceError
from gnewt.trace import trace_function
from helpers.oracle import backward_error

X = jnp.array([0.3, -0.8, 1.7])


def objective(x, power=2, *, mode="plain", flag=False, weight=1.0, activation=jnp.sin, extra=None):
    y = weight * activation(x)
    for _ in range(power):  # needs a Python integer
        y = y * jnp.cos(y) + x
    if flag:
        y = y + (extra["shift"] if extra is not None else 1.0)
    y = y[1:] * y[:-1] if mode == "product" else y
    return jnp.sum(y**2) + jnp.sum(x**2)


def check(step, *args, **kwargs):
    f = functools.partial(objective, **kwargs)
    assert backward_error(jax.hessian(f)(*args), step, jax.grad(f)(*args)) <= 1e-14


CALLS = [
    ((X,), {}),
    ((X, 1), {"mode": "product", "flag": True}),
    ((X,), {"power": 1, "weight": 0.5, "flag": True, "extra": {"shift": np.ones(3), "name": "wind"}}),
    ((X, 1), {"activation": jnp.tanh, "weight": jnp.array([1.0, 2.0, 3.0])}),
]


@pytest.mark.parametrize("args, kwargs", CALLS)
def test_keywords_as_in_jax_grad(args, kwargs):
    check(gnewt.newton_step(objective)(*args, **kwargs), *args, **kwargs)


def test_keywords_inside_jit_are_data_or_static():
    step = jax.jit(
        lambda x, w: gnewt.newton_step(objective)(
            x, 1, mode="product", weight=w, extra={"shift": w, "k": "s"}
        )
    )
    for w in (jnp.ones(3), jnp.array([1.0, 2.0, 3.0])):
        check(step(X, w), X, 1, mode="product", weight=w, extra={"shift": w})
    batch = jax.vmap(lambda w: gnewt.newton_step(objective)(X, 1, weight=w))(jnp.array([0.5, 2.0]))
    check(batch[1], X, 1, weight=2.0)


def test_every_function_takes_keywords():
    keywords = {"mode": "product", "flag": True}
    args = (X, 1)
    f = functools.partial(objective, **keywords)
    factor = gnewt.factorize(objective)(*args, **keywords)
    assert backward_error(jax.hessian(f)(*args), factor.step(), jax.grad(f)(*args)) <= 1e-14
    assert gnewt.minimize(objective, X, (1,), kwargs=keywords).success
    graph = gnewt.trace_graph(objective, *args, kwargs=keywords)
    assert graph(X) == pytest.approx(float(objective(*args, **keywords)))
    assert gnewt.explain(objective, *args, kwargs=keywords).num_inputs == 3

    def with_aux(x, *, scale):
        return jnp.sum(x**4) * scale, {"x": x, "scale": scale}

    _, aux = gnewt.newton_step(with_aux, has_aux=True)(X, scale=2.0)
    assert aux["scale"] == 2.0 and np.array_equal(aux["x"], X)
    assert gnewt.factorize(with_aux, has_aux=True)(X, scale=2.0)[1]["scale"] == 2.0


def test_numbers_outside_argnums_are_data_where_they_can_be():
    def f(x, a, n, *, b):
        return jnp.sum(a * x**2) + b * n * jnp.sum(jnp.sin(x))

    traced = trace_function(f)
    first, _ = traced.structure_for((X, 1.0, 2), {"b": 3.0})
    second, _ = traced.structure_for((X, 2.0, 5), {"b": np.float64(4.0)})
    assert first is traced.structure_for((X, 4.0, 7), {"b": 1.0})[0]
    assert second.num_inputs == 3


def test_a_constant_that_changes_is_seen():
    def f(x, n, flag):
        return (jnp.sum(x**4) if flag else jnp.sum(x**2)) * (2.0 if n > 2 else 3.0) + jnp.sum(x)

    step = gnewt.newton_step(f)
    for n, flag in [
        (1, True),
        (3, True),
        (3, False),
        (1, False),
        (np.int64(3), True),
        (jnp.asarray(1), True),
    ]:
        g, h = jax.grad(f)(X, n, flag), jax.hessian(f)(X, n, flag)
        assert backward_error(h, step(X, n, flag), g) <= 1e-14


def test_objects_that_cannot_be_hashed_or_compared():
    class Options(dict):
        def __eq__(self, other):
            raise RuntimeError("not comparable")

        __hash__ = None

    def f(x, options, names):
        return jnp.sum(x ** options["power"]) + len(names) * jnp.sum(x**2)

    step = gnewt.newton_step(f)
    for power in (2, 4):
        options, names = Options(power=power), np.array(["a", "b"])
        g = jax.grad(lambda x: f(x, options, names))
        assert backward_error(jax.jacobian(g)(X), step(X, options, names), g(X)) <= 1e-14


def test_an_error_of_the_function_is_its_own():
    def f(x, n):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gnewt.newton_step(f)(X, 3)
    with pytest.raises(KeyError, match="mine"):
        gnewt.newton_step(f)(X, "a")
    with pytest.raises(TypeError, match="unexpected keyword"):
        gnewt.newton_step(objective)(X, speed=3)


def test_shapes_are_enough_to_explain():
    def f(x, w, mode="a"):
        return jnp.sum(w * jnp.sin(x["a"]) ** 2) + jnp.sum(x["a"][1:] * x["b"]) ** 2

    shapes = {"a": jax.ShapeDtypeStruct((4,), float), "b": jax.ShapeDtypeStruct((3,), float)}
    x = {"a": jnp.arange(4.0), "b": jnp.ones(3)}
    w = jnp.ones(4)
    report = gnewt.explain(f, shapes, jax.ShapeDtypeStruct((4,), float), kwargs={"mode": "b"})
    assert str(report).splitlines()[0] == str(gnewt.explain(f, x, w)).splitlines()[0]
    assert report.width == gnewt.explain(f, x, w).width
    graph = gnewt.trace_graph(f, shapes, w)
    assert float(graph(x)) == pytest.approx(float(f(x, w)))
    graph = gnewt.trace_graph(f, shapes, kwargs={"w": jax.ShapeDtypeStruct((4,), float)})
    assert np.isnan(graph(x))  # its weights are not known


def refused(match, call):
    with pytest.raises(TraceError, match=match) as caught:
        call()
    assert "where: " in str(caught.value) and "test_arguments.py" in str(caught.value)
    assert "what to do: " in str(caught.value)


def test_argnums_that_mean_nothing():
    f = objective
    refused("twice", lambda: gnewt.newton_step(f, (0, 0))(X))
    refused("twice", lambda: gnewt.newton_step(f, (0, -2))(X, 1))
    refused("argnums = 'x'", lambda: gnewt.newton_step(f, "x"))
    refused(r"argnums = 0\.5", lambda: gnewt.factorize(f, 0.5))
    refused(r"argnums = \(\)", lambda: gnewt.factorize(f, ()))
    refused("2, but the function was given 1 positional", lambda: gnewt.newton_step(f, 2)(X, power=1))
    refused("no positional", lambda: gnewt.newton_step(f)(x=X))
    assert gnewt.newton_step(lambda x: jnp.sum(x**2), np.int64(0))(X).shape == (3,)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_too_few_digits(dtype):
    x = {"a": X, "b": X.astype(dtype)}

    def f(x):
        return jnp.sum(x["a"] ** 2 + x["b"].astype(x["a"].dtype) ** 2)

    refused(rf"x\['b'\] has dtype {jnp.dtype(dtype).name}: too few digits", lambda: gnewt.newton_step(f)(x))
    refused("too few digits", lambda: gnewt.minimize(f, x))
    refused("too few digits", lambda: jax.jit(gnewt.newton_step(f))(x))


def test_inputs_that_are_no_numbers():
    def f(x):
        return jnp.sum(x["a"] ** 2)

    refused(r"x\['b'\] is 'left' \(str\)", lambda: gnewt.newton_step(f)({"a": X, "b": "left"}))
    refused(r"ShapeDtypeStruct", lambda: gnewt.newton_step(f)({"a": jax.ShapeDtypeStruct((3,), float)}))
    refused(r"x\['b'\] is True", lambda: gnewt.newton_step(f)({"a": X, "b": True}))


def test_has_aux_without_a_pair():
    refused("returns one array, not", lambda: gnewt.newton_step(lambda x: jnp.sum(x**2), has_aux=True)(X))
    refused("one tuple of 3, not", lambda: gnewt.minimize(lambda x: (jnp.sum(x**2), x, x), X, has_aux=True))


def test_half_precision_inside_the_function():
    half = jnp.array([1.0, 2.0, 3.0], jnp.bfloat16)

    def constants_may_be_coarse(x):
        return jnp.sum(half.astype(x.dtype) * x**2)

    def converts(x):
        return jnp.sum(x.astype(jnp.float16) ** 2).astype(x.dtype)

    def in_a_loop(x):
        def stage(c, u):
            return c + (c * u * half[0]).astype(jnp.bfloat16).astype(x.dtype), None

        return jax.lax.scan(stage, jnp.ones(()), x)[0] ** 2

    graph = gnewt.trace_graph(constants_may_be_coarse, X)
    assert float(graph(X)) == pytest.approx(float(constants_may_be_coarse(X)))
    refused("computes in float16", lambda: gnewt.trace_graph(converts, X))
    refused("computes in bfloat16", lambda: gnewt.trace_graph(in_a_loop, X))
    refused(
        "computes in bfloat16", lambda: gnewt.trace_graph(lambda x: jnp.sum(x**2).astype(jnp.bfloat16), X)
    )
