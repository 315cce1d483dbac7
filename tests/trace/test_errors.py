"""Bad input: what happened, where in the user's code, what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from gnewt._errors import TraceError
from gnewt.trace import trace_graph
from helpers.trace_programs import points


def check(match, f, *args, **kwargs):
    with pytest.raises(TraceError, match=match) as caught:
        trace_graph(f, *args, **kwargs)
    text = str(caught.value)
    assert "where:" in text
    assert "what to do:" in text
    return text


def test_vector_output():
    text = check("not a real scalar", lambda x: x**2, points(3))
    assert "float64[3]" in text


def test_two_outputs():
    assert "has_aux" in check("not a real scalar", lambda x: (x.sum(), x), points(3))


def test_integer_output():
    check("not a real scalar", lambda x: jnp.argmax(x), points(3))


def test_output_without_dependence():
    check("does not depend", lambda x: jnp.sum(jnp.ones(3)), points(3))
    check("does not depend", lambda x: jnp.sum(jax.lax.stop_gradient(x) ** 2), points(3))
    check("does not depend", lambda x: jnp.sum(x > 0).astype(float), points(3))


def test_integer_inputs():
    assert "int" in check("input x", lambda x: jnp.sum(x * 2.0), np.arange(3))


def test_complex_inputs():
    assert "real and imaginary" in check("input x", lambda x: jnp.sum(jnp.abs(x)), np.ones(2) + 1j)


def test_empty_inputs():
    check("empty", lambda x: jnp.sum(x) + 1.0, np.zeros(0))
    check("empty", lambda x: 1.0, ())


def test_argnums_out_of_range():
    check("argnums", lambda x: jnp.sum(x), points(3), argnums=2)


def test_a_value_that_comes_from_a_side_effect():
    def f(x):
        y = io_callback(np.sin, jax.ShapeDtypeStruct((3,), x.dtype), x)
        return jnp.sum(x**2) + jnp.sum(jax.lax.stop_gradient(y))

    assert "io_callback" in check("side effect", f, points(3))


def test_while_on_the_path_of_the_derivative():
    def f(x):
        y = jax.lax.while_loop(lambda y: jnp.sum(y**2) > 1e-3, lambda y: y / 2, x)
        return jnp.sum(y * x)

    assert "test_errors.py" in check("while", f, points(3))


def test_while_inside_a_scan():
    def f(x):
        def body(c, u):
            return jax.lax.while_loop(lambda y: y > 1.0, lambda y: y / 2, c + u), None

        return jax.lax.scan(body, 0.5, x)[0] ** 2

    assert "while" in check("while", f, points(3))


def test_detached_while_is_data():
    def f(x):
        n = jax.lax.while_loop(lambda s: s < 3.0, lambda s: s * 1.5, jnp.exp(x[0]))
        return jnp.sum(x**2) * jax.lax.stop_gradient(n)

    x = points(3)
    np.testing.assert_allclose(trace_graph(f, x)(x), f(x))


def test_callback_that_jax_cannot_differentiate():
    def f(x):
        y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), x.dtype), x, vmap_method="sequential")
        return jnp.sum(y**2)

    text = check("cannot differentiate", f, points(3))
    assert "test_errors.py" in text
    assert "pure_callback" in text


def test_hopeless_opaque_width():
    check("dense", lambda x: jnp.sum(jnp.sort(x) ** 2), points(20_000))
