"""Twins in NumPy and SciPy of primitives that JAX has to compile: factorisations, sorts, transforms.

Only for programs that NumPy runs on known numbers (`numpy_run.py`). Constants of structures are folded by
`primitives.py` alone, which has what rounds as XLA does. Functions of (equation, operands) to a list of outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from gnewt.jaxprs.program import Instr

Twin: TypeAlias = Callable[[Instr, Sequence[np.ndarray]], list[np.ndarray]]


def _ufunc(function: Callable[..., np.ndarray]) -> Twin:
    return lambda instr, values: [np.asarray(function(*values))]


# Linear algebra: the same routines of LAPACK that JAX calls on a CPU, so that signs and pivots agree. SciPy's are imported
# where they are called: JAX imports them, too, when it factorises for the first time.


def _each(
    function: Callable[..., Sequence[np.ndarray]], instr: Instr, *arrays: np.ndarray
) -> list[np.ndarray]:
    """Apply a function of matrices to each of a batch; NaN where LAPACK fails."""
    outs = [np.zeros(a.shape, a.dtype) for a in instr.out_avals]
    for at in np.ndindex(*arrays[0].shape[:-2]):
        try:
            found = function(*[a[at] for a in arrays])
        except (np.linalg.LinAlgError, ValueError):  # not definite, or not finite
            found = [np.full(1, np.nan if out.dtype.kind in "fc" else 0, out.dtype) for out in outs]
        for out, value in zip(outs, found, strict=True):
            out[at] = value
    return outs


def _lu(matrix: np.ndarray) -> list[np.ndarray]:
    import scipy.linalg

    packed, pivots, _ = scipy.linalg.get_lapack_funcs(("getrf",), (matrix,))[0](matrix)
    order = np.arange(matrix.shape[0])
    for i, j in enumerate(pivots):
        order[[i, j]] = order[[j, i]]
    return [packed, pivots, order]


def _triangular_solve(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    matrix, right = values
    known = instr.params
    if known["unit_diagonal"]:
        eye = np.eye(matrix.shape[-1], dtype=matrix.dtype)
        matrix = matrix * (1 - eye) + eye
    transposed = known["transpose_a"]
    if not known["left_side"]:
        right, transposed = np.swapaxes(right, -1, -2), not transposed
    kept = np.tril(matrix) if known["lower"] else np.triu(matrix)
    kept = np.conj(kept) if known["conjugate_a"] else kept
    kept = np.swapaxes(kept, -1, -2) if transposed else kept
    try:
        found = np.linalg.solve(kept, right)
    except np.linalg.LinAlgError:
        found = np.full(right.shape, np.nan, right.dtype)
    return [found if known["left_side"] else np.swapaxes(found, -1, -2)]


def _cholesky(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _each(lambda a: [np.linalg.cholesky(a)], instr, *values)


def _eigh(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    import scipy.linalg

    lower = instr.params["lower"]

    def one(matrix: np.ndarray) -> list[np.ndarray]:
        return list(scipy.linalg.eigh(matrix, lower=lower, driver="evd")[::-1])

    return _each(one, instr, *values)


# Order


def _sort(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    axis, keys = instr.params["dimension"], values[: instr.params["num_keys"]]
    order = np.lexsort(keys[::-1], axis=axis)
    return [np.take_along_axis(v, order, axis) for v in values]


def _extreme(
    function: Callable[..., np.ndarray], instr: Instr, values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    (axis,) = instr.params["axes"]
    return [np.asarray(function(values[0], axis=axis))]


# Others


def _fft(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    lengths = instr.params["fft_lengths"]
    name = str(getattr(instr.params["fft_type"], "name", instr.params["fft_type"])).lower()
    transform = {"fft": np.fft.fftn, "ifft": np.fft.ifftn, "rfft": np.fft.rfftn, "irfft": np.fft.irfftn}
    return [transform[name](values[0], lengths, tuple(range(-len(lengths), 0)))]


def _round(instr: Instr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    if "EVEN" in str(instr.params["rounding_method"]):
        return [np.rint(values[0])]
    return [np.copysign(np.floor(np.abs(values[0]) + 0.5), values[0])]


TWINS: dict[str, Twin] = {
    "lu": lambda instr, values: _each(_lu, instr, *values),
    "triangular_solve": _triangular_solve,
    "cholesky": _cholesky,
    "eigh": _eigh,
    "sort": _sort,
    "argmax": functools.partial(_extreme, np.argmax),
    "argmin": functools.partial(_extreme, np.argmin),
    "fft": _fft,
    "round": _round,
    "real": _ufunc(np.real),
    "imag": _ufunc(np.imag),
    "conj": _ufunc(np.conj),
    "complex": _ufunc(lambda x, y: x + 1j * y),
    # Total orders: they differ from the usual ones at NaN and at -0.0, which no point of a check has.
    "eq_to": _ufunc(np.equal),
    "lt_to": _ufunc(np.less),
    "le_to": _ufunc(np.less_equal),
    "empty2": lambda instr, values: [np.zeros(a.shape, a.dtype) for a in instr.out_avals],
}


FOREIGN: dict[str, Twin] = {}
"""Twins of foreign functions, by the name of the target; whoever registers a target with JAX may add one."""


def twin_of(instr: Instr) -> Twin | None:
    """Return the twin of an equation, or None where only JAX can apply it."""
    if instr.prim == "ffi_call":
        return FOREIGN.get(instr.params["target_name"])
    if instr.prim == "eigh" and instr.params.get("subset_by_index") is not None:
        return None
    return TWINS.get(instr.prim)
