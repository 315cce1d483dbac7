"""The numbers of statuses, modes and fields are the same in Python and in C++ (cpp/engine/names.cpp tells those)."""

import ctypes
import itertools

import pytest

from gnewt import _native
from gnewt.kkt import STATUSES, EliminationStatus
from gnewt.kkt.engines.native.engine import Info, Mode, Real, available

CODES = {
    "gnewt_engine_status_name": EliminationStatus,
    "gnewt_engine_mode_name": Mode,
    "gnewt_engine_info_name": Info,
    "gnewt_engine_real_name": Real,
}


def names_in_cpp(function):
    """The names by their numbers, up to the first number that has none."""
    tell = getattr(_native.LIBRARY, function)
    tell.restype, tell.argtypes = ctypes.c_char_p, [ctypes.c_int]
    assert tell(-1) is None
    names = itertools.takewhile(lambda name: name is not None, map(tell, itertools.count()))
    return [name.decode() for name in names]


@pytest.mark.skipif(not available(), reason="the native library is not built")
@pytest.mark.parametrize("function", CODES)
def test_python_and_cpp_agree(function):
    codes = CODES[function]
    assert [int(code) for code in codes] == list(range(len(codes)))
    assert names_in_cpp(function) == [code.name.lower().replace("_", " ") for code in codes]


def test_stored_statuses_keep_their_numbers():
    """Users may have stored these numbers: new ones come after them."""
    assert STATUSES[:5] == ("ok", "singular", "nonfinite", "out of memory", "bad plan")
    assert [EliminationStatus[name] for name in ("OK", "SINGULAR", "NONFINITE")] == [0, 1, 2]
