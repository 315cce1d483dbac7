"""Marginal variances against eliminations, and Laplace approximations of state-space models.

    python benchmarks/factor.py [variances evidence smoother maps]      → results/factor.{json,md}

Four tables; named ones are measured anew, the others kept. *Variances*: one selected inversion against one factor-and-solve
with the same plan, in turns. *Evidence*: a stochastic volatility model, non-centred, so that H is dense: mode, evidence and all
marginal variances, compiled, at T = 2,000 against the dense Hessian and at T = 100,000. *Smoother*: mode and variances of a
linear-Gaussian smoother in its centred form, against GTSAM's elimination and marginals. *Solution maps*: the gradient of a
solution of a control problem against one Newton step. One core, float64.
"""

from __future__ import annotations

import harness

# isort: split
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt

LONG, SHORT, SMOOTHED = 100_000, 2_000, 10_000


def chain(states: int, inputs: int, horizon: int) -> tuple[Callable[[Any], Any], Any]:
    """A stable chain with a small nonlinearity."""
    rng = np.random.default_rng(0)
    a = 0.8 * np.linalg.qr(rng.standard_normal((states, states)))[0]
    a, b = jnp.asarray(a), jnp.asarray(rng.standard_normal((states, inputs)))

    def f(us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            x = a @ x + b @ u + 0.01 * jnp.sin(x)
            return x, jnp.sum(x**2) + jnp.sum(u**2) + 0.1 * jnp.sum(jnp.cos(u))

        return jax.lax.scan(stage, jnp.ones(states), us)[1].sum()

    return f, jnp.zeros((horizon, inputs))


def reduction() -> tuple[Callable[[Any], Any], Any]:
    """A binary tree over 1,024 inputs."""

    def f(u: Any) -> Any:
        x, cost = u, jnp.sum(u**2)
        while len(x) > 1:
            x = 0.7 * jnp.tanh(x[::2]) + 0.7 * x[1::2]
            cost = cost + 0.1 * jnp.sum(x**2)
        return cost

    return f, 0.1 * jnp.cos(jnp.arange(1024.0))


def with_parameters(horizon: int) -> tuple[Callable[[Any], Any], Any]:
    """A chain whose stages share three parameters."""

    def f(a: Any) -> Any:
        us, th = a

        def stage(x: Any, u: Any) -> Any:
            turn = u[0] - th[0] * jnp.sin(x[0]) - th[1] * x[1] * th[2]
            x = x + 0.1 * jnp.stack([x[1], turn])
            return x, jnp.sum(x**2) + 0.1 * jnp.sum(u**2)

        costs = jax.lax.scan(stage, jnp.array([0.3, 0.0]), us)[1]
        return costs.sum() + 10 * jnp.sum((th - 1) ** 2)

    return f, (jnp.zeros((horizon, 1)), jnp.ones(3))


def grid(n: int) -> tuple[Callable[[Any], Any], Any]:
    """Springs between the neighbours of an n × n grid."""

    def f(u: Any) -> Any:
        across, down = u[:, 1:] - u[:, :-1], u[1:] - u[:-1]
        return (
            jnp.sum(0.5 * u**2) + jnp.sum(across**2 + across**4) + jnp.sum(down**2 * (1 + 0.1 * u[1:] ** 2))
        )

    return f, 0.1 * jnp.cos(jnp.arange(n * n * 1.0)).reshape(n, n)


PROBLEMS: dict[str, Callable[[], tuple[Callable[[Any], Any], Any]]] = {
    "chain (4, 1), T = 1,000": lambda: chain(4, 1, 1000),
    "chain (4, 1), T = 10,000": lambda: chain(4, 1, 10_000),
    "chain (4, 1), T = 100,000": lambda: chain(4, 1, 100_000),
    "chain (12, 6), T = 500": lambda: chain(12, 6, 500),
    "chain (12, 6), T = 5,000": lambda: chain(12, 6, 5000),
    "binary tree, N = 1,024": reduction,
    "chain + 3 parameters, T = 800": lambda: with_parameters(800),
    "grid 40 × 40": lambda: grid(40),
    "grid 100 × 100": lambda: grid(100),
}


def variances() -> list[dict[str, Any]]:
    """One selected inversion against one factor-and-solve."""
    rows = []
    for name, make in PROBLEMS.items():
        f, x = make()
        factor = gnewt.factorize(f, check=False)(x)
        system, rhs = factor.system, -jnp.asarray(factor.flat_gradient)
        assert factor.is_positive_definite
        times = harness.interleave(
            {
                "factor + solve": lambda s=system, m=factor.models, b=rhs: s.factor_solve(m, 0.0, b),
                "variances": lambda s=system, m=factor.models, n=factor.numbers: s.variances(m, n),
            }
        )
        row = {"problem": name, **{k: 1e6 * v for k, v in times.items()}}
        row["ratio"] = times["variances"] / times["factor + solve"]
        rows.append(row)
        print(row, flush=True)
    return rows


def volatility(observed: Any) -> Callable[[Any, Any], Any]:
    """Stochastic volatility, non-centred: the states are sums of the inputs, and H is dense."""

    def f(z: Any, theta: Any) -> Any:
        def stage(h: Any, ey: Any) -> Any:
            e, y = ey
            h = jnp.tanh(theta[1]) * h + jnp.exp(theta[0]) * e
            return h, 0.5 * h + 0.5 * y**2 * jnp.exp(-h) + 0.5 * e**2

        return jax.lax.scan(stage, jnp.zeros(()), (z, observed))[1].sum()

    return f


def dense_laplace(f: Callable[[Any, Any], Any], steps: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Newton's method with the dense Hessian, as many steps, then evidence and variances."""

    def run(z: Any, theta: Any) -> tuple[Any, Any]:
        def step(_: Any, z: Any) -> Any:
            factor = jax.scipy.linalg.cho_factor(jax.hessian(f)(z, theta))
            return z - jax.scipy.linalg.cho_solve(factor, jax.grad(f)(z, theta))

        z = jax.lax.fori_loop(0, steps, step, z)
        H = jax.hessian(f)(z, theta)
        evidence = -f(z, theta) + len(z) / 2 * jnp.log(2 * jnp.pi) - jnp.linalg.slogdet(H)[1] / 2
        return evidence, jnp.diagonal(jnp.linalg.inv(H))

    return run


def evidence() -> list[dict[str, Any]]:
    """Mode, evidence and variances of the volatility model; the gradient of the evidence."""
    theta, rng, rows = jnp.array([-1.5, 1.5]), np.random.default_rng(1), []
    for horizon in (SHORT, LONG):
        f = volatility(jnp.asarray(0.8 * rng.standard_normal(horizon)))

        def run(z: Any, theta: Any, f: Any = f) -> tuple[Any, Any, Any]:
            found = gnewt.laplace(f, z, (theta,), check=False)
            return found.log_evidence, found.variances(), found.result.num_steps

        start = jnp.zeros(horizon)
        ours = jax.jit(run)
        slope = jax.jit(jax.grad(lambda th, z, run=run: run(z, th)[0]))
        found = ours(start, theta)
        steps = int(found[2])
        calls = {
            "gnewt": lambda s=start, c=ours: c(s, theta),
            "gradient": lambda s=start, c=slope: c(theta, s),
        }
        row: dict[str, Any] = {"T": horizon, "Newton steps": steps}
        if horizon == SHORT:
            dense = jax.jit(dense_laplace(f, steps))
            expected = dense(start, theta)
            row["difference"] = max(
                float(abs(found[0] - expected[0]) / abs(expected[0])),
                float(jnp.max(jnp.abs(found[1] - expected[1]) / expected[1])),
            )
            times = harness.interleave(calls | {"dense": lambda s=start, c=dense: c(s, theta)})
            row["dense / gnewt"] = times["dense"] / times["gnewt"]
        else:
            times = harness.interleave(calls)
        rows.append(row | {f"{k}, s": v for k, v in times.items()})
        print(rows[-1], flush=True)
    return rows


DT, NOISE, SEEN = 0.1, 0.5, 0.3


def motion() -> tuple[np.ndarray, np.ndarray]:
    """A point in the plane with a nearly constant velocity: its transition, and whitened process noise."""
    a = np.eye(4) + DT * np.eye(4, k=2)
    q = np.array([[DT**3 / 3, DT**2 / 2], [DT**2 / 2, DT]])
    return a, np.linalg.inv(np.linalg.cholesky(NOISE**2 * np.kron(q, np.eye(2))))


def smoother() -> list[dict[str, Any]]:
    """Mode and variances of a linear-Gaussian smoother."""
    a, whiten = motion()
    seen = np.cumsum(np.random.default_rng(2).standard_normal((SMOOTHED, 2)), axis=0) * DT

    def f(xs: Any, seen: Any) -> Any:
        moved = (xs[1:] - xs[:-1] @ jnp.asarray(a).T) @ jnp.asarray(whiten).T
        return 0.5 * (jnp.sum(moved**2) + jnp.sum(((xs[:, :2] - seen) / SEEN) ** 2) + jnp.sum(xs[0] ** 2))

    @jax.jit
    def ours(xs: Any, seen: Any) -> tuple[Any, Any]:
        factor = gnewt.factorize(f, check=False)(xs, seen)
        return xs + factor.step(), factor.marginal_variances()

    start = jnp.zeros((SMOOTHED, 4))
    calls: dict[str, Callable[[], Any]] = {"gnewt": lambda: ours(start, seen)}
    peer = gtsam_smoother(a, whiten, seen)
    row: dict[str, Any] = {"T": SMOOTHED, "unknowns": 4 * SMOOTHED}
    if peer is None:
        return [row | {f"{k}, ms": 1e3 * v for k, v in harness.interleave(calls).items()}]
    found, expected = ours(start, seen), peer()
    for name, mine, theirs in zip(("mode", "variances"), found, expected, strict=True):
        row[f"difference of the {name}"] = float(np.max(np.abs(mine - theirs)) / np.max(np.abs(theirs)))
    times = harness.interleave(calls | {"GTSAM": peer})
    row |= {f"{k}, ms": 1e3 * v for k, v in times.items()} | {
        "GTSAM / gnewt": times["GTSAM"] / times["gnewt"]
    }
    print(row, flush=True)
    return [row]


def gtsam_smoother(a: np.ndarray, whiten: np.ndarray, seen: np.ndarray) -> Callable[[], Any] | None:
    """GTSAM's elimination, solution and marginals of the same problem; its graph is made before. None without GTSAM."""
    try:
        gtsam = importlib.import_module("gtsam")
    except ImportError:
        print("GTSAM is not there: the smoother has no peer")
        return None
    graph, unit = gtsam.GaussianFactorGraph(), gtsam.noiseModel.Unit.Create
    graph.add(gtsam.JacobianFactor(0, np.eye(4), np.zeros(4), unit(4)))
    for t in range(len(seen)):
        graph.add(gtsam.JacobianFactor(t, np.eye(2, 4) / SEEN, seen[t] / SEEN, unit(2)))
        if t:
            graph.add(gtsam.JacobianFactor(t - 1, -whiten @ a, t, whiten, np.zeros(4), unit(4)))

    def run() -> tuple[np.ndarray, np.ndarray]:
        tree = graph.eliminateMultifrontal()
        mode = tree.optimize()
        found = [np.diagonal(tree.marginalCovariance(t)) for t in range(len(seen))]
        return np.array([mode.at(t) for t in range(len(seen))]), np.array(found)

    return run


def solution_maps() -> list[dict[str, Any]]:
    """The gradient of a solution against one Newton step, with the run that comes before it apart."""

    def cost(us: Any, q: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            x = x + 0.05 * jnp.stack([x[1], u / q[0] - jnp.sin(x[0])])
            return x, 0.1 * u**2 + jnp.sum(x**2)

        return jax.lax.scan(stage, jnp.stack([q[1], 0.0]), us)[1].sum()

    q, start, rows = jnp.array([1.3, 0.8]), jnp.zeros(500), []

    def last(q: Any) -> Any:
        return gnewt.minimize(cost, start, (q,), check=False).x @ jnp.cos(jnp.arange(500.0))

    step = jax.jit(gnewt.newton_step(cost, check=False))
    run, slope = jax.jit(last), jax.jit(jax.value_and_grad(last))
    times = harness.interleave(
        {"step": lambda: step(start, q), "run": lambda: run(q), "run + gradient": lambda: slope(q)}
    )
    ratio = (times["run + gradient"] - times["run"]) / times["step"]
    h = 1e-5
    found = np.asarray(slope(q)[1])
    expected = np.array([float(run(q + h * e) - run(q - h * e)) / (2 * h) for e in np.eye(2)])
    error = float(np.max(np.abs(found - expected) / np.abs(expected)))
    rows.append({f"{k}, µs": 1e6 * v for k, v in times.items()})
    rows[0] |= {"gradient / step": ratio, "error": error}
    print(rows[0], flush=True)
    return rows


PARTS: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
    "variances": ("Variances (µs)", variances),
    "evidence": ("Evidence", evidence),
    "smoother": ("Smoother", smoother),
    "maps": ("Solution maps", solution_maps),
}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    stored = harness.RESULTS / "factor.json"
    tables = json.loads(stored.read_text())["tables"] if stored.exists() else {}
    for part in wanted:
        name, measure = PARTS[part]
        tables[name] = measure()
    tables = {name: tables[name] for name, _ in PARTS.values() if name in tables}
    harness.report("factor", "The Factor", tables, figures(tables), ["Least times of calls in turns."])


def figures(tables: dict[str, list[dict[str, Any]]]) -> list[harness.Figure]:
    """What was promised, of the tables that there are."""
    found = []
    for row in tables.get("Variances (µs)", []):
        name = f"variances against factor + solve, {row['problem']}"
        found.append(harness.Figure(name, row["ratio"], "<=", 3))
    for row in tables.get("Evidence", []):
        if row["T"] == LONG:
            found.append(harness.Figure(f"Laplace, T = {LONG:,}", row["gnewt, s"], "<=", 10, "s"))
        else:
            found.append(harness.Figure(f"dense Laplace, T = {SHORT:,}", row["dense / gnewt"], ">=", 100))
            found.append(harness.Figure("its difference from dense", row["difference"], "<=", 1e-8, ""))
    for row in tables.get("Smoother", []):
        found.append(harness.Figure("GTSAM's time against ours", row.get("GTSAM / gnewt"), ">=", 1))
        for what in ("mode", "variances"):
            name = f"difference of the {what} from GTSAM's"
            found.append(harness.Figure(name, row.get(f"difference of the {what}"), "<=", 1e-8, ""))
    for row in tables.get("Solution maps", []):
        found.append(
            harness.Figure("gradient of a solution, in Newton steps", row["gradient / step"], "<=", 3, "")
        )
        found.append(harness.Figure("its error against differences", row["error"], "<=", 1e-5, ""))
    return found


if __name__ == "__main__":
    main()
