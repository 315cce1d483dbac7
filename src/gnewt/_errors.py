"""Errors in three parts: what happened, where in the user's code, what to do about it."""

from __future__ import annotations

import os
import sys

_LIBRARY_ROOTS = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.sep + os.path.join("site-packages", "jax") + os.sep,
    os.sep + os.path.join("site-packages", "jaxtyping") + os.sep,
    os.sep + os.path.join("site-packages", "beartype") + os.sep,
    os.sep + "contextlib.py",
    os.sep + "functools.py",
    "<string>",
    "<@beartype",
    "<frozen",
)


_WHERE, _REMEDY = "\n  where: ", "\n  what to do: "


class GnewtError(ValueError):
    """Base of every exception that gnewt raises on purpose. Its message has the three parts that it is made of.

    Args:
        what: what happened; or a message that `explain_error` made.
        where: the line in the user's code; the one that called gnewt unless given.
        remedy: what to do.
    """

    def __init__(self, what: str, where: str = "", remedy: str = "") -> None:
        what, given, last = split_error(what)
        super().__init__(explain_error(what, where or given or user_line(), remedy or last))


class GraphError(GnewtError):
    """A graph (or a value given to it) that breaks an invariant."""


class TraceError(GnewtError):
    """A JAX function whose structure cannot be read."""


class ConstantError(TraceError):
    """A function whose value does not depend on its variables."""


class PlanError(GnewtError):
    """An elimination order or a tree decomposition that is not valid, or a hopeless width."""


class WidthError(PlanError):
    """A tree too wide for memory."""


class OptionError(GnewtError):
    """An option that means nothing: a negative tolerance, a shift that is no number."""


class ConstraintError(GnewtError):
    """A bound or a constraint that means nothing: crossed limits, wrong shapes, an unknown name."""


class QPError(GnewtError):
    """A quadratic program that has no unique solution; names the rows or vertices."""


class StepError(GnewtError):
    """A Newton system that has no solution to return (singular, or not finite)."""


class DerivativeError(GnewtError):
    """A derivative that cannot be had, asked for by `jax.grad` or its like."""


class InternalError(GnewtError):
    """A structure whose derivatives are not those of the objective: a bug in gnewt, caught before use."""


class PerformanceNotice(UserWarning):
    """gnewt works, but slower than it could, and says why."""


class EffectNotice(UserWarning):
    """A function prints or calls back; its graph does not."""


class StartNotice(UserWarning):
    """A start that was outside of its bounds, and was moved inside."""


class AccuracyWarning(UserWarning):
    """A Newton step whose achieved residual is far from rounding."""


class UncheckedWarning(UserWarning):
    """A structure that could not be compared with its function: no finite derivatives at any point that was tried."""


class CurvatureWarning(UserWarning):
    """A result that only a strict minimum has, asked of a point that is none; NaN is returned."""


def explain_error(what: str, where: str = "", remedy: str = "") -> str:
    """Join the three parts of an error into one message."""
    return what + (where and _WHERE + where) + (remedy and _REMEDY + remedy)


def split_error(message: str) -> tuple[str, str, str]:
    """Take a message apart again: (what, where, remedy)."""
    what, _, remedy = message.partition(_REMEDY)
    what, _, where = what.partition(_WHERE)
    return what, where, remedy


def user_line() -> str:
    """Return `file:line` of the innermost stack frame that is neither gnewt's nor JAX's."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not any(root in filename for root in _LIBRARY_ROOTS):
            return f"{os.path.relpath(filename) if os.path.isabs(filename) else filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "<unknown>"
