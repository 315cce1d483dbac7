"""trace_graph and trace_function: the entry points of the stage.

Two tiers. At every call: trace f to a jaxpr, as `jax.grad` would, look its structure up by the content of the jaxpr,
and replay the prelude where captured values are new. Once per structure: lift, fuse, assemble.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from gnewt._errors import ConstantError, EffectNotice, TraceError, explain_error, user_line
from gnewt._typing import Argument, PyTree
from gnewt._waiting import waiting
from gnewt.graph import Data, Structure, check_family, check_structure
from gnewt.jaxprs import (
    Lit,
    Program,
    effectful,
    flatten_jaxpr,
    has_branches,
    is_check,
    is_float,
    plain_jaxpr,
    trace_jaxpr,
    where_of,
)
from gnewt.jaxprs.compat import AnyJaxpr, Equation, where_of_equation
from gnewt.jaxprs.liveness import drop_dead
from gnewt.trace import (
    branch_rules,
    call_rules,
    cumulative_rules,
    elementwise_rules,
    index_rules,
    loop_rules,
    reduction_rules,
    sum_rules,
)
from gnewt.trace.arguments import (
    Untraceable,
    as_argnums,
    call,
    chosen_args,
    parameters,
    run_abstractly,
    take_apart,
    unknown_as_nan,
)
from gnewt.trace.auxiliary import Aux, Keep, split_aux
from gnewt.trace.cache import StructureCache, structures
from gnewt.trace.condense import Source, condense_lifted, lift_program
from gnewt.trace.entry import Entry, Found, fill_columns
from gnewt.trace.forms import Arguments, Form, definition
from gnewt.trace.lift import Distrust, Seen, differentiated_vars
from gnewt.trace.outputs import find_outputs
from gnewt.trace.precision import refuse_half_precision
from gnewt.trace.readings import Reading, precision
from gnewt.trace.replays import ProgramReplay

_RULE_MODULES = (
    branch_rules,
    call_rules,
    cumulative_rules,
    elementwise_rules,
    index_rules,
    loop_rules,
    reduction_rules,
    sum_rules,
)
"""Imported for the rules they register."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Read:
    """f as a program at arguments of some shapes, at one call."""

    program: Program
    """Its outputs: the objective, then the traced leaves of the auxiliary data."""
    hoisted: list[ArrayLike]
    """Captured values."""
    aux: Aux | None
    dropped: Sequence[Equation] = ()
    """Prints and callbacks that were left out."""


class TracedFunction:
    """A JAX function, to be seen as a structure at given arguments.

    ```python
    traced = trace_function(f)
    structure, data = traced.structure_for((x,))
    ```
    """

    def __init__(
        self,
        f: Callable,
        argnums: Argument[int | Sequence[int]] = 0,
        has_aux: bool = False,
        rules: dict[str, Callable[..., object]] | None = None,
        keep: bool | str | Sequence[str] = (),
    ) -> None:
        self.f = f
        self.argnums = as_argnums(argnums)
        self.has_aux = has_aux
        self.rules = rules
        self.keep: Keep = (
            keep if isinstance(keep, bool) else (keep,) if isinstance(keep, str) else tuple(keep)
        )
        if self.keep and not has_aux:
            raise TraceError(
                explain_error(
                    "keep is for auxiliary data, and has_aux is False",
                    _function_line(f),
                    "return (value, data) and use has_aux=True",
                )
            )
        self.cache = structures if rules is None else StructureCache()
        self._closes = False
        """Whether f needs to know its other arguments when it is traced."""

    def structure_for(
        self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree] | None = None
    ) -> tuple[Structure, Data]:
        """Return the structure at these arguments (shapes and dtypes count) and its data now.

        Args:
            args: all positional arguments of f; arrays, tracers or scalars in any pytree.
            kwargs: its keyword arguments. They are never differentiated, as in `jax.grad`.
        """
        found = self.find(args, kwargs)
        return found.structure, found.data

    def find(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree] | None = None) -> Found:
        """Return the structure at these arguments, its data now, and f itself as a function of flat inputs.

        Numbers and arrays outside `argnums` are data: other values of them need no other structure. Where f
        cannot be traced so (`range(n)`, `if flag`), they are constants, as they are for `jax.grad`.
        """
        chosen = chosen_args(self.argnums, len(args))
        parts = take_apart(args, kwargs or {}, chosen, self._closes)
        try:
            return self._find(parts, chosen)
        except Untraceable as error:
            closed = take_apart(args, kwargs or {}, chosen, close=True)
            if len(jax.tree_util.tree_leaves(closed)) == len(jax.tree_util.tree_leaves(parts)):
                raise error.reason from None
        try:
            found = self._find(closed, chosen)
        except Untraceable as error:
            raise error.reason from None
        self._closes = True
        return found

    def _find(self, args: tuple[PyTree, ...], chosen: tuple[int, ...]) -> Found:
        """`find`, of arguments that were taken apart."""
        given = Arguments(args, chosen)
        signature = (given.signature(), self._options, precision())
        known = [] if signature[0] is None else self.cache.recall(signature)
        form = known[0].form if known else given.form(self.f, self.inputs_of(args[:-1]))
        read, reading = self._read(given, form, known)
        others = [leaf for leaf, d in zip(given.values, form.diff, strict=True) if not d]
        captured = [_own(v) for v in [*read.hoisted, *others]]
        source = Source(form.leaves, form.diff, form.order, len(read.hoisted))

        def make() -> Entry:
            bare = dataclasses.replace(read, hoisted=[])  # an entry keeps no values, which may be tracers
            name, size = getattr(self.f, "__name__", "the function"), len(read.program.instrs)
            with waiting(f"finding the structure of {name} ({size} operations)"):
                return self._trace(bare, source, form.names, form.in_tree, captured)

        if not read.program.repeatable:
            found = make().find(captured)
            assert found is not None
            return found
        # Two functions of equal content share a structure if they name their inputs alike and begin at the same line,
        # so that messages name what the user wrote.
        options = (self.argnums, self.keep, tuple(form.diff), precision(), form.names, self._options[-1])
        dynamic = tuple(isinstance(v, Tracer) for v in captured)
        key = (form.in_tree, read.program.key, read.aux, dynamic, options)
        found = self.cache.find(key, captured, make)
        if reading is not None and signature[0] is not None:
            reading.program.key = self.cache.kept(key)[1]
            self.cache.remember(signature, key, reading)
        return found

    @cached_property
    def _options(self) -> tuple[Hashable, ...]:
        return self.argnums, self.keep, self.has_aux, tuple(parameters(self.f)), definition(self.f)

    def _read(self, given: Arguments, form: Form, known: Sequence[Reading]) -> tuple[_Read, Reading | None]:
        """Trace f, always: it may see anything. Also return what is worth remembering of it."""
        f = partial(call, self.f) if given.fixes else lambda *parts: self.f(*parts[:-1], **parts[-1])
        f, seen = split_aux(f, _function_line(self.f)) if self.has_aux else (f, [])
        try:
            closed, out = trace_jaxpr(f, given.args)
        except Exception as error:
            raise Untraceable(error) from None
        aux = seen[0] if seen else None
        for reading in known:
            captured = reading.recognize(closed, aux)
            if captured is not None:
                return _Read(reading.program, captured, aux), None
        plain, dropped = plain_jaxpr(closed)
        self._check_outputs(plain, out[0] if self.has_aux else out)
        hoisted: list[ArrayLike] = []
        program = flatten_jaxpr(plain, hoisted)
        reading = None
        if program.repeatable and plain is closed:
            reading = Reading(form, program, aux).repeated(closed, known)
        return _Read(program, hoisted, aux, dropped), reading

    def inputs_of(self, args: Sequence[PyTree]) -> PyTree:
        """Pick the differentiated arguments, in the form in which a step is returned."""
        if isinstance(self.argnums, int):
            return args[self.argnums]
        return tuple(args[i] for i in self.argnums)

    def _check_outputs(self, closed: AnyJaxpr, out: PyTree) -> None:
        leaves = jax.tree_util.tree_leaves(out)
        name = getattr(self.f, "__name__", "the function")
        if len(leaves) != 1 or leaves[0].shape != () or not is_float(leaves[0].dtype):
            found = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing"
            hint = "return one scalar; use has_aux=True for (value, other results)"
            if len(leaves) == 1:
                hint = (
                    "sum or average it" if leaves[0].shape else "return a real number, such as its real part"
                )
            raise TraceError(
                explain_error(f"{name} returns {found}, not a real scalar", _function_line(self.f), hint)
            )
        eqn = effectful(closed)
        if eqn is not None:
            raise TraceError(
                explain_error(
                    f"{eqn.primitive.name}: the value of {name} depends on a side effect, which an exact graph cannot repeat",
                    where_of(eqn),
                    "compute it without the callback or the mutable reference, or pass its result as an argument",
                )
            )

    # Lifting

    def _trace(
        self,
        read: _Read,
        source: Source,
        names: Sequence[str],
        in_tree: Any,
        captured: Sequence[ArrayLike],
        distrust: Distrust = frozenset(),
    ) -> Entry:
        """Make the structure of the objective; auxiliary data plays no part in it but for what is kept."""
        if read.dropped:
            _note_dropped(read.dropped)
        program = _part(read.program, read.program.outs[:1])
        aux = read.program.outs[1:]
        kept = read.aux.kept(self.keep, _function_line(self.f)) if read.aux is not None else []
        # Integers and booleans cannot be slots.
        kept = [flag and is_float(read.program.aval(v).dtype) for v, flag in zip(aux, kept, strict=True)]
        asked = [v for v, flag in zip(aux, kept, strict=True) if flag]
        lifted = _part(read.program, [*program.outs, *asked]) if asked else program
        seen = None if read.aux is None else Seen(bool(asked))
        lifter, ids = lift_program(lifted, source, captured, self.rules, seen, distrust)
        moving = [v for v, d in zip(program.ins, source.diff, strict=True) if d]
        if ids[0][0] < 0 or differentiated_vars(program).isdisjoint(moving):
            self._refuse_constant()
        refuse_half_precision(program, moving)
        variables = source.variables
        num_inputs = sum(int(np.prod(a.shape, dtype=np.int64)) for a in variables)
        dtype = jnp.result_type(*[a.dtype for a in variables])
        lifter, condensed = condense_lifted(lifter, ids, num_inputs, dtype)
        if not any(f.k for f in condensed.families):
            self._refuse_constant()
        outputs = None
        if read.aux is not None:
            outputs = read.aux.outputs(find_outputs(lifter, read.program, aux, condensed.numbering))
        structure = Structure(
            families=tuple(condensed.families),
            num_inputs=num_inputs,
            num_slots=condensed.num_slots,
            in_tree=in_tree,
            in_avals=tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in variables),
            in_names=tuple(names[i] for i in source.order),
            outputs=outputs,
        )
        for family in condensed.families:
            check_family(family, num_inputs, condensed.num_slots)
        replay = ProgramReplay(program, structure, source, lifter)

        def remake(captured: Sequence[ArrayLike], distrust: Distrust) -> Entry:
            return self._trace(read, source, names, in_tree, captured, distrust)

        branches, repeatable = has_branches(program), read.program.repeatable
        fill = partial(fill_columns, condensed)
        return Entry(structure, fill, replay, len(program.instrs), branches, remake, repeatable)

    def _refuse_constant(self) -> None:
        name = getattr(self.f, "__name__", "the function")
        raise ConstantError(
            f"the value of {name} does not depend on its inputs",
            _function_line(self.f),
            "check argnums, and that the result is not detached (stop_gradient, integers, rounding) everywhere",
        )


def trace_function(
    f: Callable,
    argnums: Argument[int | Sequence[int]] = 0,
    has_aux: bool = False,
    keep: bool | str | Sequence[str] = (),
) -> TracedFunction:
    """Return f, to be seen as a structure; structures are shared by all callers."""
    return TracedFunction(f, argnums, has_aux, keep=keep)


def trace_graph(
    f: Callable[..., PyTree],
    *args: PyTree,
    argnums: Argument[int | Sequence[int]] = 0,
    kwargs: Mapping[str, PyTree] | None = None,
    has_aux: bool = False,
    keep: bool | str | Sequence[str] = (),
    rules: dict[str, Callable[..., object]] | None = None,
) -> Structure:
    """Find the computational structure of f at arguments of these shapes: slots and families.

    `graph(x) == f(x)`, and `print(graph)` lists families, instances, kept slots and the lines they come from.

    Args:
        f: any JAX function of any pytrees that returns a real scalar.
        *args: its arguments; only those of `argnums` become inputs of the graph. A `jax.ShapeDtypeStruct` will do; data of
            the graph that depend on one outside `argnums` are NaN.
        argnums: which positional arguments are the variables.
        kwargs: keyword arguments of f.
        has_aux: f returns (value, auxiliary data). `graph.outputs` then says which slots hold the auxiliary data.
            The data plays no further part: slots and families are those of the value.
        keep: which entries of the auxiliary data must be slots: names, where the data is a dict, or True for all of it.
            Constants stay constants; integers and booleans cannot be slots.
        rules: replaces the table of rules (for tests).

    Returns:
        A `Structure` with the current values of everything that f captures.
    """
    traced = TracedFunction(f, argnums, has_aux, rules, keep)
    structure, data = run_abstractly(traced.structure_for, args, kwargs)
    data = jax.tree_util.tree_map(unknown_as_nan, data)
    graph = dataclasses.replace(structure, data=data)
    check_structure(graph)
    return graph


def _part(program: Program, outs: Sequence[int | Lit]) -> Program:
    """The part of a program that some of its outputs need."""
    part = dataclasses.replace(program, outs=list(outs))
    drop_dead(part)
    return part


_LEFT_OUT = (
    (False, "side effects whose results nobody reads are left out of the graph", "to see them"),
    (
        True,
        "checks that raise are left out, and the step goes on where they fail",
        "to run them",
    ),
)


def _note_dropped(eqns: Sequence[Equation]) -> None:
    """Say once per structure that a function's prints are not repeated, and that its checks do not raise."""
    for are_checks, what, purpose in _LEFT_OUT:
        found = [eqn for eqn in eqns if is_check(eqn) is are_checks]
        if not found:
            continue
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        warnings.warn(
            explain_error(
                f"{'error_if' if are_checks else found[0].primitive.name}{more}: {what}",
                where_of_equation(found[0], "/equinox/") or user_line(),
                f"call the function itself {purpose}",
            ),
            EffectNotice,
            stacklevel=2,
        )


def _own(value: ArrayLike) -> ArrayLike:
    """Copy what may be written to before a result of this call is asked for its residual."""
    return value if isinstance(value, jax.Array | int | float | complex | np.generic) else np.array(value)


def _function_line(f: Callable) -> str:
    code = getattr(inspect.unwrap(f), "__code__", None)
    return user_line() if code is None else f"{code.co_filename}:{code.co_firstlineno}"
