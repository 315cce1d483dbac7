"""What every benchmark shares: interleaved minima, results with their environment, as JSON and Markdown.

Import this module before JAX, NumPy or a peer: it fixes the threads of all of them.
"""

from __future__ import annotations

import one_thread  # noqa: F401

# isort: split
import dataclasses
import datetime
import gc
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results"
PEERS = (
    "crocoddyl",
    "pypardiso",
    "mkl",
    "scikit-sparse",
    "casadi",
    "asdex",
    "sif2jax",
    "pymetis",
    "cvxopt",
    "gtsam",
)
REPEATS = 25
"""Calls of each competitor at least: the minimum of them is reported."""
WIDE = 10
"""Columns beyond which a table of few rows is shown on its side."""
BURST = 3
"""Calls in a row."""
SLOW = 0.5
"""Seconds beyond which a call is timed only a few times ..."""
SLOW_REPEATS = 3
"""... namely as often as this, and to the end of the turn."""
LONG_ENOUGH = 0.3
"""Seconds for each competitor: short calls are repeated until then, 10 × REPEATS times at most."""


def interleave(calls: Mapping[str, Callable[[], Any]], repeats: int = REPEATS) -> dict[str, float]:
    """Return the least time of each call in seconds.

    They take turns, so that all of them see the same machine. A turn is a few calls in a row: the first of them finds
    its data where the others left it, in memory; the next ones find it in the cache, as the iterations of a solver do.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        jax.block_until_ready(call())
        times[name].append(_time(call))
    slow = {name for name, t in times.items() if t[0] > SLOW}
    gc.collect()
    gc.disable()
    try:
        for _ in range(10 * repeats // BURST):
            for name, call in calls.items():
                least = SLOW_REPEATS if name in slow else repeats
                if len(times[name]) <= least or (name not in slow and sum(times[name]) < LONG_ENOUGH):
                    times[name] += [_time(call) for _ in range(BURST)]
    finally:
        gc.enable()
    return {name: min(t) for name, t in times.items()}


CLOCK = os.environ.get("GNEWT_BENCH_CLOCK", "wall")
"""`wall`; or `cpu`, the time of this process alone, for a machine that others use too."""


def _time(call: Callable[[], Any]) -> float:
    clock = time.process_time if CLOCK == "cpu" else time.perf_counter
    begin = clock()
    jax.block_until_ready(call())
    return clock() - begin


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number that was promised: measured against its target."""

    name: str
    measured: float | None
    """None where the peer is not there."""
    relation: str
    """">=" or "<="."""
    target: float
    unit: str = "×"

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.target if self.relation == ">=" else self.measured <= self.target

    def row(self) -> dict[str, Any]:
        return {
            "figure": self.name,
            "measured": self.measured,
            "target": f"{self.relation} {self.target:g} {self.unit}".strip(),
            "met": {True: "yes", False: "NO", None: "no peer"}[self.met],
        }


def ratio(peer: float | None, ours: float) -> float | None:
    """How many times faster we are; None without the peer."""
    return None if peer is None else peer / ours


def relative(residual: Any, against: Any) -> float:
    """‖residual‖ / ‖against‖."""
    return float(np.linalg.norm(np.asarray(residual)) / np.linalg.norm(np.asarray(against)))


def isa() -> str:
    """Instruction set of the native engine in this process."""
    from gnewt.kkt.engines.native import engine as native

    return native.isa()


def environment() -> dict[str, Any]:
    """Describe machine and versions."""
    versions = {}
    for package in ("gnewt", "jax", "jaxlib", "numpy", "scipy", *PEERS):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "isa": isa(),
        "clock": CLOCK,
        "threads": 1,
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    fields = {}
    for line in info.read_text().splitlines() if info.exists() else []:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')})"


def _commit() -> str | None:
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as a Markdown table; with many columns and few rows it is turned on its side."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[name, *(row.get(name) for row in rows)] for name in names]
    if len(names) <= WIDE or len(rows) > WIDE:
        lines = [list(line) for line in zip(*lines, strict=True)]
    head, *body = ["| " + " | ".join(_cell(value) for value in line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def report(
    name: str,
    title: str,
    tables: Mapping[str, list[dict[str, Any]]],
    figures: Sequence[Figure] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write results/<name>.json and .md, and print the latter."""
    where = environment()
    RESULTS.mkdir(exist_ok=True)
    promised = [figure.row() for figure in figures]
    content = {
        "title": title,
        "environment": where,
        "figures": promised,
        "tables": tables,
        "notes": list(notes),
    }
    content = _finite(content)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    text = markdown(content)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def _finite(value: Any) -> Any:
    """JSON has no inf and nan: they become words."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def markdown(content: dict[str, Any]) -> str:
    """Format what `report` stores."""
    where = content["environment"]
    used = ", ".join(f"{k} {v}" for k, v in where["versions"].items() if v)
    lines = [
        f"# {content['title']}",
        "",
        f"{where['date']}, {where['cpu']}, engine {where['isa']}, one thread, float64, commit {where['commit']}, "
        f"{where['clock']} clock, load {where['load']:.1f}; Python {where['python']}, {used}.",
        "",
    ]
    if content["figures"]:
        lines += ["## Figures", "", table(content["figures"]), ""]
    for heading, rows in content["tables"].items():
        lines += [f"## {heading}", "", table(rows), ""]
    lines += [f"- {note}".replace("\n", "\n  ") for note in content["notes"]]  # one sentence per line
    return "\n".join(lines).rstrip() + "\n"
