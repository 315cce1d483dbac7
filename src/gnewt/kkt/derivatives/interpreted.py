"""Local derivatives of a family by the native machine (`machine`): for few instances of a long program."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import Array

from gnewt.graph import Family
from gnewt.jaxprs.compat import DType, Numeric
from gnewt.kkt.derivatives.composed import bind_inputs
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.machine import Code, available, can_run, write_code
from gnewt.kkt.derivatives.scalars import Vectors, fill, live_nodes
from gnewt.kkt.derivatives.written import Jacobian, WrittenDerivatives

MOST_INSTANCES = 256
"""Beyond it compiled code is worth its compilation."""
_FEWEST = 24
"""Operations below which there is nothing to be saved."""


@dataclasses.dataclass(frozen=True, eq=False)
class Interpretation:
    """The derivatives of a family, written for the machine."""

    wide: frozenset[int]
    """Nodes that differ between instances."""
    rows: list[int]
    """Inputs that have one number for each instance: x, then data."""
    common: list[int]
    """Nodes that all instances share and the machine reads."""
    first: Code
    """For a loss everything; for a node its Jacobian, and what the Hessian needs of it."""
    saved: list[int]
    second: Code | None


def interpret(written: WrittenDerivatives, family: Family, dtype: DType) -> Interpretation | None:
    """Write the derivatives for the machine, or return None where it has no place."""
    program = written.program
    outputs = [*written.value, *written.jacobian, *written.hessian]
    live = live_nodes(program, outputs)
    if not available() or len(live) < _FEWEST or not can_run(program, live, dtype):
        return None
    batched = [n for n, axis in zip(written.data, family.data_axes, strict=True) if axis is not None]
    rows = [int(node) for some in (written.x, *batched) for node in some.ravel()]
    lam = [] if family.is_loss else [int(node) for node in written.lam.ravel()]
    wide = {*rows, *lam}
    for node in live:
        if any(a in wide for a in program.args[node]):
            wide.add(node)
    read = {a for node in live if node in wide for a in program.args[node]} | set(outputs)
    common = sorted(a for a in read if a not in wide and a not in program.value)
    given = [*rows, *common]
    if family.is_loss:
        return Interpretation(frozenset(wide), rows, common, write_code(program, given, outputs), [], None)
    before = live_nodes(program, written.jacobian, set(given))
    after = live_nodes(program, written.hessian, {*given, *lam, *before})
    needed = {a for node in after for a in program.args[node]} | set(written.hessian)
    saved = [node for node in before if node in needed and node not in program.value]
    first = write_code(program, given, [*written.jacobian, *saved])
    second = write_code(program, [*given, *lam, *saved], written.hessian)
    return Interpretation(frozenset(wide), rows, common, first, saved, second)


class Interpreted:
    """Derivatives by the native machine."""

    def __init__(
        self,
        written: WrittenDerivatives,
        made: Interpretation,
        family: Family,
        x: Array,
        data: tuple[Numeric, ...],
        keeper: Keeper,
    ) -> None:
        self._written, self._made, self._n, self._dtype = written, made, x.shape[1], x.dtype
        shared = {
            node: value
            for node, value in bind_inputs(family, written.x, written.data, x, data).items()
            if node not in made.rows
        }
        self._shared = Vectors(written.program, shared, made.common, keeper)
        parts = [x]
        for some, values, axis in zip(written.data, data, family.data_axes, strict=True):
            if axis is not None:
                parts.append(jnp.reshape(values, (self._n, some.size)).T)
        common = self._shared.get(made.common)
        if common:
            parts.append(jnp.stack([fill(v, (self._n,), self._dtype) for v in common]))
        self._rows = jnp.concatenate([jnp.asarray(part, self._dtype) for part in parts])
        self._found = made.first.run(self._rows)

    def values(self) -> Array:
        """Return l at every instance."""
        return self._found[0]

    def jacobian(self) -> Jacobian:
        """Return ∂ψ at every instance."""
        nodes = self._written.jacobian
        start = len(self._written.value)
        same = [(e, node) for e, node in enumerate(nodes) if node not in self._made.wide]
        shared = dict(zip([e for e, _ in same], self._shared.get([node for _, node in same]), strict=True))
        return Jacobian(self._found[start : start + len(nodes)].T, shared)

    def hessian(self, lam: Array | None) -> Array:
        """Return ∂²(λ·ψ) at its nonzeros: [nonzeros, n]."""
        start = len(self._written.value) + len(self._written.jacobian)
        if self._made.second is None:
            return self._found[start:]
        assert lam is not None
        parts = [self._rows, jnp.asarray(lam, self._dtype), self._found[start:]]
        return self._made.second.run(jnp.concatenate(parts))
