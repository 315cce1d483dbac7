"""mpc_step: one step of model-predictive control, compiled once per problem."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gnewt._errors import GraphError, explain_error, user_line
from gnewt._typing import Array, PyTree
from gnewt.control.problem import Problem
from gnewt.control.solve import switches
from gnewt.newton import minimize


class MPCStep(NamedTuple):
    """A plan from the present state, and what to begin the next one with."""

    u: PyTree
    """The control to apply now."""
    us: PyTree
    """The plan shifted by one stage (its last control is repeated): where the next step starts."""
    plan: PyTree
    """All controls of the plan."""
    xs: PyTree
    """States of the plan."""
    fun: Array
    grad_norm: Array


def mpc_step(
    problem: Problem, x0: PyTree, us: PyTree, *, iterations: int = 2, method: str = "nonlinear-newton"
) -> MPCStep:
    """Plan from x0 with a fixed number of iterations, starting from us.

    The first call for a problem compiles; later ones, for any x0 and us, run. Inside jit it is part of the caller's program.

    Args:
        x0: the present state.
        us: where to start: `MPCStep.us` of the step before.
        iterations: steps of the method, at most (it stops early at a solution).
        method: as in `control.solve`.
    """
    if problem.stages.optimize:
        raise GraphError(
            explain_error(
                f"the problem also decides on {', '.join(problem.stages.optimize)}",
                user_line(),
                "make a problem with fixed values for model-predictive control",
            )
        )
    duals, back_substitution = switches(method)
    key = (iterations, method)
    if key not in problem.stages.compiled:
        stages = problem.stages

        def run(given: dict[str, Any], us: PyTree) -> MPCStep:
            result = minimize(
                stages.objective,
                us,
                (given,),
                tol=0.0,
                max_steps=iterations,
                order="causal",
                duals=duals,
                back_substitution=back_substitution,
            )
            out = object.__new__(Problem)
            out.stages, out.given = stages, given
            shifted = jax.tree.map(lambda a: jnp.concatenate([a[1:], a[-1:]]), result.x)
            first = jax.tree.map(lambda a: a[0], result.x)
            return MPCStep(first, shifted, result.x, out.rollout(result.x), result.fun, result.grad_norm)

        problem.stages.compiled[key] = jax.jit(run)
    return problem.stages.compiled[key](problem.replace(x0=x0).given, us)
