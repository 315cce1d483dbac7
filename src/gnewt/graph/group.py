"""Calls of one function with one signature, on the way to a family."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import GraphError, explain_error
from gnewt._typing import Array, Callable
from gnewt.graph.family import Family
from gnewt.graph.identity import name_of
from gnewt.jaxprs import flatten_jaxpr, size_of
from gnewt.jaxprs.compat import DType
from gnewt.jaxprs.liveness import varying_outputs

Signature: TypeAlias = tuple[tuple[tuple[int, ...], DType, bool], ...]
"""For each argument of a function (shape, dtype, is it a constant)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Handle:
    """A vertex of a Graph: an input, a node or a constant."""

    graph: object
    kind: str
    shape: tuple[int, ...]
    dtype: DType
    name: str
    value: Array | None = None
    """The value of a constant; None otherwise."""

    @property
    def size(self) -> int:
        return size_of(self.shape)

    @property
    def known(self) -> Array:
        """The value of a constant."""
        assert self.value is not None
        return self.value

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}: {self.dtype}{list(self.shape)}>"


@dataclasses.dataclass(eq=False)
class CallGroup:
    """Calls of one function with one signature: a family in the making."""

    fn: Callable
    is_loss: bool
    signature: Signature
    out: jax.ShapeDtypeStruct
    name: str
    where: str
    calls: list[tuple[tuple[Handle, ...], Handle | None, str]] = dataclasses.field(default_factory=list)


def make_family(group: CallGroup, start: dict[Handle, int]) -> tuple[Family, tuple[Array, ...]]:
    """Stack the calls of a group: slots of the variable arguments, columns of the constant ones."""
    n = len(group.calls)
    variable = [j for j, (_, _, constant) in enumerate(group.signature) if not constant]
    blocks = []
    for j in variable:
        size = size_of(group.signature[j][0])
        first = np.array([start[handles[j]] for handles, _, _ in group.calls], np.int32)
        blocks.append(first[:, None] + np.arange(size, dtype=np.int32))
    args = np.concatenate(blocks, 1) if blocks else np.zeros((n, 0), np.int32)
    outs = None
    if not group.is_loss:
        first = np.array([start[out] for _, out, _ in group.calls], np.int32)  # type: ignore[index]
        outs = first[:, None] + np.arange(size_of(group.out.shape), dtype=np.int32)
    axes, columns = [], []
    for j, (_, _, constant) in enumerate(group.signature):
        if constant:
            values = [handles[j].known for handles, _, _ in group.calls]
            shared = all(v is values[0] for v in values)
            axes.append(None if shared else 0)
            traced = any(isinstance(v, Tracer) for v in values)
            columns.append(values[0] if shared else (jnp if traced else np).stack(values))
    fn = _flat_function(group.fn, group.signature, group.is_loss)
    k = args.shape[1]
    local = [
        jax.ShapeDtypeStruct(np.shape(c)[axis is not None :], jnp.result_type(c))
        for c, axis in zip(columns, axes, strict=True)
    ]
    family = Family(
        fn=fn,
        args=args,
        outs=outs,
        data_axes=tuple(axes),
        hess_pattern=np.full((k, k), not _is_linear(fn, k, local)),
        name=group.name,
        where=group.where,
        labels=tuple(label for _, _, label in group.calls),
    )
    return family, tuple(columns)


def _is_linear(fn: Callable, k: int, data: list[jax.ShapeDtypeStruct]) -> bool:
    """Whether ∂ψ does not depend on x, by the data flow of its program: then there is no second derivative."""
    try:
        closed = jax.make_jaxpr(jax.jacfwd(fn))(jax.ShapeDtypeStruct((k,), jnp.result_type(float)), *data)
    except Exception:  # what JAX cannot differentiate so is curved until linearisation knows better
        return False
    return not any(varying_outputs(flatten_jaxpr(closed, []), [True] + [False] * len(data)))


def _flat_function(fn: Callable, signature: Signature, is_loss: bool) -> Callable:
    """Wrap fn as ψ(x[k], *data): split x into the variable arguments, take the others from data."""

    def psi(x: Array, *data: Array) -> Array:
        args, at, column = [], 0, iter(data)
        for shape, dtype, constant in signature:
            if constant:
                args.append(next(column))
            else:
                size = size_of(shape)
                args.append(x[at : at + size].reshape(shape).astype(dtype))
                at += size
        y = jnp.asarray(fn(*args))
        return y if is_loss else jnp.ravel(y)

    return psi


def output_aval(fn: Callable, signature: Signature, is_loss: bool, where: str) -> jax.ShapeDtypeStruct:
    """Find shape and dtype of fn's result, refusing what cannot be a node or a loss."""
    out = jax.eval_shape(fn, *[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in signature])
    name = name_of(fn)
    leaves = jax.tree_util.tree_leaves(out)
    if len(leaves) != 1 or not hasattr(out, "shape"):
        raise GraphError(
            explain_error(
                f"{name} returned {len(leaves)} arrays in a {type(out).__name__}",
                where,
                "return one array; add one node for each value, or concatenate them",
            )
        )
    if is_loss and out.shape != ():
        raise GraphError(
            explain_error(
                f"the loss {name} returned shape {out.shape}, not a scalar",
                where,
                "sum it: return jnp.sum(...)",
            )
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise GraphError(
            explain_error(
                f"{name} returned {out.dtype}, not a real floating-point array",
                where,
                "return float; split a complex value into real and imaginary parts",
            )
        )
    if 0 in out.shape:
        raise GraphError(explain_error(f"{name} returned an empty array of shape {out.shape}", where))
    return out


def apply(fn: Callable, handles: tuple[Handle, ...]) -> Array:
    """Evaluate fn on constants now, even while JAX traces something else."""
    with jax.ensure_compile_time_eval():
        return fn(*[jnp.asarray(h.known) for h in handles])
