"""Templates: hash-consed expressions over argument and constant columns. The local functions of families.

Constants are columns, never literals, so equal code with other numbers gives the same template. Structural
sparsity is read off the expression: a product couples its factors, a sum couples nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import jax
import numpy as np

from gnewt.jaxprs.compat import DType
from gnewt.jaxprs.primitives import Curvature

Ref: TypeAlias = tuple[str, int]
"""("a", i): argument i; ("c", j): constant j; ("n", l): node l."""


@dataclasses.dataclass(eq=False)
class Op:
    """A scalar operation with what is known about its derivatives."""

    key: Hashable
    name: str
    fn: Callable[[Sequence[jax.Array]], jax.Array]
    """fn(list of scalars) → scalar."""
    active: tuple[bool, ...] | None = None
    """Which operands have a derivative; all if None."""
    curved: Curvature = "all"

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
    """An expression DAG: nodes in topological order, and which references are its values."""

    index: int
    args: tuple[DType, ...]
    """dtype of each argument."""
    consts: tuple[DType, ...]
    """dtype of each constant column."""
    nodes: tuple[tuple[Op, tuple[Ref, ...]], ...]
    outs: tuple[Ref, ...]
    """One, but for templates that were extracted for several results."""

    @property
    def k(self) -> int:
        return len(self.args)

    def evaluate(self, args: Sequence[jax.Array], consts: Sequence[jax.Array]) -> list[jax.Array]:
        """Evaluate on scalars."""
        values: list[jax.Array] = []
        env: dict[str, Sequence[jax.Array]] = {"a": args, "c": consts, "n": values}
        for op, refs in self.nodes:
            values.append(op.fn([env[tag][i] for tag, i in refs]))
        return [env[tag][i] for tag, i in self.outs]

    def patterns(self) -> tuple[np.ndarray, np.ndarray]:
        """bool[m, k] and bool[k, k]: where first derivatives, and the second one of any value, may be nonzero."""
        return patterns(self.nodes, self.outs, self.k)


def patterns(
    nodes: Sequence[tuple[Op, tuple[Ref, ...]]], outs: Sequence[Ref], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the patterns of an expression's values in its k arguments, as `Template.patterns`."""
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

    for op, refs in nodes:
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
    found = [read(ref) for ref in outs]
    return np.stack([d for d, _ in found]), np.any([h for _, h in found], axis=0)


class TemplateTable:
    """Interns templates: one object per expression."""

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self._by_key: dict[Hashable, Template] = {}
        self._composed: dict[Hashable, Template] = {}

    def intern(
        self, args: tuple, consts: tuple, nodes: list[tuple[Op, tuple[Ref, ...]]], *outs: Ref
    ) -> Template:
        """Return the template of an expression."""
        key = (args, consts, tuple((op.key, refs) for op, refs in nodes), outs)
        if key not in self._by_key:
            self._by_key[key] = Template(len(self.templates), args, consts, tuple(nodes), outs)
            self.templates.append(self._by_key[key])
        return self._by_key[key]

    def leaf(self, dtype: DType) -> Template:
        """The template of a slot."""
        return self.intern((dtype,), (), [], ("a", 0))

    def constant(self, dtype: DType) -> Template:
        """The template of a constant."""
        return self.intern((), (dtype,), [], ("c", 0))

    def compose(
        self, op: Op, children: Sequence[Template], args: tuple[int, ...], consts: tuple[int, ...]
    ) -> Template:
        """Apply op to templates; `args`/`consts` map the children's columns, in a row, to the new columns."""
        memo = (op.key, tuple(c.index for c in children), args, consts)
        if memo in self._composed:
            return self._composed[memo]
        arg_dtypes, const_dtypes = {}, {}
        nodes: list[tuple[Op, tuple[Ref, ...]]] = []
        known: dict[Hashable, int] = {}

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
            arg_dtypes.update(zip(amap, child.args, strict=True))
            const_dtypes.update(zip(cmap, child.consts, strict=True))
            # References of the child → references of the new template.
            moved: dict[Ref, Ref] = {("a", i): ("a", j) for i, j in enumerate(amap)}
            moved |= {("c", i): ("c", j) for i, j in enumerate(cmap)}
            for i, (node_op, refs) in enumerate(child.nodes):
                moved["n", i] = add(node_op, tuple(moved[r] for r in refs))
            outs.append(moved[child.outs[0]])
        arg_types = tuple(arg_dtypes[i] for i in range(len(arg_dtypes)))
        const_types = tuple(const_dtypes[i] for i in range(len(const_dtypes)))
        template = self.intern(arg_types, const_types, nodes, add(op, tuple(outs)))
        # add() appends the final node, so the interned tuple must be taken after it.
        self._composed[memo] = template
        return template


def row_op(signs: tuple[int, ...]) -> Op:
    """Σ ± term + Σ coef · term: signs 0 and 1 are +1 and -1, 2 a coefficient column (placed after the terms)."""
    count = len(signs)
    columns = [t for t, s in enumerate(signs) if s == 2]
    place = {t: count + j for j, t in enumerate(columns)}

    def fn(values: Sequence[jax.Array]) -> jax.Array:
        terms = [values[t] if sign != 2 else values[place[t]] * values[t] for t, sign in enumerate(signs)]
        total = -terms[0] if signs[0] == 1 else terms[0]
        for term, sign in zip(terms[1:], signs[1:], strict=True):
            total = total - term if sign == 1 else total + term
        return total

    pairs = tuple((t, place[t]) for t in columns)
    return Op(("row", signs), "sum" if count > 1 else "scale", fn, None, pairs)
