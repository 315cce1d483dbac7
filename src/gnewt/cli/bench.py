"""`gnewt bench`: a short measurement on this machine, wins and losses alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnewt.cli.run import Task, arguments, explain_task
from gnewt.newton import newton_step


@dataclasses.dataclass(frozen=True)
class Row:
    """One objective, measured: milliseconds of compiled calls, the least of some."""

    name: str
    structure: str
    inputs: int
    width: int
    gradient_ms: float
    step_ms: float
    dense_ms: float | None
    """None where the dense Hessian is too large to be measured."""
    residual: float
    """‖Hδ + g‖ / ‖g‖, by an independent product."""
    inertia: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def own_tasks() -> list[Task]:
    """Four objectives, from a narrow one to one that is dense: no tree helps there."""
    return [
        Task("pendulum, 500 steps", _pendulum, jnp.zeros(500)),
        Task("chain with 3 shared parameters", _shared, {"u": jnp.zeros(300), "p": jnp.ones(3)}),
        Task("sums over pairs in a tree", _tree, jnp.linspace(-1.0, 1.0, 256)),
        Task("two dense layers (a loss for gnewt)", _layers, _weights()),
    ]


def measure_all(tasks: Sequence[Task] | None, console: Console) -> list[Row]:
    """Measure tasks, the own ones unless given."""
    rows = []
    for task in own_tasks() if tasks is None else tasks:
        with console.status(f"{task.name}: compiling, measuring ..."):
            rows.append(_measure(task))
    return rows


def table(rows: Sequence[Row]) -> Table:
    """Rows for a terminal."""
    out = Table(
        title=f"one Newton step, compiled, {jax.devices()[0].device_kind}: least of some calls",
        title_justify="left",
        caption="step / grad: a step in units of value_and_grad; dense / step: above 1 gnewt is faster",
        caption_justify="left",
    )
    out.add_column("objective")
    for head in (
        "structure",
        "N",
        "width",
        "value_and_grad",
        "step",
        "dense",
        "step / grad",
        "dense / step",
        "residual",
    ):
        out.add_column(head, justify="left" if head == "structure" else "right")
    for row in rows:
        dense = row.dense_ms
        out.add_row(
            Text(row.name),
            row.structure,
            f"{row.inputs:,}",
            str(row.width),
            f"{row.gradient_ms:.3g} ms",
            f"{row.step_ms:.3g} ms",
            "–" if dense is None else f"{dense:.3g} ms",
            f"{row.step_ms / row.gradient_ms:.2g}",
            "–" if dense is None else f"{dense / row.step_ms:.2g}",
            f"{row.residual:.0e}",
        )
    return out


def _measure(task: Task) -> Row:
    report = explain_task(task, "auto", "auto", True)
    compute: Any = newton_step(task.target, has_aux=task.has_aux, full_output=True)
    info = compute(*arguments(task))[1]  # auxiliary data, where there is any, comes behind it
    found = report.measured
    return Row(
        name=task.name,
        structure=report.structure,
        inputs=report.num_inputs,
        width=report.width,
        gradient_ms=found["value and gradient"],
        step_ms=found["tree"],
        dense_ms=found.get("dense Hessian"),
        residual=float(info.residual),
        inertia=tuple(int(n) for n in info.inertia),
    )


def _pendulum(us: jax.Array) -> jax.Array:
    def stage(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.stack([x[0] + 0.05 * x[1], x[1] + 0.05 * (u - jnp.sin(x[0]))])
        return x, 0.05 * (1 + jnp.cos(x[0])) + 0.01 * u**2

    x, costs = jax.lax.scan(stage, jnp.array([0.5, 0.0], us.dtype), us)
    return costs.sum() + 10 * (1 + jnp.cos(x[0])) + x[1] ** 2


def _shared(z: dict[str, jax.Array]) -> jax.Array:
    p = z["p"]

    def stage(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x + 0.1 * (p[0] * jnp.tanh(x) + p[1] * u - p[2])
        return x, (x - 1) ** 2 + 0.1 * u**2

    _, costs = jax.lax.scan(stage, jnp.zeros((), p.dtype), z["u"])
    return costs.sum() + jnp.sum((p - 1) ** 2)


def _tree(x: jax.Array) -> jax.Array:
    level, total = x, jnp.sum(0.5 * x**2)
    while len(level) > 1:
        level = jnp.tanh(level[0::2] + 0.5 * level[1::2] ** 2)
        total = total + jnp.sum((level - 0.3) ** 2)
    return total


def _weights() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        "first": jnp.asarray(0.3 * rng.standard_normal((8, 8))),
        "second": jnp.asarray(0.3 * rng.standard_normal((8, 4))),
    }


def _layers(w: dict[str, jax.Array]) -> jax.Array:
    rng = np.random.default_rng(1)
    data = jnp.asarray(rng.standard_normal((32, 8)), w["first"].dtype)
    out = jnp.tanh(data @ w["first"]) @ w["second"]
    return jnp.mean(jnp.sum((out - 1) ** 2, 1)) + 0.01 * sum(jnp.sum(v**2) for v in w.values())
