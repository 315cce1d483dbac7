"""One linear system, several solvers: gnewt's native engine, MKL PARDISO, CHOLMOD.

All of them take numbers that are ready, do their symbolic work once beforehand, and factor and solve in the measured call.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
from harness import relative

from gnewt.graph import Structure
from gnewt.kkt import STATUSES, Elimination, LocalModels
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of


class Native:
    """The native engine on an objective at a point: one jitted call, with plan, numbers and right-hand side as operands.

    It returns the step, as its peers do; NaN where there is none. The factor is made, but not handed to Python.
    """

    def __init__(self, target: Any, values: Any, order: Any = "auto") -> None:
        self.point = Objective(target).at((values,))
        self.system = system_of(self.point, order, engine="native")
        self.structure = self.system.structure
        models = self.linearize()
        self.sources, self.gradient = models.sources, models.duals[: self.structure.num_inputs]
        self.rhs = -self.gradient[:, None]
        engine = self.system.engine
        self._factor_solve = jax.jit(
            lambda plan, sources, rhs: engine.factor_solve(plan, sources, 0.0, rhs)[0]
        )
        self._factor = jax.jit(lambda plan, sources, rhs: engine.factor_solve(plan, sources, 0.0, rhs)[1])

    def linearize(self) -> LocalModels:
        """Values, duals, local derivatives: the other part of a Newton step."""
        return self.system.linearize(self.point)

    def run(self) -> jax.Array:
        return self._factor_solve(self.system.arrays, self.sources, self.rhs)

    def known(self) -> Elimination:
        """What the elimination says of H."""
        return self._factor(self.system.arrays, self.sources, self.rhs)

    def step(self) -> np.ndarray:
        status = int(self.known().status)
        assert status == 0, STATUSES[status]
        return np.asarray(self.run()[:, 0])

    def residual(self, step: np.ndarray) -> float:
        """‖Hδ + g‖/‖g‖, with H·δ by JAX from the objective."""
        _, gradient, curved = self.system.derivatives(self.point, jax.numpy.asarray(step))
        return relative(curved + gradient, gradient)

    def describe(self) -> dict[str, Any]:
        certificate = self.system.plan.certificate
        return {
            "width": certificate.width,
            "fronts": certificate.num_fronts,
            "flops": certificate.flops,
            "order": self.system.plan.order_name,
            "delayed": int(self.known().num_delayed),
        }


def kkt_matrix(structure: Structure, sources: Any) -> sp.csr_matrix:
    """Assemble K = [[W, (J - E)ᵀ], [J - E, 0]] over all slots and duals, without explicit zeros off the diagonal."""
    sources = np.asarray(sources)
    num_slots, n = structure.num_slots, structure.num_inputs
    pieces = []
    at = 0
    for family in structure.families:
        if family.outs is not None:
            o, j = np.nonzero(family.jac_pattern)
            block, at = sources[at : at + family.n * len(o)], at + family.n * len(o)
            pieces.append((block, num_slots - n + family.outs[:, o].ravel(), family.args[:, j].ravel()))
        i, j = np.nonzero(np.tril(family.hess_pattern))
        block, at = sources[at : at + family.n * len(i)], at + family.n * len(i)
        pieces.append((block, family.args[:, i].ravel(), family.args[:, j].ravel()))
    pairs = np.arange(n, num_slots)
    pieces.append((-np.ones(len(pairs)), pairs - n + num_slots, pairs))
    value, row, col = (np.concatenate(part) for part in zip(*pieces, strict=True))
    size = 2 * num_slots - n
    half = sp.csr_matrix((value, (np.maximum(row, col), np.minimum(row, col))), shape=(size, size))
    half.eliminate_zeros()
    return sp.csr_matrix(half + sp.tril(half, -1).T)


ORDERINGS = {"METIS": 2, "minimum degree": 0}
"""Of PARDISO; METIS is its default."""


class Pardiso:
    """MKL PARDISO through pypardiso: analysis once, then numerical factorisation and solve (phases 22 and 33)."""

    def __init__(
        self, matrix: sp.csr_matrix, rhs: np.ndarray, mtype: int = -2, ordering: str = "METIS"
    ) -> None:
        from pypardiso import PyPardisoSolver

        self.solver = PyPardisoSolver(mtype=mtype)
        # MKL's defaults for symmetric matrices, with the ordering given.
        for at, value in {1: 1, 2: ORDERINGS[ordering], 10: 8, 21: 1}.items():
            self.solver.iparm[at - 1] = value
        half = _upper(matrix)
        self.numbers = np.ascontiguousarray(half.data)
        self.rows = (half.indptr + 1).astype(np.int32)
        self.columns = (half.indices + 1).astype(np.int32)
        self.rhs = np.ascontiguousarray(rhs, np.float64)
        self.solution = np.zeros_like(self.rhs)
        self._call(11)

    def run(self) -> np.ndarray:
        self._call(22)
        self._call(33)
        return self.solution

    def _call(self, phase: int) -> None:
        solver, error = self.solver, ctypes.c_int32(0)
        integer = ctypes.POINTER(ctypes.c_int32)

        def number(value: int) -> Any:
            return ctypes.byref(ctypes.c_int32(value))

        solver._mkl_pardiso(
            solver.pt.ctypes.data_as(ctypes.POINTER(solver._pt_type[0])),
            number(1),
            number(1),
            number(solver.mtype),
            number(phase),
            number(len(self.rhs)),
            self.numbers.ctypes.data_as(ctypes.c_void_p),
            self.rows.ctypes.data_as(integer),
            self.columns.ctypes.data_as(integer),
            solver.perm.ctypes.data_as(integer),
            number(1),
            solver.iparm.ctypes.data_as(integer),
            number(0),
            self.rhs.ctypes.data_as(ctypes.c_void_p),
            self.solution.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(error),
        )
        if error.value:
            raise RuntimeError(f"PARDISO phase {phase}: error {error.value}")


def _upper(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Upper triangle with every diagonal entry, zero or not, as PARDISO wants it."""
    above, size = sp.triu(matrix, 1).tocoo(), matrix.shape[0]
    row = np.concatenate([above.row, np.arange(size)])
    col = np.concatenate([above.col, np.arange(size)])
    data = np.concatenate([above.data, matrix.diagonal()])
    order = np.lexsort((col, row))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=size))])
    return sp.csr_matrix((data[order], col[order], indptr), shape=matrix.shape)


class Cholmod:
    """CHOLMOD through scikit-sparse: analysis once, then numerical factorisation and solve. Positive definite only."""

    def __init__(self, matrix: sp.csr_matrix, rhs: np.ndarray) -> None:
        from sksparse.cholmod import analyze

        self.matrix = sp.csc_matrix(matrix)
        self.factor = analyze(self.matrix)
        self.rhs = rhs

    def run(self) -> np.ndarray:
        self.factor.cholesky_inplace(self.matrix)
        return self.factor(self.rhs)


def have(module: str) -> bool:
    """Whether a peer can be imported; says so where it cannot."""
    try:
        __import__(module)
    except ImportError as error:
        print(f"skipped: {module} is not there ({error})")
        return False
    return True
