"""What is known about each primitive, in one table: derivatives, cost, NumPy, movement of data.

A primitive that is not in the table is a black box: curved everywhere, without a fold.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import jax
import numpy as np

from gnewt.jaxprs import folds, moves
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.moves import Move
from gnewt.jaxprs.program import Instr

Curvature: TypeAlias = Literal["all", "none"] | tuple[tuple[int, int], ...]
"""Pairs (i, j) of operands along which a second derivative may not vanish: all, none, or these."""


@dataclasses.dataclass(frozen=True)
class Primitive:
    """One primitive."""

    elementwise: bool = False
    curvature: Curvature = "all"
    flat: bool = False
    """Its derivative is zero."""
    own_rule: bool = False
    """Its derivative is not that of the scalar operations which compute it."""
    twice: bool = True
    """Whether JAX is known to differentiate it twice."""
    costly: bool = False
    """Costs much more than a multiplication."""
    commutative: bool = False
    numpy: Callable[..., np.ndarray] | None = None
    """The same function of the operands, in NumPy."""
    exact: bool = False
    """NumPy rounds as XLA does."""
    fold: Callable[..., np.ndarray] | None = None
    """The same in NumPy as a function of (equation, *operands), where parameters matter."""
    move: Move | None = None
    """How it moves data."""
    takes: bool = False
    """Moves data, given its indices."""
    indices: tuple[int, int | None] = (0, 0)
    """Which operands are indices: from, to."""
    repeats: str = ""
    """The operation of two scalars that a reduction repeats."""

    @property
    def index_places(self) -> slice:
        """Which operands are indices."""
        return slice(*self.indices)


_Numpy: TypeAlias = Callable[..., np.ndarray] | None


def _smooth(numpy: _Numpy = None, costly: bool = True, **known: object) -> Primitive:
    return Primitive(elementwise=True, numpy=numpy, costly=costly, **known)  # type: ignore[arg-type]


def _straight(numpy: _Numpy = None, **known: object) -> Primitive:
    """Linear, or linear in pieces."""
    return Primitive(elementwise=True, numpy=numpy, curvature="none", **known)  # type: ignore[arg-type]


def _flat(numpy: _Numpy = None, **known: object) -> Primitive:
    return Primitive(elementwise=True, numpy=numpy, curvature="none", flat=True, **known)  # type: ignore[arg-type]


def _reduction(repeats: str, function: np.ufunc, **known: object) -> Primitive:
    return Primitive(fold=functools.partial(folds.reduce, function), repeats=repeats, **known)  # type: ignore[arg-type]


def _running(function: np.ufunc, **known: object) -> Primitive:
    return Primitive(fold=functools.partial(folds.accumulate, function), **known)  # type: ignore[arg-type]


def _scattered(function: np.ufunc, curvature: Curvature = "all") -> Primitive:
    fold = functools.partial(folds.scatter_with, function)
    return Primitive(indices=(1, 2), fold=fold, curvature=curvature)


def _inverse_root(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _same(x: np.ndarray) -> np.ndarray:
    return x


PRIMITIVES: dict[str, Primitive] = {
    # Arithmetic
    "add": _straight(np.add, exact=True, commutative=True),
    "add_any": _straight(np.add, exact=True),
    "sub": _straight(np.subtract, exact=True),
    "neg": _straight(np.negative, exact=True),
    "mul": Primitive(True, ((0, 1),), numpy=np.multiply, exact=True, commutative=True),
    "div": Primitive(True, ((0, 1), (1, 1)), numpy=folds.divide),
    "rem": _straight(np.fmod),
    "abs": _straight(np.abs),
    "max": _straight(np.maximum, commutative=True),
    "min": _straight(np.minimum, commutative=True),
    "clamp": _straight(folds.clamp),
    "select_n": _straight(folds.choose, exact=True),
    "convert_element_type": _straight(fold=folds.convert),
    "reduce_precision": _straight(),
    "real": _straight(),
    "imag": _straight(),
    "complex": _straight(),
    "conj": _straight(),
    # Powers, exponentials, logarithms
    "square": _smooth(np.square, costly=False),
    "one_minus_square": _smooth(lambda x: 1 - x * x, costly=False),
    "integer_pow": _smooth(costly=False, fold=folds.integer_pow),
    "polynomial": _smooth(folds.polynomial),
    "pow": Primitive(True, ((0, 0), (0, 1), (1, 1)), numpy=np.power, costly=True),
    "sqrt": _smooth(np.sqrt),
    "rsqrt": _smooth(_inverse_root),
    "cbrt": _smooth(np.cbrt),
    "exp": _smooth(np.exp),
    "exp2": _smooth(np.exp2),
    "expm1": _smooth(np.expm1),
    "log": _smooth(np.log),
    "log2": _smooth(np.log2),
    "log1p": _smooth(np.log1p),
    # Circular and hyperbolic functions
    "sin": _smooth(np.sin),
    "cos": _smooth(np.cos),
    "tan": _smooth(np.tan),
    "asin": _smooth(np.arcsin),
    "acos": _smooth(np.arccos),
    "atan": _smooth(np.arctan),
    "atan2": _smooth(np.arctan2),
    "sinh": _smooth(np.sinh),
    "cosh": _smooth(np.cosh),
    "tanh": _smooth(np.tanh),
    "asinh": _smooth(np.arcsinh),
    "acosh": _smooth(np.arccosh),
    "atanh": _smooth(np.arctanh),
    "logistic": _smooth(_logistic),
    # Functions without a twin in NumPy
    **dict.fromkeys(("erf", "erfc", "erf_inv"), _smooth()),
    **dict.fromkeys(("lgamma", "digamma", "polygamma", "zeta", "bessel_i0e", "bessel_i1e"), _smooth()),
    **dict.fromkeys(("igamma", "igammac", "random_gamma_grad", "regularized_incomplete_beta"), _smooth()),
    # Comparisons, logic, rounding
    "eq": _flat(np.equal, exact=True),
    "ne": _flat(np.not_equal, exact=True),
    "lt": _flat(np.less, exact=True),
    "le": _flat(np.less_equal, exact=True),
    "gt": _flat(np.greater, exact=True),
    "ge": _flat(np.greater_equal, exact=True),
    "and": _flat(np.bitwise_and),
    "or": _flat(np.bitwise_or),
    "xor": _flat(np.bitwise_xor),
    "not": _flat(np.invert),
    "is_finite": _flat(np.isfinite),
    "sign": _flat(np.sign),
    "floor": _flat(np.floor),
    "ceil": _flat(np.ceil),
    **dict.fromkeys(("eq_to", "lt_to", "le_to", "round", "nextafter", "population_count", "clz"), _flat()),
    **dict.fromkeys(("shift_left", "shift_right_logical", "shift_right_arithmetic"), _flat()),
    "stop_gradient": _flat(_same, own_rule=True),
    # Reductions
    "reduce_sum": _reduction("add", np.add, curvature="none"),
    "reduce_prod": _reduction("mul", np.multiply),
    "reduce_max": _reduction("max", np.maximum, own_rule=True, curvature="none"),
    "reduce_min": _reduction("min", np.minimum, own_rule=True, curvature="none"),
    "reduce_and": _reduction("and", np.bitwise_and),
    "reduce_or": _reduction("or", np.bitwise_or),
    "argmax": Primitive(flat=True),
    "argmin": Primitive(flat=True),
    "cummax": _running(np.maximum, curvature="none"),
    "cummin": _running(np.minimum, curvature="none"),
    "cumsum": _running(np.add, curvature="none"),
    "cumprod": _running(np.multiply),
    "dot_general": Primitive(fold=folds.dot),
    "sort": Primitive(curvature="none", twice=False),
    "fft": Primitive(curvature="none"),
    # Data movement
    "copy": Primitive(move=moves.copy),
    **dict.fromkeys(("optimization_barrier", "device_put"), Primitive(move=moves.copy)),
    # Names for what is kept for the reverse sweep, and hints where arrays live.
    **dict.fromkeys(("name", "sharding_constraint", "reshard"), Primitive(move=moves.copy)),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), Primitive(move=moves.reshape)),
    "transpose": Primitive(move=moves.transpose),
    "rev": Primitive(move=moves.reverse),
    "slice": Primitive(move=moves.cut),
    "broadcast_in_dim": Primitive(move=moves.broadcast),
    "concatenate": Primitive(move=moves.concatenate),
    "stack": Primitive(move=moves.stack),
    "split": Primitive(move=moves.split),
    "unstack": Primitive(move=moves.unstack),
    "tile": Primitive(move=moves.tile),
    "pad": Primitive(move=moves.pad),
    "bitcast_convert_type": Primitive(fold=folds.bitcast),
    "iota": Primitive(fold=folds.iota),
    # Data movement by indices
    "gather": Primitive(takes=True, indices=(1, 2), fold=folds.gather),
    "dynamic_slice": Primitive(takes=True, indices=(1, None), fold=folds.dynamic_slice),
    "dynamic_update_slice": Primitive(indices=(2, None), fold=folds.dynamic_update_slice),
    "scatter": Primitive(indices=(1, 2), fold=folds.scatter),
    "scatter-add": _scattered(np.add),
    "scatter-sub": _scattered(np.subtract),
    "scatter-mul": _scattered(np.multiply),
    "scatter-max": _scattered(np.maximum, "none"),
    "scatter-min": _scattered(np.minimum, "none"),
    # Functions with derivatives of their own, or with none
    "custom_jvp_call": Primitive(own_rule=True),
    "custom_vjp_call": Primitive(own_rule=True, twice=False),
    "custom_lin": Primitive(own_rule=True),
    **dict.fromkeys(("while", "custom_linear_solve"), Primitive(twice=False)),
    **dict.fromkeys(("pure_callback", "io_callback", "custom_call", "ffi_call"), Primitive(twice=False)),
    **dict.fromkeys(("eig", "eigh", "schur", "svd"), Primitive(twice=False)),
}

_UNKNOWN = Primitive()


def primitive(name: str) -> Primitive:
    """Return what is known about a primitive."""
    return PRIMITIVES.get(name, _UNKNOWN)


def fold_elementwise(instr: Instr, values: Sequence[Numeric]) -> np.ndarray | None:
    """Apply an elementwise equation to known values of one shape, or return None where NumPy cannot."""
    known = primitive(instr.prim)
    with np.errstate(all="ignore"):
        if known.numpy is not None:
            return np.asarray(known.numpy(*values), instr.out_avals[0].dtype)
        return known.fold(instr, *values) if known.elementwise and known.fold else None


def fold_instr(instr: Instr, values: Sequence[jax.Array | np.ndarray]) -> list[np.ndarray] | None:
    """Apply an equation to known values with a leading batch axis, or return None where NumPy cannot."""
    known = primitive(instr.prim)
    if known.move is not None:
        return known.move(instr, *values)
    if any(v.size == 0 for v in values):
        # NumPy knows no maximum of nothing.
        return None
    if known.fold is not None:
        with np.errstate(all="ignore"):
            return [known.fold(instr, *values)]
    if known.numpy is None:
        return None
    # Scalars may stand beside arrays: their axes come after the batch axis.
    rank = 1 + len(instr.out_avals[0].shape)
    full = [v.reshape(v.shape[0], *[1] * (rank - v.ndim), *v.shape[1:]) for v in values]
    folded = fold_elementwise(instr, full)
    return None if folded is None else [folded]
