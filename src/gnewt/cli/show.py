"""What commands print: JSON of outcomes."""

from __future__ import annotations

import json
import math
from typing import Any

import jax
import numpy as np
import typer

from gnewt._typing import PyTree
from gnewt.control import Solution
from gnewt.newton import Result


def print_json(data: Any) -> None:
    """Print data as JSON; numbers that are not finite become null."""
    typer.echo(json.dumps(_plain(data), indent=2, allow_nan=False, ensure_ascii=False))


def named_arrays(tree: PyTree, name: str = "x") -> dict[str, np.ndarray]:
    """Arrays of a pytree by name: `x`, or `x['a'][0]` where there are many."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


def solution_arrays(found: Result[Any] | Solution) -> dict[str, np.ndarray]:
    """The solution: x, or controls and states; and multipliers."""
    if isinstance(found, Solution):
        arrays = named_arrays(found.us, "us") | named_arrays(found.xs, "xs")
        for name in ("params", "final_time"):
            if name in found.problem.stages.optimize:
                arrays |= named_arrays(getattr(found, name), name)
        return arrays | named_arrays(found.multipliers, "multipliers")
    arrays = named_arrays(found.x)
    if found.bound_multipliers is None:
        return arrays
    limits = named_arrays(found.multipliers, "multipliers")
    return arrays | limits | named_arrays(found.bound_multipliers, "bound_multipliers")


def result_data(found: Result[Any] | Solution) -> dict[str, Any]:
    """An outcome as plain data."""
    result = found.result if isinstance(found, Solution) else found
    inertia = None if result.factor is None else getattr(result.factor, "inertia", None)
    return {
        "status": result.status,
        "success": bool(result.success),
        "message": result.message,
        "fun": float(result.fun),
        "grad_norm": float(result.grad_norm),
        "violation": float(result.violation),
        "kkt_error": float(result.kkt_error),
        "steps": int(result.num_steps),
        "factorizations": int(result.num_factorizations),
        "evaluations": int(result.num_evaluations),
        "gradients": int(result.num_gradients),
        "inertia": None if inertia is None else [int(n) for n in inertia],
        "solution": solution_arrays(found),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
