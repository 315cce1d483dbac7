"""The front step of a causal elimination, in two algebras.

A front holds V over slots that go and slots that stay. Outputs of a node go by
substitution, x = Φ(pa); inputs go by minimisation, which leaves their policy u = ū + k + K(s - s̄). An algebra says how ∂²V is
written: as it is, or as a root R with RᵀR = ∂²V. Where fronts are kept between steps is the business of a schedule
(`kkt.causal.path`, `kkt.causal.serial`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.kkt.causal.blocks import add_blocks, embed_axis, take

_WRITTEN_OUT = 6
"""Inputs of a step, at most, that are eliminated by operations written out."""
_ROOT_NOISE = 8
"""Eigenvalues of a loss above -8 k eps, of a unit diagonal, are rounding of zero: eigh of k × k errs by a few k eps."""


class AffinePolicy(NamedTuple):
    """What an elimination says of the inputs of one step (or of all rounds of a step, [R, ...])."""

    k: Float[Array, "*r e"]
    """Feedforward: -Q_uu⁻¹ q_u."""
    gain: Float[Array, "*r e b"]
    """K = -Q_uu⁻¹ Q_us, over the separator."""
    pivot: Float[Array, "*r"]
    """Smallest pivot of Q_uu + μI; not positive, or NaN, where it is not positive definite."""
    slope: Float[Array, "*r"]
    """q_uᵀ k."""
    curve: Float[Array, "*r"]
    """kᵀ Q_uu k."""


class ValueFunction(NamedTuple):
    """V over the separator of an input step, once its inputs are gone."""

    gradient: Float[Array, "*r b"]
    hessian: Float[Array, "*r b b"]


FrontPlaces = tuple[np.ndarray, np.ndarray]
"""Static places in a front: of the slots that go (`mine`), and of those that stay (`rest`)."""
Minimised: TypeAlias = tuple[AffinePolicy, jax.Array, jax.Array]
"""Policy, ∂²V over the slots that stay, and what is added to ∂V there."""
FoundPolicies: TypeAlias = list[tuple[AffinePolicy, ValueFunction | None]]
"""For every group of input steps, k, K and pivots [R, ...], and V behind them if it was asked for."""


@dataclasses.dataclass(frozen=True, eq=False)
class HessianAlgebra:
    """∂²V as it is. Matrices have a column for every slot of the front."""

    shift: Float[Array, ""]
    """μ, added to every Q_uu."""
    keep_shift: bool
    """The μ of Q_uu + μI stays in the problem: exactly H + μI. Without it only the policy is made with μ, and V is that of the
    policy (Tassa et al. 2012)."""
    definite: bool
    """Q_uu + μI is to be positive definite, else everything is NaN. Otherwise any that is not singular will do."""

    def losses(self, hessians: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
        """Write the Hessians of losses as `join` takes them."""
        return hessians

    def join(self, losses: Sequence[tuple[Array, np.ndarray]], size: int) -> Array | None:
        """Join losses [R, k, k], each with its places among so many slots, into what `widen` adds in each round."""
        return add_blocks(losses, size) if losses else None

    def widen(self, matrix: Array, more: int, losses: Array | None) -> Array:
        """Append slots on which V does not depend yet, and add losses."""
        matrix = jnp.pad(matrix, ((0, more), (0, more))) if more else matrix
        return matrix if losses is None else matrix + losses

    def substitute(self, matrix: Array, places: FrontPlaces, jacobian: Array, coupled: bool) -> Array:
        """Let slots go: V(x, s) becomes V(J s, s). Where it is not `coupled`, V depends on x alone."""
        if not len(places[0]):
            return matrix
        qvv, qvs, qss = _split(matrix, places)
        out = jacobian.T @ (qvv @ jacobian)
        if not coupled:
            return out
        cross = jacobian.T @ qvs
        return out + cross + cross.T + qss

    def minimise(self, matrix: Array, places: FrontPlaces, qu: Array) -> Minimised:
        """Let inputs go, where q_u = ∂V along them."""
        quu, qus, qss = _split(matrix, places)
        policy = minimise_over(quu, qus, qu, self.shift, self.definite)
        k, gain = policy.k, policy.gain
        if self.keep_shift:
            more, push = qus.T @ gain, qus.T @ k
        else:
            cross = gain.T @ qus
            more, push = gain.T @ quu @ gain + cross + cross.T, gain.T @ (quu @ k + qu) + qus.T @ k
        left = qss + more
        return policy, 0.5 * (left + left.T), push

    def hessian(self, matrix: Float[Array, "b b"]) -> Float[Array, "b b"]:
        """∂²V itself."""
        return matrix


def _split(matrix: Array, places: FrontPlaces) -> tuple[Array, Array, Array]:
    mine, rest = places
    own = take(matrix, mine, 0)
    return take(own, mine, 1), take(own, rest, 1), take(take(matrix, rest, 0), rest, 1)


def minimise_over(
    quu: Float[Array, "e e"],
    qus: Float[Array, "e b"],
    qu: Float[Array, " e"],
    shift: Float[Array, ""],
    definite: bool,
) -> AffinePolicy:
    """Eliminate inputs: k and K of the policy u = k + K s, and what the pivots say."""
    e = quu.shape[0]
    right = jnp.concatenate([qus, qu[:, None]], axis=1)
    shifted = quu + shift * jnp.eye(e, dtype=quu.dtype)
    if e == 1:
        pivot = quu[0, 0] + shift
        solved = -right / pivot
    elif not definite:
        solved, pivot = -jnp.linalg.solve(shifted, right), jnp.min(jnp.linalg.eigvalsh(shifted))
    elif e <= _WRITTEN_OUT:
        solved, pivot = _eliminate_rows(shifted, right)
    else:
        root = jnp.linalg.cholesky(shifted)
        solved = -jax.scipy.linalg.cho_solve((root, True), right)
        pivot = jnp.min(jnp.diagonal(root)) ** 2
    k, gain = solved[:, -1], solved[:, :-1]
    return AffinePolicy(k, gain, pivot, jnp.vdot(qu, k), jnp.vdot(k, quu @ k))


def _eliminate_rows(matrix: Float[Array, "e e"], right: Float[Array, "e c"]) -> tuple[Array, Array]:
    """(-matrix⁻¹ right, smallest pivot) row by row: for a few inputs this is faster than three calls of LAPACK."""
    whole = jnp.concatenate([matrix, right], axis=1)
    rows, pivots = list(whole), []
    for j in range(len(rows)):
        pivots.append(rows[j][j])
        unit = rows[j] / rows[j][j]
        rows = [unit if i == j else row - row[j] * unit for i, row in enumerate(rows)]
    smallest = jnp.min(jnp.stack(pivots))
    solved = -jnp.stack(rows)[:, len(rows) :]
    return jnp.where(smallest > 0, solved, jnp.nan), smallest


@dataclasses.dataclass(frozen=True, eq=False)
class RootAlgebra:
    """∂²V = RᵀR, and only R is kept (footnote of section 4.1), with as many rows as columns.

    The Hessian itself subtracts numbers of size ‖∂²V‖, R numbers of size ‖∂²V‖^½: twice as many digits survive where weights
    differ by many orders. All pieces must be positive semidefinite (E22): duals are zero, and losses convex in their
    arguments. Only the policy is made with μ; V is that of the policy.
    The methods are those of `HessianAlgebra`.
    """

    shift: Float[Array, ""]

    def losses(self, hessians: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
        """S with SᵀS = H, from the eigenvalues of H scaled to a unit diagonal; NaN where H is not positive semidefinite."""
        size = jnp.sqrt(jnp.diagonal(hessians, axis1=1, axis2=2))
        inverse = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
        values, vectors = jnp.linalg.eigh(hessians * inverse[:, :, None] * inverse[:, None, :])
        noise = _ROOT_NOISE * hessians.shape[1] * jnp.finfo(hessians.dtype).eps
        good = (values > -noise) & jnp.all(jnp.isfinite(size), axis=1, keepdims=True)
        weights = jnp.where(good, jnp.sqrt(jnp.maximum(values, 0)), jnp.nan)
        return weights[:, :, None] * jnp.swapaxes(vectors, 1, 2) * size[:, None, :]

    def join(self, losses: Sequence[tuple[Array, np.ndarray]], size: int) -> Array | None:
        rows = [embed_axis(block, places, size, -1) for block, places in losses]
        return jnp.concatenate(rows, axis=1) if rows else None

    def widen(self, matrix: Array, more: int, losses: Array | None) -> Array:
        matrix = jnp.pad(matrix, ((0, 0), (0, more)))
        return matrix if losses is None else jnp.concatenate([matrix, losses])

    def substitute(self, matrix: Array, places: FrontPlaces, jacobian: Array, coupled: bool) -> Array:
        own, kept = (take(matrix, at, 1) for at in places)
        return _compress(own @ jacobian + kept)

    def minimise(self, matrix: Array, places: FrontPlaces, qu: Array) -> Minimised:
        """QR of the stacked factor, inputs first: Q_uu + μI = R_uuᵀ R_uu, and K = -R_uu⁻¹ R_us."""
        own, kept = (take(matrix, at, 1) for at in places)
        e = own.shape[1]
        below = jnp.sqrt(self.shift) * jnp.eye(e, e + kept.shape[1], dtype=matrix.dtype)
        r = jnp.linalg.qr(jnp.concatenate([jnp.concatenate([own, kept], 1), below]), mode="r")
        ruu, rus = r[:e, :e], r[:e, e:]
        half = jax.scipy.linalg.solve_triangular(ruu, qu, trans=1)
        solved = -jax.scipy.linalg.solve_triangular(ruu, jnp.concatenate([rus, half[:, None]], axis=1))
        k, gain = solved[:, -1], solved[:, :-1]
        pivot, curve = jnp.min(jnp.abs(jnp.diagonal(ruu))) ** 2, jnp.sum((own @ k) ** 2)
        left = own @ gain + kept
        push = gain.T @ qu + left.T @ (own @ k)
        return AffinePolicy(k, gain, pivot, jnp.vdot(qu, k), curve), _compress(left), push

    def hessian(self, matrix: Float[Array, "b b"]) -> Float[Array, "b b"]:
        return matrix.T @ matrix


def _compress(root: Array) -> Array:
    """Write a root with as few rows as columns: R of its QR decomposition, padded."""
    rows, columns = root.shape
    if rows > columns:
        return jnp.linalg.qr(root, mode="r")
    return jnp.pad(root, ((0, columns - rows), (0, 0)))


Algebra: TypeAlias = HessianAlgebra | RootAlgebra
