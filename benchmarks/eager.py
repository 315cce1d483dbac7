"""Eager calls: what `newton_step(f)(x)` and `minimize(f, x)` cost outside of jit, after the first call.

    python benchmarks/eager.py               all programs; writes results/eager.md and .json
    python benchmarks/eager.py NAME ...      some of them, printed only

An eager step traces f anew, finds its structure, takes the step, measures its residual by a product with H and refines
where the residual asks for it. Beside it, in one run: the compiled step, the product as gnewt takes it, and `make_jaxpr` of
f wrapped anew (of f itself JAX would return the jaxpr of an earlier call). Their sum is what an eager step cannot avoid.
"""

from __future__ import annotations

import harness  # isort: skip
import argparse
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt.newton.objective import Objective
from gnewt.newton.system import compiled, derivatives_at, device_maps

MOST_BEYOND = 1.0
"""Milliseconds that an eager step may take beyond the sum of its parts."""
MOST_A_STEP = 50.0
"""Microseconds that a step of eager `minimize` may take beyond one of the compiled loop."""
ENOUGH = 1e30
"""A tolerance that every start meets: a run without a step."""


def normal(*shape: int) -> jax.Array:
    """Random numbers, the same in every run."""
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape))


def cartpole() -> tuple[Any, ...]:
    """Euler steps of a cartpole, T = 500."""

    def stage(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        p, angle, v, w = x
        s, c = jnp.sin(angle), jnp.cos(angle)
        mass = 1.0 + 0.1 * s**2
        push = (u + 0.1 * s * (0.5 * w**2 + 9.81 * c)) / mass
        turn = (-u * c - 0.05 * w**2 * c * s - 1.1 * 9.81 * s) / (0.5 * mass)
        new = jnp.stack([p + 0.01 * v, angle + 0.01 * w, v + 0.01 * push, w + 0.01 * turn])
        return new, 0.01 * (0.1 * u**2 + p**2 + (1 + c))

    def f(us: jax.Array) -> jax.Array:
        x, costs = jax.lax.scan(stage, jnp.zeros(4), us)
        return costs.sum() + 10 * (x[0] ** 2 + (1 + jnp.cos(x[1])) + 0.1 * x[2] ** 2 + 0.1 * x[3] ** 2)

    return f, 0.1 * normal(500)


def pendulum() -> tuple[Any, ...]:
    """The example of the README."""

    def f(us: jax.Array) -> jax.Array:
        def stage(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            running = 0.1 * (1 + jnp.cos(x[0])) + 0.01 * u**2
            return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - jnp.sin(x[0]))]), running

        x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)
        return costs.sum() + 10 * (1 + jnp.cos(x[0])) + x[1] ** 2

    return f, jnp.zeros(50)


def rosenbrock() -> tuple[Any, ...]:
    """N = 1,000, by slices."""
    return lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2), 0.5 + 0.1 * normal(1000)


def network() -> tuple[Any, ...]:
    """40 narrow layers by a Python loop; 80 leaves."""
    weights = 0.5 * normal(40, 4, 4)
    layers = [{"w": w, "b": jnp.zeros(4)} for w in weights]

    def f(layers: list[dict[str, jax.Array]]) -> jax.Array:
        h = jnp.array([0.3, -0.5, 0.8, 0.1])
        for layer in layers:
            h = jnp.tanh(layer["w"] @ h + layer["b"])
        decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(layers))
        return jnp.sum((h - 0.3) ** 2) + 0.05 * decay

    return f, layers


def activations() -> tuple[Any, ...]:
    """A network in a scan, with activations that have derivative rules of their own."""

    def f(p: dict[str, jax.Array]) -> jax.Array:
        def layer(h: jax.Array, w: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return 0.5 * jax.nn.silu(w[0] @ h + w[1]) + 0.1 * jax.nn.softplus(h), None

        h, _ = jax.lax.scan(layer, jnp.array([0.3, -0.5, 0.8, 0.1]), (p["w"], p["b"]))
        decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
        return jax.nn.logsumexp(p["out"] * h) + 0.05 * decay

    return f, {"w": 0.5 * normal(20, 4, 4), "b": jnp.zeros((20, 4)), "out": jnp.ones(4)}


def tree() -> tuple[Any, ...]:
    """A binary reduction over 128 inputs by Python loops."""

    def f(x: jax.Array) -> jax.Array:
        level = list(x)
        while len(level) > 1:
            level = [jnp.sin(a) * b + 0.3 * a for a, b in zip(level[::2], level[1::2], strict=True)]
        return level[0] ** 2 + 0.5 * jnp.sum(x**2)

    return f, 0.3 * normal(128)


def dicts() -> tuple[Any, ...]:
    """States, controls and inputs in dicts."""

    def f(given: dict[str, Any]) -> jax.Array:
        def stage(x: dict[str, jax.Array], u: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
            force = u["a"] - jnp.sin(x["p"]) + u["b"][0] * u["b"][1]
            new = {"p": x["p"] + 0.1 * x["v"], "v": x["v"] + 0.1 * force}
            return new, new["p"] ** 2 + 0.1 * u["a"] ** 2 + 0.2 * u["b"] @ u["b"]

        x, costs = jax.lax.scan(stage, {"p": jnp.ones(()), "v": jnp.zeros(())}, given["u"])
        return costs.sum() + x["p"] ** 2 * given["gain"] + given["gain"] ** 2

    return f, {"u": {"a": jnp.zeros(100), "b": 0.1 + jnp.zeros((100, 2))}, "gain": jnp.asarray(0.3)}


def shared() -> tuple[Any, ...]:
    """A chain of 200 stages with five parameters that all of them read, and captured data."""
    seen = normal(200)

    def f(given: dict[str, jax.Array]) -> jax.Array:
        c = given["shared"]

        def stage(x: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            u, y = now
            turn = x[1] + 0.1 * (u[0] - c[0] * jnp.sin(x[0]) - c[1] * x[1])
            last = c[3] * x[3] + 0.1 * u[2] * c[4] + 0.1 * u[3]
            new = jnp.stack([x[0] + 0.1 * x[1], turn, x[2] + 0.1 * (u[1] - c[2] * x[2]), last])
            return new, (new[0] - y) ** 2 + 0.1 * u @ u + 0.01 * new @ new

        _, costs = jax.lax.scan(stage, jnp.zeros(4), (given["u"], seen))
        return costs.sum() + jnp.sum((c - 1) ** 2)

    return f, {"u": 0.01 + jnp.zeros((200, 4)), "shared": 0.9 * jnp.ones(5)}


def opaque() -> tuple[Any, ...]:
    """A linear system is solved at every stage."""

    def stage(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        matrix = jnp.eye(3) * (2 + jnp.sin(x[0])) + 0.1 * jnp.outer(x, x)
        return x + 0.1 * jnp.linalg.solve(matrix, u), x @ x + 0.1 * u @ u

    def f(us: jax.Array) -> jax.Array:
        x, costs = jax.lax.scan(stage, jnp.ones(3), us)
        return costs.sum() + x @ x

    return f, 0.05 + jnp.zeros((60, 3))


PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    p.__name__: p for p in (cartpole, pendulum, rosenbrock, network, activations, tree, dicts, shared, opaque)
}


def step_row(name: str) -> dict[str, Any]:
    """Time one eager step and its parts."""
    f, x = PROGRAMS[name]()
    eager = gnewt.newton_step(f)
    step = jax.jit(eager)
    for _ in range(4):
        eager(x)
    point = Objective(f).at((x,))
    product, maps = compiled(point.structure, derivatives_at), device_maps(point.structure)
    found = harness.interleave(
        {
            "eager": lambda: eager(x),
            "jit": lambda: step(x),
            "product": lambda: product(maps, point, point.x),
            "make_jaxpr": lambda: jax.make_jaxpr(lambda y: f(y))(x).consts,
        }
    )
    ms = {key: 1e3 * t for key, t in found.items()}
    beyond = 2 * ms["eager"] - sum(ms.values())
    leaves = len(jax.tree.leaves(x))
    equations = len(jax.make_jaxpr(f)(x).jaxpr.eqns)
    return {
        "program": name,
        "N": point.structure.num_inputs,
        "leaves": leaves,
        "equations": equations,
        **{f"{key}, ms": t for key, t in ms.items()},
        "beyond, ms": beyond,
    }


def minimize_row(name: str) -> dict[str, Any]:
    """Time a whole run and one without a step, eager and in jit: the difference is what the steps take."""
    f, x = PROGRAMS[name]()
    run = jax.jit(lambda y: _numbers(gnewt.minimize(f, y)))
    none = jax.jit(lambda y: _numbers(gnewt.minimize(f, y, tol=ENOUGH)))
    first = gnewt.minimize(f, x)
    last = gnewt.minimize(f, x)
    found = harness.interleave(
        {
            "eager": lambda: gnewt.minimize(f, x).x,
            "eager, none": lambda: gnewt.minimize(f, x, tol=ENOUGH).x,
            "jit": lambda: run(x),
            "jit, none": lambda: none(x),
            "make_jaxpr": lambda: jax.make_jaxpr(lambda y: f(y))(x).consts,
        }
    )
    us = {key: 1e6 * t for key, t in found.items()}
    steps, inside = last.num_steps, int(run(x)[1])
    eager = (us["eager"] - us["eager, none"]) / max(1, steps)
    jit = (us["jit"] - us["jit, none"]) / max(1, inside)
    return {
        "program": name,
        "steps, first run": first.num_steps,
        "steps, later": steps,
        "steps, jit": inside,
        "eager, µs a step": eager,
        "jit, µs a step": jit,
        "beyond, µs a step": eager - jit,
        "once a run, µs": us["eager, none"] - us["make_jaxpr"],
    }


def _numbers(result: gnewt.newton.Result) -> tuple[Any, Any]:
    return result.x, result.num_steps


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    steps, runs = [], []
    for name in names or PROGRAMS:
        steps.append(step_row(name))
        runs.append(minimize_row(name))
        print(steps[-1], runs[-1], sep="\n", file=sys.stderr, flush=True)
    if names:
        return
    figures = [
        harness.Figure(
            "eager step beyond its parts, worst", max(r["beyond, ms"] for r in steps), "<=", MOST_BEYOND, "ms"
        ),
        harness.Figure(
            "eager minimize beyond jit, worst",
            max(r["beyond, µs a step"] for r in runs),
            "<=",
            MOST_A_STEP,
            "µs a step",
        ),
    ]
    notes = [
        "`beyond` is the eager step less the compiled step, one product and one trace: a refinement, which takes a solution "
        "and another product, is in it.",
        "`once a run` is an eager run without a step less the trace of f: the structure is found, first derivatives are "
        "taken and the last H is factorised.\nIt is in no other column.",
        "A run of few steps on a busy machine gives a difference of two noisy numbers.",
    ]
    title = "Eager calls after the first"
    harness.report("eager", title, {"newton_step": steps, "minimize": runs}, figures, notes)


if __name__ == "__main__":
    main()
