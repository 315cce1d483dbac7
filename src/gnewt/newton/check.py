"""Self-check of a new structure: its value, gradient and one H·v against JAX's derivatives of f itself.

Once per structure, at the first point it is used at. Cheap: the compiled product serves for residuals later.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from gnewt._errors import InternalError
from gnewt.graph import Structure
from gnewt.jaxprs import flatten_jaxpr, fold_program
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.flatten import VALUE_CALLS
from gnewt.kkt import LocalModels, lifted_product
from gnewt.newton.objective import Point
from gnewt.newton.system import System

_TOLERANCE, _COARSE = 1e-6, 2e-2
"""Relative differences that are no bug, in double and in coarser precision: sums are taken in other orders."""
_DOUBLE = 1e-12
"""An eps below this is that of double precision."""
_CANCELS = 64.0
"""How many roundings √eps of its largest term a gradient may be made of, where its terms cancel."""


def self_check(system: System, point: Point, models: LocalModels) -> None:
    """Raise InternalError, naming a family, if the structure does not have the derivatives of f."""
    structure = system.structure
    rng = np.random.default_rng(0)
    v = rng.choice([-1.0, 1.0], structure.num_inputs) * rng.uniform(0.5, 1.0, structure.num_inputs)
    value, gradient, curved = _derivatives(system, point, jnp.asarray(v, structure.dtype))
    tolerance = _TOLERANCE if structure.eps < _DOUBLE else _COARSE
    _compare(structure, "value", np.atleast_1d(models.value), np.atleast_1d(value), tolerance, 0.0)
    largest = float(np.max(np.abs(models.sources), initial=0.0))
    floor = structure.eps**0.5
    mine = np.asarray(models.duals)[: structure.num_inputs]
    # At a solution the gradient is rounding: what cancels in it is as large as the other duals.
    terms = max(largest, float(np.max(np.abs(models.duals), initial=0.0)))
    _compare(structure, "gradient", mine, np.asarray(gradient), tolerance, _CANCELS * floor * terms)
    if system.curvature == "exact":
        ours = lifted_product(structure, np.asarray(models.sources), v)
        _compare(structure, "Hessian-vector product", ours, np.asarray(curved), tolerance, floor * largest)


def _derivatives(system: System, point: Point, v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(f, g, H·v) of the function itself; operation by operation, in NumPy, where it is too long to compile."""
    if point.replay is None or not point.is_long:
        return system.derivatives(point, v)
    f = jax.value_and_grad(partial(point.replay, point.captured))
    closed = jax.make_jaxpr(lambda x, v: jax.jvp(f, (x,), (v,)))(jnp.asarray(point.x), v)
    hoisted: list[Numeric] = []
    flat = flatten_jaxpr(closed, hoisted, VALUE_CALLS)
    value, gradient, _, curved = (jnp.asarray(out) for out in fold_program(flat, [point.x, v], hoisted))
    return value, gradient, curved


def _compare(
    structure: Structure, what: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float, floor: float
) -> None:
    if not np.all(np.isfinite(theirs)):
        return
    scale = max(float(np.max(np.abs(theirs), initial=0.0)), float(np.max(np.abs(ours), initial=0.0)), floor)
    error = np.abs(ours - theirs)
    worst = int(np.argmax(error))
    if scale == 0.0 or error[worst] <= tolerance * scale:
        return
    where = _suspect(structure, worst if len(ours) == structure.num_inputs else 0)
    raise InternalError(
        f"the structure read from the objective has a wrong {what}: relative error "
        f"{error[worst] / scale:.1e} at {structure.slot_name(worst)}",
        where,
        "this is a bug in gnewt: please report it with the function; meanwhile mark the part opaque "
        "(wrap it in a jax.custom_vjp), or build a gnewt.Graph by hand",
    )


def _suspect(structure: Structure, slot: int) -> str:
    """Name the families that read an input: the wrong one is among them or behind them."""
    readers = [f for f in structure.families if np.any(f.args == slot)]
    return "; ".join(f"family {f.name} ({f.where})" for f in readers[:3]) or "no family reads it"
