"""Options that several commands share."""

from __future__ import annotations

import pathlib
from typing import Annotated, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:NAME", help="The objective: a JAX function, a gnewt.Graph, or a control.Problem."
    ),
]
At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="FILE.py:NAME",
        help="Where: a value, or a function of no arguments that returns it; NAME alone is in the same file; or a .npy file.",
    ),
]
Args = Annotated[
    Optional[str],  # noqa: UP045 (typer reads annotations at run time)
    typer.Option("--args", metavar="FILE.py:NAME", help="A tuple of further arguments, held fixed."),
]
HasAux = Annotated[bool, typer.Option("--has-aux", help="The function returns (value, auxiliary data).")]
Order = Annotated[
    str, typer.Option(help="Elimination order: auto, causal, best_of, or a name of gnewt.plan.ORDERS.")
]
Engine = Annotated[str, typer.Option(help="auto, native, xla or reference.")]
Float32 = Annotated[
    bool, typer.Option("--float32", help="Compute in single precision; double is the default.")
]
Picture = Annotated[
    Optional[pathlib.Path],  # noqa: UP045
    typer.Option(
        "--plot", metavar="PICTURE", help="Write a picture here (.png, .svg, .pdf). Needs matplotlib."
    ),
]
