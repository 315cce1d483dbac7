"""Scalar programs: a small function, written out as operations on single numbers and simplified.

Products with known zeros and ones disappear, equal operations become one, and what no output needs leaves nothing
behind. That is how structural zeros of derivatives are never computed. The program then runs on vectors, one
entry per instance: operations on long vectors, which XLA fuses and vectorises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from gnewt.jaxprs import size_of
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.primitives import primitive
from gnewt.kkt.derivatives.keep import Keeper

Operation: TypeAlias = Callable[..., jax.Array]
"""A scalar operation that JAX applies to vectors too."""
Key: TypeAlias = Hashable
"""What two equal operations have in common."""
_WORTH_KEEPING = 30
"""Multiplications that must be saved by keeping a value that is used more than once."""


_Known: TypeAlias = np.generic | None
"""The value of a node, if it is known."""


class NotScalar(Exception):
    """The function has an operation that is not written out, or it is too large."""


class ScalarProgram:
    """Operations on scalars, each made once. Node i has an operation (or None), arguments and a dtype."""

    def __init__(self, limit: int) -> None:
        self.ops: list[Operation | None] = []
        self.args: list[tuple[int, ...]] = []
        self.names: list[str] = []
        self.dtypes: list[np.dtype] = []
        self.value: dict[int, np.generic] = {}
        """Nodes with a known value."""
        self._made: dict[Key, int] = {}
        self.limit = limit

    def _new(self, key: Key, name: str, op: Operation | None, args: tuple[int, ...], dtype: DTypeLike) -> int:
        node = self._made.get(key)
        if node is None:
            node = self._made[key] = len(self.ops)
            if node >= self.limit:
                raise NotScalar(f"more than {self.limit} scalar operations")
            self.ops.append(op)
            self.args.append(args)
            self.names.append(name)
            self.dtypes.append(np.dtype(dtype))
        return node

    def symbols(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Make inputs, an array of nodes."""
        nodes = [self._new(("in", len(self.ops)), "in", None, (), dtype) for _ in range(size_of(shape))]
        return np.array(nodes, np.int32).reshape(shape)

    def constant(self, value: Numeric) -> int:
        """Return the node of a known number."""
        value = np.asarray(value)
        node = self._new((value.dtype.str, value.tobytes()), "const", None, (), value.dtype)
        self.value[node] = value.flat[0]
        return node

    def constants(self, value: Numeric) -> np.ndarray:
        """Return the nodes of a known array."""
        value = np.asarray(value)
        return np.array([self.constant(v) for v in value.ravel()], np.int32).reshape(value.shape)

    def apply(self, name: str, key: Key, op: Operation, args: tuple[int, ...], dtype: DTypeLike) -> int:
        """Apply an elementwise operation; simplified."""
        values = [self.value.get(a) for a in args]
        if None not in values:
            return self.constant(np.asarray(_evaluate(name, op, values), dtype))
        known = self._simplify(name, args, values, dtype)
        if known is not None:
            return known
        if primitive(name).commutative and args[0] > args[1]:
            args = (args[1], args[0])
        return self._new((key, args), name, op, args, dtype)

    # Arithmetic with nodes

    def add(self, a: int, b: int) -> int:
        return self.apply("add", "add", jax.lax.add, (a, b), self.dtypes[a])

    def sub(self, a: int, b: int) -> int:
        return self.apply("sub", "sub", jax.lax.sub, (a, b), self.dtypes[a])

    def mul(self, a: int, b: int) -> int:
        return self.apply("mul", "mul", jax.lax.mul, (a, b), self.dtypes[a])

    def div(self, a: int, b: int) -> int:
        return self.apply("div", "div", jax.lax.div, (a, b), self.dtypes[a])

    def convert(self, a: int, dtype: DTypeLike) -> int:
        op = partial(jax.lax.convert_element_type, new_dtype=np.dtype(dtype))
        return self.apply("convert_element_type", ("convert", np.dtype(dtype)), op, (a,), dtype)

    def neg(self, a: int) -> int:
        return self.apply("neg", "neg", jax.lax.neg, (a,), self.dtypes[a])

    def _simplify(
        self, name: str, args: tuple[int, ...], values: list[_Known], dtype: DTypeLike
    ) -> int | None:
        """Return a node that has the same value up to rounding, or None. 0·x is 0, whatever x is."""
        rule = getattr(self, f"_simplify_{name}", None)
        if rule is not None:
            return rule(*args, *values)
        if name == "add_any":
            return self.add(*args)
        if name == "square":
            return self.mul(args[0], args[0])
        if name == "stop_gradient":
            return args[0]
        if name == "convert_element_type" and self.dtypes[args[0]] == np.dtype(dtype):
            return args[0]
        if name == "select_n":
            if len(set(args[1:])) == 1:
                return args[1]
            return None if values[0] is None else args[1 + int(values[0])]
        return None

    def _is_negated(self, a: int) -> int | None:
        return self.args[a][0] if self.names[a] == "neg" else None

    def _scaled(self, a: int) -> tuple[np.generic, int] | None:
        """Return (c, x) where node a is c·x with a known c."""
        if self.names[a] == "mul":
            for c, x in (self.args[a], self.args[a][::-1]):
                if c in self.value:
                    return self.value[c], x
        return None

    def _simplify_add(self, a: int, b: int, va: _Known, vb: _Known) -> int | None:
        if va is not None and va == 0:
            return b
        if vb is not None and vb == 0:
            return a
        for x, y in ((a, b), (b, a)):
            negated = self._is_negated(y)
            if negated is not None:
                return self.sub(x, negated)
        return None

    def _simplify_sub(self, a: int, b: int, va: _Known, vb: _Known) -> int | None:
        if vb is not None and vb == 0:
            return a
        if va is not None and va == 0:
            return self.neg(b)
        negated = self._is_negated(b)
        return None if negated is None else self.add(a, negated)

    def _simplify_mul(self, a: int, b: int, va: _Known, vb: _Known) -> int | None:
        for v, other in ((va, b), (vb, a)):
            if v is None:
                continue
            if v == 0:
                return self.constant(np.zeros((), self.dtypes[a]))
            if v == 1:
                return other
            if v == -1:
                return self.neg(other)
            scaled = self._scaled(other)
            if scaled is not None:
                return self.mul(
                    self.constant(np.asarray(np.multiply(v, scaled[0]), self.dtypes[a])), scaled[1]
                )
            negated = self._is_negated(other)
            if negated is not None:
                return self.mul(self.constant(np.asarray(np.negative(v), self.dtypes[a])), negated)
            return None
        for x, y in ((a, b), (b, a)):
            negated = self._is_negated(x)
            if negated is not None:
                return self.neg(self.mul(negated, y))
        return None

    def _simplify_div(self, a: int, b: int, va: _Known, vb: _Known) -> int | None:
        if va is not None and va == 0:
            return self.constant(np.zeros((), self.dtypes[a]))
        if vb is not None and vb == 1:
            return a
        for x, build in ((a, lambda n: self.div(n, b)), (b, lambda n: self.div(a, n))):
            negated = self._is_negated(x)
            if negated is not None:
                return self.neg(build(negated))
        return None

    def _simplify_neg(self, a: int, va: _Known) -> int | None:
        if self.names[a] == "neg":
            return self.args[a][0]
        if self.names[a] == "sub":
            return self.sub(*self.args[a][::-1])
        scaled = self._scaled(a)
        if scaled is not None and np.issubdtype(self.dtypes[a], np.floating):
            return self.mul(self.constant(np.asarray(np.negative(scaled[0]), self.dtypes[a])), scaled[1])
        return None


def _evaluate(name: str, op: Operation, values: Sequence[_Known]) -> Numeric:
    """Evaluate an operation on known numbers, by NumPy where it is the same."""
    known = primitive(name)
    if known.exact and known.numpy is not None:
        return known.numpy(*values)
    return op(*[jnp.asarray(v) for v in values])


class Vectors:
    """A program running on vectors: inputs are given, values are computed when they are asked for."""

    def __init__(
        self, program: ScalarProgram, inputs: Mapping[int, Numeric], outputs: Sequence[int], keeper: Keeper
    ) -> None:
        self._program = program
        self._values: dict[int, Numeric] = dict(inputs)
        self._keeper = keeper
        self._kept = _worth_keeping(program, outputs)

    def give(self, nodes: np.ndarray, values: Sequence[Numeric]) -> None:
        """Set inputs that were not known before."""
        self._values.update(zip(np.ravel(nodes).tolist(), values, strict=True))

    def get(self, nodes: Sequence[int]) -> list[Numeric]:
        """Compute the given nodes: vectors, or scalars where all instances agree."""
        program, values = self._program, self._values
        for node in live_nodes(program, nodes, values):
            if node in program.value:
                values[node] = program.value[node]  # type: ignore[assignment]
                continue
            op = program.ops[node]
            assert op is not None, "an input was not given"
            args = [values[a] for a in program.args[node]]
            shape = np.broadcast_shapes(*[np.shape(a) for a in args])
            dtypes = [program.dtypes[a] for a in program.args[node]]
            found = op(
                *[
                    jnp.broadcast_to(jnp.asarray(a, dtype), shape)
                    for a, dtype in zip(args, dtypes, strict=True)
                ]
            )
            if node in self._kept and shape:
                found = self._keeper.keep(found, primitive(program.names[node]).costly)
            values[node] = found
        return [values[node] for node in nodes]


def live_nodes(program: ScalarProgram, outputs: Iterable[int], known: Container[int] = ()) -> list[int]:
    """Return the nodes that the outputs need and that are not known, arguments first."""
    seen: set[int] = set()
    stack = [int(node) for node in outputs]
    while stack:
        node = stack.pop()
        if node not in seen and node not in known:
            seen.add(node)
            stack.extend(program.args[node])
    return sorted(seen)


def _worth_keeping(program: ScalarProgram, outputs: Sequence[int]) -> set[int]:
    """Choose the values that cost more to repeat for every use than to keep."""
    live = live_nodes(program, outputs)
    uses = Counter(a for node in live for a in program.args[node])
    uses.update(outputs)
    cost: dict[int, int] = {}
    kept = set()
    for node in live:
        name = program.names[node]
        if not program.args[node]:
            cost[node] = 0
            continue
        cost[node] = 1 + sum(cost[a] for a in program.args[node])
        # A costly operation is kept even where one scaling follows: XLA may move the scaling past the quotient.
        if (
            primitive(name).costly
            or name == "div"
            or (uses[node] > 1 and (cost[node] - 1) * (uses[node] - 1) >= _WORTH_KEEPING)
        ):
            cost[node] = 0
            if name != "div" and np.issubdtype(program.dtypes[node], np.floating):
                kept.add(node)
    return kept
