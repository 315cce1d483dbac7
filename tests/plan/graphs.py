"""KKT graphs of known shape, without functions or numbers."""

import numpy as np

from gnewt.plan import Adjacency, KKTGraph


def kkt(num_inputs, num, reads, primal, sizes=None):
    """A KKTGraph from (reader, read) pairs and pairs that a Hessian couples."""
    reads, primal = np.asarray(reads, int).reshape(-1, 2), np.asarray(primal, int).reshape(-1, 2)
    both = np.concatenate([reads, primal])
    sizes = np.ones(num, np.int64) if sizes is None else np.asarray(sizes, np.int64)
    return KKTGraph(
        vertex_of_slot=np.repeat(np.arange(num), sizes).astype(np.int32),
        sizes=sizes,
        is_input=np.arange(num) < num_inputs,
        primal=Adjacency.from_pairs(num, primal[:, 0], primal[:, 1]),
        reads=Adjacency.from_pairs(num, reads[:, 0], reads[:, 1], symmetric=False),
        adjacency=Adjacency.from_pairs(num, both[:, 0], both[:, 1]),
        defined_with=np.arange(num, dtype=np.int32),
    )


def random_kkt(seed):
    """Weighted, with isolated vertices and several components as often as not."""
    rng = np.random.default_rng(seed)
    num_inputs, num_nodes = int(rng.integers(1, 15)), int(rng.integers(0, 30))
    num = num_inputs + num_nodes
    fan = int(rng.integers(1, 4))
    reads = [
        (v, w) for v in range(num_inputs, num) for w in rng.integers(0, v, int(rng.integers(0, fan + 1)))
    ]
    primal = rng.integers(0, num, (int(rng.integers(0, 2 * num)), 2))
    return kkt(num_inputs, num, np.array(reads, int), primal, rng.integers(1, 5, num))


def chain(T):
    x, u = T + np.arange(T), np.arange(T)
    reads = np.concatenate([np.stack([x, u], 1), np.stack([x[1:], x[:-1]], 1)])
    return kkt(T, 2 * T, reads, np.stack([x[:-1], u[1:]], 1), np.repeat([1, 4], T))


def reduction_tree(n):
    inner = np.arange(n - 1)
    reads = np.concatenate([np.stack([n + inner, 2 * inner], 1), np.stack([n + inner, 2 * inner + 1], 1)])
    return kkt(n, 2 * n - 1, reads, [(2 * n - 2, 2 * n - 2)])


def star(n):
    return kkt(n, n + 1, np.stack([np.full(n, n), np.arange(n)], 1), [])


def grid(n):
    at = np.arange(n * n).reshape(n, n)
    across, down = [at[:, :-1], at[:, 1:]], [at[:-1], at[1:]]
    primal = [np.stack([a.ravel(), b.ravel()], 1) for a, b in (across, down)]
    return kkt(n * n, n * n, [], np.concatenate(primal))


def hopeless(num, seed=0):
    """Six random couplings per vertex: an expander, whose tree-width is a constant part of its size."""
    rng = np.random.default_rng(seed)
    v = np.repeat(np.arange(num), 3)
    later = v >= num // 2
    reads = np.stack([v, rng.integers(0, np.maximum(v, 1))], 1)[later]
    return kkt(num // 2, num, reads, np.stack([v, rng.integers(0, num, len(v))], 1)[~later])


GRAPHS = {
    "chain": lambda: chain(400),
    "tree": lambda: reduction_tree(256),
    "star": lambda: star(300),
    "grid": lambda: grid(24),
    "hopeless": lambda: hopeless(500),
    "empty": lambda: kkt(0, 0, [], []),
    "alone": lambda: kkt(1, 1, [], []),
}
