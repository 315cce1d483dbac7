"""Tasks of the command line: an objective and where, explained or solved."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gnewt._typing import PyTree
from gnewt.cli.guard import InputError
from gnewt.cli.load import Loader, check_call, load_start, load_target
from gnewt.cli.show import solution_arrays
from gnewt.control import Problem, Solution
from gnewt.control import solve as solve_control
from gnewt.explain import Report
from gnewt.explain import explain as explain_objective
from gnewt.graph import Graph, Structure
from gnewt.newton import Result, minimize


@dataclasses.dataclass(frozen=True)
class Task:
    """An objective, where it is looked at, and its further arguments."""

    name: str
    target: Any
    x: PyTree
    args: tuple[PyTree, ...] = ()
    has_aux: bool = False


def read_task(
    loader: Loader, target: str, at: str, args: str | None, has_aux: bool, shapes: bool = False
) -> Task:
    """Load what the command line names, and try that the function can be called."""
    objective = load_target(loader, target)
    x = load_start(loader, at, target, shapes)
    given = () if args is None else loader.object(args, target)
    if not isinstance(given, tuple | list):
        raise InputError(f"{args} is of type {type(given).__name__}, not a tuple of arguments")
    if not isinstance(objective, Graph | Structure | Problem):
        check_call(objective, target, (x, *given))
    return Task(target, objective, x, tuple(given), has_aux)


def arguments(task: Task) -> tuple[PyTree, ...]:
    """What the objective is called with."""
    x = task.target.decision(task.x) if isinstance(task.target, Problem) else task.x
    return (x, *task.args)


def explain_task(task: Task, order: str, engine: str, measure: bool) -> Report:
    """Explain the objective of a task."""
    options = {"has_aux": task.has_aux, "order": order, "engine": engine, "measure": measure}
    return explain_objective(task.target, *arguments(task), **options)


def solve_task(
    task: Task,
    method: str,
    limits: Mapping[str, Any],
    order: str,
    engine: str,
    options: Mapping[str, Any],
) -> Result[Any] | Solution:
    """Solve it."""
    if isinstance(task.target, Problem):
        if limits or engine != "auto":
            raise InputError(
                f"{task.name} is a control.Problem: it has its own limits and engine; leave out --bounds, --constraints, --engine"
            )
        stages = "stages" if order == "auto" else order
        return solve_control(task.target, task.x, method, order=stages, **options)
    return minimize(
        task.target,
        task.x,
        task.args,
        has_aux=task.has_aux,
        order=order,
        engine=engine,
        **limits,
        **options,
    )


def save_arrays(found: Result[Any] | Solution, path: pathlib.Path | None) -> None:
    """Write a solution as a .npz file."""
    if path is not None:
        with path.open("wb") as file:
            np.savez(file, **jax.device_get(solution_arrays(found)))


def save_picture(found: Report | Result[Any] | Solution, path: pathlib.Path | None) -> None:
    """Write the picture of what was found."""
    if path is not None:
        found.plot().savefig(path, dpi=150)
