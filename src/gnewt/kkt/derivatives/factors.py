"""Small factorisations written out as scalars: Cholesky factors and triangular solves.

In: arrays of node numbers of a `ScalarProgram`. Out: the same. A mass matrix of a few joints is a handful of
operations; its derivatives then are those of these operations, zeros left out.
"""

from __future__ import annotations

import functools

import jax
import numpy as np

from gnewt.jaxprs import Instr
from gnewt.kkt.derivatives.scalars import NotScalar, ScalarProgram

_MAX_SIZE = 6
"""Rows of a matrix that is written out; the operations grow with the cube."""


def write_cholesky(scalars: ScalarProgram, instr: Instr, a: np.ndarray) -> np.ndarray:
    """Write L with L Lᵀ = A; like LAPACK, it reads the lower triangle."""
    out = np.empty(a.shape, np.int32)
    for at in np.ndindex(a.shape[:-2]):
        out[at] = _cholesky(scalars, a[at])
    return out


def _cholesky(scalars: ScalarProgram, a: np.ndarray) -> np.ndarray:
    n = _size_of_matrix(a)
    zero = scalars.constant(np.zeros((), scalars.dtypes[a.flat[0]]))
    low = np.full((n, n), zero, np.int32)
    for j in range(n):
        for i in range(j, n):
            left = functools.reduce(
                scalars.sub, [scalars.mul(int(low[i, k]), int(low[j, k])) for k in range(j)], int(a[i, j])
            )
            low[i, j] = _root(scalars, left) if i == j else scalars.div(left, int(low[j, j]))
    return low


def _root(scalars: ScalarProgram, x: int) -> int:
    return scalars.apply("sqrt", "sqrt", jax.lax.sqrt, (x,), scalars.dtypes[x])


def write_triangular_solve(scalars: ScalarProgram, instr: Instr, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Write X with op(A) X = B, or X op(A) = B."""
    p = instr.params
    transposed, lower = bool(p["transpose_a"]), bool(p["lower"])
    out = np.empty(b.shape, np.int32)
    for at in np.ndindex(b.shape[:-2]):
        matrix, right = a[at], b[at]
        turned = transposed
        if not p["left_side"]:
            # X op(A) = B is op(A)ᵀ Xᵀ = Bᵀ.
            turned, right = not transposed, right.T
        matrix = matrix.T if turned else matrix
        found = _substitute(scalars, matrix, right, lower != turned, bool(p["unit_diagonal"]))
        out[at] = found if p["left_side"] else found.T
    return out


def _substitute(scalars: ScalarProgram, a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    n = _size_of_matrix(a)
    out = np.empty(b.shape, np.int32)
    rows = range(n) if lower else range(n - 1, -1, -1)
    for column in range(b.shape[1]):
        for i in rows:
            done = range(i) if lower else range(i + 1, n)
            terms = [scalars.mul(int(a[i, k]), int(out[k, column])) for k in done]
            left = functools.reduce(scalars.sub, terms, int(b[i, column]))
            out[i, column] = left if unit else scalars.div(left, int(a[i, i]))
    return out


def _size_of_matrix(a: np.ndarray) -> int:
    if a.shape[0] > _MAX_SIZE or a.size == 0:
        raise NotScalar("a large matrix")
    return a.shape[0]


FACTORS = {"cholesky": write_cholesky, "triangular_solve": write_triangular_solve}
