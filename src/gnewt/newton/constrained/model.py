"""Model: what the interior point asks of the graph: values, local models, and steps of its KKT matrix.

Three tiers of work. Once per structure: the augmented graph, its plan, compiled functions. Per iterate: values and local
derivatives. Per perturbation: one elimination, with the diagonals written over the last numbers of the sources.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._typing import PyTree
from gnewt.graph import Data, Maps, forward, objective
from gnewt.kkt import Elimination, LocalModels, Prepared
from gnewt.newton.arithmetic import Array, is_traced, known
from gnewt.newton.constrained.augment import Augmented
from gnewt.newton.constrained.lifted import Lift, lifted_values, solve_lifted
from gnewt.newton.objective import Point
from gnewt.newton.system import System, compiled, slots_at

_FEW = 200_000
"""Entries of the Jacobian of the constraints that are computed for its scaling; of larger ones lengths are estimated."""
_PROBES = 8


class Values(NamedTuple):
    """The graph at one point."""

    f: Array
    slots: Array
    """Of the augmented structure; multipliers are zero."""
    gaps: Array
    """Φ(x_pa) - x of all nodes where the graph is lifted; else empty."""


class Sides(NamedTuple):
    """Right-hand sides of the condensed KKT system, one column each."""

    x: Array
    """[N, k]"""
    equalities: Array
    """[m_E, k]"""
    inequalities: Array
    """[m_I, k]: on the slots of the inequalities."""
    nodes: Array
    """[M, k]: on the rows of nodes, where the graph is lifted; else [0, k]."""
    gaps: Array
    """[M, k]: on the rows of their multipliers."""


class Moves(NamedTuple):
    """Solutions of the condensed KKT system, one column each."""

    x: Array
    """[N, k]"""
    equalities: Array
    """[m_E, k]: of the multipliers."""
    inequalities: Array
    """[m_I, k]: of the slots of the inequalities, J_I·dx."""
    nodes: Array
    """[M, k]: of the nodes, where the graph is lifted; else [0, k]."""
    gaps: Array
    """[M, k]: of the multipliers of the nodes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A constrained problem's graph, ready for numbers. Works on the host and inside jit and vmap alike."""

    augmented: Augmented
    system: System
    columns: Data
    """Data of the traced families."""
    constant: Array | None
    """Value of an objective that does not depend on x."""
    lift: Lift | None = None
    """Which nodes hold values of their own; None where all are computed from x."""

    @property
    def size(self) -> int:
        return self.augmented.size

    @property
    def num_lifted(self) -> int:
        """M where the graph is lifted, else 0."""
        return self.augmented.structure.num_pairs if self.lift is not None else 0

    def point(self, x: Array, multipliers: Array | None = None) -> Point:
        """The augmented structure at x, with the multipliers of the inequalities in its data."""
        a = self.augmented
        xp = jnp if is_traced(x, multipliers) else np
        none = np.zeros(a.num_inequalities, a.structure.dtype)
        data = a.data(self.columns, none if multipliers is None else multipliers)
        inputs = xp.concatenate([x, np.zeros(a.num_equalities, a.structure.dtype)])
        return Point(inputs, data, (), a.structure, None, False)

    def evaluate(self, x: Array, nodes: Array | None = None) -> Values:
        """Evaluate objective and constraints; of a lifted graph at given values of its nodes."""
        structure = self.augmented.structure
        lift = self.lift
        if lift is None or nodes is None:
            function = compiled(structure, _evaluate, self.system.evaluation)
            f, slots = function(self.system.maps, self.point(x))
            gaps = np.zeros(self.num_lifted, structure.dtype)
        else:
            run = structure.memo(("lifted", lift.key), lambda: jax.jit(partial(lifted_values, lift)))
            f, slots, gaps = run(self.system.maps, self.point(x), nodes)
        f, slots = known(f), known(slots)
        return Values(f if self.constant is None else f + self.constant, slots, known(gaps))

    def linearize(
        self, values: Values, y_equal: Array, y_other: Array, lam: Array | None = None
    ) -> LocalModels:
        """Take derivatives of f + yᵀc: the gradient and the sources of K.

        Args:
            lam: multipliers of the nodes of a lifted graph.
        """
        a = self.augmented
        n, m = self.size, a.num_equalities
        xp: Any = jnp if is_traced(values.slots, y_equal) else np
        slots = xp.concatenate([values.slots[:n], y_equal, values.slots[n + m :]])
        point = self.point(values.slots[:n], y_other)
        if self.lift is None:
            return self.system.linearize(point, slots)
        # Nodes that are computed from others have the multipliers that belong to these.
        lam = xp.where(self.lift.is_slot, lam, np.nan)
        return self.system.linearize(point, slots, xp.concatenate([np.zeros(n + m, slots.dtype), lam]))

    def solve(self, models: LocalModels, diagonal: Array, sides: Sides) -> tuple[Moves, Elimination]:
        """Eliminate K with the given diagonals (inputs, multipliers, slots of inequalities), and solve."""
        a = self.augmented
        if self.lift is not None:
            return self._solve_lifted(models, diagonal, sides)
        function = a.structure.memo(
            ("constrained", self.system), lambda: jax.jit(partial(_solve, a, self.system.engine))
        )
        point = self.point(models.slots[: self.size])
        moves, found = function(self.system.maps, self.system.arrays, point, models, diagonal, sides)
        return Moves(*map(known, moves)), found._replace(
            status=known(found.status), inertia=known(found.inertia)
        )

    def _solve_lifted(self, models: LocalModels, diagonal: Array, sides: Sides) -> tuple[Moves, Elimination]:
        a = self.augmented
        function = a.structure.memo(
            ("lifted", self.system), lambda: jax.jit(partial(solve_lifted, a, self.system.engine))
        )
        moved, found = function(self.system.arrays, models.sources, diagonal, tuple(sides))
        moved, n, size = known(moved), self.size, a.structure.num_slots
        first = n + a.num_equalities
        moves = Moves(moved[:n], moved[n:first], moved[a.inequalities], moved[first:size], moved[size:])
        return moves, found._replace(status=known(found.status), inertia=known(found.inertia))

    def row_sizes(self, x: Array) -> Array:
        """‖∇c_i‖∞ for every row, equalities first; where the graph is lifted a row reads one slot."""
        a = self.augmented
        if self.lift is not None:
            return np.ones(a.num_equalities + a.num_inequalities + self.num_lifted, a.structure.dtype)
        if a.num_equalities + a.num_inequalities == 0:
            return np.zeros(0, a.structure.dtype)
        function = a.structure.memo("row sizes", lambda: jax.jit(partial(_row_sizes, a)))
        return known(function(self.system.maps, self.point(x)))

    def bare_sources(self, models: LocalModels) -> LocalModels:
        """The local models without second derivatives: for least-squares multipliers."""
        keep = ~self.augmented.is_hessian
        return dataclasses.replace(models, sources=jnp.where(keep, models.sources, 0.0))


def _evaluate(evaluation: str, maps: Maps, point: Point) -> tuple[jax.Array, jax.Array]:
    slots = slots_at(evaluation, maps, point)
    return objective(point.structure, maps, point.data, slots), slots


def _row_sizes(a: Augmented, maps: Maps, point: Point) -> jax.Array:
    n, slots = a.size, np.concatenate([a.equalities, a.inequalities])

    def rows(x: jax.Array) -> jax.Array:
        inputs = jnp.concatenate([x, jnp.zeros(a.num_equalities, x.dtype)])
        return forward(point.structure, maps, point.data, inputs)[slots]

    x = point.x[:n]
    if len(slots) * n <= _FEW:
        _, pull = jax.vjp(rows, x)
        rows_of = jax.vmap(lambda w: jnp.max(jnp.abs(pull(w)[0]), initial=0.0))
        return rows_of(jnp.eye(len(slots), dtype=x.dtype))
    # Random signs: the mean square of J·v is the square of a row's length.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (_PROBES, n)).astype(x.dtype)
    moved = jax.vmap(lambda v: jax.jvp(rows, (x,), (v,))[1])(signs)
    return jnp.sqrt(jnp.mean(moved**2, 0))


def _solve(
    a: Augmented,
    engine: Prepared,
    maps: Maps,
    arrays: PyTree,
    point: Point,
    models: LocalModels,
    diagonal: jax.Array,
    sides: Sides,
) -> tuple[Moves, Elimination]:
    base = len(models.sources) - a.num_diagonals
    sources = jnp.concatenate([models.sources[:base], jnp.asarray(diagonal, models.sources.dtype)])
    right = jnp.concatenate([sides.x, sides.equalities])
    n = a.size

    def rows(x: jax.Array) -> jax.Array:
        inputs = jnp.concatenate([x, jnp.zeros(a.num_equalities, x.dtype)])
        return forward(point.structure, maps, point.data, inputs)[a.inequalities]

    if a.num_inequalities:
        _, pull = jax.vjp(rows, point.x[:n])
        back = jax.vmap(lambda w: pull(w)[0], 1, 1)(jnp.asarray(sides.inequalities))
        right = right.at[:n].add(back)
    # A diagonal of NaN asks for nothing, and so does a shift of NaN, which takes no time.
    shift = jnp.where(jnp.any(jnp.isnan(diagonal)), jnp.nan, 0.0).astype(sources.dtype)
    step, found = engine.factor_solve(arrays, sources, shift, right)
    moved = jnp.zeros((0, right.shape[1]), right.dtype)
    if a.num_inequalities:
        moved = jax.vmap(lambda v: jax.jvp(rows, (point.x[:n],), (v,))[1], 1, 1)(step[:n])
    none = jnp.zeros((0, right.shape[1]), right.dtype)
    return Moves(step[:n], step[n:], moved, none, none), found


def is_right(model: Model, found: Elimination) -> Any:
    """Whether K has N positive and m_E negative eigenvalues, and none that is zero."""
    m = model.augmented.num_equalities
    inertia = found.inertia
    return (found.status == 0) & (inertia[0] == model.size) & (inertia[1] == m)
