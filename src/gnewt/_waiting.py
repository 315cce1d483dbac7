"""A line on standard error where a first call takes long: a person who waits is told for what."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 2.0
"""Seconds before the line appears."""


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Tell on standard error what is being done, if it takes longer than `PATIENCE`, and how long it took.

    Only a terminal is told. `GNEWT_PROGRESS=1` tells any standard error, `GNEWT_PROGRESS=0` none.
    """
    asked = os.environ.get("GNEWT_PROGRESS")
    if asked == "0" or not (asked == "1" or sys.stderr.isatty()):
        yield
        return
    begin, told = time.monotonic(), threading.Event()

    def tell() -> None:
        told.set()
        print(f"gnewt: {what} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if told.is_set():
            print(f"gnewt: {what}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
