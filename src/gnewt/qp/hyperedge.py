"""Hyperedge: one term of a graphical QP, as the user writes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import QPError
from gnewt._typing import Argument, ArrayLike
from gnewt.newton.arithmetic import Array

SYMMETRY_TOL = 1e-12
"""Relative asymmetry of Q that is taken for rounding and averaged away."""


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Hyperedge:
    """½ x_eᵀ Q_e x_e − b_eᵀ x_e  subject to  G_e x_e = h_e  and  lower_e ≤ C_e x_e ≤ upper_e.

    x_e is the concatenation of the vertices' values, in the order in which `vertices` lists them. What is
    omitted is zero: an edge may carry a cost, constraints, or both. Scalars and single rows may be written
    without brackets: `Hyperedge(["x"], Q=2.0, b=1.0)`, `Hyperedge(["x", "y"], G=[1, 1], h=1)`. Inside jit and vmap numbers
    may be traced.
    """

    vertices: tuple[Hashable, ...]
    """Labels, each at most once."""
    Q: Array | None
    """[k, k], symmetric (½ xᵀQx sees only the symmetric part; the KKT system does not)."""
    b: Array | None
    """[k]."""
    G: Array | None
    """[m, k], of any rank, with any number of rows."""
    h: Array | None
    """[m]; zero where omitted."""
    name: str | None
    """For messages and `QPResult.redundant`; `e3` for the fourth edge where omitted."""
    C: Array | None
    """[l, k], of any rank: rows with limits."""
    lower: Array | None
    """[l]; -∞ where omitted."""
    upper: Array | None
    """[l]; ∞ where omitted. Equal limits make an equality."""

    def __init__(
        self,
        vertices: Argument[Iterable[Hashable]],
        Q: ArrayLike | None = None,
        b: ArrayLike | None = None,
        G: ArrayLike | None = None,
        h: ArrayLike | None = None,
        name: str | None = None,
        C: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> None:
        where = f"hyperedge {name!r}" if name is not None else f"hyperedge over {vertices!r}"
        labels = _read_labels(vertices, where)
        if G is None and h is not None:
            raise QPError("h is given without G", where, "give G too, or omit h")
        given = (("Q", Q, 2), ("b", b, 1), ("G", G, 2), ("h", h, 1), ("C", C, 2))
        read = {f: _read_array(f, value, ndim, where) for f, value, ndim in given}
        hessian, equalities, targets, rows = (read[f] for f in ("Q", "G", "h", "C"))
        if hessian is not None:
            read["Q"] = _symmetric(hessian, where)
        if equalities is not None:
            count = equalities.shape[0]
            read["h"] = targets = np.zeros(count) if targets is None else targets
            if targets.shape[0] != count:
                raise QPError(
                    f"G has {count} rows but h has {targets.shape[0]} entries",
                    where,
                    "give one entry per row",
                )
        low, up = read_limits(lower, upper, None if rows is None else rows.shape[0], where)
        values = {"vertices": labels, **read, "lower": low, "upper": up, "name": name}
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, values[field.name])
        widths = {f: s for f, s in read.items() if s is not None and f != "h"}
        if len({a.shape[-1] for a in widths.values()}) > 1:
            shapes = ", ".join(f"{f} {a.shape}" for f, a in widths.items())
            raise QPError(
                f"shapes disagree on the number of scalars: {shapes}", where, "make the last axes equal"
            )

    @property
    def num_scalars(self) -> int | None:
        """Σ n_v over the vertices, as the matrices tell it; None where there are none."""
        for a in (self.Q, self.b, self.G, self.C):
            if a is not None:
                return int(a.shape[-1])
        return None


def is_traced(value: object) -> TypeGuard[jax.Array]:
    """Whether these are numbers that a transformation of JAX stands for."""
    return isinstance(value, Tracer)


def _read_labels(vertices: Argument[Iterable[Hashable]], where: str) -> tuple[Hashable, ...]:
    if isinstance(vertices, str) or not hasattr(vertices, "__iter__"):
        raise QPError("`vertices` is not a list of labels", where, 'write vertices=["x"] for a single vertex')
    labels: list[Hashable] = []
    for v in vertices:
        if not isinstance(v, Hashable):
            raise QPError(f"the vertex label {v!r} cannot be hashed", where, "use strings, numbers or tuples")
        labels.append(v)
    if not labels:
        raise QPError("an edge without vertices", where, "list at least one vertex, or leave the edge out")
    doubled = sorted({repr(v) for v in labels if labels.count(v) > 1})
    if doubled:
        raise QPError(
            f"duplicate vertices {', '.join(doubled)}",
            where,
            "list each vertex once, and add the rows and columns of its copies",
        )
    return tuple(labels)


def _read_array(field: str, value: ArrayLike | None, ndim: int, where: str) -> Array | None:
    """Copy to a read-only float64 array of `ndim` axes, leading axes added."""
    if value is None:
        return None
    if is_traced(value):
        if value.ndim > ndim:
            raise QPError(f"{field} has shape {value.shape}: too many axes", where, f"give at most {ndim}")
        whole = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
        return whole.reshape((1,) * (ndim - value.ndim) + value.shape)
    try:
        raw = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise QPError(f"{field} is not an array: {error}", where, "give real numbers") from error
    if raw.dtype.kind not in "biuf":
        raise QPError(f"{field} holds {raw.dtype} values", where, "give real numbers")
    a = np.array(raw, dtype=np.float64)
    if a.ndim > ndim:
        raise QPError(f"{field} has shape {a.shape}: too many axes", where, f"give at most {ndim}")
    if not np.isfinite(a).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(a))[0])
        raise QPError(f"{field}{list(at)} is {a[at]}", where, "remove NaN and infinite values")
    a = a.reshape((1,) * (ndim - a.ndim) + a.shape)
    a.setflags(write=False)
    return a


def read_limits(
    lower: ArrayLike | None, upper: ArrayLike | None, count: int | None, where: str
) -> tuple[Array | None, Array | None]:
    """Limits of so many rows (or scalars): ±∞ where omitted; None where there are no rows."""
    if count is None:
        if lower is not None or upper is not None:
            raise QPError("limits are given without C", where, "give C too, or omit lower and upper")
        return None, None
    if lower is None and upper is None:
        raise QPError("C is given without a limit", where, "give lower, upper, or both")
    sides = [
        _read_limit(*side, count, where) for side in (("lower", lower, -np.inf), ("upper", upper, np.inf))
    ]
    if not any(is_traced(side) for side in sides):
        low, up = sides
        bad = (low > up) | (low == np.inf) | (up == -np.inf)
        if bad.any():
            i = int(np.argmax(bad))
            raise QPError(f"limits cross: {low[i]:g} > {up[i]:g} at row {i}", where, "give lower ≤ upper")
    return sides[0], sides[1]


def _read_limit(field: str, value: ArrayLike | None, missing: float, count: int, where: str) -> Array:
    if is_traced(value):
        if value.shape not in ((), (1,), (count,)):
            raise QPError(
                f"{field} has shape {value.shape} for {count} rows", where, "give one entry per row"
            )
        return jnp.broadcast_to(value, (count,)).astype(float)
    try:
        raw = np.asarray(missing if value is None else value)
    except (TypeError, ValueError) as error:
        raise QPError(f"{field} is not an array: {error}", where, "give real numbers") from error
    if raw.dtype.kind not in "biuf":
        raise QPError(f"{field} holds {raw.dtype} values", where, "give real numbers; ±inf for no limit")
    if np.isnan(raw).any():
        raise QPError(f"{field} holds NaN", where, "give real numbers; ±inf for no limit")
    if raw.shape not in ((), (1,), (count,)):
        raise QPError(f"{field} has shape {raw.shape} for {count} rows", where, "give one entry per row")
    out = np.array(np.broadcast_to(raw, (count,)), np.float64)
    out.setflags(write=False)
    return out


def _symmetric(Q: Array, where: str) -> Array:
    if Q.shape[0] != Q.shape[1]:
        raise QPError(f"Q has shape {Q.shape}", where, "give a square matrix over the edge's scalars")
    if is_traced(Q):
        return 0.5 * (Q + Q.T)
    gap = float(np.abs(Q - Q.T).max(initial=0.0))
    if gap > SYMMETRY_TOL * np.abs(Q).max(initial=0.0):
        raise QPError(f"Q is not symmetric: max |Q − Qᵀ| = {gap:.3g}", where, "pass (Q + Q.T) / 2")
    return 0.5 * (Q + Q.T)
