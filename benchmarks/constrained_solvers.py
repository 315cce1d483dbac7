"""The solvers of `constrained.py`, each with its defaults: gnewt, IPOPT, SciPy's SLSQP, trust-constr and L-BFGS-B.

A run returns (x, y, z, counts): y of the rows and z of the bounds where the solver has them, else None.
Seconds are processor time of the solution; what compiles does so before.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from constrained_problems import Program


class TimeOut(Exception):
    """Thrown through a solver that has no callback for it."""


def run(solver: str, p: Program, limit: float) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Solve from the problem's own start."""
    if solver == "gnewt":
        return _gnewt(p, limit)
    for function in (p.values, p.slopes):  # compile
        function(p.x0)
    return _ipopt(p, limit) if solver == "ipopt" else _scipy(solver, p, limit)


def gnewt_constraints(p: Program) -> list[Any]:
    """The rows as gnewt takes them."""
    import gnewt

    parts = []
    if p.equalities is not None:
        parts.append(gnewt.equal(p.equalities))
    if p.inequalities is not None:
        parts.append(gnewt.between(p.inequalities, 0.0, None))
    return parts


def _gnewt(p: Program, limit: float) -> tuple[Any, Any, Any, dict[str, Any]]:
    import gnewt

    ends: list[float] = []

    def watch(_: Any) -> bool:
        if not ends:  # the first step ends what compiles
            ends.append(time.process_time())
        return time.process_time() > ends[0] + limit

    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gnewt.StartNotice)
        res = gnewt.minimize(
            p.objective,
            p.x0,
            bounds=(p.lower, p.upper),
            constraints=gnewt_constraints(p),
            callback=watch,
        )
    now = time.process_time()
    y = np.concatenate([np.zeros(0), *(np.ravel(v) for v in _leaves(res.multipliers))])
    counts = {
        "iterations": int(res.num_steps),
        "factorizations": int(res.num_factorizations),
        "setup": (ends or [now])[0] - began,
        "seconds": now - (ends or [now])[0],
        "claims": bool(res.success),
        "status": str(res.status),
    }
    return np.asarray(res.x), y, np.ravel(np.asarray(res.bound_multipliers)), counts


def _leaves(tree: Any) -> list[Any]:
    import jax

    return [np.asarray(v) for v in jax.tree_util.tree_leaves(tree)]


def _ipopt(p: Program, limit: float) -> tuple[Any, Any, Any, dict[str, Any]]:
    import cyipopt

    n, m = len(p.x0), p.m
    p.hessian(p.x0, 1.0, np.zeros(m))
    lower_half = np.tril_indices(n)
    end = time.process_time() + limit

    class Callbacks:
        count = 0

        def objective(self, x: Any) -> float:
            return float(p.values(x)[0])

        def gradient(self, x: Any) -> Any:
            return np.asarray(p.slopes(x)[0])

        def constraints(self, x: Any) -> Any:
            return np.asarray(p.values(x)[1])

        def jacobian(self, x: Any) -> Any:
            return np.asarray(p.slopes(x)[1]).ravel()

        def hessianstructure(self) -> Any:
            return lower_half

        def hessian(self, x: Any, y: Any, weight: float) -> Any:
            return np.asarray(p.hessian(x, weight, np.asarray(y)))[lower_half]

        def intermediate(self, mode: int, count: int, *_: Any) -> bool:
            self.count = count
            return time.process_time() < end

    callbacks = Callbacks()
    limits = np.zeros(m), np.concatenate([np.zeros(p.num_equalities), np.full(p.num_inequalities, np.inf)])
    problem = cyipopt.Problem(n, m, callbacks, p.lower, p.upper, *limits)
    problem.add_option("print_level", 0)
    problem.add_option("sb", "yes")
    began = time.process_time()
    x, info = problem.solve(p.x0.copy())
    message = info["status_msg"]
    counts = {
        "iterations": callbacks.count,
        "seconds": time.process_time() - began,
        "claims": info["status"] in (0, 1),
        "status": message.decode() if isinstance(message, bytes) else str(message),
    }
    return x, info["mult_g"], info["mult_x_U"] - info["mult_x_L"], counts


_METHODS = {"slsqp": "SLSQP", "trust-constr": "trust-constr", "l-bfgs-b": "L-BFGS-B"}


def _scipy(solver: str, p: Program, limit: float) -> tuple[Any, Any, Any, dict[str, Any]]:
    import scipy.optimize as so

    exact = solver == "trust-constr"
    if exact:
        p.hessian(p.x0, 1.0, np.zeros(p.m))
    end = time.process_time() + limit
    best = [p.x0]

    def value(x: Any) -> float:
        if time.process_time() > end:
            raise TimeOut
        best[0] = np.array(x)
        return float(p.values(x)[0])

    constraints = []
    e = p.num_equalities
    for count, rows, upper, kind in (
        (e, slice(0, e), 0.0, "eq"),
        (p.num_inequalities, slice(e, None), np.inf, "ineq"),
    ):
        if not count:
            continue
        if exact:
            constraints.append(_nonlinear(p, rows, upper))
        else:
            constraints.append(
                {
                    "type": kind,
                    "fun": lambda x, r=rows: np.asarray(p.values(x)[1])[r],
                    "jac": lambda x, r=rows: np.asarray(p.slopes(x)[1])[r],
                }
            )
    more: dict[str, Any] = {"constraints": constraints} if constraints else {}
    if exact:
        more["hess"] = lambda x: np.asarray(p.hessian(x, 1.0, np.zeros(p.m)))
    began = time.process_time()
    x0 = np.clip(p.x0, p.lower, p.upper)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            res = so.minimize(
                value,
                x0,
                jac=lambda x: np.asarray(p.slopes(x)[0]),
                method=_METHODS[solver],
                bounds=so.Bounds(p.lower, p.upper),
                **more,
            )
        x, counts = res.x, {"iterations": int(res.nit), "claims": bool(res.success), "status": res.message}
    except TimeOut:
        x, counts = best[0], {"iterations": None, "claims": False, "status": "time limit"}
    return x, None, None, {**counts, "seconds": time.process_time() - began}


def _nonlinear(p: Program, rows: slice, upper: float) -> Any:
    import scipy.optimize as so

    def hess(x: Any, v: Any) -> Any:
        y = np.zeros(p.m)
        y[rows] = v
        return np.asarray(p.hessian(x, 0.0, y))

    return so.NonlinearConstraint(
        lambda x: np.asarray(p.values(x)[1])[rows],
        0.0,
        upper,
        jac=lambda x: np.asarray(p.slopes(x)[1])[rows],
        hess=hess,
    )
