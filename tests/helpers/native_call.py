"""The native engine through its plain C functions: no compilation per shape, so thousands of small problems are quick."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np

from gnewt import _native
from gnewt.kkt import STATUSES
from gnewt.kkt.engines.native.engine import Info, Real, buffer_sizes
from gnewt.kkt.engines.native.packing import NativeLayout

_long, _pointer = ctypes.c_int64, ctypes.c_void_p


def _call_type(real: type) -> type:
    class Call(ctypes.Structure):
        """`Call<T>` of cpp/engine/call.hpp."""

        _fields_ = (
            ("plan", _pointer),
            ("plan_len", _long),
            ("sources", _pointer),
            ("sources_len", _long),
            ("shift", real),
            ("rhs", _pointer),
            ("num_inputs", _long),
            ("columns", _long),
            ("solution", _pointer),
            ("factor", _pointer),
            ("factor_len", _long),
            ("index", _pointer),
            ("index_len", _long),
            ("info", _pointer),
            ("real", _pointer),
            ("null", _pointer),
        )

    return Call


_CALL = {np.float64: _call_type(ctypes.c_double), np.float32: _call_type(ctypes.c_float)}


class _SolveCall(ctypes.Structure):
    """`SolveCall<T>`: no member depends on T but through pointers."""

    _fields_ = (
        ("plan", _pointer),
        ("plan_len", _long),
        ("sources", _pointer),
        ("sources_len", _long),
        ("factor", _pointer),
        ("factor_len", _long),
        ("index", _pointer),
        ("index_len", _long),
        ("info", _pointer),
        ("real", _pointer),
        ("rhs", _pointer),
        ("num_inputs", _long),
        ("columns", _long),
        ("solution", _pointer),
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the engine returned, and the same right-hand sides solved once more with the factor."""

    solution: np.ndarray
    again: np.ndarray
    status: str
    inertia: tuple[int, int, int]
    delayed: int
    kept: bool
    mode: int
    logdet: float
    smallest_pivot: float
    null: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Problem:
    """One problem with room for its results."""

    layout: NativeLayout
    sources: np.ndarray
    shift: float
    rhs: np.ndarray
    solution: np.ndarray
    again: np.ndarray
    factor: np.ndarray
    index: np.ndarray
    info: np.ndarray
    real: np.ndarray
    null: np.ndarray

    def call(self) -> ctypes.Structure:
        plan, sources, rhs = self.layout.array, self.sources, self.rhs
        return _CALL[sources.dtype.type](
            *(
                plan.ctypes.data,
                len(plan),
                sources.ctypes.data,
                len(sources),
                self.shift,
                rhs.ctypes.data,
                *rhs.shape,
            ),
            *(self.solution.ctypes.data, self.factor.ctypes.data, len(self.factor)),
            *(self.index.ctypes.data, len(self.index)),
            *(self.info.ctypes.data, self.real.ctypes.data, self.null.ctypes.data),
        )

    def other(self) -> ctypes.Structure:
        plan, sources, rhs = self.layout.array, self.sources, self.rhs
        return _SolveCall(
            *(plan.ctypes.data, len(plan), sources.ctypes.data, len(sources)),
            *(self.factor.ctypes.data, len(self.factor), self.index.ctypes.data, len(self.index)),
            *(self.info.ctypes.data, self.real.ctypes.data, rhs.ctypes.data, *rhs.shape),
            self.again.ctypes.data,
        )

    def outcome(self) -> Outcome:
        info, real = self.info, self.real
        return Outcome(
            self.solution,
            self.again,
            STATUSES[info[Info.STATUS]],
            (int(info[Info.POSITIVE]), int(info[Info.NEGATIVE]), int(info[Info.ZERO])),
            int(info[Info.DELAYED]),
            bool(info[Info.KEPT]),
            int(info[Info.MODE]),
            float(real[Real.LOGDET]),
            float(real[Real.SMALLEST_PIVOT]),
            np.flatnonzero(self.null),
        )


def _problem(
    layout: NativeLayout, sources: np.ndarray, shift: float, rhs: np.ndarray, dtype: type
) -> _Problem:
    sources, rhs = np.ascontiguousarray(sources, dtype), np.ascontiguousarray(rhs, dtype)
    factor_size, index_size = buffer_sizes(layout)
    return _Problem(
        layout,
        sources,
        shift,
        rhs,
        np.empty_like(rhs),
        np.empty_like(rhs),
        np.empty(factor_size, dtype),
        np.empty(index_size, np.int32),
        np.zeros(len(Info), np.int32),
        np.zeros(len(Real), dtype),
        np.zeros(layout.num_unknowns, np.int8),
    )


def run(
    layout: NativeLayout, sources: np.ndarray, shift: float, rhs: np.ndarray, dtype: type = np.float64
) -> Outcome:
    """Factor and solve, then solve again."""
    assert _native.LIBRARY is not None
    problem, single = _problem(layout, sources, shift, rhs, dtype), int(dtype is np.float32)
    _native.LIBRARY.gnewt_engine_factor(single, ctypes.byref(problem.call()))
    _native.LIBRARY.gnewt_engine_solve(single, ctypes.byref(problem.other()))
    return problem.outcome()


def run_many(
    layout: NativeLayout,
    sources: list[np.ndarray],
    shifts: list[float],
    rhs: list[np.ndarray],
    dtype: type = np.float64,
) -> list[Outcome]:
    """Factor and solve up to eight problems with one plan by one call, then solve again."""
    assert _native.LIBRARY is not None
    single, count = int(dtype is np.float32), len(sources)
    problems = [_problem(layout, s, mu, b, dtype) for s, mu, b in zip(sources, shifts, rhs, strict=True)]
    calls = (_CALL[dtype] * count)(*(problem.call() for problem in problems))
    _native.LIBRARY.gnewt_engine_factor_many(single, calls, count)
    others = (_SolveCall * count)(*(problem.other() for problem in problems))
    _native.LIBRARY.gnewt_engine_solve_many(single, others, count)
    return [problem.outcome() for problem in problems]
