"""Programs in several forms: instances batched by `vmap`, by a map, by a scan, by hand. All forms are one objective.

`BATCHED` maps a name to a function of the size that returns ({form: objective}, point).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BATCHED: dict[str, Callable[[int], tuple[dict[str, Callable], Any]]] = {}


def batched(fn: Callable) -> Callable:
    BATCHED[fn.__name__] = fn
    return fn


def normal(*shape: int, seed: int = 0, scale: float = 0.3) -> jax.Array:
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape))


def forms(term: Callable, sources: tuple[int, ...], indices: Any, data: Any, rest: Callable) -> dict:
    """Σ term(x[source][index], ..., data) + rest(x), in three forms.

    Args:
        sources: for each argument of the term which part of x it is taken from.
        indices: int[n] for each argument.
        data: arrays with a leading axis n.
    """

    def pick(x: Any, i: Any) -> list:
        return [x[s][at] for s, at in zip(sources, i, strict=True)]

    def by_vmap(x: Any) -> Any:
        return jnp.sum(jax.vmap(term)(*pick(x, indices), *data)) + rest(x)

    def by_map(x: Any) -> Any:
        return jnp.sum(lax.map(lambda a: term(*pick(x, a[0]), *a[1]), (indices, data))) + rest(x)

    def by_scan(x: Any) -> Any:
        def body(total: Any, a: Any) -> Any:
            return total + term(*pick(x, a[0]), *a[1]), None

        return lax.scan(body, 0.0, (indices, data))[0] + rest(x)

    return {"vmap": by_vmap, "map": by_map, "scan": by_scan}


def graph_edges(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A path with some loop closures."""
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, n, (2, n // 2))
    apart = np.abs(i - j) > 1
    return np.append(np.arange(n - 1), i[apart]), np.append(np.arange(1, n), j[apart])


def small_prior(x: Any) -> Any:
    return sum(0.1 * jnp.sum(part**2) for part in x)


def rotation(w: Any) -> Any:
    """Rodrigues' formula."""
    angle = jnp.sqrt(w @ w + 1e-9)
    k = jnp.array([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])
    return jnp.eye(3) + jnp.sin(angle) / angle * k + (1 - jnp.cos(angle)) / angle**2 * (k @ k)


def vee(m: Any) -> Any:
    return 0.5 * jnp.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])


@batched
def planar_poses(n: int) -> Any:
    """Edges of a pose graph in the plane, with a full information matrix; also with a batch axis written by hand."""
    i, j = graph_edges(n)
    z = normal(len(i), 3, seed=1)
    weight = jnp.array([[5.0, 1.0, 0.2], [1.0, 6.0, 0.3], [0.2, 0.3, 9.0]])

    def edge(p: Any, q: Any, z: Any) -> Any:
        c, s = jnp.cos(p[2]), jnp.sin(p[2])
        moved = jnp.array([[c, s], [-s, c]]) @ (q[:2] - p[:2]) - z[:2]
        turned = q[2] - p[2] - z[2]
        r = jnp.append(moved, jnp.arctan2(jnp.sin(turned), jnp.cos(turned)))
        return r @ weight @ r

    def by_hand(x: Any) -> Any:
        p, q = x[0][i], x[0][j]
        c, s = jnp.cos(p[:, 2]), jnp.sin(p[:, 2])
        turn = jnp.stack([jnp.stack([c, s], -1), jnp.stack([-s, c], -1)], 1)
        moved = jnp.einsum("eab,eb->ea", turn, q[:, :2] - p[:, :2]) - z[:, :2]
        turned = q[:, 2] - p[:, 2] - z[:, 2]
        r = jnp.concatenate([moved, jnp.arctan2(jnp.sin(turned), jnp.cos(turned))[:, None]], 1)
        return jnp.einsum("ea,ab,eb->", r, weight, r) + small_prior(x)

    return forms(edge, (0, 0), (i, j), (z,), small_prior) | {"by hand": by_hand}, [normal(n, 3)]


@batched
def robust_planar_poses(n: int) -> Any:
    """One logarithm for every edge: a sum used nonlinearly."""
    i, j = graph_edges(n)

    def edge(p: Any, q: Any, z: Any) -> Any:
        c, s = jnp.cos(p[2]), jnp.sin(p[2])
        t = jnp.array([[c, -s], [s, c]]).T @ (q[:2] - p[:2]) - z[:2]
        turned = (q[2] - p[2] - z[2] + jnp.pi) % (2 * jnp.pi) - jnp.pi
        r = jnp.array([7.0, 7.0, 10.0]) * jnp.append(t, turned)
        return jnp.log1p(r @ r)

    return forms(edge, (0, 0), (i, j), (normal(len(i), 3, seed=1),), small_prior), [normal(n, 3)]


@batched
def spatial_poses(n: int) -> Any:
    """Edges between poses in space: rotations by Rodrigues' formula, products of 3 × 3 matrices."""
    i, j = graph_edges(n)
    turns = jax.vmap(rotation)(normal(len(i), 3, seed=2))

    def edge(p: Any, q: Any, t: Any, turn: Any) -> Any:
        first, second = rotation(p[3:]), rotation(q[3:])
        r = jnp.concatenate([first.T @ (q[:3] - p[:3]) - t, vee(turn.T @ first.T @ second)])
        return r @ r

    return forms(edge, (0, 0), (i, j), (normal(len(i), 3, seed=1), turns), small_prior), [normal(n, 6)]


@batched
def bundle(n: int) -> Any:
    """Cameras with a focal length and a distortion, points, Cauchy's loss."""
    rng = np.random.default_rng(0)
    seen = np.unique(np.stack([rng.integers(0, n, 8 * n), rng.integers(0, 4 * n, 8 * n)]), axis=1)

    def observe(camera: Any, point: Any, pixel: Any) -> Any:
        y = rotation(camera[:3]) @ point + camera[3:6] + jnp.array([0.0, 0.0, 5.0])
        u = y[:2] / y[2]
        r = (1 + camera[6]) * (1 + camera[7] * (u @ u)) * u - pixel
        return jnp.log1p(r @ r)

    pixels = normal(seen.shape[1], 2, seed=3)
    return forms(observe, (0, 1), tuple(seen), (pixels,), small_prior), [
        normal(n, 8),
        normal(4 * n, 3, seed=4),
    ]


@batched
def inertial_factors(n: int) -> Any:
    """Consecutive states of position, velocity, rotation and biases: thirty arguments, all coupled."""

    def factor(a: Any, b: Any, dp: Any, dv: Any, dr: Any) -> Any:
        first, second = rotation(a[6:9]), rotation(b[6:9])
        drift = b[9:] - a[9:]
        r = jnp.concatenate(
            [
                first.T @ (b[:3] - a[:3] - a[3:6]) - dp - 0.1 * a[9:12],
                first.T @ (b[3:6] - a[3:6]) - dv - 0.2 * a[12:],
                vee(rotation(dr + 0.1 * a[9:12]).T @ first.T @ second),
            ]
        )
        return r @ r + jnp.log1p(r @ r) + 4 * (drift @ drift)

    data = tuple(normal(n - 1, 3, seed=s) for s in (1, 2, 3))
    return forms(factor, (0, 0), (np.arange(n - 1), np.arange(1, n)), data, small_prior), [normal(n, 15)]


@batched
def latent_regression(n: int) -> Any:
    """Every item has latent variables; the weights are shared by all."""

    def item(latent: Any, weight: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(weight[:4].reshape(2, 2) @ latent + x)
        return (hidden @ weight[4:6] + latent[0] * latent[1] - y) ** 2 + jnp.sum(jnp.cosh(latent))

    indices = (np.arange(n), np.zeros(n, int))
    data = (normal(n, 2, seed=1), normal(n, seed=2))
    return forms(item, (0, 1), indices, data, small_prior), [normal(n, 2), normal(1, 6, seed=3)]


@batched
def kernels(n: int) -> Any:
    """Pairs of near points in four dimensions, coupled by a kernel of their distance."""
    i = np.repeat(np.arange(n - 3), 3)
    j = i + np.tile([1, 2, 3], n - 3)

    def pair(a: Any, b: Any, y: Any) -> Any:
        d = a[:4] - b[:4]
        k = jnp.exp(-0.5 * (d @ d)) * (1 + jnp.sqrt(1 + d @ d))
        return (k * a[4] * b[4] - y) ** 2

    return forms(pair, (0, 0), (i, j), (normal(len(i), seed=1),), small_prior), [normal(n, 5)]


@batched
def reactions(n: int) -> Any:
    """Reactions on the edges of a graph, added up at its nodes: `segment_sum` or a scatter in a loop."""
    i, j = graph_edges(n)

    def rate(a: Any, b: Any) -> Any:
        flux = jnp.tanh(a[0] * b[1] - a[1] * b[0]) + jnp.sin(a[0]) * jnp.exp(-(b[1] ** 2))
        return jnp.stack([flux, -flux * a[1]])

    def ends(rates: Any, x: Any) -> Any:
        total = jax.ops.segment_sum(rates, i, n) - jax.ops.segment_sum(rates, j, n)
        return jnp.sum((x[0] + total) ** 2) + small_prior(x)

    def by_vmap(x: Any) -> Any:
        return ends(jax.vmap(rate)(x[0][i], x[0][j]), x)

    def by_map(x: Any) -> Any:
        return ends(lax.map(lambda e: rate(x[0][e[0]], x[0][e[1]]), (i, j)), x)

    return {"vmap": by_vmap, "map": by_map}, [normal(n, 2)]


@batched
def mean_field(n: int) -> Any:
    """Items that feel the mean of all through a long sum used nonlinearly."""

    def moment(v: Any) -> Any:
        return jnp.tanh(v[0] * v[1]) + jnp.sin(v[2]) * jnp.exp(-(v[0] ** 2)) * v[1]

    def ends(moments: Any, x: Any) -> Any:
        total = jnp.sum(moments) / n
        return jnp.log1p(total**2) + total**4 + small_prior(x)

    def by_vmap(x: Any) -> Any:
        return ends(jax.vmap(moment)(x[0]), x)

    def by_map(x: Any) -> Any:
        return ends(lax.map(moment, x[0]), x)

    return {"vmap": by_vmap, "map": by_map}, [normal(n, 3)]


def pendulum(x: Any, u: Any) -> Any:
    return jnp.stack([x[1], jnp.sin(x[0]) - 0.1 * x[1] + u * jnp.cos(x[0])])


def runge_kutta(x: Any, u: Any, h: float = 0.1) -> Any:
    a = pendulum(x, u)
    b = pendulum(x + h / 2 * a, u)
    c = pendulum(x + h / 2 * b, u)
    return x + h / 6 * (a + 2 * b + 2 * c + pendulum(x + h * c, u))


@batched
def many_bodies(n: int) -> Any:
    """Several bodies, each with its inputs, by Runge-Kutta: a vmapped scan, a scanned vmap, a map of scans."""
    starts = normal(8, 2, seed=1, scale=1.0)

    def roll(start: Any, us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            x = runge_kutta(x, u)
            return x, x @ x + 0.1 * u**2

        return jnp.sum(lax.scan(stage, start, us)[1])

    def vmapped_scan(x: Any) -> Any:
        return jnp.sum(jax.vmap(roll)(starts, x[0]))

    def scanned_vmap(x: Any) -> Any:
        def stage(s: Any, u: Any) -> Any:
            s = jax.vmap(runge_kutta)(s, u)
            return s, jnp.sum(s**2) + 0.1 * jnp.sum(u**2)

        return jnp.sum(lax.scan(stage, starts, x[0].T)[1])

    def mapped_scan(x: Any) -> Any:
        return jnp.sum(lax.map(lambda a: roll(*a), (starts, x[0])))

    return {"vmap": vmapped_scan, "scanned vmap": scanned_vmap, "map": mapped_scan}, [normal(8, n)]
