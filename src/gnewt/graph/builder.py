"""Graph: the paper's tuple (G, {Φ_v}, {l_v}), written by hand."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from gnewt._errors import GraphError, user_line
from gnewt._typing import Array, ArrayLike, Callable
from gnewt.graph.group import CallGroup, Handle, apply, make_family, output_aval
from gnewt.graph.identity import frozen, function_key, name_of
from gnewt.graph.structure import Structure, check_structure


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
        self._groups: dict[Hashable, CallGroup] = {}
        self._kept: list[object] = []  # keeps functions and closure values alive: keys hold their ids
        self._structure: Structure | None = None
        self._limits: list[tuple[Handle, ArrayLike | None, ArrayLike | None, bool, str]] = []

    # Vertices

    def input(
        self, shape: int | Sequence[int] = (), *, dtype: DTypeLike | None = None, name: str | None = None
    ) -> Handle:
        """Add a decision variable of the given shape (a scalar by default)."""
        shape = (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
        dtype = jnp.dtype(jnp.zeros(()).dtype if dtype is None else dtype)
        name = f"input{len(self._inputs)}" if name is None else name
        if not jnp.issubdtype(dtype, jnp.floating):
            raise GraphError(
                f"input {name} has dtype {dtype}: a Newton step needs real floating-point inputs",
                user_line(),
                "use float64 or float32; pass integers with g.constant",
            )
        if 0 in shape:
            raise GraphError(f"input {name} of shape {shape} is empty", user_line(), "leave it out")
        handle = Handle(self, "input", shape, jax.dtypes.canonicalize_dtype(dtype), name)
        self._inputs.append(handle)
        self._structure = None
        return handle

    def constant(self, value: ArrayLike, *, name: str = "constant") -> Handle:
        """Wrap a value that no derivative is taken of; integers are allowed."""
        # NumPy, not jnp: a graph may be built while JAX traces, and its constants must not become tracers.
        value = value if isinstance(value, jax.Array) else np.asarray(value)
        return Handle(self, "constant", value.shape, jax.dtypes.canonicalize_dtype(value.dtype), name, value)

    def node(
        self, fn: Callable[..., ArrayLike], *args: Handle | ArrayLike, name: str | None = None
    ) -> Handle:
        """Add x_v ← Φ_v(x_pa(v)), with Φ_v = fn, any JAX function that returns one array."""
        handles = self._handles(fn, args)
        group = self._group(fn, handles, is_loss=False)
        if all(h.kind == "constant" for h in handles):
            return self.constant(apply(fn, handles), name=name or group.name)
        return self._add_node([(group, handles)], name)

    def sum(
        self,
        fn: Callable[..., ArrayLike],
        items: Iterable[Handle | ArrayLike | tuple[Handle | ArrayLike, ...]],
        *,
        name: str | None = None,
    ) -> Handle:
        """Add x_v ← Σᵢ fn(itemᵢ): one vertex fed by many places, none of which sees the others.

        An item is the argument of fn, or a tuple of its arguments. Unlike a node with all items as
        arguments, a sum couples no two of them (E7): a star of N inputs keeps width 1.
        """
        calls = [self._handles(fn, item if isinstance(item, tuple) else (item,)) for item in items]
        if not calls:
            raise GraphError("a sum over no items", user_line(), "use g.constant(0.0) for an empty sum")
        groups = [self._group(fn, handles, is_loss=False) for handles in calls]
        if len({(g.out.shape, g.out.dtype) for g in groups}) > 1:
            shapes = sorted({str(g.out.shape) for g in groups})
            raise GraphError(
                f"the terms of a sum have different shapes: {', '.join(shapes)}",
                user_line(),
                "make fn return one shape for every item",
            )
        if all(h.kind == "constant" for handles in calls for h in handles):
            values = [apply(fn, handles) for handles in calls]
            with jax.ensure_compile_time_eval():
                return self.constant(functools.reduce(jnp.add, values), name=name or "sum")
        return self._add_node(list(zip(groups, calls, strict=True)), name)

    def loss(self, fn: Callable[..., ArrayLike], *args: Handle | ArrayLike, name: str | None = None) -> None:
        """Add a term l(...) to the objective; fn returns a scalar."""
        handles = self._handles(fn, args)
        group = self._group(fn, handles, is_loss=True)
        group.calls.append((handles, None, name or f"{group.name} (loss {len(group.calls)})"))
        self._structure = None

    def equal(self, handle: Handle, target: ArrayLike = 0.0) -> None:
        """Ask for vertex = target; `gnewt.minimize` keeps it."""
        self._limit(handle, target, target, True)

    def between(self, handle: Handle, lower: ArrayLike | None = None, upper: ArrayLike | None = None) -> None:
        """Ask for lower ≤ vertex ≤ upper, entry by entry; None and ±inf for no limit."""
        self._limit(handle, lower, upper, False)

    def _limit(
        self, handle: Handle, lower: ArrayLike | None, upper: ArrayLike | None, is_equality: bool
    ) -> None:
        self._own(handle, "a constraint")
        if handle.kind == "constant":
            raise GraphError(f"{handle.name} is a constant: it cannot be constrained", user_line())
        if lower is None and upper is None:
            raise GraphError("a constraint without a limit", user_line(), "give lower, upper, or both")
        self._limits.append((handle, lower, upper, is_equality, user_line()))

    # Reading

    @property
    def limits(self) -> tuple[tuple[Handle, ArrayLike | None, ArrayLike | None, bool, str], ...]:
        """Constraints on vertices: (vertex, lower, upper, whether it is an equality, where it was written)."""
        return tuple(self._limits)

    def structure(self) -> Structure:
        """Return the frozen structure: slots and families. Rebuilt only after an addition."""
        if self._structure is None:
            self._structure = self._build()
        return self._structure

    def __call__(self, values: Sequence[ArrayLike]) -> Array:
        """Evaluate the objective at a list of input values, in order of creation."""
        return self.structure()(list(values))

    def slots(self, handle: Handle) -> np.ndarray:
        """Return the slots of an input or a node, in the shape of its array."""
        self._own(handle, "slots")
        if handle.kind == "constant":
            raise GraphError(f"{handle.name} is a constant: it has no slots")
        before = itertools.takewhile(lambda other: other is not handle, (*self._inputs, *self._nodes))
        start = sum(other.size for other in before)
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
                f"{fn_name} was given {handle!r}, a vertex of another graph",
                user_line(),
                "build both parts in one Graph",
            )

    def _handles(
        self, fn: Callable[..., ArrayLike], args: Iterable[Handle | ArrayLike]
    ) -> tuple[Handle, ...]:
        handles = []
        for arg in args:
            if isinstance(arg, Handle):
                self._own(arg, name_of(fn))
                handles.append(arg)
            elif isinstance(arg, Graph):
                raise GraphError("a Graph was given where a vertex is needed", user_line())
            else:
                handles.append(self.constant(arg))
        return tuple(handles)

    def _group(self, fn: Callable[..., ArrayLike], handles: tuple[Handle, ...], is_loss: bool) -> CallGroup:
        signature = tuple((h.shape, h.dtype, h.kind == "constant") for h in handles)
        fn_key, alive = function_key(fn)
        key = (is_loss, fn_key, signature)
        if key not in self._groups:
            where = user_line()
            out = output_aval(fn, signature, is_loss, where)
            self._groups[key] = CallGroup(frozen(fn), is_loss, signature, out, name_of(fn), where)
            self._kept.append(alive)
        return self._groups[key]

    def _add_node(self, calls: list[tuple[CallGroup, tuple[Handle, ...]]], name: str | None) -> Handle:
        """Add a node that is the sum of these calls."""
        first = calls[0][0]
        name = name or f"{first.name}{len(self._nodes)}"
        handle = Handle(self, "node", first.out.shape, first.out.dtype, name)
        for group, handles in calls:
            group.calls.append((handles, handle, name))
        self._nodes.append(handle)
        self._structure = None
        return handle

    def _build(self) -> Structure:
        if not self._inputs:
            raise GraphError("the graph has no inputs", remedy="add decision variables with g.input(shape)")
        if not any(group.is_loss for group in self._groups.values()):
            raise GraphError(
                "the graph has no loss", remedy="add terms of the objective with g.loss(fn, ...)"
            )
        handles = (*self._inputs, *self._nodes)
        ends = list(itertools.accumulate((h.size for h in handles), initial=0))
        start = dict(zip(handles, ends[:-1], strict=True))
        families, data = [], []
        for group in self._groups.values():
            if group.calls:
                family, columns = make_family(group, start)
                families.append(family)
                data.append(columns)
        avals = tuple(jax.ShapeDtypeStruct(h.shape, h.dtype) for h in self._inputs)
        structure = Structure(
            families=tuple(families),
            num_inputs=sum(h.size for h in self._inputs),
            num_slots=ends[-1],
            in_tree=jax.tree_util.tree_structure([0] * len(self._inputs)),
            in_avals=avals,
            in_names=tuple(h.name for h in self._inputs),
            data=tuple(data),
        )
        check_structure(structure)
        return structure
