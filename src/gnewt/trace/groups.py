"""Groups: substitute non-kept values into their consumers, many places at once.

In: the scalar pool and what the fuser keeps. Out: for every value that is not a leaf its group: one template, with
argument ids [n, k] and constant ids [n, c]. Places whose operands have equal templates and equal sharing of
arguments form one group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnewt.trace.constants import Constants
from gnewt.trace.fuse import Fuser
from gnewt.trace.scalar_pool import CALL, OP, ROW, Pool
from gnewt.trace.tail import row_terms
from gnewt.trace.template import Op, Template, TemplateTable, row_op


class Groups:
    """Templates, arguments and constants of all live values."""

    def __init__(self, pool: Pool, constants: Constants, fuser: Fuser) -> None:
        self.pool, self.constants, self.fuser = pool, constants, fuser
        self.table = TemplateTable()
        self.group_of = np.full(pool.size, -1, np.int32)
        self.row_of = np.zeros(pool.size, np.int32)
        self.members: list[tuple[Template, np.ndarray, np.ndarray]] = []
        self.leaf_code = np.full(pool.size, -1, np.int32)
        for block in pool.blocks:
            if block.kind == CALL:
                codes = [self.table.leaf(np.dtype(d)).index for d in block.dtypes]
                self.leaf_code[block.start : block.stop] = np.tile(codes, block.n // max(block.call.m, 1))
            else:
                self.leaf_code[block.start : block.stop] = self.table.leaf(np.dtype(block.dtype)).index
        self._template_of_group = np.zeros(1024, np.int32)
        self._rows: dict[Any, Op] = {}

    def run(self) -> None:
        """Visit the live values in order of creation."""
        fuser = self.fuser
        for b, block in enumerate(self.pool.blocks):
            if block.kind == OP:
                mask = fuser.todo[block.start : block.stop]
                if mask.any():
                    places = np.flatnonzero(mask) + block.start
                    self.build(
                        block.operation, [o if mask.all() else o[mask] for o in block.operands], places
                    )
            elif block.kind == ROW and b in fuser.rows:
                self._build_rows(b, block)

    def extend(self, size: int, dtype: Any) -> None:
        """Make room for slots that hold constants."""
        more = size - len(self.leaf_code)
        code = self.table.leaf(np.dtype(dtype)).index
        self.leaf_code = np.concatenate([self.leaf_code, np.full(more, code, np.int32)])
        self.fuser.leaf = np.concatenate([self.fuser.leaf, np.ones(more, bool)])
        self.group_of = np.concatenate([self.group_of, np.full(more, -1, np.int32)])

    def _build_rows(self, b: int, block: Any) -> None:
        ptr, cols, coefs = self.fuser.rows[b]
        places = np.arange(block.n) + block.start
        # A kept sum of few terms is one instance; a longer one takes an instance for every term.
        count = np.diff(ptr)
        whole = ~self.fuser.kept[places] | ~self.fuser.termwise[places]
        rows = np.flatnonzero((count > 0) & self.fuser.todo[places] & whole)
        if not rows.size:
            return
        terms, owner = row_terms(ptr, rows)
        count = np.diff(ptr)[rows]
        kind = np.where(coefs[terms] < 0, 2, coefs[terms])
        position = np.arange(len(owner)) - np.concatenate([[0], np.cumsum(count)[:-1]])[owner]
        # Rows with the same signs are one operation.
        signs = np.full((len(rows), int(count.max())), -1, np.int8)
        signs[owner, position] = kind
        patterns, which = unique_rows(signs)
        for p, pattern in enumerate(patterns):
            chosen = np.flatnonzero(which == p)
            key = tuple(int(s) for s in pattern if s >= 0)
            first = ptr[rows[chosen]]
            table = cols[first[:, None] + np.arange(len(key))]
            factors = coefs[first[:, None] + np.arange(len(key))]
            operands = [table[:, t] for t in range(len(key))]
            operands += [factors[:, t] for t in range(len(key)) if key[t] == 2]
            op = self._rows.setdefault(key, row_op(key))
            self.build(op, operands, places[rows[chosen]])

    def codes(self, ids: np.ndarray) -> np.ndarray:
        """Template index of each id, as its consumers see it."""
        out = np.empty(len(ids), np.int32)
        variable = ids >= 0
        if not variable.all():
            fixed = np.flatnonzero(~variable)
            for dtype, chosen in self.constants.by_dtype(ids[fixed]):
                out[fixed[chosen]] = self.table.constant(dtype).index
        safe = ids[variable]
        leaf = self.fuser.leaf[safe]
        out[variable] = np.where(leaf, self.leaf_code[safe], self._template_of_group[self.group_of[safe]])
        return out

    def columns(self, ids: np.ndarray, template: Template) -> tuple[np.ndarray, np.ndarray]:
        """Arguments and constants of ids that share a template."""
        if template.k == 1 and not template.nodes and not template.consts:
            return ids[:, None], np.zeros((len(ids), 0), np.int32)
        if ids.size and ids[0] < 0:
            return np.zeros((len(ids), 0), np.int32), ids[:, None]
        groups = self.group_of[ids]
        rows = self.row_of[ids]
        if (groups == groups[0]).all():
            _, args, consts = self.members[groups[0]]
            return args[rows], consts[rows]
        args = np.empty((len(ids), template.k), np.int32)
        consts = np.empty((len(ids), len(template.consts)), np.int32)
        for g in np.unique(groups):
            chosen = groups == g
            _, a, c = self.members[g]
            args[chosen], consts[chosen] = a[rows[chosen]], c[rows[chosen]]
        return args, consts

    def build(self, op: Op, operands: list[np.ndarray], places: np.ndarray) -> None:
        """Form the groups of op(operands) at the given ids."""
        codes = np.stack([self.codes(o) for o in operands], 1)
        patterns, which = unique_rows(codes)
        for p, pattern in enumerate(patterns):
            chosen = slice(None) if len(patterns) == 1 else np.flatnonzero(which == p)
            children = [self.table.templates[c] for c in pattern]
            parts = [self.columns(o[chosen], t) for o, t in zip(operands, children, strict=True)]
            args = np.concatenate([a for a, _ in parts], 1)
            consts = np.concatenate([c for _, c in parts], 1)
            cmap, kept_consts = merge_columns(consts)
            for amap, kept_args, rows in sharing(args):
                template = self.table.compose(op, children, amap, cmap)
                self._add(
                    template, args[rows][:, kept_args], consts[rows][:, kept_consts], places[chosen][rows]
                )

    def _add(self, template: Template, args: np.ndarray, consts: np.ndarray, places: np.ndarray) -> None:
        number = len(self.members)
        if number == len(self._template_of_group):
            self._template_of_group = np.concatenate([self._template_of_group, np.zeros(number, np.int32)])
        self._template_of_group[number] = template.index
        self.members.append((template, args, consts))
        self.group_of[places] = number
        self.row_of[places] = np.arange(len(places))


def unique_rows(table: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Distinct rows, in order of first appearance, and which of them each row is."""
    if (table == table[0]).all():
        return [table[0]], np.zeros(len(table), np.int64)
    low = table.min(0).astype(np.int64)
    span = table.max(0).astype(np.int64) - low + 1
    if np.sum(np.log2(span)) < 61.9:
        code = np.zeros(len(table), np.int64)
        for j in range(table.shape[1]):
            code = code * span[j] + (table[:, j] - low[j])
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
    else:
        _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return [table[first[i]] for i in order], rank[which.ravel()]


def merge_columns(consts: np.ndarray) -> tuple[tuple[int, ...], list[int]]:
    """Identify constant columns that are equal at all places: (map of columns, columns kept)."""
    kept: list[int] = []
    mapping: list[int] = []
    for j in range(consts.shape[1]):
        for i, other in enumerate(kept):
            if consts[0, j] == consts[0, other] and np.array_equal(consts[:, j], consts[:, other]):
                mapping.append(i)
                break
        else:
            mapping.append(len(kept))
            kept.append(j)
    return tuple(mapping), kept


def sharing(args: np.ndarray) -> list[tuple[tuple[int, ...], list[int], Any]]:
    """Split places by which argument columns name the same slot.

    Returns a list of (map of columns to distinct arguments, columns kept, places).
    """
    n, k = args.shape
    if k <= 1:
        return [(tuple(range(k)), list(range(k)), slice(None))]
    ordered = np.sort(args, 1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if not repeated.any():
        return [(tuple(range(k)), list(range(k)), slice(None))]
    first = np.tile(np.arange(k, dtype=np.int32), (n, 1))
    rows = np.flatnonzero(repeated)
    if k <= 40:
        for j in range(1, k):
            for i in range(j - 1, -1, -1):
                equal = rows[args[rows, i] == args[rows, j]]
                first[equal, j] = first[equal, i]
    else:
        for r in rows:
            _, at, inverse = np.unique(args[r], return_index=True, return_inverse=True)
            first[r] = at[inverse.ravel()]
    out = []
    patterns, which = unique_rows(first)
    for p, pattern in enumerate(patterns):
        kept = sorted(set(pattern.tolist()))
        number = {c: i for i, c in enumerate(kept)}
        places = slice(None) if len(patterns) == 1 else np.flatnonzero(which == p)
        out.append((tuple(number[c] for c in pattern.tolist()), kept, places))
    return out
