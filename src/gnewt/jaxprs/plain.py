"""Plain jaxprs: what values do not need is removed, what libraries add is replaced by what it computes.

In: a closed jaxpr. Out: one with the same values, and the prints and checks that were left out. Three kinds of equation go:

- prints and callbacks whose results nobody reads (`jax.debug.print`, `jax.debug.callback`, `io_callback`);
- hints of equinox (under vmap a predicate is shared, a value must not be batched): each becomes a call of its own
  implementation. `equinox.error_if`, a conditional between its operands and a callback that raises, becomes the operands;
- derivative rules of equinox that are those of the function itself: of `error_if`, and of loops with checkpoints, whose rule
  saves memory in reverse mode and has no second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from gnewt.jaxprs import compat
from gnewt.jaxprs.compat import AnyJaxpr, Equation, primitive_name

_PRINTS = frozenset({"DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect"})
"""Effects that the values of a program do not depend on, by the name of their type."""
_HINTS = frozenset(
    {"nonbatchable", "nontraceable", "nondifferentiable_backward", "unvmap_any", "unvmap_all", "unvmap_max"}
    | {"select_if_vmap", "maybe_set", "noinline"}
)
"""Primitives of equinox that matter to vmap and to its own loops alone; their derivatives are those of what they compute."""


_LOOPS = "equinox/internal/_loop/checkpointed.py"
_OWN_DERIVATIVES = {
    ("custom_jvp_call", True): ("equinox/_errors.py", "_error"),
    ("custom_jvp_call", False): (_LOOPS, "checkpointed_while_loop"),
    ("custom_vjp_call", True): (_LOOPS, "_checkpointed_while_loop"),
}
"""(Call, whether its body has equations) → function of equinox which writes calls whose derivatives are those of the body."""


def plain_jaxpr(jaxpr: AnyJaxpr) -> tuple[AnyJaxpr, list[Equation]]:
    """Return the jaxpr without prints and hints, and the prints that were left out."""
    dropped: list[Equation] = []
    return _plain(jaxpr, dropped), dropped


def _plain(jaxpr: AnyJaxpr, dropped: list[Equation]) -> Any:
    """The same object where nothing changes."""
    opened: Any = compat.open_jaxpr(jaxpr)[0]
    read = {v for eqn in opened.eqns for v in eqn.invars if not compat.is_literal(v)}
    read.update(v for v in opened.outvars if not compat.is_literal(v))
    eqns = [new for eqn in opened.eqns if (new := _equation(eqn, read, dropped)) is not None]
    if len(eqns) == len(opened.eqns) and all(a is b for a, b in zip(eqns, opened.eqns, strict=True)):
        return jaxpr
    left = {name for eqn in eqns for name in _effect_names(eqn)}
    effects = {e for e in opened.effects if type(e).__name__ not in _PRINTS - left}
    opened = opened.replace(eqns=eqns, effects=effects)
    return jaxpr.replace(jaxpr=opened) if hasattr(jaxpr, "jaxpr") else opened  # type: ignore[union-attr]


def _equation(eqn: Any, read: Collection[object], dropped: list[Equation]) -> Any:
    """Return what stands in the place of an equation: itself, another one, or None."""
    name = primitive_name(eqn)
    calls = any(True for _ in compat.called_jaxprs(eqn))
    if not calls and _is_print(eqn) and not any(v in read for v in eqn.outvars):
        dropped.append(eqn)
        return None
    if name in _HINTS:
        return _implemented(eqn, dropped)
    if not calls:
        return eqn
    if name in ("custom_jvp_call", "custom_vjp_call") and _has_own_derivatives(name, eqn):
        return _called(eqn, compat.as_function(compat.call_body(eqn)), eqn.invars, dropped)
    params = {key: _parameter(value, dropped) for key, value in eqn.params.items()}
    if name == "cond":
        branches = params["branches"]
        params["branches"] = _without_checks(params["branches"])
        if params["branches"] is not branches:
            dropped.append(eqn)
        if _all_pass_on_the_same(params["branches"]):
            return _called(eqn, compat.as_function(params["branches"][0]), eqn.invars[1:], dropped)
    if all(params[key] is value for key, value in eqn.params.items()):
        return eqn
    left = {
        name for sub in _jaxprs(params) for e in compat.open_jaxpr(sub)[0].eqns for name in _effect_names(e)
    }
    effects = {e for e in eqn.effects if type(e).__name__ not in _PRINTS - left}
    return eqn.replace(params=params, effects=effects)


def _parameter(value: Any, dropped: list[Equation]) -> Any:
    if compat.is_jaxpr(value):
        return _plain(value, dropped)
    if isinstance(value, tuple | list) and any(compat.is_jaxpr(v) for v in value):
        parts = [_parameter(v, dropped) for v in value]
        same = all(a is b for a, b in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    return value


def _jaxprs(params: dict[str, Any]) -> list[AnyJaxpr]:
    flat = [v for value in params.values() for v in (value if isinstance(value, tuple | list) else (value,))]
    return [v for v in flat if compat.is_jaxpr(v)]


def _effect_names(eqn: Equation) -> list[str]:
    return [type(e).__name__ for e in eqn.effects]


def _is_print(eqn: Equation) -> bool:
    names = _effect_names(eqn)
    return bool(names) and all(name in _PRINTS for name in names)


def _implemented(eqn: Any, dropped: list[Equation]) -> Any:
    """Replace a primitive by a call of its implementation."""
    return _called(eqn, lambda *args: eqn.primitive.impl(*args, **eqn.params), eqn.invars, dropped)


def _called(eqn: Any, function: Callable, operands: Sequence[Any], dropped: list[Equation]) -> Any:
    """Replace an equation by a call of a function of some of its operands."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    inner = jax.make_jaxpr(jax.jit(lambda *args: function(*args)))(*avals).jaxpr
    if len(inner.eqns) != 1 or inner.constvars or len(inner.eqns[0].invars) != len(operands):
        return eqn
    (made,) = inner.eqns
    params = {key: _parameter(value, dropped) for key, value in made.params.items()}
    return eqn.replace(primitive=made.primitive, params=params, invars=list(operands), effects=made.effects)


def _has_own_derivatives(name: str, eqn: Any) -> bool:
    """Whether the rule of a call is that of its body: known by what wrote the body, or the call of an empty one."""
    inner = compat.open_jaxpr(compat.call_body(eqn))[0].eqns
    function = _OWN_DERIVATIVES.get((name, bool(inner)))
    return function is not None and any(compat.made_in(e, *function) for e in inner or [eqn])


def _all_pass_on_the_same(branches: Sequence[AnyJaxpr]) -> bool:
    """Whether a conditional returns the same operands in all cases."""
    found = set()
    for branch in branches:
        opened = compat.open_jaxpr(branch)[0]
        places: dict[Any, int] = {v: i for i, v in enumerate(opened.invars)}
        if opened.eqns or any(compat.is_literal(v) or v not in places for v in opened.outvars):
            return False
        found.add(tuple(places[v] for v in opened.outvars))
    return len(found) == 1


def _without_checks(branches: Sequence[AnyJaxpr]) -> Sequence[AnyJaxpr]:
    """Replace branches that do nothing but call back by one that passes its operands on, where there is one."""
    passing = [b for b in branches if not compat.open_jaxpr(b)[0].eqns]
    checks = [_only_calls_back(b) for b in branches]
    if not passing or not any(checks):
        return branches
    return tuple(passing[0] if check else b for b, check in zip(branches, checks, strict=True))


def _only_calls_back(branch: AnyJaxpr) -> bool:
    eqns = compat.open_jaxpr(branch)[0].eqns
    return bool(eqns) and all(primitive_name(eqn) == "pure_callback" for eqn in eqns)


def is_check(eqn: Equation) -> bool:
    """Whether what was left out is the branch that raises: prints are no conditionals."""
    return primitive_name(eqn) == "cond"
