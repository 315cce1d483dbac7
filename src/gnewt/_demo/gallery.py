"""The demos by name: what each one shows, and how to run and draw it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnewt._demo import obstacles, parking, smoothing, training, tree
from gnewt._demo.setting import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Demo:
    """One demo of the gallery."""

    title: str
    size: int
    unit: str
    """What `size` counts."""
    prepare: Callable[[int, int], Setting]
    """(size, seed) ↦ the problem."""
    draw: Callable[[Setting, Any], Figure]
    """Needs matplotlib."""


GALLERY: dict[str, Demo] = {
    "parking": Demo(parking.TITLE, 80, "time steps", parking.prepare, parking.draw),
    "obstacles": Demo(obstacles.TITLE, 60, "time steps", obstacles.prepare, obstacles.draw),
    "tree": Demo(tree.TITLE, 6, "branchings", tree.prepare, tree.draw),
    "smoothing": Demo(smoothing.TITLE, 300, "counts", smoothing.prepare, smoothing.draw),
    "training": Demo(training.TITLE, 20, "layers", training.prepare, training.draw),
}
"""All but the first one, `cartpole`, which compares every number with the dense Hessian (`_demo/cartpole.py`)."""
