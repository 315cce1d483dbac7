"""What explain says of the first problem that an example solves, and times of gnewt and of a peer on it, as JSON.

The example is run until it calls gnewt for the first time; what it gives is what is measured. Unconstrained problems are also
solved by SciPy's L-BFGS-B, those with constraints by SciPy's SLSQP, all with derivatives by JAX; steps are compared with a
dense Hessian and a dense solve. Run: python website/gallery_times.py examples/NAME.py explain (or times)
"""

from __future__ import annotations

import json
import pathlib
import runpy
import sys
import time
from dataclasses import dataclass, field

import one_thread  # noqa: F401  (before JAX loads)

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from harness import environment
from jax.flatten_util import ravel_pytree

import gnewt
from gnewt import control

DENSE_MOST, SECONDS, TURNS = 1500, 6.0, 5


class _Found(Exception):
    """The example has called gnewt."""


@dataclass
class Task:
    """A problem as it was given to gnewt: f(x), the start, and the call itself."""

    f: object
    x: object
    again: object
    constraints: list = field(default_factory=list)
    bounds: object = None
    has_aux: bool = False


def first_task(path: str) -> Task:
    """The first problem that the example gives to gnewt."""
    found: list[Task] = []
    minimize, solve = gnewt.minimize, control.solve

    def spy_minimize(target, x0, args=(), **options):
        named = options.get("kwargs") or {}
        args, x0 = jax.tree.map(_known, (args, x0))
        limits = options.get("constraints", ())
        limits = (
            list(limits.values())
            if isinstance(limits, dict)
            else list(limits)
            if isinstance(limits, list | tuple)
            else [limits]
        )
        f = target if isinstance(target, gnewt.Graph) else lambda x: target(x, *args, **named)
        task = Task(f, x0, lambda: minimize(target, x0, args, **options), limits, options.get("bounds"))
        task.has_aux = bool(options.get("has_aux"))
        found.append(task)
        raise _Found

    def spy_solve(problem, us, method="nonlinear-newton", **options):
        task = Task(problem, problem.decision(us), lambda: solve(problem, us, method, **options))
        found.append(task)
        raise _Found

    gnewt.minimize, control.solve = spy_minimize, spy_solve
    sys.argv = [path]
    try:
        runpy.run_path(path, run_name="__main__")
    except _Found:
        return found[0]
    finally:
        gnewt.minimize, control.solve = minimize, solve
    raise SystemExit(f"{path} neither minimises nor solves")


def _known(value):
    """One lane of a batch, where the example is inside of one."""
    return np.ones(value.shape) if isinstance(value, jax.core.Tracer) else value


def least(call, turns=TURNS, limit=2.0) -> float:
    """Milliseconds of the quickest of several calls."""
    best, begin = np.inf, time.perf_counter()
    for turn in range(turns):
        start = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - start)
        if turn and time.perf_counter() - begin > limit:
            break
    return 1000 * best


def step_row(value, x, size):
    """One Newton step against a dense one."""
    step = jax.jit(gnewt.newton_step(value))
    flat, back = ravel_pytree(x)

    @jax.jit
    def dense(flat):
        f = lambda v: value(back(v))  # noqa: E731
        return jnp.linalg.solve(jax.hessian(f)(flat), -jax.grad(f)(flat))

    jax.block_until_ready((step(x), dense(flat)))
    ours = least(lambda: step(x), 50)
    return {
        "what": f"one Newton step, N = {size:,}",
        "gnewt_ms": ours,
        "peer": "`jax.hessian` + solve",
        "peer_ms": least(lambda: dense(flat)),
    }


def run_row(task, value):
    """The whole run against SciPy's, with derivatives by JAX."""
    flat, back = ravel_pytree(task.x)
    task.again()
    res = task.again()
    ours = least(task.again, 3)
    both = jax.jit(jax.value_and_grad(lambda v: value(back(v))))
    rows = [_scipy_rows(c, back) for c in task.constraints if callable(getattr(c, "fn", None))]
    if len(rows) < len(task.constraints):
        return None
    method = "SLSQP" if task.constraints else "L-BFGS-B"
    jax.block_until_ready(both(flat))
    begin = time.perf_counter()

    def watch(_):
        if time.perf_counter() - begin > SECONDS:
            raise StopIteration

    options = {"maxiter": 5000} | (
        {"ftol": 1e-10} if task.constraints else {"gtol": 1e-8, "ftol": 1e-16, "maxfun": 10**6}
    )
    bounds = (
        None
        if task.bounds is None
        else scipy.optimize.Bounds(
            *(_side(side, task.x, sign) for side, sign in zip(task.bounds, (-1, 1), strict=True))
        )
    )
    peer = scipy.optimize.minimize(
        lambda v: tuple(np.asarray(part, float) for part in both(v)),
        np.asarray(flat, float),
        jac=True,
        method=method,
        bounds=bounds,
        constraints=[row for group in rows for row in group],
        callback=watch,
        options=options,
    )
    seconds = time.perf_counter() - begin
    text = f"the whole run, to {float(res.fun):.6g}"
    told = f"SciPy {method}, to {float(peer.fun):.6g}"
    ended = bool(peer.success) or abs(float(peer.fun) - float(res.fun)) <= 1e-5 * (1 + abs(float(res.fun)))
    return {"what": text, "gnewt_ms": ours, "peer": told, "peer_ms": 1000 * seconds, "peer_ended": ended}


def _side(side, x, sign):
    """One side of the bounds as a flat array: a number, an array, or these for the entries of a dict."""
    if isinstance(x, dict):
        sides = {key: side.get(key) if isinstance(side, dict) else side for key in x}
        return np.concatenate([_side(sides[key], x[key], sign) for key in sorted(x)])
    whole = sign * np.inf if side is None else np.asarray(side, float)
    return np.broadcast_to(whole, np.shape(x)).ravel()


def _scipy_rows(constraint, back):
    """A constraint of gnewt in SciPy's form: c(x) = 0 and c(x) >= 0."""

    def make(kind, shifted):
        flat = jax.jit(lambda v: ravel_pytree(shifted(back(v)))[0])
        jac = jax.jit(jax.jacfwd(flat))
        return {"type": kind, "fun": lambda v: np.asarray(flat(v)), "jac": lambda v: np.asarray(jac(v))}

    def minus(limit, sign):
        return lambda x: jax.tree.map(lambda c: sign * (c - jnp.asarray(limit)), constraint.fn(x))

    if constraint.is_equality:
        return [make("eq", minus(constraint.lower, 1.0))]
    sides = ((constraint.lower, 1.0), (constraint.upper, -1.0))
    return [make("ineq", minus(limit, sign)) for limit, sign in sides if limit is not None]


def explained(path: str) -> dict:
    """What explain says."""
    task = first_task(path)
    return {"explain": str(gnewt.explain(task.f, task.x, has_aux=task.has_aux))}


def measured(path: str) -> dict:
    """Times beside a peer's, and of which machine."""
    task = first_task(path)
    rows = []
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(task.x))
    if not isinstance(task.f, gnewt.Graph):
        value = (lambda x: task.f(x)[0]) if task.has_aux else task.f
        if size <= DENSE_MOST:
            rows.append(step_row(value, task.x, size))
        row = run_row(task, value)
        rows += [] if row is None else [row]
    machine = f"one core of {environment()['cpu']}, {gnewt.native_isa()}, float64, jax {jax.__version__}"
    return {"times": rows, "machine": machine}


if __name__ == "__main__":
    path, part = sys.argv[1:]
    sys.path.insert(0, str(pathlib.Path(path).parent))
    print(json.dumps({"explain": explained, "times": measured}[part](path), ensure_ascii=False))
