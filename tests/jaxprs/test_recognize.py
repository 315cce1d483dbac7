"""Recognising programs: a new trace of the same function is known again, and anything that changed is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.jaxprs import flatten_jaxpr
from gnewt.jaxprs.recognize import pattern_of, recognize
from helpers.trace_programs import PROGRAMS
from helpers.unusual_programs import UNUSUAL

BOX = {"a": 1.0, "array": np.ones(3), "i": 0, "slope": 1.0, "flag": True}
X = jnp.array([0.3, -0.7, 1.1])


def trace(f, *args):
    return jax.make_jaxpr(lambda *inner: f(*inner))(*(args or (X,)))


@jax.custom_jvp
def ruled(x):
    return jnp.sin(x)


@ruled.defjvp
def _rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return ruled(x), BOX["slope"] * jnp.cos(x) * t


def looped(x):
    def body(carry):
        i, y = carry
        return i + 1, y * BOX["a"]

    return jnp.sum(jax.lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1])


WAYS = {
    "a literal": (lambda x: jnp.sum(BOX["a"] * x), "a", 2.0),
    "the sign of zero": (lambda x: jnp.sum(x / (0.0 * x + BOX["a"] - 1.0)), "a", 0.5),
    "an index": (lambda x: x[BOX["i"]] ** 2, "i", 1),
    "what is read": (lambda x: jnp.sin(x[0]) * (x[0] if BOX["flag"] else x[1]), "flag", False),
    "an operation": (lambda x: jnp.sum(jnp.sin(x) if BOX["flag"] else jnp.cos(x)), "flag", False),
    "a dtype": (lambda x: jnp.sum(x.astype(np.float64 if BOX["flag"] else np.float32)), "flag", False),
    "the body of a scan": (
        lambda x: jax.lax.scan(lambda c, v: (c * BOX["a"] + v, None), jnp.zeros(()), x)[0],
        "a",
        3.0,
    ),
    "a while loop": (looped, "a", 4.0),
    "a branch": (
        lambda x: jax.lax.cond(x[0] > 0, lambda: x[1] * BOX["a"], lambda: x[2]),
        "a",
        5.0,
    ),
    "a derivative rule": (lambda x: jnp.sum(ruled(x)), "slope", 2.0),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_change_is_seen(way):
    f, name, value = WAYS[way]
    pattern = pattern_of(trace(f))
    assert recognize(pattern, trace(f)) is not None
    old = BOX[name]
    try:
        BOX[name] = value
        assert recognize(pattern, trace(f)) is None
    finally:
        BOX[name] = old
    assert recognize(pattern, trace(f)) is not None


def test_negative_zero_is_another_literal():
    plus, minus = trace(lambda x: jnp.sum(x + 0.0)), trace(lambda x: jnp.sum(x + -0.0))
    assert recognize(pattern_of(plus), minus) is None


def test_captured_arrays_are_no_part_of_a_program():
    def f(x):
        inner = jax.lax.scan(lambda c, v: (c + v * jnp.asarray(BOX["array"])[0], None), 0.0, x)[0]
        return inner + jnp.sum(jnp.asarray(BOX["array"]) * x)

    pattern, old = pattern_of(trace(f)), BOX["array"]
    try:
        BOX["array"] = np.arange(3.0)
        jaxpr = trace(f)
        found, hoisted = recognize(pattern, jaxpr), []
        flatten_jaxpr(jaxpr, hoisted)
        assert found is not None
        assert len(found) == len(hoisted) > 0
        assert all(a is b for a, b in zip(found, hoisted, strict=True))
    finally:
        BOX["array"] = old


def test_rules_of_jax_are_not_traced_again(monkeypatch):
    pattern = pattern_of(trace(lambda x: jnp.sum(jax.nn.softplus(x) + jax.nn.relu(x))))
    jaxpr = trace(lambda x: jnp.sum(jax.nn.softplus(x) + jax.nn.relu(x)))
    monkeypatch.setattr(jax, "jvp", None)
    assert recognize(pattern, jaxpr) is not None


def test_side_effects_are_read_each_time():
    def f(x):
        jax.debug.print("{}", x[0])
        return jnp.sum(x)

    assert pattern_of(trace(f)) is None
    assert recognize(pattern_of(trace(jnp.sum)), trace(f)) is None


@pytest.mark.parametrize("name", [*PROGRAMS, *UNUSUAL])
def test_programs_are_known_again(name):
    f, args, *_ = {**PROGRAMS, **UNUSUAL}[name]()
    first, second = trace(f, *args), trace(f, *args)
    pattern = pattern_of(first)
    if pattern is None:
        return
    found, hoisted = recognize(pattern, second), []
    program = flatten_jaxpr(second, hoisted)
    assert program.key == flatten_jaxpr(first, []).key
    assert found is not None
    assert len(found) == len(hoisted)
    assert all(a is b for a, b in zip(found, hoisted, strict=True))
