"""The demos by name: what each one shows, and how to run and draw it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


GALLERY: dict[str, Demo] = {}
"""All but the first one, `cartpole`, which compares every number with the dense Hessian (`_demo/cartpole.py`)."""
