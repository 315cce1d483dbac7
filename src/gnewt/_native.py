"""The native library: sequential planning loops in C++ (cpp/), called through ctypes. Optional.

Every function here but `lay_out_for_engine` has a Python twin that gives the same integers, and that runs where the
library is absent: `LIBRARY` is None where none was built, or where the environment says `GNEWT_NATIVE=0`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.ctypeslib import ndpointer

_ABI = 5
"""Version of the C interface (cpp/c_api.cpp), and of what the engine returns (cpp/engine/call.hpp), that we speak."""
_NAMES = ("libgnewt_native.so", "libgnewt_native.dylib", "libgnewt_native.dll")


class PlannerStatus(IntEnum):
    """What a call of the planner says of itself (cpp/c_api.cpp; tests/plan/test_native.py compares the two)."""

    OK = 0
    OUT_OF_MEMORY = 1
    INVALID_INPUT = 2
    FAILED = 3
    OVER_LIMIT = 4


# ndpointer refuses any other dtype, and arrays that are not contiguous, before the call.
_int, _int64, _pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_i32 = ndpointer(np.int32, ndim=1, flags="C_CONTIGUOUS")
_i64 = ndpointer(np.int64, ndim=1, flags="C_CONTIGUOUS")
_out32 = ndpointer(np.int32, ndim=1, flags=("C_CONTIGUOUS", "WRITEABLE"))
_out64 = ndpointer(np.int64, ndim=1, flags=("C_CONTIGUOUS", "WRITEABLE"))
_count = ctypes.POINTER(ctypes.c_int64)

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "gnewt_join_pairs": (_int, [_int64, _int64, _i64, _i64, _int, _out64, _out32, _count]),
    "gnewt_greedy_order": (
        _int,
        [_int, _int64, _i64, _i32, _i64, _int64, _i64, _i32, _int64, _out32, _count, _int64],
    ),
    "gnewt_approximate_order": (
        _int,
        [_int64, _i64, _i32, _i64, _int64, _i64, _i32, _i32, _out32, _count, _int64, _int64],
    ),
    "gnewt_dissect": (_int, [_int64, _i64, _i32, _i64, _out32, _int64]),
    "gnewt_tree_make": (
        _int,
        [_int64, _i64, _i32, _int64, _i32, _int64, _i32, _int64, ctypes.POINTER(_pointer), _count, _count],
    ),
    "gnewt_tree_copy": (None, [_pointer, _out32, _out64, _out32, _out64, _out32]),
    "gnewt_tree_free": (None, [_pointer]),
    "gnewt_merge_fronts": (
        _int,
        [
            _int,
            _int64,
            _i32,
            *[_i64] * 4,
            _i64,
            _i32,
            _i64,
            _i64,
            _i32,
            _int64,
            _i32,
            _i64,
            _int64,
            _i64,
            _out64,
        ],
    ),
    "gnewt_place_entries": (
        _int,
        [_int64, _i64, _i64, _i64, _int64, _i64, _int64, _i32, _i32, _out64, _out64, _out32, _out32, _count],
    ),
    "gnewt_layout_make": (
        _int,
        [
            *[_int64, _int64, _int, _int64, _i32],
            *[_i64, _i32, _i64, _i32, _i32, _i64, _i32, _i32],
            *[_int64, _i64, _i64, _i64, _i64, _int64, ctypes.POINTER(_pointer), _out64],
        ],
    ),
    "gnewt_layout_copy": (None, [_pointer, _out32]),
    "gnewt_layout_free": (None, [_pointer]),
    "gnewt_planner_status_name": (ctypes.c_char_p, [_int]),
    "gnewt_instance_levels": (
        _int,
        [_int64, _i64, _int64, _i64, _i32, _i64, _i32, _int64, _out64, _out64],
    ),
}


def _folders() -> list[str]:
    """Folders that may hold the library: the package's own, and the one that an editable install has recorded for it.

    An editable install leaves the sources where they are and puts the library into site-packages. Its import hook, a
    finder of scikit-build-core, knows both folders. `__path__` has both as well, unless another import hook has found
    the package first: then the finder is asked. No other folder is looked at, whatever `sys.path` holds.
    """
    own = list(sys.modules["gnewt"].__path__)
    for finder in sys.meta_path:
        recorded = getattr(finder, "submodule_search_locations", {}).get("gnewt", ())
        if own[0] in recorded:  # an install of these sources, not of others
            own += [folder for folder in sorted(recorded) if folder not in own]
    return own


def _load() -> ctypes.CDLL | None:
    """Load the library that was built with the package, if there is one."""
    if os.environ.get("GNEWT_NATIVE", "1") == "0":
        return None
    for path in (Path(folder) / name for folder in _folders() for name in _NAMES):
        if not path.exists():
            continue
        try:
            library = ctypes.CDLL(str(path))
            library.gnewt_abi_version.restype, library.gnewt_abi_version.argtypes = _int, []
            if library.gnewt_abi_version() != _ABI:
                continue  # built from other sources: as good as absent
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):  # built for another machine, or another library
            continue
        return library
    return None


LIBRARY: ctypes.CDLL | None = _load()


def join_pairs(num: int, a: np.ndarray, b: np.ndarray, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (ptr, idx) of `plan.adjacency.Adjacency.from_pairs`."""
    assert LIBRARY is not None
    _check_length(b, len(a))
    ptr, idx = np.empty(num + 1, np.int64), np.empty(len(a) * (2 if symmetric else 1), np.int32)
    kept = ctypes.c_int64()
    _check_status(LIBRARY.gnewt_join_pairs(num, len(a), a, b, int(symmetric), ptr, idx, kept))
    return ptr, idx[: kept.value].copy()


def greedy_order(
    use_fill: bool,
    ptr: np.ndarray,
    idx: np.ndarray,
    sizes: np.ndarray,
    reads: tuple[np.ndarray, np.ndarray] | None,
    wide: int,
    most: int = 2**62,
) -> tuple[np.ndarray, int] | None:
    """Return the order of `plan.orderings.min_degree` or `min_fill` and its tail; None beyond `most` flops."""
    assert LIBRARY is not None
    num = len(ptr) - 1
    order, tail = np.empty(num, np.int32), ctypes.c_int64()
    no_reads = np.zeros(1, np.int64), np.zeros(0, np.int32)
    reads_ptr, reads_idx = no_reads if reads is None else reads
    _check_ends(ptr, idx)
    _check_ends(reads_ptr, reads_idx)
    _check_length(sizes, num)
    status = LIBRARY.gnewt_greedy_order(
        int(use_fill), num, ptr, idx, sizes, len(reads_ptr) - 1, reads_ptr, reads_idx, wide, order, tail, most
    )
    _check_status(status)
    return None if tail.value < 0 else (order, tail.value)


def approximate_order(
    ptr: np.ndarray,
    idx: np.ndarray,
    sizes: np.ndarray,
    reads: tuple[np.ndarray, np.ndarray] | None,
    stage: np.ndarray,
    most: int,
    patience: int,
) -> tuple[np.ndarray, int] | None:
    """Return the order of `plan.approximate.approximate_degree` and its tail; None beyond `most` flops."""
    assert LIBRARY is not None
    num = len(ptr) - 1
    order, tail = np.empty(num, np.int32), ctypes.c_int64()
    reads_ptr, reads_idx = (np.zeros(1, np.int64), np.zeros(0, np.int32)) if reads is None else reads
    _check_ends(ptr, idx)
    _check_ends(reads_ptr, reads_idx)
    for array in (sizes, stage):
        _check_length(array, num)
    readers = (len(reads_ptr) - 1, reads_ptr, reads_idx)
    status = LIBRARY.gnewt_approximate_order(
        num, ptr, idx, sizes, *readers, stage, order, tail, most, patience
    )
    _check_status(status)
    return None if tail.value < 0 else (order, tail.value)


def dissect(
    ptr: np.ndarray, idx: np.ndarray, sizes: np.ndarray, stage: np.ndarray, most: int
) -> np.ndarray | None:
    """Return the stages of `plan.dissection.dissect`; None beyond `most` flops."""
    assert LIBRARY is not None
    num, stage = len(ptr) - 1, stage.copy()
    _check_ends(ptr, idx)
    for array in (sizes, stage):
        _check_length(array, num)
    status = LIBRARY.gnewt_dissect(num, ptr, idx, sizes, stage, most)
    if status == PlannerStatus.OVER_LIMIT:
        return None
    _check_status(status)
    return stage


def decompose(
    ptr: np.ndarray, idx: np.ndarray, order: np.ndarray, tail: int, vertex_of_item: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return (parent, frontal_ptr, frontal_idx, separator_ptr, separator_idx) of `plan.tree.decompose`.

    None if the separators hold more than `limit` elements.
    """
    assert LIBRARY is not None
    _check_ends(ptr, idx)
    _check_length(vertex_of_item, len(ptr) - 1)
    tree, bags, separator = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
    status = LIBRARY.gnewt_tree_make(
        len(ptr) - 1, ptr, idx, len(order), order, tail, vertex_of_item, limit, tree, bags, separator
    )
    if status == PlannerStatus.OVER_LIMIT:
        return None
    _check_status(status)
    try:
        parent = np.empty(bags.value, np.int32)
        frontal_ptr, separator_ptr = np.empty(bags.value + 1, np.int64), np.empty(bags.value + 1, np.int64)
        frontal_idx = np.empty(int(np.count_nonzero(vertex_of_item >= 0)), np.int32)
        separator_idx = np.empty(separator.value, np.int32)
        LIBRARY.gnewt_tree_copy(tree, parent, frontal_ptr, frontal_idx, separator_ptr, separator_idx)
    finally:
        LIBRARY.gnewt_tree_free(tree)
    return parent, frontal_ptr, frontal_idx, separator_ptr, separator_idx


def merge_fronts(
    causal: bool,
    parent: np.ndarray,
    scalars: tuple[np.ndarray, ...],
    links: tuple[np.ndarray, np.ndarray, np.ndarray],
    separators: tuple[np.ndarray, np.ndarray],
    items: tuple[np.ndarray, np.ndarray],
    model: np.ndarray,
) -> np.ndarray:
    """Return the name of each bag's group; `plan.merge` says what the arrays and the constants of the model are."""
    assert LIBRARY is not None
    num = len(parent)
    for array in scalars:
        _check_length(array, num)
    for ptr in (links[0], separators[0]):
        _check_length(ptr, num + 1)
    for idx in (links[1], links[2]):
        _check_ends(links[0], idx)
    _check_ends(*separators)
    _check_length(items[1], len(items[0]))
    top = np.empty(num, np.int64)
    arrays = (parent, *scalars, *links, *separators, len(items[0]), *items, len(model), model, top)
    _check_status(LIBRARY.gnewt_merge_fronts(int(causal), num, *arrays))
    return top


def place_entries(
    elim_ptr: np.ndarray,
    sep_ptr: np.ndarray,
    sep_position: np.ndarray,
    position: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (entry_ptr, entry_row, entry_col, target) of `plan.fronts`."""
    assert LIBRARY is not None
    _check_ends(sep_ptr, sep_position)
    _check_length(sep_ptr, len(elim_ptr))
    _check_length(b, len(a))
    num_fronts, num_nonzeros, num_entries = len(elim_ptr) - 1, len(a), ctypes.c_int64()
    entry_ptr, target = np.empty(num_fronts + 1, np.int64), np.empty(num_nonzeros, np.int64)
    row, col = np.empty(num_nonzeros, np.int32), np.empty(num_nonzeros, np.int32)
    fronts = (num_fronts, elim_ptr, sep_ptr, sep_position)
    nonzeros = (len(position), position, num_nonzeros, a, b)
    status = LIBRARY.gnewt_place_entries(*fronts, *nonzeros, target, entry_ptr, row, col, num_entries)
    _check_status(status)
    return entry_ptr, row[: num_entries.value].copy(), col[: num_entries.value].copy(), target


def lay_out_for_engine(
    num_inputs: int,
    num_slots: int,
    causal: bool,
    fronts: tuple[np.ndarray, ...],
    nonzeros: tuple[np.ndarray, ...],
    num_sources: int,
) -> tuple[np.ndarray, int, int, int]:
    """Return the plan as the engine reads it (cpp/plan_format.hpp), and three sizes.

    These are the numbers and the integers that a factor takes, and the unknowns of the largest front without its pairs.

    Args:
        fronts: the arrays of `graph.Plan` from `parent` to `entry_col`.
        nonzeros: its `source`, `target`, `pair_entry` and `input_entry`.
    """
    assert LIBRARY is not None
    parent, elim_ptr, elim_idx, sep_ptr, sep_idx, sep_pos, entry_ptr, entry_row, entry_col = fronts
    for ptr, *lists in (
        (elim_ptr, elim_idx),
        (sep_ptr, sep_idx, sep_pos),
        (entry_ptr, entry_row, entry_col),
    ):
        _check_length(ptr, len(parent) + 1)
        for idx in lists:
            _check_ends(ptr, idx)
    source, target, pair_entry, input_entry = nonzeros
    for array, length in (
        (target, len(source)),
        (pair_entry, num_slots - num_inputs),
        (input_entry, num_inputs),
    ):
        _check_length(array, length)
    layout, sizes = ctypes.c_void_p(), np.zeros(4, np.int64)
    head = (num_inputs, num_slots, int(causal), len(parent))
    status = LIBRARY.gnewt_layout_make(
        *head, *fronts, len(source), *nonzeros, num_sources, ctypes.byref(layout), sizes
    )
    if status == PlannerStatus.OVER_LIMIT:
        raise OverflowError("the plan is too large for the native engine: its indices exceed 31 bits")
    _check_status(status)
    try:
        array = np.empty(int(sizes[0]), np.int32)
        LIBRARY.gnewt_layout_copy(layout, array)
    finally:
        LIBRARY.gnewt_layout_free(layout)
    return array, int(sizes[1]), int(sizes[2]), int(sizes[3])


def instance_levels(
    sequence: np.ndarray,
    args: tuple[np.ndarray, np.ndarray],
    outs: tuple[np.ndarray, np.ndarray],
    slot_level: np.ndarray,
) -> np.ndarray:
    """Return the level of every instance, walking them in `sequence`; `slot_level` is updated in place."""
    assert LIBRARY is not None
    _check_ends(*args)
    _check_ends(*outs)
    _check_length(outs[0], len(args[0]))
    level = np.zeros(len(args[0]) - 1, np.int64)
    status = LIBRARY.gnewt_instance_levels(
        len(sequence), sequence, len(level), *args, *outs, len(slot_level), slot_level, level
    )
    _check_status(status)
    return level


def _check_ends(ptr: np.ndarray, idx: np.ndarray) -> None:
    """The library reads idx[0 .. ptr[-1]]; it checks the rest itself."""
    if len(ptr) == 0 or ptr[-1] != len(idx):
        raise ValueError(f"row pointers end at {ptr[-1:]} but there are {len(idx)} indices")


def _check_length(array: np.ndarray, length: int) -> None:
    if len(array) != length:
        raise ValueError(f"an array of length {len(array)} where {length} is needed")


def _check_status(status: int) -> None:
    if status == PlannerStatus.OUT_OF_MEMORY:
        raise MemoryError("the native planner ran out of memory")
    if status == PlannerStatus.INVALID_INPUT:
        raise ValueError("the native planner was given integers that contradict each other")
    if status:
        raise RuntimeError(f"the native planner failed (status {status})")
