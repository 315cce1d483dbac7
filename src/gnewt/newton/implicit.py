"""Derivatives of solutions by the implicit function theorem.

At a minimum ∇f(x; θ) = 0, so that ẋ = -H⁻¹ (∂∇f/∂θ) θ̇: one elimination at the solution and one solve, whatever the number
of iterations, in forward and in reverse mode. The derivative by θ is taken on the graph with its nodes and their multipliers as
variables, where nothing waits for anything else, and K is solved with right-hand sides on all rows. Only where the point is stationary and H is positive definite: elsewhere the
derivative is NaN, and the host is told why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt._errors import CurvatureWarning, DerivativeError
from gnewt.graph import Data, node_values, objective
from gnewt.kkt import EliminationStatus, linearize
from gnewt.newton.objective import Point
from gnewt.newton.products import ProductSystem
from gnewt.newton.rules import differentiable_engine, still, tell_unless
from gnewt.newton.system import System, system_of


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def minimiser(system: System | ProductSystem, data: Data, x: Array, stationary: Array) -> Array:
    """The flat x, as a function of the data of the objective.

    Args:
        system: of the run; derivatives use its elimination order.
        data: what x depends on: further arguments of the function, and what it closes over.
        stationary: whether the run ended at a stationary point.
    """
    del system, data, stationary
    return x


@minimiser.defjvp
def _(
    system: System | ProductSystem,
    primals: tuple[Data, Array, Array],
    tangents: tuple[Data, Array, Array],
) -> tuple[Array, Array]:
    data, x, stationary = primals
    if isinstance(system, ProductSystem):
        raise DerivativeError(
            "a solution that was found by products H·v cannot be differentiated: there is no factor of H",
            remedy="choose an engine that eliminates, such as engine='native', or detach it with jax.lax.stop_gradient",
        )
    found = minimiser(system, data, x, stationary)
    structure = system.structure
    point = Point(still(found), still(data), (), structure, None, True)
    exact = system_of(point, system.order, "exact", differentiable_engine(system))
    models, _, numbers = exact.step(point, 0.0)
    positive = numbers.inertia[0] == structure.num_inputs
    regular = numbers.status == EliminationStatus.OK
    tell_unless(stationary & positive, _warn, stationary, positive)
    slots, lam = _graph_at(exact, found, data, models.slots, models.duals)

    def product(v: Array) -> Array:
        parts = v[: structure.num_slots], v[structure.num_slots :]
        return jax.jvp(lambda s, m: _conditions(exact, data, s, m), (slots, lam), parts)[1]

    def solve(_: Callable[[Array], Array], b: Array) -> Array:
        done = exact.engine.solve_whole(exact.arrays, models.sources, numbers, b[:, None])[:, 0]
        return done * jnp.where(regular, 1.0, jnp.nan).astype(done.dtype)

    moved = jax.jvp(lambda d: _conditions(exact, d, slots, lam), (data,), (tangents[0],))[1]
    change = -jax.lax.custom_linear_solve(product, moved, solve, symmetric=True)[: structure.num_inputs]
    return found, change * jnp.where(stationary & positive & regular, 1.0, jnp.nan).astype(x.dtype)


def _conditions(system: System, data: Data, slots: Array, lam: Array) -> Array:
    """∂(Σl + λᵀ(Φ - s)) by slots and multipliers: zero at a stationary point. No sweep runs through the graph."""
    structure, maps = system.structure, system.maps

    def lagrangian(slots: Array, lam: Array) -> Array:
        gaps = node_values(structure, maps, data, slots) - slots[structure.num_inputs :]
        return objective(structure, maps, data, slots) + lam @ gaps

    return jnp.concatenate(jax.grad(lagrangian, (0, 1))(slots, lam))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _graph_at(system: System, x: Array, data: Data, slots: Array, duals: Array) -> tuple[Array, Array]:
    """Slots and multipliers of the nodes at x, as a linearisation gave them."""
    del x, data
    return slots, duals[system.structure.num_inputs :]


@_graph_at.defjvp
def _(
    system: System,
    primals: tuple[Array, Data, Array, Array],
    tangents: tuple[Array, Data, Array, Array],
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    structure, maps = system.structure, system.maps

    def by_jax(x: Array, data: Data) -> tuple[Array, Array]:
        models = linearize(structure, maps, data, x)
        return models.slots, models.duals[structure.num_inputs :]

    return _graph_at(system, *primals), jax.jvp(by_jax, primals[:2], tangents[:2])[1]


def _warn(stationary: Array, positive: Array) -> None:
    """Say why a derivative is NaN."""
    if not np.all(stationary):
        why = "the run did not end at a stationary point; raise max_steps, or look at `status`"
    elif not np.all(positive):
        why = "H is not positive definite at the solution, which is no strict minimum; start elsewhere, or regularise"
    else:
        return
    warnings.warn(f"the derivative of the solution is NaN: {why}", CurvatureWarning, stacklevel=2)
