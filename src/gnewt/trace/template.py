"""Templates: hash-consed expressions over argument and constant columns. The local functions of families.

Constants are columns, never literals, so equal code with other numbers gives the same template. Structural
sparsity is read off the expression: a product couples its factors, a sum couples nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Ref = tuple[str, int]
"""("a", i): argument i; ("c", j): constant j; ("n", l): node l."""


@dataclasses.dataclass(eq=False)
class Op:
    """A scalar operation with what is known about its derivatives."""

    key: Any
    name: str
    fn: Callable
    """fn(list of scalars) → scalar."""
    active: tuple[bool, ...] | None = None
    """Which operands have a derivative; all if None."""
    curved: Any = "all"
    """"all", "none", or the pairs (i, j) of operands with a second derivative."""

    def is_active(self, i: int) -> bool:
        return self.active is None or self.active[i]

    def pairs(self, count: int) -> Sequence[tuple[int, int]]:
        if self.curved == "none":
            return ()
        if self.curved == "all":
            return [
                (i, j) for i in range(count) for j in range(i + 1) if self.is_active(i) and self.is_active(j)
            ]
        return self.curved


@dataclasses.dataclass(eq=False)
class Template:
    """An expression DAG: nodes in topological order, the last reference is the value."""

    index: int
    args: tuple[Any, ...]
    """dtype of each argument."""
    consts: tuple[Any, ...]
    """dtype of each constant column."""
    nodes: tuple[tuple[Op, tuple[Ref, ...]], ...]
    out: Ref

    @property
    def k(self) -> int:
        return len(self.args)

    def evaluate(self, args: Sequence[Any], consts: Sequence[Any]) -> Any:
        """Evaluate on scalars."""
        values: list[Any] = []
        env = {"a": args, "c": consts, "n": values}
        for op, refs in self.nodes:
            values.append(op.fn([env[tag][i] for tag, i in refs]))
        tag, i = self.out
        return env[tag][i]

    def patterns(self) -> tuple[np.ndarray, np.ndarray]:
        """bool[k] and bool[k, k]: where the first and second derivative may be nonzero."""
        k = self.k
        unit = np.eye(k, dtype=bool)
        none = np.zeros(k, bool)
        flat = np.zeros((k, k), bool)
        firsts: list[np.ndarray] = []
        seconds: list[np.ndarray] = []

        def read(ref: Ref) -> tuple[np.ndarray, np.ndarray]:
            tag, i = ref
            if tag == "a":
                return unit[i], flat
            return (firsts[i], seconds[i]) if tag == "n" else (none, flat)

        for op, refs in self.nodes:
            parts = [read(r) for r in refs]
            first, second = none.copy(), flat.copy()
            for i, (d, h) in enumerate(parts):
                if op.is_active(i):
                    first |= d
                    second |= h
            for i, j in op.pairs(len(refs)):
                second |= np.outer(parts[i][0], parts[j][0])
            firsts.append(first)
            seconds.append(second | second.T)
        return read(self.out)


class TemplateTable:
    """Interns templates: one object per expression."""

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self._by_key: dict[Any, Template] = {}
        self._composed: dict[Any, Template] = {}

    def _intern(
        self, args: tuple, consts: tuple, nodes: list[tuple[Op, tuple[Ref, ...]]], out: Ref
    ) -> Template:
        key = (args, consts, tuple((op.key, refs) for op, refs in nodes), out)
        if key not in self._by_key:
            self._by_key[key] = Template(len(self.templates), args, consts, tuple(nodes), out)
            self.templates.append(self._by_key[key])
        return self._by_key[key]

    def leaf(self, dtype: Any) -> Template:
        """The template of a slot."""
        return self._intern((dtype,), (), [], ("a", 0))

    def constant(self, dtype: Any) -> Template:
        """The template of a constant."""
        return self._intern((), (dtype,), [], ("c", 0))

    def compose(
        self, op: Op, children: Sequence[Template], args: tuple[int, ...], consts: tuple[int, ...]
    ) -> Template:
        """Apply op to templates; `args`/`consts` map the children's columns, in a row, to the new columns."""
        memo = (op.key, tuple(c.index for c in children), args, consts)
        if memo in self._composed:
            return self._composed[memo]
        arg_dtypes: list[Any] = [None] * (max(args, default=-1) + 1)
        const_dtypes: list[Any] = [None] * (max(consts, default=-1) + 1)
        nodes: list[tuple[Op, tuple[Ref, ...]]] = []
        known: dict[Any, int] = {}

        def add(node_op: Op, refs: tuple[Ref, ...]) -> Ref:
            key = (node_op.key, refs)
            if key not in known:
                known[key] = len(nodes)
                nodes.append((node_op, refs))
            return ("n", known[key])

        outs = []
        at_arg = at_const = 0
        for child in children:
            amap, cmap = args[at_arg : at_arg + child.k], consts[at_const : at_const + len(child.consts)]
            at_arg, at_const = at_arg + child.k, at_const + len(child.consts)
            for i, dtype in zip(amap, child.args, strict=True):
                arg_dtypes[i] = dtype
            for i, dtype in zip(cmap, child.consts, strict=True):
                const_dtypes[i] = dtype
            local: list[Ref] = []

            def move(ref: Ref, amap: Any = amap, cmap: Any = cmap, local: Any = local) -> Ref:
                tag, i = ref
                return ("a", amap[i]) if tag == "a" else ("c", cmap[i]) if tag == "c" else local[i]

            for node_op, refs in child.nodes:
                local.append(add(node_op, tuple(move(r) for r in refs)))
            outs.append(move(child.out))
        template = self._intern(tuple(arg_dtypes), tuple(const_dtypes), nodes, add(op, tuple(outs)))
        # add() appends the final node, so the interned tuple must be taken after it.
        self._composed[memo] = template
        return template


def row_op(signs: tuple[int, ...]) -> Op:
    """Σ ± term + Σ coef · term: signs 0 and 1 are +1 and -1, 2 a coefficient column (placed after the terms)."""
    count = len(signs)
    columns = [t for t, s in enumerate(signs) if s == 2]
    place = {t: count + j for j, t in enumerate(columns)}

    def fn(values: list[Any]) -> Any:
        total = None
        for t, sign in enumerate(signs):
            term = values[t] if sign != 2 else values[place[t]] * values[t]
            if total is None:
                total = -term if sign == 1 else term
            else:
                total = total - term if sign == 1 else total + term
        return total

    pairs = tuple((t, place[t]) for t in columns)
    return Op(("row", signs), "sum" if count > 1 else "scale", fn, None, pairs)
