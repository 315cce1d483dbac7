"""Graph: the paper's tuple (G, {Φ_v}, {l_v}), written by hand."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal

from gnewt._errors import GraphError, explain_error, user_line
from gnewt._typing import Array, Callable
from gnewt.graph.family import Family
from gnewt.graph.structure import Structure, check_structure


@dataclasses.dataclass(frozen=True, eq=False)
class Handle:
    """A vertex of a Graph: an input, a node or a constant."""

    graph: Graph
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    name: str
    value: Any = None
    """The value of a constant; None otherwise."""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}: {self.dtype}{list(self.shape)}>"


@dataclasses.dataclass(eq=False)
class _Group:
    """Calls of one function with one signature: a family in the making."""

    fn: Callable
    is_loss: bool
    signature: tuple[tuple[tuple[int, ...], Any, bool], ...]
    """For each argument (shape, dtype, is it a constant)."""
    out: jax.ShapeDtypeStruct
    name: str
    where: str
    calls: list[tuple[tuple[Handle, ...], Handle | None, str]] = dataclasses.field(default_factory=list)


class Graph:
    """A computational graph G with a function Φ_v for each node and losses l_v.

    ```python
    g = gnewt.Graph()
    u = [g.input((nu,), name=f"u{t}") for t in range(T)]
    x = g.constant(x0)
    for t in range(T):
        g.loss(stage_cost, x, u[t])
        x = g.node(dynamics, x, u[t])
    g.loss(final_cost, x)
    step = gnewt.newton_step(g)(values)     # a list of arrays, like `values`
    ```

    Calls with the same function and shapes become one batched family: pass numbers that vary from call to
    call as arguments (plain arrays are taken as constants), not through closures.
    """

    def __init__(self) -> None:
        self._inputs: list[Handle] = []
        self._nodes: list[Handle] = []
        self._groups: dict[Any, _Group] = {}
        self._kept: list[Any] = []  # keeps functions and closure values alive: keys hold their ids
        self._structure: Structure | None = None

    # Vertices

    def input(self, shape: int | Sequence[int] = (), *, dtype: Any = None, name: str | None = None) -> Handle:
        """Add a decision variable of the given shape (a scalar by default)."""
        shape = (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
        dtype = jnp.dtype(jnp.zeros(()).dtype if dtype is None else dtype)
        name = f"input{len(self._inputs)}" if name is None else name
        if not jnp.issubdtype(dtype, jnp.floating):
            raise GraphError(
                explain_error(
                    f"input {name} has dtype {dtype}: a Newton step needs real floating-point inputs",
                    user_line(),
                    "use float64 or float32; pass integers with g.constant",
                )
            )
        if 0 in shape:
            raise GraphError(
                explain_error(f"input {name} of shape {shape} is empty", user_line(), "leave it out")
            )
        handle = Handle(self, "input", shape, jax.dtypes.canonicalize_dtype(dtype), name)
        self._inputs.append(handle)
        self._structure = None
        return handle

    def constant(self, value: Any, *, name: str = "constant") -> Handle:
        """Wrap a value that no derivative is taken of; integers are allowed."""
        # NumPy, not jnp: a graph may be built while JAX traces, and its constants must not become tracers.
        value = value if isinstance(value, jax.Array) else np.asarray(value)
        return Handle(self, "constant", value.shape, jax.dtypes.canonicalize_dtype(value.dtype), name, value)

    def node(self, fn: Callable, *args: Any, name: str | None = None) -> Handle:
        """Add x_v ← Φ_v(x_pa(v)), with Φ_v = fn, any JAX function that returns one array."""
        handles = self._handles(fn, args)
        group = self._group(fn, handles, is_loss=False)
        if all(h.kind == "constant" for h in handles):
            return self.constant(_apply(fn, handles), name=name or group.name)
        return self._add_node(group, [handles], name)

    def sum(self, fn: Callable, items: Iterable[Any], *, name: str | None = None) -> Handle:
        """Add x_v ← Σᵢ fn(itemᵢ): one vertex fed by many places, none of which sees the others.

        An item is the argument of fn, or a tuple of its arguments. Unlike a node with all items as
        arguments, a sum couples no two of them (E7): a star of N inputs keeps width 1.
        """
        calls = [self._handles(fn, item if isinstance(item, tuple) else (item,)) for item in items]
        if not calls:
            raise GraphError(
                explain_error("a sum over no items", user_line(), "use g.constant(0.0) for an empty sum")
            )
        groups = [self._group(fn, handles, is_loss=False) for handles in calls]
        if len({(g.out.shape, g.out.dtype) for g in groups}) > 1:
            shapes = sorted({str(g.out.shape) for g in groups})
            raise GraphError(
                explain_error(
                    f"the terms of a sum have different shapes: {', '.join(shapes)}",
                    user_line(),
                    "make fn return one shape for every item",
                )
            )
        varying = [i for i, handles in enumerate(calls) if any(h.kind != "constant" for h in handles)]
        if not varying:
            values = [_apply(fn, handles) for handles in calls]
            return self.constant(functools.reduce(jnp.add, values), name=name or "sum")
        handle = self._new_node(groups[0], name)
        for handles, group in zip(calls, groups, strict=True):
            group.calls.append((handles, handle, handle.name))
        return handle

    def loss(self, fn: Callable, *args: Any, name: str | None = None) -> None:
        """Add a term l(...) to the objective; fn returns a scalar."""
        handles = self._handles(fn, args)
        group = self._group(fn, handles, is_loss=True)
        group.calls.append((handles, None, name or f"{group.name} (loss {len(group.calls)})"))
        self._structure = None

    # Reading

    def structure(self) -> Structure:
        """Return the frozen structure: slots and families. Rebuilt only after an addition."""
        if self._structure is None:
            self._structure = self._build()
        return self._structure

    def __call__(self, values: Sequence[Any]) -> Array:
        """Evaluate the objective at a list of input values, in order of creation."""
        return self.structure()(list(values))

    def slots(self, handle: Handle) -> np.ndarray:
        """Return the slots of an input or a node, in the shape of its array."""
        self._own(handle, "slots")
        if handle.kind == "constant":
            raise GraphError(f"{handle.name} is a constant: it has no slots")
        start = 0
        for other in (*self._inputs, *self._nodes):
            if other is handle:
                break
            start += other.size
        return np.arange(start, start + handle.size, dtype=np.int32).reshape(handle.shape)

    @property
    def inputs(self) -> tuple[Handle, ...]:
        return tuple(self._inputs)

    @property
    def nodes(self) -> tuple[Handle, ...]:
        return tuple(self._nodes)

    def __str__(self) -> str:
        return str(self.structure())

    # Building

    def _own(self, handle: Handle, fn_name: str) -> None:
        if handle.graph is not self:
            raise GraphError(
                explain_error(
                    f"{fn_name} was given {handle!r}, a vertex of another graph",
                    user_line(),
                    "build both parts in one Graph",
                )
            )

    def _handles(self, fn: Callable, args: Iterable[Any]) -> tuple[Handle, ...]:
        handles = []
        for arg in args:
            if isinstance(arg, Handle):
                self._own(arg, _name_of(fn))
                handles.append(arg)
            elif isinstance(arg, Graph):
                raise GraphError(explain_error("a Graph was given where a vertex is needed", user_line()))
            else:
                handles.append(self.constant(arg))
        return tuple(handles)

    def _group(self, fn: Callable, handles: tuple[Handle, ...], is_loss: bool) -> _Group:
        signature = tuple((h.shape, h.dtype, h.kind == "constant") for h in handles)
        fn_key, alive = _function_key(fn)
        key = (is_loss, fn_key, signature)
        if key not in self._groups:
            where = user_line()
            out = _output_aval(fn, signature, is_loss, where)
            self._groups[key] = _Group(_frozen(fn), is_loss, signature, out, _name_of(fn), where)
            self._kept.append(alive)
        return self._groups[key]

    def _new_node(self, group: _Group, name: str | None) -> Handle:
        name = name or f"{group.name}{len(self._nodes)}"
        handle = Handle(self, "node", group.out.shape, group.out.dtype, name)
        self._nodes.append(handle)
        self._structure = None
        return handle

    def _add_node(self, group: _Group, calls: list[tuple[Handle, ...]], name: str | None) -> Handle:
        handle = self._new_node(group, name)
        group.calls.extend((handles, handle, handle.name) for handles in calls)
        return handle

    def _build(self) -> Structure:
        if not self._inputs:
            raise GraphError(
                explain_error("the graph has no inputs", remedy="add decision variables with g.input(shape)")
            )
        if not any(group.is_loss for group in self._groups.values()):
            raise GraphError(
                explain_error(
                    "the graph has no loss", remedy="add terms of the objective with g.loss(fn, ...)"
                )
            )
        start: dict[Handle, int] = {}
        at = 0
        for handle in (*self._inputs, *self._nodes):
            start[handle] = at
            at += handle.size
        families, data = [], []
        for group in self._groups.values():
            if group.calls:
                family, columns = _make_family(group, start)
                families.append(family)
                data.append(columns)
        avals = tuple(jax.ShapeDtypeStruct(h.shape, h.dtype) for h in self._inputs)
        structure = Structure(
            families=tuple(families),
            num_inputs=sum(h.size for h in self._inputs),
            num_slots=at,
            in_tree=jax.tree_util.tree_structure([0] * len(self._inputs)),
            in_avals=avals,
            in_names=tuple(h.name for h in self._inputs),
            data=tuple(data),
        )
        check_structure(structure)
        return structure


def _make_family(group: _Group, start: dict[Handle, int]) -> tuple[Family, tuple[Any, ...]]:
    """Stack the calls of a group: slots of the variable arguments, columns of the constant ones."""
    n = len(group.calls)
    variable = [j for j, (_, _, constant) in enumerate(group.signature) if not constant]
    blocks = []
    for j in variable:
        size = int(np.prod(group.signature[j][0], dtype=np.int64))
        first = np.array([start[handles[j]] for handles, _, _ in group.calls], np.int32)
        blocks.append(first[:, None] + np.arange(size, dtype=np.int32))
    args = np.concatenate(blocks, 1) if blocks else np.zeros((n, 0), np.int32)
    outs = None
    if not group.is_loss:
        first = np.array([start[out] for _, out, _ in group.calls], np.int32)  # type: ignore[index]
        outs = first[:, None] + np.arange(int(np.prod(group.out.shape, dtype=np.int64)), dtype=np.int32)
    axes, columns = [], []
    for j, (_, _, constant) in enumerate(group.signature):
        if constant:
            values = [handles[j].value for handles, _, _ in group.calls]
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
        jaxpr = jax.make_jaxpr(jax.jacfwd(fn))(
            jax.ShapeDtypeStruct((k,), jnp.result_type(float)), *data
        ).jaxpr
    except Exception:  # what JAX cannot differentiate so is curved until linearisation knows better
        return False
    moving = set(jaxpr.invars[:1])
    for eqn in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in moving for atom in eqn.invars):
            moving.update(eqn.outvars)
    return not any(not isinstance(atom, Literal) and atom in moving for atom in jaxpr.outvars)


def _flat_function(fn: Callable, signature: tuple[Any, ...], is_loss: bool) -> Callable:
    """Wrap fn as ψ(x[k], *data): split x into the variable arguments, take the others from data."""

    def psi(x: Array, *data: Any) -> Array:
        args, at, column = [], 0, iter(data)
        for shape, dtype, constant in signature:
            if constant:
                args.append(next(column))
            else:
                size = int(np.prod(shape, dtype=np.int64))
                args.append(x[at : at + size].reshape(shape).astype(dtype))
                at += size
        y = jnp.asarray(fn(*args))
        return y if is_loss else jnp.ravel(y)

    return psi


def _output_aval(fn: Callable, signature: tuple[Any, ...], is_loss: bool, where: str) -> jax.ShapeDtypeStruct:
    """Find shape and dtype of fn's result, refusing what cannot be a node or a loss."""
    out = jax.eval_shape(fn, *[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in signature])
    name = _name_of(fn)
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


def _apply(fn: Callable, handles: tuple[Handle, ...]) -> Any:
    """Evaluate fn on constants now, even while JAX traces something else."""
    with jax.ensure_compile_time_eval():
        return fn(*[jnp.asarray(h.value) for h in handles])


def _name_of(fn: Callable) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def _function_key(fn: Callable) -> tuple[Any, Any]:
    """Identify a function by its code and what it closes over, so that a lambda made anew in a loop is
    the same function if (and only if) its closure holds the same objects. Returns (key, objects to keep)."""
    if isinstance(fn, functools.partial):
        inner, alive = _function_key(fn.func)
        bound = (*fn.args, *sorted(fn.keywords.items()))
        return ("partial", inner, tuple(_value_key(v) for v in fn.args), _items_key(fn.keywords)), (
            alive,
            bound,
        )
    if getattr(fn, "__self__", None) is not None and hasattr(fn, "__func__"):
        return ("method", id(fn.__func__), id(fn.__self__)), (fn,)  # type: ignore[attr-defined]
    if not isinstance(fn, types.FunctionType):
        return ("object", id(fn)), fn
    captured = (*_cells(fn), *(fn.__defaults__ or ()))
    keywords = fn.__kwdefaults__ or {}
    key = (
        "code",
        id(fn.__code__),
        id(fn.__globals__),
        tuple(_value_key(v) for v in captured),
        _items_key(keywords),
    )
    return key, (fn, captured, keywords)


def _frozen(fn: Callable) -> Callable:
    """Copy a function with the present contents of its closure: a loop variable may change before it runs."""
    if not isinstance(fn, types.FunctionType) or not fn.__closure__:
        return fn
    contents = _cells(fn)
    if len(contents) == 1 and contents[0] is fn:
        return fn
    cells = tuple(types.CellType(value) for value in contents)
    copy = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _cells(fn: types.FunctionType) -> tuple[Any, ...]:
    try:
        return tuple(c.cell_contents for c in (fn.__closure__ or ()))
    except ValueError:  # a cell that is not filled yet, as in a recursive definition
        return (fn,)


def _items_key(items: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, _value_key(v)) for name, v in items.items()))


def _value_key(value: Any) -> Any:
    return (
        (type(value).__name__, repr(value))
        if isinstance(value, bool | int | float | str | type(None))
        else ("id", str(id(value)))
    )
