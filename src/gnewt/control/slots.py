"""Where the states and controls of a problem are among the slots of its graph."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gnewt.control.problem import Problem
from gnewt.graph import Structure, forward
from gnewt.newton.objective import Objective
from gnewt.newton.system import on_device


def control_slots(problem: Problem, structure: Structure) -> np.ndarray:
    """int[T, nu]: slots of the controls."""
    sizes = [int(np.prod(a.shape, dtype=np.int64)) for a in structure.in_avals]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    leaves = [
        np.arange(s, s + n).reshape(a.shape)
        for s, n, a in zip(starts, sizes, structure.in_avals, strict=False)
    ]
    tree = jax.tree_util.tree_unflatten(structure.in_tree, leaves)
    us = tree["us"] if problem.stages.optimize else tree
    return np.concatenate([leaf.reshape(problem.horizon, -1) for leaf in jax.tree.leaves(us)], axis=1)


def stage_order(problem: Problem, structure: Structure, decision: Any) -> np.ndarray:
    """Slots from the last stage to the first; in a stage first what is computed in it, then its controls.

    Every control then listens to the state at its stage (with its memory), whatever the stage looks like inside, and to
    what all stages share.
    """

    def make() -> np.ndarray:
        controls, states = control_slots(problem, structure), state_slots(problem, structure, decision)
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

    return structure.memo(("stage order", problem.stages), make)


def state_slots(problem: Problem, structure: Structure, decision: Any) -> np.ndarray:
    """As `_state_slots`, once per structure."""
    return structure.memo(("states", problem.stages), lambda: _state_slots(problem, structure, decision))


def _state_slots(problem: Problem, structure: Structure, decision: Any) -> np.ndarray:
    """int[T, nx]: slots of the states (with their memory) before each stage, -1 for what is no slot.

    Tracing keeps no names, so values are compared, at a point where no two of them agree by chance. Each stage is
    recomputed from slots, so that nothing is lost where trajectories are unstable. A state that does not
    influence the cost, or does not depend on the controls, has no slot.
    """
    for traced, everything in itertools.product((False, True), (True, False)):
        moved, at = _stir(problem, decision, everything)
        found, slots = _evaluate(moved, at, traced)
        if found is structure:
            break
    problem, decision = moved, at
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    us, given = problem.stages.split(decision, problem.given)
    start, unravel = ravel_pytree(given["start"])
    advance = jax.jit(lambda z, u, at: ravel_pytree(problem.stages.advance(unravel(z), u, at, given))[0])
    rows = jax.tree.map(np.asarray, (us, problem.stages.stages(given)))
    tolerance = 64 * structure.eps
    out = np.full((problem.horizon, start.size), -1)
    z = np.asarray(start)
    for t in range(problem.horizon):
        exact = z.astype(np.float64)
        near = np.searchsorted(ordered, exact)
        best = np.full(len(z), np.inf)
        for shift in (-1, 0):
            at = np.clip(near + shift, 0, len(ordered) - 1)
            error = np.abs(ordered[at] - exact)
            out[t] = np.where(error < best, order[at], out[t])
            best = np.minimum(best, error)
        known = best <= tolerance * np.maximum(np.max(np.abs(exact), initial=0.0), 1e-30)
        out[t] = np.where(known, out[t], -1)
        z = np.where(known, slots[out[t]], exact).astype(z.dtype)
        u, at = jax.tree.map(lambda a, t=t: a[t], rows)
        z = np.asarray(advance(z, u, at))
    return out


def _evaluate(problem: Problem, decision: Any, traced: bool) -> tuple[Structure, np.ndarray]:
    """The graph at concrete numbers, or the one that is found where they are traced; and its slots."""
    seen: list[Structure] = []

    def slots(decision: Any, given: dict[str, Any]) -> Any:
        point = Objective(problem.stages.objective).at((decision, given))
        structure = point.structure
        seen.append(structure)
        maps = structure.memo("maps", lambda: on_device(structure.maps))
        return forward(structure, maps, point.data, point.x)

    values = (jax.jit(slots) if traced else slots)(decision, problem.given)
    return seen[0], np.asarray(values, np.float64)


def _stir(problem: Problem, decision: Any, everything: bool) -> tuple[Problem, Any]:
    """Numbers nearby that agree nowhere: controls, and the first state unless the graph depends on its value."""
    rng = np.random.default_rng(0)

    def move(leaf: Any) -> Any:
        size = 1e-2 * max(float(jnp.max(jnp.abs(leaf))), 1.0)
        return leaf + jnp.asarray(size * rng.uniform(-1, 1, np.shape(leaf)), leaf.dtype)

    us = decision["us"] if problem.stages.optimize else decision
    us = jax.tree.map(move, us)
    start = problem.given["start"]
    given = problem.given | {"start": jax.tree.map(move, start) if everything else start}
    return problem.with_given(given), (decision | {"us": us} if problem.stages.optimize else us)
