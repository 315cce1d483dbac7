"""Random computational graphs, as a gnewt.Graph and as a plain JAX function that knows nothing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt.graph import Handle


def dense_sine(w, *xs):
    """A node with full fan-in: W acts on the concatenation of its arguments."""
    z = w @ jnp.concatenate(xs)
    return jnp.sin(z) + 0.3 * z


def product(w, *xs):
    """A node whose second derivatives do not vanish anywhere."""
    z = w @ jnp.concatenate(xs)
    return jnp.tanh(z) * jnp.roll(z, 1) + 0.5 * z


def quadratic(w, *xs):
    z = w @ jnp.concatenate(xs)
    return 0.5 * jnp.sum(z * z) + 0.2 * jnp.sum(jnp.cos(z))


def weighted(c, x):
    """A loss of either sign: Hessians of random graphs are indefinite as a rule."""
    return 0.5 * c * jnp.sum(x * x)


@dataclasses.dataclass(frozen=True)
class RandomGraph:
    graph: gnewt.Graph
    function: Callable[[jax.Array], jax.Array]
    """The same objective over one flat vector, written without gnewt."""
    handles: list[Handle]
    values: list[np.ndarray]

    @property
    def flat(self) -> np.ndarray:
        return np.concatenate([v.ravel() for v in self.values])


def random_graph(seed: int) -> RandomGraph:
    """A DAG with varied size, fan-in and fan-out, vector vertices, cross losses and unused nodes."""
    rng = np.random.default_rng(seed)
    num_inputs, num_nodes = int(rng.integers(3, 7)), int(rng.integers(1, 13))
    # Every tenth graph mixes functions, sizes and fan-ins freely; the others have few of them and compile faster.
    mixed = seed % 10 == 0
    one_size, one_fan = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    one_function = (dense_sine, product)[seed % 2]

    def size_of_vertex() -> int:
        return int(rng.integers(1, 4)) if mixed else one_size

    g = gnewt.Graph()
    program: list[tuple[str, Any, tuple[int, ...], np.ndarray]] = []
    handles: list[Handle] = []
    sizes: list[int] = []
    for i in range(num_inputs):
        sizes.append(size_of_vertex())
        handles.append(g.input((sizes[-1],), name=f"u{i}"))

    def pick() -> tuple[int, ...]:
        """Arguments: near ones as often as distant ones."""
        pool = np.arange(len(handles))[-4:] if rng.random() < 0.5 else np.arange(len(handles))
        fan = int(rng.integers(1, 4)) if mixed else one_fan
        return tuple(int(i) for i in rng.choice(pool, size=min(fan, len(pool)), replace=False))

    def matrix(rows: int, args: tuple[int, ...]) -> np.ndarray:
        cols = sum(sizes[a] for a in args)
        return rng.normal(size=(rows, cols)) / np.sqrt(cols)

    for _ in range(num_nodes):
        args, size = pick(), size_of_vertex()
        fn, w = (dense_sine, product)[int(rng.integers(2))] if mixed else one_function, matrix(size, args)
        program.append(("node", fn, args, w))
        handles.append(g.node(fn, w, *[handles[a] for a in args]))
        sizes.append(size)
    for _ in range(int(rng.integers(2, num_nodes + 3))):
        args = pick()
        w = matrix(2, args)
        program.append(("loss", quadratic, args, w))
        g.loss(quadratic, w, *[handles[a] for a in args])
    for i in range(num_inputs):
        c = np.asarray(rng.choice([-1.0, 1.0, 2.0]) * (0.5 + rng.random()))
        program.append(("loss", weighted, (i,), c))
        g.loss(weighted, c, handles[i])

    def function(flat: jax.Array) -> jax.Array:
        split = np.cumsum(sizes[:num_inputs])[:-1]
        known = list(jnp.split(flat, split))
        total = 0.0
        for kind, fn, args, w in program:
            y = fn(w, *[known[a] for a in args])
            if kind == "node":
                known.append(y)
            else:
                total = total + y
        return total

    values = [rng.normal(size=(n,)) for n in sizes[:num_inputs]]
    return RandomGraph(g, function, handles, values)


def random_order(graph: RandomGraph, seed: int) -> list[Handle]:
    """Any permutation of the vertices: valid, mostly not causal."""
    rng = np.random.default_rng(seed)
    return [graph.handles[i] for i in rng.permutation(len(graph.handles))]
