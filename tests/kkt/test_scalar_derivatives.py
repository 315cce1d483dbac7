"""Derivatives of scalar programs by their own rules, compiled and on the native machine, against JAX's."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.graph import Family
from gnewt.jaxprs import flatten_jaxpr, fold_program
from gnewt.jaxprs.flatten import VALUE_CALLS
from gnewt.jaxprs.twins import twin_of
from gnewt.kkt.derivatives.interpreted import Interpreted, interpret
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import Written
from gnewt.kkt.derivatives.machine import OPERATIONS, available
from gnewt.kkt.derivatives.written import write_derivatives


@jax.custom_jvp
def bent(x):
    return jnp.where(x > 0, x, 0.0)


@bent.defjvp
def _bent_jvp(primals, tangents):
    return bent(primals[0]), jax.nn.sigmoid(10 * primals[0]) * tangents[0]


def smooth(x):
    return jnp.sin(x[0]) * x[1] / (2 + jnp.cos(x[2])) + jnp.exp(-x[0]) * jnp.sqrt(1 + x[1] ** 4) + x[2] ** -3


def roots_and_logarithms(x):
    y = jnp.abs(x) + 0.5
    found = jnp.log(y[0]) * jax.lax.rsqrt(y[1]) + jnp.log1p(y[2]) * jnp.expm1(x[0])
    return found + jnp.cbrt(y[1]) * jnp.arctan2(x[0], y[2]) + y[0] ** 1.7 + y[1] ** y[2]


def functions(x):
    found = jnp.tanh(x[0] * x[1]) + jax.nn.sigmoid(x[2]) ** 2 + jax.lax.erf(x[0]) * jnp.sinh(x[1])
    return found + jnp.arcsin(0.3 * jnp.sin(x[2])) * jnp.tan(0.3 * x[0]) + jnp.arctan(x[1]) * jnp.cosh(x[2])


def branches(x):
    found = jnp.where(x[0] > x[1], x[0] ** 3, x[1] * x[2]) + jnp.maximum(x[0], x[1]) * jnp.minimum(x[2], 0.1)
    return found + jnp.clip(x[0], -0.2, 0.3) * x[1] ** 2 + jnp.sign(x[2]) * jnp.floor(4 * x[1]) * x[0] ** 2


def own_rules(x):
    return (
        bent(x[0]) ** 2 * x[1]
        + jax.nn.relu(x[2]) * x[0]
        + jax.nn.softplus(x[1] * x[2])
        + jnp.sum(bent(x) * x)
    )


def detached(x):
    found = jax.lax.stop_gradient(jnp.sin(x[0])) * x[1] ** 2 + jax.lax.stop_gradient(x[2]) * x[2] * x[0]
    return found + jnp.exp(x[0] * jax.lax.stop_gradient(x[1])) / (2 + x[2] ** 2)


def several(x):
    a = jnp.array([[1.0, 0.2, x[0]], [x[1], 2.0, 0.1]])
    return jnp.tanh(a @ x) * jnp.sum(x**2)


LOSSES = [smooth, roots_and_logarithms, functions, branches, own_rules, detached]


def local(fn, x, is_loss, machine):
    n, k = x.shape
    m = 1 if is_loss else jnp.size(fn(x[0]))
    outs = None if is_loss else np.zeros((n, m), np.int32)
    family = Family(fn, np.zeros((n, k), np.int32), outs)
    written = write_derivatives(family, x.dtype, ())
    assert written is not None
    if not machine:
        return Written(written, family, x.T, (), Keeper(x[0]))
    made = interpret(written, family, x.dtype)
    assert made is not None
    return Interpreted(written, made, family, x.T, (), Keeper(x[0]))


def points(dtype):
    return jnp.asarray(0.8 * np.random.default_rng(0).standard_normal((70, 3)), dtype)


@pytest.mark.parametrize(
    "machine", [False, pytest.param(True, marks=pytest.mark.skipif(not available(), reason="no library"))]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("fn", [*LOSSES, several], ids=lambda f: f.__name__)
def test_derivatives_are_those_of_jax(fn, dtype, machine):
    x, is_loss = points(dtype), fn is not several
    lam = jnp.asarray(np.random.default_rng(1).standard_normal((2, len(x))), dtype)

    @jax.jit
    def ours(x):
        found = local(fn, x, is_loss, machine)
        value = found.values() if is_loss else jnp.zeros(len(x), x.dtype)
        return value, found.jacobian().rows, found.hessian(None if is_loss else lam)

    @jax.jit
    @jax.vmap
    def theirs(x, lam):
        weighted = fn if is_loss else lambda x: fn(x) @ lam
        value = fn(x) if is_loss else 0.0
        return value, jnp.ravel(jax.jacfwd(fn)(x)), jax.hessian(weighted)(x)[np.tril_indices(3)]

    mine, jaxs = ours(x), theirs(x, lam.T)
    tolerance = 1e-12 if dtype == "float64" else 3e-4
    for ours_, theirs_ in zip((mine[0], mine[1], mine[2].T), jaxs, strict=True):
        np.testing.assert_allclose(ours_, theirs_, rtol=tolerance, atol=tolerance * np.abs(theirs_).max())


@pytest.mark.skipif(not available(), reason="no library")
def test_the_machine_maps_over_batches_and_passes_nan_on():
    x = points("float64").at[3, 0].set(jnp.nan)

    def hessian(x):
        return local(smooth, x, True, True).hessian(None)

    batch = jnp.stack([x, 2 * x, x - 1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(hessian))(batch), jnp.stack([hessian(b) for b in batch]))
    assert np.isnan(hessian(x)[:, 3]).any() and np.isfinite(hessian(x)[:, 4]).all()


@pytest.mark.skipif(not available(), reason="no library")
@pytest.mark.parametrize("mapped", [False, True])
def test_numpy_runs_what_the_machine_runs(mapped):
    def derivatives(x):
        parts = [local(fn, x, True, True) for fn in LOSSES]
        return [(part.values(), part.jacobian().rows, part.hessian(None)) for part in parts]

    function, x = derivatives, points("float64")
    if mapped:
        function, x = jax.vmap(derivatives), jnp.stack([x[:20], x[:20] + 0.1])
    hoisted = []
    program = flatten_jaxpr(jax.make_jaxpr(function)(x), hoisted, VALUE_CALLS)
    calls = [i for i in program.instrs if i.prim == "ffi_call"]
    assert len(calls) == len(LOSSES) and all(twin_of(i) is not None for i in calls)
    found = fold_program(program, [x], hoisted)
    for ours, theirs in zip(found, jax.tree_util.tree_leaves(jax.jit(function)(x)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11 * np.abs(theirs).max())


def test_operations_are_numbered_as_in_the_library():
    header = (pathlib.Path(__file__).parents[2] / "cpp/engine/scalars.hpp").read_text(encoding="utf-8")
    names = re.search(r"enum Operation : int32_t \{(.*?)\}", header, re.DOTALL)[1]
    library = [name.strip()[1:].lower() for name in names.split(",") if name.strip()]
    assert library.pop() == "numoperations"
    renamed = {
        "select_n": "select",
        "is_finite": "isfinite",
        "is_nonzero": "isnonzero",
        "integer_pow": "power",
    }
    assert library == [renamed.get(name, name) for name in OPERATIONS]
