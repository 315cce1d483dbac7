"""Recognise a program: is a jaxpr of now the one that an earlier call had?

A function is traced at every call, and reading what comes out (`flatten`) takes as long again. So a jaxpr that was read is
kept as a `Pattern`, and a new one is compared with it by a few passes over all equations that Python makes in C. Yes means
that `flatten_jaxpr` would give a program with the same key; no means nothing. Captured constants are no part of it: they
are collected anew, in the order of the reader. Derivative rules of the user are traced anew.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gnewt.jaxprs import compat
from gnewt.jaxprs.compat import AnyJaxpr, Equation, Numeric, primitive_name
from gnewt.jaxprs.flatten import CALLS, bodies_of, flatten_jaxpr
from gnewt.jaxprs.keys import value_key
from gnewt.jaxprs.params import DERIVATIVES, ParamReader, RuleMemo, holds_jaxpr, plain_params
from gnewt.jaxprs.primitives import PRIMITIVES
from gnewt.jaxprs.wrappers import library_key

_INS, _OUTS, _PRIMITIVE, _PARAMS, _AVAL, _VALUE = map(
    operator.attrgetter, ("invars", "outvars", "primitive", "params", "aval", "val")
)
_SIMPLE = (type(None), bool, int, str, np.dtype, type, enum.Enum)
"""Types of parameters that are the same where they are equal, in equations that JAX itself made."""


def pattern_of(jaxpr: AnyJaxpr) -> Pattern | None:
    """Return what later jaxprs are compared with; None where a call has side effects: it is to be read each time."""
    return None if compat.open_jaxpr(jaxpr)[0].effects else Pattern(jaxpr, {}, _reader())


def recognize(pattern: Pattern, jaxpr: AnyJaxpr) -> list[Numeric] | None:
    """Return the captured constants of a jaxpr that is the one of the pattern, None where it may be another one."""
    hoisted: list[Numeric] = []
    reader = _reader()
    same = not compat.open_jaxpr(jaxpr)[0].effects and pattern.matches(jaxpr, hoisted, reader)
    return hoisted if same and reader.repeatable else None


def _reader() -> ParamReader:
    return ParamReader(partial(flatten_jaxpr, inlined=CALLS), RuleMemo())


class Pattern:
    """A jaxpr without its constants, to be compared with others."""

    def __init__(self, jaxpr: AnyJaxpr, known: dict[int, Pattern], reader: ParamReader) -> None:
        """Args: known: patterns of inner jaxprs, by identity: one that is called often is looked at once."""
        self.jaxpr = compat.open_jaxpr(jaxpr)[0]
        eqns = self.jaxpr.eqns
        self.text = _text(self.jaxpr)
        plain = [_is_plain(eqn) for eqn in eqns]
        self.plain = [i for i, flag in enumerate(plain) if flag]
        self.params = [eqns[i].params for i in self.plain]
        self.rest = [(i, _Rest(eqns[i], known, reader)) for i, flag in enumerate(plain) if not flag]
        self.is_settled = all(rest.is_settled for _, rest in self.rest)
        """The same jaxpr means the same program, and inner jaxprs hold no constants."""

    def matches(self, jaxpr: AnyJaxpr, hoisted: list[Numeric], reader: ParamReader) -> bool:
        """Whether a jaxpr is the same; its captured constants are appended to `hoisted`."""
        opened, consts = compat.open_jaxpr(jaxpr)
        hoisted.extend(consts)
        if opened is self.jaxpr:
            if self.is_settled:
                return True
        elif _text(opened) != self.text or not self._has_params(opened.eqns):
            return False
        return all(rest.matches(opened.eqns[i], hoisted, reader) for i, rest in self.rest)

    def _has_params(self, eqns: Sequence[Equation]) -> bool:
        params = list(map(_PARAMS, map(eqns.__getitem__, self.plain)))
        try:
            return params == self.params
        except ValueError:  # an array, where none was
            return False


def _text(jaxpr: Any) -> tuple[object, ...]:
    """All of a jaxpr but the parameters of its equations. Variables are numbered in the order in which they are bound."""
    eqns = jaxpr.eqns
    ins, outs = list(map(_INS, eqns)), list(map(_OUTS, eqns))
    read = [*itertools.chain.from_iterable(ins), *jaxpr.outvars]
    bound = [*jaxpr.invars, *jaxpr.constvars, *itertools.chain.from_iterable(outs)]
    number = dict(zip(map(id, bound), itertools.count(), strict=False))
    operands = list(map(number.get, map(id, read)))  # None for literals
    literals = [atom for atom, at in zip(read, operands, strict=True) if at is None]
    values = list(map(_VALUE, literals))
    return (
        (len(jaxpr.invars), len(jaxpr.constvars), len(jaxpr.outvars)),
        list(map(_PRIMITIVE, eqns)),
        list(map(len, ins)),
        list(map(len, outs)),
        operands,
        list(map(type, values)),
        [v.tobytes() if isinstance(v, np.ndarray) else value_key(v) for v in values],
        list(map(_AVAL, bound)),
        list(map(_AVAL, literals)),
    )


def _is_plain(eqn: Equation) -> bool:
    return primitive_name(eqn) in PRIMITIVES and all(map(_is_simple, eqn.params.values()))


def _is_simple(value: object) -> bool:
    return all(map(_is_simple, value)) if isinstance(value, tuple) else isinstance(value, _SIMPLE)


class _Rest:
    """The parameters of an equation with jaxprs, with derivative rules, or of a primitive that is not JAX's."""

    def __init__(self, eqn: Equation, known: dict[int, Pattern], reader: ParamReader) -> None:
        self.name = primitive_name(eqn)
        self.names = sorted(eqn.params)
        self.inlined = self.name in CALLS and not eqn.effects

        def pattern(jaxpr: AnyJaxpr) -> Pattern:
            at = id(compat.open_jaxpr(jaxpr)[0])
            if at not in known:
                known[at] = Pattern(jaxpr, known, reader)
            return known[at]

        self.bodies = [pattern(body) for body in self._bodies(eqn)]
        others = self._others(eqn)
        self.jaxprs = {k: pattern(v) for k, v in others.items() if compat.is_jaxpr(v)}
        self.key = self._key(eqn, reader)
        self.consts = [self._consts(others[k], p, reader) for k, p in self.jaxprs.items()]
        self.library = library_key(_functions(eqn)) if self.name in DERIVATIVES else None
        self.rules = reader.rules_key(self.name, eqn) if self.name in DERIVATIVES else None
        holds = [compat.open_jaxpr(body)[1] for body in self._bodies(eqn)]
        self.is_settled = (
            not any(holds)
            and all(consts == [] for consts in self.consts)
            and all(p.is_settled for p in (*self.bodies, *self.jaxprs.values()))
            and (self.name not in DERIVATIVES or self.library is not None)
        )

    def matches(self, eqn: Equation, hoisted: list[Numeric], reader: ParamReader) -> bool:
        """Whether the parameters of an equation of the same primitive are the same."""
        if sorted(eqn.params) != self.names or (self.inlined and eqn.effects):
            return False
        bodies = self._bodies(eqn)
        if len(bodies) != len(self.bodies):
            return False
        if not all(p.matches(body, hoisted, reader) for p, body in zip(self.bodies, bodies, strict=True)):
            return False
        others = self._others(eqn)
        for (name, pattern), consts in zip(self.jaxprs.items(), self.consts, strict=True):
            if not compat.is_jaxpr(others.get(name)):
                return False
            found = self._consts(others[name], pattern, reader)
            if found is None or found != consts:
                return False
        return self._key(eqn, reader) == self.key and self._has_rules(eqn, reader)

    def _has_rules(self, eqn: Equation, reader: ParamReader) -> bool:
        if self.name not in DERIVATIVES:
            return True
        if self.library is not None and library_key(_functions(eqn)) == self.library:
            return True
        return self.rules is not None and reader.rules_key(self.name, eqn) == self.rules

    def _bodies(self, eqn: Equation) -> Sequence[AnyJaxpr]:
        """The jaxprs whose constants are captured by the program itself."""
        return (compat.call_body(eqn),) if self.inlined else bodies_of(self.name, eqn)

    def _others(self, eqn: Equation) -> dict[str, Any]:
        """The parameters that the reader looks at besides."""
        if self.inlined:
            return {}
        if self.name in DERIVATIVES:
            return plain_params(eqn)
        bodies = bool(bodies_of(self.name, eqn))
        return {k: v for k, v in eqn.params.items() if not (bodies and holds_jaxpr(v))}

    def _key(self, eqn: Equation, reader: ParamReader) -> Hashable:
        return reader.items({k: v for k, v in self._others(eqn).items() if not compat.is_jaxpr(v)})

    @staticmethod
    def _consts(jaxpr: AnyJaxpr, pattern: Pattern, reader: ParamReader) -> list[Hashable] | None:
        """The values of the constants of a jaxpr; None where it is not that of the pattern."""
        found: list[Numeric] = []
        if not pattern.matches(jaxpr, found, reader):
            return None
        return [reader.value(c) for c in found]


def _functions(eqn: Equation) -> list[Any]:
    return [v for _, v in sorted(eqn.params.items()) if not compat.is_jaxpr(v)]
