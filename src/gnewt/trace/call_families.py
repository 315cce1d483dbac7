"""Families of calls: loop bodies and opaque operations.

In: drafts of equal calls. Out: one `Family` with its function, patterns and data columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.graph import Family, take_places
from gnewt.jaxprs import where_of
from gnewt.trace.constants import Const, Constants, Known
from gnewt.trace.data_columns import ColumnReader, Packer
from gnewt.trace.scalar_pool import Block
from gnewt.trace.template import Template


@dataclasses.dataclass(eq=False)
class CallDraft:
    """A call family in the making."""

    kind: str
    block: Block
    templates: list[Template]
    amap: tuple[int, ...]
    args: np.ndarray
    consts: np.ndarray
    outputs: list[int]
    outs: np.ndarray | None
    weights: np.ndarray | None
    rows: np.ndarray
    key: Hashable


def write_call(
    constants: Constants, slot_of: np.ndarray, drafts: list[CallDraft]
) -> tuple[Family, tuple, tuple]:
    """Write the family of equal calls: its function, patterns and data."""
    first = drafts[0]
    spec, templates, amap, outputs = first.block.call, first.templates, first.amap, first.outputs
    args = slot_of[np.concatenate([d.args for d in drafts])]
    consts = np.concatenate([d.consts for d in drafts])
    columns = [consts[:, j] for j in range(consts.shape[1])]
    weights = None if first.weights is None else _joined([d.weights for d in drafts])
    if weights is not None:
        columns += [weights[:, j] for j in range(weights.shape[1])]
    pack = Packer(constants, columns)
    arrays, axes, drop = _call_data(constants, drafts)
    num_packed = len(pack.data)
    reader = ColumnReader(templates, amap, first.block.col_dtypes)
    is_loss = first.kind == "loss"
    starts = np.array(outputs)

    def psi(x: jax.Array, *data: jax.Array) -> jax.Array:
        found = pack.unpack(data[:num_packed])
        take = reader.bind(x, found)
        y = jnp.concatenate([jnp.ravel(o) for o in spec.fn(take, data[num_packed:])])
        y = y if len(outputs) == spec.m else take_places(y, starts)
        return jnp.dot(jnp.stack(found[len(found) - len(outputs) :]), y) if is_loss else y

    jac, hess = _call_patterns(first, args.shape[1])
    family = Family(
        fn=psi,
        args=np.ascontiguousarray(args, np.int32),
        outs=None if is_loss else slot_of[_joined([d.outs for d in drafts])],
        data_axes=(*pack.axes, *axes),
        jac_pattern=np.any(jac, 0)[None, :] if is_loss else jac,
        hess_pattern=hess,
        name=spec.name,
        where=where_of(first.block.instr),
        note=spec.note,
    )
    return family, (*pack.data, *arrays), (0,) * num_packed + drop


def _joined(parts: list[np.ndarray | None]) -> np.ndarray:
    """Concatenate what all drafts of a family have, or none."""
    found = [p for p in parts if p is not None]
    assert len(found) == len(parts)
    return np.concatenate(found)


def _call_data(
    constants: Constants, drafts: list[CallDraft]
) -> tuple[list[Const], list[int | None], tuple[int, ...]]:
    """Constant array operands: shared by all instances, or one for each iteration."""
    arrays, axes, drop = [], [], []
    for j in range(len(drafts[0].block.data)):
        parts = [d.block.data[j] for d in drafts]
        if all(p is parts[0] for p in parts) and parts[0].shape[0] == 1:
            arrays.append(parts[0])
            axes.append(None)
            drop.append(1)
            continue
        rows = [
            d.rows if p.shape[0] > 1 else np.zeros(len(d.rows), np.int64)
            for d, p in zip(drafts, parts, strict=True)
        ]
        shape = (sum(len(r) for r in rows), *parts[0].shape[1:])

        def step(xp: ModuleType, *values: Known, rows: list[np.ndarray] = rows) -> tuple[Known]:
            return (xp.concatenate([v[r] for v, r in zip(values, rows, strict=True)]),)

        arrays.append(constants.apply(step, parts, [(shape, parts[0].dtype)])[0])
        axes.append(0)
        drop.append(0)
    return arrays, axes, tuple(drop)


def _call_patterns(draft: CallDraft, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Patterns in the arguments, from those in the columns and those of the column's templates."""
    spec, count = draft.block.call, len(draft.templates)
    jac = np.ones((spec.m, count), bool) if spec.jac is None else spec.jac
    jac = jac[draft.outputs]
    reach = np.zeros((count, k), bool)
    hess = np.zeros((k, k), bool)
    at = 0
    for c, template in enumerate(draft.templates):
        places = np.array(draft.amap[at : at + template.k], np.int64)
        at += template.k
        first, second = template.patterns()
        reach[c, places[first[0]]] = True
        if jac[:, c].any() and second.any():
            hess[np.ix_(places, places)] |= second
    if spec.hess is None:
        active = reach[jac.any(0)].any(0)
        hess |= np.outer(active, active)
    elif not isinstance(spec.hess, str):
        curved = spec.hess[draft.outputs].any(0)
        hess |= (reach.T.astype(np.int64) @ curved.astype(np.int64) @ reach.astype(np.int64)) > 0
    return (jac.astype(np.int64) @ reach.astype(np.int64)) > 0, hess | hess.T
