"""What the lanes of a batch compute: the loop of `minimize`, taken apart into its begin, some steps, and its end.

Programs are written for one lane; `newton/batch.py` maps them. What is traced of the user's function is its structure
alone, which is found by content; its numbers come as operands, for each lane or for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._typing import PyTree
from gnewt.newton.constrained.joint import Joint, make_joint
from gnewt.newton.constrained.loop import Settings, advance
from gnewt.newton.constrained.loop import begin as begin_constrained
from gnewt.newton.constrained.model import Model
from gnewt.newton.constrained.outcome import make_result
from gnewt.newton.constrained.run import MU_FIRST, Solved, barrier_of, make_model, prepare
from gnewt.newton.constrained.solve import refuse_search
from gnewt.newton.loop import Search, Task, some_steps, start
from gnewt.newton.minimize import checked_system, choose_curvature, result_of
from gnewt.newton.objective import Objective, Point
from gnewt.newton.products import ProductSystem
from gnewt.newton.result import Result
from gnewt.newton.rollout import choose_search
from gnewt.newton.statuses import Status
from gnewt.newton.system import System

Options: TypeAlias = tuple[Any, Any, str, str]
"""Search, order, curvature and engine, as the user gave them."""
First: TypeAlias = tuple[PyTree, tuple[PyTree, ...]]
"""Start and arguments of the first problem."""


class Numbers(NamedTuple):
    """The numbers of all problems."""

    own: list[jax.Array]
    """With a leading axis for the problems."""
    shared: list[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Lanes:
    """A program for one lane; `leaves` are the numbers of its problem."""

    begin: Callable[[list[Any], Any, Any], Any]
    """(leaves, tol, max_steps) ↦ carry"""
    advance: Callable[[list[Any], Any, Any, Any], Any]
    """(leaves, carry, steps, tol) ↦ carry"""
    finish: Callable[[list[Any], Any, Any], Result]
    code: Callable[[Any], Any]
    is_own: tuple[bool, ...]
    """Which leaves differ between problems."""
    memo: Callable[[Any, Callable[[], Any]], Any]
    dtype: Any

    def join(self, own: list[Any], shared: list[Any]) -> list[Any]:
        """All numbers of one lane in their order."""
        from_own, from_all = iter(own), iter(shared)
        return [next(from_own if mine else from_all) for mine in self.is_own]

    def real(self, value: Any) -> Any:
        return np.asarray(value, self.dtype)[()]


Make: TypeAlias = Callable[[PyTree, tuple[PyTree, ...], tuple[Any, ...]], tuple[Lanes, Numbers]]


class _Gathered(NamedTuple):
    numbers: Numbers
    is_own: tuple[bool, ...]
    form: Any


def _gather(
    make: Callable[[PyTree, tuple[PyTree, ...]], PyTree],
    x0s: PyTree,
    args: tuple[PyTree, ...],
    axes: tuple[Any, ...],
) -> _Gathered:
    """Make the numbers of all problems; those that do not depend on the problem have no axis."""
    seen: list[Any] = []

    def of_one(x0: PyTree, rest: tuple[PyTree, ...]) -> list[Any]:
        leaves, form = jax.tree.flatten(make(x0, rest))
        is_own = tuple(isinstance(leaf, Tracer) for leaf in leaves)
        seen.append((is_own, [leaf for leaf, mine in zip(leaves, is_own, strict=True) if not mine], form))
        return [leaf for leaf, mine in zip(leaves, is_own, strict=True) if mine]

    own = jax.vmap(of_one, (0, axes))(jax.tree.map(jnp.asarray, x0s), args)
    is_own, shared, form = seen[-1]
    return _Gathered(Numbers(own, shared), is_own, form)


def free_lanes(
    target: Any, first: First, kwargs: Mapping[str, PyTree], has_aux: bool, options: Options, check: bool
) -> Make:
    """The lanes of problems without constraints."""
    objective, (wanted, order, curvature, engine) = Objective(target, 0, has_aux), options
    search = choose_search(wanted, "adjoint", "linear")
    curvature = choose_curvature(search, "adjoint", curvature)
    x0, rest = first
    checked_system(objective, (x0, *rest), kwargs, search, (order, curvature, engine), check)

    def make(x0s: PyTree, args: tuple[PyTree, ...], axes: tuple[Any, ...]) -> tuple[Lanes, Numbers]:
        systems: list[System | ProductSystem] = []

        def numbers_of(x0: PyTree, rest: tuple[PyTree, ...]) -> Point:
            at = (x0, *rest), kwargs
            point, system = checked_system(objective, *at, search, (order, curvature, engine), False)
            systems.append(system)
            return point.still

        found = _gather(numbers_of, x0s, args, axes)
        system = systems[-1]
        lanes = system.structure.memo(
            ("batch", system, search, found.is_own, found.form),
            lambda: _free(system, search, found.is_own, found.form),
        )
        return lanes, found.numbers

    return make


def _free(system: System | ProductSystem, search: Search, is_own: tuple[bool, ...], form: Any) -> Lanes:
    def task(leaves: list[Any]) -> Task:
        return Task(system, jax.tree.unflatten(form, leaves))

    def begin(leaves: list[Any], tol: Any, most: Any) -> Any:
        mine = task(leaves)
        x = jnp.asarray(mine.point.x)
        return start(mine, search, x, mine.models(x, mine.first_slots(search)), tol, most)

    def go_on(leaves: list[Any], carry: Any, steps: Any, tol: Any) -> Any:
        del tol
        state, limits = carry
        return some_steps(task(leaves), search, limits, state, steps, 1)[0], limits

    def finish(leaves: list[Any], carry: Any, tol: Any) -> Result:
        del leaves
        found = result_of(system, carry[0], carry[0].record)
        return dataclasses.replace(found, memory=None, tol=tol)

    dtype = system.structure.dtype
    return Lanes(begin, go_on, finish, lambda carry: carry[0].code, is_own, _memo(), dtype)


def _memo() -> Callable[[Any, Callable[[], Any]], Any]:
    known: dict[Any, Any] = {}

    def memo(key: Any, make: Callable[[], Any]) -> Any:
        if key not in known:
            known[key] = make()
        return known[key]

    return memo


class _Parts(NamedTuple):
    """The numbers of a joint problem."""

    point: Point
    lower: Any
    upper: Any
    row_limits: Any
    constant: Any


def _parts(joint: Joint) -> _Parts:
    rows = joint.rows
    return _Parts(
        joint.point.still, joint.lower, joint.upper, (rows.lower, rows.upper, rows.worst), joint.constant
    )


def _joined(joint: Joint, parts: _Parts) -> Joint:
    lower, upper, worst = parts.row_limits
    rows = dataclasses.replace(joint.rows, lower=lower, upper=upper, worst=worst)
    point, constant = parts.point, parts.constant
    return dataclasses.replace(
        joint, point=point, rows=rows, lower=parts.lower, upper=parts.upper, constant=constant
    )


def constrained_lanes(
    target: Any,
    first: First,
    kwargs: Mapping[str, PyTree],
    given: tuple[Any, Any, bool],
    options: Options,
    max_steps: int,
) -> Make:
    """The lanes of problems with constraints or bounds."""
    bounds, constraints, has_aux = given
    search, order, curvature, engine = options
    refuse_search(search, engine)

    def problem(x0: PyTree, rest: tuple[PyTree, ...]) -> Joint:
        return make_joint(target, x0, rest, kwargs, bounds, constraints, has_aux)

    x0, rest = first
    known = dataclasses.replace(problem(x0, rest), start=None, kept=None, outputs={})
    slots = Objective(target, 0, has_aux).slots(order)

    def make(x0s: PyTree, args: tuple[PyTree, ...], axes: tuple[Any, ...]) -> tuple[Lanes, Numbers]:
        found = _gather(lambda x0, rest: _parts(problem(x0, rest)), x0s, args, axes)
        structure = known.point.structure
        rows = (known.rows.names, known.rows.slots.tobytes(), known.fixed.tobytes(), repr(known.shapes))
        key = ("batch", str(slots), curvature, engine, max_steps, found.is_own, found.form, rows)

        def lanes() -> Lanes:
            model = make_model(known, slots, curvature, engine)
            return _constrained(known, model, (slots, curvature, engine), max_steps, found)

        return structure.memo(key, lanes), found.numbers

    return make


def _constrained(
    known: Joint, model: Model, how: tuple[Any, str, str], max_steps: int, found: _Gathered
) -> Lanes:
    form, dtype = found.form, np.dtype(known.point.structure.dtype)
    del model  # planned on the host, where a plan may take its time; the lanes find it again

    def read(leaves: list[Any]) -> tuple[Joint, Model]:
        joint = _joined(known, jax.tree.unflatten(form, leaves))
        return joint, make_model(joint, *how)

    def settings(tol: Any) -> Settings:
        return Settings(tol, np.int32(max_steps), dtype.type(MU_FIRST), np.bool_(True))

    def begin(leaves: list[Any], tol: Any, most: Any) -> Any:
        del most
        joint, model = read(leaves)
        barrier, w, dual = prepare(joint, model, jnp.asarray(joint.point.x))
        return begin_constrained(barrier, w, dual, settings(tol)), barrier.scale

    def go_on(leaves: list[Any], carry: Any, steps: Any, tol: Any) -> Any:
        joint, model = read(leaves)
        state, scale = carry
        barrier, first = barrier_of(joint, model, scale), state.counts.step

        def goes_on(s: Any) -> Any:
            return (s.code == Status.RUNNING) & (s.counts.step - first < steps)

        return jax.lax.while_loop(goes_on, lambda s: advance(barrier, settings(tol), s), state), scale

    def finish(leaves: list[Any], carry: Any, tol: Any) -> Result:
        joint, model = read(leaves)
        state, scale = carry
        solved = Solved(state, barrier_of(joint, model, scale), state.record, 0.0)
        return dataclasses.replace(make_result(joint, solved, tol), memory=None)

    return Lanes(begin, go_on, finish, lambda carry: carry[0].code, found.is_own, _memo(), dtype)
