"""Show a Structure as text: one line per family, with the user's source line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnewt.graph.structure import Structure


def show_structure(structure: Structure) -> str:
    """List the families, their instances and kept slots, and what became opaque and why."""
    head = (
        f"Graph: {structure.num_inputs} inputs, {structure.num_pairs} kept slots, "
        f"{len(structure.families)} families, depth {structure.schedule.depth}, {structure.dtype}"
    )
    lines = [head]
    for family in structure.families:
        kind = "loss" if family.is_loss else "node"
        shape = f"R^{family.k} -> R^{family.m}"
        line = f"  {kind} {family.name:<24} x{family.n:<8} {shape:<16} {family.where}"
        lines.append(line.rstrip() + (f"  [{family.note}]" if family.note else ""))
    return "\n".join(lines)
