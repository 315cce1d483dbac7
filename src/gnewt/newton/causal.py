"""The causal elimination of a system: policies of the inputs, and nonlinear back-substitution. Once per structure and order."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
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
from gnewt.newton.numbers import RealLike
from gnewt.newton.system import System, on_device
from gnewt.plan import ORDERS, kkt_graph


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

    def value(self, maps: Maps, data: Data, slots: Float[Array, " S"]) -> Array:
        """Sum the losses."""
        return objective(self.structure, maps, data, slots)


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
