"""Array programs: a jaxpr that is evaluated when its outputs are asked for, and that keeps costly values.

XLA fuses an elementwise operation into every loop that uses it, and repeats it there for every tangent: a sine
in the dynamics is computed again for each column of each Hessian. A quotient it keeps. Costly values are
therefore divided by `one`, a number that XLA cannot know to be 1: exact, and far cheaper than the repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Literal

COSTLY = {
    *(
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
    ),
    *("exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "sqrt", "rsqrt", "cbrt"),
    *("erf", "erfc", "erf_inv", "lgamma", "digamma", "bessel_i0e", "bessel_i1e"),
}
"""Elementwise operations that cost much more than a multiplication."""
_CALLS = {"jit", "pjit", "closed_call"}


class ArrayProgram:
    """A jaxpr at given inputs; inputs may be given late, outputs are computed when they are asked for."""

    def __init__(self, closed: Any, one: Any) -> None:
        self._jaxpr, self._one = closed.jaxpr, one
        self._env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._maker = {var: eqn for eqn in closed.jaxpr.eqns for var in eqn.outvars}

    def give(self, first: int, values: Sequence[Any]) -> None:
        """Set the inputs from number `first` on."""
        self._env.update(zip(self._jaxpr.invars[first : first + len(values)], values, strict=True))

    def get(self, number: int) -> Any:
        """Compute an output."""
        out = self._jaxpr.outvars[number]
        wanted = set()
        stack = [out]
        while stack:
            atom = stack.pop()
            if isinstance(atom, Literal) or atom in self._env:
                continue
            eqn = self._maker[atom]
            if id(eqn) not in wanted:
                wanted.add(id(eqn))
                stack.extend(eqn.invars)
        _run([eqn for eqn in self._jaxpr.eqns if id(eqn) in wanted], self._env, self._one)
        return _read(self._env, out)


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def _run(eqns: Sequence[Any], env: dict[Any, Any], one: Any) -> None:
    for eqn in eqns:
        ins = [_read(env, atom) for atom in eqn.invars]
        if eqn.primitive.name in _CALLS:
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            within = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
            within.update(zip(inner.jaxpr.invars, ins, strict=True))
            _run(inner.jaxpr.eqns, within, one)
            outs = [_read(within, atom) for atom in inner.jaxpr.outvars]
        else:
            found = eqn.primitive.get_bind_params(eqn.params)
            # Older versions of JAX return functions besides the parameters.
            functions, params = found if isinstance(found, tuple) else ((), found)
            outs = eqn.primitive.bind(*functions, *ins, **params)
            outs = list(outs) if eqn.primitive.multiple_results else [outs]
            if eqn.primitive.name in COSTLY and jnp.issubdtype(outs[0].dtype, jnp.floating):
                outs = [outs[0] / jnp.asarray(one, outs[0].dtype)]
        env.update(zip(eqn.outvars, outs, strict=True))
