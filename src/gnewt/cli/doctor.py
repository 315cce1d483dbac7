"""`gnewt doctor`: what is installed, what is used, what is missing, and how to get it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import io
import os
import platform
import shutil
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gnewt import _native
from gnewt._version import __version__
from gnewt.kkt.engines.choose import choose_engine
from gnewt.kkt.engines.native.engine import available, isa
from gnewt.newton import newton_step

_PACKAGES = ("jax", "jaxlib", "numpy", "scipy")
_EXTRAS = {
    "viz": ("pictures: `.plot()`, `gnewt demo`", ("matplotlib",)),
    "interop": ("entries for other libraries: `gnewt.interop`", ("optimistix", "lineax", "blackjax")),
}
"""Optional extras: what they are for, and what they bring."""
_SETTINGS = (
    "GNEWT_NATIVE",
    "GNEWT_ISA",
    "GNEWT_MAX_BYTES",
    "GNEWT_PROGRESS",
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "XLA_FLAGS",
    "OMP_NUM_THREADS",
)
_ISAS = {"x86_64": ("avx512", "avx2", "baseline"), "amd64": ("avx512", "avx2", "baseline")}
"""Builds of the engine by machine, the best first."""
_GOOD = 1e-10
"""Relative residual that a step in double precision has to reach."""


@dataclasses.dataclass(frozen=True)
class Examination:
    """What was found."""

    facts: dict[str, str]
    missing: dict[str, str]
    """What is missing ↦ how to get it."""
    works: bool
    """Whether a Newton step was exact on this machine."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def table(self) -> Group:
        """Two tables for a terminal."""
        facts = Table(box=None, show_header=False, pad_edge=False)
        facts.add_column(style="bold", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, value in self.facts.items():
            facts.add_row(name, Text(value))
        if not self.missing:
            return Group(facts, "", "nothing is missing")
        missing = Table(box=None, pad_edge=False, title="what could be better", title_justify="left")
        missing.add_column("what", overflow="fold")
        missing.add_column("how", overflow="fold")
        for name, remedy in self.missing.items():
            missing.add_row(Text(name), Text(remedy))
        return Group(facts, "", missing)


def examine() -> Examination:
    """Look at everything; compute one small step."""
    facts = {
        "gnewt": __version__,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}",
    }
    facts |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    missing: dict[str, str] = {}
    _look_at_devices(facts, missing)
    _look_at_engines(facts, missing)
    facts["threads"] = _threads()
    facts["precision"] = (
        "double (JAX_ENABLE_X64)"
        if jax.config.jax_enable_x64  # type: ignore[attr-defined]
        else 'single unless the program says jax.config.update("jax_enable_x64", True); commands of gnewt compute in double'
    )
    _look_at_extras(facts, missing)
    settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    facts["environment"] = ", ".join(settings) or "nothing set that matters here"
    works = _try_a_step(facts, missing)
    return Examination(facts, missing, works)


def as_text(found: Examination) -> str:
    """The tables as plain text."""
    console = Console(file=io.StringIO(), width=110)
    console.print(found.table(), highlight=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "processor unknown"


def _threads() -> str:
    affinity = getattr(os, "sched_getaffinity", None)
    mine = len(affinity(0)) if affinity else os.cpu_count() or 1
    return (
        f"{mine} of {os.cpu_count()} cores are free to this process; a batch under vmap is spread over them"
    )


def _look_at_devices(facts: dict[str, str], missing: dict[str, str]) -> None:
    try:
        devices = jax.devices()
    except RuntimeError as error:
        facts["devices"] = f"none: {str(error).splitlines()[0]}"
        missing["a device that JAX can use"] = "unset JAX_PLATFORMS, or install the jaxlib that it asks for"
        return
    facts["devices"] = ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in devices)
    has_gpu = any(d.platform in ("gpu", "cuda", "rocm") for d in devices)
    if shutil.which("nvidia-smi") and not has_gpu:
        missing["the GPU: nvidia-smi is there, but JAX has no CUDA"] = (
            'pip install "jax[cuda12]", with the jax of this gnewt'
        )
    facts["GPU"] = "in use" if has_gpu else "none that JAX sees"


def _look_at_engines(facts: dict[str, str], missing: dict[str, str]) -> None:
    library = getattr(_native.LIBRARY, "_name", None)
    facts["native library"] = str(library or "not there")
    found = isa()
    facts["instruction set"] = found
    if not available():
        if os.environ.get("GNEWT_NATIVE") == "0":
            missing["the native engine: GNEWT_NATIVE=0 switches it off"] = "unset GNEWT_NATIVE"
        else:
            missing["the native engine, several times faster than xla on a CPU"] = (
                "install a wheel of gnewt; or a C++ compiler, and gnewt once more from source"
            )
    best = _ISAS.get(platform.machine().lower(), ())
    if os.environ.get("GNEWT_ISA") and best and found != best[0]:
        missing[f"instructions beyond {found}: GNEWT_ISA={os.environ['GNEWT_ISA']} asks for less"] = (
            "unset GNEWT_ISA"
        )
    facts["engine"] = ", ".join(
        f"{name} on {where}: {why}"
        for where in ("cpu",)
        for name, why in (choose_engine("auto" if available() else "xla", where),)
    )


def _look_at_extras(facts: dict[str, str], missing: dict[str, str]) -> None:
    for extra, (purpose, names) in _EXTRAS.items():
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        there = [f"{n} {importlib.metadata.version(n)}" for n in names if n not in absent]
        facts[f"extra {extra}"] = ", ".join(there) or "not installed"
        if absent:
            missing[f"{', '.join(absent)} ({purpose})"] = f"pip install 'gnewt[{extra}]'"


def _try_a_step(facts: dict[str, str], missing: dict[str, str]) -> bool:
    """Compute the step of a short chain, and compare it with the dense one."""

    def cost(us: jax.Array) -> jax.Array:
        def stage(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x + 0.1 * jnp.sin(x) + u
            return x, u**2 + x**4

        x, costs = jax.lax.scan(stage, jnp.asarray(1.0, us.dtype), us)
        return costs.sum() + x**2

    with jax.enable_x64(True):
        us = jnp.linspace(-1.0, 1.0, 20)
        try:
            step = np.asarray(newton_step(cost)(us))
        except Exception as error:  # whatever it is, the report has to be finished
            first = str(error).strip().splitlines() or [""]
            facts["a step"] = f"fails: {type(error).__name__}: {first[0]}"
            missing["a working Newton step"] = "report this, with the output of `gnewt doctor`"
            return False
        H, g = np.asarray(jax.hessian(cost)(us)), np.asarray(jax.grad(cost)(us))
    residual = float(np.linalg.norm(H @ step + g) / np.linalg.norm(g))
    good = residual < _GOOD
    facts["a step"] = f"{'exact' if good else 'WRONG'}: relative residual {residual:.1e} against jax.hessian"
    if not good:
        missing["an exact Newton step"] = "report this, with the output of `gnewt doctor`"
    return good
