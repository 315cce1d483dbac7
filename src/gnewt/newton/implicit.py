"""Derivatives of solutions by the implicit function theorem.

At a minimum ∇f(x; θ) = 0, so that ẋ = -H⁻¹ (∂∇f/∂θ) θ̇: one elimination at the solution and one solve, whatever the number
of iterations, in forward and in reverse mode. Only where the point is stationary and H is positive definite: elsewhere the
derivative is NaN, and the host is told why.
"""

from __future__ import annotations

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt._errors import CurvatureWarning, DerivativeError
from gnewt.graph import Data
from gnewt.kkt import EliminationStatus
from gnewt.newton.objective import Point
from gnewt.newton.products import ProductSystem
from gnewt.newton.rules import Held, Place, gradient_at, solve_again, still
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
    point = Point(still(found), still(data), (), system.structure, None, True)
    exact = system_of(point, system.order, "exact", system.engine.name)
    models, _, numbers = exact.step(point, 0.0)
    positive = numbers.inertia[0] == system.structure.num_inputs
    sound = stationary & positive & (numbers.status == EliminationStatus.OK)
    jax.debug.callback(_warn, stationary, positive)
    moved = jax.jvp(lambda d: gradient_at(exact, found, d), (data,), (tangents[0],))[1]
    place = Place(found, data, jnp.zeros((), x.dtype))
    change = -solve_again(exact, place, Held(models, numbers), moved[:, None])[:, 0]
    return found, change * jnp.where(sound, 1.0, jnp.nan).astype(x.dtype)


def _warn(stationary: Array, positive: Array) -> None:
    """Say why a derivative is NaN."""
    if not np.all(stationary):
        why = "the run did not end at a stationary point; raise max_steps, or look at `status`"
    elif not np.all(positive):
        why = "H is not positive definite at the solution, which is no strict minimum; start elsewhere, or regularise"
    else:
        return
    warnings.warn(f"the derivative of the solution is NaN: {why}", CurvatureWarning, stacklevel=2)
