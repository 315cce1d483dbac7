"""The KKT matrix of a QP with limits, as the graph that the engines know: x and all multipliers are inputs.

    Σ_e ½ x_eᵀQ_e x_e + y_eᵀA_e x_e        K = [[Q + Σ, Aᵀ], [A, -D]]        A: rows of G, then rows of C

Planned once per hypergraph. The diagonals Σ and D are the last sources, so that one matrix is eliminated with any of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.graph import Family, Structure
from gnewt.kkt import Elimination, Prepared, choose_engine, prepare
from gnewt.newton.arithmetic import Array
from gnewt.plan import make_plan
from gnewt.qp.problem import NumberedQP


class Entries(NamedTuple):
    """Numbers of all edges, entry by entry."""

    Q: Array
    """Every entry of every Q_e."""
    A: Array


class Places(NamedTuple):
    """Rows and columns of entries."""

    rows: np.ndarray
    columns: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Saddle:
    """Places of all entries, with a plan of K. Works on the host and inside jit and vmap alike.

    Entries of all edges lie end to end: whatever their shapes, a product is one gather and one sum.
    """

    num_scalars: int
    num_rows: int
    of_q: Places
    of_a: Places
    source_of: np.ndarray
    """For every source the place of its entry in (Q, A)."""
    engine: Prepared

    def product(self, e: Entries, x: Array) -> Array:
        """Qx."""
        return _scatter(self.num_scalars, self.of_q.rows, e.Q * x[self.of_q.columns])

    def rows(self, e: Entries, x: Array) -> Array:
        """Ax."""
        return _scatter(self.num_rows, self.of_a.rows, e.A * x[self.of_a.columns])

    def columns(self, e: Entries, y: Array) -> Array:
        """Aᵀy."""
        return _scatter(self.num_scalars, self.of_a.columns, e.A * y[self.of_a.rows])

    def largest(self, e: Entries) -> tuple[Array, Array]:
        """Largest entries of the columns of [Q; A] and of the rows of A."""
        q, a = abs(e.Q), abs(e.A)
        xp = jnp if isinstance(q, Tracer) or isinstance(a, Tracer) else np
        both = (
            _scatter(self.num_scalars, self.of_q.columns, q, True),
            _scatter(self.num_scalars, self.of_a.columns, a, True),
        )
        return xp.maximum(*both), _scatter(self.num_rows, self.of_a.rows, a, True)

    def scaled(self, e: Entries, column: Array, row: Array) -> Entries:
        """(DQD, EAD)."""
        q, a = self.of_q, self.of_a
        return Entries(column[q.rows] * e.Q * column[q.columns], row[a.rows] * e.A * column[a.columns])

    def sources(self, e: Entries) -> Array:
        """Entries of K without its diagonals, as the plan reads them."""
        xp = jnp if isinstance(e.Q, Tracer) or isinstance(e.A, Tracer) else np
        return xp.concatenate([e.Q, e.A])[self.source_of]

    def factor(self, sources: Array, diagonal: Array, rhs: Array) -> tuple[Array, tuple[Array, Elimination]]:
        """Eliminate K with diagonals (Σ, -D), and solve; with what `again` needs."""
        xp = jnp if isinstance(sources, Tracer) or isinstance(diagonal, Tracer) else np
        whole = jnp.asarray(xp.concatenate([sources, diagonal]))
        zero = jnp.zeros((), whole.dtype)
        step, found = self.engine.factor_solve(self.engine.arrays, whole, zero, jnp.asarray(rhs)[:, None])
        return _known(step)[:, 0], (whole, found)

    def again(self, factor: Any, rhs: Array) -> Array:
        """Solve for another right-hand side."""
        whole, found = factor
        return _known(self.engine.solve(self.engine.arrays, whole, found, jnp.asarray(rhs)[:, None]))[:, 0]


def make_saddle(problem: NumberedQP, dtype: np.dtype) -> Saddle:
    """Plan K, with the edges of one shape as a family. The entries of Q and A are those of the terms, in their order."""
    n, m, base = problem.num_scalars, problem.num_rows + problem.num_limits, problem.num_rows
    by_shape: dict[tuple[int, int], list[int]] = {}
    q_places, a_places, q_begin, a_begin = [], [], [0], [0]
    numbers = [np.concatenate([t.rows, base + t.limit_rows]).astype(np.int64) for t in problem.terms]
    for i, (t, rows) in enumerate(zip(problem.terms, numbers, strict=True)):
        k = len(t.scalars)
        by_shape.setdefault((k, len(rows)), []).append(i)
        q_places.append((np.repeat(t.scalars, k), np.tile(t.scalars, k)))
        a_places.append((np.repeat(rows, k), np.tile(t.scalars, len(rows))))
        q_begin.append(q_begin[-1] + k * k)
        a_begin.append(a_begin[-1] + len(rows) * k)
    families, sources = [], []
    for (k, rows), members in by_shape.items():
        pattern = np.ones((k + rows, k + rows), bool)
        pattern[k:, k:] = False
        at, to = np.nonzero(np.tril(pattern))
        args = [np.concatenate([problem.terms[i].scalars, n + numbers[i]]) for i in members]
        families.append(Family(_nothing, np.stack(args).astype(np.int32), hess_pattern=pattern, name="edges"))
        for i in members:
            in_q, in_a = q_begin[i] + at * k + to, q_begin[-1] + a_begin[i] + (at - k) * k + to
            sources.append(np.where(at < k, in_q, in_a))
    families.append(Family(_nothing, np.arange(n + m, dtype=np.int32)[:, None], name="diagonal"))
    structure = Structure(
        families=tuple(families),
        num_inputs=n + m,
        num_slots=n + m,
        in_tree=jax.tree_util.tree_structure(0),
        in_avals=(jax.ShapeDtypeStruct((n + m,), dtype),),
        in_names=("x",),
    )
    source_of = np.concatenate(sources)
    name, _ = choose_engine("auto", jax.default_backend())
    engine = prepare(name, make_plan(structure), len(source_of) + n + m, float(jnp.finfo(dtype).eps))
    joined = [Places(*(np.concatenate(part) for part in zip(*p, strict=True))) for p in (q_places, a_places)]
    return Saddle(n, m, joined[0], joined[1], source_of, engine)


def _nothing(s: jax.Array) -> jax.Array:
    """Stands for a quadratic whose entries are written into the sources."""
    return 0.0 * jnp.sum(s)


def _known(a: Array) -> Array:
    return a if isinstance(a, Tracer) else np.asarray(a)


def _scatter(size: int, places: np.ndarray, values: Array, largest: bool = False) -> Array:
    """Add (or take the largest of) what falls on the same place."""
    if isinstance(values, Tracer):
        out = jnp.zeros(size, values.dtype)
        return out.at[places].max(values) if largest else out.at[places].add(values)
    if not largest:
        return np.bincount(places, values, size).astype(values.dtype)
    out = np.zeros(size, values.dtype)
    np.maximum.at(out, places, values)
    return out
