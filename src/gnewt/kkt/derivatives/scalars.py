"""Scalar programs: a small function, written out as operations on single numbers and simplified.

Products with known zeros and ones disappear, equal operations become one, and what no output needs leaves nothing
behind. That is how structural zeros of derivatives are never computed. The program then runs on vectors, one
entry per instance: operations on long vectors, which XLA fuses and vectorises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

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
T = TypeVar("T")

LAX: dict[str, Operation] = {
    "and": jax.lax.bitwise_and,
    "or": jax.lax.bitwise_or,
    "stop_gradient": lambda x: x,
    **{name: getattr(jax.lax, name) for name in ("max", "min", "add", "sub", "mul", "div", "neg")},
    **{name: getattr(jax.lax, name) for name in ("sin", "cos", "exp", "expm1", "log", "log1p")},
    **{name: getattr(jax.lax, name) for name in ("sqrt", "rsqrt", "tanh", "logistic", "select_n")},
}
"""Operations that equations, reductions, rules and simplifications share: their names say everything."""


class NotScalar(Exception):
    """The function has an operation that is not written out, or it is too large."""


class ScalarProgram:
    """Operations on scalars, each made once. Node i has an operation (or None), arguments and a dtype."""

    def __init__(self, limit: int) -> None:
        self.ops: list[Operation | None] = []
        self.args: list[tuple[int, ...]] = []
        self.names: list[str] = []
        self.dtypes: list[np.dtype] = []
        self.keys: list[Key] = []
        self.value: dict[int, np.generic] = {}
        """Nodes with a known value."""
        self.exponents: dict[int, int] = {}
        """Of nodes that are integer powers."""
        self.own: dict[int, Callable[[int], int]] = {}
        """Of nodes with a derivative of their own: number of an operand ↦ node of the derivative along it."""
        self.partials: dict[tuple[int, int], int] = {}
        """(node, number of an argument) ↦ node of the derivative (`partials`)."""
        self._made: dict[Key, int] = {}
        self._memo: dict[Key, Any] = {}
        self.limit = limit

    def remember(self, key: Key, make: Callable[[], T]) -> T:
        """Return what was made for a key, once per program."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def _new(self, key: Key, name: str, op: Operation | None, args: tuple[int, ...], dtype: DTypeLike) -> int:
        node = self._made.get(key)
        if node is None:
            node = self._made[key] = len(self.ops)
            if node >= self.limit:
                raise NotScalar(f"more than {self.limit} scalar operations")
            self.ops.append(op)
            self.keys.append(key)
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
        node = self._new((key, args), name, op, args, dtype)
        self.keys[node] = key
        return node

    # Arithmetic with nodes

    def add(self, a: int, b: int) -> int:
        return self.apply("add", "add", LAX["add"], (a, b), self.dtypes[a])

    def sub(self, a: int, b: int) -> int:
        return self.apply("sub", "sub", LAX["sub"], (a, b), self.dtypes[a])

    def mul(self, a: int, b: int) -> int:
        return self.apply("mul", "mul", LAX["mul"], (a, b), self.dtypes[a])

    def div(self, a: int, b: int) -> int:
        return self.apply("div", "div", LAX["div"], (a, b), self.dtypes[a])

    def neg(self, a: int) -> int:
        return self.unary("neg", a)

    def unary(self, name: str, a: int) -> int:
        """Apply an operation of `LAX` to one node."""
        return self.apply(name, name, LAX[name], (a,), self.dtypes[a])

    def select(self, which: int, cases: Sequence[int]) -> int:
        return self.apply("select_n", "select_n", LAX["select_n"], (which, *cases), self.dtypes[cases[0]])

    def convert(self, a: int, dtype: DTypeLike) -> int:
        if self.dtypes[a] == dtype:
            return a
        op = partial(jax.lax.convert_element_type, new_dtype=np.dtype(dtype))
        return self.apply("convert_element_type", ("convert", np.dtype(dtype)), op, (a,), dtype)

    def integer_pow(self, a: int, exponent: int) -> int:
        if exponent in (1, 2):
            return a if exponent == 1 else self.mul(a, a)
        if exponent == 0:
            return self.constant(np.ones((), self.dtypes[a]))
        if a in self.value:
            return self.constant(np.asarray(np.power(self.value[a], exponent), self.dtypes[a]))
        op = partial(jax.lax.integer_pow, y=exponent)
        node = self.apply("integer_pow", ("integer_pow", exponent), op, (a,), self.dtypes[a])
        self.exponents[node] = exponent
        return node

    def with_rule(self, value: int, operands: Sequence[int], partial_: Callable[[int], int], key: Key) -> int:
        """Return a node of the same value whose derivatives along the operands are given."""
        node = self._new((key, value, *operands), "own_rule", _first, (value, *operands), self.dtypes[value])
        self.own[node] = partial_
        return node

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
        if name == "one_minus_square":
            one = self.constant(np.asarray(1, self.dtypes[args[0]]))
            return self.mul(self.sub(one, args[0]), self.add(one, args[0]))
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
        if a == b and np.issubdtype(self.dtypes[a], np.floating):
            return self.mul(self.constant(np.asarray(2, self.dtypes[a])), a)
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


def _first(value: jax.Array, *operands: jax.Array) -> jax.Array:
    del operands
    return value


def _evaluate(name: str, op: Operation, values: Sequence[_Known]) -> Numeric:
    """Evaluate an operation on known numbers, by NumPy where it can."""
    known = primitive(name)
    if known.numpy is not None:
        with np.errstate(all="ignore"):
            return known.numpy(*values)
    if name == "convert_element_type":
        return values[0]  # type: ignore[return-value]
    with jax.ensure_compile_time_eval():
        return op(*[jnp.asarray(v) for v in values])


class Vectors:
    """A program running on vectors: inputs are given, values are computed when they are asked for."""

    def __init__(
        self, program: ScalarProgram, inputs: Mapping[int, Numeric], outputs: Sequence[int], keeper: Keeper
    ) -> None:
        self._program = program
        self._values: dict[int, Numeric] = dict(inputs)
        self._filled: dict[tuple[int, tuple[int, ...]], Numeric] = {}
        self._keeper = keeper
        self._kept = _worth_keeping(program, outputs)

    def give(self, nodes: np.ndarray, values: Sequence[Numeric]) -> None:
        """Set inputs that were not known before."""
        given = np.ravel(nodes).tolist()
        assert not any(node in self._values for node in given), "inputs are given once"
        self._values.update(zip(given, values, strict=True))

    def get(self, nodes: Sequence[int]) -> list[Numeric]:
        """Compute the given nodes: vectors, or scalars where all instances agree."""
        program, values = self._program, self._values
        for node in live_nodes(program, nodes, values):
            if node in program.value:
                values[node] = program.value[node]  # type: ignore[assignment]
                continue
            op = program.ops[node]
            assert op is not None, "an input was not given"
            args = program.args[node]
            if node in program.own:
                values[node] = values[args[0]]
                continue
            shape = next((np.shape(values[a]) for a in args if np.shape(values[a])), ())
            found = op(*[self._fill(a, shape) for a in args])
            if node in self._kept and shape:
                found = self._keeper.keep(found, primitive(program.names[node]).costly)
            values[node] = found
        return [values[node] for node in nodes]

    def _fill(self, node: int, shape: tuple[int, ...]) -> Numeric:
        """Return the value of a node as an operand: of one shape and dtype with the others."""
        value, dtype = self._values[node], self._program.dtypes[node]
        if isinstance(value, jax.Array) and value.shape == shape and value.dtype == dtype:
            return value
        filled = self._filled.get((node, shape))
        if filled is None:
            filled = self._filled[node, shape] = fill(value, shape, dtype)
        return filled


def fill(value: Numeric, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Broadcast a number or a vector, at the price of one operation."""
    if np.shape(value) == () and not isinstance(value, jax.Array):
        return jax.lax.full(shape, value, dtype)
    return jnp.broadcast_to(jnp.asarray(value, dtype), shape)


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
