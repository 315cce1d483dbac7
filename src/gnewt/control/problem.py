"""Problem: an optimal control problem, written as stages; it makes the JAX objective that tracing sees.

minimise  Σ_t l(x_t, u_t) + l_T(x_T)   subject to   x_{t+1} = f(x_t, u_t),  x_0 given
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gnewt._typing import Argument, Array, PyTree
from gnewt.control.check import bad, bind, floats, like, next_state, past, rows, scalar, strong
from gnewt.control.limits import FINAL_NAMES, STAGE_NAMES, Limited, read_limits, replaced_limits

DECISIONS = ("params", "final_time")
"""What `optimize` may name."""


Carry: TypeAlias = dict[str, PyTree]
"""What goes from stage to stage: the state `x` and, with a history, `past_x` and `past_u`."""
Stage: TypeAlias = tuple[Array | int, PyTree]
"""(stage number, its row of the data)."""


class Given(TypedDict):
    """The numbers of a problem."""

    start: Carry
    data: PyTree
    params: PyTree
    final_time: Array | float | None
    limits: dict[str, PyTree]
    """(lower, upper) by the names of `Limited.names`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """The functions of a problem, and everything about it that is not a number. One object for all `replace`d problems."""

    dynamics: Argument[Callable[..., PyTree]]
    stage_cost: Argument[Callable[..., Array]]
    final_cost: Argument[Callable[..., Array]]
    horizon: int
    optimize: tuple[str, ...]
    """What is decided on besides the controls; `x0` where the motion is periodic."""
    limited: Limited = dataclasses.field(default_factory=Limited)
    compiled: dict[tuple[object, ...], Callable[..., PyTree]] = dataclasses.field(default_factory=dict)
    """Functions compiled for this problem."""

    @cached_property
    def _calls(self) -> tuple[Callable[..., PyTree], Callable[..., PyTree], Callable[..., PyTree]]:
        return (
            bind(self.dynamics, "dynamics", 2, STAGE_NAMES),
            bind(self.stage_cost, "stage_cost", 2, STAGE_NAMES),
            bind(self.final_cost, "final_cost", 1, FINAL_NAMES),
        )

    def check(self) -> None:
        """Raise GraphError where a function asks for an argument that there is not."""
        _ = self._calls

    def split(self, decision: PyTree, given: Given) -> tuple[PyTree, Given]:
        """(controls, numbers of the problem with those that are decided on in their place)."""
        if not self.optimize:
            return decision, given
        decided = cast(dict[str, PyTree], decision)
        found = {name: decided[name] for name in self.optimize if name != "x0"}
        if "x0" in self.optimize:
            found["start"] = {**given["start"], "x": decided["x0"]}
        return decided["us"], cast(Given, {**given, **found})

    def advance(self, carry: Carry, u: PyTree, stage: Stage, given: Given) -> Carry:
        """The carry (x and its memory) one stage later."""
        new = self._calls[0](carry["x"], u, **self._extras(carry, stage, given))
        return self._remember(carry, next_state(new, carry["x"], self.dynamics), u)

    def cost(self, carry: Carry, u: PyTree, stage: Stage, given: Given) -> Array | float | int:
        """l(x, u) at a stage."""
        found = self._calls[1](carry["x"], u, **self._extras(carry, stage, given))
        return scalar(found, "stage_cost", self.stage_cost)

    def last_cost(self, carry: Carry, given: Given) -> Array | float | int:
        """l_T(x)."""
        extras = self._extras(carry, (self.horizon, None), given)
        return scalar(self._calls[2](carry["x"], **extras), "final_cost", self.final_cost)

    @cached_property
    def with_states(self) -> Callable[[PyTree, Given], tuple[Array, dict[str, PyTree]]]:
        """The objective of the decisions, a scan over the stages, and the states as auxiliary data.

        One function object, so that it is traced once. The states among the outputs of the scan are also what keeps states that
        are only ever added to apart: tracing would make one long sum of them, to which no control could listen.
        """

        return lambda decision, given: self._run(decision, given, False)

    @cached_property
    def with_rows(self) -> Callable[[PyTree, Given], tuple[Array, dict[str, PyTree]]]:
        """The same, with everything that is limited among the auxiliary data, by its name, and the states x_1 … x_T, `path`."""
        return lambda decision, given: self._run(decision, given, True)

    def _run(self, decision: PyTree, given: Given, with_rows: bool) -> tuple[Array, dict[str, PyTree]]:
        us, given = self.split(decision, given)
        limited = self.limited

        def stage(
            carry: Carry, xs: tuple[PyTree, Stage]
        ) -> tuple[Carry, tuple[Array | float | int, Carry, PyTree]]:
            u, at = xs
            extras = self._extras(carry, at, given)
            rows: dict[str, PyTree] = limited.stage_rows(carry["x"], u, extras) if with_rows else {}
            after = self.advance(carry, u, at, given)
            if with_rows:
                rows["path"] = after["x"]
            return after, (self.cost(carry, u, at, given), carry, rows)

        last, (costs, states, found) = jax.lax.scan(stage, given["start"], (us, self.stages(given)))
        rows = cast(dict[str, PyTree], found)
        if with_rows:
            rows |= {"state_limits": rows["path"]} if "state_limits" in limited.names else {}
            extras = self._extras(last, (self.horizon, None), given)
            rows |= limited.final_rows(given["start"]["x"], last["x"], extras)
        return jnp.sum(costs) + self.last_cost(last, given), {"states": states, **rows}

    @cached_property
    def objective(self) -> Callable[[PyTree, Given], Array]:
        """The objective alone."""
        return lambda decision, given: self.with_states(decision, given)[0]

    @cached_property
    def run_carries(self) -> Callable[[PyTree, Given], Carry]:
        """States with their memory, leaves [horizon + 1, ...]; compiled."""

        def carries(decision: PyTree, given: Given) -> Carry:
            us, given = self.split(decision, given)

            def stage(carry: Carry, xs: tuple[PyTree, Stage]) -> tuple[Carry, Carry]:
                after = self.advance(carry, xs[0], xs[1], given)
                return after, after

            _, later = jax.lax.scan(stage, given["start"], (us, self.stages(given)))
            return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), given["start"], later)

        return jax.jit(carries)

    @cached_property
    def expand_last_cost(self) -> Callable[[Carry, Given], tuple[Array, Array]]:
        """Gradient and Hessian of l_T over the raveled carry; compiled."""

        def expand(carry: Carry, given: Given) -> tuple[Array, Array]:
            flat, unravel = ravel_pytree(carry)

            def cost(z: jax.Array) -> Array | float | int:
                return self.last_cost(unravel(z), given)

            return jax.grad(cost)(flat), jax.hessian(cost)(flat)

        return jax.jit(expand)

    def stages(self, given: Given) -> tuple[Array, PyTree]:
        """(stage numbers, data): what a scan over the stages runs over."""
        return jnp.arange(self.horizon), given["data"]

    def _extras(self, carry: Carry, stage: Stage, given: Given) -> dict[str, PyTree]:
        number, data = stage
        out: dict[str, PyTree] = {"t": number, "data": data, "params": given["params"]}
        if given["final_time"] is not None:  # then t and dt are real, else t counts stages
            dt = given["final_time"] / self.horizon
            out |= {"t": number * dt, "dt": dt}
        return out | {name: carry[name] for name in ("past_x", "past_u") if name in carry}

    def _remember(self, carry: Carry, x: PyTree, u: PyTree) -> Carry:
        """Shift the past by one: newest last."""
        out: Carry = {"x": x}
        for name, newest in (("past_x", carry["x"]), ("past_u", u)):
            if name in carry:
                out[name] = jax.tree.map(lambda p, n: jnp.concatenate([p[1:], n[None]]), carry[name], newest)
        return out


class Problem:
    """An optimal control problem. Immutable; `replace` makes one with other numbers. A pytree of its numbers.

    Args:
        dynamics: `dynamics(x, u, ...)`, the next state. x and u are pytrees.
        stage_cost: `stage_cost(x, u, ...)`, a scalar.
        final_cost: `final_cost(x, ...)`, a scalar.
        x0: first state: a pytree of floats.
        horizon: number of stages, at least 1.
        data: a pytree whose leaves have one row per stage.
        params: a pytree, the same at all stages.
        final_time: time at the last state. The stages then have the length dt = final_time / horizon.
        optimize: further decision variables: `"params"`, `"final_time"`; the values given are where they start.
        history: `(past_states, past_controls)` for dynamics of higher order and for delays: pytrees with a leading axis, newest
            last, or None.
        control_limits: (lower, upper) on u: numbers or pytrees in the form of a control, None and ±inf for no limit. Leaves
            may have a leading axis `horizon`.
        state_limits: the same for the states x_1 … x_T.
        stage_constraints: one, a list or a dict of `gnewt.between(fn, lower, upper)` and `gnewt.equal(fn, target)` with
            functions `fn(x, u, ...)` that take what `stage_cost` takes and return any pytree.
        final_constraint: the same with `fn(x, ...)`, which takes what `final_cost` takes.
        periodic: x_T = x_0, and x_0 is free; `x0` is where it starts.

    Beyond x and u the functions get what they name among their arguments: `t` (the stage number; the time if there is a final time),
    `dt`, `params`, `data` (the row of this stage), `past_x` and `past_u` (`past_x[-1]` is the state before x). The final cost has
    no data.

    A problem is called with its decisions, the controls (leaves `[horizon, ...]`), or `{"us": ..., "params": ...}`
    with `optimize`; it is the JAX function that gnewt reads: `gnewt.minimize(problem, problem.decision(us))` works too.
    """

    def __init__(
        self,
        dynamics: Argument[Callable[..., PyTree]],
        stage_cost: Argument[Callable[..., Array]],
        final_cost: Argument[Callable[..., Array]],
        x0: PyTree,
        horizon: Argument[int],
        *,
        data: PyTree = None,
        params: PyTree = None,
        final_time: Array | float | int | None = None,
        optimize: Sequence[str] | str = (),
        history: tuple[PyTree, PyTree] | None = None,
        control_limits: Argument[object] = None,
        state_limits: Argument[object] = None,
        stage_constraints: Argument[object] = None,
        final_constraint: Argument[object] = None,
        periodic: bool = False,
    ) -> None:
        names = (optimize,) if isinstance(optimize, str) else tuple(optimize)
        if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
            raise bad(f"the horizon is {horizon!r}", "give a whole number of stages, at least 1")
        for name in names:
            if name not in DECISIONS:
                raise bad(f"optimize names {name!r}", f"use names in {', '.join(DECISIONS)}")
            if {"params": params, "final_time": final_time}[name] is None:
                raise bad(f"{name} is to be optimised, but not given", f"give {name}=, where it starts")
        if periodic:
            if history is not None:
                raise bad(
                    "a periodic problem with a history: the past would have to repeat itself, too",
                    "make the past part of the state, or ask for x_T = x_0 by final_constraint",
                )
            names += ("x0",)
        past_x, past_u = history if history is not None else (None, None)
        start: Carry = {"x": floats(x0, "x0")}
        if past_x is not None:
            start["past_x"] = past(past_x, "past_states", start["x"])
        if past_u is not None:
            start["past_u"] = past(past_u, "past_controls", None)
        limited, limits = read_limits(
            control_limits,
            state_limits,
            stage_constraints,
            final_constraint,
            start["x"],
            int(horizon),
            periodic,
        )
        self.stages: Stages = Stages(dynamics, stage_cost, final_cost, int(horizon), names, limited)
        self.given: Given = {
            "start": start,
            "data": rows(data, int(horizon), "data"),
            "params": floats(params, "params") if "params" in names else jax.tree.map(strong, params),
            "final_time": None if final_time is None else floats(final_time, "final_time"),
            "limits": limits,
        }
        self.stages.check()

    @property
    def horizon(self) -> int:
        return self.stages.horizon

    @property
    def x0(self) -> PyTree:
        return self.given["start"]["x"]

    def __call__(self, decision: PyTree) -> Array:
        """The objective."""
        return self.stages.objective(decision, self.given)

    def replace(self, **numbers: PyTree) -> Problem:
        """Other numbers in the same problem: x0, data, params, final_time, and limits in the form in which they were given.

        Nothing is traced or compiled anew; on the host, a limit that was infinite and is no more, or a pair that was equal and
        is no more, makes a new plan. Limits of a constraint are given as (lower, upper), or as the target.
        """
        given = self.given.copy()
        for name, value in numbers.items():
            if name == "x0":
                given["start"] = given["start"] | {"x": like(value, self.x0, "x0")}
            elif name in ("data", "params", "final_time"):
                given = cast(Given, {**given, name: like(value, given[name], name)})
            elif name in ("control_limits", "state_limits", "stage_constraints", "final_constraint"):
                limits = replaced_limits(self.stages.limited, given["limits"], name, value, self.horizon)
                given = cast(Given, {**given, "limits": limits})
            else:
                raise bad(
                    f"a problem has no {name!r} to replace",
                    "replace x0, data, params, final_time, control_limits, state_limits, stage_constraints or final_constraint",
                )
        return self.with_given(given)

    def with_given(self, given: Given) -> Problem:
        """The same problem with all its numbers replaced; they are not checked."""
        return Problem.of(self.stages, given)

    @classmethod
    def of(cls, stages: Stages, given: Argument[Given]) -> Problem:
        """A problem of these parts, as JAX also makes them of placeholders."""
        out = object.__new__(cls)
        out.stages, out.given = stages, given
        return out

    def decision(self, us: PyTree) -> PyTree:
        """Controls and, with `optimize`, where the other variables start: the argument of the objective."""
        us = rows(us, self.horizon, "us", real=True)
        if not self.stages.optimize:
            return us
        free = {"x0": self.x0} | {name: self.given[name] for name in DECISIONS}
        return {"us": us} | {name: free[name] for name in self.stages.optimize}

    def rollout(self, decision: PyTree) -> PyTree:
        """States x_0 … x_T: leaves [horizon + 1, ...]."""
        return self.carries(decision)["x"]

    def carries(self, decision: PyTree) -> Carry:
        """States with their memory: a dict with leaves [horizon + 1, ...]."""
        return self.stages.run_carries(decision, self.given)

    def simulate(
        self, policy: Callable[[Array, PyTree], PyTree], decision: PyTree = None
    ) -> tuple[PyTree, PyTree, Array]:
        """Run u = policy(t, x) from x0: (states, controls, cost). t is the stage number; with a history, x is the dict
        {"x", "past_x", "past_u"}.

        Args:
            decision: where the other variables come from, if `optimize` names any; their starts unless given.
        """
        given = self.given if decision is None else self.stages.split(decision, self.given)[1]

        def run(given: Given) -> tuple[PyTree, PyTree, Array]:
            def stage(
                carry: Carry, at: tuple[Array, PyTree]
            ) -> tuple[Carry, tuple[PyTree, PyTree, Array | float | int]]:
                u = policy(at[0], carry["x"] if len(carry) == 1 else carry)
                after = self.stages.advance(carry, u, at, given)
                return after, (carry["x"], u, self.stages.cost(carry, u, at, given))

            last, (xs, us, costs) = jax.lax.scan(stage, given["start"], self.stages.stages(given))
            xs = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), xs, last["x"])
            return xs, us, jnp.sum(costs) + self.stages.last_cost(last, given)

        return jax.jit(run)(given)  # the policy may be another one at each call


jax.tree_util.register_pytree_node(
    Problem,
    lambda problem: ((problem.given,), problem.stages),
    lambda stages, children: Problem.of(stages, children[0]),
)
