"""A judge of seeds in several processes, which survives what kills one of them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

FORGET_AFTER = 25
"""Seeds after which a process forgets what it compiled."""
_TICK = 1.0
"""Seconds between two looks at a process. A process that was stopped meanwhile has lost one tick, not its time limit."""
_LOADED_IN = 120.0
"""Seconds in which a process must have loaded its libraries."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What a process does. Functions of a module: another process finds them by their names."""

    judge: Callable[[int], dict[str, Any]]
    """seed ↦ a record with the key "outcome"."""
    enter: Callable[[str], None] | None = None
    """Is called first, with a folder of the process's own, which is removed at the end."""
    forget: Callable[[], None] | None = None
    """Is called after every FORGET_AFTER seeds."""


def run_seeds(
    work: Work, seeds: Iterable[int], workers: int, each: float, limit: float
) -> Iterator[dict[str, Any]]:
    """Yield a record for each seed, in the order in which they end.

    Args:
        work: What to do with a seed.
        seeds: Are handed out one by one.
        workers: Number of processes.
        each: Seconds that a seed may take; its outcome is "timed out" then.
        limit: Seconds in all. Seeds that were not begun by then have no record; those that run are "cut off".
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    for seed in seeds:
        todo.put(seed)
    end = time.monotonic() + limit
    with tempfile.TemporaryDirectory(prefix="gnewt-seeds-") as folder:
        pool = [_Worker(work, folder, todo, done, each, end) for _ in range(workers)]
        for worker in pool:
            worker.start()
        at_work = workers
        while at_work:
            record = done.get()
            if record is None:
                at_work -= 1
            else:
                yield record
        for worker in pool:
            worker.join()


class _Worker(threading.Thread):
    """Keeps one process busy, and starts another one where it dies."""

    def __init__(
        self,
        work: Work,
        folder: str,
        todo: queue.SimpleQueue[int],
        done: queue.SimpleQueue[dict[str, Any] | None],
        each: float,
        end: float,
    ) -> None:
        super().__init__(daemon=True)
        self.work, self.folder, self.todo, self.done = work, folder, todo, done
        self.each, self.end = each, end
        self.process: Any = None
        self.pipe: Connection | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.end:
                try:
                    seed = self.todo.get_nowait()
                except queue.Empty:
                    break
                self.done.put({"seed": seed, **self._ask(seed)})
        finally:
            self._stop()
            self.done.put(None)

    def _ask(self, seed: int) -> dict[str, Any]:
        """Have a seed judged."""
        began = time.monotonic()
        try:
            if self.process is None:
                self._start()
                self._receive(_LOADED_IN)
            assert self.pipe is not None
            self.pipe.send(seed)
            return self._receive(self.each)
        except TimeoutError as problem:
            self._stop()
            return {"outcome": str(problem), "seconds": round(time.monotonic() - began, 2)}
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self.process = None
            return {"outcome": "crashed", "detail": f"the process ended with code {code}"}

    def _receive(self, allowed: float) -> dict[str, Any]:
        """Wait for what the process says next."""
        assert self.pipe is not None
        while not self.pipe.poll(_TICK):
            allowed -= _TICK
            if time.monotonic() > self.end:
                raise TimeoutError("cut off")
            if allowed <= 0:
                raise TimeoutError("timed out")
        return self.pipe.recv()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(self.work, other, self.folder), daemon=True)
        self.process.start()
        other.close()

    def _stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def _serve(work: Work, pipe: Connection, folder: str) -> None:
    """Judge what comes through the pipe, until it is closed."""
    if work.enter is not None:
        work.enter(tempfile.mkdtemp(dir=folder))
    pipe.send({})  # ready
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  programs may print
    count = 0
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        began = time.monotonic()
        record = work.judge(seed)
        pipe.send({**record, "seconds": round(time.monotonic() - began, 2)})
        count += 1
        if work.forget is not None and count % FORGET_AFTER == 0:
            work.forget()
