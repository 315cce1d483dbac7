"""Following an earlier plan in closed loop, from a state that is not the planned one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from gnewt._typing import Array, PyTree
from gnewt.control.problem import Given, Problem


class Feedback(NamedTuple):
    """How controls answer to the state: u = ū + K(x - x̄). States are raveled, with their memory."""

    states: Float[Array, "T nx"]
    gains: Float[Array, "T nu nx"]


def follow_compiled(
    problem: Problem, us: PyTree, feedback: Feedback, bounds: tuple[PyTree, PyTree]
) -> PyTree:
    """`follow`, compiled once per problem."""

    def program(given: Given, us: PyTree, feedback: Feedback, bounds: tuple[PyTree, PyTree]) -> PyTree:
        return follow(problem.with_given(given), us, feedback, bounds)

    compiled, key = problem.stages.compiled, ("follow",)
    if key not in compiled:
        compiled[key] = jax.jit(program)
    return compiled[key](problem.given, us, feedback, bounds)


def follow(
    problem: Problem, us: PyTree, feedback: Feedback, bounds: tuple[PyTree, PyTree] | None = None
) -> PyTree:
    """Controls of the closed loop from x0, within their limits, or the given ones where these cost less."""
    flat = jax.vmap(lambda u: ravel_pytree(u)[0])(us)
    unravel = ravel_pytree(jax.tree.map(lambda a: a[0], us))[1]

    whole = jnp.full_like(flat, jnp.inf)
    lower, upper = (
        (-whole, whole)
        if bounds is None
        else (jax.vmap(lambda u: ravel_pytree(u)[0])(jax.tree.map(jnp.asarray, side)) for side in bounds)
    )

    def simulate(closed: Array) -> tuple[PyTree, Array]:
        def policy(t: Array, x: PyTree) -> PyTree:
            away = ravel_pytree(x)[0] - feedback.states[t]
            u = flat[t] + closed * (feedback.gains[t] @ away)
            return unravel(jnp.clip(u, lower[t], upper[t]))

        return problem.simulate(policy)[1:]

    found, costs = jax.vmap(simulate)(jnp.array([1.0, 0.0], flat.dtype))
    best = jnp.argmin(jnp.where(jnp.isfinite(costs), costs, jnp.inf))
    return jax.tree.map(lambda a: a[best], found)
