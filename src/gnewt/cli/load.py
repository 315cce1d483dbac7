"""What is named on the command line: `file.py:name`, `package.module:name`, or a file of numbers."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import pathlib
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import numpy as np

from gnewt._typing import PyTree
from gnewt.cli.guard import InputError, one_sentence
from gnewt.control import Problem
from gnewt.graph import Graph, Structure

_ARRAYS = (".npy", ".npz")
_MOST_NAMES = 8


@dataclasses.dataclass(frozen=True)
class Loader:
    """Files that were loaded: each once, so that a function and its start come from the same one."""

    modules: dict[str, ModuleType] = dataclasses.field(default_factory=dict)

    def object(self, spec: str, beside: str = "") -> Any:
        """Return what a specification names.

        Args:
            beside: a specification whose module is meant where `spec` is a bare name.
        """
        if pathlib.Path(spec).suffix in _ARRAYS:
            return _load_arrays(spec)
        place, colon, name = spec.rpartition(":")
        if not colon and beside:
            place, name = beside.rpartition(":")[0], spec
        if not place or not name:
            raise InputError(f"{spec!r} names nothing in a module: write file.py:name")
        value: Any = self.module(place)
        for part in name.split("."):
            if not hasattr(value, part):
                raise InputError(_no_such_name(place, value, part))
            value = getattr(value, part)
        return value

    def module(self, place: str) -> ModuleType:
        """Load a file, or import a module."""
        if place not in self.modules:
            is_file = place.endswith(".py") or "/" in place or pathlib.Path(place).exists()
            self.modules[place] = _load_file(place) if is_file else _import(place)
        return self.modules[place]


def load_target(loader: Loader, spec: str) -> Any:
    """Return an objective: a function, a graph, or a control problem."""
    target = loader.object(spec)
    if isinstance(target, Graph | Structure | Problem):
        return target
    if callable(target) and not isinstance(target, type):
        return target
    kind = "a class" if isinstance(target, type) else f"of type {type(target).__name__}"
    raise InputError(f"{spec} is {kind}, not a function, a gnewt.Graph or a control.Problem")


def load_start(loader: Loader, spec: str, beside: str, shapes: bool = False) -> PyTree:
    """Return where a run starts: numbers, or what a function of no arguments returns; finite ones.

    Args:
        shapes: whether shapes without numbers will do.
    """
    value = loader.object(spec, beside)
    if callable(value):
        try:
            value = value()
        except Exception as error:
            raise InputError(f"{spec}() fails: {_raised(error)}") from error
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        name = spec + jax.tree_util.keystr(path)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            if shapes:
                continue
            raise InputError(f"{name} is a shape without numbers: a run needs numbers to start from")
        try:
            array = np.asarray(leaf, np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{name} is {_short(leaf)}, not a number or an array of numbers") from None
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            at = f"[{', '.join(map(str, bad[0]))}]" if array.ndim else ""
            raise InputError(f"{name}{at} is {array[tuple(bad[0])]}: give finite numbers to start from")
    return value


def check_call(target: Callable[..., PyTree], spec: str, args: tuple[PyTree, ...]) -> None:
    """Raise InputError where a function cannot be called with its arguments: in one sentence, with its line."""
    try:
        jax.eval_shape(target, *args)
    except Exception as error:
        raise InputError(f"{spec} cannot be evaluated: {_raised(error)}") from error


def _load_file(place: str) -> ModuleType:
    path = pathlib.Path(place)
    if not path.is_file():
        there = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"the file {place} {there}")
    name = path.stem if path.stem not in sys.modules else f"_gnewt_loaded_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # for what stands beside the file
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except PermissionError as error:
        raise InputError(f"{place} cannot be read: permission denied") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{place} cannot be loaded: {_raised(error)}") from error
    return module


def _import(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise InputError(f"there is no module {name!r}: write file.py:name for a file") from error
        raise InputError(f"{name} cannot be imported: {_raised(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} cannot be imported: {_raised(error)}") from error


def _load_arrays(spec: str) -> PyTree:
    if not pathlib.Path(spec).is_file():
        raise InputError(f"the file {spec} does not exist")
    try:
        found = np.load(spec)
    except (OSError, ValueError) as error:
        raise InputError(f"{spec} cannot be read as arrays: {one_sentence(str(error))}") from error
    return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}


def _no_such_name(place: str, inside: Any, name: str) -> str:
    names = [n for n in vars(inside) if not n.startswith("_")] if hasattr(inside, "__dict__") else []
    own = [n for n in names if getattr(getattr(inside, n), "__module__", place) != "builtins"]
    own = [n for n in own if not isinstance(getattr(inside, n), ModuleType)]
    near = difflib.get_close_matches(name, own, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(own[:_MOST_NAMES]) or 'no names'}"
    return f"{place} has no {name!r}: {hint}"


def _raised(error: BaseException) -> str:
    """What was raised, and the last line outside of libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")]
    own = [f for f in own if not f.filename.startswith(str(pathlib.Path(__file__).parents[1]))]
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{type(error).__name__}: {error.msg}, in line {error.lineno}"
    standard = pathlib.Path(traceback.__file__).parent
    own = [f for f in own if not f.filename.startswith(str(standard))]
    if not own:
        return text
    line = f"{pathlib.Path(own[-1].filename).name}:{own[-1].lineno}"
    return text if line in text else f"{text} ({line})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
