"""Errors of the command line: one sentence and an exit code; the traceback only where it was asked for."""

from __future__ import annotations

import contextlib
import os
import pathlib
import traceback
import warnings
from collections.abc import Iterator

import typer
from rich.console import Console

from gnewt._errors import GnewtError, InternalError, StepError, UncheckedWarning, split_error
from gnewt._viz import has_matplotlib

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes."""
PICTURES = (".png", ".svg", ".pdf", ".jpg")
"""Endings of pictures."""


class InputError(Exception):
    """Input that makes no sense: a missing file, a name that is not there, a value that is not a number."""


@contextlib.contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Turn exceptions into one sentence on standard error and an exit code, warnings into notes.

    That nothing could be checked is said at the end, and only of what succeeds: an error has the same cause.
    """
    said: set[str] = set()
    late: list[str] = []

    def note(message: Warning | str, *_: object) -> None:
        text = one_sentence(str(message))
        if text in said:
            return
        said.add(text)
        if isinstance(message, UncheckedWarning):
            late.append(text)
        else:
            _say("note", text)

    with warnings.catch_warnings():
        warnings.showwarning = note  # type: ignore[assignment]
        try:
            yield
            for text in late:
                _say("note", text)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            _say("error", "interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if debug:
                traceback.print_exc()
            text, code = describe(error)
            _say("error", text)
            raise typer.Exit(code) from None


def describe(error: Exception) -> tuple[str, int]:
    """One sentence about an exception, and the exit code."""
    if isinstance(error, InputError):
        return str(error), BAD_INPUT
    if isinstance(error, InternalError | StepError):
        return one_sentence(str(error)), FAILED
    if isinstance(error, GnewtError):
        return one_sentence(str(error)), BAD_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}", BAD_INPUT
    if isinstance(error, ImportError):
        return one_sentence(str(error)), FAILED
    what = f"{type(error).__name__}: {one_sentence(str(error))}"
    return f"{what} (run again with --debug for the traceback)", FAILED


def one_sentence(message: str) -> str:
    """A message of three parts, or any other, on one line."""
    what, where, remedy = split_error(message)
    what = " ".join(what.split())
    if where and where not in what and where != "<unknown>":
        what = f"{what}, at {where}"
    return f"{what}: {' '.join(remedy.split())}" if remedy else what


def check_writable(path: pathlib.Path | None) -> None:
    """Raise InputError where a file cannot be written; before anything is computed."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path} cannot be written: {reason}") from None
    if not existed:
        os.unlink(path)


def check_picture(path: pathlib.Path | None) -> None:
    """Raise InputError where a picture cannot be drawn or written."""
    check_writable(path)
    if path is None:
        return
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"{path}: a picture is written as one of {', '.join(PICTURES)}")
    if not has_matplotlib():
        raise InputError("pictures need matplotlib, which is not installed: pip install 'gnewt[viz]'")


def _say(kind: str, text: str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    style = "bold red" if kind == "error" else "yellow"
    console.print(f"[{style}]gnewt {kind}:[/]", end=" ")
    console.print(text, markup=False)
