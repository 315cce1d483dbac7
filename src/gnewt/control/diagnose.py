"""What is wrong with a problem, in its own words: states, stages and functions, not slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np

from gnewt._errors import ConstantError
from gnewt._typing import PyTree
from gnewt.control.check import bad, line_of
from gnewt.control.problem import Carry, Problem, Stage
from gnewt.newton import Result
from gnewt.newton.numbers import is_known
from gnewt.newton.statuses import Status


@contextmanager
def naming_constants(problem: Problem) -> Iterator[None]:
    """Say of an objective that does not depend on its inputs that the problem has no controls to choose."""
    try:
        yield
    except ConstantError:
        raise bad(
            "the cost does not depend on the controls: stage_cost does not use u, and no cost uses a state that "
            "dynamics makes of u",
            "let stage_cost or dynamics use u, and a cost the states that u moves",
            problem.stages.stage_cost,
        ) from None


def name_nonfinite(problem: Problem, result: Result[PyTree]) -> Result[PyTree]:
    """Say of a run that could not begin which state or cost is not finite, and at which stage."""
    if not is_known(result.code) or int(result.code) != Status.NONFINITE:
        return result
    found = _first_nonfinite(problem, result.x)
    return result if found is None else dataclasses.replace(result, detail=found)


def _first_nonfinite(problem: Problem, decision: PyTree) -> str | None:
    stages = problem.stages
    us, given = stages.split(decision, problem.given)
    carries = problem.carries(decision)
    places = [_first_bad(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(carries["x"])]
    known = [place for place in places if place is not None]

    def costs(carry: Carry, u: PyTree, stage: Stage) -> object:
        return stages.cost(carry, u, stage, given)

    before = jax.tree.map(lambda a: a[:-1], carries)
    values = np.asarray(jax.vmap(costs)(before, us, stages.stages(given)))
    bad_costs = np.flatnonzero(~np.isfinite(values))
    # A cost is named where it is the first: not where a state made it so.
    if known and (not len(bad_costs) or min(known)[0] <= bad_costs[0]):
        t, name, value = min(known)
        if t == 0:
            return f"the first state has {name} = {value}"
        return f"dynamics make {name} = {value} at stage {t} ({line_of(stages.dynamics)})"
    if len(bad_costs):
        t = int(bad_costs[0])
        return f"stage_cost is {values[t]} at stage {t} ({line_of(stages.stage_cost)})"
    last = float(stages.last_cost(jax.tree.map(lambda a: a[-1], carries), given))
    return None if np.isfinite(last) else f"final_cost is {last} ({line_of(stages.final_cost)})"


def _first_bad(path: tuple, leaf: PyTree) -> tuple[int, str, float] | None:
    """(stage, name, value) of the first number of a leaf [stages, ...] that is not finite."""
    values = np.asarray(leaf)
    places = np.argwhere(~np.isfinite(values))
    if not len(places):
        return None
    t, *index = places[0].tolist()
    inside = f"[{', '.join(map(str, index))}]" if index else ""
    return t, f"x{jax.tree_util.keystr(path)}{inside}", float(values[t, *index])
