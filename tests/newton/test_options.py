"""Options that mean nothing are refused before anything runs: what, where in the user's code, what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt

X = jnp.array([0.3, -0.8, 1.7])


def f(x):
    return jnp.sum(jnp.cosh(x)) + x[0] * x[1]


def refused(kind, match, call, where="test_options.py"):
    with pytest.raises(kind, match=match) as caught:
        call()
    text = str(caught.value)
    assert where in text.split("where: ")[1]
    assert "what to do: " in text
    return text


BAD_RUNS = [
    ({"tol": -1.0}, "tol is -1.0"),
    ({"tol": float("nan")}, "tol is nan"),
    ({"tol": np.ones(2)}, r"tol is an array of shape \(2,\)"),
    ({"tol": "small"}, "tol is 'small'"),
    ({"max_steps": -3}, "max_steps is -3"),
    ({"max_steps": 2.5}, "max_steps is 2.5"),
    ({"time_limit": -1.0}, "time_limit is -1.0"),
    ({"time_limit": float("nan")}, "time_limit is nan"),
    ({"callback": "print"}, "callback is 'print'"),
    ({"kwargs": "a"}, "kwargs is a str, not a dict"),
    ({"args": 2.0}, "args is a float, not a tuple"),
    ({"args": jnp.ones(3)}, "args is a .*, not a tuple"),
]


@pytest.mark.parametrize("options, match", BAD_RUNS)
def test_a_run_without_meaning(options, match):
    refused(gnewt.OptionError, match, lambda: gnewt.minimize(f, X, **options))


@pytest.mark.parametrize("shift", [float("nan"), float("inf"), np.ones(3), "much", None, 1j, jnp.ones(1)])
@pytest.mark.parametrize("make", [gnewt.newton_step, gnewt.factorize])
def test_a_shift_that_is_no_number(make, shift):
    refused(gnewt.OptionError, "shift is", lambda: make(f, shift=shift))


def test_shifts_that_are_numbers():
    h, g = jax.hessian(f)(X), jax.grad(f)(X)
    for shift in (2, np.float32(2), np.asarray(2.0), jnp.asarray(2.0)):
        step = gnewt.newton_step(f, shift=shift)(X)
        assert np.allclose(step, -np.linalg.solve(h + 2 * np.eye(3), g), atol=1e-13)
    steps = jax.vmap(lambda mu: gnewt.newton_step(f, shift=mu)(X))(jnp.array([2.0, 3.0]))
    assert np.allclose(steps[0], step, atol=1e-13)


def test_a_traced_limit():
    def run(n):
        return gnewt.minimize(f, X, max_steps=n).x

    refused(gnewt.OptionError, "max_steps is traced", lambda: jax.jit(run)(3))


def test_engines_are_named():
    text = refused(gnewt.PlanError, "unknown engine 'foo'", lambda: gnewt.minimize(f, X, engine="foo"))
    assert "products" in text and "native" in text
    text = refused(gnewt.PlanError, "unknown engine", lambda: gnewt.newton_step(f, engine="products")(X))
    assert "for minimize" in text


def test_bytes_that_are_no_number(monkeypatch):
    for text in ("8 GB", "-1", "nan"):
        monkeypatch.setenv("GNEWT_MAX_BYTES", text)
        refused(
            gnewt.OptionError,
            f"GNEWT_MAX_BYTES is '{text}'",
            lambda: gnewt.newton_step(f)(X),
            "the environment",
        )


def test_an_unknown_instruction_set(monkeypatch):
    from gnewt.kkt.engines.native import engine

    monkeypatch.setenv("GNEWT_ISA", "sse9")
    refused(gnewt.OptionError, "GNEWT_ISA is 'sse9'", engine.available.__wrapped__, "the environment")


def test_arguments_in_the_wrong_order():
    with pytest.raises(TypeError, match=r"expected a JAX function[\s\S]*test_options.py[\s\S]*order"):
        gnewt.minimize(X, f)
    with pytest.raises(TypeError, match="expected a JAX function"):
        gnewt.newton_step(f(X))
    refused(gnewt.TraceError, r"argnums = Array[\s\S]*newton_step\(f\)\(x\)", lambda: gnewt.newton_step(f, X))


def test_starts_that_are_no_numbers():
    refused(
        gnewt.TraceError, r"input x\[0\] has dtype int", lambda: gnewt.minimize(lambda x: x[0] ** 2.0, [1, 2])
    )
    refused(gnewt.TraceError, "input x is <function", lambda: gnewt.minimize(f, f))
    refused(gnewt.TraceError, "empty", lambda: gnewt.minimize(f, None))
    refused(gnewt.TraceError, "empty", lambda: gnewt.minimize(f, {}))


def test_a_callback_that_raises_is_heard():
    def callback(progress):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        gnewt.minimize(f, X, callback=callback)


def test_no_steps():
    res = gnewt.minimize(f, X, max_steps=0)
    assert res.status == "max_steps" and res.num_steps == 0 and np.array_equal(res.x, X)


def test_a_start_of_another_form():
    res = gnewt.minimize(f, X)
    refused(
        gnewt.PlanError, r"search is 'fast'[\s\S]*TrustRegion", lambda: gnewt.minimize(f, X, search="fast")
    )
    refused(gnewt.PlanError, "order is 3, neither", lambda: gnewt.newton_step(f, order=3)(X))
    refused(gnewt.PlanError, "unknown order 'fast'", lambda: gnewt.minimize(f, X, order="fast"))
    again = gnewt.minimize(lambda x: f(x) + jnp.sum(x**4), res)  # another function of the same inputs
    assert again.success


def test_a_gradient_that_is_small_only_beside_the_first():
    def steep(x):
        return 1e15 * jnp.sum(jnp.exp(x) - jnp.array([2.0, 3.0, 5.0]) * x)

    res = gnewt.minimize(steep, X)
    assert res.status == "converged" and res.grad_norm > 1e-8
    assert "follows the first gradient" in res.message and "tol" in res.message
    assert "follows" not in gnewt.minimize(f, X).message
    inside = jax.jit(lambda x: gnewt.minimize(steep, x, max_steps=60))(X)
    assert "follows the first gradient" in inside.message
