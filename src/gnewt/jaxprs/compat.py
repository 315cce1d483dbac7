"""What differs between versions of JAX (0.10 to 0.12), in one place: the only module that imports `jax.extend.core`.

In: jaxprs, equations and their parameters, as JAX gives them. Out: the same facts under one name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import jax
import jax.extend.core as jex
import numpy as np
from jax.typing import ArrayLike

from gnewt._errors import _LIBRARY_ROOTS

Equation: TypeAlias = jex.JaxprEqn
AnyJaxpr: TypeAlias = jex.Jaxpr | jex.ClosedJaxpr
"""A jaxpr, closed or not: in jax 0.11 both are one type."""
Atom: TypeAlias = jex.Var | jex.Literal
Params: TypeAlias = Mapping[str, Any]
"""Parameters of an equation. Each primitive has its own; JAX does not type them."""
Numeric: TypeAlias = ArrayLike
"""A number or an array, known or traced."""


if TYPE_CHECKING:
    DType: TypeAlias = np.dtype
else:
    # The dtype of a PRNG key is not a np.dtype: the tests, which check annotations, must let it pass.
    DType = object


@runtime_checkable
class Aval(Protocol):
    """Shape and dtype of a variable."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...


_NAMES = {
    "pjit": "jit",
    "core_closed_call": "closed_call",
    "eval_jaxpr": "closed_call",
    "call": "core_call",
    "remat2": "remat",
    "checkpoint": "remat",
    "copy_p": "copy",
    "custom_vjp_call_jaxpr": "custom_vjp_call",
    "scatter_add": "scatter-add",
    "scatter_mul": "scatter-mul",
    "scatter_sub": "scatter-sub",
}
"""Names that some versions of JAX give to a primitive → the name that gnewt uses."""


SMALL_KERNELS: dict[str, str | bool] = (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
)
"""How to compile a program of hundreds of small kernels in two thirds of the time. JAX 0.11 has no such option."""

OBJECT = "_prim"
"""Parameter of a `call_hi_primitive`: an object that is made anew at every trace, with functions for its values and
derivatives. From JAX 0.11 on `lax.custom_root` is one."""

_WRAPPERS = ("equinox/_ad.py", "equinox/_module/_prebuilt.py")
"""Files of equinox whose functions call others."""


def primitive_name(eqn: Equation) -> str:
    """Return the name of an equation's primitive, the same for all versions of JAX."""
    return _NAMES.get(eqn.primitive.name, eqn.primitive.name)


def aval_of(atom: Atom) -> Aval:
    """Return shape and dtype of an operand."""
    return atom.aval  # type: ignore[return-value]


def is_literal(atom: Atom) -> TypeGuard[jex.Literal]:
    """Whether an operand is a number of the program text."""
    return isinstance(atom, jex.Literal)


def is_jaxpr(value: object) -> TypeGuard[AnyJaxpr]:
    """Whether a parameter of an equation is a jaxpr."""
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def open_jaxpr(jaxpr: AnyJaxpr) -> tuple[jex.Jaxpr, Sequence[Numeric]]:
    """Split a closed jaxpr into jaxpr and constants."""
    inner: jex.Jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # type: ignore[assignment]
    return inner, getattr(jaxpr, "consts", ())


def jaxpr_function(jaxpr: jex.ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    """Return a closed jaxpr as a function."""
    return jex.jaxpr_as_fun(jaxpr)


def call_body(eqn: Equation) -> AnyJaxpr:
    """Return the jaxpr that a call applies."""
    if OBJECT in eqn.params:
        return _object_body(eqn)
    return eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]


def _object_body(eqn: Equation) -> AnyJaxpr:
    """Trace what a primitive that is an object computes."""
    inner = eqn.params[OBJECT]
    tree = jax.tree_util.tree_structure(inner.in_avals)
    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False))
        for a in map(aval_of, eqn.invars)
    ]
    return jax.make_jaxpr(lambda xs: inner.expand(*tree.unflatten(xs)))(avals)


def as_function(jaxpr: AnyJaxpr) -> Callable[..., Sequence[jax.Array]]:
    """Return a closed jaxpr as a function; what it computes keeps its lines of the user's code."""
    return jex.jaxpr_as_fun(jaxpr)  # type: ignore[arg-type]


def called_jaxprs(eqn: Equation) -> Iterator[AnyJaxpr]:
    """Iterate over all jaxprs among the parameters of an equation."""
    return jex.jaxprs_in_params(eqn.params)


def count_equations(jaxpr: AnyJaxpr) -> int:
    """Count the equations of a jaxpr, and of all that it calls."""
    eqns = open_jaxpr(jaxpr)[0].eqns
    return len(eqns) + sum(count_equations(inner) for eqn in eqns for inner in called_jaxprs(eqn))


def scan_counts(params: Params) -> tuple[int, int]:
    """Return the numbers of constants and of carries of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # In jax 0.11 a scan has flat trees of (consts, carry, xs) and (carry, ys) instead.
    consts, carry = params["ft_in"].unpack()[:2]
    return _tree_size(consts), _tree_size(carry)


def _tree_size(part: Any) -> int:
    return len(part) if hasattr(part, "__len__") else part.num_leaves


def put(value: Numeric) -> jax.Array:
    """Return a value as a JAX array. Unlike `jnp.asarray`, nothing is compiled for it where tracing is suspended."""
    # A copy: JAX may share memory with what it is given.
    return value if isinstance(value, jax.Array) else jax.device_put(np.array(value))


def bind_equation(eqn: Equation, args: Sequence[Numeric]) -> list[jax.Array]:
    """Apply an equation to values (tracers included), all operands given."""
    found = eqn.primitive.get_bind_params(eqn.params)
    # Some versions of JAX return functions besides the parameters.
    functions, params = found if isinstance(found, tuple) else ((), found)
    with eqn.ctx.manager:
        outs = eqn.primitive.bind(*functions, *args, **params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


# Where


def is_library(jaxpr: jex.Jaxpr) -> bool:
    """Whether a jaxpr was traced from a function of JAX or gnewt, not of the user."""
    info = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return any(root in info for root in _LIBRARY_ROOTS)


def made_in(eqn: Equation, path: str, function: str) -> bool:
    """Whether an equation was written by the named function itself, in a file whose path ends so.

    Functions of JAX, and of the module of equinox that wraps derivative rules, are looked through.
    """
    try:
        frames = eqn.source_info.traceback.frames  # type: ignore[union-attr]
    except AttributeError:
        return False
    for frame in frames:
        name = frame.file_name
        if not any(root in name for root in _LIBRARY_ROOTS) and not name.endswith(_WRAPPERS):
            return name.endswith(path) and frame.function_name == function
    return False


def where_of_equation(eqn: Equation | None) -> str:
    """Return `file:line` of the user's code that made an equation; empty where JAX does not know."""
    try:
        frames = eqn.source_info.traceback.frames  # type: ignore[union-attr]
    except AttributeError:
        return ""
    for frame in frames:
        name = frame.file_name
        if not any(root in name for root in _LIBRARY_ROOTS):
            line = getattr(frame, "line_num", None) or getattr(frame, "start_line", 0)
            return f"{os.path.relpath(name) if os.path.isabs(name) else name}:{line}"
    return ""
