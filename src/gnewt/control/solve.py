"""solve: the four methods of the paper's Table 1, as two switches; and what comes with a solution: policy, value function."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from gnewt._errors import PlanError, explain_error
from gnewt._typing import Argument, Array, PyTree
from gnewt.control.check import bad
from gnewt.control.diagnose import name_nonfinite, naming_constants
from gnewt.control.follow import Feedback, follow_compiled
from gnewt.control.limited import (
    active_bounds,
    bounds_of,
    condense,
    lifted_start,
    refuse_other_limits,
    solve_boxed,
)
from gnewt.control.problem import Carry, Problem
from gnewt.control.slots import control_slots, stage_order, state_slots
from gnewt.control.tables import find_places, joined, rows_of
from gnewt.newton import Factor, Policy, Progress, Record, Result, Rollout, minimize
from gnewt.newton.arithmetic import known
from gnewt.newton.loop import Search
from gnewt.newton.numbers import Count, Real, RealLike, as_count, as_real, is_known, show
from gnewt.newton.objective import Objective
from gnewt.newton.options import check_limits, check_tolerance
from gnewt.newton.policy import RuleGroup, make_policy
from gnewt.newton.rollout import choose_search
from gnewt.newton.system import OrderLike, System, system_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    "newton": ("adjoint", "linear"),
    "nonlinear-newton": ("adjoint", "nonlinear"),
    "ddp": ("value", "nonlinear"),
    "ilqr": ("zero", "nonlinear"),
}
"""Method ↦ (duals, back-substitution)."""


def solve(
    problem: Argument[Problem],
    us: PyTree,
    method: str = "nonlinear-newton",
    *,
    tol: Argument[RealLike] = 1e-8,
    max_steps: Argument[int] = 200,
    search: Argument[Search | None] = None,
    square_root: bool = False,
    order: OrderLike = "stages",
    lifted: PyTree = False,
    verbose: bool = False,
    callback: Argument[Callable[[Progress[PyTree]], object] | None] = None,
    time_limit: Argument[float] = float("inf"),
    check: bool = True,
) -> Solution:
    """Solve an optimal control problem. Works on the host, inside `jit` and under `vmap`.

    Under limits, `newton` takes every constraint, by the interior point of `gnewt.minimize`; the other methods take limits of
    the controls, by a barrier around their rollouts, and every iterate stays strictly inside of them.

    Args:
        us: where the controls start: leaves [horizon, ...]; or a `Solution`, to go on from it (under limits with its
            multipliers, and in closed loop where the initial state was replaced).
        method: `"nonlinear-newton"` (adjoint duals, nonlinear back-substitution), `"newton"` (the same with linear
            back-substitution: stagewise Newton), `"ddp"` (duals of the value function) or `"ilqr"` (no duals).
        tol: stop when ‖g‖∞ ≤ tol·max(1, ‖g‖∞·1e-3 at the start).
        max_steps: stop after so many steps.
        search: how steps are kept safe; `gnewt.newton.TrustRegion()` for `newton`, `gnewt.newton.Rollout` for the others.
        square_root: eliminate in square-root form (`ilqr` only).
        order: `"stages"` (from the last stage to the first), or another causal elimination order.
        lifted: let the states be variables whose dynamics close on the way (multiple shooting; `newton` only): True, or where
            x_0 … x_T start, a pytree in the form of the states with leaves [horizon + 1, ...].
        verbose: show a row per step.
        callback: called with a `gnewt.newton.Progress` after each step; the run stops if it returns True.
        time_limit: seconds after which no step is begun.
        check: compare a new problem's derivatives with JAX's, once.
    """
    _refuse_other(problem)
    duals, back_substitution = switches(method)
    if square_root and search is None:
        search = Rollout(duals, square_root=True)
    start = us.result if isinstance(us, Solution) else problem.decision(us)
    if problem.stages.limited.names or lifted is not False:
        watch = (verbose, callback, time_limit)
        shooting = lifted_start(problem, lifted, method)
        given = (us, method, (tol, max_steps), search, square_root, order)
        return _solve_limited(problem, *given, shooting, watch, check)
    with naming_constants(problem):
        point = _objective(problem).at((start.x if isinstance(start, Result) else start, problem.given))
    order = stage_order(problem, point.structure) if isinstance(order, str) and order == "stages" else order
    result = minimize(
        problem.stages.with_states,
        start,
        (problem.given,),
        has_aux=True,
        search=search,
        tol=tol,
        max_steps=max_steps,
        order=order,
        duals=duals,
        back_substitution=back_substitution,
        verbose=verbose,
        callback=callback,
        time_limit=time_limit,
        check=check,
    )
    if point.is_traced:
        curvature = "gauss_newton" if duals != "adjoint" else "exact"
        system = system_of(point, _objective(problem).slots(order), curvature)
    else:
        system = result.factor.system if isinstance(result.factor, Factor) else None
    return Solution(problem, name_nonfinite(problem, result), method, square_root, system)


def _solve_limited(
    problem: Problem,
    us: PyTree,
    method: str,
    limits: tuple[RealLike, int],
    search: Search | None,
    square_root: bool,
    order: OrderLike,
    lifted: bool | dict[str, PyTree],
    watch: tuple[bool, Callable[[Progress[PyTree]], object] | None, float],
    check: bool,
) -> Solution:
    """Solve under limits: by the interior point, or by a barrier around rollouts."""
    stages, (tol, max_steps) = problem.stages, limits
    start = _moved(problem, us, lifted) if isinstance(us, Solution) else problem.decision(us)
    if method == "newton":
        decision = start.x if isinstance(start, Result) else start
        verbose, callback, time_limit = watch
        with naming_constants(problem):
            result = minimize(
                stages.with_rows,
                start,
                (problem.given,),
                has_aux=True,
                bounds=bounds_of(problem, decision),
                constraints=stages.limited.constraints(problem.given["limits"]),
                lifted=lifted,
                search=search,
                tol=tol,
                max_steps=max_steps,
                order="auto" if isinstance(order, str) and order == "stages" else order,
                verbose=verbose,
                callback=callback,
                time_limit=time_limit,
                check=check,
            )
        return Solution(problem, name_nonfinite(problem, result), method, square_root, None)
    refuse_other_limits(problem, method)
    duals, back_substitution = switches(method)
    rollout = choose_search(search, duals, back_substitution)
    assert isinstance(rollout, Rollout)
    checked = check_tolerance(tol), check_limits(max_steps, watch[2], watch[1])
    with naming_constants(problem):
        result = solve_boxed(problem, start, rollout, order, checked, watch)
    return Solution(problem, name_nonfinite(problem, result), method, square_root, None)


def _moved(problem: Problem, old: Solution, lifted: bool | dict[str, PyTree]) -> Result[PyTree]:
    """An earlier solution; where the start may have moved its controls are those of its closed loop, within the limits."""
    if lifted is not False or problem.stages.optimize or old.problem.stages is not problem.stages:
        return old.result
    feedback = Feedback(old.states, old.gains)
    us = follow_compiled(problem, old.us, feedback, bounds_of(problem, old.result.x))
    return dataclasses.replace(old.result, x=problem.decision(us))


def _refuse_other(problem: object) -> None:
    if not isinstance(problem, Problem):
        raise bad(f"expected a control.Problem, got {type(problem).__name__}", "call solve(problem, us)")


def switches(name: str) -> tuple[str, str]:
    """(duals, back-substitution) of a method."""
    if name not in METHODS:
        raise PlanError(explain_error(f"unknown method {name!r}", remedy=f"use one of {', '.join(METHODS)}"))
    return METHODS[name]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """Outcome of `control.solve`: that of `gnewt.minimize`, and policies. Flat states and controls are `ravel_pytree`'s.

    A pytree: a compiled function may return it. Inside jit and vmap, numbers and tables are traced; `code` and `success` say
    how the run ended.
    """

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    problem: Problem
    result: Result[PyTree]
    method: str = dataclasses.field(metadata={"static": True})
    square_root: bool = dataclasses.field(metadata={"static": True})
    system: System | None = dataclasses.field(metadata={"static": True})
    """What policies are eliminated with; None where there are none."""

    @property
    def us(self) -> PyTree:
        return self.problem.stages.split(self.result.x, self.problem.given)[0]

    @cached_property
    def xs(self) -> PyTree:
        """States x_0 … x_T."""
        return self.carries["x"]

    @cached_property
    def carries(self) -> Carry:
        """States with their memory; of a lifted run those that it found: a rollout of an unstable system drifts off."""
        outputs = cast(dict[str, PyTree] | None, self.result.outputs)
        path = None if outputs is None else outputs.get("path")
        start = self.problem.stages.split(self.result.x, self.problem.given)[1]["start"]
        if path is not None and set(start) == {"x"}:
            joined = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), start["x"], path)
            return {"x": joined}
        with self._now():
            return self.problem.carries(self.result.x)

    @property
    def params(self) -> PyTree:
        return self._decided("params")

    @property
    def final_time(self) -> Array | float | None:
        return cast(Array | float | None, self._decided("final_time"))

    def _decided(self, name: str) -> PyTree:
        return self.problem.stages.split(self.result.x, self.problem.given)[1][name]

    @property
    def fun(self) -> Real:
        return as_real(self.result.fun)

    @property
    def grad_norm(self) -> Real:
        return as_real(self.result.grad_norm)

    @property
    def num_steps(self) -> Count:
        return as_count(self.result.num_steps)

    @property
    def history(self) -> tuple[Record, ...] | Record:
        return self.result.history

    @property
    def code(self) -> Count:
        """Number of a `gnewt.newton.Status`: what compiled code can branch on."""
        return as_count(self.result.code)

    @property
    def status(self) -> str:
        """Name of the outcome. Inside jit use `code`."""
        return self.result.status

    @property
    def success(self) -> Count:
        found = self.result.success
        return bool(found) if is_known(found) else found

    @property
    def message(self) -> str:
        return self.result.message

    # Limits

    @property
    def multipliers(self) -> dict[str, PyTree]:
        """y of L = f + yᵀc by the names of the limits, in the form in which they were given: positive at an upper limit,
        negative at a lower one. `control_limits` are in the form of the controls, `state_limits` have a row for each of
        x_1 … x_T."""
        result, limited = self.result, self.problem.stages.limited
        if not limited.names:
            return {}
        found = dict(cast(dict[str, PyTree] | None, result.multipliers) or {})
        found["control_limits"] = self._of_controls(result.bound_multipliers)
        return limited.nested({name: found[name] for name in limited.names})

    @property
    def active(self) -> dict[str, PyTree]:
        """Which limits hold with equality and have a multiplier; in the form of `multipliers`."""
        result, limited = self.result, self.problem.stages.limited
        if not limited.names:
            return {}
        found = dict(cast(dict[str, PyTree] | None, result.active) or {})
        found["control_limits"] = self._of_controls(active_bounds(self.problem, result))
        return limited.nested({name: found[name] for name in limited.names})

    def _of_controls(self, decision: PyTree) -> PyTree:
        return self.problem.stages.split(decision, self.problem.given)[0]

    @property
    def violation(self) -> Real:
        """‖·‖∞ by which limits are violated; 0 without any."""
        return as_real(self.result.violation)

    # Policies

    @property
    def _is_traced(self) -> bool:
        return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((self.result.x, self.problem.given)))

    def _now(self) -> contextlib.AbstractContextManager[object]:
        """Compute what is known at once, also where it is asked for inside jit."""
        inside = isinstance(jnp.zeros(()), Tracer)
        return jax.ensure_compile_time_eval() if inside and not self._is_traced else contextlib.nullcontext()

    @cached_property
    def factor_policy(self) -> Policy:
        """The policy over slots, as the elimination gives it."""
        factor, system = self.result.factor, self.system
        duals = METHODS[self.method][0]
        if self.result.bound_multipliers is not None:
            with self._now():
                curvature = "gauss_newton" if duals != "adjoint" else "exact"
                found = condense(self.problem, self.result, curvature)
                models = found.system.linearize(found.point)
                return make_policy(found.system, found.point.data, models, 0.0, duals, self.square_root)
        if system is None:
            raise PlanError(
                explain_error("there is no policy: the start was not finite", remedy="see `message`")
            )
        with self._now():
            if isinstance(factor, Factor):
                data, models = factor.point.data, factor.models
            else:
                point = _objective(self.problem).at((self.result.x, self.problem.given))
                data, models = point.data, system.linearize(point)
            return make_policy(system, data, models, 0.0, duals, self.square_root)

    @cached_property
    def _tables(self) -> dict[str, Array]:
        """Feedforward, gains, and gradients and Hessians of the value function, by stages."""
        policy = self.factor_policy
        structure, groups = policy.structure, policy.groups
        controls, states = control_slots(self.problem, structure), state_slots(self.problem, structure)
        if not self._is_traced:
            for group in groups:
                self._refuse_others(group, controls, states)
        places = find_places([(g.inputs, g.listens) for g in groups], controls, states)
        parts = {
            "gains": [g.gain for g in groups],
            "feedforward": [g.k for g in groups],
            "gradient": [g.value_gradient for g in groups],
            "hessian": [g.value_hessian for g in groups],
        }
        return {name: places.read(name, found) for name, found in parts.items()}

    def _refuse_others(self, group: RuleGroup, controls: np.ndarray, states: np.ndarray) -> None:
        """Raise PlanError if a control listens to something that is neither its state nor shared by all stages."""
        structure = self.factor_policy.structure
        stage = np.full(structure.num_slots + 1, -1)
        stage[controls] = np.arange(len(controls))[:, None]
        shared = np.ones(structure.num_slots + 1, bool)
        shared[states[states >= 0]] = False
        shared[: structure.num_inputs] = True
        shared[controls] = False
        for f in structure.nodes:
            family = structure.families[f]
            shared[np.asarray(family.outs)[~shared[family.args].all(1)]] = False
        gains = np.abs(np.asarray(group.gain))
        for i in range(group.inputs.shape[1]):
            rows = np.flatnonzero(stage[group.inputs[:, i]] >= 0)
            listens, at = group.listens[rows], states[stage[group.inputs[rows, i]]]
            own = (listens[:, :, None] == at[:, None, :]).any(2)
            if not np.any(~own & ~shared[listens] & (gains[rows, i] > 0)):
                continue
            raise PlanError(
                explain_error(
                    "a control listens to more than the state of its stage along this order",
                    remedy="solve with order='stages', or see `factor_policy`",
                )
            )

    @cached_property
    def states(self) -> Float[Array, "T nx"]:
        """x̄, raveled: what gains multiply the distance to. With a history, x is (past_u, past_x, x)."""
        return rows_of(jax.tree.map(lambda a: known(a)[:-1], self.carries))

    @property
    def gains(self) -> Float[Array, "T nu nx"]:
        """K of u = ū + k + K(x - x̄)."""
        return self._tables["gains"]

    @property
    def feedforward(self) -> Float[Array, "T nu"]:
        """k: what the next step would change; about 0 at a solution."""
        return self._tables["feedforward"]

    @cached_property
    def value_gradient(self) -> Float[Array, "stages nx"]:
        """∂V_t at x_t, t = 0 … T."""
        return joined(self._tables["gradient"], self._last[0])

    @cached_property
    def value_hessian(self) -> Float[Array, "stages nx nx"]:
        """∂²V_t at x_t, t = 0 … T."""
        return joined(self._tables["hessian"], self._last[1])

    @cached_property
    def _last(self) -> tuple[Array, Array]:
        """Gradient and Hessian of the final cost."""
        stages = self.problem.stages
        given = stages.split(self.result.x, self.problem.given)[1]
        with self._now():
            return stages.expand_last_cost(jax.tree.map(lambda a: known(a)[-1], self.carries), given)

    @cached_property
    def _nominal(self) -> tuple[Array, Array, Array, Callable[..., PyTree]]:
        with self._now():
            us = jax.tree.map(known, self.us)
            unravel = ravel_pytree(jax.tree.map(lambda a: a[0], us))[1]
            states, gains = jnp.asarray(self.states), jnp.asarray(self.gains)
            return states, jnp.asarray(rows_of(us)), gains.astype(states.dtype), unravel

    def policy(self, t: Array | int, x: PyTree) -> PyTree:
        """u = ū_t + K_t(x - x̄_t) at stage t. With a history, x is the dict {"x", "past_x", "past_u"}. Traceable."""
        states, controls, gains, unravel = self._nominal
        return unravel(controls[t] + gains[t] @ (ravel_pytree(x)[0] - states[t]))

    def plot(self, noise: Argument[float] = 0.01) -> Figure:
        """Draw states and controls with their limits and feedback bands, multipliers and convergence. Needs `gnewt[viz]`.

        Args:
            noise: what disturbs every state in every stage, as a share of the range of that state; a band is ±2 standard
                deviations of the closed loop u = ū + K(x - x̄), to first order. 0 draws none.
        """
        from gnewt.control.picture import draw_solution  # drawing is optional

        return draw_solution(self, noise)

    def __str__(self) -> str:
        return f"{'method':>10}: {self.method}\n{self.result}"

    def __repr__(self) -> str:
        return show("Solution", self.result.code, self.__str__)


def _objective(problem: Problem) -> Objective:
    return Objective(problem.stages.with_states, has_aux=True)
