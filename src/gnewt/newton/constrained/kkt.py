"""The KKT matrix at the end of a run, eliminated: for sensitivities, and for any other right-hand side.

    [ W + Σ_x   Jᵀ ] [dx]   [ a ]        W = ∂²(f + yᵀc), Σ_x from the bounds
    [ J         -D ] [dy] = [ b ]        D = 0 for equalities; 1/Σ_s for inequalities: next to 0 where they are active

All numbers are in the user's scale. One elimination, and one pair of substitutions for every right-hand side.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._typing import PyTree
from gnewt.graph import Certificate, Plan
from gnewt.kkt import Elimination, EliminationStatus
from gnewt.newton.arithmetic import Array
from gnewt.newton.constrained.augment import Augmented
from gnewt.newton.constrained.barrier import Barrier
from gnewt.newton.constrained.joint import Joint
from gnewt.newton.constrained.modes import Mode, State
from gnewt.newton.constrained.rows import flat_vector
from gnewt.newton.numbers import Count, Inertia, as_inertia, show
from gnewt.newton.statuses import status_of
from gnewt.newton.system import System


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """What two results of one problem share: integers and forms. One per structure and form of the constraints."""

    augmented: Augmented
    system: System
    joint_form: tuple[Any, ...]
    """Treedef of the constraints; treedef and shapes of each."""
    used: np.ndarray
    """Rows that are used, equalities first, among all rows (fixed variables last)."""
    num_given: int
    """Rows that a person gave."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class KKTFactor:
    """The KKT matrix at a solution of `gnewt.minimize` with constraints. A pytree."""

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    sources: Array
    """Local derivatives, diagonals included."""
    stiff: Array
    """1/D of the inequalities."""
    numbers: Elimination
    frame: Frame = dataclasses.field(metadata={"static": True})

    @property
    def plan(self) -> Plan:
        return self.frame.system.plan

    @property
    def certificate(self) -> Certificate:
        return self.plan.certificate

    @property
    def status(self) -> str:
        """`ok`, or `singular`: constraints that depend on each other, or directions without curvature."""
        return status_of(self.numbers.status, EliminationStatus).text

    @property
    def inertia(self) -> Inertia:
        """Numbers of positive, negative and zero eigenvalues; inequalities are part of W."""
        return as_inertia(self.numbers.inertia)

    @property
    def is_minimum(self) -> Count:
        """Whether the inertia is that of a strict local minimum: (N, number of equalities, 0)."""
        found, a = self.numbers.inertia, self.frame.augmented
        good = (found[0] == a.size) & (found[1] == a.num_equalities) & (found[2] == 0)
        return good if isinstance(good, Tracer) else bool(good)

    def solve(self, gradient: PyTree = None, rows: PyTree = None) -> tuple[PyTree, PyTree]:
        """Solve for one right-hand side; what is not given is zero.

        With gradient = -∂(∇L)/∂p and rows = -∂c/∂p it returns the derivatives of solution and multipliers by p.

        Args:
            gradient: a, in the form of x.
            rows: b, in the form of the constraints.

        Returns:
            (dx, dy), in the forms of x and of the constraints.
        """
        frame = self.frame
        a, structure = frame.augmented, frame.augmented.structure
        n, m, k = a.size, a.num_equalities, a.num_inequalities
        dtype = structure.dtype
        leaves = [] if gradient is None else jax.tree_util.tree_leaves(gradient)
        right = jnp.asarray(flat_vector(leaves, dtype)) if leaves else jnp.zeros(n, dtype)
        given = jnp.zeros(m + k, dtype)
        if rows is not None:
            flat = jnp.asarray(flat_vector(jax.tree_util.tree_leaves(rows), dtype))
            known = frame.used < frame.num_given
            given = jnp.where(known, flat[np.where(known, frame.used, 0)], 0.0)
        solve = structure.memo(
            ("kkt", frame.system), lambda: jax.jit(partial(_solve, a, frame.system.engine))
        )
        dx, dy = solve(frame.system.arrays, self.sources, self.stiff, self.numbers, right, given)
        whole = jnp.zeros(frame.num_given, dtype).at[frame.used].set(dy, mode="drop")
        return self._like_x(dx), self._like_rows(whole)

    def _like_x(self, x: Array) -> PyTree:
        structure = self.frame.augmented.structure
        tree: Any = structure.in_tree
        avals = structure.in_avals
        if self.frame.augmented.num_equalities:
            tree, avals = tree.children()[0], avals[:-1]
        return _fill(tree, tuple(a.shape for a in avals), x)

    def _like_rows(self, rows: Array) -> PyTree:
        whole, shapes = self.frame.joint_form
        parts, at = [], 0
        for tree, sizes in shapes:
            count = sum(int(np.prod(s, dtype=np.int64)) for s in sizes)
            parts.append(_fill(tree, sizes, rows[at : at + count]))
            at += count
        return jax.tree_util.tree_unflatten(whole, parts)

    def __repr__(self) -> str:
        return show(
            "KKTFactor",
            self.numbers.status,
            lambda: f"<KKTFactor: {self.status}, {self.inertia}, {self.certificate}>",
        )


def _fill(tree: Any, shapes: tuple[tuple[int, ...], ...], flat: Array) -> PyTree:
    ends = np.cumsum([0, *[int(np.prod(s, dtype=np.int64)) for s in shapes]])
    leaves = [flat[i:j].reshape(s) for i, j, s in zip(ends[:-1], ends[1:], shapes, strict=True)]
    return jax.tree_util.tree_unflatten(tree, leaves)


def _solve(
    a: Augmented,
    engine: Any,
    arrays: PyTree,
    sources: jax.Array,
    stiff: jax.Array,
    numbers: Elimination,
    gradient: jax.Array,
    rows: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """(dx, dy): right-hand sides of inequalities are put on their slots, their multipliers follow from these."""
    m, structure = a.num_equalities, a.structure
    right = jnp.zeros(structure.num_slots + structure.num_pairs, sources.dtype)
    right = right.at[: a.size].set(gradient).at[a.size : a.size + m].set(rows[:m])
    right = right.at[a.inequalities].add(stiff * rows[m:])
    found = engine.solve_whole(arrays, sources, numbers, right[:, None])[:, 0]
    dy = stiff * (found[a.inequalities] - rows[m:])
    return found[: a.size], jnp.concatenate([found[a.size : a.size + m], dy])


def factor_at(joint: Joint, b: Barrier, st: State) -> KKTFactor:
    """Eliminate the KKT matrix at the last iterate, on the host."""
    n, m, k = b.sizes
    a, system, (sigma, d) = b.model.augmented, b.model.system, b.scale
    models = st.models
    if int(st.mode) == Mode.RESTORE:
        models, _ = b.linearize(st.at, st.dual.y, np.ones((), st.at.w.dtype))
    curvature = b.sigma(st.at.w, st.dual) / sigma
    stiff = curvature[n : n + k] * d[m : m + k] ** 2
    diagonal = np.concatenate([curvature[:n], np.zeros(m), stiff])
    sources = np.concatenate([np.asarray(models.sources)[: -a.num_diagonals], diagonal])
    sources = jnp.asarray(sources, a.structure.dtype)
    none = jnp.zeros((a.structure.num_inputs, 1), a.structure.dtype)
    _, numbers = system.run_factor_solve(system.arrays, sources, 0.0, none)
    rows = joint.rows
    used = np.concatenate([rows.equalities, rows.inequalities])
    form = joint.named.tree, joint.shapes
    key = ("frame", system, form, used.tobytes(), len(rows.slots))
    num_given = len(rows.slots) - len(joint.fixed)
    frame = a.structure.memo(key, lambda: Frame(a, system, form, used, num_given))
    return KKTFactor(sources, jnp.asarray(stiff, a.structure.dtype), numbers, frame)
