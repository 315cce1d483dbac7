"""mpc_step: one step of model-predictive control, compiled once per problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from gnewt._errors import GraphError, explain_error, user_line
from gnewt._typing import Argument, Array, PyTree
from gnewt.control.check import bad
from gnewt.control.follow import Feedback, follow
from gnewt.control.limited import bounds_of, make_boxed, refuse_other_limits
from gnewt.control.problem import Given, Problem
from gnewt.control.slots import control_slots, stage_order, state_slots
from gnewt.control.solve import Solution, switches
from gnewt.control.tables import find_places
from gnewt.newton import Result, Rollout, minimize
from gnewt.newton.box import START_PUSH, WARM_PUSH, BoxDual
from gnewt.newton.boxed import run_boxed
from gnewt.newton.causal import causal_elimination
from gnewt.newton.loop import Task, run
from gnewt.newton.objective import Objective
from gnewt.newton.rollout import choose_search
from gnewt.newton.system import system_of

_TOL = 1e-8
"""Where iterations under limits stop early."""
_MU_LEAST = 1e-4
"""The μ that the next step begins with is at least this: a push may free a control that was at its limit."""


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
    """‖·‖∞ of the gradient; under limits, of the Lagrangian's."""
    violation: Array
    """‖·‖∞ by which the plan violates limits; controls are within theirs exactly."""
    memory: PyTree
    """Multipliers and barrier that the next step goes on with; None without limits."""


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
        method: as in `control.solve`; under limits, too.
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
    switches(method)
    if problem.stages.limited.names and method != "newton":
        refuse_other_limits(problem, method)
    memory = None
    if isinstance(us, MPCStep):
        us, feedback, memory = us.us, us.feedback, us.memory
    elif isinstance(us, Solution):
        memory = memory_of(us.result, method) if us.problem.stages.limited.names else None
        us, feedback = us.us, Feedback(us.states, us.gains)
    else:
        feedback = _no_feedback(problem, us)
    key = (iterations, method)
    if key not in problem.stages.compiled:
        make = limited_program if problem.stages.limited.names else _program
        problem.stages.compiled[key] = jax.jit(make(problem, iterations, method))
    return cast(MPCStep, problem.stages.compiled[key](problem.replace(x0=x0).given, us, feedback, memory))


def _program(problem: Problem, iterations: int, method: str) -> Callable[..., MPCStep]:
    stages = problem.stages
    search = choose_search(None, *switches(method))
    policies = search if isinstance(search, Rollout) else Rollout()
    curvature = getattr(search, "curvature", "exact")

    def program(given: Given, us: PyTree, feedback: Feedback, memory: None) -> MPCStep:
        here = problem.with_given(given)
        start = follow(here, us, feedback)
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
        size = jnp.max(jnp.abs(task.gradient(last.models)), initial=0.0)
        return planned(here, plan, gains, (last.models.value, size, 0 * size), None)

    return program


def limited_program(problem: Problem, iterations: int, method: str) -> Callable[..., MPCStep]:
    """One step under limits: the same, with multipliers and the barrier that the last step left."""
    duals, back_substitution = switches(method)

    def program(given: Given, us: PyTree, feedback: Feedback, memory: PyTree) -> MPCStep:
        here = problem.with_given(given)
        start = follow(here, us, feedback, bounds_of(here, us))
        if method == "newton":
            return _newton_step(here, start, memory, iterations)
        rollout = choose_search(None, duals, back_substitution)
        assert isinstance(rollout, Rollout)
        return _boxed_step(here, start, memory, rollout, iterations)

    return program


class BoxMemory(NamedTuple):
    """What a step under limits of the controls leaves to the next: in the form of the controls."""

    lower: PyTree
    upper: PyTree
    mu: Array | None


def memory_of(result: Result[PyTree], method: str) -> PyTree:
    """What a solution leaves to a step."""
    if method == "newton":
        return dataclasses.replace(result, history=())
    z = result.bound_multipliers
    return BoxMemory(
        jax.tree.map(lambda v: jnp.maximum(-v, 0), z), jax.tree.map(lambda v: jnp.maximum(v, 0), z), None
    )


def _boxed_step(here: Problem, start: PyTree, memory: PyTree, rollout: Rollout, iterations: int) -> MPCStep:
    boxed = make_boxed(here, start, rollout)
    structure = boxed.task.system.structure
    dual, mu = None, None
    if isinstance(memory, BoxMemory):
        dual, mu = BoxDual(_flat(memory.lower), _flat(memory.upper)), memory.mu
    x = boxed.box.inside(boxed.task.point.x, START_PUSH if dual is None else WARM_PUSH)
    last, _ = run_boxed(boxed, boxed.begin(x, _TOL, dual, mu), iterations)
    plan = structure.unravel(last.models.slots[: boxed.task.size])
    found, safe = rollout.policies(boxed.task, boxed.sweep, boxed.patched(last))
    controls, states = control_slots(here, structure), state_slots(here, structure)
    places = find_places(boxed.sweep.walk.input_steps, controls, states)
    gains = jnp.where(safe, places.read("gains", [swept.gain for swept, _ in found]), 0.0)
    lower, upper = (shifted(structure.unravel(z)) for z in last.dual)
    left = BoxMemory(lower, upper, jnp.maximum(last.mu, _MU_LEAST))
    size = boxed.errors(last, 0.0)[0]
    return planned(here, plan, gains, (last.models.value, size, 0 * size), left)


def _newton_step(here: Problem, start: PyTree, memory: PyTree, iterations: int) -> MPCStep:
    stages = here.stages
    begin = dataclasses.replace(memory, x=start) if isinstance(memory, Result) else start
    result = minimize(
        stages.with_rows,
        begin,
        (here.given,),
        has_aux=True,
        bounds=bounds_of(here, start),
        constraints=stages.limited.constraints(here.given["limits"]),
        tol=_TOL,
        max_steps=iterations,
        check=False,
    )
    gains = Solution(here, result, "newton", False, None).gains
    left = dataclasses.replace(result, x=shifted(result.x), history=())
    return planned(here, result.x, gains, (result.fun, result.grad_norm, result.violation), left)


def planned(
    here: Problem, plan: PyTree, gains: Array, measured: tuple[Any, Any, Any], memory: PyTree
) -> MPCStep:
    """The outcome of a step."""
    carries = here.carries(plan)
    flat = jax.vmap(lambda c: ravel_pytree(c)[0])(carries)
    fun, size, violation = (jnp.asarray(v) for v in measured)
    return MPCStep(
        u=jax.tree.map(lambda a: a[0], plan),
        us=shifted(plan),
        feedback=Feedback(flat[1:], jnp.concatenate([gains[1:], gains[-1:]])),
        plan=plan,
        xs=carries["x"],
        gains=gains,
        fun=fun,
        grad_norm=size,
        violation=violation,
        memory=memory,
    )


def shifted(rows: PyTree) -> PyTree:
    """Rows of a plan, one stage later; the last one is repeated."""
    return jax.tree.map(lambda a: jnp.concatenate([a[1:], a[-1:]]), rows)


def _flat(rows: PyTree) -> Array:
    return jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(rows)])


def _no_feedback(problem: Problem, us: PyTree) -> Feedback:
    nx = sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(problem.given["start"]))
    nu = sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(us))
    dtype = jnp.result_type(*jax.tree.leaves(problem.given["start"]))
    T = problem.horizon
    return Feedback(np.zeros((T, nx), dtype), np.zeros((T, nu, nx), dtype))
