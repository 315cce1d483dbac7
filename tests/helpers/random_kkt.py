"""Random structures with random local derivatives, without functions to trace; and what dense linear algebra says of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gnewt.graph import Family, Structure

KINDS = (
    "normal",
    "sparse",
    "units",
    "objective",
    "low_rank",
    "integers",
    "bilinear",
    "cancelling",
    "terminal",
)
"""What the numbers are like."""


def _nothing(*_: Any) -> Any:
    raise AssertionError("these structures are never evaluated")


def random_structure(seed: int) -> Structure:
    """A DAG of vector vertices: fan-in 1 to 3, repeated arguments, unused nodes, sums of several instances, chains."""
    rng = np.random.default_rng(seed)
    num_inputs, num_nodes = int(rng.integers(1, 7)), int(rng.integers(0, 9))
    chain = rng.random() < 0.3
    sizes = rng.integers(1, 4, num_inputs + num_nodes)
    inputs = int(sizes[:num_inputs].sum())
    first = np.concatenate([[0], np.cumsum(sizes)])
    slots = [np.arange(first[i], first[i + 1]) for i in range(len(sizes))]
    families: list[Family] = []

    def pick(known: int, fan: int) -> np.ndarray:
        pool = np.arange(known) if rng.random() < 0.6 else np.arange(max(0, known - 3), known)
        names = rng.choice(pool, size=fan)  # the same vertex may come twice
        return np.concatenate([slots[i] for i in names]).astype(np.int32)[None]

    def hess_pattern(k: int) -> np.ndarray:
        dense = rng.random((k, k)) < rng.choice([0.0, 0.4, 1.0], p=[0.2, 0.2, 0.6])
        return dense | dense.T

    for v in range(num_inputs, num_inputs + num_nodes):
        if chain and v > num_inputs:
            args = np.concatenate([slots[v - 1], slots[(v - num_inputs) % num_inputs]]).astype(np.int32)[None]
        else:
            args = pick(v, int(rng.integers(1, 4)))
        k, m = args.shape[1], int(sizes[v])
        for _ in range(1 + (rng.random() < 0.15)):  # a slot may be the sum of two instances
            jac = rng.random((m, k)) < rng.choice([0.5, 1.0])
            families.append(Family(_nothing, args, slots[v].astype(np.int32)[None], (), jac, hess_pattern(k)))
    for _ in range(int(rng.integers(1, num_inputs + num_nodes + 2))):
        args = pick(num_inputs + num_nodes, int(rng.integers(1, 4)))
        jac = np.ones((1, args.shape[1]), bool)
        families.append(Family(_nothing, args, None, (), jac, hess_pattern(args.shape[1])))
        if rng.random() < 0.2:
            families.append(families[-1])
    return Structure(tuple(families), inputs, int(first[-1]), None, (), ())


def random_chain(seed: int) -> Structure:
    """Many stages one after the other, sometimes with branches: states read the states before them and inputs of their own."""
    rng = np.random.default_rng(seed)
    stages, nx, nu = int(rng.integers(8, 31)), int(rng.integers(1, 5)), int(rng.integers(1, 3))
    inputs = stages * nu
    u = np.arange(inputs, dtype=np.int32).reshape(stages, nu)
    x = inputs + np.arange(stages * nx, dtype=np.int32).reshape(stages, nx)
    branching = rng.choice([0.0, 0.0, 0.2])
    bent = rng.random() < 0.5  # whether dynamics have curvature
    families: list[Family] = []
    for t in range(stages):
        before = int(rng.integers(0, t)) if t and rng.random() < branching else t - 1
        args = (u[t] if t == 0 else np.concatenate([x[before], u[t]]))[None]
        k = args.shape[1]
        families.append(Family(_nothing, args, x[t][None], (), np.ones((nx, k), bool), np.full((k, k), bent)))
        if rng.random() < 0.9:
            names = np.concatenate([x[t], u[t]])[None]
            families.append(
                Family(
                    _nothing, names, None, (), np.ones((1, nx + nu), bool), np.ones((nx + nu, nx + nu), bool)
                )
            )
    return Structure(tuple(families), inputs, inputs + stages * nx, None, (), ())


def random_line(seed: int) -> Structure:
    """Stages that look alike, with sparse derivatives: several functions a stage, shared inputs, states that are read two
    stages later, now and then a stage with other patterns. Sources stand stage by stage, or function by function.
    """
    rng = np.random.default_rng(seed)
    stages, nx, nu = int(rng.integers(8, 31)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    shared = int(rng.choice([0, 0, 1, 3]))
    inputs = stages * nu + shared
    u = np.arange(stages * nu, dtype=np.int32).reshape(stages, nu)
    common = np.arange(stages * nu, inputs, dtype=np.int32)
    x = inputs + np.arange(stages * nx, dtype=np.int32).reshape(stages, nx)
    memory, losses = 1 + int(rng.random() < 0.3), int(rng.integers(1, 3))
    k = memory * nx + nu + shared

    def patterns() -> tuple[np.ndarray, ...]:
        share = rng.choice([0.3, 0.6, 1.0])
        bent, costs = (
            rng.random((k, k)) < rng.choice([0.0, 0.3]),
            rng.random((losses, nx + nu, nx + nu)) < share,
        )
        costs |= np.eye(nx + nu, dtype=bool) & (rng.random(nx + nu) < 0.8)
        return rng.random((nx, k)) < share, bent | bent.T, costs | costs.transpose(0, 2, 1)

    usual, odd = patterns(), int(rng.integers(1, stages))
    per_stage: list[list[Family]] = []
    for t in range(stages):
        jac, bent, costs = patterns() if t == odd and rng.random() < 0.5 else usual
        before = [x[t - 1 - m] for m in range(min(memory, t))]
        args = np.concatenate([*before, u[t], common])
        if len(before) < memory:  # the first stages read less
            jac, bent = jac[:, k - len(args) :], bent[k - len(args) :, k - len(args) :]
        families = [Family(_nothing, args[None], x[t][None], (), jac, bent)]
        names = np.concatenate([x[t], u[t]])[None]
        families += [Family(_nothing, names, None, (), np.ones((1, nx + nu), bool), cost) for cost in costs]
        per_stage.append(families)
    if rng.random() < 0.5:
        every = [family for families in per_stage for family in families]
    else:
        every = [families[i] for i in range(1 + losses) for families in per_stage]
    return Structure(tuple(every), inputs, inputs + stages * nx, None, (), ())


def random_band(seed: int) -> Structure:
    """Inputs in a row, each coupled with the few before it and with shared ones, one term now and then otherwise: no nodes."""
    rng = np.random.default_rng(seed)
    num, reach, shared = int(rng.integers(20, 70)), int(rng.integers(1, 4)), int(rng.choice([0, 0, 0, 1]))
    common = np.arange(num, num + shared, dtype=np.int32)
    k = reach + 1 + shared

    def pattern() -> np.ndarray:
        hess = rng.random((k, k)) < rng.choice([0.3, 1.0])
        return hess | hess.T | np.diag(rng.random(k) < 0.9)

    usual, odd = pattern(), int(rng.integers(0, num - reach))
    families = [
        Family(
            _nothing,
            np.concatenate([np.arange(i, i + reach + 1, dtype=np.int32), common])[None],
            None,
            (),
            np.ones((1, k), bool),
            pattern() if i == odd and rng.random() < 0.5 else usual,
        )
        for i in range(num - reach)
    ]
    return Structure(tuple(families), num + shared, num + shared, None, (), ())


def random_tree(seed: int) -> Structure:
    """Arms that look alike around a few inputs: inputs and nodes of their own, terms that couple an arm with the middle, and
    sums over all arms. Sources of all arms stand together.
    """
    rng = np.random.default_rng(seed)
    arms, own, made = int(rng.integers(3, 20)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    middle, sums = int(rng.integers(0, 3)), int(rng.choice([0, 0, 1, 2]))
    u = np.arange(arms * own, dtype=np.int32).reshape(arms, own)
    common = np.arange(arms * own, arms * own + middle, dtype=np.int32)
    inputs = arms * own + middle
    x = inputs + np.arange(arms * made, dtype=np.int32).reshape(arms, made)
    total = inputs + arms * made + np.arange(sums, dtype=np.int32)
    beside = np.broadcast_to(common, (arms, middle))
    families: list[Family] = []

    def add(args: np.ndarray, outs: np.ndarray | None, diagonal: float) -> None:
        k, m = args.shape[1], 1 if outs is None else outs.shape[1]
        hess = rng.random((k, k)) < rng.choice([0.0, 0.5, 1.0])
        hess |= np.eye(k, dtype=bool) & (rng.random(k) < diagonal)
        jac = np.ones((m, k), bool) if outs is None else rng.random((m, k)) < rng.choice([0.5, 1.0])
        for i in range(len(args)):
            made_here = None if outs is None else outs[i : i + 1]
            families.append(Family(_nothing, args[i : i + 1], made_here, (), jac, hess | hess.T))

    if made:
        add(np.concatenate([u, beside], 1), x, 0.3)
    for _ in range(int(rng.integers(1, 3))):
        add(np.concatenate([u, x, beside], 1) if rng.random() < 0.7 else u, None, 0.9)
    if sums:
        add(np.concatenate([u, x], 1), np.broadcast_to(total, (arms, sums)), 0.5)
        add(total[None], None, 0.9)
    if middle:
        add(common[None], None, 0.9)
    return Structure(tuple(families), inputs, inputs + arms * made + sums, None, (), ())


def random_sources(structure: Structure, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Local derivatives in the order of the vector of sources (graph/plan.py)."""
    unit = np.ones(structure.num_slots)
    if kind == "units":
        unit = 10.0 ** rng.uniform(-8, 8, structure.num_slots)
    scale = 10.0 ** rng.uniform(-20, 20) if kind == "objective" else 1.0
    parts: list[np.ndarray] = []
    cancel: dict[tuple, np.ndarray] = {}
    for family in structure.families:
        args = family.args[0]
        if family.outs is not None:
            o, a = np.nonzero(family.jac_pattern)
            j = rng.integers(-2, 3, len(o)) * 1.0 if kind == "integers" else rng.normal(size=len(o))
            if kind == "sparse":
                j *= rng.random(len(o)) < 0.6
            parts.append(j * unit[args[a]] / unit[family.outs[0, o]])
        i, j = np.nonzero(np.tril(family.hess_pattern))
        if kind == "integers":
            h = rng.integers(-2, 3, len(i)) * 1.0
        elif kind in ("low_rank", "terminal"):
            v = rng.normal(size=family.k) * family.is_loss
            if kind == "terminal":  # only what reads the last vertex has curvature
                v = v * np.any(args == structure.num_slots - 1)
            h = v[i] * v[j]
        else:
            h = rng.normal(size=len(i))
        if kind == "sparse":
            h *= rng.random(len(i)) < rng.choice([0.1, 0.5])
        if kind == "bilinear":
            h *= i != j
        if kind == "cancelling":
            # Equal losses come in threes that add up to rounding: 0.1 + 0.2 - 0.3.
            key = (args.tobytes(), family.hess_pattern.tobytes(), family.is_loss)
            before = cancel.get(key)
            cancel[key] = h
            if before is not None and len(before):
                h = -before if rng.random() < 0.5 else -before * (1 + 2e-16)
        parts.append(scale * h * unit[args[i]] * unit[args[j]])
    return np.concatenate(parts) if parts else np.zeros(0)


@dataclasses.dataclass(frozen=True)
class Dense:
    """H, and the magnitudes that went into its entries."""

    h: np.ndarray
    magnitude: np.ndarray
    extended: np.ndarray
    """H in extended precision."""

    @property
    def unit(self) -> np.ndarray:
        """In these units no entry of a positive semidefinite H is above one."""
        d = np.diagonal(self.magnitude)
        largest = self.magnitude.max(1, initial=0.0)
        size = np.where(d > 0, d, np.where(largest > 0, largest, 1.0))
        return 1 / np.sqrt(size)

    def spectrum(self) -> tuple[np.ndarray, float]:
        """Eigenvalues of H in units, and how large they would be without cancellation."""
        u = self.unit
        w = np.linalg.eigvalsh(u[:, None] * self.h * u)
        return w, float(np.linalg.norm(u[:, None] * self.magnitude * u, 2))

    def pivots(self) -> np.ndarray:
        """Sizes of the pivots of H in units, by Gauss with complete pivoting in extended precision: they tell the rank."""
        u = self.unit.astype(np.longdouble)
        a = u[:, None] * self.extended * u
        out = np.zeros(len(a))
        for k in range(len(a)):
            at = np.unravel_index(np.argmax(np.abs(a[k:, k:])), (len(a) - k, len(a) - k))
            i, j = k + at[0], k + at[1]
            a[[k, i]] = a[[i, k]]
            a[:, [k, j]] = a[:, [j, k]]
            out[k] = abs(a[k, k])
            if out[k] == 0:
                break
            a[k + 1 :] -= (a[k + 1 :, k] / a[k, k])[:, None] * a[k]
        return out

    def backward_error(self, x: np.ndarray, b: np.ndarray) -> float:
        """The largest |Hx - b| relative to |H||x| + |b|, in units."""
        u = self.unit
        residual = np.abs(self.h @ x - b) * u[:, None]
        size = (u[:, None] * (self.magnitude @ np.abs(x))).max(0) + (u[:, None] * np.abs(b)).max(0)
        return float((residual.max(0) / np.maximum(size, 1e-300)).max())


def dense(structure: Structure, sources: np.ndarray, shift: float) -> Dense:
    """H = [I; G]ᵀ (Σ H_f) [I; G] with G = ∂(nodes)/∂(inputs): no tree, no order, no plan. In extended precision."""
    n, s = structure.num_inputs, structure.num_slots
    jac, hess = np.zeros((s, s), np.longdouble), np.zeros((s, s), np.longdouble)
    mag = np.zeros((s, s), np.longdouble)
    at = 0
    for family in structure.families:
        args = family.args[0]
        if family.outs is not None:
            o, a = np.nonzero(family.jac_pattern)
            np.add.at(jac, (family.outs[0, o], args[a]), sources[at : at + len(o)])
            at += len(o)
        i, j = np.nonzero(np.tril(family.hess_pattern))
        values = sources[at : at + len(i)]
        at += len(i)
        for r, c, v in zip(args[i], args[j], values, strict=True):
            hess[r, c] += v
            mag[r, c] += abs(v)
        off = i != j
        for r, c, v in zip(args[j[off]], args[i[off]], values[off], strict=True):
            hess[r, c] += v
            mag[r, c] += abs(v)
    forward = np.zeros((s, n), np.longdouble)
    forward[:n] = np.eye(n)
    for v in range(n, s):
        forward[v] = jac[v, :v] @ forward[:v]
    size = np.abs(forward)
    h = forward.T @ hess @ forward + shift * np.eye(n)
    magnitude = size.T @ mag @ size + abs(shift) * np.eye(n)
    return Dense(h.astype(np.float64), magnitude.astype(np.float64), h)
