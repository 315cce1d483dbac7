"""Starts where H is indefinite: the certified trust region against steps with a fixed damping.

    python benchmarks/indefinite.py       → results/indefinite.{json,md}

The damped method is what one writes first: x ← x - (H + μI)⁻¹g with μ = 1e-3, the same exact linear algebra, no
inertia, no test of f. Both have to reach ‖g‖∞ ≤ 1e-8; the damped one may take five times as many steps.
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt._demo import cartpole

RESULTS = pathlib.Path(__file__).parent / "results"
DAMPING = 1e-3
TOLERANCE = 1e-8
HORIZON = 500


def acrobot(controls: Any) -> Any:
    """Swing up a two-link arm with a motor at the elbow (unit masses and lengths, friction in both joints)."""
    dt, gravity, friction = 0.005, 9.81, 0.2

    def velocity(x: Any, u: Any) -> Any:
        a, b, p, q = x
        cos = jnp.cos(b)
        m11, m12, m22 = 3.0 + 2.0 * cos, 1.0 + cos, 1.0
        bend = jnp.sin(b)
        r1 = bend * (2.0 * p * q + q**2) - gravity * (2.0 * jnp.sin(a) + jnp.sin(a + b)) - friction * p
        r2 = u - bend * p**2 - gravity * jnp.sin(a + b) - friction * q
        determinant = m11 * m22 - m12**2
        return jnp.stack([p, q, (m22 * r1 - m12 * r2) / determinant, (m11 * r2 - m12 * r1) / determinant])

    def stage(x: Any, u: Any) -> Any:
        middle = x + dt / 2 * velocity(x, u)
        return x + dt * velocity(middle, u), dt * 0.05 * u**2

    x, costs = jax.lax.scan(stage, jnp.zeros(4), controls)
    goal = jnp.array([jnp.pi, 0.0, 0.0, 0.0])
    return jnp.sum(costs) + jnp.sum(jnp.array([20.0, 20.0, 2.0, 2.0]) * (x - goal) ** 2)


LAYERS, WIDTH = 60, 3
_RANDOM = np.random.default_rng(0)
INPUT = _RANDOM.normal(size=WIDTH)
TARGET = 0.5 * np.tanh(_RANDOM.normal(size=WIDTH))
FIRST = _RANDOM.normal(size=(LAYERS, WIDTH, WIDTH)) / np.sqrt(WIDTH)


def network(weights: Any) -> Any:
    """60 residual layers of width 3, a tanh each, weight decay."""

    def layer(h: Any, w: Any) -> Any:
        return h + 0.3 * jnp.tanh(w @ h), jnp.sum(w**2)

    out, decay = jax.lax.scan(layer, jnp.asarray(INPUT), weights)
    return jnp.sum((out - TARGET) ** 2) + 1e-3 * jnp.sum(decay)


PROBLEMS = {
    f"cartpole swing-up, T = {HORIZON}": (cartpole.plain_cost, np.zeros(HORIZON)),
    f"acrobot swing-up, T = {HORIZON}": (acrobot, np.zeros(HORIZON)),
    f"network, {LAYERS} layers of {WIDTH}": (network, FIRST),
}


def trust_region(f: Any, x0: np.ndarray) -> dict[str, Any]:
    """Minimise with the defaults."""
    begin = time.perf_counter()
    res = gnewt.minimize(f, x0, tol=TOLERANCE, max_steps=3000, check=False)
    size = float(np.max(np.abs(jax.grad(f)(res.x))))
    return {
        "reached": bool(res.success and size <= TOLERANCE * max(1.0, 1e-3 * _size(f, x0))),
        "steps": res.num_steps,
        "gradients": res.num_gradients,
        "factorizations": res.num_factorizations,
        "fun": float(res.fun),
        "grad_norm": size,
        "status": res.status,
        "shifted": sum(r.shift > 0 for r in res.history),
        "positive_definite": bool(res.factor is not None and res.factor.is_positive_definite),
        "seconds": time.perf_counter() - begin,
    }


def damped(f: Any, x0: np.ndarray, most: int) -> dict[str, Any]:
    """Step with a fixed μ until the gradient is small, a number is not finite, or the steps are used up."""
    step = gnewt.newton_step(f, shift=DAMPING, full_output=True, check=False)
    x, taken, status = x0, 0, "max_steps"
    limit = TOLERANCE * max(1.0, 1e-3 * _size(f, x0))
    while taken < most:
        move, info = step(x)
        if info.grad_norm <= limit:
            status = "converged"
            break
        if info.status in ("singular", "nonfinite"):
            status = info.status
            break
        x, taken = x + move, taken + 1
    factor = gnewt.factorize(f, check=False)(x) if status == "converged" else None
    minimum = bool(factor is not None and factor.is_positive_definite)
    return {
        "reached": status == "converged" and minimum,
        "steps": taken,
        "fun": float(f(x)),
        "grad_norm": _size(f, x),
        "status": status if status != "converged" or minimum else "converged to a saddle",
    }


def _size(f: Any, x: np.ndarray) -> float:
    return float(np.max(np.abs(jax.grad(f)(x))))


def main() -> None:
    """Run all, print and write the table."""
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name, (f, x0) in PROBLEMS.items():
        ours = trust_region(f, x0)
        theirs = damped(f, x0, 5 * ours["steps"])
        rows.append({"problem": name, "N": int(np.size(x0)), "trust_region": ours, "damped": theirs})
        print(name, ours, theirs, sep="\n  ", flush=True)
    lines = [
        f"Made by `python benchmarks/indefinite.py`; ‖g‖∞ ≤ {TOLERANCE:g} asked for, μ = {DAMPING:g} for the fixed damping.",
        "",
        "| problem | N | trust region: steps (refused ones included) | factorisations | f | ‖g‖∞ | steps that needed a shift "
        "| fixed damping: outcome | steps | f |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        a, b = row["trust_region"], row["damped"]
        lines.append(
            f"| {row['problem']} | {row['N']} | {a['steps']} ({a['status']}) | {a['factorizations']} | {a['fun']:.6g} "
            f"| {a['grad_norm']:.1e} | {a['shifted']} | {b['status']} | {b['steps']} | {b['fun']:.4g} |"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "indefinite.json").write_text(json.dumps(rows, indent=1))
    (RESULTS / "indefinite.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
