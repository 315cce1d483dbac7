"""An elimination on numbers that count: what a front really takes, one operation after the other.

The fronts of a plan are eliminated as cpp/engine/quick.hpp (causal plans) and careful.hpp (free ones, without delays) do it,
in numbers of Python that add one to a counter with each +, −, × and ÷. The solution is returned, so that a test can see that
nothing was left out.
"""

from __future__ import annotations

import numpy as np

COUNT = [0]


class Num:
    """A number that counts."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = float(value)

    def _other(self, other):
        COUNT[0] += 1
        return other.value if isinstance(other, Num) else other

    def __add__(self, other):
        return Num(self.value + self._other(other))

    def __sub__(self, other):
        return Num(self.value - self._other(other))

    def __mul__(self, other):
        return Num(self.value * self._other(other))

    def __truediv__(self, other):
        return Num(self.value / self._other(other))

    __radd__ = __add__


def _numbers(array):
    return np.vectorize(Num, otypes=[object])(array) if np.size(array) else np.zeros(np.shape(array), object)


def _dot(a, b):
    """Σ a·b; what is known to be nothing is not computed."""
    total = None
    for x, y in zip(a, b, strict=True):
        term = x * y
        total = term if total is None else total + term
    return Num(0.0) if total is None else total


def _add_product(into, left, right, upper):
    """into += leftᵀ right; only the upper half if asked."""
    for i in range(into.shape[0]):
        for j in range(i if upper else 0, into.shape[1]):
            if left.shape[0]:
                into[i, j] = into[i, j] + _dot(left[:, i], right[:, j])


def _ldl(r, rho, q):
    """Eliminate q rows of the upper half of r; rows of L, pivots, and what the right-hand side became."""
    n = len(r)
    for k in range(q):
        for j in range(k + 1, n):
            scaled = r[k, j] / r[k, k]
            for i in range(k + 1, j + 1):
                r[i, j] = r[i, j] - r[k, i] * scaled
            rho[j] = rho[j] - rho[k] * scaled
        for j in range(k + 1, n):
            r[k, j] = Num(r[k, j].value / r[k, k].value)  # kept: the division was counted above


def kkt_values(plan, sources):
    """Entries of K, as the plan lists them, and what is added to its diagonal so that no pivot is delayed."""
    values = np.bincount(plan.target, np.asarray(sources)[plan.source], plan.num_entries)
    values[plan.pair_entry] -= 1.0
    is_slot = np.arange(plan.num_unknowns) < plan.num_slots
    return values, np.where(is_slot, 10.0, 0.0)


def dense_kkt(plan, sources):
    """K as a dense matrix."""
    values, extra = kkt_values(plan, sources)
    row, col = plan.entry_unknowns
    matrix = np.diag(extra)
    np.add.at(matrix, (row, col), values)
    np.add.at(matrix, (col[row != col], row[row != col]), values[row != col])
    return matrix


def eliminate_counted(plan, sources, rhs):
    """Eliminate the fronts of a plan and solve for rhs; returns (solution on the inputs, number of operations).

    Sums of sources and of entries of K are assembly, which no count contains.
    """
    values, extra = kkt_values(plan, sources)
    COUNT[0] = 0
    inbox = [[] for _ in range(plan.num_fronts)]
    steps = []
    for f in range(plan.num_fronts):
        unknowns = np.concatenate([plan.eliminated(f), plan.separator(f)]).tolist()
        dense = np.zeros((len(unknowns),) * 2)
        mine = slice(plan.entry_ptr[f], plan.entry_ptr[f + 1])
        dense[plan.entry_row[mine], plan.entry_col[mine]] = values[mine]
        dense[plan.entry_col[mine], plan.entry_row[mine]] = values[mine]
        own = plan.eliminated(f).tolist()
        dense[np.arange(len(own)), np.arange(len(own))] += extra[own]
        given = [rhs[u] if u < plan.num_inputs else 0.0 for u in own] + [0.0] * (len(unknowns) - len(own))
        matrix, right = _numbers(dense), _numbers(given)
        touched = dense != 0
        for place, schur, carried in inbox[f]:
            for a, i in enumerate(place):
                right[i] = right[i] + carried[a] if right[i].value else carried[a]
                for b in range(a, len(place)):
                    j = place[b]
                    i_, j_ = min(i, j), max(i, j)
                    matrix[i_, j_] = matrix[i_, j_] + schur[a, b]
                    matrix[j_, i_] = matrix[i_, j_]
                    touched[i_, j_] = touched[j_, i_] = True
        step = _causal_front if plan.causal else _free_front
        back, schur, carried = step(plan, matrix, right, own, touched)
        steps.append((unknowns, back))
        if plan.parent[f] >= 0:
            inbox[plan.parent[f]].append(
                (plan.sep_pos[plan.sep_ptr[f] : plan.sep_ptr[f + 1]], schur, carried)
            )
    z = [Num(0.0)] * plan.num_unknowns
    for unknowns, back in reversed(steps):
        back(z, unknowns)
    return np.array([z[u].value for u in range(plan.num_inputs)]), COUNT[0]


def _swap(matrix, right, turn, a, b):
    """Exchange two unknowns; entries below the diagonal are those above it."""
    if a != b:
        for i in range(a, len(matrix)):
            for j in range(a, i):
                matrix[i, j] = matrix[j, i]
        both, other = [a, b], [b, a]
        matrix[both] = matrix[other]
        matrix[:, both] = matrix[:, other]
        right[both], turn[both] = right[other], turn[other]


def _free_front(plan, matrix, right, own, touched):
    e = len(own)
    turn = np.arange(len(matrix))
    for k in range(e):  # the largest pivot that is left: duals have none before their slots
        best = k + int(np.argmax([abs(matrix[i, i].value) for i in range(k, e)]))
        _swap(matrix, right, turn, k, best)
        _ldl(matrix[k:, k:], right[k:], 1)

    def back(z, unknowns):
        names = [unknowns[i] for i in turn]
        for k in reversed(range(e)):
            above = [z[u] for u in names[k + 1 :]]
            y = right[k] / matrix[k, k]
            z[names[k]] = y - _dot(matrix[k, k + 1 :], above) if above else y

    return back, matrix[e:, e:], right[e:]


def _causal_front(plan, matrix, right, own, touched):
    is_pair = [plan.num_inputs <= u < plan.num_slots for u in own]
    p, m = sum(is_pair), len(matrix)
    rest = list(range(2 * p, m))
    n, q = len(rest), len(own) - 2 * p
    dual = {u - plan.num_slots + plan.num_inputs: i for i, u in enumerate(own) if u >= plan.num_slots}
    rows = [dual[u] for u in own[:p]]
    F = matrix[np.ix_(rows, rest)].copy()
    for i in reversed(range(p)):  # pairs that read pairs of the same front come before them
        for j in range(p):
            if j != i and touched[rows[i], j]:
                for k in range(n):
                    F[i, k] = F[i, k] + matrix[rows[i], j] * F[j, k]
    PP, C, R = matrix[:p, :p], matrix[np.ix_(range(p), rest)], matrix[np.ix_(rest, rest)].copy()
    used = [k for k in range(n) if touched[:p, rest[k]].any()]
    beside = min(used, default=n)
    rho, v = right[rest].copy(), right[:p]
    W = np.empty((p, n), object)
    for i in range(p):
        for k in range(n):
            W[i, k] = _dot(PP[i], F[:, k])
            W[i, k] = W[i, k] + C[i, k] if k >= beside else W[i, k]
    sizes = [_dot(np.diagonal(PP), F[:, k] * F[:, k]) for k in range(n)]  # what the pivot tests compare with
    del sizes
    _add_product(R, F, W, upper=True)
    _add_product(R[beside:, beside:], C[:, beside:], F[:, beside:], upper=True)
    for k in range(n):
        rho[k] = rho[k] + _dot(F[:, k], v) if p else rho[k]
    _ldl(R, rho, q)

    def back(z, unknowns):
        known = [z[u] for u in unknowns[2 * p + q :]]
        inputs = []
        for k in reversed(range(q)):
            y = rho[k] / R[k, k]
            above = [*inputs, *known]
            inputs.insert(0, y - _dot(R[k, k + 1 :], above) if above else y)
        for u, value in zip(unknowns[2 * p :], inputs, strict=False):
            z[u] = value
        for i in range(p):
            z[unknowns[i]] = _dot(F[i], [*inputs, *known])

    return back, R[q:, q:], rho[q:]
