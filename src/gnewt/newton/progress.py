"""Progress of a run: a live table when a person watches, plain lines otherwise."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from gnewt.newton.loop import Record
from gnewt.newton.result import X

if TYPE_CHECKING:
    from rich.live import Live

    from gnewt.newton.boxed import BoxRecord
    from gnewt.newton.constrained.modes import Record as ConstrainedRecord
    from gnewt.newton.dashboard import Dashboard

_MOST_ROWS = 18
_HEAD = ("step", "f", "|g|", "shift", "radius", "ratio", "inertia of H")
_WIDTHS = (5, 17, 9, 8, 8, 6, 0)


@dataclasses.dataclass(frozen=True)
class Progress(Generic[X]):
    """What a callback sees after each step."""

    step: int
    x: X
    fun: float
    grad_norm: float
    record: Record | ConstrainedRecord | BoxRecord
    """Of the step just taken (or refused): a `Record`, with constraints one that shows violation, μ and lengths."""


def cells(step: int, record: Record) -> tuple[str, ...]:
    """One row of the table."""
    return (
        f"{step}",
        f"{record.value: .9e}",
        f"{record.grad_norm:.2e}",
        f"{record.shift:.1e}",
        f"{record.radius:.1e}",
        f"{record.ratio: .2f}",
        " ".join(str(n) for n in record.inertia) if record.inertia[0] >= 0 else "-",
    )


class Reporter:
    """Shows steps on standard error, a live view on a terminal; does nothing if not verbose."""

    def __init__(
        self,
        verbose: bool,
        head: tuple[str, ...] = _HEAD,
        widths: tuple[int, ...] = _WIDTHS,
        row: Callable[[int, Any], tuple[str, ...]] = cells,
    ) -> None:
        self.verbose = verbose
        self._head, self._widths, self._row = head, widths, row
        self._view: Dashboard | None = None
        self._live: Live | None = None

    def __enter__(self) -> Reporter:
        if self.verbose and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            from gnewt.newton.dashboard import Dashboard  # rich is for those who watch

            self._view = Dashboard(self._head)
            self._live = Live(self._view, console=Console(stderr=True), refresh_per_second=8, transient=False)
            self._live.start()
        elif self.verbose:
            print(self._plain(self._head), file=sys.stderr)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, step: int, record: Any) -> None:
        """Add a row."""
        if not self.verbose:
            return
        if self._view is None:
            print(self._plain(self._row(step, record)), file=sys.stderr)
        else:
            self._view.add(step, self._row(step, record), record)

    def _plain(self, row: tuple[str, ...]) -> str:
        return "  ".join(f"{cell:>{width}}" for cell, width in zip(row, self._widths, strict=True))
