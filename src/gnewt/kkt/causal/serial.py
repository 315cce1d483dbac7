"""Causal elimination of any graph: one scan over its steps, with a switch on their kind, all padded to one size.

The Hessian of the value function lives in one vector, an entry for every pair of slots that is ever coupled. A step gathers
its front from there and adds what it passes on. Compile time does not depend on the number of steps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.graph import Data, Family
from gnewt.kkt.causal.blocks import Numbers, Swept, Values, minimise_over, node_hessian, pass_on
from gnewt.kkt.causal.order import CausalOrder

_INPUT, _NODE, _CURVED = 0, 1, 2
"""Kinds of events; Hessians of family i of the nodes are events of kind _CURVED + i."""


class SerialWalk:
    """A causal order as a list of events."""

    def __init__(self, order: CausalOrder) -> None:
        self.structure = structure = order.structure
        self.order = order
        steps = order.steps
        self._e = max((len(s.slots) for s in steps), default=1)
        self._b = max(1, max((len(s.separator) for s in steps), default=1))
        num = structure.num_slots
        self.arrays: dict[str, Any] = {
            "slots": _padded([s.slots for s in steps], self._e, num),
            "separator": _padded([s.separator for s in steps], self._b, num),
            "inputs": np.array(order.inputs, np.int32),
        }
        self._number_pairs()
        self._number_jacobians()
        self._list_events()

    @property
    def input_steps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(slots [R, e], separators [R, b]) of the input steps, padded by the number of slots."""
        rows = list(self.order.inputs)
        return [(self.arrays["slots"][rows], self.arrays["separator"][rows])]

    def _number_pairs(self) -> None:
        """Number the pairs of slots that are coupled, and say where fronts and local Hessians find them."""
        num = self.structure.num_slots
        front = np.concatenate([self.arrays["slots"], self.arrays["separator"]], axis=1).astype(np.int64)
        low = np.minimum(front[:, :, None], front[:, None, :])
        high = np.maximum(front[:, :, None], front[:, None, :])
        keys = np.where(high < num, low * num + high, -1)
        self._keys = np.unique(keys[keys >= 0])
        self._num_pairs = len(self._keys)
        pairs = np.where(keys >= 0, np.searchsorted(self._keys, keys), self._num_pairs)
        self.arrays["front"] = pairs.astype(np.int32)
        lower = np.tril(np.ones((self._b, self._b), bool), -1)
        self.arrays["pass"] = np.where(lower, self._num_pairs, pairs[:, self._e :, self._e :]).astype(
            np.int32
        )
        for f, family in enumerate(self.structure.families):
            self.arrays[f"hess{f}"] = self._places(family)

    def _places(self, family: Family) -> np.ndarray:
        """int[n, k, k]: the pair that an entry of a local Hessian is added to; each pair of arguments once."""
        args = family.args.astype(np.int64)
        i, j = args[:, :, None], args[:, None, :]
        keys = np.minimum(i, j) * self.structure.num_slots + np.maximum(i, j)
        at = np.searchsorted(self._keys, keys).clip(max=max(self._num_pairs - 1, 0))
        upper = np.triu(np.ones((family.k, family.k), bool))
        known = self._keys[at] == keys if self._num_pairs else np.zeros(keys.shape, bool)
        return np.where((upper | (i == j)) & known, at, self._num_pairs).astype(np.int32)

    def _number_jacobians(self) -> None:
        """Number the pairs (slot, slot it reads), and say where steps and local Jacobians find them."""
        num, parts = self.structure.num_slots, [np.zeros(0, np.int64)]
        keys_of = {}
        for f in self.structure.nodes:
            family = self.structure.families[f]
            assert family.outs is not None
            keys_of[f] = family.outs[:, :, None].astype(np.int64) * num + family.args[:, None, :]
            parts.append(keys_of[f].ravel())
        known = np.unique(np.concatenate(parts))
        self._num_jacobians = len(known)
        for f, keys in keys_of.items():
            self.arrays[f"jac{f}"] = np.searchsorted(known, keys).astype(np.int32)
        slots, separator = (self.arrays[name].astype(np.int64) for name in ("slots", "separator"))
        wanted = slots[:, :, None] * num + separator[:, None, :]
        at = np.searchsorted(known, wanted).clip(max=max(len(known) - 1, 0))
        real = (slots < num)[:, :, None] & (separator < num)[:, None, :]
        found = real & (known[at] == wanted) if len(known) else np.zeros(wanted.shape, bool)
        self.arrays["jacobian"] = np.where(found, at, len(known)).astype(np.int32)

    def _list_events(self) -> None:
        """Elimination: steps, and the Hessian of a node as soon as its duals are known. Rollout: inputs and instances."""
        nodes = self.structure.nodes
        self._curved = [f for f in nodes if self.structure.families[f].hess_pattern.any()]
        kinds, rows, step_kind, done = [], [], [], set()
        forward: list[tuple[int, int]] = []
        for i, step in enumerate(self.order.steps):
            kinds.append(_INPUT if step.is_input else _NODE)
            rows.append(i)
            step_kind.append(kinds[-1])
            for f, row in step.finished:
                if f in self._curved:
                    kinds.append(_CURVED + self._curved.index(f))
                    rows.append(row)
        place = {i: j for j, i in enumerate(self.order.inputs)}
        for i in range(len(self.order.steps) - 1, -1, -1):
            step = self.order.steps[i]
            if step.is_input:
                forward.append((0, place[i]))
                continue
            for f, row in step.nodes:
                if (f, row) not in done:
                    done.add((f, row))
                    forward.append((1 + nodes.index(f), row))
        self.arrays["events"] = (np.array(kinds, np.int32), np.array(rows, np.int32))
        self.arrays["steps"] = (np.array(step_kind, np.int32), np.arange(len(step_kind), dtype=np.int32))
        self.arrays["forward"] = tuple(np.array(forward, np.int32).reshape(-1, 2).T)
        kind = np.array(kinds, np.int32)
        self.arrays["input_events"] = np.flatnonzero(kind == _INPUT).astype(np.int32)
        for f in nodes:
            family = self.structure.families[f]
            self.arrays[f"args{f}"], self.arrays[f"outs{f}"] = family.args, family.outs

    # Backward

    def eliminate(
        self, numbers: Numbers, mode: str, keep_values: bool = False, definite: bool = True
    ) -> list[tuple[Swept, Values | None]]:
        """As `PathWalk.eliminate`, with one list of all input steps."""
        maps, data, slots, shift = numbers.maps, numbers.data, numbers.slots, numbers.shift
        dtype, e = slots.dtype, self._e
        jacobian = jnp.zeros(self._num_jacobians + 1, dtype)
        for f, block in numbers.jacobians.items():
            jacobian = jacobian.at[maps[f"jac{f}"]].add(block)
        matrix = jnp.zeros(self._num_pairs + 1, dtype)
        for f, block in numbers.hessians.items():
            if self.structure.families[f].is_loss:
                matrix = matrix.at[maps[f"hess{f}"]].add(block)
            elif mode == "adjoint":
                matrix = matrix.at[maps[f"hess{f}"]].add(numbers.share * block)
        matrix = matrix.at[-1].set(0)
        lam = jnp.append(numbers.duals, 0)
        nothing = (
            Swept(*(jnp.zeros(shape, dtype) for shape in ((e,), (e, self._b), (), (), ()))),
            Values(jnp.zeros(self._b, dtype), jnp.zeros((self._b, self._b), dtype)) if keep_values else None,
        )

        def minimise(matrix: Array, p: Array, i: Array) -> Any:
            mine, rest = maps["slots"][i], maps["separator"][i]
            front = matrix[maps["front"][i]]
            # Slots that only pad get a large pivot, so that the smallest one is a true one.
            real = mine < self.structure.num_slots
            quu = front[:e, :e] + jnp.diag(
                jnp.where(real, 0, float(jnp.finfo(dtype).max) ** 0.5).astype(dtype)
            )
            qus, qu = front[:e, e:], jnp.where(real, p[mine] + lam[mine], 0)
            swept = minimise_over(quu, qus, qu, shift, definite)
            more, push = pass_on(
                swept, jnp.where(real[:, None], front[:e, :e], 0), qus, qu, mode == "adjoint"
            )
            at = maps["pass"][i]
            matrix = matrix.at[at].add(more).at[-1].set(0)
            p = p.at[rest].add(push)
            values = None
            if keep_values:
                values = Values(p[rest] + lam[rest], matrix[maps["front"][i]][e:, e:])
            return matrix, p, (swept, values)

        def substitute(matrix: Array, p: Array, i: Array) -> Any:
            mine, rest = maps["slots"][i], maps["separator"][i]
            front, j = matrix[maps["front"][i]], jacobian[maps["jacobian"][i]]
            cross = j.T @ front[:e, e:]
            added = j.T @ front[:e, :e] @ j + cross + cross.T
            matrix = matrix.at[maps["pass"][i]].add(added).at[-1].set(0)
            return matrix, p.at[rest].add(j.T @ p[mine]), nothing

        def curve(f: int) -> Any:
            family = self.structure.families[f]

            def run(matrix: Array, p: Array, row: Array) -> Any:
                outs = maps[f"outs{f}"][row]
                columns = _columns(family, data[f], row)
                block = node_hessian(
                    self.structure, f, slots[maps[f"args{f}"][row]], p[outs] + lam[outs], columns
                )
                return matrix.at[maps[f"hess{f}"][row]].add(block).at[-1].set(0), p, nothing

            return run

        branches = [minimise, substitute]
        kinds, rows = maps["steps"]
        at = maps["inputs"]
        if mode == "value":
            branches += [curve(f) for f in self._curved]
            kinds, rows = maps["events"]
            at = maps["input_events"]

        def event(carry: Any, xs: Any) -> Any:
            matrix, p, out = jax.lax.switch(xs[0], branches, *carry, xs[1])
            return (matrix, p), out

        start = (matrix, jnp.zeros(self.structure.num_slots + 1, dtype))
        _, out = jax.lax.scan(event, start, (kinds, rows))
        return [jax.tree.map(lambda a: a[at], out)]

    # Forward

    def roll_out(
        self,
        maps: dict[str, Any],
        data: Data,
        slots: Float[Array, " S"],
        swept: list[tuple[Swept, Values | None]],
        length: Float[Array, ""],
    ) -> Float[Array, " S"]:
        """As `PathWalk.roll_out`."""
        policy = swept[0][0]
        nominal = jnp.append(slots, 0)

        def steer(s: Array, i: Array) -> Array:
            mine, rest = maps["slots"][maps["inputs"][i]], maps["separator"][maps["inputs"][i]]
            moved = length * policy.k[i] + policy.gain[i] @ (s[rest] - nominal[rest])
            return s.at[mine].set(nominal[mine] + moved).at[-1].set(0)

        def evaluate(f: int) -> Any:
            family = self.structure.families[f]

            def run(s: Array, row: Array) -> Array:
                y = family.fn(s[maps[f"args{f}"][row]], *_columns(family, data[f], row))
                return s.at[maps[f"outs{f}"][row]].add(y.astype(s.dtype))

            return run

        branches = [steer, *(evaluate(f) for f in self.structure.nodes)]
        start = jnp.zeros_like(nominal)
        done, _ = jax.lax.scan(
            lambda s, xs: (jax.lax.switch(xs[0], branches, s, xs[1]), None), start, maps["forward"]
        )
        return done[:-1]


def _columns(family: Family, data: tuple[Any, ...], row: Array) -> tuple[Any, ...]:
    return tuple(
        d if axis is None else jnp.asarray(d)[row] for axis, d in zip(family.data_axes, data, strict=True)
    )


def _padded(rows: list[np.ndarray], width: int, filler: int) -> np.ndarray:
    out = np.full((len(rows), width), filler, np.int32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
