"""Duals and local derivatives of all families by one call of the native library (`cpp/engine/linearize.hpp`).

A family whose derivatives are written out (`written`) runs on the library's machine: its numbers go straight to where
the elimination reads them. Jacobians and gradients of any other family come from XLA and are operands of the call, which
sweeps the duals of all; its Hessians are put among the sources afterwards.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Data, Family, Maps, Structure
from gnewt.jaxprs.compat import DType, Numeric
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.local import Local, data_kinds, local_derivatives, written_of
from gnewt.kkt.derivatives.machine import GIVEN_TARGETS, TARGETS, Load, Store, can_run, write_program
from gnewt.kkt.derivatives.scalars import live_nodes
from gnewt.kkt.derivatives.written import WrittenDerivatives

_NO_PROGRAM, _ZERO_HESSIAN = -1, -2
"""In place of a program: `kGiven` or `kNoProgram`, and `kZeroHessian`, of cpp/engine/linearize_call.hpp."""
_CODE_HEADER, _CODE_RECORD = 1, 6


@dataclasses.dataclass(frozen=True, eq=False)
class FamilyCode:
    """The derivatives of a family, written for the machine."""

    data: list[int]
    """Data arguments that the programs read: their operands, in this order."""
    constants: list[float]
    prologue: list[int] | None
    """What all instances share and is computed once."""
    first: list[int]
    """For a loss everything; for a node its Jacobian, and what the Hessian needs of it."""
    second: list[int] | None
    """The Hessian of a node."""
    num_commons: int
    num_saved: int


def write_family(written: WrittenDerivatives, family: Family, dtype: DType) -> FamilyCode | None:
    """Write the derivatives of a family for the machine, or return None where it has not every operation."""
    program = written.program
    outputs = [*written.value, *written.jacobian, *written.hessian]
    live = live_nodes(program, outputs)
    if not can_run(program, live, dtype):
        return None
    used = set(live)
    data = [d for d, nodes in enumerate(written.data) if used.intersection(nodes.ravel().tolist())]
    rows, shared = _inputs(written, family, data)
    duals = (
        {} if family.is_loss else {int(v): (Load.DUAL, o, 0, 0) for o, v in enumerate(written.lam.ravel())}
    )
    wide = {*rows, *duals}
    for node in live:
        if any(a in wide for a in program.args[node]):
            wide.add(node)
    read = {a for node in live if node in wide for a in program.args[node]} | set(outputs)
    commons = [node for node in live if node in read and node not in wide and program.args[node]]
    constants: list[float] = []
    prologue = None
    if commons:
        ends = [(node, Store.COMMON, i) for i, node in enumerate(commons)]
        prologue = write_program(program, shared, ends, constants)
    given = rows | shared | {node: (Load.COMMON, i, 0, 0) for i, node in enumerate(commons)}
    write = _write_loss if family.is_loss else _write_node
    first, second, num_saved = write(written, family, given, duals, constants)
    return FamilyCode(data, constants, prologue, first, second, len(commons), num_saved)


_Places: TypeAlias = dict[int, tuple[Load, int, int, int]]


def _inputs(written: WrittenDerivatives, family: Family, data: list[int]) -> tuple[_Places, _Places]:
    """Return where the inputs lie that differ between instances, and those that all of them share."""
    shared: _Places = {}
    rows: _Places = {int(node): (Load.SLOT, j, 0, 0) for j, node in enumerate(written.x.ravel())}
    for operand, d in enumerate(data):
        nodes = written.data[d].ravel().tolist()
        if family.data_axes[d] is None:
            shared |= {node: (Load.SHARED, operand, i, 0) for i, node in enumerate(nodes)}
        else:
            rows |= {node: (Load.DATA, operand, i, len(nodes)) for i, node in enumerate(nodes)}
    return rows, shared


def _write_loss(
    written: WrittenDerivatives, family: Family, given: _Places, duals: _Places, constants: list[float]
) -> tuple[list[int], None, int]:
    """Value, gradient and Hessian by one program."""
    del duals
    args = np.nonzero(family.jac_pattern)[1].tolist()
    ends = [(node, Store.VALUE, 0) for node in written.value]
    ends += [(node, Store.GRADIENT, a) for a, node in zip(args, written.jacobian, strict=True)]
    ends += [(node, Store.HESSIAN, e) for e, node in enumerate(written.hessian)]
    return write_program(written.program, given, ends, constants), None, 0


def _write_node(
    written: WrittenDerivatives, family: Family, given: _Places, duals: _Places, constants: list[float]
) -> tuple[list[int], list[int] | None, int]:
    """The Jacobian by a first program; the Hessian, which needs duals, by a second one."""
    del family
    program = written.program
    before = live_nodes(program, written.jacobian, given)
    after = live_nodes(program, written.hessian, {*given, *duals, *before})
    needed = {a for node in after for a in program.args[node]} | set(written.hessian)
    saved = [node for node in before if node in needed and node not in program.value]
    ends = [(node, Store.JACOBIAN, e) for e, node in enumerate(written.jacobian)]
    ends += [(node, Store.SAVED, i) for i, node in enumerate(saved)]
    first = write_program(program, given, ends, constants)
    kept: _Places = {node: (Load.SAVED, i, 0, 0) for i, node in enumerate(saved)}
    ends = [(node, Store.HESSIAN, e) for e, node in enumerate(written.hessian)]
    second = write_program(program, given | duals | kept, ends, constants) if ends else None
    return first, second, len(saved)


def native_models(
    structure: Structure, maps: Maps, data: Data, s: Array, curvature: str, lam: Array | None = None
) -> tuple[Array, Array, Array]:
    """Compute (f, duals, sources) at the slots s. Traceable; works under vmap; JAX cannot differentiate it.

    Args:
        lam: multipliers [S] for the Hessians of nodes, NaN for those that a sweep shall find; the duals are then
            ∂l + Jᵀλ at every slot.
    """
    keeper = Keeper(s)
    value = jnp.zeros((), s.dtype)
    code = _Code(len(structure.families))
    operands: list[Array] = []
    given: dict[int, Local] = {}
    for f, family in enumerate(structure.families):
        own = code_of(structure, f, s.dtype, data[f])
        if own is not None:
            code.add(own, len(operands), curvature)
            operands += [jnp.ravel(jnp.asarray(data[f][d], s.dtype)) for d in own.data]
            continue
        x = structure.layout.args[f].read(s, maps)
        given[f] = local = local_derivatives(structure, f, x, data[f], keeper, machine=True)
        code.add_given(len(operands), curvature == "gauss_newton" and not family.is_loss)
        operands.append(jnp.asarray(local.jacobian().rows, s.dtype).reshape(-1))
        if family.is_loss:
            value = value + jnp.sum(local.values()).astype(s.dtype)
    starts = hessian_starts(structure)
    shapes = [jax.ShapeDtypeStruct(shape, s.dtype) for shape in ((), s.shape, (starts[-1],))]
    target = (TARGETS if lam is None else GIVEN_TARGETS)[s.dtype.name]
    call = jax.ffi.ffi_call(target, shapes, vmap_method="expand_dims")
    integers, constants = code.arrays(s.dtype)
    extra = [] if lam is None else [jnp.asarray(lam, s.dtype)]
    found, duals, sources = call(maps[-1], integers, constants, s, *extra, *operands)
    used = duals if lam is None else jnp.where(jnp.isnan(extra[0]), duals, extra[0])
    for f, local in given.items():
        family, outs = structure.families[f], structure.layout.outs[f]
        if not family.hess_pattern.any() or (outs is not None and curvature == "gauss_newton"):
            continue
        hessian = local.hessian(None if outs is None else outs.read(used, maps)).T.reshape(-1)
        sources = jax.lax.dynamic_update_slice(sources, jnp.asarray(hessian, s.dtype), (starts[f],))
    return keeper.seal(value + found), duals, sources


def hessian_starts(structure: Structure) -> list[int]:
    """Return where the Hessians of each family begin among the sources, and how many sources there are."""
    starts, at = [], 0
    for family in structure.families:
        at += 0 if family.is_loss else family.n * int(family.jac_pattern.sum())
        starts.append(at)
        at += family.n * int(np.tril(family.hess_pattern).sum())
    return [*starts, at]


def code_of(structure: Structure, f: int, dtype: DType, data: tuple[Numeric, ...]) -> FamilyCode | None:
    """Return the derivatives of family f for the machine, made once, or None where XLA has to compute them."""
    family = structure.families[f]
    kinds = data_kinds(family, data)

    def make() -> FamilyCode | None:
        written = written_of(structure, f, dtype, kinds, machine=True)
        return None if written is None else write_family(written, family, dtype)

    return structure.memo(("code", f, dtype, kinds), make)


class _Code:
    """The integers of a call: a record for each family, then programs."""

    def __init__(self, num_families: int) -> None:
        self._records: list[list[int]] = []
        self._programs: list[int] = []
        self._constants: list[float] = []
        self._start = _CODE_HEADER + num_families * _CODE_RECORD

    def add(self, family: FamilyCode, operand: int, curvature: str) -> None:
        """Add a family that the machine differentiates; its data are the operands from number `operand` on."""
        second = self._place(family.second)
        if family.second is not None and curvature == "gauss_newton":
            second = _ZERO_HESSIAN
        places = [self._place(family.prologue), self._place(family.first), second]
        self._records.append([operand, *places, family.num_commons, family.num_saved])
        self._constants += family.constants

    def add_given(self, operand: int, without_hessian: bool) -> None:
        """Add a family whose first derivatives are an operand."""
        second = _ZERO_HESSIAN if without_hessian else _NO_PROGRAM
        self._records.append([operand, _NO_PROGRAM, _NO_PROGRAM, second, 0, 0])

    def _place(self, program: list[int] | None) -> int:
        if program is None:
            return _NO_PROGRAM
        at = self._start + len(self._programs)
        num_places, num_constants, first_constant, *rest = program
        self._programs += [num_places, num_constants, first_constant + len(self._constants), *rest]
        return at

    def arrays(self, dtype: DType) -> tuple[Array, Array]:
        """Return integers and constants."""
        records = [value for record in self._records for value in record]
        integers = np.array([len(self._records), *records, *self._programs], np.int32)
        return jnp.asarray(integers), jnp.asarray(np.array(self._constants), dtype)
