"""The causal elimination of a system: policies of the inputs, and nonlinear back-substitution. Once per structure and order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gnewt._errors import PlanError, explain_error
from gnewt.graph import Data, Maps, Structure, objective
from gnewt.kkt import (
    CausalModels,
    FoundPolicies,
    HessianAlgebra,
    LocalModels,
    PathWalk,
    RootAlgebra,
    SerialWalk,
    causal_order,
    local_blocks,
    path_walk,
)
from gnewt.newton.arithmetic import Array, as_known
from gnewt.newton.numbers import RealLike
from gnewt.newton.system import System, on_device
from gnewt.plan import ORDERS, kkt_graph


class Swept(NamedTuple):
    """What a search wants to know of an elimination."""

    good: Array
    """Whether every Q_uu + μI is positive definite."""
    slope: Array
    """Σ q_uᵀk"""
    curve: Array
    """Σ kᵀQ_uu k"""
    size: Array
    """Σ kᵀk"""


@dataclasses.dataclass(frozen=True, eq=False)
class CausalElimination:
    """A causal order, ready for numbers. Everything that takes numbers is traceable."""

    structure: Structure
    walk: PathWalk | SerialWalk
    bound: Any = None
    """Integers of the walk, if they are operands of the caller's compiled function."""

    def bind(self, arrays: Any) -> CausalElimination:
        """Return this elimination with its integers as operands of the caller's compiled function."""
        return dataclasses.replace(self, bound=arrays)

    @cached_property
    def arrays(self) -> Any:
        return on_device(self.walk.arrays) if self.bound is None else self.bound

    def eliminate(
        self,
        data: Data,
        models: LocalModels,
        shift: RealLike,
        duals: str,
        keep_values: bool = False,
        square_root: bool = False,
        definite: bool = True,
        share: Array | float = 1.0,
    ) -> FoundPolicies:
        """Eliminate everything; Hessians of the nodes are contracted with the given duals.

        Args:
            keep_values: also return the value function behind every input step.
            square_root: in square-root form.
            definite: whether every Q_uu + μI must be positive definite.
            share: of the nodes' curvature, with adjoint duals.
        """
        blocks = local_blocks(self.structure, models.sources)
        mode = "zero" if square_root else duals
        given = CausalModels(data, models.slots, models.duals, *blocks, mode, share)
        mu = jnp.asarray(shift, models.slots.dtype)
        if not square_root:
            algebra = HessianAlgebra(mu, duals == "adjoint", definite)
            return self.walk.eliminate(self.arrays, given, algebra, keep_values)
        if isinstance(self.walk, PathWalk):
            return self.walk.eliminate(self.arrays, given, RootAlgebra(mu), keep_values)
        raise PlanError(
            explain_error(
                "the square-root form runs along a chain of stages, and this graph is none",
                remedy="use square_root=False",
            )
        )

    def roll_out(
        self, data: Data, models: LocalModels, found: FoundPolicies, length: Array | float
    ) -> Float[Array, " S"]:
        """Slots along u = ū + ηk + K(s - s̄)."""
        eta = jnp.asarray(length, models.slots.dtype)
        return self.walk.roll_out(self.arrays, data, models.slots, found, eta)

    # Compiled for themselves, once per structure, so that the host's loop can call them; inside jit they are inlined.

    def policies(
        self, data: Data, models: LocalModels, shift: Array, share: Array, duals: str, square_root: bool
    ) -> tuple[FoundPolicies, Swept]:
        """Eliminate for a search: policies, and what they promise."""

        def run(arrays: Any, data: Data, models: LocalModels, shift: Array, share: Array) -> Any:
            bound = self.bind(arrays)
            found = bound.eliminate(data, models, shift, duals, square_root=square_root, share=share)
            return found, _summary(found, models.slots.dtype)

        compiled = self._compiled(("policies", duals, square_root), run)
        found, swept = compiled(self.arrays, data, models, shift, share)
        return found, as_known(swept)

    def follow(
        self, maps: Maps, data: Data, slots: Array, found: FoundPolicies, length: Array
    ) -> tuple[Array, Float[Array, " S"]]:
        """f and the slots along u = ū + ηk + K(s - s̄)."""

        def run(
            arrays: Any, maps: Maps, data: Data, slots: Array, found: FoundPolicies, length: Array
        ) -> tuple[Array, Array]:
            there = self.walk.roll_out(arrays, data, slots, found, length)
            return objective(self.structure, maps, data, there), there

        value, there = self._compiled(("follow",), run)(self.arrays, maps, data, slots, found, length)
        return as_known(value), there

    def _compiled(self, key: tuple[object, ...], run: Callable[..., Any]) -> Callable[..., Any]:
        return self.structure.memo((self.walk, *key), lambda: jax.jit(run))


def _summary(found: FoundPolicies, dtype: np.dtype) -> Swept:
    pivots = [jnp.all(policy.pivot > 0) & jnp.all(jnp.isfinite(policy.k)) for policy, _ in found]
    zero = jnp.zeros((), dtype)
    sums = [
        sum((jnp.sum(part) for part in parts), zero)
        for parts in zip(*((p.slope, p.curve, p.k**2) for p, _ in found), strict=True)
    ]
    return Swept(jnp.all(jnp.stack(pivots)), *sums)


def causal_elimination(system: System) -> CausalElimination:
    """Return the elimination of a system along its causal order; raise PlanError where the order is not causal."""
    plan, structure = system.plan, system.structure
    if not plan.causal:
        raise PlanError(
            explain_error(
                f"the elimination order ({plan.order_name}) is not causal, so that inputs are no policies of what is known "
                "before them",
                remedy="use order='causal' (nonlinear back-substitution, value duals and policies need it)",
            )
        )

    def make() -> CausalElimination:
        order = causal_order(structure, order_of_slots(system))
        return CausalElimination(structure, path_walk(order) or SerialWalk(order))

    name = system.order if isinstance(system.order, str) else "given"
    return structure.memo(("causal elimination", plan.digest, name), make)


def order_of_slots(system: System) -> np.ndarray:
    """Slots in the order of their elimination, as it was before fronts were formed.

    Of named orders about as cheap, reverse time is taken: on chains its policies are those of the textbooks.
    """
    structure, plan = system.structure, system.plan
    if not isinstance(system.order, str):
        return np.concatenate([np.ravel(group) for group in system.order]).astype(np.int64)
    costs = {name: cost for name, _, cost in plan.considered}
    name = plan.order_name
    if system.order not in ORDERS and costs.get("reverse_time", np.inf) <= 1.2 * costs[name]:
        name = "reverse_time"
    graph = kkt_graph(structure)
    rank = np.empty(graph.num_vertices, np.int64)
    rank[ORDERS[name](graph).vertices] = np.arange(graph.num_vertices)
    return np.lexsort((np.arange(structure.num_slots), rank[graph.vertex_of_slot]))
