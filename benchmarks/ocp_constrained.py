"""Constrained optimal control: gnewt with lifted states against IPOPT and fatrop in casadi (multiple shooting, defaults).

    python benchmarks/ocp_constrained.py [names of problems] [--rounds 5]

All begin at the same states and controls, and see the same constraints: limits of the control are bounds, path constraints
and the final state are rows. Peers evaluate by casadi's virtual machine (SX). The first call of each, which compiles or
builds, is timed apart; the others take turns, and the least time counts. Solutions are judged by JAX alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import casadi as ca
import harness
import jax
import jax.numpy as jnp
import numpy as np
from ocp_problems import Ocp, problems

import gnewt

LIPA = {"cartpole": 46, "acrobot": 22, "quadpendulum": 104}
"""Iterations of the best solver in LIPA's comparison, to be reached."""


class Run(NamedTuple):
    states: np.ndarray
    controls: np.ndarray
    parameter: float
    iterations: int
    good: bool
    status: str


class Casadi:
    sin, cos = staticmethod(ca.sin), staticmethod(ca.cos)
    minimum, maximum = staticmethod(ca.fmin), staticmethod(ca.fmax)


def objective(p: Ocp) -> Callable[..., Any]:
    """(controls, parameter) ↦ (cost, states and rows): a rollout, as one writes it."""

    def f(x: dict[str, Any]) -> Any:
        margin = x["p"] if p.reward is not None else 0.0

        def stage(state: Any, u: Any) -> Any:
            after = jnp.stack(p.step(jnp, state, u))
            return after, (after, p.cost(jnp, state, u))

        x0 = jnp.asarray(p.x0)
        last, (after, costs) = jax.lax.scan(stage, x0, x["u"])
        total = jnp.sum(costs) + p.final_cost(jnp, last) - (p.reward or 0.0) * margin
        aux = {"states": after}
        if p.path is not None:
            aux["path"] = jax.vmap(lambda s: jnp.stack(p.path(jnp, s, margin)))(after)
        if p.goal is not None:
            aux["final"] = last
        return total, aux

    return f


def ours(p: Ocp) -> Callable[[], Run]:
    f = objective(p)
    limits = {}
    if p.path is not None:
        limits["path"] = (None, 0.0)
    if p.goal is not None:
        limits["final"] = gnewt_equal(p.goal)
    start: dict[str, Any] = {"u": jnp.asarray(p.controls)}
    lower, upper = {"u": p.lower[None]}, {"u": p.upper[None]}
    if p.reward is not None:
        start["p"], lower["p"], upper["p"] = jnp.zeros(()), -np.inf, np.inf
    has_bounds = np.isfinite(p.upper).all()

    def solve() -> Run:
        res = gnewt.minimize(
            f,
            start,
            has_aux=True,
            lifted={"states": p.states[1:]},
            bounds=(
                {k: np.broadcast_to(v, np.shape(start[k])) for k, v in lower.items()},
                {k: np.broadcast_to(v, np.shape(start[k])) for k, v in upper.items()},
            )
            if has_bounds
            else None,
            constraints=limits or None,
            max_steps=500,
        )
        states = np.concatenate([p.x0[None], np.asarray(res.outputs["states"])])
        return Run(
            states,
            np.asarray(res.x["u"]),
            float(res.x.get("p", 0.0)),
            int(res.num_steps),
            bool(res.success),
            res.status,
        )

    return solve


def gnewt_equal(goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return goal, goal


def peer(p: Ocp, solver: str) -> Callable[[], Run]:
    """Multiple shooting in the order of stages, which fatrop asks for."""
    n, k, horizon = len(p.x0), p.controls.shape[1], p.horizon
    w, w0, lower, upper, g, g_low, g_up, is_equal = [], [], [], [], [], [], [], []
    total = 0

    def rows(values: Any, low: Any, up: Any) -> None:
        count = values.shape[0]
        g.append(values)
        g_low.extend(np.broadcast_to(low, count).tolist())
        g_up.extend(np.broadcast_to(up, count).tolist())
        is_equal.extend((np.broadcast_to(low, count) == np.broadcast_to(up, count)).tolist())

    shared = ca.SX.sym("p") if p.reward is not None else 0.0
    x = ca.SX.sym("x0", n)
    for t in range(horizon + 1):
        w.append(x)
        w0.extend(p.states[t].tolist())
        lower.extend([-np.inf] * n)
        upper.extend([np.inf] * n)
        u = None
        if t < horizon:
            u = ca.SX.sym(f"u{t}", k)
            w.append(u)
            w0.extend(p.controls[t].tolist())
            lower.extend(p.lower.tolist())
            upper.extend(p.upper.tolist())
            following = ca.SX.sym(f"x{t + 1}", n)
            rows(following - ca.vertcat(*p.step(Casadi, x, u)), 0.0, 0.0)
            total = total + p.cost(Casadi, x, u)
        if t == 0:
            rows(x, p.x0, p.x0)
        elif p.path is not None:
            rows(ca.vertcat(*p.path(Casadi, x, shared)), -np.inf, 0.0)
        if t == horizon:
            total = total + p.final_cost(Casadi, x)
            if p.goal is not None:
                rows(x, p.goal, p.goal)
        else:
            x = following
    if p.reward is not None:
        w.append(shared)
        w0.append(0.0)
        lower.append(-np.inf)
        upper.append(np.inf)
        total = total - p.reward * shared
    nlp = {"x": ca.vertcat(*w), "f": total, "g": ca.vertcat(*g)}
    options: dict[str, Any] = {"print_time": False}
    if solver == "ipopt":
        options |= {"ipopt.print_level": 0, "ipopt.sb": "yes"}
    else:
        options |= {"structure_detection": "auto", "equality": is_equal, "fatrop.print_level": 0}
    call = ca.nlpsol("s", solver, nlp, options)

    def solve() -> Run:
        found = np.asarray(call(x0=w0, lbx=lower, ubx=upper, lbg=g_low, ubg=g_up)["x"]).ravel()
        stats = call.stats()
        body = found[: horizon * (n + k) + n]
        stages = body[: horizon * (n + k)].reshape(horizon, n + k)
        states = np.concatenate([stages[:, :n], body[None, -n:]])
        parameter = found[-1] if p.reward is not None else 0.0
        return Run(
            states,
            stages[:, n:],
            float(parameter),
            int(stats["iter_count"]),
            bool(stats["success"]),
            stats["return_status"] or "",
        )

    return solve


def judge(p: Ocp) -> Callable[[Run], tuple[float, float]]:
    """(cost, largest violation) of states and controls, the gaps between them included."""

    @jax.jit
    def measure(states: Any, controls: Any, parameter: Any) -> tuple[Any, Any]:
        after = jax.vmap(lambda x, u: jnp.stack(p.step(jnp, x, u)))(states[:-1], controls)
        worst = [jnp.max(jnp.abs(after - states[1:])), jnp.max(jnp.abs(states[0] - p.x0))]
        worst += [jnp.max(p.lower - controls), jnp.max(controls - p.upper)]
        if p.path is not None:
            rows = jax.vmap(lambda s: jnp.stack(p.path(jnp, s, parameter)))(states[1:])
            worst.append(jnp.max(rows))
        if p.goal is not None:
            worst.append(jnp.max(jnp.abs(states[-1] - p.goal)))
        costs = jax.vmap(lambda x, u: p.cost(jnp, x, u))(states[:-1], controls)
        total = jnp.sum(costs) + p.final_cost(jnp, states[-1]) - (p.reward or 0.0) * parameter
        return total, jnp.max(jnp.stack(worst))

    return lambda run: tuple(map(float, measure(run.states, run.controls, run.parameter)))


def measure(p: Ocp, rounds: int) -> list[dict[str, Any]]:
    """One row for every solver."""
    makers = {"gnewt": lambda: ours(p), "ipopt": lambda: peer(p, "ipopt")}
    if p.reward is None:
        makers["fatrop"] = lambda: peer(p, "fatrop")
    value, calls, first, best, runs = judge(p), {}, {}, {}, {}
    for name, make in makers.items():
        began = time.perf_counter()
        calls[name] = make()
        runs[name] = calls[name]()
        first[name] = time.perf_counter() - began
        print(
            f"  {name}: {runs[name].status}, {runs[name].iterations} iterations, first {first[name]:.1f} s",
            flush=True,
        )
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()
            call()
            best[name] = min(best.get(name, np.inf), time.process_time() - began)
    rows = []
    for name, run in runs.items():
        cost, violation = value(run)
        rows.append(
            {
                "problem": p.name,
                "solver": name,
                "status": run.status,
                "iterations": run.iterations,
                "aim": LIPA.get(p.name) if name == "gnewt" else None,
                "cost": cost,
                "violation": violation,
                "ms": 1e3 * best[name],
                "ms per iteration": 1e3 * best[name] / max(run.iterations, 1),
                "first s": first[name],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for p in problems():
        if options.names and p.name not in options.names:
            continue
        print(p.name, flush=True)
        rows += measure(p, options.rounds)
        print(harness.table(rows[-3:]), flush=True)
    notes = [
        "Times are CPU seconds of a whole solution, the least of several in turn; `first s` has compiling and building.",
        "The same start for all: states on a line, controls at rest. Cost and violation (gaps between stages included) are "
        "computed by JAX from states and controls.",
        "fatrop has no shared parameters.",
    ]
    if not options.names:
        harness.report("ocp_constrained", "Constrained optimal control", {"Solutions": rows}, (), notes)


if __name__ == "__main__":
    main()
