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


def run(
    layout: NativeLayout, sources: np.ndarray, shift: float, rhs: np.ndarray, dtype: type = np.float64
) -> Outcome:
    """Factor and solve, then solve again."""
    assert _native.LIBRARY is not None
    plan = layout.array
    sources, rhs = np.ascontiguousarray(sources, dtype), np.ascontiguousarray(rhs, dtype)
    factor_size, index_size = buffer_sizes(layout)
    solution, again = np.empty_like(rhs), np.empty_like(rhs)
    factor, index = np.empty(factor_size, dtype), np.empty(index_size, np.int32)
    info, real = np.zeros(len(Info), np.int32), np.zeros(len(Real), dtype)
    null = np.zeros(layout.num_unknowns, np.int8)
    n, columns = rhs.shape
    call = _CALL[dtype](
        *(plan.ctypes.data, len(plan), sources.ctypes.data, len(sources), shift, rhs.ctypes.data, n, columns),
        *(solution.ctypes.data, factor.ctypes.data, factor_size, index.ctypes.data, index_size),
        *(info.ctypes.data, real.ctypes.data, null.ctypes.data),
    )
    single = int(dtype is np.float32)
    _native.LIBRARY.gnewt_engine_factor(single, ctypes.byref(call))
    other = _SolveCall(
        *(plan.ctypes.data, len(plan), sources.ctypes.data, len(sources), factor.ctypes.data, factor_size),
        *(index.ctypes.data, index_size, info.ctypes.data, real.ctypes.data, rhs.ctypes.data, n, columns),
        again.ctypes.data,
    )
    _native.LIBRARY.gnewt_engine_solve(single, ctypes.byref(other))
    return Outcome(
        solution,
        again,
        STATUSES[info[Info.STATUS]],
        (int(info[Info.POSITIVE]), int(info[Info.NEGATIVE]), int(info[Info.ZERO])),
        int(info[Info.DELAYED]),
        bool(info[Info.KEPT]),
        int(info[Info.MODE]),
        float(real[Real.LOGDET]),
        float(real[Real.SMALLEST_PIVOT]),
        np.flatnonzero(null),
    )
