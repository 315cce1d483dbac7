"""The command line: `gnewt demo`, `gnewt --version`."""

from __future__ import annotations

import importlib.util
import pathlib
import time
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from gnewt._demo import (
    Exactness,
    Timing,
    build_graph,
    compare_steps,
    first_guess,
    rollout,
    split_inputs,
    time_steps,
)
from gnewt._version import __version__
from gnewt.newton import minimize
from gnewt.plan import make_plan

PICTURE = pathlib.Path("gnewt_demo.png")

app: typer.Typer = typer.Typer(
    help="Exact Newton steps at the cost of the objective's computational graph.",
    no_args_is_help=True,
    add_completion=False,
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"gnewt {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact Newton steps at the cost of the objective's computational graph."""


@app.command()
def demo(
    output: Annotated[pathlib.Path, typer.Option(help="Where to write the picture.")] = PICTURE,
    horizon: Annotated[int, typer.Option(min=2, help="Number of time steps.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the point where steps are compared.")] = 0,
) -> None:
    """Swing up a cartpole; compare every number with the dense Hessian; write a picture."""
    if not output.parent.is_dir():
        raise typer.BadParameter(f"the folder {output.parent} does not exist", param_hint="--output")
    console = Console()
    with jax.enable_x64(True):
        _run_demo(console, output, horizon, seed)


def _run_demo(console: Console, output: pathlib.Path, horizon: int, seed: int) -> None:
    graph = build_graph(horizon)
    structure = graph.structure()
    plan = make_plan(structure)
    console.print(
        f"[bold]Cartpole swing-up[/], Runge–Kutta 4, {horizon} time steps, {structure.dtype}", highlight=False
    )
    console.print(f"N = {structure.num_inputs} inputs, {structure.num_pairs} state scalars", highlight=False)
    console.print(f"order {plan.order_name}: {plan.certificate}", highlight=False)

    rng = np.random.default_rng(seed)
    times = {}
    for length in (horizon, 4 * horizon, 8 * horizon):
        with console.status(f"one step, and the dense one, at {length} time steps: compile, time ..."):
            times[length] = time_steps(rng.standard_normal(length))
    with console.status("comparing with jax.hessian ..."):
        exactness = compare_steps(graph, rng.standard_normal(horizon))
    console.print(_exactness_table(exactness))
    console.print(_timing_table(times))

    with console.status("minimising ..."):
        begin = time.perf_counter()
        result = minimize(graph, split_inputs(first_guess(horizon)), tol=1e-8, max_steps=300)
        seconds = time.perf_counter() - begin
    us = np.concatenate([np.ravel(u) for u in jax.tree.leaves(result.x)])
    states = np.asarray(rollout(us))
    console.print(
        f"[bold]minimize[/]: {result.status} after {result.num_steps} steps in {seconds:.1f} s, {result.message}\n"
        f"f = {float(result.fun):.6g}, |g| = {float(result.grad_norm):.1e}, "
        f"pole at {np.degrees(states[-1, 1]):.1f}° (180° is upright)",
        highlight=False,
    )
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no picture: matplotlib is missing (pip install 'gnewt[viz]')")
    else:
        from gnewt._demo.picture import draw_demo  # optional dependency: matplotlib

        draw_demo(output, states, us, exactness.hessian, plan)
        console.print(f"picture: {output}", highlight=False)
    if not result.success:
        raise typer.Exit(1)


def _exactness_table(e: Exactness) -> Table:
    table = Table(title="one step at random forces", title_justify="left")
    for column in ("", "gnewt", "dense Hessian"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("|step - dense step| / |dense step|", f"{e.difference:.1e}", "")
    table.add_row(
        "backward error |Hδ + g| / (|H||δ| + |g|)", f"{e.backward_error:.1e}", f"{e.dense_backward_error:.1e}"
    )
    table.add_row("inertia (+, -, 0)", str(e.inertia), str(e.dense_inertia))
    table.add_row("log|det H|", f"{e.logdet:.10g}", f"{e.dense_logdet:.10g}")
    return table


def _timing_table(times: dict[int, tuple[Timing, Timing]]) -> Table:
    table = Table(
        title="one step in jit: fastest of 7 calls; first: trace, plan, compile",
        title_justify="left",
    )
    for column in ("N", "gnewt", "dense", "dense / gnewt", "gnewt, first", "dense, first"):
        table.add_column(column, justify="right")
    for length, (ours, dense) in times.items():
        table.add_row(
            str(length),
            f"{1e3 * ours.later:.2f} ms",
            f"{1e3 * dense.later:.2f} ms",
            f"{dense.later / ours.later:.2g}",
            f"{ours.first:.1f} s",
            f"{dense.first:.1f} s",
        )
    return table


if __name__ == "__main__":
    app()
