"""The native engine: one call of the C++ library per factor-and-solve, inside or outside jit.

Causal plans run on fronts without duals: pairs are substituted, and every input pivot is tested. Where a test fails,
that front searches for 1×1 and 2×2 pivots and delays what finds none to its parent. Fronts of free plans hold duals,
and all of them search. docs/engine_guide.md explains the C++ side.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from gnewt import _native
from gnewt._errors import OptionError
from gnewt.graph import Plan
from gnewt.kkt.engines.elimination import OK, Elimination
from gnewt.kkt.engines.inverse import HostInverse
from gnewt.kkt.engines.native.inverse import draw, variances
from gnewt.kkt.engines.native.packing import NativeLayout, lay_out_native

_TARGETS = ("gnewt_factor_solve_f64", "gnewt_factor_solve_f32", "gnewt_solve_f64", "gnewt_solve_f32")
_WHOLE = ("gnewt_solve_whole_f64", "gnewt_solve_whole_f32")
_SUFFIX = {"float64": "f64", "float32": "f32"}


class Info(IntEnum):
    """Places in the integers that a call returns: `InfoField` of cpp/engine/call.hpp."""

    STATUS = 0
    POSITIVE = 1
    NEGATIVE = 2
    ZERO = 3
    DELAYED = 4
    KEPT = 5
    MODE = 6
    FIRST_NULL = 7


class Real(IntEnum):
    """Places in the real numbers that a call returns: `RealField` of cpp/engine/call.hpp."""

    LOGDET = 0
    SMALLEST_PIVOT = 1
    SHIFT = 2


class Mode(IntEnum):
    """Which elimination made a factor: `Mode` of cpp/engine/call.hpp."""

    NONE = 0
    CAUSAL = 1
    """All pivots are those of a causal plan, and no front left a record."""
    GENERAL = 2
    """Pivots were moved, or the plan is free."""


class Solved(NamedTuple):
    """What one call returns. Leading axes of a batch come first everywhere."""

    solution: Float[Array, "*batch N columns"]
    factor: Float[Array, "*batch size"]
    places: Int[Array, "*batch length"]
    info: Int[Array, "*batch 8"]
    """See `Info`."""
    real: Float[Array, "*batch 3"]
    """See `Real`."""
    null: Int[Array, "*batch unknowns"]
    """1 for unknowns that found no pivot."""

    @property
    def status(self) -> Array:
        return self.info[..., Info.STATUS]

    @property
    def inertia(self) -> Array:
        return self.info[..., Info.POSITIVE : Info.ZERO + 1]

    @property
    def num_delayed(self) -> Array:
        return self.info[..., Info.DELAYED]

    @property
    def kept(self) -> Array:
        """Whether the factor fitted its buffers; if not, `solve` eliminates again."""
        return self.info[..., Info.KEPT]

    @property
    def logdet(self) -> Array:
        return self.real[..., Real.LOGDET]

    @property
    def smallest_pivot(self) -> Array:
        return self.real[..., Real.SMALLEST_PIVOT]


INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
"""Builds of the engine; the environment may choose one by `GNEWT_ISA`."""


@cache
def available() -> bool:
    """Whether the library is there and has the engine; registers it with JAX."""
    wanted = os.environ.get("GNEWT_ISA", "")
    if wanted not in ("", *INSTRUCTION_SETS):
        raise OptionError(
            f"GNEWT_ISA is {wanted!r}",
            "the environment",
            f"set it to one of {', '.join(INSTRUCTION_SETS)}, or unset it for the best one of this machine",
        )
    library = _native.LIBRARY
    if library is None or not all(hasattr(library, name) for name in (*_TARGETS, *_WHOLE)):
        return False
    for name in (*_TARGETS, *_WHOLE):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return True


def isa() -> str:
    """Instruction set of the build that was chosen: baseline, avx2 or avx512."""
    if not available():
        return "none"
    assert _native.LIBRARY is not None
    name = _native.LIBRARY.gnewt_engine_isa
    name.restype, name.argtypes = ctypes.c_char_p, []
    return name().decode()


def buffer_sizes(layout: NativeLayout) -> tuple[int, int]:
    """Numbers and integers to keep a factor in: with room for fronts that delayed pivots have made larger."""
    if not layout.causal:
        return layout.factor_size, layout.index_size
    spare = layout.num_unknowns // 4 + layout.largest_front + 256
    return layout.factor_size + layout.factor_size // 4 + 256, layout.index_size + spare


def factor_solve(
    layout: NativeLayout,
    sources: Float[Array, " nnz"],
    shift: Float[Array, ""] | float,
    rhs: Float[Array, "N columns"],
    array: Array | np.ndarray | None = None,
) -> Solved:
    """Eliminate K for H + shift·I and solve for all columns of the right-hand side. Traceable; works under vmap.

    Args:
        layout: the plan.
        array: `layout.array` as an operand of the caller's jit, so that it is not a constant of the program.
    """
    if not available():
        raise RuntimeError("the native engine is not there: build it (`make native`)")
    dtype = sources.dtype
    plan = jnp.asarray(layout.array if array is None else array)
    factor_size, index_size = buffer_sizes(layout)
    shapes = (
        jax.ShapeDtypeStruct(rhs.shape, dtype),
        jax.ShapeDtypeStruct((factor_size,), dtype),
        jax.ShapeDtypeStruct((index_size,), jnp.int32),
        jax.ShapeDtypeStruct((len(Info),), jnp.int32),
        jax.ShapeDtypeStruct((len(Real),), dtype),
        jax.ShapeDtypeStruct((layout.num_unknowns,), jnp.int8),
    )
    call = jax.ffi.ffi_call(f"gnewt_factor_solve_{_SUFFIX[dtype.name]}", shapes, vmap_method="expand_dims")
    return Solved(*call(plan, sources, jnp.asarray(shift, dtype), jnp.asarray(rhs, dtype)))


def solve(
    layout: NativeLayout,
    sources: Float[Array, " nnz"],
    solved: Solved,
    rhs: Float[Array, "N columns"],
    array: Array | np.ndarray | None = None,
) -> Float[Array, "N columns"]:
    """Solve for another right-hand side with the same factor; NaN where there is none."""
    dtype = sources.dtype
    plan = jnp.asarray(layout.array if array is None else array)
    call = jax.ffi.ffi_call(
        f"gnewt_solve_{_SUFFIX[dtype.name]}",
        jax.ShapeDtypeStruct(rhs.shape, dtype),
        vmap_method="expand_dims",
    )
    return call(
        plan, sources, solved.factor, solved.places, solved.info, solved.real, jnp.asarray(rhs, dtype)
    )


def solve_whole(
    layout: NativeLayout,
    sources: Float[Array, " nnz"],
    solved: Solved,
    rhs: Float[Array, "unknowns columns"],
    array: Array | np.ndarray | None = None,
) -> Float[Array, "unknowns columns"]:
    """Solve K z = rhs for all unknowns with the same factor; NaN where there is none."""
    dtype = sources.dtype
    plan = jnp.asarray(layout.array if array is None else array)
    call = jax.ffi.ffi_call(
        f"gnewt_solve_whole_{_SUFFIX[dtype.name]}",
        jax.ShapeDtypeStruct(rhs.shape, dtype),
        vmap_method="expand_dims",
    )
    return call(
        plan, sources, solved.factor, solved.places, solved.info, solved.real, jnp.asarray(rhs, dtype)
    )


class NativeEngine:
    """A plan made ready for the C++ library: one call per factor-and-solve. Once per plan; holds integers only."""

    name = "native"

    def __init__(self, plan: Plan, num_sources: int, eps: float) -> None:
        self._host = HostInverse(
            plan, eps
        )  # the engine itself measures noise in the precision of the sources
        self._layout = lay_out_native(plan, num_sources)
        self.arrays = self._layout.array

    def factor_solve(
        self,
        arrays: Array | np.ndarray,
        sources: Float[Array, " nnz"],
        shift: Float[Array, ""] | float,
        rhs: Float[Array, "N columns"],
    ) -> tuple[Float[Array, "N columns"], Elimination]:
        """Eliminate K for H + shift·I and solve for all columns. Traceable; works under vmap."""
        done = factor_solve(self._layout, sources, shift, rhs, arrays)
        known = (done.status, done.inertia, done.num_delayed, done.logdet, done.smallest_pivot, done.null)
        return done.solution, Elimination(*known, factor=(done.factor, done.places, done.info, done.real))

    def solve(
        self,
        arrays: Array | np.ndarray,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        rhs: Float[Array, "N columns"],
    ) -> Float[Array, "N columns"]:
        """Solve for other right-hand sides with the same factor."""
        solved = Solved(rhs, *elimination.factor, null=elimination.null)
        return solve(self._layout, sources, solved, rhs, arrays)

    def solve_whole(
        self,
        arrays: Array | np.ndarray,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        rhs: Float[Array, "unknowns columns"],
    ) -> Float[Array, "unknowns columns"]:
        """Solve K z = rhs with right-hand sides on all rows: inputs, nodes, multipliers of nodes."""
        solved = Solved(rhs, *elimination.factor, null=elimination.null)
        return solve_whole(self._layout, sources, solved, rhs, arrays)

    def variances(
        self, arrays: Array | np.ndarray, sources: Float[Array, " nnz"], elimination: Elimination
    ) -> Float[Array, " slots"]:
        """The diagonal of K⁻¹ on all slots. Traceable; works under vmap."""
        found = variances(self._layout, arrays, sources, elimination.factor)
        lost, shift = self._lost(elimination)
        return jnp.where(lost, self._host.variances(lost, sources, shift), found)

    def draw(
        self,
        arrays: Array | np.ndarray,
        sources: Float[Array, " nnz"],
        elimination: Elimination,
        noise: Float[Array, "N columns"],
    ) -> Float[Array, "N columns"]:
        """Draws of covariance H⁻¹ from standard normal noise. Traceable; works under vmap."""
        found = draw(arrays, sources, elimination.factor, noise)
        lost, shift = self._lost(elimination)
        return jnp.where(lost, self._host.draw(lost, sources, shift, noise), found)

    def _lost(self, elimination: Elimination) -> tuple[Array, Array]:
        """Whether a good factor outgrew its buffers, which then hold nothing; and the shift."""
        info, real = elimination.factor[2:]
        lost = (info[..., Info.KEPT] == 0) & (elimination.status == OK)
        return lost, real[..., Real.SHIFT]
