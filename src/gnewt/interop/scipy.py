"""SciPy: `scipy.optimize.minimize(f, x0, method=gnewt.interop.scipy_newton)`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gnewt._errors import OptionError, user_line
from gnewt._typing import Array, PyTree
from gnewt.newton import Factor, Progress, minimize


def scipy_newton(
    fun: Callable[..., PyTree],
    x0: Array,
    args: tuple[object, ...] = (),
    *,
    bounds: object = None,
    constraints: Sequence[object] = (),
    callback: Callable[..., object] | None = None,
    tol: float | None = None,
    gtol: float = 1e-8,
    maxiter: int = 200,
    disp: bool = False,
    **others: object,
) -> object:
    """Minimise a JAX function for `scipy.optimize.minimize`; returns its `OptimizeResult`.

    Args:
        fun: a JAX function, whose derivatives gnewt takes itself.
        x0: the start, as given to SciPy.
        args: further arguments of `fun`.
        bounds: SciPy's `Bounds`, or pairs.
        constraints: none: `gnewt.minimize` has constraints in a form of its own.
        callback: called with x after each step; the run stops if it returns True.
        tol: bound on ‖g‖∞, instead of `gtol`.
        gtol: bound on ‖g‖∞.
        maxiter: limit on steps.
        disp: whether to show them.
        others: `jac`, `hess` and `hessp` are not needed and ignored; any other option goes to `gnewt.minimize`.
    """
    if constraints is not None and len(constraints):
        raise OptionError(
            "scipy_newton was given constraints in SciPy's form",
            user_line(),
            "call gnewt.minimize(f, x0, constraints=gnewt.between(...)) itself",
        )
    options: dict[str, Any] = {k: v for k, v in others.items() if k not in ("jac", "hess", "hessp")}
    if bounds is not None:
        lower: Any = getattr(bounds, "lb", None)
        pairs = np.asarray(bounds, object).T if lower is None else (lower, getattr(bounds, "ub", np.inf))
        low, up = (
            np.asarray([free if v is None else v for v in np.ravel(side)], float)
            for side, free in zip(pairs, (-np.inf, np.inf), strict=True)
        )
        options["bounds"] = (np.broadcast_to(low, np.shape(x0)), np.broadcast_to(up, np.shape(x0)))
    seen = None if callback is None else _seen(callback)
    found = minimize(
        fun,
        np.asarray(x0, float) if np.asarray(x0).dtype.kind in "iub" else x0,
        args,
        tol=gtol if tol is None else tol,
        max_steps=maxiter,
        verbose=disp,
        callback=seen,
        **options,
    )
    optimize = importlib.import_module("scipy.optimize")
    gradient = np.asarray(found.factor.gradient) if isinstance(found.factor, Factor) else None
    return optimize.OptimizeResult(
        x=np.asarray(found.x),
        fun=float(found.fun),
        jac=gradient,
        success=bool(found.success),
        status=int(found.code),
        message=found.message,
        nit=int(found.num_steps),
        nfev=int(found.num_evaluations),
        njev=int(found.num_gradients),
        nhev=int(found.num_factorizations),
        factor=found.factor,
    )


def _seen(callback: Callable[..., object]) -> Callable[[Progress], bool]:
    def see(progress: Progress) -> bool:
        try:
            return callback(np.asarray(progress.x)) is True
        except StopIteration:
            return True

    return see
