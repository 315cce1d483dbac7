"""Random JAX programs: scalar functions of small pytrees, the same for the same seed.

A program is a list of steps over a growing list of values; each step reads earlier values and appends one. All random
decisions are made when the program is drafted: f itself is a plain, pure function. The table of steps is in
`random_steps` (arithmetic, data movement, linear algebra) and `random_calls` (loops, branches, custom derivatives, vmap).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Step: TypeAlias = Callable[[Sequence[Any]], Any]
"""values so far ↦ the next value."""
Maker: TypeAlias = Callable[["Draft"], Step | None]
"""Chooses operands and constants; None where nothing fits."""

STEPS: dict[str, tuple[Maker, float]] = {}
"""Name → maker and its weight."""

DEPTH = 2
"""How deep calls are nested."""
MAX_SIZE = 24
"""Scalars of a value: programs stay small, since compile time is what they cost."""
_TRIES = 40
_LARGEST = 1e4
"""Values and derivatives above this are another point's: the condition would hide errors."""


def step(weight: float = 1.0) -> Callable[[Maker], Maker]:
    """Put a maker of steps into the table."""

    def register(maker: Maker) -> Maker:
        STEPS[maker.__name__.strip("_")] = (maker, weight)
        return maker

    return register


class NothingFits(Exception):
    """No value of the wanted kind exists."""


class Draft:
    """A program in the making."""

    def __init__(self, rng: np.random.Generator, avals: Sequence[Any], dtype: Any, depth: int) -> None:
        self.rng, self.dtype, self.depth = rng, np.dtype(dtype), depth
        self.avals = list(avals)
        self.steps: list[Step] = []
        self.names: list[str] = []
        self.inside: list[str] = []
        """Names of steps inside the bodies of calls."""
        self.num_inputs = len(self.avals)

    def add(self, name: str, fn: Step) -> int:
        """Append a step; returns the place of its value."""
        self.avals.append(jax.eval_shape(fn, self.avals))
        self.steps.append(fn)
        self.names.append(name)
        return len(self.avals) - 1

    def grow(self, count: int) -> None:
        """Append random steps."""
        names = list(STEPS)
        weights = np.array([STEPS[n][1] for n in names])
        made = 0
        for _ in range(_TRIES * count):
            if made == count:
                return
            name = names[self.rng.choice(len(names), p=weights / weights.sum())]
            try:
                fn = STEPS[name][0](self)
            except NothingFits:
                continue
            if fn is None:
                continue
            aval = jax.eval_shape(fn, self.avals)
            if np.prod(aval.shape, dtype=int) <= MAX_SIZE:
                self.add(name, fn)
                made += 1

    def pick(self, kind: str = "f", rank: int | None = None, least: int = 0) -> int:
        """Choose a value: of floats, integers or booleans ("i"), complex numbers; late ones rather than early ones."""

        def fits(aval: Any) -> bool:
            number = np.dtype(aval.dtype).kind
            right = number == kind if kind != "i" else number in "iub"
            return right and (rank is None or len(aval.shape) == rank) and all(s >= least for s in aval.shape)

        places = [i for i, aval in enumerate(self.avals) if fits(aval)]
        if not places:
            return self._make(kind, rank, least)
        weights = np.arange(1.0, len(places) + 1)
        return int(self.rng.choice(places, p=weights / weights.sum()))

    def _make(self, kind: str, rank: int | None, least: int) -> int:
        """Add a value of a kind that there is none of."""
        if kind != "f":
            name = "integers" if kind == "i" else "complex"
            fn = STEPS[name][0](self)
            assert fn is not None
            return self.add(name, fn)
        at = self.pick("f")
        if rank == 0:
            return self.add("scalar", lambda v: jnp.sum(v[at]))
        if least == 0:
            raise NothingFits
        return self.add("vector", lambda v: fit(v[at], (max(least, 2),)))

    def number(self, low: float = -1.5, high: float = 1.5) -> Any:
        """Choose a constant, of the program's precision."""
        return self.dtype.type(np.round(self.rng.uniform(low, high), 3))

    def table(self, *shape: int) -> jax.Array:
        """Choose a constant array, which the program closes over."""
        return jnp.asarray(np.round(self.rng.uniform(-1.5, 1.5, shape), 3), self.dtype)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def inner(self, avals: Sequence[Any], count: int) -> Draft:
        """Draft the body of a call, over inputs of the given kinds."""
        body = Draft(self.rng, avals, self.dtype, self.depth - 1)
        body.grow(count)
        self.inside += [*body.names, *body.inside]
        return body

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Evaluate all values."""
        found = list(values)
        for fn in self.steps:
            found.append(fn(found))
        return found

    def output(self, aval: Any) -> Callable[[Sequence[Any]], Any]:
        """Choose a result of the given shape and dtype, bounded: what a loop may carry."""
        at = self.pick("f")
        mode, scale = self.rng.integers(3), self.number(0.4, 0.9)

        def out(values: Sequence[Any]) -> Any:
            v = fit(values[at], aval.shape).astype(aval.dtype)
            return [jnp.tanh(v), scale * jnp.sin(v), v / (1 + v * v)][mode]

        return out


def fit(v: Any, shape: tuple[int, ...]) -> Any:
    """Bring a value to a shape: repeated, or added up in parts."""
    size = int(np.prod(shape, dtype=int))
    flat = jnp.ravel(v)
    if flat.size > size:
        flat = jnp.concatenate([flat[:size].at[0].add(jnp.sum(flat[size:]))]) if size else flat[:0]
    return jnp.resize(flat, (size,)).reshape(shape)


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """A function, a point where value, gradient and Hessian are finite, and JAX's numbers there."""

    seed: int
    f: Callable[[Any], jax.Array]
    x: Any
    names: tuple[str, ...]
    """Of its steps."""
    inside: tuple[str, ...]
    """Of the steps in the bodies of calls."""
    gradient: np.ndarray
    hessian: np.ndarray
    """Symmetric part, [N, N]."""


_INPUTS: Sequence[Any] = (
    (3,),
    (4,),
    (2, 2),
    (6,),
    {"a": (3,), "b": ()},
    [(2,), (3,)],
    {"w": (2, 2), "b": (2,)},
    ((3, 2)),
)
"""Shapes of the variables: an array, or a pytree of arrays."""


def draft_program(
    seed: int,
) -> tuple[Callable[[Any], jax.Array], Callable[[int], Any], tuple[str, ...], tuple[str, ...]]:
    """Return f, its points by number, and the names of its steps, outer and inner. A fifth is in float32."""
    rng = np.random.default_rng([seed, 15])
    dtype = np.dtype(np.float32 if seed % 5 == 4 else np.float64)
    shapes = _INPUTS[rng.integers(len(_INPUTS))]
    leaves, tree = jax.tree_util.tree_flatten(shapes, is_leaf=lambda s: isinstance(s, tuple))
    avals = [jax.ShapeDtypeStruct(s, dtype) for s in leaves]
    draft = Draft(rng, avals, dtype, depth=DEPTH)
    draft.grow(int(rng.integers(2, 5)))
    wanted = [draft.pick("f") for _ in range(int(rng.integers(1, 4)))] + [_last(draft)]
    weights = [draft.number(0.3, 1.5) for _ in wanted]
    modes = [int(rng.integers(4)) for _ in wanted]
    ridge = dtype.type(0.0 if rng.random() < 0.08 else rng.uniform(0.5, 3.0))

    def f(x: Any) -> jax.Array:
        inputs = jax.tree_util.tree_leaves(x)
        values = draft.run(inputs)
        total = ridge * sum(jnp.sum(v * v) for v in inputs)
        for at, weight, mode in zip(wanted, weights, modes, strict=True):
            v = values[at]
            term = [jnp.sum(v), jnp.sum(v * v), jnp.sum(jnp.sin(v)), jnp.log1p(jnp.sum(v * v))][mode]
            total = total + weight * term
        return total

    def point(number: int) -> Any:
        points = np.random.default_rng([seed, 16, number])
        return tree.unflatten([jnp.asarray(points.normal(0, 0.8, s), dtype) for s in leaves])

    return f, point, tuple(draft.names), tuple(draft.inside)


def _last(draft: Draft) -> int:
    return max(i for i, a in enumerate(draft.avals) if np.dtype(a.dtype).kind == "f")


def make_program(seed: int) -> RandomProgram | None:
    """Return the program of a seed at a point where it is smooth enough, or None if there was none."""
    f, point, names, inside = draft_program(seed)
    like = point(0)

    def both(v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def flat(v: jax.Array) -> jax.Array:
            return f(_unflatten(v, like))

        def gradient(v: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            value, slope = jax.value_and_grad(flat)(v)
            return slope, (value, slope)

        second, (value, slope) = jax.jacfwd(gradient, has_aux=True)(v)
        return value, slope, second

    for number in range(4):
        x = point(number)
        v = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree_util.tree_leaves(x)])
        value, gradient, hessian = (np.asarray(part, np.float64) for part in _run(both, v))
        if all(np.abs(part).max() <= _LARGEST for part in (value, gradient, hessian)):  # false for NaN
            return RandomProgram(seed, f, x, names, inside, gradient, (hessian + hessian.T) / 2)
    return None


def _run(f: Any, v: jax.Array) -> Any:
    """Return f(v), compiled, or operation by operation where XLA refuses to compile JAX's derivatives."""
    try:
        return jax.jit(f)(v)
    except jax.errors.JaxRuntimeError:
        with jax.disable_jit():
            return f(v)


def _unflatten(v: jax.Array, like: Any) -> Any:
    leaves, tree = jax.tree_util.tree_flatten(like)
    parts, at = [], 0
    for leaf in leaves:
        parts.append(v[at : at + leaf.size].reshape(leaf.shape))
        at += leaf.size
    return tree.unflatten(parts)
