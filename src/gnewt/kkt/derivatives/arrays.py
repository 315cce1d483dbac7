"""Array programs: a jaxpr that is evaluated when its outputs are asked for, and that keeps costly values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Literal

from gnewt.kkt.derivatives.keep import COSTLY, Keeper

_CALLS = {"jit", "pjit", "closed_call"}


class ArrayProgram:
    """A jaxpr at given inputs; inputs may be given late, outputs are computed when they are asked for."""

    def __init__(self, closed: Any, keeper: Keeper) -> None:
        self._jaxpr, self._keeper = closed.jaxpr, keeper
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
        _run([eqn for eqn in self._jaxpr.eqns if id(eqn) in wanted], self._env, self._keeper)
        return _read(self._env, out)


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def _run(eqns: Sequence[Any], env: dict[Any, Any], keeper: Keeper) -> None:
    for eqn in eqns:
        ins = [_read(env, atom) for atom in eqn.invars]
        if eqn.primitive.name in _CALLS:
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            within = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
            within.update(zip(inner.jaxpr.invars, ins, strict=True))
            _run(inner.jaxpr.eqns, within, keeper)
            outs = [_read(within, atom) for atom in inner.jaxpr.outvars]
        else:
            found = eqn.primitive.get_bind_params(eqn.params)
            # Older versions of JAX return functions besides the parameters.
            functions, params = found if isinstance(found, tuple) else ((), found)
            outs = eqn.primitive.bind(*functions, *ins, **params)
            outs = list(outs) if eqn.primitive.multiple_results else [outs]
            if eqn.primitive.name in COSTLY:
                outs = [keeper.keep(outs[0], costly=True)]
        env.update(zip(eqn.outvars, outs, strict=True))
