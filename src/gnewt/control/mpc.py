"""mpc_step: one step of model-predictive control, compiled once per problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from gnewt._errors import GraphError, explain_error, user_line
from gnewt._typing import Argument, Array, PyTree
from gnewt.control.check import bad
from gnewt.control.problem import Given, Problem
from gnewt.control.slots import control_slots, stage_order, state_slots
from gnewt.control.solve import Solution, switches
from gnewt.control.tables import find_places
from gnewt.newton import Rollout
from gnewt.newton.causal import causal_elimination
from gnewt.newton.loop import Task, run
from gnewt.newton.objective import Objective
from gnewt.newton.rollout import choose_search
from gnewt.newton.system import system_of


class Feedback(NamedTuple):
    """How controls answer to the state: u = ū + K(x - x̄). States are raveled, with their memory."""

    states: Float[Array, "T nx"]
    gains: Float[Array, "T nu nx"]


class MPCStep(NamedTuple):
    """A plan from the present state, and what to begin the next one with: hand it to the next step."""

    u: PyTree
    """The control to apply now."""
    us: PyTree
    """The plan shifted by one stage (its last control is repeated) ..."""
    feedback: Feedback
    """... and how it answers to a state that is not the planned one."""
    plan: PyTree
    """All controls of the plan."""
    xs: PyTree
    """States of the plan."""
    gains: Float[Array, "T nu nx"]
    """K of the plan, at its end: between two steps, u + K(x - x_0) answers to newer measurements."""
    fun: Array
    grad_norm: Array


def mpc_step(
    problem: Problem,
    x0: PyTree,
    us: PyTree | MPCStep | Solution,
    *,
    iterations: Argument[int] = 2,
    method: str = "nonlinear-newton",
) -> MPCStep:
    """Plan from x0 with a fixed number of iterations, starting from an earlier plan.

    The earlier plan is followed in closed loop from x0, u = ū + K(x - x̄), where it came with gains: a state that was pushed
    away then starts from a trajectory that returns, also where the system is unstable. (If plain controls cost less they are taken.)

    The first call for a problem compiles; later ones, for any x0 and start, run. Inside jit it is part of the caller's program.

    Args:
        x0: the present state.
        us: where to start: the `MPCStep` before, or controls, or a `control.Solution`; these two are not shifted.
        iterations: steps of the method, at most (it stops early at a solution).
        method: as in `control.solve`.
    """
    if not isinstance(iterations, int) or iterations < 1:
        raise bad(f"iterations is {iterations!r}", "give a whole number of steps, at least 1")
    if problem.stages.optimize:
        raise GraphError(
            explain_error(
                f"the problem also decides on {', '.join(problem.stages.optimize)}",
                user_line(),
                "make a problem with fixed values for model-predictive control",
            )
        )
    if isinstance(us, MPCStep):
        us, feedback = us.us, us.feedback
    elif isinstance(us, Solution):
        us, feedback = us.us, Feedback(us.states, us.gains)
    else:
        feedback = _no_feedback(problem, us)
    key = (iterations, method)
    if key not in problem.stages.compiled:
        problem.stages.compiled[key] = jax.jit(_program(problem, iterations, method))
    return cast(MPCStep, problem.stages.compiled[key](problem.replace(x0=x0).given, us, feedback))


def _program(problem: Problem, iterations: int, method: str) -> Callable[..., MPCStep]:
    stages = problem.stages
    search = choose_search(None, *switches(method))
    policies = search if isinstance(search, Rollout) else Rollout()
    curvature = getattr(search, "curvature", "exact")

    def program(given: Given, us: PyTree, feedback: Feedback) -> MPCStep:
        here = problem.with_given(given)
        start = _follow(here, us, feedback)
        point = Objective(stages.with_states, has_aux=True).at((start, given))
        controls, states = control_slots(problem, point.structure), state_slots(problem, point.structure)
        system = system_of(point, stage_order(problem, point.structure), curvature)
        task = Task(system, point)
        last, _ = run(task, search, point.x, 0.0, iterations)
        plan = system.structure.unravel(last.x)
        sweep = causal_elimination(system)
        found, safe = policies.policies(task, sweep, last.models)
        places = find_places(sweep.walk.input_steps, controls, states)
        gains = places.read("gains", [swept.gain for swept, _ in found])
        gains = jnp.where(safe, gains, 0.0)
        carries = here.carries(plan)
        flat = jax.vmap(lambda c: ravel_pytree(c)[0])(carries)
        return MPCStep(
            u=jax.tree.map(lambda a: a[0], plan),
            us=jax.tree.map(lambda a: jnp.concatenate([a[1:], a[-1:]]), plan),
            feedback=Feedback(flat[1:], jnp.concatenate([gains[1:], gains[-1:]])),
            plan=plan,
            xs=carries["x"],
            gains=gains,
            fun=last.models.value,
            grad_norm=jnp.max(jnp.abs(task.gradient(last.models)), initial=0.0),
        )

    return program


def _follow(problem: Problem, us: PyTree, feedback: Feedback) -> PyTree:
    """Controls of the closed loop from x0, or the given ones where these cost less."""
    flat = jax.vmap(lambda u: ravel_pytree(u)[0])(us)
    unravel = ravel_pytree(jax.tree.map(lambda a: a[0], us))[1]

    def simulate(closed: Array) -> tuple[PyTree, Array]:
        def policy(t: Array, x: PyTree) -> PyTree:
            away = ravel_pytree(x)[0] - feedback.states[t]
            return unravel(flat[t] + closed * (feedback.gains[t] @ away))

        return problem.simulate(policy)[1:]

    found, costs = jax.vmap(simulate)(jnp.array([1.0, 0.0], flat.dtype))
    best = jnp.argmin(jnp.where(jnp.isfinite(costs), costs, jnp.inf))
    return jax.tree.map(lambda a: a[best], found)


def _no_feedback(problem: Problem, us: PyTree) -> Feedback:
    nx = sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(problem.given["start"]))
    nu = sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(us))
    dtype = jnp.result_type(*jax.tree.leaves(problem.given["start"]))
    T = problem.horizon
    return Feedback(np.zeros((T, nx), dtype), np.zeros((T, nu, nx), dtype))
