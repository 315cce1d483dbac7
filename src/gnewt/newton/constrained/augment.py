"""The augmented structure: the graph of f and c with multipliers as inputs, and with diagonals that can be set.

Loss families are appended to the families of the traced graph, and their Hessians come last among the sources:

    Σ y_i c_i            saddle: y_i is an input slot, c_i the slot of an equality
    Σ ½ w_i x_i²         a diagonal on every input of the objective: Σ_x + δ_w
    Σ ½ w_i y_i²         a diagonal on every multiplier: -D
    Σ y_i c_i + ½ w_i c_i²   condensed: y_i are data, c_i the slot of an inequality: 1/D
    Σ ½ w_v x_v²         where the graph is lifted, a diagonal on every node: δ_w

The weights w are zero where derivatives are taken. An elimination replaces the last numbers of the sources by the diagonals,
so that linearising once serves any number of diagonals, in every engine and without a change of the plan.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from gnewt.graph import Data, Family, Structure
from gnewt.newton.arithmetic import Array
from gnewt.newton.system import SlotOrder


@dataclasses.dataclass(frozen=True, eq=False)
class Augmented:
    """A structure with multipliers; integers only."""

    structure: Structure
    """Inputs: those of the objective, then the multipliers of the equalities."""
    size: int
    """N: inputs of the objective."""
    equalities: np.ndarray
    """Slots of the equalities in this structure."""
    inequalities: np.ndarray
    """Slots of the inequalities in this structure."""
    num_lifted: int
    """Nodes with a diagonal: all, or none."""
    is_hessian: np.ndarray
    """bool[nnz]: which sources are second derivatives of f or of nodes (not Jacobians, not the coupling of y and c)."""

    @property
    def num_equalities(self) -> int:
        return len(self.equalities)

    @property
    def num_inequalities(self) -> int:
        return len(self.inequalities)

    @property
    def num_diagonals(self) -> int:
        return self.size + self.num_equalities + self.num_inequalities + self.num_lifted

    def data(self, columns: Data, multipliers: Array) -> Data:
        """Complete the data of the traced families by the multipliers of the inequalities."""
        n, m_e, m_i = self.size, self.num_equalities, self.num_inequalities
        dtype = self.structure.dtype
        added: list[tuple[Array, ...]] = [(), (np.zeros(n, dtype),)]
        if m_e:
            added.append((np.zeros(m_e, dtype),))
        if m_i:
            added.append((multipliers, np.zeros(m_i, dtype)))
        if self.num_lifted:
            added.append((np.zeros(self.num_lifted, dtype),))
        return (*columns[: self._num_traced], *(added if m_e else added[1:]))

    def order(self, order: SlotOrder) -> SlotOrder:
        """An order of the traced structure as one of this one: a multiplier follows the slot of its equality."""
        if isinstance(order, str) or not self.num_equalities:
            return order
        n, m = self.size, self.num_equalities
        waiting: dict[int, list[int]] = {}
        for i, slot in enumerate(self.equalities.tolist()):
            waiting.setdefault(slot, []).append(n + i)
        found: list[Any] = []
        for item in order:
            group = np.ravel(np.asarray(item, np.int64))
            group = np.where(group >= n, group + m, group)
            found.append(int(group[0]) if np.ndim(item) == 0 else group)
            found += [y for slot in group.tolist() for y in waiting.pop(slot, [])]
        return found + [y for left in waiting.values() for y in left]

    @property
    def _num_traced(self) -> int:
        return (
            len(self.structure.families)
            - 1
            - 2 * bool(self.num_equalities)
            - bool(self.num_inequalities)
            - bool(self.num_lifted)
        )


def _saddle(s: jax.Array) -> jax.Array:
    return s[0] * s[1]


def _diagonal(s: jax.Array, w: jax.Array) -> jax.Array:
    return 0.5 * w * s[0] ** 2


def _condensed(s: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
    return y * s[0] + 0.5 * w * s[0] ** 2


def augment(
    structure: Structure,
    equalities: np.ndarray,
    inequalities: np.ndarray,
    with_losses: bool = True,
    is_lifted: bool = False,
) -> Augmented:
    """Add multipliers and diagonals to the graph of f and c, once per structure and set of rows.

    Args:
        equalities, inequalities: slots of the constraints, in the structure's numbering.
        with_losses: False where the losses stand for a constant objective.
        is_lifted: whether nodes hold values of their own.
    """
    key = ("augmented", equalities.tobytes(), inequalities.tobytes(), with_losses, is_lifted)
    return structure.memo(key, lambda: _augment(structure, equalities, inequalities, with_losses, is_lifted))


def _augment(
    structure: Structure,
    equalities: np.ndarray,
    inequalities: np.ndarray,
    with_losses: bool,
    is_lifted: bool,
) -> Augmented:
    n, m_e, m_i = structure.num_inputs, len(equalities), len(inequalities)

    def moved(slots: np.ndarray) -> np.ndarray:
        return np.where(slots >= n, slots + m_e, slots).astype(np.int32)

    families = [
        dataclasses.replace(f, args=moved(f.args), outs=None if f.outs is None else moved(f.outs))
        for f in structure.families
        if with_losses or not f.is_loss
    ]
    traced = len(families)
    e_slots, i_slots = moved(equalities), moved(inequalities)
    y_slots = np.arange(n, n + m_e, dtype=np.int32)
    if m_e:
        pattern = np.array([[False, True], [True, False]])
        args = np.stack([y_slots, e_slots], 1)
        families.append(Family(_saddle, args, hess_pattern=pattern, name="multipliers"))
    families.append(Family(_diagonal, np.arange(n, dtype=np.int32)[:, None], data_axes=(0,), name="bounds"))
    if m_e:
        families.append(Family(_diagonal, y_slots[:, None], data_axes=(0,), name="regularisation"))
    if m_i:
        families.append(Family(_condensed, i_slots[:, None], data_axes=(0, 0), name="inequalities"))
    num_lifted = structure.num_pairs if is_lifted else 0
    if num_lifted:
        nodes = np.arange(n + m_e, structure.num_slots + m_e, dtype=np.int32)
        families.append(Family(_diagonal, nodes[:, None], data_axes=(0,), name="nodes"))
    avals, names = list(structure.in_avals), list(structure.in_names)
    tree: object = structure.in_tree
    if m_e:
        avals.append(jax.ShapeDtypeStruct((m_e,), structure.dtype))
        names.append("multiplier")
        leaves = jax.tree_util.tree_unflatten(structure.in_tree, [0] * len(structure.in_avals))
        tree = jax.tree_util.tree_structure((leaves, 0))
    augmented = Structure(
        families=tuple(families),
        num_inputs=n + m_e,
        num_slots=structure.num_slots + m_e,
        in_tree=tree,
        in_avals=tuple(avals),
        in_names=tuple(names),
    )
    flags = _second_derivatives(families[:traced], families[traced:])
    return Augmented(augmented, n, e_slots, i_slots, num_lifted, flags)


def _second_derivatives(traced: list[Family], added: list[Family]) -> np.ndarray:
    """Which sources are second derivatives of the traced families."""
    flags = []
    for family in traced:
        if not family.is_loss:
            flags.append(np.zeros(family.n * int(family.jac_pattern.sum()), bool))
        flags.append(np.ones(family.n * int(np.tril(family.hess_pattern).sum()), bool))
    for family in added:
        flags.append(np.zeros(family.n * int(np.tril(family.hess_pattern).sum()), bool))
    return np.concatenate(flags) if flags else np.zeros(0, bool)
