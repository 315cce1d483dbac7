"""Parameters of equations, compared by content. Parameters → hashable key.

Two equations with equal keys compute the same, and so do their derivatives. Jaxprs are compared by their equations and by
the values of their constants. The rules of custom_jvp and custom_vjp functions are Python functions, which JAX wraps anew
at every trace: they are traced to jaxprs at the shapes of the equation, and these are compared.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from gnewt.jaxprs import compat
from gnewt.jaxprs.compat import AnyJaxpr, Aval, Equation, Numeric, aval_of
from gnewt.jaxprs.keys import value_key
from gnewt.jaxprs.program import Program, is_float
from gnewt.jaxprs.wrappers import Same, wrapper_key

_MOST_LEVELS = 3
"""Rules inside rules that are traced: a step needs two derivatives, its own derivative a third."""
_MOST_PATTERNS = 16
"""Sets of perturbed arguments for which a rule with symbolic zeros is compared."""


@dataclasses.dataclass(eq=False)
class RuleMemo:
    """The derivative rules that were met while one program was read."""

    done: dict[Hashable, tuple[Hashable, bool]] = dataclasses.field(default_factory=dict)
    """By the identity of a rule: its key, and whether another call may use it."""
    stack: list[Hashable] = dataclasses.field(default_factory=list)
    """Rules that we are inside of."""
    lowest: int = 0
    """The outermost of them that has been referred to: the keys of rules above it say where they stand."""


class ParamReader:
    """Makes keys of parameters, and remembers whether one of them belongs to this call alone."""

    def __init__(self, flatten: Callable[..., Program], memo: RuleMemo) -> None:
        self.flatten = flatten
        self.memo = memo
        self.repeatable = True

    def key(self, name: str, eqn: Equation, bodies: tuple[Program, ...]) -> Hashable:
        """Return the key of an equation's parameters; `bodies` are those of its jaxprs that were flattened."""
        params = eqn.params
        if not params:
            return ()
        self.repeatable = self.repeatable and all(b.repeatable for b in bodies)
        if name in DERIVATIVES:
            rules = self.rules_key(name, eqn)
            if rules is not None:
                return (self.items(plain_params(eqn)), rules)
        if bodies:
            params = {k: v for k, v in params.items() if not holds_jaxpr(v)}
        return (self.items(params), tuple(b.key for b in bodies))

    def items(self, params: compat.Params) -> Hashable:
        """Return the key of some parameters."""
        return tuple((k, self.value(params[k])) for k in sorted(params))

    def value(self, value: Any) -> Hashable:
        """Return the key of one parameter, or of a constant."""
        if value is None or isinstance(value, str | np.dtype):
            return value
        if isinstance(value, bool | int):
            return (type(value), value)
        if compat.is_jaxpr(value):
            return self._jaxpr(value)
        if isinstance(value, tuple | list):
            return (type(value), tuple([self.value(v) for v in value]))
        if isinstance(value, dict):
            return (type(value), tuple((k, self.value(v)) for k, v in value.items()))
        if isinstance(value, Tracer):
            self.repeatable = False
            return Same(value)
        if isinstance(value, float | complex) or (
            hasattr(value, "__array__") and not isinstance(value, type)
        ):
            return (type(value), value_key(value))
        try:
            hash(value)
        except TypeError:
            return Same(value)
        return value

    def _jaxpr(self, jaxpr: AnyJaxpr) -> Hashable:
        hoisted: list[Numeric] = []
        program = self.flatten(jaxpr, hoisted, memo=self.memo)
        self.repeatable = self.repeatable and program.repeatable
        return (program.key, tuple([self.value(h) for h in hoisted]))

    def rules_key(self, name: str, eqn: Equation) -> Hashable | None:
        """Return the key of an equation's derivative rules; None where JAX cannot apply them.

        A rule that is met again inside itself is named by how far outside it began.
        """
        memo = self.memo
        functions = wrapper_key([v for k, v in sorted(eqn.params.items()) if not compat.is_jaxpr(v)])
        same = (
            Same(eqn) if functions is None else (name, functions, tuple([_struct_key(v) for v in eqn.invars]))
        )
        if same in memo.done:
            key, repeatable = memo.done[same]
            self.repeatable = self.repeatable and repeatable
            return key
        if same in memo.stack:
            at = memo.stack.index(same)
            memo.lowest = min(memo.lowest, at)
            return ("again", len(memo.stack) - at)
        if len(memo.stack) >= _MOST_LEVELS:
            return ()
        return self._traced_key(name, eqn, same)

    def _traced_key(self, name: str, eqn: Equation, same: Hashable) -> Hashable | None:
        memo, outer = self.memo, self.repeatable
        before, memo.lowest = memo.lowest, len(memo.stack)
        memo.stack.append(same)
        self.repeatable = True
        try:
            key = tuple([self._jaxpr(rule) for rule in DERIVATIVES[name](eqn)])
        except Exception:  # the rule is the user's: what it raises is told when it is used
            key = None
        finally:
            memo.stack.pop()
        if memo.lowest >= len(memo.stack) and not isinstance(same, Same):
            memo.done[same] = (key, self.repeatable)
        memo.lowest = min(before, memo.lowest)
        self.repeatable = self.repeatable and outer
        return key


def _struct_key(operand: compat.Atom) -> Hashable:
    aval = aval_of(operand)
    return (aval.shape, aval.dtype, getattr(aval, "weak_type", False))


def plain_params(eqn: Equation) -> dict[str, Any]:
    """The parameters of a function with derivative rules that are no functions."""
    inner = eqn.params.get(compat.OBJECT)
    params = eqn.params if inner is None else {"kind": type(inner).__qualname__, **inner.params}
    return {k: v for k, v in params.items() if compat.is_jaxpr(v) or isinstance(v, bool | int | str)}


def holds_jaxpr(value: object) -> bool:
    """Whether a parameter is a jaxpr, or a sequence with one."""
    return any(compat.is_jaxpr(v) for v in (value if isinstance(value, tuple | list) else (value,)))


def _moving(eqn: Equation) -> tuple[list[jax.ShapeDtypeStruct], list[int]]:
    """Shapes of the operands, and which of them have derivatives."""
    avals = [_struct(aval_of(v)) for v in eqn.invars]
    return avals, [i for i, a in enumerate(avals) if is_float(a.dtype) or _is_complex(a.dtype)]


def _struct(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _is_complex(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.complexfloating))


def _of(eqn: Equation, full: Sequence[Any], active: Sequence[int]) -> Callable[..., list[jax.Array]]:
    """The equation as a function of its active operands."""

    def apply(*moving: jax.Array) -> list[jax.Array]:
        args = list(full)
        for i, value in zip(active, moving, strict=True):
            args[i] = value
        return compat.bind_equation(eqn, args)

    return apply


def _forward_rules(eqn: Equation) -> Iterator[AnyJaxpr]:
    """The rule of a custom_jvp function; with symbolic zeros it may differ with the operands that move."""
    avals, floats = _moving(eqn)
    patterns: Iterator[tuple[int, ...]] = iter([tuple(floats)])
    if eqn.params.get("symbolic_zeros"):
        if 2 ** len(floats) > _MOST_PATTERNS:
            raise NotImplementedError
        patterns = itertools.chain.from_iterable(
            itertools.combinations(floats, n) for n in range(1, len(floats) + 1)
        )
    for active in patterns:

        def rule(xs: list[Any], ts: list[Any], active: tuple[int, ...] = active) -> Any:
            return jax.jvp(_of(eqn, xs, active), tuple(xs[i] for i in active), tuple(ts))

        yield jax.make_jaxpr(rule)(avals, [avals[i] for i in active])


def _reverse_rules(eqn: Equation) -> Iterator[AnyJaxpr]:
    """The rules of a custom_vjp function, forward and backward."""
    avals, active = _moving(eqn)
    if eqn.params.get("symbolic_zeros"):
        raise NotImplementedError

    def rule(xs: list[Any], cotangents: list[Any]) -> Any:
        return jax.vjp(_of(eqn, xs, active), *[xs[i] for i in active])[1](cotangents)

    outs = [_struct(aval_of(v)) for v in eqn.outvars]
    if not all(is_float(a.dtype) or _is_complex(a.dtype) for a in outs):
        raise NotImplementedError
    yield jax.make_jaxpr(rule)(avals, outs)


def _object_rules(eqn: Equation) -> Iterator[AnyJaxpr]:
    """What a primitive that is an object computes, and its derivatives."""
    yield compat.call_body(eqn)
    yield from _reverse_rules(eqn)


DERIVATIVES: dict[str, Callable[[Equation], Iterator[AnyJaxpr]]] = {
    "custom_jvp_call": _forward_rules,
    "custom_vjp_call": _reverse_rules,
    "call_hi_primitive": _object_rules,
}
