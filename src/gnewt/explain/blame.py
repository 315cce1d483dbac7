"""Which line of the user's function makes the tree wide: found by taking the line out, and planning again.

Only lines that join many numbers to few (sums, products of matrices, extrema, linear algebra) can be at fault. For each of
them the function is traced once more with the results of the line as constants. What then becomes narrow names its cause.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnewt._errors import GnewtError
from gnewt._typing import PyTree
from gnewt.jaxprs.compat import (
    AnyJaxpr,
    Equation,
    bind_equation,
    called_jaxprs,
    count_equations,
    is_jaxpr,
    is_literal,
    open_jaxpr,
    primitive_name,
    scan_counts,
    where_of_equation,
)

_JOINING = {
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_window_sum", "reduce_window_max"),
    *(
        "dot_general",
        "conv_general_dilated",
        "sort",
        "fft",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "cumlogsumexp",
    ),
    *(
        "cholesky",
        "triangular_solve",
        "lu",
        "qr",
        "svd",
        "eigh",
        "schur",
        "linear_solve",
        "custom_linear_solve",
    ),
}
"""Primitives that join many numbers."""
_SUMS = {
    *(
        "add",
        "sub",
        "add_any",
        "neg",
        "reduce_sum",
        "convert_element_type",
        "squeeze",
        "reshape",
        "broadcast_in_dim",
    ),
    "copy",
}
"""Primitives that add up, or pass on."""
_WORDS = {"reduce_sum": "sum", "reduce_max": "maximum", "reduce_min": "minimum", "reduce_prod": "product"}
_MOST_LINES = 6
"""Lines that are tried: each costs a trace and a plan."""
_MOST_EQUATIONS = 3000
"""Equations of a function beyond which lines are not tried: tracing it again would take long."""


@dataclasses.dataclass(frozen=True)
class Suspect:
    """A line that joins many numbers."""

    where: str
    what: str
    joined: int
    """Numbers that one execution joins."""
    rounds: int
    """How many times it runs, as a member of loops."""


@dataclasses.dataclass(frozen=True)
class Blame:
    """A line without which the tree would be narrower."""

    suspect: Suspect
    width: int
    flops: float
    """Width and flops without the line."""


@dataclasses.dataclass(frozen=True)
class Line:
    """What is taken out: joining equations of a line, but for those that are only summed into the objective."""

    where: str
    spared: frozenset[int]
    """Of equations, by identity."""

    def has(self, eqn: Equation) -> bool:
        joins = primitive_name(eqn) in _JOINING and id(eqn) not in self.spared
        return joins and where_of_equation(eqn) == self.where


def summed(jaxpr: AnyJaxpr) -> frozenset[int]:
    """Equations whose results are only added up and scaled on their way to the results of a jaxpr: they couple nothing."""
    inner = open_jaxpr(jaxpr)[0]
    tail, read, found = set(inner.outvars), set[Any](), set[int]()
    for eqn in reversed(inner.eqns):
        operands = [v for v in eqn.invars if not is_literal(v)]
        name = primitive_name(eqn)
        is_sum = name in _SUMS or (name in ("mul", "div") and len(operands) == 1)
        if is_sum and all(v in tail and v not in read for v in eqn.outvars):
            tail.update(operands)
            found.add(id(eqn))
        else:
            read.update(operands)
    return frozenset(found)


def find_suspects(jaxpr: AnyJaxpr, spared: frozenset[int]) -> list[Suspect]:
    """List the lines of a jaxpr that join numbers, those that join most first."""
    found: dict[str, Suspect] = {}
    words: dict[str, list[str]] = {}

    def walk(inner: AnyJaxpr, rounds: int) -> None:
        for eqn in open_jaxpr(inner)[0].eqns:
            name, where = primitive_name(eqn), where_of_equation(eqn)
            if Line(where, spared).has(eqn) and where:
                size = max((math.prod(v.aval.shape) for v in eqn.invars), default=0)  # type: ignore[attr-defined]
                known = found.get(where)
                words.setdefault(where, []).append(_WORDS.get(name, name))
                if size > 1 and (known is None or size * rounds > known.joined * known.rounds):
                    found[where] = Suspect(where, "", size, rounds)
            times = int(eqn.params.get("length", 1)) if name == "scan" else 1
            for body in called_jaxprs(eqn):
                walk(body, rounds * times)

    walk(jaxpr, 1)
    named = [dataclasses.replace(s, what=" and ".join(dict.fromkeys(words[s.where]))) for s in found.values()]
    ranked = sorted(named, key=lambda s: (-min(s.rounds, 2), -s.joined))
    return ranked[:_MOST_LINES]


def without_line(jaxpr: AnyJaxpr, line: Line) -> Callable[..., list[Any]]:
    """Return the function of a jaxpr with what a line joins as constants: its integers count, its values do not."""

    def run(*args: Any) -> list[Any]:
        return _evaluate(jaxpr, args, line)

    return run


def _evaluate(jaxpr: AnyJaxpr, args: Sequence[Any], line: Line) -> list[Any]:
    inner, consts = open_jaxpr(jaxpr)
    values: dict[Any, Any] = dict(zip(inner.constvars, consts, strict=True))
    values.update(zip(inner.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    for eqn in inner.eqns:
        given = [read(v) for v in eqn.invars]
        values.update(zip(eqn.outvars, _apply(eqn, given, line), strict=True))
    return [read(v) for v in inner.outvars]


def _apply(eqn: Equation, given: list[Any], line: Line) -> Sequence[Any]:
    name = primitive_name(eqn)
    if line.has(eqn):
        return [jnp.ones(v.aval.shape, v.aval.dtype) for v in eqn.outvars]  # type: ignore[attr-defined]
    if name in ("pjit", "jit", "closed_call", "checkpoint", "remat2", "remat") and is_jaxpr(
        eqn.params.get("jaxpr")
    ):
        return _evaluate(eqn.params["jaxpr"], given, line)
    if name == "scan":
        return _scan(eqn, given, line)
    return bind_equation(eqn, given)


def _scan(eqn: Equation, given: list[Any], line: Line) -> Sequence[Any]:
    params = eqn.params
    num_consts, num_carry = scan_counts(params)
    consts = given[:num_consts]
    carry, xs = given[num_consts : num_consts + num_carry], given[num_consts + num_carry :]

    def body(held: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = _evaluate(params["jaxpr"], [*consts, *held, *x], line)
        types = [jnp.result_type(v) for v in held]
        return [jnp.asarray(v, t) for v, t in zip(outs[:num_carry], types, strict=True)], outs[num_carry:]

    last, stacked = jax.lax.scan(body, carry, xs, length=params["length"], reverse=params["reverse"])
    return [*last, *stacked]


def blame_lines(
    function: Callable[..., PyTree],
    args: Sequence[PyTree],
    kwargs: Mapping[str, PyTree],
    measure: Callable[[Callable[..., Any]], tuple[int, float, int]],
    width: int,
) -> list[Blame]:
    """Find the lines without which the width would be much smaller.

    Args:
        measure: width, flops and number of inputs that are read, of an objective with the same arguments.
        width: of the objective as it is.
    """
    jaxpr, shape = jax.make_jaxpr(lambda *a: function(*a, **kwargs), return_shape=True)(*args)
    tree = jax.tree_util.tree_structure(shape)
    if count_equations(jaxpr) > _MOST_EQUATIONS:
        return []
    everything = measure(function)[2]
    blamed = []
    spared = summed(jaxpr)
    for suspect in find_suspects(jaxpr, spared):
        bare = without_line(jaxpr, Line(suspect.where, spared))

        def changed(*a: PyTree, _bare: Callable[..., list[Any]] = bare, **_: PyTree) -> PyTree:
            return jax.tree_util.tree_unflatten(tree, _bare(*jax.tree_util.tree_leaves(a)))

        try:
            narrow, flops, read = measure(changed)
        except (GnewtError, TypeError, ValueError):
            continue  # the line is needed for the program to make sense
        if 3 * (narrow + 1) <= 2 * (width + 1) and 2 * read > everything:
            blamed.append(Blame(suspect, narrow, flops))
    return sorted(blamed, key=lambda b: b.flops)
