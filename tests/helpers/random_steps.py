"""Steps of random programs: arithmetic, comparisons, data movement, scatters, reductions, linear algebra, complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax

from helpers.random_programs import Draft, Step, fit, step

_UNARY: tuple[Callable[[Any], Any], ...] = (
    jnp.sin,
    jnp.tanh,
    jnp.square,
    lambda v: jnp.exp(-v * v),
    lambda v: jnp.log1p(v * v),
    lambda v: jnp.sqrt(1 + v * v),
    lambda v: v**3 / (2 + v * v),
    lambda v: 1 / (1.5 + jnp.cos(v)),
    jax.nn.softplus,
    jax.nn.sigmoid,
    jax.nn.gelu,
    jax.nn.elu,
    jnp.arctan,
    lambda v: jnp.abs(v) ** 2.5,
    jsp.special.erf,
    lambda v: -v,
)
_KINKED: tuple[Callable[[Any], Any], ...] = (
    jnp.abs,
    jax.nn.relu,
    jax.nn.leaky_relu,
    lambda v: jnp.clip(v, -0.4, 0.7),
    lambda v: jnp.maximum(v, 0.1) * v,
    lambda v: jnp.where(v > 0.2, jnp.sin(v), v * v),
    lambda v: jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0),
    lambda v: jnp.remainder(v, 0.7),
    lambda v: jnp.select([v < -0.5, v < 0.5], [v, v * v], 2 * v),
)
_FLAT: tuple[Callable[[Any], Any], ...] = (
    jnp.floor,
    jnp.sign,
    lambda v: jnp.round(2 * v),
    lax.stop_gradient,
    lambda v: (v > 0.1).astype(v.dtype),
    lambda v: (3 * v).astype(int).astype(v.dtype),
    lambda v: lax.stop_gradient(jnp.sin(v)),
    lambda v: jnp.ceil(v) - 0.5,
)
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.multiply,
    lambda a, b: a / (2 + b * b),
    lambda a, b: jnp.arctan2(a, 2 + b * b),
    jnp.maximum,
    jnp.minimum,
    jnp.logaddexp,
    lambda a, b: jnp.sqrt(1 + a * a + b * b),
    lambda a, b: (1 + a * a) ** jnp.tanh(b),
    lambda a, b: jnp.where(a > b, a * b, b),
)
_INTEGERS: tuple[Callable[[Any], Any], ...] = (
    lambda v: v > 0.1,
    lambda v: jnp.floor(2 * v).astype(int),
    lambda v: jnp.argmax(jnp.ravel(v)),
    lambda v: jnp.argmin(jnp.ravel(v)),
    lambda v: jnp.sum(v > 0),
    lambda v: jnp.argsort(jnp.ravel(v)),
    lambda v: jnp.sum(v) > 0.2,
)


def _choose(d: Draft, table: Sequence[Any]) -> Any:
    return table[int(d.rng.integers(len(table)))]


def _square(d: Draft, v: Any, n: int, shift: float) -> Any:
    """A well-conditioned symmetric matrix of a value."""
    a = jnp.tanh(fit(v, (n, n)))
    return a @ a.T / n + jnp.asarray(shift * np.eye(n), v.dtype)


@step(4)
def _unary(d: Draft) -> Step:
    a, fn = d.pick(), _choose(d, _UNARY)
    return lambda v: fn(v[a])


@step(2)
def _kinked(d: Draft) -> Step:
    a, fn = d.pick(), _choose(d, _KINKED)
    return lambda v: fn(v[a])


@step(2)
def _flat_coefficient(d: Draft) -> Step:
    """A value whose derivative is zero, times another."""
    a, b, fn, c = d.pick(), d.pick(), _choose(d, _FLAT), d.number()
    return lambda v: fit(fn(v[a]), v[b].shape).astype(v[b].dtype) * v[b] + c * v[b]


@step(4)
def _binary(d: Draft) -> Step:
    a, b, fn = d.pick(), d.pick(), _choose(d, _BINARY)
    return lambda v: fn(fit(v[a], v[b].shape), v[b]).astype(v[b].dtype)


@step(1)
def _affine(d: Draft) -> Step:
    a, c, e = d.pick(), d.number(), d.number()
    return lambda v: c * v[a] + e


@step(2)
def _integers(d: Draft) -> Step:
    a, fn = d.pick(), _choose(d, _INTEGERS)
    return lambda v: fn(v[a])


@step(1)
def _integer_arithmetic(d: Draft) -> Step:
    a, k, mode = d.pick("i"), int(d.rng.integers(2, 4)), int(d.rng.integers(4))
    return lambda v: [
        lambda i: (i * k + 1) % 3,
        lambda i: i // k,
        lambda i: jnp.clip(i, 0, k - 1),
        lambda i: jnp.maximum(i, 1) & 3,
    ][mode](v[a].astype(int))


@step(2)
def _gather_at_traced(d: Draft) -> Step:
    i, b, table = d.pick("i"), d.pick(), d.table(4)
    return lambda v: jnp.sum(table[v[i].astype(int) % 4]) * v[b]


@step(1.5)
def _take_at_traced(d: Draft) -> Step:
    i, b = d.pick("i"), d.pick(rank=1, least=2)
    mode = ["clip", "wrap", "fill"][int(d.rng.integers(3))]
    return lambda v: jnp.take(v[b], v[i].astype(int), mode=mode, fill_value=0.5)


@step(1)
def _slice_at_traced(d: Draft) -> Step:
    i, b, c = d.pick("i"), d.pick(rank=1, least=2), d.pick()
    mode = int(d.rng.integers(2))

    def run(v: Sequence[Any]) -> Any:
        at = jnp.ravel(v[i])[0].astype(int)
        if mode:
            return lax.dynamic_slice(v[b], (at,), (2,))
        return lax.dynamic_update_slice(v[b], fit(v[c], (1,)).astype(v[b].dtype), (at,))

    return run


@step(2)
def _scatter(d: Draft) -> Step:
    b, c = d.pick(rank=1, least=2), d.pick()
    n = d.avals[b].shape[0]
    traced = d.chance(0.3)
    i = d.pick("i") if traced else -1
    index = d.rng.integers(0, n + 2, 2)
    how, mode = (
        ["add", "mul", "set", "min", "max", "subtract"][int(d.rng.integers(6))],
        ["drop", "clip"][int(d.rng.integers(2))],
    )
    unique = how in ("set", "mul") or d.chance(0.4)

    def run(v: Sequence[Any]) -> Any:
        other = (index[0] + 1 + index[1] % (n + 1)) % (n + 2)
        at = jnp.asarray([index[0], other]) if unique else jnp.asarray(index)
        if traced:
            at = at + jnp.ravel(v[i])[0].astype(int)
        if unique and mode == "clip":
            at = at[:1]
        if how in ("min", "max") and mode == "clip":
            # JAX's derivatives are wrong there: a clipped index selects another element than the value does.
            at = jnp.clip(at, 0, n - 1)
        update = fit(v[c], at.shape).astype(v[b].dtype)
        return getattr(v[b].at[at], how)(update, mode=mode, unique_indices=unique)

    return run


@step(2)
def _move(d: Draft) -> Step:
    a = d.pick(least=1)
    mode, k = int(d.rng.integers(9)), int(d.rng.integers(1, 3))
    order = d.rng.permutation(int(np.prod(d.avals[a].shape, dtype=int)))
    return lambda v: [
        lambda x: jnp.flip(x),
        lambda x: jnp.roll(x, k),
        lambda x: jnp.ravel(x)[order],
        lambda x: jnp.ravel(x)[:k],
        lambda x: jnp.stack([x, 2 * x]),
        lambda x: jnp.concatenate([jnp.ravel(x), jnp.ravel(x)[:1]]),
        lambda x: jnp.pad(jnp.ravel(x), (1, k), constant_values=0.3),
        lambda x: x.T,
        lambda x: jnp.tile(jnp.ravel(x)[:2], k),
    ][mode](v[a])


@step(2)
def _cumulative(d: Draft) -> Step:
    a, mode = d.pick(rank=1, least=2), int(d.rng.integers(8))
    return lambda v: [
        lambda x: jnp.cumsum(x),
        lambda x: jnp.cumprod(1 + 0.3 * x),
        lambda x: lax.cummax(x),
        lambda x: lax.cummin(x, reverse=True),
        lambda x: lax.cumlogsumexp(x),
        lambda x: jnp.sort(x),
        lambda x: lax.top_k(x, 2)[0],
        lambda x: lax.associative_scan(lambda p, q: p * 0.5 + q, x),
    ][mode](v[a])


@step(2)
def _reduction(d: Draft) -> Step:
    a, mode, axis = d.pick(least=1), int(d.rng.integers(11)), 0
    if d.avals[a].shape == () or d.avals[a].size == 0:
        return lambda v: v[a]
    return lambda v: [
        lambda x: jnp.sum(x, axis),
        lambda x: jnp.prod(1 + 0.3 * x, axis),
        lambda x: jnp.max(x, axis),
        lambda x: jnp.min(x, axis),
        lambda x: jsp.special.logsumexp(x, axis),
        lambda x: jax.nn.softmax(x, axis),
        lambda x: jnp.mean(x, axis),
        lambda x: jnp.var(x, axis),
        lambda x: jnp.linalg.norm(jnp.ravel(x) + 0.3),
        lambda x: jnp.median(jnp.ravel(x)),
        lambda x: jnp.max(jnp.abs(x)),
    ][mode](v[a])


@step(1.5)
def _product(d: Draft) -> Step:
    a, b, mode = d.pick(), d.pick(), int(d.rng.integers(6))
    table = d.table(3, 3)
    return lambda v: [
        lambda x, y: jnp.outer(fit(x, (2,)), fit(y, (3,))),
        lambda x, y: fit(x, (2, 3)) @ fit(y, (3, 2)),
        lambda x, y: jnp.einsum("ij,jk,k->i", fit(x, (2, 3)), table, fit(y, (3,))),
        lambda x, y: jnp.einsum("bi,bi->b", fit(x, (2, 3)), fit(y, (2, 3))),
        lambda x, y: jnp.convolve(fit(x, (4,)), fit(y, (2,))),
        lambda x, y: table @ fit(x, (3,)) + fit(y, (3,)),
    ][mode](v[a], v[b])


@step(2.5)
def _linear_algebra(d: Draft) -> Step:
    a, b, n = d.pick(), d.pick(), int(d.rng.integers(2, 4))
    mode = int(d.rng.integers(14))
    spread = jnp.asarray(np.diag(3.0 * np.arange(n)), d.dtype)

    def run(v: Sequence[Any]) -> Any:
        s, rhs = _square(d, v[a], n, 1.0), fit(v[b], (n,)).astype(v[a].dtype)
        full = s + 0.3 * jnp.triu(fit(v[b], (n, n)), 1).astype(s.dtype)
        return [
            lambda: jnp.linalg.cholesky(s),
            lambda: jnp.linalg.solve(full, rhs),
            lambda: jnp.linalg.inv(full),
            lambda: jnp.linalg.det(full),
            lambda: jnp.linalg.slogdet(full)[1],
            lambda: jnp.linalg.eigh(s + spread)[0],
            lambda: jnp.abs(jnp.linalg.eigh(s + spread)[1]),
            lambda: jnp.linalg.qr(full)[1],
            lambda: jsp.linalg.solve_triangular(full, rhs, lower=bool(n % 2)),
            lambda: jsp.linalg.expm(0.3 * full),
            lambda: jsp.linalg.cho_solve((jnp.linalg.cholesky(s), True), rhs),
            lambda: jnp.linalg.svd(full + spread, compute_uv=False),
            lambda: jnp.linalg.matrix_power(full / 2, 3),
            lambda: jsp.linalg.lu(full + spread)[2],
        ][mode]()

    return run


@step(1)
def _fft(d: Draft) -> Step:
    a, mode = d.pick(rank=1, least=2), int(d.rng.integers(4))
    n = d.avals[a].shape[0]
    return lambda v: [
        lambda x: jnp.fft.fft(x),
        lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 0.5j), n),
        lambda x: jnp.abs(jnp.fft.fft(x + 0.2)) ** 2,
        lambda x: jnp.fft.ifft(x * (1 - 0.2j)),
    ][mode](v[a])


@step(1)
def _complex(d: Draft) -> Step:
    a, b = d.pick(), d.pick()
    return lambda v: lax.complex(v[a], fit(v[b], v[a].shape).astype(v[a].dtype))


@step(1.5)
def _complex_arithmetic(d: Draft) -> Step:
    a, mode = d.pick("c"), int(d.rng.integers(7))
    return lambda v: [
        lambda z: z.real,
        lambda z: z.imag * 0.5,
        lambda z: (z * z.conj()).real,
        lambda z: jnp.exp(0.3j * z),
        lambda z: jnp.abs(z + 0.3),
        lambda z: jnp.angle(z + 2),
        lambda z: z * z / (2 + jnp.abs(z) ** 2),
    ][mode](v[a])


@step(1)
def _other_precision(d: Draft) -> Step:
    a, fn = d.pick(), _choose(d, _UNARY)
    other = jnp.float32 if d.dtype == np.float64 else jnp.float16
    if d.dtype == np.float32:
        return lambda v: fn(v[a])
    return lambda v: fn(v[a].astype(other)).astype(v[a].dtype)
