"""What a demo of the gallery hands over: an objective, where it starts, and how it is solved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gnewt._typing import PyTree


@dataclasses.dataclass(frozen=True)
class Setting:
    """A problem of the gallery."""

    target: Any
    """What `gnewt.explain` is asked about ..."""
    x0: PyTree
    """... and where."""
    solve: Callable[[bool], Any]
    """Verbose ↦ the outcome: a Result, a Solution or a Laplace."""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the picture needs besides the outcome."""
    has_aux: bool = False
