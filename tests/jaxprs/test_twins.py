"""Twins in NumPy give what JAX gives, batches included, and JAX is not asked for anything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gnewt.jaxprs import flatten_jaxpr, fold_program, numpy_run
from gnewt.jaxprs.flatten import VALUE_CALLS

_RNG = np.random.default_rng(0)
A = _RNG.normal(size=(2, 3, 3)) + 3 * np.eye(3)
S = A @ np.swapaxes(A, -1, -2)
B = _RNG.normal(size=(2, 3, 2))
Z = B[..., 0] + 1j * B[..., 1]


def triangular(left, lower, transposed, unit):
    def solve(a, b):
        right = b if left else jnp.swapaxes(b, -1, -2)
        known = {"left_side": left, "lower": lower, "transpose_a": transposed, "unit_diagonal": unit}
        return lax.linalg.triangular_solve(a, right, **known)

    return solve


@jax.custom_vjp
def halved(x):
    return x / 2


halved.defvjp(lambda x: (x / 2, None), lambda _, g: (g,))

CASES = {
    "lu": (lambda a: lax.linalg.lu(a), (A,)),
    "tall lu": (lambda b: lax.linalg.lu(b), (B,)),
    "solve": (jnp.linalg.solve, (A, B)),
    "transposed solve": (lambda a, b: jax.vjp(lambda b: jnp.linalg.solve(a, b), b)[1](b)[0], (A, B)),
    "det": (jnp.linalg.det, (A,)),
    "cholesky": (jnp.linalg.cholesky, (S,)),
    "indefinite cholesky": (lambda s: jnp.linalg.cholesky(jnp.asarray(s).at[1].multiply(-1)), (S,)),
    "eigh": (lambda s: lax.linalg.eigh(s, lower=True), (S,)),
    "sort": (lambda b: lax.sort(b, dimension=1), (B,)),
    "argsort": (lambda b: jnp.argsort(b, axis=0), (B,)),
    "two keys": (lambda b: lax.sort((jnp.round(b), b, b**2), dimension=1, num_keys=2), (B,)),
    "argmax": (lambda b: (lax.argmax(b, 1, jnp.int32), lax.argmin(b, 0, jnp.int64)), (B,)),
    "round": (lambda b: (jnp.round(2 * b), lax.round(2 * b)), (B,)),
    "fft": (lambda z: (jnp.fft.fft2(z), jnp.fft.ifft(z)), (Z,)),
    "real fft": (lambda b: jnp.fft.irfft(jnp.fft.rfft(b, axis=1) ** 2, 3, axis=1), (B,)),
    "complex": (lambda z: (z.real, z.imag, jnp.conj(z), lax.complex(z.real, z.imag)), (Z,)),
    "searchsorted": (lambda b: jnp.searchsorted(jnp.sort(b[0, :, 0]), b), (B,)),
    "iota": (lambda b: b + lax.broadcasted_iota(float, (2, 3, 2), 1), (B,)),
    "custom_vjp": (lambda b: halved(b), (B,)),
    **{
        f"triangular {n:04b}": (triangular(*map(bool, map(int, f"{n:04b}"))), (A, B))
        for n in (0, 3, 5, 10, 12, 15)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_twins_agree_with_jax(name, monkeypatch):
    function, args = CASES[name]

    def refuse(instr):
        raise AssertionError(f"{instr.prim} went to JAX")

    hoisted = []
    program = flatten_jaxpr(jax.make_jaxpr(function)(*args), hoisted, VALUE_CALLS)
    monkeypatch.setattr(numpy_run, "_by_jax", refuse)
    found = fold_program(program, args, hoisted)
    for got, want in zip(found, jax.tree_util.tree_leaves(function(*args)), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_a_subset_of_eigenvalues_is_left_to_jax():
    program = flatten_jaxpr(jax.make_jaxpr(lambda s: lax.linalg.eigh(s)[1])(S), [])
    (instr,) = [i for i in program.instrs if i.prim == "eigh"]
    instr.params = {**instr.params, "subset_by_index": (0, 1)}
    assert numpy_run._by_numpy(instr) is None
