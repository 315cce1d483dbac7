"""Sweep: the causal elimination of a system as policies, and nonlinear back-substitution. Once per structure and order."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt._errors import PlanError, explain_error
from gnewt.graph import Structure, objective
from gnewt.kkt import (
    LocalModels,
    Numbers,
    PathWalk,
    SerialWalk,
    Swept,
    Values,
    causal_order,
    eliminate_roots,
    hessian_blocks,
    jacobian_blocks,
    path_walk,
)
from gnewt.newton.system import System
from gnewt.plan import ORDERS, kkt_graph

Found = list[tuple[Swept, Values | None]]
"""For every group of input steps, k, K and pivots [R, ...], and the value function behind them if it was asked for."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """A causal order, ready for numbers. Everything that takes numbers is traceable."""

    structure: Structure
    walk: PathWalk | SerialWalk
    bound: Any = None

    def bind(self, arrays: Any) -> Sweep:
        """Return this sweep with its integers as operands of the caller's compiled function."""
        return dataclasses.replace(self, bound=arrays)

    @cached_property
    def arrays(self) -> Any:
        if self.bound is not None:
            return self.bound
        with jax.ensure_compile_time_eval():
            return jax.tree.map(jnp.asarray, self.walk.arrays)

    @property
    def is_path(self) -> bool:
        """Whether equal stages run as one loop over a dense value function."""
        return isinstance(self.walk, PathWalk)

    def eliminate(
        self,
        data: Any,
        models: LocalModels,
        shift: Any,
        duals: str,
        keep_values: bool = False,
        square_root: bool = False,
        definite: bool = True,
        share: Any = 1.0,
    ) -> Found:
        """Eliminate everything; Hessians of the nodes are contracted with the given duals.

        Args:
            keep_values: also return the value function behind every input step.
            square_root: in square-root form.
            definite: whether every Q_uu + μI must be positive definite.
            share: of the nodes' curvature, with adjoint duals.
        """
        numbers = Numbers(
            self.arrays,
            data,
            models.slots,
            models.duals,
            jacobian_blocks(self.structure, models.sources),
            hessian_blocks(self.structure, models.sources),
            jnp.asarray(shift, models.slots.dtype),
            share,
        )
        if not square_root:
            return self.walk.eliminate(numbers, duals, keep_values, definite)
        if not isinstance(self.walk, PathWalk):
            raise PlanError(
                explain_error(
                    "the square-root form runs along a chain of stages, and this graph is none",
                    remedy="use square_root=False",
                )
            )
        return eliminate_roots(self.walk, numbers, keep_values)

    def roll_out(self, data: Any, models: LocalModels, found: Found, length: Any) -> Float[Array, " S"]:
        """Slots along u = ū + ηk + K(s - s̄)."""
        return self.walk.roll_out(
            self.arrays, data, models.slots, found, jnp.asarray(length, models.slots.dtype)
        )

    def value(self, maps: Any, data: Any, slots: Float[Array, " S"]) -> Array:
        """Sum the losses."""
        return objective(self.structure, maps, data, slots)


def sweep_of(system: System) -> Sweep:
    """Return the sweep of a system along its causal order; raise PlanError where the order is not causal."""
    plan, structure = system.plan, system.structure
    if not plan.causal:
        raise PlanError(
            explain_error(
                f"the elimination order ({plan.order_name}) is not causal, so that inputs are no policies of what is known "
                "before them",
                remedy="use order='causal' (nonlinear back-substitution, value duals and policies need it)",
            )
        )

    def make() -> Sweep:
        order = causal_order(structure, order_of_slots(system))
        return Sweep(structure, path_walk(order) or SerialWalk(order))

    return structure.memo(
        ("sweep", plan.digest, system.order if isinstance(system.order, str) else "given"), make
    )


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
