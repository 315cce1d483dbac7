"""The native engine: one call of the C++ library per factor-and-solve, inside or outside jit.

Causal plans run on primal-only fronts, with pairs substituted and a test on every input pivot. Where a test fails, that front looks
for 1×1 and 2×2 pivots and delays what it cannot eliminate to its parent; fronts of free plans, which hold duals, all do.
"""

from __future__ import annotations

import ctypes
import dataclasses
import weakref
from functools import cache, cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from gnewt import _native
from gnewt.graph import Plan
from gnewt.kkt.engines.native.packing import NativeLayout, lay_out_native
from gnewt.kkt.engines.reference.engine import ReferenceFactor, factorize

STATUSES = ("ok", "singular", "nonfinite", "out of memory", "bad plan")
_TARGETS = ("gnewt_factor_solve_f64", "gnewt_factor_solve_f32", "gnewt_solve_f64", "gnewt_solve_f32")
_SUFFIX = {"float64": "f64", "float32": "f32"}
_MODES = ("none", "causal", "general")


class Solved(NamedTuple):
    """What one call returns. Leading axes of a batch come first everywhere."""

    solution: Float[Array, "*batch N columns"]
    factor: Float[Array, "*batch size"]
    index: Int[Array, "*batch length"]
    info: Int[Array, "*batch 8"]
    """Status, positive, negative, zero, delayed, kept, mode, first null unknown."""
    real: Float[Array, "*batch 3"]
    """log|det H|, smallest pivot, the shift."""
    null: Int[Array, "*batch unknowns"]
    """1 for unknowns that found no pivot."""

    @property
    def status(self) -> Array:
        return self.info[..., 0]

    @property
    def inertia(self) -> Array:
        return self.info[..., 1:4]

    @property
    def num_delayed(self) -> Array:
        return self.info[..., 4]

    @property
    def kept(self) -> Array:
        """Whether the factor fitted its buffers; if not, `solve` eliminates again."""
        return self.info[..., 5]

    @property
    def logdet(self) -> Array:
        return self.real[..., 0]

    @property
    def smallest_pivot(self) -> Array:
        return self.real[..., 1]


@cache
def available() -> bool:
    """Whether the library is there and has the engine; registers it with JAX."""
    library = _native.LIBRARY
    if library is None or not all(hasattr(library, name) for name in _TARGETS):
        return False
    for name in _TARGETS:
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


_layouts: weakref.WeakKeyDictionary[Plan, NativeLayout] = weakref.WeakKeyDictionary()


def layout(plan: Plan, num_sources: int | None = None) -> NativeLayout:
    """Return the arrays of a plan for the native engine; made once per plan."""
    known = _layouts.get(plan)
    if known is None:
        if num_sources is None:
            num_sources = int(plan.source.max(initial=-1)) + 1
        known = _layouts[plan] = lay_out_native(plan, num_sources)
    return known


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
    array: Array | None = None,
) -> Solved:
    """Eliminate K for H + shift·I and solve for all columns of the right-hand side. Traceable; works under vmap.

    Args:
        layout: the plan.
        array: `layout.array` as an operand of the caller's jit, so that it is not a constant of the program.
    """
    if not available():
        raise RuntimeError("the native engine is not there: build it (`make native`)")
    dtype = sources.dtype
    plan = jnp.asarray(layout.array) if array is None else array
    factor_size, index_size = buffer_sizes(layout)
    shapes = (
        jax.ShapeDtypeStruct(rhs.shape, dtype),
        jax.ShapeDtypeStruct((factor_size,), dtype),
        jax.ShapeDtypeStruct((index_size,), jnp.int32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
        jax.ShapeDtypeStruct((3,), dtype),
        jax.ShapeDtypeStruct((layout.num_unknowns,), jnp.int8),
    )
    call = jax.ffi.ffi_call(f"gnewt_factor_solve_{_SUFFIX[dtype.name]}", shapes, vmap_method="expand_dims")
    return Solved(*call(plan, sources, jnp.asarray(shift, dtype), jnp.asarray(rhs, dtype)))


def solve(
    layout: NativeLayout,
    sources: Float[Array, " nnz"],
    solved: Solved,
    rhs: Float[Array, "N columns"],
    array: Array | None = None,
) -> Float[Array, "N columns"]:
    """Solve for another right-hand side with the same factor; NaN where there is none."""
    dtype = sources.dtype
    plan = jnp.asarray(layout.array) if array is None else array
    call = jax.ffi.ffi_call(
        f"gnewt_solve_{_SUFFIX[dtype.name]}",
        jax.ShapeDtypeStruct(rhs.shape, dtype),
        vmap_method="expand_dims",
    )
    return call(plan, sources, solved.factor, solved.index, solved.info, solved.real, jnp.asarray(rhs, dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class NativeFactor:
    """The numbers of an elimination of K, on the host: the interface of `ReferenceFactor`."""

    plan: Plan
    sources: Array
    shift: float
    layout: NativeLayout
    solved: Solved

    @cached_property
    def _info(self) -> list[int]:
        return np.asarray(self.solved.info).tolist()

    @property
    def status(self) -> str:
        return STATUSES[self._info[0]]

    @property
    def mode(self) -> str:
        """`causal` if no pivot had to be searched for, else `general`."""
        return _MODES[self._info[6]]

    @property
    def inertia(self) -> tuple[int, int, int]:
        """(n₊, n₋, n₀) of H + μI."""
        return self._info[1], self._info[2], self._info[3]

    @property
    def num_delayed(self) -> int:
        return self._info[4]

    @cached_property
    def null(self) -> np.ndarray:
        """Unknowns for which no pivot above rounding was found."""
        return np.flatnonzero(np.asarray(self.solved.null))

    @property
    def logdet(self) -> float:
        """log|det(H + μI)|; -inf if singular."""
        return float(self.solved.logdet)

    @property
    def smallest_pivot(self) -> float:
        """Smallest |pivot|: of the inputs alone where the mode is causal, of all unknowns otherwise."""
        return float(self.solved.smallest_pivot)

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return H⁻¹ b for b[N] or b[N, columns]; null unknowns are set to zero."""
        columns = jnp.asarray(np.reshape(b, (len(b), -1)), self.sources.dtype)
        z = _solve_jit(self.layout, self.sources, self.solved, columns)
        return np.asarray(z, np.float64).reshape(b.shape)

    # Rarely asked for, and not in the hot path: the reference engine answers.

    @cached_property
    def reference(self) -> ReferenceFactor:
        return factorize(self.plan, np.asarray(self.sources), self.shift)

    def input_variances(self) -> np.ndarray:
        """Return the diagonal of H⁻¹."""
        return self.reference.input_variances()

    def correlate(self, noise: np.ndarray) -> np.ndarray:
        """Turn standard normal noise into samples of N(0, H⁻¹)."""
        return self.reference.correlate(noise)


def _factor_jit(layout: NativeLayout, sources: Array, shift: float, rhs: Array) -> Solved:
    run = _compiled(layout)[0]
    return run(jnp.asarray(layout.array), sources, jnp.asarray(shift, sources.dtype), rhs)


def _solve_jit(layout: NativeLayout, sources: Array, solved: Solved, rhs: Array) -> Array:
    return _compiled(layout)[1](jnp.asarray(layout.array), sources, solved, rhs)


_compiled_functions: weakref.WeakKeyDictionary[NativeLayout, tuple] = weakref.WeakKeyDictionary()


def _compiled(layout: NativeLayout) -> tuple:
    known = _compiled_functions.get(layout)
    if known is None:
        ref = weakref.ref(layout)  # a cache that held its own key would never let go

        def run(array: Array, sources: Array, shift: Array, rhs: Array) -> Solved:
            return factor_solve(_alive(ref), sources, shift, rhs, array)

        def again(array: Array, sources: Array, solved: Solved, rhs: Array) -> Array:
            return solve(_alive(ref), sources, solved, rhs, array)

        known = _compiled_functions[layout] = (jax.jit(run), jax.jit(again))
    return known


def _alive(ref: weakref.ref[NativeLayout]) -> NativeLayout:
    layout = ref()
    assert layout is not None
    return layout


def factorize_native(plan: Plan, sources: np.ndarray | Array, shift: float = 0.0) -> NativeFactor:
    """Eliminate K + diag(μ on inputs) with the native engine, on the host."""
    sources = jnp.asarray(sources)
    arrays = layout(plan, len(sources))
    zero = jnp.zeros((plan.num_inputs, 1), sources.dtype)
    return NativeFactor(plan, sources, shift, arrays, _factor_jit(arrays, sources, shift, zero))
