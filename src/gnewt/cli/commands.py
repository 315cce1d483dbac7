"""The commands: each reads its input, calls the library, shows the outcome, and ends with an exit code."""

from __future__ import annotations

import pathlib
from typing import Annotated, Optional

import jax
import typer
from rich.console import Console

from gnewt._version import __version__
from gnewt.cli import bench as measuring
from gnewt.cli import doctor as examining
from gnewt.cli.guard import FAILED, InputError, check_picture, check_writable, guarded
from gnewt.cli.load import Loader
from gnewt.cli.options import (
    Args,
    At,
    Debug,
    Engine,
    Float32,
    HasAux,
    Json,
    Order,
    Picture,
    Target,
)
from gnewt.cli.run import Task, explain_task, read_task, save_arrays, save_picture, solve_task
from gnewt.cli.show import print_json, result_data

app: typer.Typer = typer.Typer(
    help="Exact Newton steps at the cost of the objective's computational graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
def explain(
    target: Target,
    at: At,
    args: Args = None,
    has_aux: HasAux = False,
    order: Order = "auto",
    engine: Engine = "auto",
    measure: Annotated[
        bool, typer.Option("--measure", help="Compile, and time a step by each method.")
    ] = False,
    html: Annotated[
        Optional[pathlib.Path],  # noqa: UP045
        typer.Option(help="Write the interactive page here."),
    ] = None,
    plot: Picture = None,
    float32: Float32 = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what gnewt finds in an objective, what a Newton step costs, and what would make it cheaper."""
    with guarded(debug), jax.enable_x64(not float32):
        check_writable(html)
        check_picture(plot)
        task = read_task(Loader(), target, at, args, has_aux, shapes=not measure)
        report = explain_task(task, order, engine, measure)
        if html is not None:
            report.to_html(html)
        save_picture(report, plot)
        if json:
            print_json(report.to_dict())
        else:
            typer.echo(str(report))
            _tell_written(html, plot)


@app.command()
def solve(
    target: Target,
    at: At,
    args: Args = None,
    has_aux: HasAux = False,
    bounds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE.py:NAME", help="(lower, upper) on x, as for gnewt.minimize."),
    ] = None,
    constraints: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE.py:NAME", help="Constraints, as for gnewt.minimize."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="For a control.Problem: newton, nonlinear-newton, ddp or ilqr.")
    ] = "nonlinear-newton",
    tol: Annotated[float, typer.Option(help="Bound on the largest entry of the gradient.")] = 1e-8,
    max_steps: Annotated[int, typer.Option(help="Steps at most.")] = 200,
    time_limit: Annotated[float, typer.Option(help="Seconds after which no step is begun.")] = float("inf"),
    order: Order = "auto",
    engine: Engine = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the progress of the run.")] = False,
    out: Annotated[
        Optional[pathlib.Path],  # noqa: UP045
        typer.Option(metavar="FILE.npz", help="Write the solution here."),
    ] = None,
    plot: Picture = None,
    float32: Float32 = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Minimise an objective, or solve a control problem; exit code 1 where the run does not converge."""
    with guarded(debug), jax.enable_x64(not float32):
        check_writable(out)
        check_picture(plot)
        loader = Loader()
        task = read_task(loader, target, at, args, has_aux)
        limits = {
            name: loader.object(spec, target)
            for name, spec in (("bounds", bounds), ("constraints", constraints))
            if spec is not None
        }
        options = {"tol": tol, "max_steps": max_steps, "time_limit": time_limit, "verbose": verbose}
        found = solve_task(task, method, limits, order, engine, options)
        if found.status != "nonfinite":
            save_arrays(found, out)
            save_picture(found, plot)
        if json:
            print_json(result_data(found))
        if found.status == "nonfinite":
            raise InputError(f"{target} at {at}: {found.message}")
        if not json:
            typer.echo(str(found))
            _tell_written(out, plot)
        if not found.success:
            raise typer.Exit(FAILED)


@app.command()
def doctor(
    out: Annotated[
        Optional[pathlib.Path],  # noqa: UP045
        typer.Option(help="Write what was found here, too."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Look at this installation: versions, engines, instruction set, GPU, threads; what is missing, and how to get it."""
    with guarded(debug):
        check_writable(out)
        found = examining.examine()
        if json:
            print_json(found.to_dict())
        else:
            Console(soft_wrap=True).print(found.table(), highlight=False)
        if out is not None:
            out.write_text(examining.as_text(found), encoding="utf-8")
            typer.echo(f"written: {out}", err=json)
        if not found.works:
            raise typer.Exit(FAILED)


@app.command()
def bench(
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[FILE.py:NAME]", help="An objective of your own; four small ones unless given."
        ),
    ] = None,
    at: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--at", metavar="FILE.py:NAME", help="Where, as for explain."),
    ] = None,
    args: Args = None,
    has_aux: HasAux = False,
    float32: Float32 = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure one Newton step on this machine, against value_and_grad and against the dense Hessian."""
    with guarded(debug), jax.enable_x64(not float32):
        if (target is None) != (at is None):
            raise InputError(
                "an objective and a point belong together: give both FILE.py:NAME and --at, or neither"
            )
        tasks: list[Task] | None = None
        if target is not None and at is not None:
            tasks = [read_task(Loader(), target, at, args, has_aux)]
        rows = measuring.measure_all(tasks, Console(stderr=True))
        if json:
            print_json([row.to_dict() for row in rows])
        else:
            Console(soft_wrap=True).print(measuring.table(rows), highlight=False)


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help="Which one; `--list` names them.")] = "cartpole",
    output: Annotated[
        Optional[pathlib.Path],  # noqa: UP045
        typer.Option(help="Where to write the picture; gnewt_demo.png, or gnewt_NAME.png."),
    ] = None,
    size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--size", "--horizon", min=2, help="Number of time steps, or what else makes the problem large."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random numbers.")] = 0,
    list_all: Annotated[bool, typer.Option("--list", help="Name the demos.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an example with live progress and write a picture of it: a gallery in the terminal."""
    from gnewt.cli.demo import list_demos, run_demo  # compiles functions when it is imported

    with guarded(debug):
        if list_all:
            list_demos(json)
            return
        if not run_demo(name, output, size, seed, json):
            raise typer.Exit(FAILED)


def _tell_written(*paths: pathlib.Path | None) -> None:
    for path in paths:
        if path is not None:
            typer.echo(f"written: {path}")
