"""Derivatives of solutions under constraints, by the implicit function theorem on the active set.

A solution is a root of the first-order conditions on the whole graph, in the slots X (inputs, multipliers of equalities,
nodes), the multipliers λ of the nodes, y of the inequalities and z of the bounds. a and b say which rows and bounds are active:

    ∂_X L = 0,   Φ(X_pa) - X = 0,   a·(c - limit) - (1 - a)·y = 0,   b·(x - bound) - (1 - b)·z = 0
    L = f + yᵀ(a·c) + zᵀ(b·x) + λᵀ(Φ - X) + multipliersᵀ(c_E - target)

Its Jacobian is symmetric and sparse: K of the run, bordered by the active rows. It is solved by one elimination of K, with a
large curvature on what is active instead of the border, and by a few rounds of refinement with products, so that what is
solved is the system itself. No sweep runs through the graph.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt._errors import CurvatureWarning
from gnewt.graph import Data, node_values, objective
from gnewt.kkt import Elimination, EliminationStatus, LocalModels
from gnewt.newton.constrained.augment import Augmented
from gnewt.newton.objective import Point
from gnewt.newton.rules import still, tell_unless
from gnewt.newton.system import System, device_maps

_ROUNDS = 4
"""Rounds of refinement: each gains two digits where a row is nearly weakly active, and all of them elsewhere."""
_STIFF = -0.5
"""The largest curvature on what is active: eps to this power, in units of the largest local derivative."""
_CLEAR = 0.02
"""Share of the curvature along a row that its barrier may have where it is inactive, or may lack where it is active."""


class Given(NamedTuple):
    """What a solution depends on."""

    columns: Data
    """Data of the traced families."""
    target: Array
    """Of the equalities."""
    lower: Array
    """Limits of the inputs, then of the inequalities."""
    upper: Array
    constant: Array
    """Value of an objective that does not depend on x; else 0."""


class Answer(NamedTuple):
    """Where a run ended."""

    slots: Array
    """Of the augmented structure: inputs, multipliers of the equalities, nodes."""
    lam: Array
    """Multipliers of the nodes."""
    limited: Array
    """z of the inputs, then y of the inequalities."""


class Ending(NamedTuple):
    """What the barrier left: constants."""

    barrier: Array
    """Σ of the inputs, then of the inequalities."""
    is_upper: Array
    """Whether it is rather the upper limit that holds."""
    good: Array
    """Whether the run ended at a solution."""


class ActiveSet(NamedTuple):
    """What holds at a solution, and K with a curvature on it: constants."""

    active: Array
    """bool: of the inputs, then of the inequalities."""
    stiff: Array
    sources: Array
    numbers: Elimination
    sound: Array
    """Whether the solution has a derivative."""


@dataclasses.dataclass(frozen=True, eq=False)
class Conditions:
    """The first-order conditions of a problem. One per structure."""

    augmented: Augmented
    system: System

    def data(self, given: Given, y: Array) -> Data:
        """Data of all families, with multipliers of the inequalities."""
        return jax.tree_util.tree_map(jnp.asarray, self.augmented.data(given.columns, y))

    def lagrangian(self, answer: Answer, given: Given, active: Array) -> Array:
        """L, without the targets and limits."""
        a, n = self.augmented, self.augmented.size
        structure, maps = a.structure, device_maps(self.augmented.structure)
        z, y = jnp.where(active, answer.limited, 0.0)[:n], jnp.where(active, answer.limited, 0.0)[n:]
        data = self.data(given, y)
        gaps = node_values(structure, maps, data, answer.slots) - answer.slots[structure.num_inputs :]
        value = objective(structure, maps, data, answer.slots)
        return value + z @ answer.slots[:n] + answer.lam @ gaps

    def residual(self, answer: Answer, given: Given, ending: Ending, active: Array) -> Array:
        """All conditions as one vector: slots, nodes, limited."""
        a, n, m = self.augmented, self.augmented.size, self.augmented.num_equalities
        slots, lam = jax.grad(
            lambda s, v: self.lagrangian(answer._replace(slots=s, lam=v), given, active), (0, 1)
        )(answer.slots, answer.lam)
        slots = slots.at[n : n + m].add(-given.target)
        held = jnp.concatenate([answer.slots[:n], answer.slots[a.inequalities]])
        limit = jnp.where(ending.is_upper, given.upper, given.lower)
        missed = jnp.where(active, held - jnp.where(active, limit, 0.0), -answer.limited)
        return jnp.concatenate([slots, lam, missed])

    def split(self, flat: Array) -> Answer:
        """One vector as an answer."""
        structure = self.augmented.structure
        size = structure.num_slots
        return Answer(
            flat[:size], flat[size : size + structure.num_pairs], flat[size + structure.num_pairs :]
        )

    def models(self, answer: Answer, given: Given) -> LocalModels:
        """Local derivatives of L at the slots."""
        a, structure, inputs = self.augmented, self.augmented.structure, self.augmented.structure.num_inputs
        data = self.data(given, answer.limited[a.size :])
        point = Point(answer.slots[:inputs], data, (), structure, None, False)
        lam = jnp.concatenate([jnp.zeros(inputs, answer.lam.dtype), answer.lam])
        return self.system.linearize(point, answer.slots, lam)

    def value(self, answer: Answer, given: Given) -> Array:
        """f at the slots."""
        a, n, m = self.augmented, self.augmented.size, self.augmented.num_equalities
        slots = answer.slots.at[n : n + m].set(0.0)
        data = self.data(given, jnp.zeros(a.num_inequalities, slots.dtype))
        return objective(a.structure, device_maps(a.structure), data, slots) + given.constant

    def solve_stiffly(self, known: ActiveSet, right: Array) -> Array:
        """Solve with K, where a curvature stands for the border: exact as it goes to infinity."""
        active, stiff, system = known.active, known.stiff, self.system
        a, n, structure = self.augmented, self.augmented.size, self.augmented.structure
        size = structure.num_slots + structure.num_pairs
        whole, missed = right[:size], right[size:]
        pull = jnp.where(active, stiff * missed, 0.0)
        whole = whole.at[:n].add(pull[:n]).at[a.inequalities].add(pull[n:])
        found = system.engine.solve_whole(system.arrays, known.sources, known.numbers, whole[:, None])[:, 0]
        held = jnp.concatenate([found[:n], found[a.inequalities]])
        return jnp.concatenate([found, jnp.where(active, stiff * (held - missed), -missed)])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def answer_of(conditions: Conditions, given: Given, found: Answer, ending: Ending) -> Answer:
    """Where the run ended, as a function of what the problem is made of."""
    del conditions, given, ending
    return found


@answer_of.defjvp
def _(
    conditions: Conditions, primals: tuple[Given, Answer, Ending], tangents: tuple[Given, Answer, Ending]
) -> tuple[Answer, Answer]:
    given, found, ending = primals
    answer = answer_of(conditions, given, found, ending)
    structure = conditions.augmented.structure
    change = structure.memo(("solution map", conditions), lambda: jax.jit(partial(_change, conditions)))
    tangent = [v for v in jax.tree_util.tree_leaves(tangents[0]) if v.dtype != jax.dtypes.float0]
    return answer, change(given, answer, ending, tangent)


def _change(
    conditions: Conditions, given: Given, answer: Answer, ending: Ending, tangent: list[Array]
) -> Answer:
    """How a solution moves."""
    fixed, quiet, ending = still(answer), still(given), still(ending)
    known = _active_set(conditions, fixed, quiet, ending)

    def residual(at: Answer, given: Given) -> Array:
        return conditions.residual(at, given, ending, known.active)

    def product(at: Answer, given: Given, v: Array) -> Array:
        return jax.jvp(lambda at: residual(at, given), (at,), (conditions.split(v),))[1]

    def solve(_: Callable[[Array], Array], right: Array) -> Array:
        def refine(_: int | Array, x: Array) -> Array:
            return x + conditions.solve_stiffly(known, right - product(fixed, quiet, x))

        return jax.lax.fori_loop(0, _ROUNDS, refine, conditions.solve_stiffly(known, right))

    # At both ends, since neither mode lets a NaN through to what is not active.
    nan = jnp.where(known.sound, 1.0, jnp.nan).astype(answer.slots.dtype)
    tangent = [(v * nan).astype(v.dtype) for v in tangent]
    moved = jax.jvp(partial(residual, answer), (given,), (_spread(given, tangent),))[1]
    change = jax.lax.custom_linear_solve(partial(product, answer, given), -moved, solve, symmetric=True)
    return conditions.split(change * nan)


def _spread(given: Given, tangent: list[Array]) -> Given:
    """Put tangents of the real numbers where they belong; integers have none."""
    rest = iter(tangent)
    leaves, tree = jax.tree_util.tree_flatten(given)
    return jax.tree_util.tree_unflatten(
        tree,
        [
            next(rest)
            if jnp.issubdtype(jnp.result_type(v), jnp.inexact)
            else np.zeros(jnp.shape(v), jax.dtypes.float0)
            for v in leaves
        ],
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def value_of(conditions: Conditions, given: Given, answer: Answer, found: Array) -> Array:
    """f at the end of a run, as it was found."""
    del conditions, given, answer
    return found


@value_of.defjvp
def _(
    conditions: Conditions, primals: tuple[Given, Answer, Array], tangents: tuple[Given, Answer, Array]
) -> tuple[Array, Array]:
    given, answer, found = primals
    moved = jax.jvp(conditions.value, (answer, given), (tangents[1], tangents[0]))[1]
    return value_of(conditions, given, answer, found), moved.astype(found.dtype)


def _active_set(conditions: Conditions, answer: Answer, given: Given, ending: Ending) -> ActiveSet:
    """Which rows and bounds are active, and whether the solution has a derivative. The host is told why not.

    With h the curvature of the problem along a row and Σ that of its barrier, the diagonal of K⁻¹ is 1/(h + Σ) there: its
    product with Σ is 1 where the row is active, 0 where it is not, and in between where it is weakly active. Of active rows
    that depend on each other, each has only a share of it. This has no units.
    """
    a, n, structure = conditions.augmented, conditions.augmented.size, conditions.augmented.structure
    system = conditions.system
    models = conditions.models(answer, given)
    bare = models.sources[: -a.num_diagonals]
    most = structure.eps**_STIFF * jnp.maximum(jnp.max(jnp.abs(bare), initial=0.0), structure.eps)
    stiff = jnp.minimum(ending.barrier, most)
    none = jnp.zeros(a.num_equalities, bare.dtype)
    nodes = jnp.zeros(a.num_lifted, bare.dtype)
    sources = jnp.concatenate([bare, stiff[:n], none, stiff[n:], nodes])
    side = jnp.zeros((structure.num_inputs, 1), bare.dtype)
    numbers = system.run_factor_solve(system.arrays, sources, 0.0, side)[1]
    diagonal = system.variances(dataclasses.replace(models, sources=sources), numbers)
    share = stiff * jnp.concatenate([diagonal[:n], diagonal[a.inequalities]])
    inertia = numbers.inertia
    regular = (numbers.status == EliminationStatus.OK) & (inertia[0] == n) & (inertia[1] == a.num_equalities)
    clear = jnp.all((jnp.abs(share) <= _CLEAR) | (jnp.abs(share - 1) <= _CLEAR))
    sound = ending.good & regular & clear
    tell_unless(sound, _warn, ending.good, regular, clear)
    return ActiveSet(share > 0.5, stiff, sources, numbers, sound)


def _warn(good: Array, regular: Array, clear: Array) -> None:
    """Say why a derivative is NaN."""
    if not np.all(good):
        why = "the run did not end at a solution; raise max_steps, or look at `status`"
    elif not np.all(regular):
        why = (
            "the KKT matrix is singular there or has the wrong inertia: constraints depend on each other, or it is no "
            "strict minimum; leave out what is redundant, or regularise"
        )
    elif not np.all(clear):
        why = (
            "a constraint or bound is weakly active (it holds and has no multiplier to speak of), or active ones depend on "
            "each other; move the limit a little, or lower tol if its multiplier is only small"
        )
    else:
        return
    warnings.warn(f"the derivative of the solution is NaN: {why}", CurvatureWarning, stacklevel=2)
