"""trace_graph and trace_function: the entry points of the stage, and the cache of structures.

Three tiers. Once per structure: lift, fuse, assemble. When something that f captures has changed (or may
have): trace f, compare a structural key. At every call: replay the prelude where captured values are new.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import TraceError, explain_error, user_line
from gnewt._typing import PyTree
from gnewt.graph import Data, Structure, check_family, check_structure
from gnewt.jaxprs import Program, effectful, flatten_jaxpr, is_float, run_program, trace_jaxpr, where_of
from gnewt.trace import call_rules, elementwise_rules, index_rules, loop_rules, sum_rules
from gnewt.trace.captures import fingerprint, same_captures
from gnewt.trace.condense import condense, lift_program
from gnewt.trace.constants import Const, Constants
from gnewt.trace.lift import differentiated_vars

_RULE_MODULES = (call_rules, elementwise_rules, index_rules, loop_rules, sum_rules)
"""Imported for the rules they register."""


@dataclasses.dataclass(eq=False)
class _Entry:
    """One structure in the cache, and how to fill its data columns."""

    structure: Structure
    constants: Constants
    columns: list[tuple[Const, ...]]
    drops: list[tuple[int, ...]]
    replay: Callable[[Sequence[Any], Any], Any]
    """f itself, (captured values, flat inputs) ↦ value: replays the jaxpr, knows nothing of the structure."""
    num_equations: int
    last: tuple[tuple[Any, ...], Data] | None = None
    """Captured values and data of the last concrete call."""

    def data(self, inputs: Sequence[Any]) -> Data | None:
        """Compute the data columns from current values; None if a value that shaped the structure differs."""
        if self.last is not None and _all_same(self.last[0], inputs):
            return self.last[1]
        if any(isinstance(v, Tracer) for v in inputs):
            return self._columns(inputs)
        with jax.ensure_compile_time_eval():  # known values stay known inside jit
            data = self._columns(inputs)
        if data is not None:
            self.last = (tuple(inputs), data)
        return data

    def _columns(self, inputs: Sequence[Any]) -> Data | None:
        values, same = self.constants.run(inputs)
        if not same:
            return None
        return tuple(
            tuple(
                jnp.asarray(values[c.index][0] if d else values[c.index])
                for c, d in zip(columns, drop, strict=True)
            )
            for columns, drop in zip(self.columns, self.drops, strict=True)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A structure with its data at one call, and the function it was read from."""

    structure: Structure
    data: Data
    replay: Callable[[Sequence[Any], Any], Any]
    """(captured values, flat inputs) ↦ f; one object per structure, so that compiled code is reused."""
    captured: list[Any]
    num_equations: int
    """Equations that a replay runs one after the other: what it costs to compile."""


def _replay(
    program: Program, structure: Structure, diff: list[bool], order: list[int], num_hoisted: int
) -> Callable:
    """Make f as a function of captured values and flat inputs, by replaying its jaxpr."""

    def replay(captured: Sequence[Any], x: Any) -> Any:
        leaves = jax.tree_util.tree_leaves(structure.unravel(x))
        moving = dict(zip(order, leaves, strict=True))
        variables, others = iter(moving[i] for i in range(len(leaves))), iter(captured[num_hoisted:])
        args = [next(variables) if d else next(others) for d in diff]
        (value,) = run_program(program, args, captured[:num_hoisted])
        return value.astype(x.dtype)

    return replay


def _all_same(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether captured values are the same immutable objects; NumPy arrays may have been written to."""
    return len(old) == len(new) and all(
        a is b and (isinstance(a, jax.Array) or np.isscalar(a)) for a, b in zip(old, new, strict=True)
    )


_structures: weakref.WeakKeyDictionary[Any, dict[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()
"""Structures by function; an entry dies with its function."""


def _x64() -> bool:
    """Whether JAX computes in 64 bits now."""
    return jax.config.jax_enable_x64  # type: ignore[attr-defined]


class TracedFunction:
    """A JAX function with the structures found for it.

    ```python
    traced = trace_function(f)
    structure, data = traced.structure_for((x,))
    ```
    """

    def __init__(
        self,
        f: Callable,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        rules: dict[str, Any] | None = None,
    ) -> None:
        self.f = f
        self.argnums = argnums if isinstance(argnums, int) else tuple(argnums)
        self.has_aux = has_aux
        self.rules = rules
        store: dict[Any, dict[Any, Any]] = {}
        if rules is None:
            # Without a hash or weak references the cache lives with this object.
            with contextlib.suppress(TypeError):
                store = _structures.setdefault(f, {})
        self._entries = store.setdefault((self.argnums, has_aux), {})
        self._programs: dict[Any, tuple[Any, Program, list[Any]]] = store.setdefault(
            ("programs", self.argnums, has_aux), {}
        )

    def structure_for(self, args: Sequence[Any]) -> tuple[Structure, Data]:
        """Return the structure at these arguments (shapes and dtypes count) and its data now.

        Args:
            args: all positional arguments of f; arrays, tracers or scalars in any pytree.
        """
        found = self.find(args)
        return found.structure, found.data

    def find(self, args: Sequence[Any]) -> Found:
        """Return the structure at these arguments, its data now, and f itself as a function of flat inputs."""
        args = tuple(args)
        chosen = self._chosen(args)
        leaves, tree = jax.tree_util.tree_flatten(args)
        avals = [jax.typeof(leaf) for leaf in leaves]
        diff = self._differentiated(args, chosen)
        self._check_inputs(args, leaves, avals, diff)
        structs = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals
        ]
        weak = tuple(getattr(a, "weak_type", False) for a in avals)
        shapes = (tree, tuple((a.shape, a.dtype) for a in avals), weak, _x64())
        program, hoisted = self._program(shapes, jax.tree_util.tree_unflatten(tree, structs))
        inputs = [*hoisted, *[leaf for leaf, d in zip(leaves, diff, strict=True) if not d]]
        dynamic = tuple(isinstance(v, Tracer) for v in inputs)
        key = (tree, program.key, dynamic, tuple(diff), _x64())
        for entry in self._entries.get(key, []):
            data = entry.data(inputs)
            if data is not None:
                return Found(entry.structure, data, entry.replay, inputs, entry.num_equations)
        entry = self._trace(program, args, chosen, diff, avals, hoisted, inputs)
        self._entries.setdefault(key, []).append(entry)
        data = entry.data(inputs)
        assert data is not None
        return Found(entry.structure, data, entry.replay, inputs, entry.num_equations)

    def _program(self, shapes: Any, structs: Any) -> tuple[Program, list[Any]]:
        """Trace f, unless nothing that it can see has changed since the last time."""
        captures = fingerprint(self.f)
        if shapes in self._programs:
            before, program, hoisted = self._programs[shapes]
            if same_captures(before, captures):
                return program, hoisted
        closed, out = trace_jaxpr(self.f, structs, self.has_aux)
        self._check_outputs(closed, out)
        hoisted = []
        program = flatten_jaxpr(closed, hoisted)
        self._programs.pop(shapes, None)
        # Taken anew: tracing may itself have changed what f sees (a counter).
        captures = fingerprint(self.f)
        if captures is not None and not any(isinstance(v, Tracer) for v in hoisted):
            self._programs[shapes] = (captures, program, hoisted)
        return program, hoisted

    def inputs_of(self, args: Sequence[Any]) -> PyTree:
        """Pick the differentiated arguments, in the form in which a step is returned."""
        if isinstance(self.argnums, int):
            return args[self.argnums]
        return tuple(args[i] for i in self.argnums)

    # Checks

    def _chosen(self, args: tuple[Any, ...]) -> tuple[int, ...]:
        numbers = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        if any(not -len(args) <= i < len(args) for i in numbers):
            raise TraceError(
                explain_error(
                    f"argnums = {self.argnums}, but the function was given {len(args)} arguments",
                    user_line(),
                    "count positional arguments from 0",
                )
            )
        return tuple(i % len(args) for i in numbers)

    @staticmethod
    def _differentiated(args: tuple[Any, ...], chosen: tuple[int, ...]) -> list[bool]:
        return [i in chosen for i, arg in enumerate(args) for _ in jax.tree_util.tree_leaves(arg)]

    def _check_inputs(self, args: Any, leaves: list[Any], avals: list[Any], diff: list[bool]) -> None:
        names = _leaf_names(self.f, args)
        size = 0
        for aval, name, d in zip(avals, names, diff, strict=True):
            if not d:
                continue
            size += int(np.prod(aval.shape, dtype=np.int64))
            if is_float(aval.dtype):
                continue
            if jnp.issubdtype(aval.dtype, jnp.complexfloating):
                remedy = "give its real and imaginary parts as two real inputs"
            else:
                remedy = "convert it to float, or pass it as another argument and leave it out of argnums"
            raise TraceError(
                explain_error(
                    f"input {name} has dtype {aval.dtype}: Newton steps are taken in real numbers",
                    user_line(),
                    remedy,
                )
            )
        if size == 0:
            raise TraceError(
                explain_error(
                    "the inputs are empty: there is nothing to differentiate",
                    user_line(),
                    "give at least one variable",
                )
            )

    def _check_outputs(self, closed: Any, out: Any) -> None:
        leaves = jax.tree_util.tree_leaves(out)
        name = getattr(self.f, "__name__", "the function")
        if len(leaves) != 1 or leaves[0].shape != () or not is_float(leaves[0].dtype):
            found = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing"
            hint = (
                "sum or average it"
                if len(leaves) == 1
                else "return one scalar; use has_aux=True for (value, other results)"
            )
            raise TraceError(
                explain_error(f"{name} returns {found}, not a real scalar", _function_line(self.f), hint)
            )
        eqn = effectful(closed)
        if eqn is not None:
            raise TraceError(
                explain_error(
                    f"{eqn.primitive.name}: {name} has side effects, which an exact graph cannot repeat",
                    where_of(eqn),
                    "remove the print or callback (or move it to a callback of the solver)",
                )
            )

    # Lifting

    def _trace(
        self,
        program: Program,
        args: Any,
        chosen: Any,
        diff: list[bool],
        avals: list[Any],
        hoisted: Any,
        inputs: Any,
    ) -> _Entry:
        in_avals = [a for a, d in zip(avals, diff, strict=True) if d]
        names = [n for n, d in zip(_leaf_names(self.f, args), diff, strict=True) if d]
        wanted = args[chosen[0]] if isinstance(self.argnums, int) else tuple(args[i] for i in chosen)
        # Leaves in the order of argnums, which need not be the order of the arguments.
        order = _leaf_order(args, chosen)
        dtype = jnp.result_type(*[a.dtype for a in in_avals])
        lifter, root = lift_program(program, avals, diff, order, hoisted, inputs, self.rules)
        num_inputs = sum(int(np.prod(a.shape, dtype=np.int64)) for a in in_avals)
        wanted_vars = [v for v, d in zip(program.ins, diff, strict=True) if d]
        if root < 0 or differentiated_vars(program).isdisjoint(wanted_vars):
            self._refuse_constant()
        families, columns, drops, num_slots = condense(lifter, root, num_inputs, dtype)
        if not any(f.k for f in families):
            self._refuse_constant()
        structure = Structure(
            families=tuple(families),
            num_inputs=num_inputs,
            num_slots=num_slots,
            in_tree=jax.tree_util.tree_structure(wanted),
            in_avals=tuple(jax.ShapeDtypeStruct(in_avals[i].shape, in_avals[i].dtype) for i in order),
            in_names=tuple(names[i] for i in order),
        )
        for family in families:
            check_family(family, num_inputs, num_slots)
        replay = _replay(program, structure, diff, order, len(hoisted))
        return _Entry(structure, lifter.constants, columns, drops, replay, len(program.instrs))

    def _refuse_constant(self) -> None:
        name = getattr(self.f, "__name__", "the function")
        raise TraceError(
            explain_error(
                f"the value of {name} does not depend on its inputs",
                _function_line(self.f),
                "check argnums, and that the result is not detached (stop_gradient, integers) everywhere",
            )
        )


def trace_function(f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> TracedFunction:
    """Return f with its cache of structures; the cache is shared by all callers and dies with f."""
    return TracedFunction(f, argnums, has_aux)


def trace_graph(
    f: Callable, *args: PyTree, argnums: int | Sequence[int] = 0, has_aux: bool = False, rules: Any = None
) -> Structure:
    """Find the computational structure of f at arguments of these shapes: slots and families.

    `graph(x) == f(x)`, and `print(graph)` lists families, instances, kept slots and the lines they come from.

    Args:
        f: any JAX function of any pytrees that returns a real scalar.
        *args: its arguments; only those of `argnums` become inputs of the graph.
        argnums: which positional arguments are the variables.
        has_aux: f returns (value, auxiliary data); the latter is ignored here.
        rules: replaces the table of rules (for tests).

    Returns:
        A `Structure` with the current values of everything that f captures.
    """
    structure, data = TracedFunction(f, argnums, has_aux, rules).structure_for(args)
    graph = dataclasses.replace(structure, data=data)
    check_structure(graph)
    return graph


def _leaf_order(args: tuple[Any, ...], chosen: tuple[int, ...]) -> list[int]:
    """Positions of the differentiated leaves (counted in the order of args) in the order of argnums."""
    first, at = {}, 0
    for i, arg in enumerate(args):
        if i in chosen:
            count = len(jax.tree_util.tree_leaves(arg))
            first[i] = list(range(at, at + count))
            at += count
    return [leaf for i in chosen for leaf in first[i]]


def _leaf_names(f: Callable, args: tuple[Any, ...]) -> list[str]:
    try:
        params = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        params = []
    names = []
    for i, arg in enumerate(args):
        name = params[i] if i < len(params) else f"arg{i}"
        names += [name + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(arg)]
    return names


def _function_line(f: Callable) -> str:
    code = getattr(inspect.unwrap(f), "__code__", None)
    return user_line() if code is None else f"{code.co_filename}:{code.co_firstlineno}"
