"""Where the states and controls of a problem are among the slots of its graph. Integers, once per structure."""

from __future__ import annotations

from typing import cast

import jax
import numpy as np

from gnewt._typing import PyTree
from gnewt.control.problem import Problem
from gnewt.graph import Output, Structure


def control_slots(problem: Problem, structure: Structure) -> np.ndarray:
    """int[T, nu]: slots of the controls."""
    tree = structure.input_slots
    return _rows(problem.horizon, jax.tree.leaves(problem.stages.split(tree, problem.given)[0]))


def state_slots(problem: Problem, structure: Structure) -> np.ndarray:
    """int[T, nx]: slots of the states (with their memory) before each stage, -1 for what is no slot.

    A leaf of the state that does not influence the cost, or does not depend on the controls, has no slot. Where two states
    of a stage are one computation (both are the same control, say), their slot counts for the first of them.
    """
    found: list[Output] = jax.tree.leaves(cast(dict[str, PyTree], structure.outputs)["states"])
    rows = _rows(problem.horizon, [leaf.slots for leaf in found])
    for row in rows:
        seen, first = np.unique(row, return_index=True)
        if len(seen) < len(row):
            row[np.isin(np.arange(len(row)), first, invert=True)] = -1
    return rows


def _rows(horizon: int, leaves: list[np.ndarray]) -> np.ndarray:
    """Lay the leaves side by side, one row per stage."""
    return np.concatenate([leaf.reshape(horizon, leaf.size // horizon) for leaf in leaves], axis=1)


def stage_order(problem: Problem, structure: Structure) -> np.ndarray:
    """Slots from the last stage to the first; in a stage first what is computed in it, then its controls.

    Every control then listens to the state at its stage (with its memory), whatever the stage looks like inside, and to
    what all stages share.
    """
    return structure.memo(("stage order", problem.stages), lambda: _stage_order(problem, structure))


def _stage_order(problem: Problem, structure: Structure) -> np.ndarray:
    controls, states = control_slots(problem, structure), state_slots(problem, structure)
    known = np.full(structure.num_slots, -1)  # the first stage at which a slot is known
    known[controls] = np.arange(problem.horizon)[:, None]
    made = np.full(structure.num_slots, -2)  # the stage that computes it; -2 for what is found out below
    for t in range(problem.horizon - 1, -1, -1):
        mine = states[t][states[t] >= structure.num_inputs]
        known[mine], made[mine] = t, t - 1
    rows = [
        (out, f, i)
        for f in structure.nodes
        for i, outs in enumerate(np.asarray(structure.families[f].outs).tolist())
        for out in outs
        if made[out] == -2
    ]
    for out, f, i in sorted(rows):  # slots are in topological order
        known[out] = max(known[out], int(known[structure.families[f].args[i]].max(initial=-1)))
        made[out] = known[out]
    inputs = np.arange(structure.num_slots) < structure.num_inputs
    stage = np.where(inputs, known, made)
    return np.lexsort((-np.arange(structure.num_slots), inputs, -stage))
