"""Policy: what a causal factorisation says of each input, u = ū + k + K(s - s̄) over slots that are known before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from gnewt.graph import Data, Structure
from gnewt.kkt import CausalOrder, FoundPolicies, LocalModels
from gnewt.newton.causal import causal_elimination
from gnewt.newton.numbers import RealLike
from gnewt.newton.system import System


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """The policy of inputs that are minimised over together: u = ū + k + K(s - s̄)."""

    inputs: Int[np.ndarray, " e"]
    """Slots of the inputs ..."""
    listens: Int[np.ndarray, " b"]
    """... and of what they listen to."""
    k: Float[np.ndarray, " e"]
    gain: Float[np.ndarray, "e b"]
    value_gradient: Float[np.ndarray, " b"]
    """∂V, the value function over the slots listened to, once these inputs are minimised over ..."""
    value_hessian: Float[np.ndarray, "b b"]
    """... and its Hessian."""
    structure: Structure

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(self.structure.slot_name(int(s)) for s in self.inputs)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vertices that the inputs listen to."""
        return tuple(self.structure.slot_name(int(s)) for s in self.listens)

    def __str__(self) -> str:
        return f"{', '.join(self.input_names)} <- {', '.join(self.names) or 'nothing'}"

    def __repr__(self) -> str:
        return f"<Rule: {self}>"


@dataclasses.dataclass(frozen=True, eq=False)
class RuleGroup:
    """Rules of equal shape, [R, ...]; slots beyond the last are padding."""

    inputs: np.ndarray
    listens: np.ndarray
    k: Array
    gain: Array
    value_gradient: Array
    value_hessian: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """The rules of all inputs, in the order of their elimination. Iterate over it, or ask for the rule of an input."""

    structure: Structure
    groups: tuple[RuleGroup, ...]
    order: CausalOrder

    def __len__(self) -> int:
        return sum(len(group.inputs) for group in self.groups)

    def __iter__(self) -> Iterator[Rule]:
        num = self.structure.num_slots
        separator = {int(step.slots[0]): step.separator for step in self.order.steps if step.is_input}
        for group in self.groups:
            k, gain, first, second = (
                np.asarray(a) for a in (group.k, group.gain, group.value_gradient, group.value_hessian)
            )
            for r in range(len(group.inputs)):
                e = int(np.sum(group.inputs[r] < num))
                # A walk may carry slots of other branches along, to which these inputs are not coupled.
                mine = np.flatnonzero(np.isin(group.listens[r], separator[int(group.inputs[r, 0])]))
                yield Rule(
                    group.inputs[r, :e],
                    group.listens[r, mine],
                    k[r, :e],
                    gain[r, :e, mine].T,
                    first[r, mine],
                    second[r][np.ix_(mine, mine)],
                    self.structure,
                )

    def rule_of(self, slot: int) -> Rule:
        """The rule of an input slot."""
        return next(rule for rule in self if slot in rule.inputs)

    def __str__(self) -> str:
        return "\n".join(str(rule) for rule in self)

    def __repr__(self) -> str:
        return f"<Policy: {len(self)} rules>"


def make_policy(
    system: System,
    data: Data,
    models: LocalModels,
    shift: RealLike,
    duals: str = "adjoint",
    square_root: bool = False,
) -> Policy:
    """Eliminate once more, causally, and keep what is known of the inputs."""
    elimination = causal_elimination(system)

    def run(arrays: Any, data: Data, models: LocalModels, shift: RealLike) -> FoundPolicies:
        bound = elimination.bind(arrays)
        return bound.eliminate(data, models, shift, duals, True, square_root, definite=False)

    key = ("policy", elimination, duals, square_root)
    found = system.structure.memo(key, lambda: jax.jit(run))(elimination.arrays, data, models, shift)
    groups = []
    for (policy, values), (inputs, listens) in zip(found, elimination.walk.input_steps, strict=True):
        groups.append(RuleGroup(inputs, listens, policy.k, policy.gain, *values))
    return Policy(system.structure, tuple(groups), elimination.walk.order)
