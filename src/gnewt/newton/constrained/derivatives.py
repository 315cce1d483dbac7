"""From a result to one that JAX can differentiate: its numbers as functions of what the problem is made of."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.newton.arithmetic import Array
from gnewt.newton.constrained.augment import Augmented
from gnewt.newton.constrained.implicit import Answer, Conditions, Ending, Given, answer_of, value_of
from gnewt.newton.constrained.joint import Joint
from gnewt.newton.constrained.lifted import read_outputs
from gnewt.newton.constrained.model import Model, Values
from gnewt.newton.constrained.rows import flat_vector
from gnewt.newton.constrained.run import Solved, columns_of
from gnewt.newton.constrained.warm import leave
from gnewt.newton.numbers import as_real
from gnewt.newton.objective import Point
from gnewt.newton.result import Result
from gnewt.newton.rules import differentiable_engine, still
from gnewt.newton.system import system_of


class End(NamedTuple):
    """What a result does not say of the end of a run, in the user's scale."""

    barrier: Array
    """Σ of the inputs, then of the inequalities."""
    is_upper: Array
    """Whether it is rather the upper limit that holds."""
    nodes: Array | None = None
    """Values of the nodes, and their multipliers, where the graph is lifted."""
    lam: Array | None = None


def end_of(solved: Solved) -> End:
    """The end of an interior-point run."""
    state, b = solved.state, solved.barrier
    n, m, k = b.sizes
    w, dual, d = state.at.w, state.dual, b.scale.rows
    low, up = (gap[: n + k] for gap in b.gaps(w))
    at_lower, at_upper = dual.lower[: n + k] / low, dual.upper[: n + k] / up
    unit = jnp.concatenate([jnp.ones(n, w.dtype), jnp.asarray(d[m : m + k]) ** 2]) / b.scale.f
    end = End((at_lower + at_upper) * unit, at_upper > at_lower)
    if b.model.lift is None:
        return end
    return end._replace(nodes=state.at.values.slots[n + m :], lam=leave(b, state).y[b.num_rows :])


def differentiable(joint: Joint, model: Model, result: Result, end: End) -> Result:
    """Tie the numbers of a result to what the problem is made of."""
    a, rows, structure = model.augmented, joint.rows, model.augmented.structure
    dtype = structure.dtype
    x, z = (
        jnp.asarray(flat_vector(jax.tree_util.tree_leaves(v), dtype))
        for v in (result.x, result.bound_multipliers)
    )
    y = jnp.concatenate([jnp.asarray(joint.flat_rows(result.multipliers), dtype), z[joint.fixed]])
    found = _answer(model, x, z.at[joint.fixed].set(0.0), y[rows.equalities], y[rows.inequalities], end)
    exact = system_of(_bare(a), model.system.order, "exact", differentiable_engine(model.system))
    conditions = structure.memo(("conditions", exact), lambda: Conditions(a, exact))
    given = _given(joint, dtype)
    ending = Ending(jnp.asarray(end.barrier, dtype), jnp.asarray(end.is_upper), jnp.asarray(result.success))
    answer = answer_of(conditions, given, still(found), still(ending))
    fun = value_of(conditions, given, answer, jnp.asarray(still(result.fun)))
    return dataclasses.replace(_with_answer(joint, a, answer, result), fun=as_real(fun))


def _answer(model: Model, x: Array, z: Array, y_equal: Array, y_other: Array, end: End) -> Answer:
    """Slots and multipliers of the nodes that belong to a solution."""
    a = model.augmented
    inputs = a.structure.num_inputs
    if end.nodes is None or end.lam is None or model.lift is None:
        values = model.evaluate(x)
        models = model.linearize(values, y_equal, y_other)
        lam = jnp.asarray(models.duals)[inputs:]
    else:
        slots = jnp.concatenate([x, jnp.zeros_like(y_equal), jnp.asarray(end.nodes, x.dtype)])
        values = Values(np.zeros((), x.dtype), slots, np.zeros(0, x.dtype))
        models = model.linearize(values, y_equal, y_other, end.lam)
        lam = jnp.where(model.lift.is_slot, end.lam, jnp.asarray(models.duals)[inputs:])
    return Answer(jnp.asarray(models.slots), jnp.asarray(lam, x.dtype), jnp.concatenate([z, y_other]))


def _given(joint: Joint, dtype: np.dtype) -> Given:
    rows, e, i = joint.rows, joint.rows.equalities, joint.rows.inequalities
    # Where two limits are equal, they move together: a derivative by one of them alone does not exist.
    target = (jnp.asarray(rows.lower)[e] + jnp.asarray(rows.upper)[e]) / 2
    sides = [
        jnp.concatenate([jnp.asarray(of_x, dtype), jnp.asarray(of_rows, dtype)[i]])
        for of_x, of_rows in ((joint.lower, rows.lower), (joint.upper, rows.upper))
    ]
    constant = jnp.zeros((), dtype) if joint.constant is None else jnp.asarray(joint.constant, dtype)
    return Given(columns_of(joint), target.astype(dtype), sides[0], sides[1], constant)


def _with_answer(joint: Joint, a: Augmented, answer: Answer, result: Result) -> Result:
    """Put the numbers of an answer into the forms of the user."""
    n, m, rows = a.size, a.num_equalities, joint.rows
    y = jnp.zeros(len(rows.slots), answer.slots.dtype)
    y = y.at[rows.equalities].set(answer.slots[n : n + m]).at[rows.inequalities].set(answer.limited[n:])
    z = answer.limited[:n].at[joint.fixed].set(y[len(y) - len(joint.fixed) :])
    outputs = result.outputs
    if outputs is not None:
        slots = jnp.concatenate([answer.slots[:n], answer.slots[n + m :]])
        outputs = read_outputs(joint.outputs, slots, joint.kept)
    return dataclasses.replace(
        result,
        x=joint.unravel(answer.slots[:n]),
        multipliers=joint.mirror(y),
        bound_multipliers=joint.unravel(z),
        outputs=outputs,
    )


def _bare(a: Augmented) -> Point:
    return Point(np.zeros(a.structure.num_inputs, a.structure.dtype), (), (), a.structure, None, False)
