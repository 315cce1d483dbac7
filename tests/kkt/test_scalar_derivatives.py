"""Derivatives of scalar programs by their own rules, compiled and on the native machine, against JAX's."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.graph import Family, Structure
from gnewt.jaxprs import flatten_jaxpr, fold_program
from gnewt.jaxprs.flatten import VALUE_CALLS
from gnewt.jaxprs.twins import twin_of
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import Written
from gnewt.kkt.derivatives.machine import OPERATIONS, available
from gnewt.kkt.derivatives.native import code_of, native_models
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


def compiled(fn, x, lam):
    """Derivatives of fn at every row of x by XLA: values, rows of J, rows of H; lam is None for a loss."""
    n, k = x.shape
    outs = None if lam is None else np.zeros((n, lam.shape[1]), np.int32)
    family = Family(fn, np.zeros((n, k), np.int32), outs)
    written = write_derivatives(family, x.dtype, ())
    assert written is not None
    found = Written(written, family, x.T, (), Keeper(x[0]))
    value = found.values() if lam is None else jnp.zeros(n, x.dtype)
    return value.sum(), found.jacobian().rows, found.hessian(None if lam is None else lam.T).T


def on_the_machine(fn, x, lam):
    """The same by the native library, in a structure whose losses weigh the outputs of fn by lam."""
    (n, k), m = x.shape, 0 if lam is None else lam.shape[1]
    args = np.arange(n * k, dtype=np.int32).reshape(n, k)
    outs = n * k + np.arange(n * m, dtype=np.int32).reshape(n, m)
    families = [Family(fn, args, None if lam is None else outs)]
    data = [()]
    if lam is not None:
        families.append(Family(lambda y, w: y @ w, outs, None, (0,), hess_pattern=np.zeros((m, m), bool)))
        data.append((lam,))
    inputs = jax.ShapeDtypeStruct(x.shape, x.dtype)
    structure = Structure(
        tuple(families), n * k, n * (k + m), jax.tree.structure(0), (inputs,), ("x",), tuple(data)
    )
    slots = jnp.concatenate([x.ravel(), jnp.zeros(n * m, x.dtype)])
    assert all(code_of(structure, f, x.dtype, data[f]) is not None for f in range(len(families)))
    value, duals, sources = native_models(structure, structure.maps, structure.data, slots, "exact")
    if lam is None:
        return value, duals.reshape(n, k), sources.reshape(n, -1)
    return jnp.zeros((), x.dtype), *jnp.split(sources, [n * m * k])


def points(dtype):
    return jnp.asarray(0.8 * np.random.default_rng(0).standard_normal((70, 3)), dtype)


@pytest.mark.parametrize(
    "ours",
    [
        compiled,
        pytest.param(on_the_machine, marks=pytest.mark.skipif(not available(), reason="no library")),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("fn", [*LOSSES, several], ids=lambda f: f.__name__)
def test_derivatives_are_those_of_jax(fn, dtype, ours):
    x, is_loss = points(dtype), fn is not several
    weights = jnp.asarray(np.random.default_rng(1).standard_normal((len(x), 2)), dtype)
    lam = None if is_loss else weights

    @jax.jit
    @jax.vmap
    def theirs(x, lam):
        weighted = fn if is_loss else lambda x: fn(x) @ lam
        value = fn(x) if is_loss else 0.0
        return value, jnp.ravel(jax.jacfwd(fn)(x)), jax.hessian(weighted)(x)[np.tril_indices(3)]

    value, jacobian, hessian = theirs(x, weights)
    tolerance = 1e-12 if dtype == "float64" else 3e-4
    found = jax.jit(lambda x: ours(fn, x, lam))(x)
    for mine, jaxs in zip(found, (value.sum(), jacobian, hessian), strict=True):
        mine = mine.reshape(jaxs.shape)
        np.testing.assert_allclose(mine, jaxs, rtol=tolerance, atol=tolerance * np.abs(jaxs).max())


@pytest.mark.skipif(not available(), reason="no library")
def test_the_machine_maps_over_batches_and_passes_nan_on():
    x = points("float64").at[3, 0].set(jnp.nan)

    def hessian(x):
        return on_the_machine(smooth, x, None)[2]

    batch = jnp.stack([x, 2 * x, x - 1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(hessian))(batch), jnp.stack([hessian(b) for b in batch]))
    assert np.isnan(hessian(x)[3]).any() and np.isfinite(hessian(x)[4]).all()


ARGUMENTS = {
    "exp": np.array(
        [-800.0, -745.2, -708.0, -1e-300, 0.0, 1e-9, 0.3, 1.0, 700.0, 709.9, np.inf, -np.inf, np.nan]
    ),
    "expm1": np.array(
        [-800.0, -40.0, -0.4, -1e-20, 0.0, 1e-9, 0.3, 0.4, 38.0, 45.0, 709.0, 720.0, -np.inf, np.nan]
    ),
    "tanh": np.array([-300.0, -20.0, -0.3, -1e-20, 0.0, 1e-9, 0.5, 19.0, 25.0, np.inf, -np.inf, np.nan]),
    "logistic": np.array([-800.0, -30.0, -0.3, 0.0, 1e-9, 0.5, 40.0, np.inf, -np.inf, np.nan]),
    "log": np.array([1e-300, 0.3, 0.70710678, 0.99999999, 1.0, 1.0000001, 1.41421357, 2.0, 1e300]),
    "sin": np.array(
        [-1e5, -355.0, -3.0, -1e-20, 0.0, 0.7853981, 1.5707963267948966, 3.141592653589793, 22.0, 99999.0]
    ),
}
ARGUMENTS["cos"] = ARGUMENTS["sin"]
BEYOND = {"log": np.array([0.0, -1.0, np.inf, np.nan]), "sin": np.array([1e6, 1e300, np.inf, np.nan])}
"""Arguments that are left to the C library."""
EXACT = {"exp": np.exp, "expm1": np.expm1, "tanh": np.tanh, "log": np.log, "sin": np.sin, "cos": np.cos}


@pytest.mark.skipif(not available(), reason="no library")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_functions_of_vectors_are_good_to_rounding(name):
    random = np.random.default_rng(0).standard_normal(1000) * np.repeat([0.1, 1, 10, 100], 250)
    random = np.abs(random) + 1e-3 if name == "log" else random
    for some in (ARGUMENTS[name], random, BEYOND.get(name, random[:3])):
        x = jnp.asarray(some)[:, None]
        with np.errstate(all="ignore"):
            exact = 1 / (1 + np.exp(-some)) if name == "logistic" else EXACT[name](some)
        found = values_on_the_machine(getattr(jax.lax, name), x)
        np.testing.assert_allclose(found, exact, rtol=1e-15, atol=1e-300)


def values_on_the_machine(function, x):
    """f at every row of x: the gradient of f(x)·y with respect to y, where y is a second argument."""
    pairs = jnp.concatenate([x, jnp.ones_like(x)], axis=1)
    return np.asarray(on_the_machine(lambda v: function(v[0]) * v[1], pairs, None)[1])[:, 1]


@pytest.mark.skipif(not available(), reason="no library")
@pytest.mark.parametrize("mapped", [False, True])
def test_programs_of_numpy_call_the_machine(mapped):
    def derivatives(x):
        return [on_the_machine(fn, x, None) for fn in LOSSES]

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
        "mul_add": "muladd",
        "mul_sub": "mulsub",
        "sub_mul": "submul",
    }
    assert library == [renamed.get(name, name) for name in OPERATIONS]
