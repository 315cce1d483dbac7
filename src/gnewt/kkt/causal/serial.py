"""The schedule of any graph: one scan over its steps, with a switch on their kind, all padded to one size.

∂²V lives in one vector, with an entry for every pair of slots that is ever coupled. A step gathers its front from this
vector and puts back what the step leaves. Compile time does not depend on the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from gnewt.graph import Data, Family, Structure
from gnewt.kkt.causal.blocks import CausalModels, node_hessian
from gnewt.kkt.causal.front import AffinePolicy, FoundPolicies, HessianAlgebra, ValueFunction
from gnewt.kkt.causal.order import CausalOrder

_INPUT, _NODE, _CURVED = 0, 1, 2
"""Kinds of events; Hessians of family i of the curved nodes are events of kind _CURVED + i."""

PairState: TypeAlias = tuple[jax.Array, jax.Array]
"""∂²V of all pairs, and ∂V less λ of all slots (the δλ form, E10); the last entry of each is zero, for padding."""
StepOutcome: TypeAlias = tuple[PairState, tuple[AffinePolicy, ValueFunction | None]]
Branch: TypeAlias = Callable[[PairState, jax.Array], StepOutcome]
Integers: TypeAlias = np.ndarray | jax.Array


class SerialMaps(NamedTuple):
    """Integers of the walk, on the host or on the device. Places beyond the last are padding."""

    slots: Integers  # [steps, e]: slots that go ...
    separator: Integers  # [steps, b]: ... and those that stay
    front: Integers  # [steps, e + b, e + b]: pairs of a front ...
    left: Integers  # [steps, b, b]: ... and of what a step leaves, its upper triangle
    reads: Integers  # [steps, e, b]: pairs (slot, slot it reads) of a step
    hessians: list[Integers]  # [n, k, k] of every family: the pairs of its arguments, each once
    jacobians: Mapping[int, Integers]  # [n, m, k] of every node family: its pairs (slot, slot it reads)
    args: Mapping[int, Integers]
    outs: Mapping[int, Integers]
    steps: tuple[Integers, Integers, Integers]
    """Kinds of the steps, their numbers, and places of kind 0, which are inputs ..."""
    events: tuple[Integers, Integers, Integers]
    """... and the same with events (kind, instance) for the Hessian of a node, as soon as its duals are known."""
    forward: tuple[Integers, Integers, Integers]
    """(0, number of an input step) or (1 + number of a node family, instance), in the order of evaluation."""


class SerialWalk:
    """A causal order as a list of events."""

    def __init__(self, order: CausalOrder) -> None:
        self.order: CausalOrder = order
        self.structure: Structure = order.structure
        steps = order.steps
        families, nodes, num = self.structure.families, self.structure.nodes, self.structure.num_slots
        self._e = max((len(s.slots) for s in steps), default=1)
        self._b = max((len(s.separator) for s in steps), default=1) or 1
        self._curved = [f for f in nodes if families[f].hess_pattern.any()]
        slots = _padded([s.slots for s in steps], self._e, num)
        separator = _padded([s.separator for s in steps], self._b, num)
        fronts = _unordered(np.concatenate([slots, separator], axis=1), num)
        pairs = np.unique(fronts[fronts >= 0])
        front = _find(pairs, fronts)
        lower = np.tril(np.ones((self._b, self._b), bool), -1)
        args, outs = ({f: np.asarray(getattr(families[f], name)) for f in nodes} for name in ("args", "outs"))
        keys = {f: _ordered(outs[f], args[f], num) for f in nodes}
        reads = np.unique(np.concatenate([np.zeros(0, np.int64), *(k.ravel() for k in keys.values())]))
        self._num_pairs, self._num_reads = len(pairs), len(reads)
        self.arrays: SerialMaps = SerialMaps(
            slots,
            separator,
            front,
            np.where(lower, len(pairs), front[:, self._e :, self._e :]).astype(np.int32),
            _find(reads, _ordered(slots, separator, num)),
            [_find(pairs, _each_once(family.args, num)) for family in families],
            {f: _find(reads, keys[f]) for f in nodes},
            args,
            outs,
            *(_columns_of(listed) for listed in self._list_events()),
        )

    @property
    def input_steps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(slots [R, e], separators [R, b]) of the input steps, padded by the number of slots."""
        rows = list(self.order.inputs)
        return [(np.asarray(self.arrays.slots)[rows], np.asarray(self.arrays.separator)[rows])]

    def _list_events(self) -> list[list[tuple[int, int]]]:
        """`steps`, `events` and `forward` of the maps, as pairs."""
        events, forward = [], []
        for i, step in enumerate(self.order.steps):
            curved = [(self._curved.index(f), row) for f, row in step.finished if f in self._curved]
            events += [(_INPUT if step.is_input else _NODE, i), *((_CURVED + f, row) for f, row in curved)]
        number = {i: j for j, i in enumerate(self.order.inputs)}
        for i, step in reversed(list(enumerate(self.order.steps))):
            nodes = [(1 + self.structure.nodes.index(f), row) for f, row in step.nodes]
            forward += [(0, number[i])] if step.is_input else nodes
        # An instance whose outputs go in several steps is evaluated once.
        return [[event for event in events if event[0] < _CURVED], events, list(dict.fromkeys(forward))]

    # Backward

    def eliminate(
        self, maps: SerialMaps, models: CausalModels, algebra: HessianAlgebra, keep_values: bool
    ) -> FoundPolicies:
        """As `PathWalk.eliminate`, with one list of all input steps."""
        dtype = models.slots.dtype
        jacobian = jnp.zeros(self._num_reads + 1, dtype)
        for f, block in models.jacobians.items():
            jacobian = jacobian.at[maps.jacobians[f]].add(block)
        matrix = jnp.zeros(self._num_pairs + 1, dtype)
        for f, block in models.hessians.items():
            if self.structure.families[f].is_loss:
                matrix = matrix.at[maps.hessians[f]].add(block)
            elif models.mode == "adjoint":
                matrix = matrix.at[maps.hessians[f]].add(models.share * block)
        branches = self._branches(maps, models, algebra, keep_values, jacobian)
        kinds, rows, inputs = maps.events if models.mode == "value" else maps.steps
        start = (matrix.at[-1].set(0), jnp.zeros(self.structure.num_slots + 1, dtype))
        _, out = jax.lax.scan(lambda s, xs: jax.lax.switch(xs[0], branches, s, xs[1]), start, (kinds, rows))
        return [jax.tree.map(lambda a: a[inputs], out)]

    def _branches(
        self,
        maps: SerialMaps,
        models: CausalModels,
        algebra: HessianAlgebra,
        keep_values: bool,
        jacobian: Array,
    ) -> list[Branch]:
        """What happens at an event of each kind."""
        lam, dtype, e, b = jnp.append(models.duals, 0), jacobian.dtype, self._e, self._b
        places = np.arange(e), np.arange(e, e + b)
        nothing = AffinePolicy(*(jnp.zeros(shape, dtype) for shape in ((e,), (e, b), (), (), ())))
        no_values = ValueFunction(jnp.zeros(b, dtype), jnp.zeros((b, b), dtype)) if keep_values else None

        def minimise(state: PairState, i: Array) -> StepOutcome:
            (matrix, p), mine, rest = state, maps.slots[i], maps.separator[i]
            # Slots that only pad get a large pivot, so that the smallest one is a true one.
            real = mine < self.structure.num_slots
            large = jnp.where(real, 0, float(jnp.finfo(dtype).max) ** 0.5).astype(dtype)
            front = matrix[maps.front[i]] + jnp.diag(jnp.pad(large, (0, b)))
            qu = jnp.where(real, p[mine] + lam[mine], 0)
            policy, left, push = algebra.minimise(front, places, qu)
            matrix, p = matrix.at[maps.left[i]].set(left).at[-1].set(0), p.at[rest].add(push)
            return (matrix, p), (policy, ValueFunction(p[rest] + lam[rest], left) if keep_values else None)

        def substitute(state: PairState, i: Array) -> StepOutcome:
            (matrix, p), j = state, jacobian[maps.reads[i]]
            left = algebra.substitute(matrix[maps.front[i]], places, j, True)
            matrix = matrix.at[maps.left[i]].set(left).at[-1].set(0)
            return (matrix, p.at[maps.separator[i]].add(j.T @ p[maps.slots[i]])), (nothing, no_values)

        def curve(f: int, state: PairState, row: Array) -> StepOutcome:
            """∂²(λ·Φ) of one instance, with λ = ∂V."""
            (matrix, p), outs = state, maps.outs[f][row]
            columns = _columns(self.structure.families[f], models.data[f], row)
            x = models.slots[maps.args[f][row]]
            block = node_hessian(self.structure, f, x, p[outs] + lam[outs], columns)
            return (matrix.at[maps.hessians[f][row]].add(block).at[-1].set(0), p), (nothing, no_values)

        curved = self._curved if models.mode == "value" else []
        return [minimise, substitute, *(partial(curve, f) for f in curved)]

    # Forward

    def roll_out(
        self,
        maps: SerialMaps,
        data: Data,
        slots: Float[Array, " S"],
        found: FoundPolicies,
        length: Float[Array, ""],
    ) -> Float[Array, " S"]:
        """As `PathWalk.roll_out`."""
        policy, nominal = found[0][0], jnp.append(slots, 0)

        def steer(s: Array, i: Array) -> Array:
            mine, rest = maps.slots[maps.steps[2][i]], maps.separator[maps.steps[2][i]]
            moved = length * policy.k[i] + policy.gain[i] @ (s[rest] - nominal[rest])
            return s.at[mine].set(nominal[mine] + moved).at[-1].set(0)

        def evaluate(f: int, s: Array, row: Array) -> Array:
            family = self.structure.families[f]
            y = family.fn(s[maps.args[f][row]], *_columns(family, data[f], row))
            return s.at[maps.outs[f][row]].add(y.astype(s.dtype))

        branches = [steer, *(partial(evaluate, f) for f in self.structure.nodes)]

        def run(s: Array, xs: tuple[Integers, Integers]) -> tuple[Array, None]:
            return jax.lax.switch(xs[0], branches, s, xs[1]), None

        return jax.lax.scan(run, jnp.zeros_like(nominal), maps.forward[:2])[0][:-1]


def _columns(family: Family, data: tuple[ArrayLike, ...], row: Array) -> tuple[ArrayLike, ...]:
    """Data of one instance."""
    return tuple(
        d if axis is None else jnp.asarray(d)[row] for axis, d in zip(family.data_axes, data, strict=True)
    )


def _columns_of(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(kinds, numbers, places of kind 0)."""
    kinds, numbers = np.array(pairs, np.int32).reshape(-1, 2).T
    return kinds, numbers, np.flatnonzero(kinds == _INPUT).astype(np.int32)


def _padded(rows: list[np.ndarray], width: int, filler: int) -> np.ndarray:
    out = np.full((len(rows), width), filler, np.int32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def _ordered(first: np.ndarray, second: np.ndarray, num: int) -> np.ndarray:
    """int[n, i, j]: a key for each pair of slots of first[n, i] and second[n, j]; -1 where one of them is padding."""
    a, b = first[:, :, None].astype(np.int64), second[:, None, :].astype(np.int64)
    return np.where((a < num) & (b < num), a * num + b, -1)


def _unordered(slots: np.ndarray, num: int) -> np.ndarray:
    """int[n, i, i]: one key for (a, b) and (b, a)."""
    keys = _ordered(slots, slots, num)
    return np.minimum(keys, np.swapaxes(keys, 1, 2))


def _each_once(args: np.ndarray, num: int) -> np.ndarray:
    """int[n, k, k]: keys of the pairs of arguments, each in the upper triangle; in both if the two are one slot."""
    same = args[:, :, None] == args[:, None, :]
    return np.where(np.triu(same | True) | same, _unordered(args, num), -1)


def _find(known: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Places of keys among known ones, which are sorted; the place after the last for keys that are not there."""
    at = np.searchsorted(known, keys)
    return np.where(np.append(known, -2)[at] == keys, at, len(known)).astype(np.int32)
