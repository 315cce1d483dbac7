"""Random hypertree QPs (seeded) and the dense KKT system they are compared with."""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt.qp import Hyperedge
from gnewt.qp.problem import build_problem


@dataclasses.dataclass(frozen=True)
class Dense:
    """[[Q, Gᵀ], [G, 0]] [x; λ] = [b; h], dense, by plain addition."""

    Q: np.ndarray
    b: np.ndarray
    G: np.ndarray
    h: np.ndarray
    labels: tuple

    @property
    def kkt(self) -> np.ndarray:
        return np.block([[self.Q, self.G.T], [self.G, np.zeros((len(self.G), len(self.G)))]])

    @property
    def rank(self) -> int:
        return int(np.linalg.matrix_rank(self.G, tol=1e-9)) if len(self.G) else 0

    @property
    def reduced(self) -> np.ndarray:
        """ZᵀQZ with GZ = 0."""
        if not len(self.G):
            return self.Q
        Z = np.linalg.svd(self.G)[2][self.rank :].T
        return Z.T @ self.Q @ Z

    def solve(self) -> np.ndarray:
        """x by least squares: unique where the reduced Hessian is nonsingular, redundant rows or not."""
        rhs = np.concatenate([self.b, self.h])
        return np.linalg.lstsq(self.kkt, rhs, rcond=1e-12)[0][: len(self.b)]

    def flat(self, result) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([result.x[v] for v in self.labels]), np.concatenate(
            [np.zeros(0), *result.duals]
        )

    def residuals(self, result) -> tuple[float, float]:
        """max |Gx − h| and max |Qx + Gᵀλ − b|, absolute."""
        x, lam = self.flat(result)
        primal = np.abs(self.G @ x - self.h).max(initial=0.0)
        return float(primal), float(np.abs(self.Q @ x + self.G.T @ lam - self.b).max())


def to_dense(edges: list[Hyperedge], sizes: dict | None = None) -> Dense:
    problem = build_problem(edges, sizes)
    n = problem.num_scalars
    Q, G = np.zeros((n, n)), np.zeros((problem.num_rows, n))
    for t in problem.terms:
        Q[np.ix_(t.scalars, t.scalars)] += t.Q
        G[np.ix_(t.rows, t.scalars)] += t.G
    b, h = problem.rhs()
    return Dense(Q, b, G, h, problem.labels)


def random_hypertree(rng: np.random.Generator, num_bags: int) -> list[list[str]]:
    """Bags that each share some (or no) vertices with an earlier one, and add one to three."""
    bags: list[list[str]] = []
    count = 0
    for _ in range(num_bags):
        shared: list[str] = []
        if bags:
            host = bags[int(rng.integers(len(bags)))]
            shared = [
                str(v) for v in rng.permutation(host)[: int(rng.integers(0 if len(bags) > 2 else 1, 3))]
            ]
        fresh = [f"v{count + j}" for j in range(int(rng.integers(1, 4)))]
        count += len(fresh)
        bags.append([str(v) for v in rng.permutation(shared + fresh)])
    return bags


def random_qp(seed: int) -> tuple[list[Hyperedge], dict[str, int], int]:
    """A QP that is strictly convex on the constraints' nullspace and, mostly, not elsewhere.

    Returns edges, sizes and the number of rows that were made to depend on others on purpose.
    """
    rng = np.random.default_rng(seed)
    bags = random_hypertree(rng, int(rng.integers(1, 13)))
    sizes = {v: int(rng.integers(1, 4)) for bag in bags for v in bag}
    x0 = {v: rng.normal(size=n) for v, n in sizes.items()}
    edges, planted = [], 0
    for i, bag in enumerate(bags):
        k = sum(sizes[v] for v in bag)
        rank = int(rng.integers(0, max(1, k // 2) + 1))
        basis = np.linalg.qr(rng.normal(size=(k, k)))[0][:rank]
        extra = int(rng.integers(0, 3)) if rank else 0
        planted += extra
        mix = np.concatenate([np.eye(rank), rng.normal(size=(extra, rank))])
        G = rng.permutation(mix @ basis)
        A = rng.normal(size=(k, k))
        Q = A @ A.T / k + 0.2 * np.eye(k) - 2.0 * basis.T @ basis  # negative where constrained only
        h = G @ np.concatenate([x0[v] for v in bag])
        edges.append(Hyperedge(bag, Q, rng.normal(size=k), G, h, name=f"bag{i}"))
        if rank and rng.random() < 0.3:  # rows that another edge already has
            edges.append(Hyperedge(bag, G=3.0 * G[:1], h=3.0 * h[:1], name=f"copy{i}"))
            planted += 1
    for v in sizes:  # the same condition on a shared vertex, written in two bags that may lie far apart
        homes = [bag for bag in bags if v in bag]
        if len(homes) > 1 and rng.random() < 0.3:
            row = {v: rng.normal(size=sizes[v])}
            for j, factor in ((0, 1.0), (-1, -2.5)):
                G = np.concatenate([row.get(u, np.zeros(sizes[u])) for u in homes[j]])[None]
                h = factor * (row[v] @ x0[v])
                edges.append(Hyperedge(homes[j], G=factor * G, h=h, name=f"{v}@{j}"))
            planted += 1
    return edges, sizes, planted
