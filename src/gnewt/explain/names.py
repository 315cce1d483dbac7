"""Names and source lines of slots, families and fronts, found for many at once."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from gnewt.graph import Plan, Structure


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
    """Where every slot and every front of a plan comes from. `Structure.slot_name` searches; this looks up."""

    structure: Structure
    plan: Plan

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each slot the family that defines it (-1 for inputs), the instance, and the output."""
        places = tuple(np.full(self.structure.num_slots, -1, np.int64) for _ in range(3))
        for f in self.structure.nodes:
            outs = self.structure.families[f].outs
            assert outs is not None
            row, column = np.indices(outs.shape)
            for array, value in zip(places, (np.full(outs.shape, f), row, column), strict=True):
                array[outs] = value
        return places[0], places[1], places[2]

    def slot(self, slot: int) -> str:
        """Name a slot as `Structure.slot_name` does."""
        family = int(self._places[0][slot])
        if family < 0:
            return self.structure.slot_name(slot)
        made = self.structure.families[family]
        suffix = f"[{int(self._places[2][slot])}]" if made.m > 1 else ""
        return made.label(int(self._places[1][slot])) + suffix

    def bag(self, front: int, most: int) -> str:
        """Name the variables of a front, the first ones by name."""
        slots = self.plan.bag(front)
        shown = ", ".join(self.slot(int(s)) for s in slots[:most])
        return shown + (f" and {len(slots) - most} more" if len(slots) > most else "")

    @cached_property
    def family_of_source(self) -> np.ndarray:
        """The first source of each family: `searchsorted` finds the family of a source."""
        sizes = []
        for family in self.structure.families:
            jacobian = 0 if family.is_loss else int(family.jac_pattern.sum())
            sizes.append(family.n * (jacobian + int(np.tril(family.hess_pattern).sum())))
        return np.cumsum([0, *sizes])

    @cached_property
    def _families(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (front, family), sorted: the front assembles a number of the family."""
        plan, count = self.plan, max(len(self.structure.families), 1)
        family = np.searchsorted(self.family_of_source, plan.source, side="right") - 1
        front = plan.front_of_entry[plan.target]
        key = np.unique(front * count + family)
        return key // count, key % count

    def families(self, front: int) -> list[int]:
        """Families of which a front assembles a number."""
        fronts, families = self._families
        begin, end = np.searchsorted(fronts, [front, front + 1])
        return families[begin:end].tolist()

    def lines(self, front: int) -> list[str]:
        """Source lines of these families, each once."""
        found = (self.structure.families[f].where for f in self.families(front))
        return list(dict.fromkeys(line for line in found if line))

    @cached_property
    def key(self) -> np.ndarray:
        """One number for each front: equal where sizes and families are equal."""
        fronts, families = self._families
        rng = np.random.default_rng(0)
        words = rng.integers(1, 2**62, len(self.structure.families) + 1)
        mixed = np.zeros(self.plan.num_fronts, np.int64)
        np.bitwise_xor.at(mixed, fronts, words[families])
        sizes = np.diff(self.plan.elim_ptr) * 1_000_003 + np.diff(self.plan.sep_ptr)
        return mixed ^ (sizes * 0x9E3779B1)
