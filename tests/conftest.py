"""Test set-up: float64, one thread for each worker, equal programs compiled once, jaxtyping annotations executed."""

import importlib.util
import os
import pathlib
import re
import shutil
import tempfile

from helpers.quick_compilation import CACHE, ENVIRONMENT

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# Functions that tests define anew compile to programs that are often equal: a worker keeps what it compiled in a folder
# of its own until it ends. (JAX does not write such files at once, so that two workers cannot share a folder.)
# GNEWT_TEST_CACHE=0 compiles every program where it is used.
_PROGRAMS = None
if os.environ.get("GNEWT_TEST_CACHE", "1") != "0":
    _PROGRAMS = tempfile.mkdtemp(prefix="gnewt-tests-")
    jax.config.update("jax_compilation_cache_dir", _PROGRAMS)
    for _name, _value in CACHE.items():
        jax.config.update(_name, _value)

_SHAPE = re.compile(r"\b(Float|Int|Bool)\[")
_INNER_LOOPS = ("gnewt.jaxprs.", "gnewt.trace.", "gnewt.kkt.derivatives.")
"""Folders whose small functions are called millions of times: only their modules with shapes are checked at run time."""


def _checked_modules():
    for folder in importlib.util.find_spec("gnewt").submodule_search_locations:
        # Without packages: they define nothing, and their names would stand for all modules in them.
        for path in sorted(pathlib.Path(folder).rglob("[!_]*.py")):
            name = ".".join(["gnewt", *path.relative_to(folder).with_suffix("").parts])
            if not name.startswith(_INNER_LOOPS) or _SHAPE.search(path.read_text(encoding="utf-8")):
                yield name


# Stays installed: what a test imports of these modules from here on is checked when it is called.
# Without beartype (a machine where nothing can be installed) the tests run all the same, unchecked.
if importlib.util.find_spec("beartype") is not None:
    install_import_hook(list(_checked_modules()), "beartype.beartype")


def pytest_unconfigure():
    if _PROGRAMS is not None:
        shutil.rmtree(_PROGRAMS, ignore_errors=True)
