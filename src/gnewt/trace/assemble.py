"""Assemble: groups become families, kept values become slots, numbered in the order of time."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnewt.graph import Family
from gnewt.jaxprs import is_float, where_of
from gnewt.trace.call_families import CallDraft, write_call
from gnewt.trace.constants import Const, Constants
from gnewt.trace.data_columns import Packer, entry
from gnewt.trace.fuse import MAX_ARGS, MAX_OPS, Fuser
from gnewt.trace.groups import Groups, merge_columns, sharing, unique_rows
from gnewt.trace.joints import Joint
from gnewt.trace.scalar_pool import CALL, OP, ROW, Block, Pool
from gnewt.trace.tail import row_terms
from gnewt.trace.template import Template, row_op


@dataclasses.dataclass(eq=False)
class Draft:
    """A family in the making: parts from several blocks, on ids."""

    kind: str
    """"loss" or "node"."""
    template: Template
    instr: Any
    args: list[np.ndarray] = dataclasses.field(default_factory=list)
    consts: list[np.ndarray] = dataclasses.field(default_factory=list)
    weights: list[np.ndarray] = dataclasses.field(default_factory=list)
    outs: list[np.ndarray] = dataclasses.field(default_factory=list)


class Assembler:
    """Collects drafts, numbers the slots, and writes families with their data columns."""

    def __init__(self, pool: Pool, constants: Constants, fuser: Fuser, groups: Groups, dtype: Any) -> None:
        self.pool, self.constants, self.fuser, self.groups = pool, constants, fuser, groups
        self.dtype = dtype
        self.drafts: dict[Any, Draft] = {}
        self.calls: list[CallDraft] = []
        self.fixed_slots: dict[int, int] = {}
        """Constant id → id of a slot that holds it (first stages of loops)."""
        self.is_slot = fuser.kept & fuser.live

    # Collecting

    def collect(self, ids: np.ndarray, weights: np.ndarray, bias: np.ndarray, carried: np.ndarray) -> None:
        """Make drafts of all losses and definitions."""
        ids, weights = self._call_losses(ids, weights, (self.fuser.fan_out > 0) | carried)
        self._terms("loss", ids, weights, None, None)
        if bias.size:
            total = self.constants.times(bias[1], bias[0])
            one = self.constants.sums(np.zeros(len(total), np.int64), total, 1, self.dtype)
            self._terms("loss", self.constants.as_ids(one, self.dtype), np.zeros(1, np.int32), None, None)
        for b, block in enumerate(self.pool.blocks):
            mask = self.fuser.kept[block.start : block.stop] & self.fuser.todo[block.start : block.stop]
            if not mask.any():
                continue
            places = np.flatnonzero(mask) + block.start
            whole = places[self.groups.group_of[places] >= 0]
            if block.kind in (OP, ROW):
                for group in np.unique(self.groups.group_of[whole]):
                    chosen = whole[self.groups.group_of[whole] == group]
                    template, args, consts = self.groups.members[group]
                    rows = self.groups.row_of[chosen]
                    self._draft("node", template, block.instr, args[rows], consts[rows], None, chosen)
            places = places[self.groups.group_of[places] < 0]
            if block.kind == ROW and places.size:
                ptr, cols, coefs = self.fuser.rows[b]
                terms, owner = row_terms(ptr, places - block.start)
                self._terms("node", cols[terms], coefs[terms], places[owner], block.instr)

    def _terms(
        self, kind: str, ids: np.ndarray, coefs: np.ndarray, outs: np.ndarray | None, instr: Any
    ) -> None:
        """Draft coef · value, as losses or as contributions to sums."""
        if not ids.size:
            return
        fixed = (ids < 0) & (coefs < 0)
        if fixed.any():
            ids, coefs = ids.copy(), coefs.copy()
            ids[fixed], coefs[fixed] = self.constants.times(coefs[fixed], ids[fixed]), 0
        codes = self.groups.codes(ids)
        for code in np.unique(codes):
            chosen = np.flatnonzero(codes == code)
            template = self.groups.table.templates[code]
            args, consts = self.groups.columns(ids[chosen], template)
            source = instr if instr is not None else self._instr_of(ids[chosen[0]])
            self._draft(
                kind, template, source, args, consts, coefs[chosen], None if outs is None else outs[chosen]
            )

    def _instr_of(self, id_: Any) -> Any:
        if id_ < 0:
            return None
        block = self.pool.blocks[int(np.searchsorted(self.fuser.starts, id_, side="right")) - 1]
        return block.instr

    def _draft(
        self, kind: str, template: Template, instr: Any, args: Any, consts: Any, weights: Any, outs: Any
    ) -> None:
        draft = self.drafts.setdefault((kind, template.index), Draft(kind, template, instr))
        if draft.instr is None:
            draft.instr = instr
        draft.args.append(args)
        draft.consts.append(consts)
        draft.weights.append(np.zeros(len(args), np.int32) if weights is None else weights)
        draft.outs.append(np.zeros(0, np.int32) if outs is None else outs)

    def add_joint(self, joint: Joint) -> None:
        """Draft an extracted function; several results that are added up are one."""
        found = joint.extract
        nodes, outs, consts = list(found.nodes), tuple(found.outs), found.consts
        slots: np.ndarray | None = joint.outs
        weights = None
        if joint.kind != "node":
            slots = None if joint.kind == "loss" else joint.outs[:, 0]
            if len(outs) == 1:
                weights = joint.coefs[:, 0]
            else:
                signs = tuple(2 if c < 0 else int(c) for c in joint.coefs[0])
                factors = [joint.coefs[:, t] for t, sign in enumerate(signs) if sign == 2]
                places = [("c", consts.shape[1] + i) for i in range(len(factors))]
                consts = np.concatenate([consts, *[f[:, None] for f in factors]], 1)
                nodes.append((row_op(signs), (*outs, *places)))
                outs = (("n", len(nodes) - 1),)
        dtypes = tuple(self._dtype_of(i) for i in found.args[0].tolist())
        template = self.groups.table.intern(
            dtypes, tuple(np.dtype(self.constants.dtype_of(c)) for c in consts[0]), nodes, *outs
        )
        instr = self._instr_of(found.inner[-1][0])
        self._draft("loss" if slots is None else "node", template, instr, found.args, consts, weights, slots)

    def _dtype_of(self, leaf: int) -> np.dtype:
        return self.groups.table.templates[self.groups.leaf_code[leaf]].args[0]

    # Calls

    def _call_losses(
        self, ids: np.ndarray, weights: np.ndarray, used: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft the calls. An output that only the objective reads, with a weight, is a loss and no slot."""
        rest = np.ones(len(ids), bool)
        for block in self.pool.blocks:
            if block.kind != CALL:
                continue
            m = block.call.m
            slots = used[block.start : block.stop].copy().reshape(-1, m)
            live = self.fuser.live[block.start : block.stop].reshape(-1, m)
            needed = np.any(slots & live, 0)
            here = (ids >= block.start) & (ids < block.stop)
            mine = here & ~needed[(ids - block.start) % m] if m else np.zeros_like(here)
            # The last of several equal calls is read by the objective alone: its outputs are slots like the others'.
            slots.ravel()[ids[here & ~mine] - block.start] = True
            table = np.full((block.n // m, m), self.constants.scalar(0, self.dtype), np.int32)
            where = ids[mine] - block.start
            table[where // m, where % m] = self.constants.as_ids(weights[mine], self.dtype)
            weighed = np.zeros(table.shape, bool)
            weighed[where // m, where % m] = True
            rest &= ~mine
            self.is_slot[block.start : block.stop] = False
            rows = np.flatnonzero((slots & live).any(1)) if needed.any() else np.zeros(0, np.int64)
            if rows.size:
                outs = block.start + rows[:, None] * m + np.flatnonzero(needed)
                self.is_slot[outs.ravel()] = True
                self._call_draft(block, rows, np.flatnonzero(needed).tolist(), outs, None)
            columns = np.flatnonzero(weighed.any(0)).tolist()
            rows = np.flatnonzero(weighed.any(1))
            if rows.size:
                self._call_draft(block, rows, columns, None, table[rows][:, columns])
        return ids[rest], weights[rest]

    def _call_draft(
        self, block: Block, rows: np.ndarray, outputs: list[int], outs: Any, weights: Any
    ) -> None:
        operands = [self._without_mixed(o[rows]) for o in block.operands]
        used = self._used_columns(block, outputs)
        zero = self.constants.scalar(0, self.dtype)
        operands = [
            o if u else np.full(len(rows), zero, np.int32) for o, u in zip(operands, used, strict=True)
        ]
        codes = (
            np.stack([self.groups.codes(o) for o in operands], 1)
            if operands
            else np.zeros((len(rows), 0), np.int32)
        )
        patterns, which = unique_rows(codes) if operands else ([codes[0]], np.zeros(len(rows), np.int64))
        for p, pattern in enumerate(patterns):
            chosen = np.flatnonzero(which == p)
            templates = [self.groups.table.templates[c] for c in pattern]
            parts = [self.groups.columns(o[chosen], t) for o, t in zip(operands, templates, strict=True)]
            empty = np.zeros((len(chosen), 0), np.int32)
            args = np.concatenate([a for a, _ in parts] + [empty], 1)
            consts = np.concatenate([c for _, c in parts] + [empty], 1)
            for amap, kept, places in sharing(args):
                key = (block.call.key, tuple(pattern.tolist()), amap, tuple(outputs), outs is None)
                at = chosen[places]
                self.calls.append(
                    CallDraft(
                        "loss" if outs is None else "node",
                        block,
                        templates,
                        amap,
                        args[places][:, kept],
                        consts[places],
                        outputs,
                        None if outs is None else outs[at],
                        None if weights is None else weights[at],
                        rows[at],
                        key,
                    )
                )

    def _used_columns(self, block: Block, outputs: list[int]) -> list[bool]:
        uses = block.call.uses
        return [True] * len(block.operands) if uses is None else np.any(uses[outputs], 0).tolist()

    def _without_mixed(self, column: np.ndarray) -> np.ndarray:
        """Hold constants in slots where the same column is variable elsewhere.

        The first stage of a loop reads a constant state. As slots without arguments these few scalars spare
        a second copy of the loop body, which would be compiled and differentiated for one instance.
        """
        fixed = column < 0
        if not fixed.any() or fixed.all() or not is_float(self.constants.dtype_of(column[fixed][0])):
            return column
        column = column.copy()
        values, which = np.unique(column[fixed], return_inverse=True)
        for value in values.tolist():
            self.fixed_slots.setdefault(value, self.pool.size + len(self.fixed_slots))
        column[fixed] = np.array([self.fixed_slots[v] for v in values.tolist()], np.int32)[which.ravel()]
        self.groups.extend(self.pool.size + len(self.fixed_slots), self.dtype)
        return column

    def merge_single_losses(self) -> None:
        """Join losses that occur once into few: their sum has the patterns of its terms and no others."""
        single = [
            key
            for key, d in self.drafts.items()
            if d.kind == "loss" and sum(map(len, d.args)) == 1 and _is_small(d.template)
        ]
        table = self.groups.table
        while len(single) > 1:
            chosen, slots, size = [], set(), 0
            for key in single:
                draft = self.drafts[key]
                union = slots | set(draft.args[0].ravel().tolist())
                if len(union) <= MAX_ARGS and size + len(draft.template.nodes) <= MAX_OPS:
                    chosen.append(key)
                    slots, size = union, size + len(draft.template.nodes)
            single = [k for k in single if k not in chosen]
            if len(chosen) < 2:
                continue
            drafts = [self.drafts.pop(k) for k in chosen]
            weights = [self.constants.as_ids(d.weights[0], self.dtype) for d in drafts]
            children = [d.template for d in drafts] + [table.constant(np.dtype(self.dtype))] * len(drafts)
            args = np.concatenate([d.args[0] for d in drafts], 1)
            consts = np.concatenate([*[d.consts[0] for d in drafts], *[w[:, None] for w in weights]], 1)
            ((amap, kept, _),) = sharing(args)
            cmap, kept_consts = merge_columns(consts)
            template = table.compose(row_op((2,) * len(drafts)), children, amap, cmap)
            self._draft("loss", template, drafts[0].instr, args[:, kept], consts[:, kept_consts], None, None)

    # Slots

    def number_slots(self, num_inputs: int) -> int:
        """Number the slots: inputs, constants, then kept values in the order of time. Returns their count."""
        size = self.pool.size + len(self.fixed_slots)
        self.slot_of = np.full(size, -1, np.int32)
        self.slot_of[:num_inputs] = np.arange(num_inputs)
        keys, ids = [], []
        for block in self.pool.blocks:
            mask = self.is_slot[block.start : block.stop]
            if mask.any() and block.start >= num_inputs:
                ids.append(np.flatnonzero(mask) + block.start)
                keys.append(block.keys()[mask])
        at = num_inputs
        for fixed in self.fixed_slots.values():
            self.slot_of[fixed] = at
            at += 1
        if ids:
            every = np.concatenate(ids)
            order = np.lexsort((every, np.concatenate(keys)))
            self.slot_of[every[order]] = np.arange(at, at + len(every))
            at += len(every)
        return at

    # Families

    def write(self) -> tuple[list[Family], list[tuple[Const, ...]], list[tuple[int, ...]]]:
        """Return families, for each its data constants, and how many leading axes to drop from each."""
        if self.fixed_slots:
            places = np.array(list(self.fixed_slots.values()), np.int32)
            ids = np.array(list(self.fixed_slots), np.int32)
            for dtype, chosen in self.constants.by_dtype(ids):
                self._draft(
                    "node",
                    self.groups.table.constant(dtype),
                    None,
                    np.zeros((len(chosen), 0), np.int32),
                    ids[chosen][:, None],
                    None,
                    places[chosen],
                )
        families, data, drops = [], [], []
        for draft in self.drafts.values():
            family, columns, drop = self._write_draft(draft)
            families.append(family)
            data.append(columns)
            drops.append(drop)
        for drafts in _by_key(self.calls):
            family, columns, drop = write_call(self.constants, self.slot_of, drafts)
            families.append(family)
            data.append(columns)
            drops.append(drop)
        order = sorted(range(len(families)), key=lambda f: families[f].is_loss)
        return [families[f] for f in order], [data[f] for f in order], [drops[f] for f in order]

    def _write_draft(self, draft: Draft) -> tuple[Family, tuple, tuple]:
        template = draft.template
        args = self.slot_of[np.concatenate(draft.args)]
        consts = np.concatenate(draft.consts)
        weights = np.concatenate(draft.weights)
        weighted = bool((weights != 0).any())
        columns = [consts[:, j] for j in range(consts.shape[1])]
        if weighted:
            columns.append(self.constants.as_ids(weights, self.dtype))
        pack = Packer(self.constants, columns)
        jac, hess = template.patterns()
        is_loss = draft.kind == "loss"

        def psi(x: Any, *data: Any) -> Any:
            found = pack.unpack(data)
            inputs = [entry(x, i).astype(d) for i, d in enumerate(template.args)]
            values = template.evaluate(inputs, found[: len(template.consts)])
            values = [y * found[-1] for y in values] if weighted else values
            return jnp.asarray(values[0]) if is_loss else jnp.stack([jnp.asarray(y) for y in values])

        instr = draft.instr
        family = Family(
            fn=psi,
            args=np.ascontiguousarray(args, np.int32),
            outs=None if is_loss else self.slot_of[np.concatenate(draft.outs)].reshape(len(args), -1),
            data_axes=pack.axes,
            jac_pattern=jac,
            hess_pattern=hess,
            name=_template_name(template),
            where="" if instr is None else where_of(instr),
        )
        return family, pack.data, (0,) * len(pack.data)


def _is_small(template: Template) -> bool:
    return template.k <= MAX_ARGS and len(template.nodes) <= MAX_OPS


def _by_key(calls: list[CallDraft]) -> list[list[CallDraft]]:
    found: dict[Any, list[CallDraft]] = {}
    for draft in calls:
        found.setdefault(draft.key, []).append(draft)
    return list(found.values())


def _template_name(template: Template) -> str:
    names = [op.name for op, _ in template.nodes]
    if not names:
        return "linear" if template.k else "constant"
    return "·".join(dict.fromkeys(reversed(names)))[:24]
