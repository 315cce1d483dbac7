"""A live view of a run in a terminal: how long it has taken, how its errors fall, and its last steps."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_MOST_ROWS, _LEAST_ROWS, _ABOVE = 18, 4, 7
"""Rows of steps; lines above and around them."""
_TRACES = {
    "value": "f",
    "grad_norm": "|g|",
    "violation": "violation",
    "dual": "dual",
    "complementarity": "complementarity",
    "mu": "barrier μ",
}
"""Columns of a record that are drawn, and what they are called."""
_SPARK = 48


class Dashboard:
    """What is shown of a run; `add` takes a step, and rich asks for the view several times a second."""

    def __init__(self, head: tuple[str, ...]) -> None:
        self._head = head
        self._rows: list[tuple[str, ...]] = []
        self._traces: dict[str, list[float]] = {}
        self._step = 0
        self._began = time.monotonic()

    def add(self, step: int, row: tuple[str, ...], record: Any) -> None:
        """Take a step into the view."""
        found = {name: float(getattr(record, name)) for name in _TRACES if hasattr(record, name)}
        if self._traces:
            for name, value in found.items():
                self._traces[name].append(value)
        else:  # at once: another thread draws
            self._traces = {name: [value] for name, value in found.items()}
        self._step, self._rows = step, [*self._rows, row][-_MOST_ROWS:]

    def __rich__(self) -> RenderableType:
        """Draw the view as of now: the clock runs between steps, too."""
        seconds = time.monotonic() - self._began
        pace = f", {(self._step + 1) / seconds:.3g} steps/s" if self._rows and seconds > 0 else ""
        head = Text(f"step {self._step}   {clock(seconds)}{pace}", style="bold")
        lines = Table(box=None, show_header=False, pad_edge=False)
        lines.add_column(style="bold")
        lines.add_column(justify="right")
        lines.add_column(style="cyan", no_wrap=True)
        for name, values in self._traces.items():
            lines.add_row(_TRACES[name], f"{values[-1]:.3e}", sparkline(values, name != "value"))
        return Group(head, lines, self._table())

    def _table(self) -> Table:
        room = shutil.get_terminal_size().lines - _ABOVE - len(self._traces)
        table = Table(*self._head, box=None, header_style="bold")
        for row in self._rows[-max(_LEAST_ROWS, min(_MOST_ROWS, room)) :]:
            table.add_row(*row)
        return table


def sparkline(values: Sequence[float], logarithmic: bool) -> str:
    """The course of a number in one line; what is zero or not finite is a blank. Long runs are thinned out."""
    last = len(values) - 1
    at = (
        sorted({round(i * last / (_SPARK - 1)) for i in range(_SPARK)}) if last >= _SPARK else range(last + 1)
    )
    shown = [values[i] for i in at]
    heights = [_height(v, logarithmic) for v in shown]
    known = [h for h in heights if h is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(_BARS) - 1
    return "".join(" " if h is None else _BARS[round(top * (h - low) / span) if span else 0] for h in heights)


def _height(value: float, logarithmic: bool) -> float | None:
    if not math.isfinite(value) or (logarithmic and value <= 0):
        return None
    return math.log(value) if logarithmic else value


def clock(seconds: float) -> str:
    """Seconds as people read them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"
