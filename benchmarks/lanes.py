"""Run many jobs in worker processes, each pinned to a core of its own and replaced when a job takes too long.

Time is processor time, so that a busy machine costs nobody a job.

Importing this module, before NumPy and JAX, holds the libraries of this process and of the workers to one thread.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ[f"{library}_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

_JOBS_PER_PROCESS = 50
"""Compiled programs pile up in a process."""

Job = tuple[str, str, float]
Work = Callable[[str, str, float], dict[str, Any]]


def run_lanes(
    work: Work, jobs: Sequence[Job], workers: int, most: float, record: Callable[[dict[str, Any]], None]
) -> None:
    """Do all jobs (solver, problem, limit); `record` gets a row for each, one at a time.

    Args:
        work: a function of a module, so that a new process can import it.
        most: seconds of processor time after which a job is ended, whatever it is doing.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock = threading.Lock()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None] * workers

    def lane(core: int | None) -> None:
        runner = _Runner(work, core)
        try:
            while True:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                row = runner.run(job, most)
                with lock:
                    record(row)
        finally:
            runner.stop()

    lanes = [threading.Thread(target=lane, args=(cores[k % len(cores)],)) for k in range(workers)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()


class _Runner:
    """One process at a time."""

    def __init__(self, work: Work, core: int | None) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._work, self._core = work, core
        self._process: Any = None
        self._used = 0
        self._solver = ""

    def run(self, job: Job, most: float) -> dict[str, Any]:
        """Do one job; a process serves one solver only, since the precision is a setting of the process."""
        if self._process is None or self._used >= _JOBS_PER_PROCESS or self._solver != job[0]:
            self.stop()
            self._channel, theirs = self._context.Pipe()
            self._process = self._context.Process(
                target=_serve, args=(self._work, theirs, self._core), daemon=True
            )
            self._process.start()
            theirs.close()  # so that a dead process is noticed at once
            self._used, self._solver = 0, job[0]
        self._used += 1
        try:
            self._channel.send((job, most))
            return self._channel.recv()
        except (EOFError, OSError):
            self._process.join()
            ended = self._process.exitcode == -signal.SIGPROF
            why = f"time limit: ended after {most:.0f} s" if ended else "the process died (memory?)"
        self.stop()
        return {"solver": job[0], "problem": job[1], "solved": False, "why": why}

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None


def _serve(work: Work, channel: Any, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    while True:
        (solver, name, limit), most = channel.recv()
        signal.setitimer(signal.ITIMER_PROF, most)  # its signal ends the process
        try:
            channel.send(work(solver, name, limit))
        except Exception as error:  # whatever goes wrong belongs into the table
            why = f"{type(error).__name__}: {str(error)[:150]}"
            channel.send({"solver": solver, "problem": name, "solved": False, "why": why})
