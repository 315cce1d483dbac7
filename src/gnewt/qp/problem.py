"""NumberedQP: a graphical QP with its vertices, scalars and rows numbered; residuals and scaling."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from gnewt._errors import QPError
from gnewt._typing import Argument
from gnewt.newton.arithmetic import Array
from gnewt.newton.rules import still
from gnewt.qp.hyperedge import Hyperedge

Label = TypeVar("Label", bound=Hashable)
"""Labels of vertices: a dictionary with keys of any one type is taken."""


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """A hyperedge in numbers: nothing omitted, positions in place of labels."""

    name: str
    vertices: np.ndarray
    """int64: vertex numbers."""
    scalars: np.ndarray
    """int64[k]: positions in x of the edge's scalars."""
    rows: np.ndarray
    """int64[m]: positions in λ of the edge's rows."""
    Q: Array
    b: Array
    G: Array
    h: Array
    limit_rows: np.ndarray
    """int64[l]: positions of the edge's rows with limits among all of those."""
    C: Array
    lower: Array
    upper: Array


_NUMBERS = ("Q", "b", "G", "h", "C", "lower", "upper")


@dataclasses.dataclass(frozen=True, eq=False)
class NumberedQP:
    """min Σ_e ½ x_eᵀQ_e x_e − b_eᵀx_e  subject to  G_e x_e = h_e, over x[n] and λ[M]."""

    terms: tuple[Term, ...]
    labels: tuple[Hashable, ...]
    """Label of each vertex, in the order of first appearance."""
    sizes: np.ndarray
    """int64[V]: n_v."""
    offset: np.ndarray
    """int64[V + 1]: vertex v owns the scalars offset[v]:offset[v + 1]."""
    num_rows: int
    num_limits: int = 0
    """L: rows with limits."""

    @property
    def num_scalars(self) -> int:
        return int(self.offset[-1])

    @property
    def numbers(self) -> list[tuple[Array, ...]]:
        """What may be traced."""
        return [tuple(getattr(t, name) for name in _NUMBERS) for t in self.terms]

    @property
    def still(self) -> NumberedQP:
        """The same numbers, without their derivatives."""
        terms = [
            dataclasses.replace(t, **{name: still(getattr(t, name)) for name in _NUMBERS}) for t in self.terms
        ]
        return dataclasses.replace(self, terms=tuple(terms))

    def scalars(self, vertices: np.ndarray) -> np.ndarray:
        """List the scalars of the given vertices."""
        parts = [np.arange(int(self.offset[v]), int(self.offset[v + 1])) for v in vertices.tolist()]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def rhs(self) -> tuple[np.ndarray, np.ndarray]:
        """Assemble b[n] and h[M]."""
        b, h = np.zeros(self.num_scalars), np.zeros(self.num_rows)
        for term in self.terms:
            b[term.scalars] += term.b
            h[term.rows] = term.h
        return b, h

    def residuals(self, x: np.ndarray, lam: np.ndarray) -> Residuals:
        """Compute b − Qx − Gᵀλ and h − Gx edge by edge; shares nothing with the factorisation."""
        dual, primal = self.rhs()
        dual_size, primal_size = np.abs(dual), np.abs(primal)
        for term in self.terms:
            s, m = term.scalars, term.rows
            dual[s] -= term.Q @ x[s] + term.G.T @ lam[m]
            dual_size[s] += np.abs(term.Q) @ np.abs(x[s]) + np.abs(term.G.T) @ np.abs(lam[m])
            primal[m] -= term.G @ x[s]
            primal_size[m] += np.abs(term.G) @ np.abs(x[s])
        return Residuals(dual, primal, dual_size, primal_size)

    def scaled(self, column: np.ndarray, row: np.ndarray) -> NumberedQP:
        """Change the units: x = D x̂ and λ = E λ̂ with D = diag(column), E = diag(row)."""
        terms = []
        for t in self.terms:
            d, e = column[t.scalars], row[t.rows]
            Q, G = d[:, None] * t.Q * d, e[:, None] * t.G * d
            terms.append(dataclasses.replace(t, Q=Q, b=d * t.b, G=G, h=e * t.h))
        return dataclasses.replace(self, terms=tuple(terms))


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """What is left of the KKT system, and the size of the terms that were subtracted."""

    dual: np.ndarray
    primal: np.ndarray
    dual_size: np.ndarray
    primal_size: np.ndarray

    @property
    def relative(self) -> tuple[float, float]:
        """(primal, dual): max |residual| over max Σ|terms|, a backward error; 0 where nothing was there."""
        pairs = ((self.primal, self.primal_size), (self.dual, self.dual_size))
        out = [float(np.abs(r).max(initial=0.0) / (s.max(initial=0.0) or 1.0)) for r, s in pairs]
        return out[0], out[1]


def equilibrate(problem: NumberedQP, sweeps: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Choose D[n] and E[M] so that the rows of [[DQD, DGᵀE], [EGD, 0]] have largest entries near one.

    Ruiz's iteration, in powers of two so that the change of units is free of rounding. With it the
    tolerances of `front` are relative to the data, whatever units the user measures in.
    """
    column, row = np.ones(problem.num_scalars), np.ones(problem.num_rows)
    for _ in range(sweeps):
        top_column, top_row = np.zeros_like(column), np.zeros_like(row)
        for t in problem.terms:
            d, e = column[t.scalars], row[t.rows]
            Q, G = np.abs(d[:, None] * t.Q * d), np.abs(e[:, None] * t.G * d)
            np.maximum.at(top_column, t.scalars, np.maximum(Q.max(0, initial=0.0), G.max(0, initial=0.0)))
            top_row[t.rows] = G.max(1, initial=0.0)
        column *= _inverse_root(top_column)
        row *= _inverse_root(top_row)
    return column, row


def _inverse_root(size: np.ndarray) -> np.ndarray:
    """The power of two nearest to size^(−1/2); 1 where the size is zero."""
    return np.exp2(np.round(-0.5 * np.log2(np.where(size > 0, size, 1.0))))


def build_problem(
    edges: Argument[Iterable[Hyperedge]], sizes: Argument[Mapping[Label, int] | None]
) -> NumberedQP:
    """Number the vertices, find their sizes, and fill in what the edges omit."""
    edges = list(edges)
    if not edges:
        raise QPError("a QP without hyperedges", "solve_qp", "give at least one Hyperedge")
    for i, e in enumerate(edges):
        if not isinstance(e, Hyperedge):
            raise QPError(f"edge {i} is a {type(e).__name__}", "solve_qp", "give Hyperedge objects")
    number: dict[Hashable, int] = {}
    for e in edges:
        for v in e.vertices:
            number.setdefault(v, len(number))
    size_of = _find_sizes(edges, sizes, number)
    n_v = np.array([size_of[v] for v in number], np.int64)
    offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_v)])
    terms, num_rows, num_limits = [], 0, 0
    for i, e in enumerate(edges):
        name = e.name if e.name is not None else f"e{i}"
        vertices = np.array([number[v] for v in e.vertices], np.int64)
        scalars = np.concatenate([np.arange(int(offset[v]), int(offset[v + 1])) for v in vertices.tolist()])
        k = len(scalars)
        if e.num_scalars not in (None, k):
            listed = ", ".join(f"{v!r}: {size_of[v]}" for v in e.vertices)
            raise QPError(
                f"size mismatch: the matrices have {e.num_scalars} columns, the vertices {k} scalars ({listed})",
                f"hyperedge {name!r}",
                "correct the matrices, or say how long each vertex is with `sizes={vertex: n}`",
            )
        G = np.zeros((0, k)) if e.G is None else e.G
        C = np.zeros((0, k)) if e.C is None else e.C
        terms.append(
            Term(
                name,
                vertices,
                scalars,
                np.arange(num_rows, num_rows + len(G)),
                np.zeros((k, k)) if e.Q is None else e.Q,
                np.zeros(k) if e.b is None else e.b,
                G,
                np.zeros(0) if e.h is None else e.h,
                np.arange(num_limits, num_limits + len(C)),
                C,
                np.zeros(0) if e.lower is None else e.lower,
                np.zeros(0) if e.upper is None else e.upper,
            )
        )
        num_rows += len(G)
        num_limits += len(C)
    return NumberedQP(tuple(terms), tuple(number), n_v, offset, num_rows, num_limits)


def _find_sizes(
    edges: list[Hyperedge], sizes: Argument[Mapping[Label, int] | None], number: dict[Hashable, int]
) -> dict[Hashable, int]:
    """Sizes as given; else what an edge leaves for its only vertex of unknown size; else 1."""
    found: dict[Hashable, int] = {}
    for v, n in (sizes or {}).items():
        if v not in number:
            raise QPError(
                f"unknown vertex {v!r}: it is in no hyperedge",
                "`sizes`",
                "remove it, or give it an edge (without one its value would be arbitrary)",
            )
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise QPError(f"vertex {v!r} has size {n!r}", "`sizes`", "give a positive integer")
        found[v] = int(n)
    waiting = [e for e in edges if e.num_scalars is not None]
    progress = True
    while progress:
        progress, still = False, []
        for e in waiting:
            unknown = [v for v in e.vertices if v not in found]
            rest = (e.num_scalars or 0) - sum(found[v] for v in e.vertices if v in found)
            if len(unknown) == 1 and rest >= 1:
                found[unknown[0]] = rest
                progress = True
            elif len(unknown) > 1 and rest == len(unknown):
                found.update(dict.fromkeys(unknown, 1))  # the only way to share them out
                progress = True
            elif unknown:
                still.append(e)
        waiting = still
    return {v: found.get(v, 1) for v in number}
