"""A small DAG with all its dense derivatives, for the formulas of Theorem 1."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import gnewt

WRONG = 1e-3
"""Relative error from which a formula counts as clearly wrong; the corrected ones reach 1e-10."""


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# A small DAG with vector vertices, skip edges and losses l_v(x_v, x_pa(v)) that couple all of their scope


def phi(w: jax.Array, *xs: jax.Array) -> jax.Array:
    z = w @ jnp.concatenate(xs)
    return jnp.sin(z) + 0.4 * z * jnp.roll(z, 1)


def cross_loss(s: jax.Array, *xs: jax.Array) -> jax.Array:
    z = jnp.concatenate(xs)
    return 0.5 * jnp.sum((s @ z) ** 2) + jnp.sum(jnp.cos(z)) + 0.1 * jnp.sum(z)


@dataclasses.dataclass(frozen=True, eq=False)
class Dag:
    """A computational structure: vertices in topological order, inputs first."""

    sizes: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    w: dict[int, np.ndarray]
    """Of Φ_v, for the non-inputs."""
    s: dict[int, np.ndarray]
    """Of l_v."""

    @property
    def vertices(self) -> range:
        return range(len(self.sizes))

    @property
    def nodes(self) -> list[int]:
        return [v for v in self.vertices if self.parents[v]]

    @property
    def input_sizes(self) -> tuple[int, ...]:
        return tuple(n for n, pa in zip(self.sizes, self.parents, strict=True) if not pa)

    @property
    def num_inputs(self) -> int:
        return sum(self.input_sizes)

    @property
    def num_slots(self) -> int:
        return sum(self.sizes)

    def children(self, v: int) -> list[int]:
        return [d for d in self.vertices if v in self.parents[d]]

    def split(self, x: jax.Array) -> list[jax.Array]:
        """Cut a vector over all slots into states X_v."""
        return jnp.split(x, np.cumsum(self.sizes)[:-1])

    def rollout(self, x: jax.Array, eps: jax.Array) -> jax.Array:
        """All slots; eps perturbs the non-inputs, so that ∂f/∂eps_v is the total derivative ∂_v f."""
        known = list(jnp.split(x, np.cumsum(self.input_sizes)[:-1]))
        noise = self.split(jnp.concatenate([jnp.zeros(self.num_inputs), eps]))
        for v in self.nodes:
            known.append(phi(self.w[v], *[known[a] for a in self.parents[v]]) + noise[v])
        return jnp.concatenate(known)

    def losses(self, slots: jax.Array) -> jax.Array:
        """l_v of every vertex."""
        x = self.split(slots)
        return jnp.stack(
            [cross_loss(self.s[v], x[v], *[x[a] for a in self.parents[v]]) for v in self.vertices]
        )

    def h(self, slots: jax.Array) -> jax.Array:
        """h_v = Φ_v - X_v, stacked."""
        x = self.split(slots)
        return jnp.concatenate([phi(self.w[v], *[x[a] for a in self.parents[v]]) - x[v] for v in self.nodes])

    def objective(self, x: jax.Array, eps: jax.Array | None = None) -> jax.Array:
        eps = jnp.zeros(self.num_slots - self.num_inputs) if eps is None else eps
        return jnp.sum(self.losses(self.rollout(x, eps)))

    @functools.cached_property
    def graph(self) -> gnewt.Graph:
        """The same as a gnewt.Graph; its slots are numbered as here."""
        g = gnewt.Graph()
        handles = [g.input((n,), name=f"u{i}") for i, n in enumerate(self.input_sizes)]
        for v in self.nodes:
            handles.append(g.node(phi, self.w[v], *[handles[a] for a in self.parents[v]]))
        for v in self.vertices:
            g.loss(cross_loss, self.s[v], handles[v], *[handles[a] for a in self.parents[v]])
        return g


def make_dag(sizes: Sequence[int], parents: Sequence[Sequence[int]], seed: int, scale: float = 1.0) -> Dag:
    rng = np.random.default_rng(seed)
    w, s = {}, {}
    for v, (n, pa) in enumerate(zip(sizes, parents, strict=True)):
        fan = sum(sizes[a] for a in pa)
        if pa:
            w[v] = rng.normal(size=(n, fan)) / np.sqrt(fan)
        s[v] = scale * rng.normal(size=(n + fan, n + fan)) / np.sqrt(n + fan)
    return Dag(tuple(sizes), tuple(tuple(pa) for pa in parents), w, s)


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """What JAX says about a Dag at given inputs, without gnewt."""

    dag: Dag
    inputs: list[np.ndarray]
    f: float
    slots: np.ndarray
    g: np.ndarray
    hessian: np.ndarray
    duals: np.ndarray
    """λ_v = ∂_v f (total) of the non-inputs."""
    explicit: np.ndarray
    """∂^expl Σ l over all slots."""
    loss_hessians: np.ndarray
    """∂² l_s of every vertex, [V, S, S]."""
    jac_h: np.ndarray
    curl: np.ndarray
    """∂²Φ of every non-input scalar, [M, S, S]."""

    @property
    def n(self) -> int:
        return self.dag.num_inputs

    @property
    def m(self) -> int:
        return self.dag.num_slots - self.dag.num_inputs

    def kkt(self, lam: np.ndarray | None = None) -> np.ndarray:
        """[[∂²L, ∂hᵀ], [∂h, 0]] with the multipliers λ."""
        lam = self.duals if lam is None else lam
        top = self.loss_hessians.sum(0) + np.tensordot(lam, self.curl, 1)
        return np.block([[top, self.jac_h.T], [self.jac_h, np.zeros((self.m, self.m))]])

    def range_of(self, v: int) -> slice:
        start = int(sum(self.dag.sizes[:v]))
        return slice(start, start + self.dag.sizes[v])

    def loss_block(self, s: int, v: int, a: int) -> np.ndarray:
        """∂²_va l_s."""
        return self.loss_hessians[s][self.range_of(v), self.range_of(a)]

    def jacobian(self, d: int, v: int) -> np.ndarray:
        """∂_v d."""
        rows = self.range_of(d)
        return self.jac_h[rows.start - self.n : rows.stop - self.n, self.range_of(v)]

    def dual(self, d: int) -> np.ndarray:
        rows = self.range_of(d)
        return self.duals[rows.start - self.n : rows.stop - self.n]

    def node_curvature(self, d: int, v: int, a: int) -> np.ndarray:
        """λ_d · ∂²_va Φ_d."""
        rows = self.range_of(d)
        block = self.curl[rows.start - self.n : rows.stop - self.n, self.range_of(v), self.range_of(a)]
        return np.tensordot(self.dual(d), block, 1)


@functools.partial(jax.jit, static_argnums=(0, 4))
def derivatives(
    shape: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]],
    w: dict[int, jax.Array],
    s: dict[int, jax.Array],
    inputs: list[jax.Array],
    second_order: bool,
) -> tuple[jax.Array, ...]:
    """The fields of a Point; compiled once for each topology."""
    dag = Dag(*shape, w, s)
    x, eps = jnp.concatenate(inputs), jnp.zeros(dag.num_slots - dag.num_inputs)
    slots = dag.rollout(x, eps)
    f, (g, duals) = jax.value_and_grad(dag.objective, (0, 1))(x, eps)

    def local(slots: jax.Array) -> jax.Array:
        return jnp.concatenate([dag.losses(slots), dag.h(slots)])

    num, empty = len(dag.sizes), jnp.zeros((0, 0))
    first = jax.jacfwd(local)(slots)
    h = jax.hessian(dag.objective)(x) if second_order else empty
    second = jax.jacfwd(jax.jacfwd(local))(slots) if second_order else empty
    return f, slots, g, h, duals, first[:num].sum(0), second[:num], first[num:], second[num:]


def examine(dag: Dag, seed: int, second_order: bool = True) -> Point:
    """At random inputs."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=n) for n in dag.input_sizes]
    f, *rest = derivatives((dag.sizes, dag.parents), dag.w, dag.s, inputs, second_order)
    return Point(dag, inputs, float(f), *[np.asarray(a) for a in rest])


def library_kkt(factor: gnewt.Factor) -> np.ndarray:
    """K as the library assembles it, dense, over [δX; δλ]."""
    plan = factor.plan
    sources = np.asarray(factor.models.sources)
    values = np.bincount(plan.target, sources[plan.source], minlength=plan.num_entries)
    values[plan.pair_entry] -= 1.0
    k = np.zeros((plan.num_unknowns, plan.num_unknowns))
    for i in range(plan.num_fronts):
        unknowns = np.concatenate([plan.eliminated(i), plan.separator(i)])
        mine = slice(plan.entry_ptr[i], plan.entry_ptr[i + 1])
        a, b = unknowns[plan.entry_row[mine]], unknowns[plan.entry_col[mine]]
        k[a, b] = k[b, a] = values[mine]
    return k
