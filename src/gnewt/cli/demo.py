"""`gnewt demo`: examples with progress and a picture."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
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
from gnewt._demo.gallery import GALLERY
from gnewt.cli.guard import InputError, check_writable
from gnewt.cli.show import print_json, result_data
from gnewt.explain import explain
from gnewt.explain.amounts import amount
from gnewt.newton import minimize
from gnewt.plan import make_plan

Draw: TypeAlias = Callable[[pathlib.Path], None]

CARTPOLE = "cartpole"
_TITLES = {CARTPOLE: "swing up a cartpole; every number compared with the dense Hessian"}
_STEPS = 100
"""Time steps of the cartpole unless `size` says otherwise."""


def list_demos(json: bool) -> None:
    """Name the demos."""
    titles = _TITLES | {name: own.title for name, own in GALLERY.items()}
    if json:
        print_json(titles)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    for name, title in titles.items():
        table.add_row(f"gnewt demo {name}", title)
    Console(soft_wrap=True).print(table, highlight=False)


def run_demo(name: str, output: pathlib.Path | None, size: int | None, seed: int, json: bool) -> bool:
    """Run one, write its picture, and say whether it converged."""
    if name != CARTPOLE and name not in GALLERY:
        raise InputError(f"there is no demo {name!r}: it is one of {', '.join([CARTPOLE, *GALLERY])}")
    path = output or pathlib.Path("gnewt_demo.png" if name == CARTPOLE else f"gnewt_{name}.png")
    check_writable(path)
    console = Console(stderr=json)
    with jax.enable_x64(True):
        if name == CARTPOLE:
            data, draw = _run_cartpole(console, size or _STEPS, seed)
        else:
            data, draw = _run_gallery(console, name, size or GALLERY[name].size, seed)
        drawn = importlib.util.find_spec("matplotlib") is not None
        if drawn:
            draw(path)
            console.print(f"picture: {path}", highlight=False)
        else:
            console.print("no picture: matplotlib is missing (pip install 'gnewt[viz]')", markup=False)
    if json:
        print_json(data | {"demo": name, "picture": str(path) if drawn else None})
    return bool(data["success"])


def _run_gallery(console: Console, name: str, size: int, seed: int) -> tuple[dict[str, Any], Draw]:
    """Explain a demo, run it, and say how to draw it."""
    own = GALLERY[name]
    console.print(f"[bold]{own.title}[/], {size} {own.unit}", highlight=False)
    setting = own.prepare(size, seed)
    with console.status("tracing and planning ..."):
        report = explain(setting.target, setting.x0, has_aux=setting.has_aux)
    console.print(
        f"{report.shape}: N = {report.num_inputs:,}, width {report.width}; one step takes {amount(report.flops)}flops, "
        f"by the dense Hessian {amount(report.dense_flops)}flops",
        highlight=False,
    )
    begin = time.perf_counter()
    outcome = setting.solve(sys.stderr.isatty())
    seconds = time.perf_counter() - begin
    result = getattr(outcome, "result", outcome)
    console.print(f"{result}", markup=False, highlight=False)
    console.print(f"{seconds:.1f} s, compilation included", highlight=False)
    data = result_data(result) | {"seconds": seconds, "width": report.width, "inputs": report.num_inputs}

    def draw(path: pathlib.Path) -> None:
        own.draw(setting, outcome).savefig(path, dpi=150)

    return data, draw


def _run_cartpole(console: Console, horizon: int, seed: int) -> tuple[dict[str, Any], Draw]:
    """Swing up a cartpole; compare every number with the dense Hessian."""
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
    data = result_data(result) | {"seconds": seconds, "difference": exactness.difference, "us": us}
    data["milliseconds"] = {n: [1e3 * ours.later, 1e3 * dense.later] for n, (ours, dense) in times.items()}

    def draw(path: pathlib.Path) -> None:
        from gnewt._demo.picture import draw_demo  # optional dependency: matplotlib

        draw_demo(path, states, us, exactness.hessian, plan)

    return data, draw


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
